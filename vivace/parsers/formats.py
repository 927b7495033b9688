"""The formats by the names that --tool-call-parser and --reasoning-parser take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from vivace.parsers.answer import ReasoningFormat, ToolFormat, numbered_id, short_id
from vivace.parsers.calls import JsonCalls, JsonOrNamed, NamedCall
from vivace.parsers.pythonic import PythonicCalls
from vivace.parsers.tagged_calls import TaggedCall

HERMES = ToolFormat(
    begin="<tool_call>",
    end="</tool_call>",
    body=JsonCalls(separator=","),
    frame=('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>"),
    separator="\n",
)
QWEN3_CODER = ToolFormat(
    section=("<tool_call>", "</tool_call>"),
    begin="<function=",
    body=TaggedCall(
        after_name=">",
        key_open="<parameter=",
        key_close=">",
        value_close="</parameter>",
        close="</function>",
        value_ends=("<parameter=", "</function>"),
        newlines=True,
    ),
)
LLAMA3 = ToolFormat(
    begin="<|python_tag|>",
    bare="{",
    body=JsonCalls(separator=";"),
    frame=('<|python_tag|>{"name": "{name}", "parameters": ', "}"),
)
LLAMA4 = ToolFormat(section=("<|python_start|>", "<|python_end|>"), begin="[", body=PythonicCalls())
LFM2 = ToolFormat(
    section=("<|tool_call_start|>", "<|tool_call_end|>"), begin="[", body=PythonicCalls()
)
MISTRAL = ToolFormat(
    begin="[TOOL_CALLS]",
    body=JsonOrNamed(
        JsonCalls(separator=",", listed=True), NamedCall(separator="[ARGS]", id_open="[CALL_ID]")
    ),
    frame=('[TOOL_CALLS] [{"name": "{name}", "arguments": ', "}]"),
    new_id=short_id,
)
CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
DEEPSEEK_V3 = ToolFormat(
    section=(CALLS_BEGIN, CALLS_END),
    begin=CALL_BEGIN,
    end=CALL_END,
    body=NamedCall(head=f"function{SEPARATOR}", separator="```json", tail="```"),
    frame=(
        f"{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}{{name}}\n```json\n",
        f"\n```{CALL_END}{CALLS_END}",
    ),
)
DEEPSEEK_V31 = ToolFormat(
    section=(CALLS_BEGIN, CALLS_END),
    begin=CALL_BEGIN,
    end=CALL_END,
    body=NamedCall(separator=SEPARATOR),
    frame=(f"{CALLS_BEGIN}{CALL_BEGIN}{{name}}{SEPARATOR}", f"{CALL_END}{CALLS_END}"),
)
DSML = "｜DSML｜"
DEEPSEEK_V32 = ToolFormat(
    section=(f"<{DSML}function_calls>", f"</{DSML}function_calls>"),
    begin=f'<{DSML}invoke name="',
    body=TaggedCall(
        after_name='">',
        key_open=f'<{DSML}parameter name="',
        key_close='"',
        value_close=f"</{DSML}parameter>",
        close=f"</{DSML}invoke>",
        flagged=True,
        or_json=True,
    ),
    frame=(
        f'<{DSML}function_calls>\n<{DSML}invoke name="{{name}}">\n',
        f"\n</{DSML}invoke>\n</{DSML}function_calls>",
    ),
)
GLM = ToolFormat(
    begin="<tool_call>",
    end="</tool_call>",
    body=TaggedCall(
        key_open="<arg_key>",
        key_close="</arg_key>",
        value_open="<arg_value>",
        value_close="</arg_value>",
        untyped=True,
    ),
)
KIMI_K2 = ToolFormat(
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    body=NamedCall(separator="<|tool_call_argument_begin|>", numbered=True),
    frame=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0"
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    new_id=numbered_id,
)
STEP3 = ToolFormat(
    section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    begin="<｜tool_call_begin｜>",
    end="<｜tool_call_end｜>",
    body=TaggedCall(
        kind="function<｜tool_sep｜>",
        head='<steptml:invoke name="',
        after_name='">',
        key_open='<steptml:parameter name="',
        key_close='">',
        value_close="</steptml:parameter>",
        close="</steptml:invoke>",
    ),
)
MINIMAX_M2 = ToolFormat(
    section=("<minimax:tool_call>", "</minimax:tool_call>"),
    begin='<invoke name="',
    body=TaggedCall(
        after_name='">',
        key_open='<parameter name="',
        key_close='">',
        value_close="</parameter>",
        close="</invoke>",
    ),
)
INTERNS1 = ToolFormat(
    begin="<|action_start|>",
    end="<|action_end|>",
    body=JsonCalls(head="<|plugin|>"),
    frame=('<|action_start|> <|plugin|>\n{"name": "{name}", "parameters": ', "}<|action_end|>"),
)

JSON_CALLS = ToolFormat(begin="", bare="[", body=JsonCalls(separator=",", listed=True))
"""An answer that is a JSON list of calls, which a grammar can demand of any model."""

TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": HERMES,
        "qwen": HERMES,
        "qwen25": HERMES,
        "trinity": HERMES,
        "qwen3_coder": QWEN3_CODER,
        "mimo": QWEN3_CODER,
        "step3p5": QWEN3_CODER,
        "llama3": LLAMA3,
        "pythonic": LLAMA4,
        "lfm2": LFM2,
        "mistral": MISTRAL,
        "deepseekv3": DEEPSEEK_V3,
        "deepseekv31": DEEPSEEK_V31,
        "deepseekv32": DEEPSEEK_V32,
        "glm": GLM,
        "glm45": GLM,
        "glm47": GLM,
        "kimi_k2": KIMI_K2,
        "step3": STEP3,
        "minimax-m2": MINIMAX_M2,
        "interns1": INTERNS1,
    }
)


def thinking(
    *interrupts: str, forced: bool = False, begin: str = "<think>", end: str = "</think>"
) -> ReasoningFormat:
    return ReasoningFormat(begin=begin, end=end, forced=forced, interrupts=interrupts)


REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        "deepseek-r1": thinking(forced=True),
        "deepseek-v3": thinking(),
        "qwen3": thinking(),
        "qwen3-thinking": thinking(forced=True),
        "glm45": thinking("<tool_call>"),
        "interns1": thinking(),
        "mimo": thinking(),
        "nemotron_3": thinking(),
        "nano_v3": thinking(),
        "kimi": thinking(begin="◁think▷", end="◁/think▷"),
        "kimi_k2": thinking("<|tool_calls_section_begin|>", forced=True),
        "step3": thinking(forced=True),
        "step3p5": thinking(forced=True),
        "mistral": thinking(begin="[THINK]", end="[/THINK]"),
        "minimax": thinking(forced=True),
        "minimax-append-think": ReasoningFormat(begin="<think>", end="</think>", kept=True),
    }
)
