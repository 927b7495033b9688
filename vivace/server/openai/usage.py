"""Token counts of an answer."""

from __future__ import annotations

from vivace.frontend.request_output import RequestOutput
from vivace.server.openai.schema import CachedTokensDetails, PromptTokensDetails, SglExt, Usage


class Tally:
    """Counts of the latest piece of every choice; a prompt counts once however many samples."""

    def __init__(self, samples: int, cache_report: bool) -> None:
        """`samples` is n: choices i * n .. i * n + n - 1 share prompt i."""
        self._samples = samples
        self._cache_report = cache_report
        self._latest: dict[int, RequestOutput] = {}

    def note(self, index: int, piece: RequestOutput) -> None:
        """A piece's counts are totals of the sequence so far."""
        self._latest[index] = piece

    def usage(self) -> Usage:
        """Of the whole answer."""
        return self._usage(
            sum(piece.prompt_tokens for piece in self._firsts()),
            sum(piece.completion_tokens for piece in self._latest.values()),
            self.cached_tokens(),
        )

    def usage_of(self, index: int) -> Usage:
        """Of one choice."""
        piece = self._latest[index]
        return self._usage(piece.prompt_tokens, piece.completion_tokens, piece.cached_tokens)

    def cached_tokens(self) -> int:
        """Prompt tokens of the whole answer that were found in the prefix cache."""
        return sum(piece.cached_tokens for piece in self._firsts())

    def _firsts(self) -> list[RequestOutput]:
        """One piece for each prompt."""
        return [piece for index, piece in self._latest.items() if index % self._samples == 0]

    def _usage(self, prompt: int, completion: int, cached: int) -> Usage:
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=(
                PromptTokensDetails(cached_tokens=cached) if self._cache_report else None
            ),
        )


def sglext(tally: Tally) -> SglExt:
    """SGLang's extension of an answer with `return_cached_tokens_details`."""
    return SglExt(cached_tokens_details=CachedTokensDetails(device=tally.cached_tokens()))
