"""How large messages to a frontend are, and what is too much for one: in parts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vivace.protocol.messages import Delta, LogprobOptions, PromptLogprobs
from vivace.protocol.tasks import Payload

MAX_MESSAGE_BYTES = 1 << 17
"""of one message, about, as a frontend reads nothing else meanwhile; a delta of tokens alone is not
divided: it has at most a whole answer, and so is a single vector"""
DELTA_BYTES, ID_BYTES, NUMBER_BYTES = 64, 5, 16
"""of a delta besides its lists, of a token id, of a log-probability with its token id"""


def delta_bytes(delta: Delta) -> int:
    """Bytes of a delta in a message, or a little more."""
    size = DELTA_BYTES + ID_BYTES * len(delta.tokens)
    for one in delta.logprobs or ():
        size += NUMBER_BYTES * (1 + len(one.top or ()) + len(one.chosen or ()))
    if (part := delta.prompt_logprobs) is not None:
        size += len(part.logprobs) + len(part.top) + len(part.top_ids) + len(part.chosen)
    if delta.payload is not None:
        size += len(delta.payload.data)
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
    return max(1, (MAX_MESSAGE_BYTES - DELTA_BYTES) // (ID_BYTES + NUMBER_BYTES * numbers))


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


def split_hidden_states(payload: Payload, first: int) -> Iterator[Payload]:
    """The hidden states from position `first` on, as many at a time as a message has room for; at
    least one token's."""
    count = payload.shape[0]
    step = max(1, (MAX_MESSAGE_BYTES - DELTA_BYTES) // max(1, len(payload.data) // count))
    for begin in range(max(0, first - payload.start), count, step):
        yield payload.rows(begin, min(count, begin + step))
