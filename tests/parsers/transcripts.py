"""Answers in the formats that the families publish, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vivace.frontend.fairness import run_now
from vivace.parsers.events import AnswerEvent, CallArguments, CallStart, gather

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": ["string", "null"]},
        "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "exact": {"type": "boolean"},
        "places": {"type": "array", "items": {"type": "string"}},
    },
}
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "get_weather": WEATHER,
    "search": {"type": "object", "properties": {"query": {"type": "string"}}},
    "now": {},
}


@dataclass(frozen=True)
class Transcript:
    """`calls`: (name, arguments) in their order."""

    parser: str
    text: str
    calls: tuple[tuple[str, Any], ...]
    content: str = ""


PARIS = {"city": "Paris", "days": 3}
TWO = (("get_weather", PARIS), ("search", {"query": "näh {[]} \\ \n"}))
DUMPED = [json.dumps(arguments, ensure_ascii=False) for _, arguments in TWO]


def hermes(arguments: str = "arguments") -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "{arguments}": {text}}}\n</tool_call>'
        for (name, _), text in zip(TWO, DUMPED, strict=True)
    )


def deepseek(before: str, separator: str, after: str) -> str:
    calls = "\n".join(
        f"<｜tool▁call▁begin｜>{before}{name}{separator}{text}{after}<｜tool▁call▁end｜>"
        for (name, _), text in zip(TWO, DUMPED, strict=True)
    )
    return f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


CODER = """<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
<parameter=days>
3
</parameter>
<parameter=places>
["a", "b"]
</parameter>
<parameter=units>
null
</parameter>
<parameter=zip>
75001
</parameter>
<parameter=exact>
True
</parameter>
</function>
</tool_call>
<tool_call>
<function=search>
<parameter=query>

two
 lines "quoted"

</parameter>
</function>
</tool_call>
<tool_call>
<function=now>
</function>
</tool_call>"""
CODER_CALLS = (
    (
        "get_weather",
        {
            "city": "Paris",
            "days": 3,
            "places": ["a", "b"],
            "units": None,
            "zip": "75001",
            "exact": True,
        },
    ),
    ("search", {"query": '\ntwo\n lines "quoted"\n'}),
    ("now", {}),
)
GLM = """<tool_call>get_weather
<arg_key>city</arg_key>
<arg_value>Paris</arg_value>
<arg_key>days</arg_key>
<arg_value>3</arg_value>
<arg_key>other</arg_key>
<arg_value>{"a": [1]}</arg_value>
</tool_call>
<tool_call>now
</tool_call>"""
GLM_CALLS = (("get_weather", {**PARIS, "other": {"a": [1]}}), ("now", {}))
DSML = """<｜DSML｜function_calls>
<｜DSML｜invoke name="get_weather">
<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
<｜DSML｜invoke name="search">
{"query": "a b"}
</｜DSML｜invoke>
</｜DSML｜function_calls>"""
STEP3 = """<｜tool_calls_begin｜>
<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">
<steptml:parameter name="city">Paris</steptml:parameter>
<steptml:parameter name="days">3</steptml:parameter>
</steptml:invoke><｜tool_call_end｜>
<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="now">
</steptml:invoke><｜tool_call_end｜>
<｜tool_calls_end｜>"""
MINIMAX = """<minimax:tool_call>
<invoke name="get_weather">
<parameter name="city">Paris</parameter>
<parameter name="days">3</parameter>
</invoke>
<invoke name="search">
<parameter name="query">a & b</parameter>
</invoke>
</minimax:tool_call>"""
KIMI = (
    "<|tool_calls_section_begin|>"
    f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{DUMPED[0]}"
    "<|tool_call_end|>"
    f"<|tool_call_begin|>functions.search:1<|tool_call_argument_begin|>{DUMPED[1]}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
HARMONY = (
    "<|channel|>analysis<|message|>Need the weather.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather "
    f"<|constrain|>json<|message|>{DUMPED[0]}<|call|>"
    "<|start|>assistant to=functions.search<|channel|>commentary json<|message|>"
    f"{DUMPED[1]}<|call|>"
)
SIMPLE = (("get_weather", PARIS), ("now", {}))

TRANSCRIPTS = (
    *(Transcript(name, hermes(), TWO) for name in ("hermes", "qwen", "qwen25", "trinity")),
    Transcript("qwen3_coder", CODER, CODER_CALLS),
    Transcript("mimo", CODER, CODER_CALLS),
    Transcript("step3p5", CODER, CODER_CALLS),
    Transcript(
        "llama3",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {DUMPED[0]}}}; '
        f'{{"name": "search", "parameters": {DUMPED[1]}}}',
        TWO,
    ),
    Transcript(
        "llama3",
        f'{{"name": "get_weather", "parameters": {DUMPED[0]}}}\n'
        f'{{"name": "search", "parameters": {DUMPED[1]}}}',
        TWO,
    ),
    Transcript(
        "llama3", f'{{"type": "function", "name": "search", "parameters": {DUMPED[1]}}}', TWO[1:]
    ),
    Transcript(
        "pythonic",
        "[get_weather(city='Paris', days=3), now(), "
        "search(query=\"it's\\n\", deep={'a': [True, None, -1.5e3, ()]})]",
        (*SIMPLE, ("search", {"query": "it's\n", "deep": {"a": [True, None, -1500.0, []]}})),
    ),
    Transcript(
        "pythonic", "<|python_start|>[get_weather(city='Paris', days=3)]<|python_end|>", SIMPLE[:1]
    ),
    Transcript(
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Paris", days=3), now()]<|tool_call_end|>',
        SIMPLE,
    ),
    Transcript(
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {DUMPED[0]}}}, '
        f'{{"name": "search", "arguments": {DUMPED[1]}, "id": "abcdefghi"}}]',
        TWO,
    ),
    Transcript(
        "mistral",
        f"[TOOL_CALLS]get_weather[ARGS]{DUMPED[0]}"
        f"[TOOL_CALLS]search[CALL_ID]abcdefghi[ARGS]{DUMPED[1]}",
        TWO,
    ),
    Transcript("deepseekv3", deepseek("function<｜tool▁sep｜>", "\n```json\n", "\n```"), TWO),
    Transcript("deepseekv31", deepseek("", "<｜tool▁sep｜>", ""), TWO),
    Transcript("deepseekv32", DSML, (("get_weather", PARIS), ("search", {"query": "a b"}))),
    Transcript("glm", GLM, GLM_CALLS),
    Transcript("glm45", GLM, GLM_CALLS),
    Transcript("glm47", GLM.replace("\n<", "<"), GLM_CALLS),
    Transcript("kimi_k2", KIMI, TWO),
    Transcript("step3", STEP3, SIMPLE),
    Transcript("minimax-m2", MINIMAX, (("get_weather", PARIS), ("search", {"query": "a & b"}))),
    Transcript(
        "interns1",
        f'<|action_start|> <|plugin|>\n{{"name": "search", "parameters": {DUMPED[1]}}}'
        "<|action_end|>",
        TWO[1:],
    ),
)


@dataclass
class Parsed:
    """What events say, however they were cut."""

    reasoning: str
    content: str
    calls: list[tuple[str, str]]


def gathered(events: list[AnswerEvent]) -> Parsed:
    """All events of an answer; fails when they are out of order."""
    begun = 0
    for event in events:
        if isinstance(event, CallStart):
            assert event.index == begun
            begun += 1
        elif isinstance(event, CallArguments):
            assert event.index == begun - 1
    found = run_now(gather(events))
    calls = [(call.name, call.arguments) for call in found.calls]
    return Parsed(found.reasoning, found.text, calls)


def cut(text: str, places: list[int]) -> Iterator[str]:
    """The text in pieces that end at these places."""
    last = 0
    for place in [*sorted(place for place in places if place <= len(text)), len(text)]:
        yield text[last:place]
        last = place
