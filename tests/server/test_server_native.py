"""The native API over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from server_kit import PROSE, Running, ScriptedEngine, ask, events, running_server

from vivace.protocol.messages import Finish
from vivace.server.settings import ServerSettings


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


GREEDY = {"max_new_tokens": 6, "temperature": 0, "sampling_seed": 0}


def test_text_prompt_gives_one_object_with_meta_info(server: Running) -> None:
    answer = ask(server, "/generate", {"text": "hi", "sampling_params": GREEDY, "rid": "r-1"})
    assert answer.status == 200
    assert answer.json["text"] == PROSE[:6]
    assert answer.json["output_ids"] == list(PROSE.encode()[:6])
    meta = answer.json["meta_info"]
    assert meta["id"] == "r-1"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 6, 3)
    assert meta["weight_version"] == "default"
    assert meta["e2e_latency"] >= 0


def test_put_and_ids_and_batches(server: Running) -> None:
    body = {"input_ids": [[65], [66, 67]], "sampling_params": [GREEDY, {**GREEDY, "n": 2}]}
    answer = ask(server, "/generate", body, method="PUT")
    assert [item["index"] for item in answer.json] == [0, 1, 2]
    assert [item["meta_info"]["prompt_tokens"] for item in answer.json] == [1, 2, 2]


def test_n_samples_have_their_own_seeds(server: Running) -> None:
    ask(server, "/generate", {"text": "x", "rid": "n", "sampling_params": {**GREEDY, "n": 3}})
    requests = server.engine.requests[-3:]
    assert [request.rid for request in requests] == ["n-0", "n-1", "n-2"]
    assert len({request.sampling.seed for request in requests}) == 3


def test_a_list_of_one_is_answered_with_a_list(server: Running) -> None:
    answer = ask(server, "/generate", {"text": ["x"], "sampling_params": GREEDY})
    assert isinstance(answer.json, list)
    assert len(answer.json) == 1


def test_stream_is_cumulative_and_ends_with_done(server: Running) -> None:
    answer = ask(server, "/generate", {"text": "x", "stream": True, "sampling_params": GREEDY})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *found, done = events(answer.text)
    assert done == "[DONE]"
    texts = [json.loads(data)["text"] for data in found]
    assert texts == [PROSE[: i + 1] for i in range(6)]
    assert json.loads(found[-1])["meta_info"]["finish_reason"]["type"] == "length"
    assert json.loads(found[0])["meta_info"]["finish_reason"] is None


def test_stream_is_disjoint_with_the_flag() -> None:
    with running_server(ServerSettings(stream_output=True)) as server:
        answer = ask(server, "/generate", {"text": "x", "stream": True, "sampling_params": GREEDY})
        *found, _ = events(answer.text)
        assert "".join(json.loads(data)["text"] for data in found) == PROSE[:6]
        ids = [token for data in found for token in json.loads(data)["output_ids"]]
        assert ids == list(PROSE.encode()[:6])


def test_batch_stream_carries_indices(server: Running) -> None:
    body = {"text": ["a", "b"], "stream": True, "sampling_params": GREEDY}
    *found, done = events(ask(server, "/generate", body).text)
    assert done == "[DONE]"
    last = {item["index"]: item for item in map(json.loads, found)}
    assert sorted(last) == [0, 1]
    assert all(item["text"] == PROSE[:6] for item in last.values())


def test_logprobs_scalar_and_per_prompt(server: Running) -> None:
    body = {
        "text": ["abc", "d"],
        "sampling_params": GREEDY,
        "return_logprob": [True, False],
        "logprob_start_len": [1, -1],
        "top_logprobs_num": 2,
        "token_ids_logprob": [[7, 9], None],
        "return_text_in_logprobs": True,
    }
    first, second = ask(server, "/generate", body).json
    meta = first["meta_info"]
    assert meta["output_token_logprobs"][0] == [-ord("T") / 1000, ord("T"), "T"]
    assert [item[2] for item in meta["input_token_logprobs"]] == ["b", "c"]
    assert len(meta["output_top_logprobs"][0]) == 2
    assert [item[1] for item in meta["output_token_ids_logprobs"][0]] == [7, 9]
    assert "output_token_logprobs" not in second["meta_info"]


def test_stop_string_trims_and_reports_the_match(server: Running) -> None:
    body = {
        "text": "x",
        "sampling_params": {**GREEDY, "max_new_tokens": 50, "stop": ["brown"]},
    }
    answer = ask(server, "/generate", body).json
    assert answer["text"] == "The quick "
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "brown"}


def test_prompt_ids_are_echoed_on_request(server: Running) -> None:
    body = {"text": "ab", "sampling_params": GREEDY, "return_prompt_token_ids": True}
    assert ask(server, "/generate", body).json["meta_info"]["prompt_token_ids"] == [97, 98]


def test_cache_salt_and_extra_key_isolate_without_collisions(server: Running) -> None:
    pairs = [("ab", "c"), ("a", "bc"), (None, "abc"), ("abc", None), (None, None)]
    for salt, extra in pairs:
        body = {"text": "x", "sampling_params": GREEDY, "cache_salt": salt, "extra_key": extra}
        assert ask(server, "/generate", body).status == 200
    keys = [request.cache_key for request in server.engine.requests[-len(pairs) :]]
    assert len(set(keys)) == len(pairs)
    assert keys[-1] == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_embeds", [[0.1]]),
        ("image_data", "http://x/y.png"),
        ("audio_data", "a"),
        ("video_data", "v"),
        ("session_params", {"id": "s"}),
        ("lora_path", "adapter"),
        ("custom_logit_processor", "{}"),
        ("bootstrap_host", "10.0.0.1"),
    ],
)
def test_unavailable_features_are_refused_by_name(
    server: Running, field: str, value: object
) -> None:
    answer = ask(server, "/generate", {"text": "x", "sampling_params": GREEDY, field: value})
    assert answer.status == 400
    assert answer.json["error"]["param"] == field
    assert answer.json["message"].startswith(f"{field}: ")


def test_a_full_queue_is_503_with_retry_after_also_for_streams() -> None:
    full = Finish(type="abort", message="the queue is full", status=503, retry_after=2.5)
    with running_server(engine=ScriptedEngine(refuse=full)) as server:
        for stream in (False, True):
            body = {"text": ["x", "y"], "sampling_params": GREEDY, "stream": stream}
            answer = ask(server, "/generate", body)
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "3"
            assert answer.json["error"]["message"] == "the queue is full"
        server.until(lambda: server.frontend.live == 0)


def test_abort_by_prefix_ends_the_stream_normally() -> None:
    with running_server(engine=ScriptedEngine(pause=0.01)) as server:
        import asyncio

        from server_kit import fetch

        async def both() -> tuple:
            long = {**GREEDY, "max_new_tokens": 400}
            body = {"text": "x", "rid": "job-17", "stream": True, "sampling_params": long}
            running = asyncio.create_task(fetch(server.url, "POST", "/generate", json=body))
            while not server.engine.running:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            aborted = await fetch(server.url, "POST", "/abort_request", json={"rid": "job"})
            return aborted, await running

        aborted, answer = server.run(both())
        assert aborted.status == 200
        *found, done = events(answer.text)
        assert done == "[DONE]"
        assert json.loads(found[-1])["meta_info"]["finish_reason"]["type"] == "abort"


def test_without_a_tokenizer_ids_work_and_text_is_refused() -> None:
    with running_server(tokenizer=False) as server:
        answer = ask(server, "/generate", {"input_ids": [1, 2], "sampling_params": GREEDY})
        assert answer.json["output_ids"] == list(PROSE.encode()[:6])
        assert answer.json["text"] == ""
        for path, body, field in [
            ("/generate", {"text": "x"}, "text"),
            ("/v1/completions", {"prompt": "x"}, "prompt"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "messages"),
            ("/tokenize", {"prompt": "x"}, "prompt"),
        ]:
            answer = ask(server, path, body)
            assert (answer.status, answer.json["param"]) == (400, field)


def test_thinking_is_limited_where_it_is_framed() -> None:
    """Whichever way the prompt comes; what the answer obeys begins behind the thinking."""
    body = {"max_thinking_tokens": 3, "sampling_params": {"max_new_tokens": 2, "regex": "a+"}}
    with running_server(ServerSettings(reasoning_parser="qwen3")) as server:
        for prompt, inside in (("hi", False), ("hi <think>\n", True)):
            for fields in ({"text": prompt}, {"input_ids": [*prompt.encode()]}):
                assert ask(server, "/generate", {**body, **fields}).status == 200
                constraint = server.engine.requests[-1].sampling.constraint
                assert constraint is not None and '"budget":3' in constraint.text
                assert ('"inside":true' in constraint.text) == inside
                assert "a+" in constraint.text
        for ids in ([-1], [10**9], [True], ["x"], [[]]):
            assert ask(server, "/generate", {**body, "input_ids": ids}).status == 400
    with running_server() as server:
        answer = ask(server, "/generate", {**body, "text": "hi"})
        assert (answer.status, answer.json["param"]) == (400, "max_thinking_tokens")


NAMES = ("max_thinking_tokens", "thinking_budget", "thinking_token_budget")


@pytest.mark.parametrize(
    "field", [*({name: 0} for name in NAMES), {"custom_params": {NAMES[1]: 0}}]
)
def test_thinking_is_limited_by_the_names_of_others(field: dict[str, Any]) -> None:
    with running_server(ServerSettings(reasoning_parser="qwen3")) as server:
        assert ask(server, "/generate", {"text": "hi", **field}).status == 200
        constraint = server.engine.requests[-1].sampling.constraint
        assert constraint is not None and '"budget":0' in constraint.text
        misplaced = ask(server, "/generate", {"text": "hi", "sampling_params": {**field, "n": 1}})
        assert (misplaced.status, "beside" in misplaced.json["message"]) == (400, True)
