"""What the engine answers: a `Deltas` message per step and frontend, several where it is large."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vivace.protocol.request import LogprobOptions

FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_ABORT = "abort"

MAX_MESSAGE_BYTES = 1 << 17
"""of one message, about, as a frontend reads nothing else meanwhile; a delta of tokens alone is not
divided: it has at most a whole answer"""
DELTA_BYTES, TOKEN_BYTES, NUMBER_BYTES = 64, 5, 16
"""of a delta besides its lists, of a token id, of a log-probability with its token id"""


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request ended. `matched` is the stop id or string. `status` is HTTP's, for aborts."""

    type: str
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status: int | None = None
    retry_after: float | None = None
    """Seconds until it is worth trying again (503 only)."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token. `top` and `chosen` are (logprob, id), best first."""

    token: int
    logprob: float | None
    """None for the first prompt token."""
    top: list[tuple[float, int]] | None = None
    chosen: list[tuple[float, int]] | None = None
    """For `LogprobOptions.token_ids`, in the asked order."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Log-probabilities of the prompt tokens at `start`, `start` + 1 ... as bytes in the machine's
    order: who reads the message makes no object of each. `start` is at least 1, as nothing stands
    before the first token."""

    start: int
    logprobs: bytes
    """[n] float32"""
    top: bytes = b""
    """[n, k] float32, best first; k is what was asked for, or the vocabulary"""
    top_ids: bytes = b""
    """[n, k] int32"""
    chosen: bytes = b""
    """[n, m] float32, for `LogprobOptions.token_ids` in the asked order"""


class Delta(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is new of a request. `index` = how many output tokens were sent before (the ledger)."""

    key: int
    index: int
    tokens: list[int]
    finish: Finish | None = None
    cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    """The next of them; with nothing else, and all before the first token."""
    logprobs: list[TokenLogprob] | None = None
    """One per token of `tokens`, when asked for."""
    retractions: int = 0
    queue_time: float = 0.0
    """Seconds between arrival and the first scheduled step; set on the first and last delta."""
    first_token_time: float = 0.0
    """Seconds between arrival and the first token, however long it waited for its delta; set as
    `queue_time`."""


class Deltas(msgspec.Struct, tag="deltas"):
    """Deltas of one step for one frontend, in several messages where they are many. `epoch` changes
    when the engine restarts."""

    epoch: int
    deltas: list[Delta]


def delta_bytes(delta: Delta) -> int:
    """Bytes of a delta in a message, or a little more."""
    size = DELTA_BYTES + TOKEN_BYTES * len(delta.tokens)
    for one in delta.logprobs or ():
        size += NUMBER_BYTES * (1 + len(one.top or ()) + len(one.chosen or ()))
    if (part := delta.prompt_logprobs) is not None:
        size += len(part.logprobs) + len(part.top) + len(part.top_ids) + len(part.chosen)
    return size


def split_deltas(deltas: list[Delta]) -> Iterator[list[Delta]]:
    """The deltas in their order, as many at a time as a message may have."""
    batch: list[Delta] = []
    room = MAX_MESSAGE_BYTES
    for delta in deltas:
        size = delta_bytes(delta)
        if size > room and batch:
            yield batch
            batch, room = [], MAX_MESSAGE_BYTES
        batch.append(delta)
        room -= size
    if batch:
        yield batch


def max_tokens_per_message(options: LogprobOptions) -> int:
    """How many tokens of an answer a message has room for, with these log-probabilities."""
    numbers = 1 + options.top + len(options.token_ids)
    return max(1, (MAX_MESSAGE_BYTES - DELTA_BYTES) // (TOKEN_BYTES + NUMBER_BYTES * numbers))


def split_prompt_logprobs(scored: PromptLogprobs, first: int) -> Iterator[PromptLogprobs]:
    """The log-probabilities from prompt position `first` on, as many at a time as a message has
    room for; at least one token's."""
    count = len(scored.logprobs) // 4
    width = sum(map(len, msgspec.structs.astuple(scored)[1:])) // count
    step = max(1, (MAX_MESSAGE_BYTES - DELTA_BYTES) // width)
    for begin in range(max(0, first - scored.start), count, step):
        end = min(count, begin + step)
        if end - begin == count:
            yield scored
        else:
            columns = (scored.logprobs, scored.top, scored.top_ids, scored.chosen)
            cut = [one[len(one) * begin // count : len(one) * end // count] for one in columns]
            yield PromptLogprobs(scored.start + begin, *cut)
