"""What a sequence knows, and the memory that it takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.sequence import Sequence
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import Request, SamplingParams


def new_sequence(prompt: int, longest: int, most: int) -> Sequence:
    """Of `prompt` tokens; `longest`: that it asks for; `most`: that are served, prompt included."""
    sampling = SamplingParams(max_new_tokens=longest)
    request = Request(key=1, rid="1", tokens=list(range(prompt)), sampling=sampling)
    return Sequence(request, EngineSettings(), seq_no=1, max_len=most, now=0.0)


@given(st.integers(32, 400), st.integers(1, 3000), st.integers(500, 2000), st.integers(1, 40))
def test_reserved_memory_takes_tokens_and_is_all(
    prompt: int, longest: int, most: int, step: int
) -> None:
    sequence = new_sequence(prompt, longest, most)
    expected, copies = list(range(prompt)), 0
    while len(expected) < sequence.max_len:
        if len(expected) + step > sequence.reserved_len:
            sequence.reserve()
        assert sequence.tokens == expected
        assert sequence.reserved_len <= sequence.max_len
        before, room = sequence.tokens.__sizeof__(), sequence.reserved_len - len(expected)
        new = list(range(min(step, sequence.max_len - len(expected))))
        sequence.accept(new)
        expected += new
        moved = sequence.tokens.__sizeof__() != before
        assert not moved or len(new) > room
        copies += moved
    assert sequence.tokens == expected
    assert copies <= 8
