"""Hidden states beside tokens, for rows that want them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.platforms.host import download
from vivace.platforms.rows import Spans
from vivace.protocol.tasks import HIDDEN_STATES, Payload
from vivace.worker.rows import RowStates


class HiddenStatesHead:
    """The hidden states of the positions that a row asked for."""

    def __init__(self, states: RowStates) -> None:
        self.rows = states.hidden_state_starts

    def read(self, spans: Spans, hidden: Tensor) -> Iterator[HiddenStatesSpan]:
        for span, row in enumerate(spans.rows.tolist()):
            start = self.rows.get(row)
            if start is None:
                continue
            unwanted = max(0, start - int(spans.before[span]))
            begin, end = int(spans.starts[span]) + unwanted, int(spans.starts[span + 1])
            if begin < end:  # a copy: the next step writes into the same memory
                states = hidden[begin:end].to(torch.float32, copy=True)
                yield HiddenStatesSpan(span, unwanted, states)


@dataclass(frozen=True, slots=True)
class HiddenStatesSpan:
    """Those of a span behind its first `unwanted` positions: [n, hidden] float32."""

    span: int
    unwanted: int
    states: Tensor

    def record(self) -> None:
        """A row keeps none."""

    def read(self, advanced: int) -> Payload | None:
        count = advanced - self.unwanted
        if count <= 0:
            return None
        data = download(self.states[:count]).tobytes()
        return Payload(HIDDEN_STATES, "float32", (count, self.states.shape[1]), data)
