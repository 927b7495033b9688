"""Whether one more sequence may run: an estimate of what the running ones will still need."""

from __future__ import annotations

from collections.abc import Iterable

from vivace.engine.sequence import Sequence
from vivace.engine.settings import EngineSettings


class NewTokenEstimate:
    """Believes in `ratio` of the output that running sequences may still produce.

    The ratio starts high (0.7), decays linearly while all goes well, and jumps after a retraction
    to what the running sequences have really used.
    """

    def __init__(self, settings: EngineSettings, page_size: int) -> None:
        self._clip = settings.clip_new_tokens
        self._page_size = page_size
        self._retract_steps = settings.retract_steps
        initial = min(1.0, settings.initial_ratio * settings.conservativeness)
        self._floor = min(1.0, initial * settings.final_ratio_factor)
        self._decay = (initial - self._floor) / max(1, settings.ratio_decay_steps)
        self._initial = initial
        self.ratio = initial

    def decoded(self) -> None:
        """A decode step was planned without trouble."""
        if self.ratio > self._floor:
            self.ratio = max(self._floor, self.ratio - self._decay)

    def retracted(self, running: Iterable[Sequence]) -> None:
        """Pages ran out; `running` are those that stay."""
        produced = total = count = 0
        for sequence in running:
            count += 1
            produced += sequence.generated
            total += sequence.limit - sequence.prompt
        if total:
            self.ratio = min(1.0, (produced + self._retract_steps * count) / total)

    def rested(self) -> None:
        """Nothing lived for a while: what was learned about earlier requests is forgotten."""
        self.ratio = self._initial

    def expected(self, filling: Iterable[Sequence], decoding: Iterable[Sequence]) -> int:
        """Tokens that running sequences will take beyond the pages they hold."""
        clip, chunks, output = self._clip, 0, 0
        for sequence in decoding:
            left = sequence.limit - len(sequence.tokens)
            output += left if left < clip else clip
        for sequence in filling:
            assert sequence.lease is not None
            held = len(sequence.lease.pages) * self._page_size
            chunks += max(0, sequence.target - held)
            output += min(sequence.limit - len(sequence.tokens), clip)
        return chunks + int(output * self.ratio)

    def demand(self, sequence: Sequence) -> int:
        """Tokens a newcomer is admitted for: its uncached tokens and all it may produce."""
        known = len(sequence.tokens)
        return known - sequence.computed + min(sequence.limit - known, self._clip) + self._page_size
