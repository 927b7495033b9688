"""Ollama's API: options become sampling, answers and lines have its form, facts are the model's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from string import ascii_letters
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_kit import BOS, MODEL, Running, ScriptedEngine, ask, make_tokenizer, running_server
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers

from vivace.frontend.tokenizer import Tokenizer
from vivace.protocol.messages import Finish
from vivace.server.apis.ollama import OllamaLines, show_message, show_response
from vivace.server.settings import ServerSettings

HI: list[Any] = [{"role": "user", "content": "hi"}]
SHORT: dict[str, Any] = {"options": {"num_predict": 9}}
COUNTS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running_server() as running:
        yield running


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def prompt(server: Running) -> str:
    """The text that the engine was given last."""
    return bytes(server.engine.requests[-1].tokens).decode()


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/chat", {"messages": HI}, lambda found: found["message"]["content"]),
        ("/api/generate", {"prompt": "hi"}, lambda found: found["response"]),
    ],
)
def test_a_stream_says_what_the_whole_answer_says(
    server: Running, path: str, body: Any, said: Any
) -> None:
    asked = {**body, "options": {"num_predict": 30, "seed": 0}}
    whole = ask(server, path, {**asked, "stream": False}).json
    answer = ask(server, path, asked)
    assert answer.headers["Content-Type"].startswith("application/x-ndjson")
    *news, end = lines(answer.text)
    assert len(news) > 3 and not any(line["done"] for line in news)
    assert "".join(map(said, news)) == said(whole) and said(end) == ""
    for last in (whole, end):
        assert (last["model"], last["done"], last["done_reason"]) == (MODEL, True, "length")
        assert last["prompt_eval_count"] == len(server.engine.requests[-1].tokens)
        assert last["eval_count"] == 30
        assert all(isinstance(last[name], int) and last[name] >= 0 for name in COUNTS)
        parts = last["prompt_eval_duration"] + last["eval_duration"]
        assert parts == pytest.approx(last["total_duration"], abs=2)


def test_options_become_sampling(server: Running) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "seed": 3,
        "repeat_penalty": 1.2,
        "stop": ["zzz"],
        "num_predict": 4,
        "num_ctx": 8192,
    }
    assert ask(server, "/api/chat", {"messages": HI, "options": options}).status == 200
    found = server.engine.requests[-1].sampling
    assert (found.temperature, found.top_k, found.seed) == (0.5, 7, 3)
    assert (found.repetition_penalty, found.max_new_tokens) == (1.2, 4)


def test_a_prompt_has_the_models_template_unless_it_is_raw(server: Running) -> None:
    ask(server, "/api/generate", {"prompt": "hi", "system": "be brief", **SHORT})
    assert prompt(server) == "<system>be brief\n<user>hi\n<assistant>"
    ask(server, "/api/generate", {"prompt": "hi", "raw": True, **SHORT})
    assert prompt(server) == "hi"


def test_a_model_without_a_template_is_given_the_prompt_as_it_stands() -> None:
    tokenizer = make_tokenizer(begin=True)
    tokenizer.chat = None
    with running_server(tokenizer=tokenizer) as server:
        assert ask(server, "/api/generate", {"prompt": "hi", **SHORT}).status == 200
        assert server.engine.requests[-1].tokens == [BOS, *b"hi"]
        refused = ask(server, "/api/chat", {"messages": HI})
        assert refused.status == 400 and "template" in refused.json["error"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_request_without_a_prompt_asks_for_the_model(server: Running, path: str) -> None:
    done = len(server.engine.requests)
    answer = ask(server, path, {"model": MODEL, "keep_alive": "5m"}).json
    assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert len(server.engine.requests) == done


@pytest.mark.parametrize(
    ("keep_alive", "reason"), [("5m", "load"), (0, "unload"), ("0s", "unload")]
)
def test_nobody_unloads_the_model(server: Running, keep_alive: Any, reason: str) -> None:
    body = {"model": MODEL, "keep_alive": keep_alive}
    assert ask(server, "/api/generate", body).json["done_reason"] == reason
    assert ask(server, "/api/chat", {**body, "messages": []}).json["done_reason"] == reason
    assert ask(server, "/api/generate", {**body, "prompt": "a", **SHORT}).status == 200


MIDDLE = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")


@pytest.mark.parametrize("special", [MIDDLE, ("[SUFFIX]", "[PREFIX]")])
def test_what_is_missing_in_the_middle(
    special: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer(special=special, begin=True)
    names = [tokenizer.token_id(one) for one in special]
    if len(names) == 2:
        asked = [BOS, names[0], *b"end", names[1], *b"begin"]
    else:
        asked = [BOS, names[0], *b"begin", names[1], *b"end", names[2]]
    with running_server(tokenizer=tokenizer, vocabulary=258 + len(special)) as server:
        body = {"prompt": "begin", "suffix": "end"}
        assert ask(server, "/api/generate", {**body, **SHORT}).status == 200
        assert ask(server, "/v1/completions", {**body, "max_tokens": 3}).status == 200
        for request in server.engine.requests[-2:]:
            assert request.tokens == asked
            assert set(names) <= set(request.sampling.stop_token_ids)
        assert "insert" in ask(server, "/api/show", {"model": MODEL}).json["capabilities"]
        encoded: list[str] = []
        encode = Tokenizer.encode
        with monkeypatch.context() as patch:
            patch.setattr(
                Tokenizer,
                "encode",
                lambda *args, **kw: encoded.append(args[1]) or encode(*args, **kw),
            )
            answer = ask(server, "/v1/completions", {**body, "prompt": [65], "max_tokens": 3})
            assert (answer.status, answer.json["param"], encoded) == (400, "suffix", [])
            assert ask(server, "/v1/completions", {**body, "max_tokens": 3}).status == 200
            assert sorted(encoded) == ["", "begin", "end"]
        monkeypatch.setattr("vivace.server.openai.completions.IDS", 5)
        for prompt, code in ((["a"], 200), (["a", "b"], 400)):
            asked_for = {**body, "prompt": prompt, "max_tokens": 3}
            assert ask(server, "/v1/completions", asked_for).status == code


def sentencepiece_tokenizer(special: Sequence[str]) -> Tokenizer:
    """Letters and bytes; a space comes before every text, those behind special tokens, too."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *ascii_letters,
    ]
    core = Core(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(["</s>", *special])
    return Tokenizer(core, eos_ids=[2])


def test_text_behind_the_middle_begins_with_no_space() -> None:
    special = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
    tokenizer = sentencepiece_tokenizer(special)
    pre, suf, mid, eot = map(tokenizer.token_id, special)
    letters = {letter: tokenizer.token_id(letter) for letter in "▁" + ascii_letters}
    with running_server(tokenizer=tokenizer, vocabulary=tokenizer.vocabulary) as server:
        stops = list(range(3, 259))
        body = {"prompt": "be in", "suffix": "end", "max_tokens": 3, "stop_token_ids": stops}
        assert ask(server, "/v1/completions", body).status == 200
        request = server.engine.requests[-1]
    before, behind = ([letters[one] for one in text] for text in ("▁be▁in", "end"))
    assert request.tokens == [pre, *before, suf, *behind, mid]
    assert set(request.sampling.stop_token_ids) == {*stops, pre, suf, mid, eot}


def test_tools_that_are_no_functions_are_refused(server: Running) -> None:
    tools = [{"type": "custom", "custom": {"name": "x"}}]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "tools": tools}
    answer = ask(server, "/api/chat", body)
    assert answer.status == 400 and "tools[0].type" in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
         "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        ("/api/chat", {"messages": HI, "options": {"temperature": -1}}, "options.temperature"),
        ("/api/chat", {"messages": HI, "options": {"num_predict": -7}}, "options.num_predict"),
        ("/api/chat", {"messages": HI, "options": {"mirostat": 2}}, "options.mirostat"),
        ("/api/chat", {"messages": HI, "format": "xml"}, "format"),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "x" * 600}, "prompt"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, "system"),
    ],
)  # fmt: skip
def test_refusals_have_ollamas_form(server: Running, path: str, body: Any, field: str) -> None:
    answer = ask(server, path, body)
    assert answer.status == 400
    assert set(answer.json) == {"error"} and answer.json["error"].startswith(f"{field}: ")


def test_facts_are_the_models(server: Running) -> None:
    (tag,) = ask(server, "/api/tags", method="GET").json["models"]
    (loaded,) = ask(server, "/api/ps", method="GET").json["models"]
    assert tag["name"] == loaded["model"] == MODEL
    assert loaded["context_length"] == 512 and "context_length" not in tag
    for name in (MODEL, f"{MODEL}:latest", "/models/toy"):
        shown = ask(server, "/api/show", {"model": name}).json
        assert shown["model_info"]["llama.context_length"] == 512
        assert shown["capabilities"] == ["completion"] and shown["details"] == tag["details"]
    unknown = ask(server, "/api/show", {"model": "llama3:8b"})
    assert unknown.status == 404 and "llama3:8b" in unknown.json["error"]
    assert ask(server, "/api/version", method="GET").json["version"]


@pytest.mark.parametrize(
    ("tools", "reasoning", "found"),
    [
        ("hermes", None, ["completion", "tools"]),
        (None, "qwen3", ["completion", "thinking"]),
        ("hermes", "qwen3", ["completion", "tools", "thinking"]),
    ],
)
def test_capabilities_are_those_of_the_parsers(
    tools: str | None, reasoning: str | None, found: list[str]
) -> None:
    settings = ServerSettings(tool_call_parser=tools, reasoning_parser=reasoning)
    tokenizer = make_tokenizer("{{ tools }}{{ messages }}")
    with running_server(settings, tokenizer=tokenizer) as server:
        assert ask(server, "/api/show", {"model": MODEL}).json["capabilities"] == found


def test_a_model_that_is_told_of_no_tools_says_so() -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    settings = ServerSettings(tool_call_parser="hermes")
    with running_server(settings, tokenizer=make_tokenizer(template)) as server:
        shown = ask(server, "/api/show", {"model": MODEL}).json
        assert shown["capabilities"] == ["completion"]


def test_embeddings() -> None:
    with running_server(every_task=True) as server:
        asked = {"input": ["ab", "c"], "dimensions": 2}
        answer = ask(server, "/api/embed", asked).json
        assert answer["embeddings"] == [[2.0, 195.0], [1.0, 99.0]]
        assert answer["prompt_eval_count"] == 3 and answer["model"] == MODEL
        one = ask(server, "/api/embeddings", {"prompt": "ab"}).json
        assert one == {"embedding": [2.0, 195.0, 0.5, -1.25]}


def test_vectors_are_refused_where_text_is_generated(server: Running) -> None:
    answer = ask(server, "/api/embed", {"input": "x"})
    assert answer.status == 400 and "--is-embedding" in answer.json["error"]


def test_errors_of_the_engine() -> None:
    refuse = Finish(type="abort", status=503, message="full")
    with running_server(engine=ScriptedEngine(refuse=refuse)) as server:
        answer = ask(server, "/api/chat", {"messages": HI})
        assert answer.status == 503 and answer.json == {"error": "full"}


def test_a_client_that_leaves_cancels_its_request() -> None:
    async def leave(url: str) -> None:
        body = {"messages": HI, "options": {"num_predict": 500}}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/api/chat", json=body) as response,
        ):
            await response.content.readany()

    with running_server(engine=ScriptedEngine(pause=0.01)) as server:
        server.run(leave(server.url))
        server.until(lambda: len(server.engine.cancelled) == 1)
        server.until(lambda: server.frontend.live == 0)


def test_keys_are_asked_for() -> None:
    with running_server(ServerSettings(api_keys=("secret",))) as server:
        answer = ask(server, "/api/tags", method="GET")
        assert answer.status == 401


# -- lines -----------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], **choice: Any) -> bytes:
    value = {"id": "x", "model": "toy", "choices": [{"index": 0, "delta": delta, **choice}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function}]}


@given(st.lists(st.integers(1, 9), max_size=6), st.booleans())
def test_calls_come_whole_however_their_arguments_are_cut(cuts: list[int], apart: bool) -> None:
    arguments = ['{"city": "Paris"}', '{"a": [1, 2]}', ""]
    data = [chunk({"content": "Well"})]
    for index, whole in enumerate(arguments):
        data.append(chunk(call(index, "", f"f{index}")))
        rest = whole
        for cut in cuts:
            data.append(chunk(call(index, rest[:cut])))
            rest = rest[cut:]
        data.append(chunk(call(index, rest)))
    data += [chunk({}, finish_reason="tool_calls"), b"data: [DONE]\n\n"]
    converter = OllamaLines(show_message, time.monotonic())
    parts = data if apart else [b"".join(data)]
    found = lines(b"".join(converter.convert(part) for part in parts).decode())
    shown = [one for line in found for one in line["message"].get("tool_calls", ())]
    assert [one["function"]["name"] for one in shown] == ["f0", "f1", "f2"]
    assert [one["function"]["arguments"] for one in shown] == [
        {"city": "Paris"},
        {"a": [1, 2]},
        {},
    ]
    assert found[0]["message"]["content"] == "Well"
    assert (
        found[-1]["done_reason"] == "stop" and [line["done"] for line in found[:-1]] == [False] * 4
    )


def test_thoughts_are_apart_from_the_answer() -> None:
    data = chunk({"reasoning_content": "hm"}) + chunk({"content": "Yes"})
    found = lines(OllamaLines(show_response, 0.0).convert(data).decode())
    assert [(line.get("thinking"), line["response"]) for line in found] == [
        ("hm", ""),
        (None, "Yes"),
    ]


def test_an_error_in_a_stream_is_the_last_line() -> None:
    converter = OllamaLines(show_message, 0.0)
    body = json.dumps({"message": "broken", "code": 503, "error": {"message": "broken"}}).encode()
    found = lines(converter.convert(b"data: " + body + b"\n\ndata: [DONE]\n\n").decode())
    assert found == [{"error": "broken"}]
