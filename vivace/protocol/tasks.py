"""What a request wants of the engine, and what comes back besides tokens."""

from __future__ import annotations

from array import array

import msgspec

LAST, MEAN, CLS, STEPS = "last", "mean", "cls", "steps"
POOLINGS = (LAST, MEAN, CLS)
"""how hidden states of a prompt become one vector: that of the last token, their mean, the first"""


class Generate(msgspec.Struct, frozen=True, omit_defaults=True, tag="generate"):
    """Tokens. `hidden_state_start`: the first position whose hidden state is wanted, too; every
    computed one behind it is. -1 = none."""

    hidden_state_start: int = -1


class Embed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="embed"):
    """One vector of the prompt. The request ends when that is computed; no token is drawn."""

    pooling: str = LAST
    """of POOLINGS, or STEPS: no vector, but what a head makes of each token that ends a step"""
    normalize: bool = True
    """to length 1, behind the cut"""
    dimensions: int = 0
    """the first numbers of the vector, which a Matryoshka model can do with; 0 = all"""


Task = Generate | Embed
GENERATE = Generate()
HIDDEN = Generate(hidden_state_start=0)
"""tokens, and the hidden states of all positions"""


class KVTransfer(msgspec.Struct, frozen=True, array_like=True):
    """A prompt is computed in one engine and continued in another.

    `room`: the number under which both sides meet. `receive`: the KV of everything known but the
    last token comes from there; otherwise it goes there as soon as this engine has computed it.
    """

    room: int
    receive: bool


EMBEDDING, HIDDEN_STATES = "embedding", "hidden_states"


class Payload(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Numbers of a request as bytes in the machine's order: who reads the message makes no object
    of each."""

    kind: str
    """EMBEDDING or HIDDEN_STATES"""
    dtype: str
    """numpy's name: "float32" """
    shape: tuple[int, ...]
    """(dimensions,) of an embedding, (steps, labels), (positions, hidden size) of hidden states"""
    data: bytes
    start: int = 0
    """position of the first hidden state; between scheduler and frontend"""

    def rows(self, first: int, end: int) -> Payload:
        """Those of `first` up to `end`, counted in rows."""
        if (first, end) == (0, self.shape[0]):
            return self
        width = len(self.data) // self.shape[0]
        shape = (end - first, *self.shape[1:])
        data = self.data[first * width : end * width]
        return Payload(self.kind, self.dtype, shape, data, self.start + first)

    def numbers(self) -> list[float]:
        """All of them, row by row."""
        return array("f", self.data).tolist()
