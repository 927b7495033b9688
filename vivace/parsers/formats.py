"""The formats by the names that --tool-call-parser and --reasoning-parser take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from vivace.parsers.answer import ReasoningFormat, ToolFormat, numbered_id, short_id
from vivace.parsers.call_syntax import AnswerShape, CallSyntax, KeywordArguments
from vivace.parsers.calls import JsonCalls, JsonOrNamed, NamedCall
from vivace.parsers.pythonic import PythonicCalls
from vivace.parsers.tagged_calls import TaggedCall

HERMES = ToolFormat(
    begin="<tool_call>",
    end="</tool_call>",
    body=JsonCalls(separator=","),
    shape=AnswerShape(
        markers=("<tool_call>",),
        newlines_optional=True,
        syntaxes=(
            CallSyntax(
                begin='<tool_call>\n{"name": "{name}", "arguments": ',
                end="}\n</tool_call>",
                separator="\n",
            ),
        ),
    ),
)
CODER_CALL = TaggedCall(
    after_name=">",
    key_open="<parameter=",
    key_close=">",
    value_close="</parameter>",
    close="</function>",
    unclosed=True,
    newlines=True,
)
QWEN3_CODER = ToolFormat(
    section=("<tool_call>", "</tool_call>"),
    begin="<function=",
    body=CODER_CALL,
    shape=AnswerShape(
        markers=("<tool_call>", "<function="),
        syntaxes=(
            CallSyntax(
                section=("<tool_call>\n", "\n</tool_call>"),
                begin="<function={name}>\n",
                end="</function>",
                separator="\n",
                each=True,
                stray=True,
                arguments=CODER_CALL.tags(after_value="\n"),
            ),
        ),
    ),
)
LLAMA_CALL = CallSyntax(begin='{"name": "{name}", "parameters": ', end="}", separator="; ")
LLAMA3 = ToolFormat(
    begin="<|python_tag|>",
    bare="{",
    body=JsonCalls(separator=";"),
    shape=AnswerShape(
        markers=("<|python_tag|>",),
        syntaxes=(replace(LLAMA_CALL, section=("<|python_tag|>", "")),),
        bare=LLAMA_CALL,
        bare_like=r'\s*\{\s*"(?:[^"\\]*\\|(?:name|id|index|type|arguments|parameters)")(?s:.*)',
        last=True,
    ),
)
PYTHON_CALL = CallSyntax(
    section=("[", "]"),
    begin="{name}(",
    end=")",
    separator=", ",
    arguments=KeywordArguments(),
    behind_input=")",
)
PYTHON_LIKE = r"\[\s*(?:{names})\("
LLAMA4 = ToolFormat(
    section=("<|python_start|>", "<|python_end|>"),
    begin="[",
    body=PythonicCalls(),
    shape=AnswerShape(
        markers=("<|python_start|>",),
        syntaxes=(
            PYTHON_CALL,
            replace(PYTHON_CALL, section=("<|python_start|>[", "]<|python_end|>")),
        ),
        call_like=PYTHON_LIKE,
    ),
)
LFM2 = ToolFormat(
    section=("<|tool_call_start|>", "<|tool_call_end|>"),
    begin="[",
    body=PythonicCalls(),
    shape=AnswerShape(
        markers=("<|tool_call_start|>",),
        syntaxes=(replace(PYTHON_CALL, section=("<|tool_call_start|>[", "]<|tool_call_end|>")),),
        call_like=PYTHON_LIKE,
    ),
)
MISTRAL_BEGIN = "[TOOL_CALLS]"
MISTRAL_ID = "[0-9A-Za-z]{9}"
MISTRAL_LIST = CallSyntax(
    begin='{"name": "{name}", "arguments": ',
    end="}",
    separator=", ",
    id_behind=(', "id": "', MISTRAL_ID, '"'),
)
MISTRAL_CALL = CallSyntax(begin=f"{MISTRAL_BEGIN}{{name}}[ARGS]", behind_input=MISTRAL_BEGIN)
MISTRAL = ToolFormat(
    begin=MISTRAL_BEGIN,
    body=JsonOrNamed(
        JsonCalls(separator=","),
        NamedCall(separator="[ARGS]", behind_input=MISTRAL_BEGIN, id_open="[CALL_ID]"),
    ),
    shape=AnswerShape(
        markers=(MISTRAL_BEGIN,),
        syntaxes=(
            MISTRAL_CALL,
            replace(
                MISTRAL_CALL,
                begin=f"{MISTRAL_BEGIN}{{name}}[CALL_ID]",
                label=(MISTRAL_ID, "[ARGS]"),
            ),
            replace(MISTRAL_LIST, section=(f"{MISTRAL_BEGIN} [", "]")),
            replace(MISTRAL_LIST, section=(f"{MISTRAL_BEGIN}[", "]")),
        ),
        last=True,
    ),
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
    shape=AnswerShape(
        markers=(CALLS_BEGIN, CALL_BEGIN),
        syntaxes=(
            CallSyntax(
                section=(CALLS_BEGIN, CALLS_END),
                begin=f"{CALL_BEGIN}function{SEPARATOR}{{name}}\n```json\n",
                end=f"\n```{CALL_END}",
                separator="\n",
                behind_input=CALL_END,
            ),
        ),
    ),
)
DEEPSEEK_V31 = ToolFormat(
    section=(CALLS_BEGIN, CALLS_END),
    begin=CALL_BEGIN,
    end=CALL_END,
    body=NamedCall(separator=SEPARATOR),
    shape=AnswerShape(
        markers=(CALLS_BEGIN, CALL_BEGIN),
        syntaxes=(
            CallSyntax(
                section=(CALLS_BEGIN, CALLS_END),
                begin=f"{CALL_BEGIN}{{name}}{SEPARATOR}",
                end=CALL_END,
                behind_input=CALL_END,
            ),
        ),
    ),
)
DSML = "｜DSML｜"
DSML_CALL = TaggedCall(
    after_name='">',
    key_open=f'<{DSML}parameter name="',
    key_close='"',
    value_close=f"</{DSML}parameter>",
    close=f"</{DSML}invoke>",
    flagged=True,
    or_json=True,
)
DEEPSEEK_V32 = ToolFormat(
    section=(f"<{DSML}function_calls>", f"</{DSML}function_calls>"),
    begin=f'<{DSML}invoke name="',
    body=DSML_CALL,
    shape=AnswerShape(
        markers=(f"<{DSML}function_calls>", f'<{DSML}invoke name="'),
        newlines_optional=True,
        syntaxes=(
            CallSyntax(
                section=(f"<{DSML}function_calls>\n", f"</{DSML}function_calls>"),
                begin=f'<{DSML}invoke name="{{name}}">\n',
                end=f"</{DSML}invoke>\n",
                arguments=DSML_CALL.tags(after_value="\n"),
            ),
        ),
    ),
)
GLM_CALL = TaggedCall(
    key_open="<arg_key>",
    key_close="</arg_key>",
    value_open="<arg_value>",
    value_close="</arg_value>",
    untyped=True,
)
GLM = ToolFormat(
    begin="<tool_call>",
    end="</tool_call>",
    body=GLM_CALL,
    shape=AnswerShape(
        markers=("<tool_call>",),
        newlines_optional=True,  # GLM-4.7 has none
        syntaxes=(
            CallSyntax(
                begin="<tool_call>{name}\n",
                end="\n</tool_call>",
                separator="\n",
                arguments=GLM_CALL.tags(after_key="\n", after_value="\n"),
            ),
        ),
    ),
)
KIMI_K2 = ToolFormat(
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    body=NamedCall(separator="<|tool_call_argument_begin|>", numbered=True),
    shape=AnswerShape(
        markers=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        syntaxes=(
            CallSyntax(
                section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
                begin="<|tool_call_begin|>functions.{name}:",
                label=("0|[1-9][0-9]{0,3}", "<|tool_call_argument_begin|>"),
                end="<|tool_call_end|>",
                behind_input="<|tool_call_end|>",
            ),
        ),
    ),
    new_id=numbered_id,
)
STEP3_CALL = TaggedCall(
    kind="function<｜tool_sep｜>",
    head='<steptml:invoke name="',
    after_name='">',
    key_open='<steptml:parameter name="',
    key_close='">',
    value_close="</steptml:parameter>",
    close="</steptml:invoke>",
    unclosed=True,
)
STEP3 = ToolFormat(
    section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    begin="<｜tool_call_begin｜>",
    end="<｜tool_call_end｜>",
    body=STEP3_CALL,
    shape=AnswerShape(
        markers=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"),
        newlines_optional=True,
        syntaxes=(
            CallSyntax(
                section=("<｜tool_calls_begin｜>\n", "<｜tool_calls_end｜>"),
                begin=(
                    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n'
                ),
                end="</steptml:invoke><｜tool_call_end｜>\n",
                arguments=STEP3_CALL.tags(after_value="\n"),
            ),
        ),
    ),
)
MINIMAX_CALL = TaggedCall(
    after_name='">',
    key_open='<parameter name="',
    key_close='">',
    value_close="</parameter>",
    close="</invoke>",
    unclosed=True,
)
MINIMAX_M2 = ToolFormat(
    section=("<minimax:tool_call>", "</minimax:tool_call>"),
    begin='<invoke name="',
    body=MINIMAX_CALL,
    shape=AnswerShape(
        markers=("<minimax:tool_call>", '<invoke name="'),
        newlines_optional=True,
        syntaxes=(
            CallSyntax(
                section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
                begin='<invoke name="{name}">\n',
                end="</invoke>\n",
                arguments=MINIMAX_CALL.tags(after_value="\n"),
            ),
        ),
    ),
)
INTERNS1 = ToolFormat(
    begin="<|action_start|>",
    end="<|action_end|>",
    body=JsonCalls(head="<|plugin|>"),
    shape=AnswerShape(
        markers=("<|action_start|>",),
        syntaxes=(
            CallSyntax(
                begin='<|action_start|> <|plugin|>\n{"name": "{name}", "parameters": ',
                end="}<|action_end|>",
            ),
        ),
    ),
)

JSON_CALLS = ToolFormat(begin="", bare="[", body=JsonCalls(separator=","))
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
