"""Log-probabilities of /generate as JSON: made in slices, kept, and shown in event after event."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.frontend.request_output import RequestOutput
from vivace.frontend.sglang_output import SGLangOutput
from vivace.server.encoding import EncodedList, batches
from vivace.server.pace import Work

encode = msgspec.json.encode


class NativeLogprobs:
    """The lists of one answer's meta_info, as far as they have come."""

    def __init__(self, answer: SGLangOutput) -> None:
        self._rows = answer.logprob_rows
        self._lists = {
            f"{side}_{name}": EncodedList()
            for side in ("input", "output")
            for name in answer.logprob_rows([])
        }

    def add(self, piece: RequestOutput) -> Work[None]:
        """Pauses only where there is more to do."""
        sides = (("input", piece.prompt_logprobs), ("output", piece.logprobs))
        news = ((side, batch) for side, rows in sides for batch in batches(rows or ()))
        for number, (side, batch) in enumerate(news):
            if number:
                yield
            for name, rows in self._rows(batch).items():
                self._lists[f"{side}_{name}"].extend(rows)

    def shown_in(self, body: dict[str, Any]) -> list[bytes]:
        """JSON of a body with these lists in its meta_info, to be written one after the other."""
        rest = dict(body)
        meta = encode(rest.pop("meta_info"), enc_hook=str)
        parts = [encode(rest, enc_hook=str)[:-1] + b',"meta_info":' + meta[:-1]]
        for name, entries in self._lists.items():
            parts += [b',"%b":' % name.encode(), *entries.parts()]
        parts.append(b"}}")
        return parts
