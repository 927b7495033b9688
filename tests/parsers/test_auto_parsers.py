"""`auto`: what a chat template says of the model's formats."""

from __future__ import annotations

import pytest

from vivace.parsers.auto import choose_reasoning_parser, choose_tool_parser
from vivace.requests.answer_syntax import tell

TEMPLATES = [
    ('{{ tools }}<tool_call>\\n{"name": ... </think>', "qwen3", "qwen25", "qwen3"),
    ("<tool_call>\n<function=example>\n<parameter=", "qwen3_moe", "qwen3_coder", None),
    ("<tool_call>{{ name }}<arg_key> <think></think>", "glm4_moe", "glm45", "glm45"),
    ("<｜tool▁calls▁begin｜> ```json </think>", "deepseek_v3", "deepseekv3", "qwen3"),
    ("<｜tool▁calls▁begin｜> {{ thinking }} </think>", "deepseek_v3", "deepseekv31", "deepseek-v3"),
    ("<｜DSML｜function_calls> </think>", "deepseek_v32", "deepseekv32", "deepseek-v3"),
    ("<|tool_calls_section_begin|> <think>", "kimi_k2", "kimi_k2", "kimi_k2"),
    ("<|start|>assistant<|channel|>analysis", "gpt_oss", "gpt-oss", "gpt-oss"),
    ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", "mistral", None),
    ("[TOOL_CALLS][THINK]", "mistral", "mistral", "mistral"),
    ("<minimax:tool_call> <think>", "minimax_m2", "minimax-m2", "qwen3"),
    ("<steptml:invoke", "step3", "step3", None),
    ("{{ tools }} <|start_header_id|>", "llama", "llama3", None),
    ("{{ tools }} <|header_start|>", "llama4", "pythonic", None),
    ("<｜DSML｜tool_calls> </think>", "deepseek_v4", None, "qwen3"),
    ("List of tools: <|tool_list_start|>[{{ tools }}", "lfm2", "lfm2", None),
    ("<|start_header_id|> {{ tools }} functools[", "llama", None, None),
    ("<|start_header_id|> {{ tools }} <{start_tag}={function_name}>", "llama", None, None),
    ("<|start_header_id|> {{ tools }} >>>all", "llama", None, None),
    ("<|start_header_id|> {{ tools }} <TOOLCALL>[", "llama", None, None),
    ("<seed:tool_call>\n<function=example>\n<parameter=", "seed_oss", None, None),
    ("<tool_calls>[]</tool_calls> <tool_call>", "llama", None, None),
    ("{{ messages }}", "llama", None, None),
    ("◁think▷", "kimi", None, "kimi"),
]


@pytest.mark.parametrize(("template", "model_type", "tools", "reasoning"), TEMPLATES)
def test_templates_tell(
    template: str, model_type: str, tools: str | None, reasoning: str | None
) -> None:
    assert choose_tool_parser("auto", template, model_type) == tools
    assert choose_reasoning_parser("auto", template, model_type) == reasoning


def test_a_name_is_taken_as_it_is() -> None:
    assert choose_tool_parser("llama3", "<tool_call>", "qwen3") == "llama3"
    assert choose_reasoning_parser(None, "<think>", "qwen3") is None


@pytest.mark.parametrize("chosen", [None, "hermes"])
def test_what_came_of_auto_is_told(chosen: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing did, with what to do."""
    with caplog.at_level("INFO"):
        tell("--tool-call-parser", "auto", chosen)
    assert caplog.text.endswith("auto: hermes\n" if chosen else "name it\n")
