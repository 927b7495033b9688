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
        self._prompt: dict[int, int] = {}
        self._completion: dict[int, int] = {}
        self._cached: dict[int, int] = {}

    def note(self, index: int, piece: Piece) -> None:
        """Counts are totals of the sequence so far."""
        self._prompt[index] = piece.prompt_tokens
        self._completion[index] = piece.completion_tokens
        self._cached[index] = piece.cached_tokens

    def usage(self) -> Usage:
        """Of the whole answer."""
        firsts = [index for index in self._prompt if index % self._samples == 0]
        return self._usage(
            sum(self._prompt[index] for index in firsts),
            sum(self._completion.values()),
            sum(self._cached[index] for index in firsts),
        )

    def usage_of(self, index: int) -> Usage:
        """Of one choice."""
        return self._usage(self._prompt[index], self._completion[index], self._cached[index])

    def _usage(self, prompt: int, completion: int, cached: int) -> Usage:
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=(
                PromptTokensDetails(cached_tokens=cached) if self._cache_report else None
            ),
        )
