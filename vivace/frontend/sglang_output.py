"""SGLang's native answer ({text, output_ids, meta_info}) from outputs; shared by /generate and the
offline API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vivace.frontend.request_output import RequestOutput
from vivace.protocol.messages import FINISH_ABORT, FINISH_STOP, Finish, Request, TokenLogprob
from vivace.protocol.tasks import HIDDEN, Payload

_ABORT_NAMES = {400: "BadRequestError", 429: "TooManyRequests", 503: "ServiceUnavailable"}

TokenText = Callable[[int], str]


class SGLangOutput:
    """Accumulates the outputs of one request.

    `token_text` adds text to log-probability entries (return_text_in_logprobs). `index` is the
    place in a batch. With `disjoint`, an event shows only what its own output brought.
    """

    def __init__(
        self,
        request: Request,
        *,
        weight_version: str = "default",
        index: int | None = None,
        token_text: TokenText | None = None,
        disjoint: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._request = request
        self._weight_version = weight_version
        self._index = index
        self._token_text = token_text
        self._disjoint = disjoint
        self._wall = wall
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: Iterable[TokenLogprob] = ()
        self._hidden_states: list[Payload] = []
        self._last: RequestOutput | None = None

    @property
    def finish(self) -> Finish | None:
        return self._last.finish if self._last is not None else None

    @property
    def text(self) -> str:
        """Of the answer so far."""
        return "".join(self._texts)

    def extend(self, text: str, tokens: list[int]) -> None:
        """Text and tokens that came without an output."""
        self._texts.append(text)
        self._tokens.extend(tokens)

    def add(self, output: RequestOutput) -> None:
        self.extend(output.text, output.tokens)
        if output.logprobs:
            self._logprobs.extend(output.logprobs)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if output.hidden_states:
            self._hidden_states += output.hidden_states
        self._last = output

    def event(self, output: RequestOutput, *, lists: bool = True) -> dict[str, Any]:
        """One streamed event: the whole answer so far, or only the news when `disjoint`. Hidden
        states come with the last event, or as news: each is long.
        `lists`: as in `body`."""
        self.add(output)
        if not self._disjoint:
            return self.body(lists=lists)
        body = self._body(output.text, output.tokens)
        if lists:
            sides = (output.prompt_logprobs or (), output.logprobs or ())
            body["meta_info"] |= self._logprob_fields(*sides)
            body["meta_info"] |= self._hidden_state_field(output.hidden_states or [])
        return body

    def body(self, *, lists: bool = True) -> dict[str, Any]:
        """The answer as far as it has come; valid after the first `add`. Without `lists` it has
        no log-probabilities and hidden states: they may be millions (see `logprob_rows`,
        `hidden_state_rows`)."""
        text = "".join(self._texts)
        self._texts = [text]
        body = self._body(text, list(self._tokens))
        if lists:
            body["meta_info"] |= self._logprob_fields(self._prompt_logprobs, self._logprobs)
            if self.finish is not None:
                body["meta_info"] |= self._hidden_state_field(self._hidden_states)
        return body

    def embedding(self) -> dict[str, Any]:
        """The answer to a request for a vector, or for numbers of each step."""
        vector = self._last.embedding if self._last is not None else None
        if vector is None:
            raise ValueError("no embedding has come")
        rows = len(vector.shape) > 1
        shown = [*number_rows([vector])] if rows else vector.numbers()
        return {"embedding": shown, "meta_info": self._meta()}

    def _body(self, text: str, tokens: list[int]) -> dict[str, Any]:
        body: dict[str, Any] = {"text": text, "output_ids": tokens, "meta_info": self._meta()}
        if self._index is not None:
            body["index"] = self._index
        return body

    def _meta(self) -> dict[str, Any]:
        output = self._last
        if output is None:
            raise ValueError("no output has been added yet")
        meta: dict[str, Any] = {
            "id": self._request.rid,
            "finish_reason": finish_reason(output.finish),
            "prompt_tokens": output.prompt_tokens,
            "weight_version": self._weight_version,
            "dp_rank": output.dp_rank,
            "num_retractions": output.retractions,
            "completion_tokens": output.completion_tokens,
            "cached_tokens": output.cached_tokens,
            "cached_tokens_details": {"device": output.cached_tokens, "host": 0},
        }
        if output.finish is not None:
            # what was asked for, cut to the room that the prompt leaves
            meta["max_new_tokens"] = self._request.sampling.max_new_tokens
        if output.drafts is not None:
            meta |= draft_fields(output.completion_tokens, *output.drafts)
        if output.finish is not None and output.timings:
            meta |= timing_fields(output.timings, output.completion_tokens, self._wall())
        return meta

    def _logprob_fields(
        self, prompt_logprobs: Iterable[TokenLogprob], logprobs: Iterable[TokenLogprob]
    ) -> dict[str, Any]:
        sides = (("input", list(prompt_logprobs)), ("output", list(logprobs)))
        return {
            f"{side}_{name}": rows
            for side, entries in sides
            for name, rows in self.logprob_rows(entries).items()
        }

    def logprob_rows(self, entries: list[TokenLogprob]) -> dict[str, list[Any]]:
        """What some tokens add to the lists of meta_info, by their names without "input_" or
        "output_"; empty when nobody asked."""
        options = self._request.logprobs
        if options is None:
            return {}
        rows: dict[str, list[Any]] = {"token_logprobs": [self._row(entry) for entry in entries]}
        if options.top:
            rows["top_logprobs"] = [self._pairs(entry.top) for entry in entries]
        if options.token_ids:
            rows["token_ids_logprobs"] = [self._pairs(entry.chosen) for entry in entries]
        return rows

    def _hidden_state_field(self, parts: list[Payload]) -> dict[str, Any]:
        """As SGLang has them: a list of those of the prompt, then one of each token."""
        if self._request.task != HIDDEN:
            return {}
        prompt, answer = (list(rows) for rows in self.hidden_state_rows(parts))
        return {"hidden_states": [prompt, *answer] if prompt else answer}

    def hidden_state_rows(
        self, parts: list[Payload]
    ) -> tuple[Iterator[list[float]], Iterator[list[float]]]:
        """(those of the prompt, those behind it), one list of numbers each."""
        end = len(self._request.tokens)
        inside = [
            part.rows(0, min(part.shape[0], end - part.start)) for part in parts if part.start < end
        ]
        behind = [
            part.rows(max(0, end - part.start), part.shape[0])
            for part in parts
            if part.start + part.shape[0] > end
        ]
        return number_rows(inside), number_rows(behind)

    def _row(self, entry: TokenLogprob) -> tuple[float | None, int, str | None]:
        return entry.logprob, entry.token, self._text(entry.token)

    def _pairs(
        self, pairs: list[tuple[float, int]] | None
    ) -> list[tuple[float, int, str | None]] | None:
        if pairs is None:
            return None
        return [(logprob, token, self._text(token)) for logprob, token in pairs]

    def _text(self, token: int) -> str | None:
        return self._token_text(token) if self._token_text is not None else None


def number_rows(parts: list[Payload]) -> Iterator[list[float]]:
    for part in parts:
        for row in range(part.shape[0]):
            yield part.rows(row, row + 1).numbers()


def draft_fields(tokens: int, drafts: int, accepted: int, steps: int) -> dict[str, float]:
    """meta_info of an answer for which drafts were verified."""
    return {
        "spec_verify_ct": steps,
        "spec_accept_length": tokens / max(1, steps),
        "spec_accept_rate": accepted / drafts,
        "spec_accept_token_num": accepted,
        "spec_draft_token_num": drafts,
    }


def timing_fields(timings: dict[str, float], tokens: int, now: float) -> dict[str, float]:
    """meta_info of a finished answer. Durations in seconds, `..._ts` in Unix time (`now`).

    The engine sends the first token when the prompt is computed.
    """
    whole, queue = timings.get("e2e", 0.0), timings.get("queue", 0.0)
    first = timings.get("first") or whole
    received = now - whole
    decoding = whole - first
    return {
        "e2e_latency": whole,
        "queue_time": queue,
        "inference_time": max(0.0, whole - queue),
        "decode_throughput": (tokens - 1) / decoding if tokens > 1 and decoding > 0 else 0.0,
        "request_received_ts": received,
        "request_sent_to_scheduler_ts": received + timings.get("sent", 0.0),
        "prefill_finished_ts": received + first,
        "decode_finished_ts": now,
        "response_sent_to_client_ts": now,
    }


def finish_reason(finish: Finish | None) -> dict[str, Any] | None:
    """meta_info.finish_reason in SGLang's form."""
    if finish is None:
        return None
    if finish.type == FINISH_ABORT:
        return {
            "type": FINISH_ABORT,
            "message": finish.message or "the request was aborted",
            "status_code": finish.status,
            "err_type": None
            if finish.status is None
            else _ABORT_NAMES.get(finish.status, "InternalServerError"),
        }
    if finish.type == FINISH_STOP:
        return {"type": FINISH_STOP, "matched": finish.matched}
    return {"type": finish.type, "length": finish.length}
