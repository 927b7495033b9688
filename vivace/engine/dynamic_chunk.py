"""How many prompt tokens a step may take while others decode: a time, in tokens.

Sarathi-Serve (Agrawal et al. 2024) bounds the pause of running streams by cutting prompts; here the
cut follows from the speed that the scheduler has measured itself.
"""

from __future__ import annotations

from collections import deque

SMALLEST = 16
"""tokens: shorter chunks cost as much, and say nothing about the speed"""
FIRST = 64
"""tokens while no speed is known"""
_DECODE_STEPS = 8
"""of the running streams' own steps that a chunk may take: prompts keep eight ninths of the time,
and few decode steps run with half a batch while many prompts arrive (with two, waves of 32 prompts
cost a fifth of the throughput)"""
_MOST_PROMPTS = 4
"""prompts that lengthen a chunk: where several wait, they are streams too"""
_MOST_SLOWER = 4
"""times slower that one step can make the prompts look: it may have been an accident"""


class DynamicChunk:
    """A chunk beside running streams takes `stall` seconds for each of up to four prompts that
    wait, and eight of the streams' own steps.

    Steps, not a constant alone, because prompts need a share of the time that does not shrink
    while the batch grows. Times come from whole steps, so a token behind a long context or with
    log-probabilities counts as what it cost.
    """

    def __init__(self, stall: float) -> None:
        self.enabled = stall > 0
        """False: prompts come first, whatever waits for them"""
        self._stall = stall
        self._token: float | None = None
        """seconds of a prompt token"""
        self._decodes: deque[float] = deque(maxlen=3)
        """seconds that decoding took in the last steps, or would have taken without their chunks"""

    def tokens(self, prompts: int) -> int | None:
        """Most prompt tokens of a step that running streams wait for, while `prompts` have not
        got their first token; None = no limit."""
        if not self.enabled:
            return None
        if self._token is None:
            return FIRST
        stall = self._stall * max(1, min(prompts, _MOST_PROMPTS))
        seconds = stall + _DECODE_STEPS * self._decode_step()
        return max(SMALLEST, int(min(seconds / max(self._token, 1e-9), 1 << 31)))

    def landed(self, chunk: int, decodes: int, seconds: float) -> None:
        """A step with `chunk` prompt tokens and `decodes` decode tokens took `seconds`."""
        if decodes:
            share = seconds * decodes / (chunk + decodes)
            alone = min(self._decode_step(), seconds) if chunk else seconds
            self._decodes.append(max(share, alone))
        if chunk >= SMALLEST:
            self._learn(seconds / (chunk + decodes))

    def _learn(self, token: float) -> None:
        """Slower counts at once, faster by and by: a chunk too short harms nobody."""
        known = self._token
        if known is None:
            self._token = token
        elif token > known:
            self._token = min(token, _MOST_SLOWER * known) if known else token
        else:
            self._token = (known + token) / 2

    def _decode_step(self) -> float:
        """The middle one of the last steps: an accident does not count."""
        decodes = sorted(self._decodes)
        return decodes[len(decodes) // 2] if decodes else 0.0
