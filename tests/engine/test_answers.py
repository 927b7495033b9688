"""What a client gets: finish reasons, delta intervals, log-probabilities, resumption."""

from __future__ import annotations

import pytest
from engine_rig import EOS, VOCABULARY, Rig

from vivace.engine.oracle import oracle_logprob, oracle_token
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import LogprobOptions


def rig_with(**options: object) -> Rig:
    return Rig(EngineSettings(eos_ids=(EOS,), **options))  # type: ignore[arg-type]


def first_tokens(key: int, prompt: int, count: int) -> list[int]:
    return [oracle_token(key, prompt + i, VOCABULARY) for i in range(count)]


def test_length_and_stop_ids() -> None:
    rig = rig_with()
    tokens = first_tokens(1, 2, 6)
    rig.send(1, [7, 8], 6, stop_token_ids=(tokens[3],))
    rig.send(2, [7, 8], 4, ignore_eos=True)
    rig.run()
    stopped = rig.answers[1].finish
    assert stopped is not None
    assert (stopped.type, stopped.matched) == ("stop", tokens[3])
    assert rig.answers[1].tokens == tokens[: tokens.index(tokens[3]) + 1]
    ended = rig.answers[2].finish
    assert ended is not None and (ended.type, ended.length) == ("length", 4)


def test_ignore_eos_ignores_all_stop_ids() -> None:
    rig = rig_with()
    tokens = first_tokens(1, 1, 5)
    rig.send(1, [7], 5, stop_token_ids=(tokens[1],), ignore_eos=True)
    rig.run()
    assert rig.answers[1].tokens == tokens


def test_minimum_length_masks_stop_ids() -> None:
    rig = rig_with()
    tokens = first_tokens(1, 1, 1)
    rig.send(1, [7], 6, stop_token_ids=(tokens[0],), min_new_tokens=3)
    rig.run()
    rig.check(1)
    assert len(rig.answers[1].tokens) >= 3
    assert tokens[0] not in rig.answers[1].tokens[:3]


def test_prefill_only() -> None:
    rig = rig_with()
    rig.send(1, [1, 2, 3], 0, logprobs=LogprobOptions(start=0))
    rig.run()
    answer = rig.answers[1]
    assert answer.tokens == [] and answer.finish is not None and answer.finish.length == 0
    assert [entry.token for entry in answer.prompt_logprobs or []] == [1, 2, 3]


def test_output_is_limited_by_the_context() -> None:
    rig = Rig(EngineSettings(eos_ids=(EOS,)), context=12)
    rig.send(1, [1] * 10, 50, ignore_eos=True)
    rig.run()
    finish = rig.answers[1].finish
    assert finish is not None and (finish.type, finish.length) == ("length", 2)


@pytest.mark.parametrize("depth", [1, 2])
def test_streaming_sends_the_first_token_at_once_then_every_interval(depth: int) -> None:
    rig = rig_with(stream_interval=4, depth=depth)
    rig.send(1, [1, 2], 10, ignore_eos=True)
    rig.send(2, [3, 4], 10, ignore_eos=True, stream_interval=2)
    rig.run()
    assert [len(delta.tokens) for delta in rig.answers[1].deltas] == [1, 4, 4, 1]
    assert [len(delta.tokens) for delta in rig.answers[2].deltas] == [1, 2, 2, 2, 2, 1]


def test_without_streaming_deltas_are_rare_unless_text_has_to_be_searched() -> None:
    rig = rig_with(coarse_interval=8)
    rig.send(1, [1, 2], 10, ignore_eos=True, stream=False)
    rig.send(2, [3, 4], 10, ignore_eos=True, stream=False, stop=("x",))
    rig.run()
    assert [len(delta.tokens) for delta in rig.answers[1].deltas] == [8, 2]
    assert [len(delta.tokens) for delta in rig.answers[2].deltas] == [1] * 10


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("start", [0, 1, 5, 6])
def test_prompt_logprobs_are_complete_whatever_is_cached(chunk: int, start: int) -> None:
    rig = Rig(EngineSettings(eos_ids=(EOS,), chunk=chunk), page_size=2)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    rig.send(1, prompt, 2)
    rig.run()
    rig.send(2, prompt, 3, logprobs=LogprobOptions(start=start), ignore_eos=True)
    rig.run()
    answer = rig.answers[2]
    assert answer.prompt_logprobs is not None
    expected = [oracle_logprob(token, p) for p, token in enumerate(prompt)][start:]
    assert [entry.token for entry in answer.prompt_logprobs] == prompt[start:]
    assert answer.prompt_logprobs[1:] == expected[1:]
    assert answer.deltas[0].prompt_logprobs is not None
    positions = range(len(prompt), len(prompt) + 3)
    scored = [oracle_logprob(t, p) for t, p in zip(answer.tokens, positions, strict=True)]
    assert answer.logprobs == scored


@pytest.mark.parametrize("turns", [4, 30])
def test_prompt_logprobs_survive_a_retraction(turns: int) -> None:
    """What was sent is not asked again, in the middle of the prompt and behind it."""
    settings = EngineSettings(eos_ids=(EOS,), chunk=2, rows=1, depth=1, priorities=True)
    rig = Rig(settings, page_size=2)
    starts: list[int] = []
    submit = rig.executor.submit

    def spy(plan):  # type: ignore[no-untyped-def]
        starts.extend(join.logprobs.start for join in plan.joins if join.logprobs)
        return submit(plan)

    rig.executor.submit = spy  # type: ignore[method-assign]
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    rig.send(1, prompt, 15, priority=0, logprobs=LogprobOptions(start=0), ignore_eos=True)
    rig.step(turns)
    rig.send(2, [1], 2, priority=99, ignore_eos=True)
    rig.run()
    rig.check(1)
    answer = rig.answers[1]
    assert answer.deltas[-1].retractions == 1
    assert [entry.token for entry in answer.prompt_logprobs or []] == prompt
    assert [entry.token for entry in answer.logprobs] == answer.tokens
    assert starts == ([1, 5] if turns == 4 else [1, -1])


def test_cached_tokens_are_reported_and_leave_one_to_compute() -> None:
    rig = Rig(EngineSettings(eos_ids=(EOS,)), page_size=2)
    for key in (1, 2):
        rig.send(key, [9, 8, 7, 6], 2)
        rig.run()
    assert rig.answers[1].deltas[0].cached_tokens == 0
    assert rig.answers[2].deltas[0].cached_tokens == 2
    rig.send(3, [9, 8, 7, 6], 2, cache_key="another tenant")
    rig.run()
    assert rig.answers[3].deltas[0].cached_tokens == 0


def test_resuming_goes_on_behind_the_ledger() -> None:
    rig = rig_with()
    rig.send(1, [5, 5, 5], 9, ignore_eos=True, resume=4)
    rig.run()
    rig.check(1)
    assert rig.answers[1].deltas[0].index == 4


def test_resuming_what_was_complete_only_sends_the_end() -> None:
    rig = rig_with()
    rig.send(1, [5], 4, ignore_eos=True, resume=3)
    complete = rig.answers[1].request.resumed
    assert len(complete) == 3
    rig.run()
    rig.send(2, [5], 3, ignore_eos=True)
    known = rig.expected(2)
    rig.mailbox.receive(0)
    request = rig.answers[2].request
    rig.answers[2].request = type(request)(
        key=2,
        rid="r2",
        tokens=[5],
        sampling=request.sampling,
        stream=True,
        resumed=known,
    )
    rig.mailbox.post(rig.answers[2].request)
    rig.step()
    answer = rig.answers[2]
    assert answer.finish is not None and answer.finish.type == "length" and answer.tokens == []


def test_the_first_token_has_its_own_time_without_streaming() -> None:
    """It waits in the engine until there is a whole delta to send."""
    rig = Rig(EngineSettings(eos_ids=(EOS,)))
    rig.send(1, [1, 2, 3], 6, ignore_eos=True, stream=False)
    begin = rig.clock.now
    rig.run()
    (only,) = rig.answers[1].deltas
    assert only.queue_time <= only.first_token_time < rig.clock.now - begin
    assert only.first_token_time > 0


def test_queue_time_is_on_the_first_and_the_last_delta() -> None:
    rig = rig_with(rows=1)
    rig.send(1, [1], 5, ignore_eos=True)
    rig.send(2, [2], 5, ignore_eos=True)
    rig.run()
    times = [delta.queue_time for delta in rig.answers[2].deltas]
    assert times[0] > 0 and times[-1] == times[0] and set(times[1:-1]) == {0.0}
