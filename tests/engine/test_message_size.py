"""No message of the engine is large, whatever is asked: a frontend reads nothing else meanwhile."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from engine_rig import EOS, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_parts import collect_rows

from vivace.engine.oracle import oracle_logprob, pack_logprobs
from vivace.engine.settings import EngineSettings
from vivace.protocol.message_size import (
    MAX_MESSAGE_BYTES,
    delta_bytes,
    split_deltas,
    split_hidden_states,
    split_prompt_logprobs,
)
from vivace.protocol.messages import Delta, Deltas, LogprobOptions
from vivace.protocol.tasks import Payload

ALL_IDS = tuple(range(90))
KEYS = 4
WORST = LogprobOptions(start=0, top=128, token_ids=ALL_IDS)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunk", [512, 5000])
@pytest.mark.parametrize("stream", [True, False])
def test_the_largest_message_is_small(depth: int, chunk: int, stream: bool) -> None:
    rig = Rig(EngineSettings(eos_ids=(EOS,), chunk=chunk, depth=depth), pages=2000, context=4000)
    sizes: list[int] = []
    send = rig.mailbox.send

    def watch(frontend: int, message: object) -> None:
        sizes.append(len(msgspec.msgpack.encode(message)))
        send(frontend, message)  # type: ignore[arg-type]

    rig.mailbox.send = watch  # type: ignore[method-assign]
    prompt = [5 + i % 90 for i in range(900)]
    for key in range(1, KEYS):
        rig.send(
            key,
            prompt,
            150,
            logprobs=WORST,
            ignore_eos=True,
            stream=stream,
            stream_interval=10_000,
        )
    rig.run()
    assert max(sizes) <= MAX_MESSAGE_BYTES + 4096
    assert sum(sizes) > (KEYS - 1) * len(prompt) * 128 * 8, "all was sent"
    expected = [oracle_logprob(token, p, WORST) for p, token in enumerate(prompt)]
    for key in range(1, KEYS):
        rig.check(key)
        answer = rig.answers[key]
        assert answer.prompt_logprobs is not None and answer.prompt_logprobs[1:] == expected[1:]
        assert len(answer.logprobs) == 150


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 40),
    top=st.integers(0, 128),
    chosen=st.integers(0, 60),
    start=st.integers(1, 9),
    known=st.integers(0, 60),
    most=st.integers(1, 1 << 14),
)
def test_parts_add_up(rows: int, top: int, chosen: int, start: int, known: int, most: int) -> None:
    options = LogprobOptions(start=max(start, known), top=top, token_ids=tuple(range(chosen)))
    tokens = list(range(200, 200 + start + rows))
    scored = [oracle_logprob(tokens[p], p, options) for p in range(start, start + rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vivace.protocol.message_size.MAX_MESSAGE_BYTES", most)
        sent = list(split_prompt_logprobs(pack_logprobs(start, scored), known))
    for part in sent:
        size = delta_bytes(Delta(key=1, index=0, tokens=[], prompt_logprobs=part))
        assert size <= most or len(part.logprobs) == 4
    assert collect_rows(tokens, options, sent) == scored[max(0, known - start) :]


@given(st.lists(st.integers(0, 40_000), max_size=30))
def test_messages_keep_the_order(lengths: list[int]) -> None:
    deltas = [Delta(key=key, index=0, tokens=[7] * length) for key, length in enumerate(lengths)]
    batches = list(split_deltas(deltas))
    assert [delta for batch in batches for delta in batch] == deltas
    for batch in batches:
        assert len(batch) == 1 or sum(map(delta_bytes, batch)) <= MAX_MESSAGE_BYTES
        assert len(msgspec.msgpack.encode(Deltas(0, batch))) <= sum(map(delta_bytes, batch)) + 64


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 60),
    width=st.sampled_from([1, 64, 4096, 50_000]),
    start=st.integers(0, 9),
    known=st.integers(0, 80),
)
def test_hidden_states_are_sent_in_parts(rows: int, width: int, start: int, known: int) -> None:
    numbers = array("f", [0.0]) * (rows * width)
    for row in range(rows):
        numbers[row * width] = start + row
    whole = Payload("hidden_states", "float32", (rows, width), numbers.tobytes(), start)
    position = max(start, known)
    for part in split_hidden_states(whole, known):
        assert part.start == position and part.shape[1] == width
        assert part.numbers()[::width] == list(range(position, position + part.shape[0]))
        size = delta_bytes(Delta(key=1, index=0, tokens=[], payload=part))
        assert size <= MAX_MESSAGE_BYTES or part.shape[0] == 1
        position += part.shape[0]
    assert position == max(start + rows, known)
