from __future__ import annotations

import pytest
from frontend_fakes import byte_tokenizer

from vivace.frontend.request_output import RequestOutput, join_outputs
from vivace.frontend.sglang_output import SGLangOutput, finish_reason
from vivace.protocol.messages import Finish, LogprobOptions, Request, SamplingParams, TokenLogprob


def request(logprobs: LogprobOptions | None = None) -> Request:
    return Request(key=1, rid="r", tokens=[1, 2], sampling=SamplingParams(), logprobs=logprobs)


def piece(text: str, **more: object) -> RequestOutput:
    fields = {"tokens": list(text.encode()), "prompt_tokens": 2, "completion_tokens": len(text)}
    return RequestOutput(text=text, **{**fields, **more})  # type: ignore[arg-type]


def test_cumulative_and_disjoint_events() -> None:
    whole, news = SGLangOutput(request(), index=3), SGLangOutput(request(), disjoint=True)
    for answer, second in ((whole, "ab"), (news, "b")):
        assert answer.event(piece("a"))["text"] == "a"
        last = answer.event(piece("b", completion_tokens=2, finish=Finish("length", length=2)))
        assert last["text"] == second and last["output_ids"] == list(second.encode())
        assert last["meta_info"]["completion_tokens"] == 2
        assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
        assert answer.body()["text"] == "ab"
    assert whole.body()["index"] == 3 and "index" not in news.body()


def test_times_come_with_the_end_only() -> None:
    answer = SGLangOutput(request())
    assert "e2e_latency" not in answer.event(piece("a", timings={"queue": 1.0}))["meta_info"]
    timings = {"queue": 1.0, "e2e": 2.0, "first": 1.5}
    meta = answer.event(piece("", finish=Finish("stop", matched=7), timings=timings))["meta_info"]
    assert (meta["e2e_latency"], meta["queue_time"]) == (2.0, 1.0)
    assert meta["finish_reason"] == {"type": "stop", "matched": 7}


def test_log_probabilities_in_sglangs_form() -> None:
    entry = TokenLogprob(98, -0.5, top=[(-0.5, 98), (-1.0, 99)], chosen=[(-2.0, 97)])
    first = TokenLogprob(97, None)
    answer = SGLangOutput(
        request(LogprobOptions(start=0, top=2, token_ids=(97,))),
        token_text=byte_tokenizer().token_text,
    )
    answer.add(piece("b", logprobs=[entry], prompt_logprobs=[first, entry]))
    meta = answer.body()["meta_info"]
    assert meta["input_token_logprobs"] == [(None, 97, "a"), (-0.5, 98, "b")]
    assert meta["input_top_logprobs"] == [None, [(-0.5, 98, "b"), (-1.0, 99, "c")]]
    assert meta["output_token_logprobs"] == [(-0.5, 98, "b")]
    assert meta["output_token_ids_logprobs"] == [[(-2.0, 97, "a")]]
    plain = SGLangOutput(request(LogprobOptions()))
    plain.add(piece("b", logprobs=[entry]))
    assert plain.body()["meta_info"]["output_token_logprobs"] == [(-0.5, 98, None)]
    assert "output_top_logprobs" not in plain.body()["meta_info"]


def test_abort_reasons() -> None:
    assert finish_reason(None) is None
    assert finish_reason(Finish("abort", message="full", status=503)) == {
        "type": "abort",
        "message": "full",
        "status_code": 503,
        "err_type": "ServiceUnavailable",
    }
    plain = finish_reason(Finish("abort"))
    assert plain is not None and plain["status_code"] is None and plain["message"]


def test_nothing_to_show_yet() -> None:
    with pytest.raises(ValueError, match="output"):
        SGLangOutput(request()).body()


def test_merged_pieces_lose_nothing() -> None:
    entry = TokenLogprob(98, -0.5)
    first = piece("a", logprobs=[entry], prompt_logprobs=[entry], timings={"queue": 1.0})
    last = piece("b", logprobs=[entry], completion_tokens=2, finish=Finish("length"))
    both = join_outputs([first, last])
    assert (both.text, both.tokens, both.completion_tokens) == ("ab", [97, 98], 2)
    assert both.logprobs == [entry, entry] and both.prompt_logprobs == [entry]
    assert both.finish == Finish("length") and both.timings == {"queue": 1.0}
