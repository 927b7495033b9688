"""Tool calls and reasoning over HTTP, through the `openai` client: streamed as whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from server_kit import (
    BOS,
    EOS,
    MODEL,
    TEMPLATE,
    Running,
    ScriptedEngine,
    ask,
    events,
    make_tokenizer,
    running_server,
)

from vivace.protocol.messages import Request
from vivace.server.settings import ServerSettings

HI: list[Any] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
LOOK: Any = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
OTHER: Any = {"type": "function", "function": {"name": "other"}}
TOOLS: Any = [LOOK, OTHER]
ARGUMENTS = {"city": 'Paris "näh" </tool>', "days": 3}
DUMPED = json.dumps(ARGUMENTS, ensure_ascii=False)
CALL = f'<tool_call>\n{{"name": "look", "arguments": {DUMPED}}}\n</tool_call>'
NEXT = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nHm.\n</think>\n\n"
ANSWER = f"{THOUGHT}Let me see.\n{CALL}\n{NEXT}"
SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|call|>")
SPECIAL += ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|other|>")
TOKENIZER = make_tokenizer(
    TEMPLATE.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls if m.tool_calls }}"),
    special=SPECIAL,
)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@dataclass
class Speaker:
    """Says a text, whatever it is asked."""

    tokens: list[int] = field(default_factory=list)

    def __call__(self, _: Request) -> list[int]:
        return self.tokens

    def say(self, text: str) -> None:
        self.tokens = [*encode(text), EOS]


@contextmanager
def serving(
    tools: str | None, reasoning: str | None = None, chunk: int = 1, template: str = ""
) -> Iterator[tuple[Running, Speaker, openai.OpenAI]]:
    settings = ServerSettings(tool_call_parser=tools, reasoning_parser=reasoning)
    speaker = Speaker()
    engine = ScriptedEngine(script=speaker, chunk=chunk)
    tokenizer = make_tokenizer(template, special=SPECIAL) if template else TOKENIZER
    vocabulary = 258 + len(SPECIAL)
    with (
        running_server(
            settings, engine, tokenizer=tokenizer, context=4096, vocabulary=vocabulary
        ) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield server, speaker, client


Served = tuple[Running, Speaker, openai.OpenAI]


@pytest.fixture(scope="module")
def hermes() -> Iterator[Served]:
    with serving("hermes", "qwen3") as served:
        yield served


@dataclass
class Streamed:
    """A stream, put together again."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    deltas: int = 0


def streamed(chunks: Any, index: int = 0) -> Streamed:
    found = Streamed()
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index != index:
                continue
            delta = choice.delta
            found.deltas += 1
            found.content += delta.content or ""
            found.reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
            for call in delta.tool_calls or ():
                add_call(found.calls, call)
            found.finish = choice.finish_reason or found.finish
    return found


def add_call(calls: list[dict[str, Any]], call: Any) -> None:
    if call.index == len(calls):
        assert call.type == "function" and call.function.arguments == ""
        calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
    else:
        assert call.index == len(calls) - 1 and call.id is None and call.function.name is None
        calls[-1]["arguments"] += call.function.arguments


def test_a_whole_answer(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(ANSWER)
    answer = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)
    (choice,) = answer.choices
    message: Any = choice.message
    assert (choice.finish_reason, message.content) == ("tool_calls", "Let me see.")
    assert message.reasoning_content == "Hm."
    first, second = message.tool_calls
    assert (first.type, first.function.name) == ("function", "look")
    assert json.loads(first.function.arguments) == ARGUMENTS
    assert (second.function.name, second.function.arguments) == ("other", "{}")
    assert first.id != second.id and first.id.startswith("call_")
    usage: Any = answer.usage
    assert usage.reasoning_tokens == len(encode("<think>\nHm.\n</think>"))
    assert usage.completion_tokens_details.reasoning_tokens == usage.reasoning_tokens
    assert usage.completion_tokens == len(speaker.tokens)


@pytest.mark.parametrize("chunk", [1, 3, 17, 5000])
def test_a_stream_adds_up_to_the_whole_answer(chunk: int) -> None:
    with serving("hermes", "qwen3", chunk) as (_, speaker, client):
        speaker.say(f"{ANSWER} done")
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=HI,
                tools=TOOLS,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    found = streamed(chunks)
    assert (found.reasoning, found.content) == ("Hm.", "Let me see.done")
    assert found.finish == "tool_calls"
    assert [call["name"] for call in found.calls] == ["look", "other"]
    assert [json.loads(call["arguments"]) for call in found.calls] == [ARGUMENTS, {}]
    assert chunks[0].choices[0].delta.role == "assistant"
    usage: Any = chunks[-1].usage
    assert usage.reasoning_tokens == len(encode("<think>\nHm.\n</think>"))


@pytest.mark.parametrize(
    ("reasoning", "begin", "end", "extra"),
    [("kimi", "◁think▷", "◁/think▷", 0), ("glm45", "<think>", "<tool_call>", 1)],
)
def test_reasoning_ends_with_several_tokens_or_a_call(
    reasoning: str, begin: str, end: str, extra: int
) -> None:
    with serving("hermes", reasoning) as (_, speaker, client):
        call = CALL if end == "<tool_call>" else f"{end}{CALL}"
        speaker.say(f"{begin}Hm.{call}")
        usage: Any = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS).usage
        assert usage.reasoning_tokens == len(encode(f"{begin}Hm.{end}")) - extra
        stream = client.chat.completions.create(
            model=MODEL,
            messages=HI,
            tools=TOOLS,
            stream=True,
            stream_options={"include_usage": True},
        )
        usage = list(stream)[-1].usage
        assert usage.reasoning_tokens == len(encode(f"{begin}Hm.{end}")) - extra


def test_arguments_come_bit_by_bit(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(CALL)
    stream = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, stream=True)
    assert streamed(stream).deltas > len(DUMPED) / 2


def test_every_sample_has_its_own_calls(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(ANSWER)
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, stream=True, n=3)
    )
    found = [streamed(chunks, index) for index in range(3)]
    ids = {call["id"] for each in found for call in each.calls}
    assert len(ids) == 6
    assert {each.content for each in found} == {"Let me see."}


def test_without_tools_the_text_stays_as_it_is(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(ANSWER)
    whole = client.chat.completions.create(model=MODEL, messages=HI)
    expected = f"Let me see.\n{CALL}\n{NEXT}"
    for marker in ("<tool_call>", "</tool_call>"):  # special tokens, which are skipped
        expected = expected.replace(marker, "")
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason == "stop"


def test_no_call_is_made_where_none_may(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(CALL)
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, tools=TOOLS, tool_choice="none"
    )
    assert answer.choices[0].message.tool_calls is None


def test_other_special_tokens_do_not_leak(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.tokens = [BOS, *encode(f"a<|other|>b{CALL}c[TOOL_CALLS]"), BOS, EOS]
    message = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS).choices[0]
    assert message.message.content == "abc"
    assert message.message.tool_calls and message.finish_reason == "tool_calls"


def test_a_call_that_is_cut_off_says_length(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(CALL)
    choice = client.chat.completions.create(
        model=MODEL, messages=HI, tools=TOOLS, max_tokens=60
    ).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls
    function: Any = choice.message.tool_calls[0]
    assert DUMPED.startswith(function.function.arguments)


def test_stop_strings_are_of_the_text_before_it_is_parsed(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(f"{THOUGHT}a b STOP c{CALL}")
    choice = client.chat.completions.create(
        model=MODEL, messages=HI, tools=TOOLS, stop="STOP"
    ).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("a b ", "stop")


def test_log_probabilities_are_of_all_tokens(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(ANSWER)
    whole = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, logprobs=True)
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or ()) == len(speaker.tokens)
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, tools=TOOLS, logprobs=True, stream=True
    )
    parts = [chunk.choices[0].logprobs for chunk in stream if chunk.choices]
    assert sum(len(part.content or ()) for part in parts if part) == len(speaker.tokens)


def test_token_ids_of_a_stream_are_all_there(hermes: Served) -> None:
    server, speaker, _ = hermes
    speaker.say(ANSWER)
    body = {"messages": HI, "tools": TOOLS, "stream": True, "return_token_ids": True}
    answer = ask(server, "/v1/chat/completions", body)
    chunks = [json.loads(data) for data in events(answer.text)[:-1]]
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", ())]
    assert ids == speaker.tokens


def test_reasoning_may_stay_in_the_text(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(f"{THOUGHT}Yes.")
    message: Any = (
        client.chat.completions.create(
            model=MODEL, messages=HI, extra_body={"separate_reasoning": False}
        )
        .choices[0]
        .message
    )
    assert (message.content, message.reasoning_content) == ("\nHm.\n\n\nYes.", None)


@pytest.mark.parametrize("more", [{}, {"stream": True}])
@pytest.mark.parametrize("parser", ["qwen3", "minimax-append-think"])
def test_required_calls_are_found_behind_reasoning_that_stays_in_the_text(
    parser: str, more: dict[str, Any]
) -> None:
    """Without a parser of calls they are a list."""
    body = {"messages": HI, "tools": TOOLS, "tool_choice": "required", **more}
    with serving(None, parser, template=f"{TEMPLATE}{{{{ '<think>' }}}}") as (server, speaker, _):
        speaker.say('Hm.</think>[{"name": "look", "parameters": {"city": "Rome"}}]')
        for separate in ({"separate_reasoning": False}, {}):
            answer = ask(server, "/v1/chat/completions", {**body, **separate})
            assert '"name":"look"' in answer.text
            assert '"finish_reason":"tool_calls"' in answer.text


def test_reasoning_may_come_in_one(hermes: Served) -> None:
    _, speaker, client = hermes
    speaker.say(f"{THOUGHT}Yes.")
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, extra_body={"stream_reasoning": False}
    )
    parts = [(chunk.choices[0].delta.model_extra or {}) for chunk in stream]
    assert [part["reasoning_content"] for part in parts if part] == ["Hm."]


@pytest.mark.parametrize(
    ("body", "reasoning", "content"),
    [
        ({}, "Hm.", "Yes."),
        ({"chat_template_kwargs": {"enable_thinking": False}}, None, "Hm.</think>Yes."),
        ({"reasoning_effort": "none"}, None, "Hm.</think>Yes."),
        ({"reasoning_effort": "high"}, "Hm.", "Yes."),
    ],
)
def test_the_prompt_says_whether_the_answer_begins_with_reasoning(
    body: dict[str, Any], reasoning: str | None, content: str
) -> None:
    template = f"{TEMPLATE}{{{{ '<think>' if enable_thinking is not defined }}}}"
    with serving(None, "deepseek-v3", template=template) as (_, speaker, client):
        speaker.say("Hm.</think>Yes.")
        message: Any = (
            client.chat.completions.create(model=MODEL, messages=HI, extra_body=body)
            .choices[0]
            .message
        )
        assert (message.reasoning_content, message.content) == (reasoning, content)


@pytest.mark.parametrize(("closed", "kind"), [(True, "regex"), (False, "thinking")])
@pytest.mark.parametrize("limit", [{}, {"max_thinking_tokens": 9}])
def test_nothing_is_thought_where_the_prompt_has_ended_the_reasoning(
    closed: bool, kind: str, limit: dict[str, int]
) -> None:
    """As Qwen3's template does for `enable_thinking: false`: the constraint begins at once."""
    template = f"{TEMPLATE}{{{{ '<think>\n\n</think>\n\n' if enable_thinking is false }}}}"
    body = {"regex": "a+", "chat_template_kwargs": {"enable_thinking": not closed}, **limit}
    with serving(None, "qwen3", template=template) as (server, speaker, _):
        speaker.say("aa")
        chat = {"messages": HI, **body}
        assert ask(server, "/v1/chat/completions", chat).status == 200
        constraint = server.engine.requests[-1].sampling.constraint
        assert constraint is not None and constraint.kind == kind


def test_an_answer_goes_on_with_its_reasoning() -> None:
    with serving(None, "qwen3") as (_, speaker, client):
        speaker.say("more</think>Yes.")
        message: Any = (
            client.chat.completions.create(
                model=MODEL,
                messages=[*HI, {"role": "assistant", "content": "<think>Hm, "}],
                extra_body={"continue_final_message": True},
            )
            .choices[0]
            .message
        )
        assert (message.reasoning_content, message.content) == ("more", "Yes.")


def test_past_calls_and_their_results_reach_the_template(hermes: Served) -> None:
    server, speaker, client = hermes
    speaker.say("Sunny.")
    past: Any = [
        *HI,
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look", "arguments": DUMPED}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=past, tools=TOOLS)
    assert answer.choices[0].message.content == "Sunny."
    prompt = bytes(token for token in server.engine.requests[-1].tokens if token < 256).decode()
    assert "'days': 3" in prompt and "<tool>sun" in prompt


PATCH: Any = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Changes a file.",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "lark", "definition": 'start: "+" /.*/ "\\n"'},
        },
    },
}
NOTE: Any = {"type": "custom", "custom": {"name": "note"}}
INPUT = '+say("hi")\n'
FENCED = f'<tool_call>\n{{"name": "patch", "arguments": ```\n{INPUT}\n```}}\n</tool_call>'
NOTED = '<tool_call>\n{"name": "note", "arguments": {"input": "a \\"b\\" \\u00e4"}}\n</tool_call>'


def test_custom_tools_are_called_with_text(hermes: Served) -> None:
    server, speaker, client = hermes
    speaker.say(f"{FENCED}\n{NOTED}")
    kwargs: Any = {"model": MODEL, "messages": HI, "tools": [PATCH, NOTE]}
    message = client.chat.completions.create(**kwargs).choices[0].message
    calls: Any = message.tool_calls
    assert [(call.type, call.custom.name) for call in calls] == [
        ("custom", "patch"),
        ("custom", "note"),
    ]
    assert [call.custom.input for call in calls] == [INPUT, 'a "b" ä']
    prompt = bytes(token for token in server.engine.requests[-1].tokens if token < 256).decode()
    assert "custom" not in prompt
    said = ["", ""]
    for chunk in client.chat.completions.create(**kwargs, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            data: Any = call.model_dump()
            said[call.index] += data["custom"]["input"]
    assert said == [INPUT, 'a "b" ä']
    past = {"role": "assistant", "tool_calls": [call.model_dump() for call in calls]}
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "done"}
    client.chat.completions.create(**{**kwargs, "messages": [*HI, past, result]})
    prompt = bytes(token for token in server.engine.requests[-1].tokens if token < 256).decode()
    assert "'input': '+say(" in prompt and "<tool>done" in prompt


def test_ids_of_calls_are_those_that_templates_take() -> None:
    with serving("mistral") as (_, speaker, client):
        speaker.say('[TOOL_CALLS] [{"name": "look", "arguments": {}}]')
        message = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS).choices[0]
        assert message.message.tool_calls
        assert len(message.message.tool_calls[0].id) == 9
    with serving("kimi_k2") as (_, speaker, client):
        speaker.say(
            "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        )
        past: Any = {"role": "assistant", "tool_calls": [{"function": {"name": "look"}}] * 2}
        message = client.chat.completions.create(
            model=MODEL, messages=[*HI, past], tools=TOOLS
        ).choices[0]
        assert message.message.tool_calls
        assert message.message.tool_calls[0].id == "functions.look:2"


def test_messages_of_gpt_oss() -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.look <|constrain|>json<|message|>{DUMPED}<|call|>"
    )
    with serving("gpt-oss", "gpt-oss") as (_, speaker, client):
        speaker.say(text)
        answer = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)
        stream = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, stream=True)
        found = streamed(stream)
        speaker.say(
            text.partition("<|start|>")[0] + "<|start|>assistant<|channel|>final<|message|>Yes"
        )
        plain: Any = client.chat.completions.create(model=MODEL, messages=HI).choices[0].message
    message: Any = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.", None)
    assert json.loads(message.tool_calls[0].function.arguments) == ARGUMENTS
    assert (found.reasoning, found.content, len(found.calls)) == ("Hm.", "", 1)
    assert (plain.reasoning_content, plain.content) == ("Hm.", "Yes")


def test_without_a_parser_calls_stay_in_the_text() -> None:
    with serving(None) as (_, speaker, client):
        speaker.say("look()")
        answer = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)
        assert answer.choices[0].message.content == "look()"


def test_auto_looks_at_the_template() -> None:
    template = f"{TEMPLATE}{{# <tool_call> <think> #}}"
    with serving("auto", "auto", template=template) as (_, speaker, client):
        speaker.say(ANSWER)
        message: Any = (
            client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS).choices[0].message
        )
        assert message.reasoning_content == "Hm." and len(message.tool_calls) == 2


def test_texts_of_others_are_parsed(hermes: Served) -> None:
    server, _, _ = hermes
    body = {"text": f"Well.\n{CALL}{NEXT}", "tools": TOOLS, "tool_call_parser": "qwen25"}
    found = ask(server, "/parse_function_call", body).json
    assert found == {
        "normal_text": "Well.",
        "calls": [
            {"tool_index": 0, "name": "look", "parameters": DUMPED},
            {"tool_index": 1, "name": "other", "parameters": "{}"},
        ],
    }
    body = {"text": "Hm.</think>Yes.", "reasoning_parser": "deepseek-r1"}
    assert ask(server, "/separate_reasoning", body).json == {
        "reasoning_text": "Hm.",
        "text": "Yes.",
    }


@pytest.mark.parametrize("told", [False, True])
def test_a_model_that_does_not_hear_of_tools_is_told_of_once(
    told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    template = TEMPLATE + "{{ tools }}" * told
    with serving("hermes", template=template) as (server, speaker, client):
        speaker.say("Yes.")
        info = ask(server, "/model_info", method="GET").json
        assert info["chat_template_has_tools"] is told
        client.chat.completions.create(model=MODEL, messages=HI)
        assert "chat template" not in caplog.text
        for _ in range(2):
            client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS)
        assert caplog.text.count("--chat-template") == (not told)
