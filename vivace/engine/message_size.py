"""No message to a frontend is large: whoever reads one reads nothing else meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vivace.protocol.output import Delta, PromptLogprobs
from vivace.protocol.request import LogprobOptions

MOST_BYTES = 1 << 17
"""of one message, about; a delta of tokens alone is not divided: it has at most a whole answer"""
DELTA_BYTES, TOKEN_BYTES, NUMBER_BYTES = 64, 5, 16
"""of a delta besides its lists, of a token id, of a log-probability with its token id"""


def size_of(delta: Delta) -> int:
    """Bytes of a delta in a message, or a little more."""
    size = DELTA_BYTES + TOKEN_BYTES * len(delta.tokens)
    for one in delta.logprobs or ():
        size += NUMBER_BYTES * (1 + len(one.top or ()) + len(one.chosen or ()))
    if (part := delta.prompt_logprobs) is not None:
        size += len(part.logprobs) + len(part.top) + len(part.top_ids) + len(part.chosen)
    return size


def small_messages(deltas: list[Delta]) -> Iterator[list[Delta]]:
    """The deltas in their order, as many at a time as a message may have."""
    batch: list[Delta] = []
    room = MOST_BYTES
    for delta in deltas:
        size = size_of(delta)
        if size > room and batch:
            yield batch
            batch, room = [], MOST_BYTES
        batch.append(delta)
        room -= size
    if batch:
        yield batch


def tokens_per_message(options: LogprobOptions) -> int:
    """How many tokens of an answer a message has room for, with these log-probabilities."""
    numbers = 1 + options.top + len(options.token_ids)
    return max(1, (MOST_BYTES - DELTA_BYTES) // (TOKEN_BYTES + NUMBER_BYTES * numbers))


def parts(scored: PromptLogprobs, first: int) -> Iterator[PromptLogprobs]:
    """The log-probabilities from prompt position `first` on, as many at a time as a message has
    room for; at least one token's."""
    count = len(scored.logprobs) // 4
    width = sum(map(len, msgspec.structs.astuple(scored)[1:])) // count
    step = max(1, (MOST_BYTES - DELTA_BYTES) // width)
    for begin in range(max(0, first - scored.start), count, step):
        end = min(count, begin + step)
        if end - begin == count:
            yield scored
        else:
            columns = (scored.logprobs, scored.top, scored.top_ids, scored.chosen)
            cut = [one[len(one) * begin // count : len(one) * end // count] for one in columns]
            yield PromptLogprobs(scored.start + begin, *cut)
