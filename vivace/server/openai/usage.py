"""Token counts of an answer: what of it each choice has, and the prompts once."""

from __future__ import annotations

from vivace.frontend.request_output import RequestOutput
from vivace.server.openai.schema import (
    CachedTokensDetails,
    CompletionTokensDetails,
    PromptTokensDetails,
    SglExt,
    Usage,
)


class UsageCounter:
    """Counts of the latest output of every choice; a prompt counts once however many samples."""

    def __init__(self, samples: int, cache_report: bool) -> None:
        """`samples` is n: choices i * n .. i * n + n - 1 share prompt i."""
        self._samples = samples
        self._cache_report = cache_report
        self._latest: dict[int, RequestOutput] = {}
        self._reasoning: dict[int, int] = {}

    def note_reasoning(self, index: int, tokens: int | None) -> None:
        """How many tokens of a choice are reasoning so far; None when nobody knows."""
        if tokens is not None:
            self._reasoning[index] = tokens

    def update(self, index: int, output: RequestOutput) -> None:
        """An output's counts are totals of the sequence so far."""
        self._latest[index] = output

    def usage(self) -> Usage:
        """Of the whole answer."""
        return self._usage(
            sum(output.prompt_tokens for output in self._first_samples()),
            sum(output.completion_tokens for output in self._latest.values()),
            self.cached_tokens(),
            sum(self._reasoning.values()),
        )

    def choice_usage(self, index: int) -> Usage:
        """Of one choice."""
        output = self._latest[index]
        return self._usage(
            output.prompt_tokens,
            output.completion_tokens,
            output.cached_tokens,
            self._reasoning.get(index, 0),
        )

    def cached_tokens(self) -> int:
        """Prompt tokens of the whole answer that were found in the prefix cache."""
        return sum(output.cached_tokens for output in self._first_samples())

    def sglext(self) -> SglExt:
        """SGLang's extension of an answer with `return_cached_tokens_details`."""
        return SglExt(cached_tokens_details=CachedTokensDetails(device=self.cached_tokens()))

    def _first_samples(self) -> list[RequestOutput]:
        """One output for each prompt."""
        return [output for index, output in self._latest.items() if index % self._samples == 0]

    def _usage(self, prompt: int, completion: int, cached: int, reasoning: int) -> Usage:
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=(
                PromptTokensDetails(cached_tokens=cached) if self._cache_report else None
            ),
            reasoning_tokens=reasoning,
        )
        if self._reasoning:
            usage.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=reasoning)
        return usage
