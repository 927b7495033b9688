"""Token counts of an answer."""

from __future__ import annotations

from vivace.frontend.piece import Piece
from vivace.server.openai.schema import PromptTokensDetails, Usage


class Tally:
    """Counts of the latest piece of every choice; a prompt counts once however many samples."""

    def __init__(self, samples: int, cache_report: bool) -> None:
        """`samples` is n: choices i * n .. i * n + n - 1 share prompt i."""
        self._samples = samples
        self._cache_report = cache_report
        self._latest: dict[int, Piece] = {}

    def note(self, index: int, piece: Piece) -> None:
        """A piece's counts are totals of the sequence so far."""
        self._latest[index] = piece

    def usage(self) -> Usage:
        """Of the whole answer."""
        latest = self._latest
        firsts = [piece for index, piece in latest.items() if index % self._samples == 0]
        return self._usage(
            sum(piece.prompt_tokens for piece in firsts),
            sum(piece.completion_tokens for piece in latest.values()),
            sum(piece.cached_tokens for piece in firsts),
        )

    def usage_of(self, index: int) -> Usage:
        """Of one choice."""
        piece = self._latest[index]
        return self._usage(piece.prompt_tokens, piece.completion_tokens, piece.cached_tokens)

    def _usage(self, prompt: int, completion: int, cached: int) -> Usage:
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=(
                PromptTokensDetails(cached_tokens=cached) if self._cache_report else None
            ),
        )
