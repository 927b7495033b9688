"""`auto`: which format a model writes, by what its chat template says of calls and of thinking."""

from __future__ import annotations

from vivace.parsers.names import AUTO, HARMONY

HARMONY_MARK = "<|channel|>"
DSML_MARK, DSML_SECTION = "｜DSML｜", "function_calls"
"""which V4 calls otherwise"""
TOOL_MARKS = (
    (HARMONY_MARK, HARMONY),
    (DSML_MARK, "deepseekv32"),
    ("<minimax:tool_call>", "minimax-m2"),
    ("<steptml:invoke", "step3"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|action_start|>", "interns1"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("<arg_key>", "glm45"),
    ("<parameter=", "qwen3_coder"),
    ("<tool_call>", "qwen25"),
    ("[TOOL_CALLS]", "mistral"),
)
"""what the template of a family has, and no template that stands further down"""
OTHER_MARKS = ("<seed:tool_call>", "]<]minimax[>[", "<tool_calls>", "functools[", "<{start_tag}=")
OTHER_MARKS += (">>>all", "<TOOLCALL>")
"""of formats that are not known, and look like those that are"""
DEEPSEEK_MARK, DEEPSEEK_V3_MARK = "<｜tool▁calls▁begin｜>", "```json"
TOOLS_BY_MODEL = {"llama": "llama3", "mllama": "llama3", "llama4": "pythonic"}
TOOLS_BY_MODEL["llama4_text"] = "pythonic"
HEADER_MARKS = ("<|start_header_id|>", "<|header_start|>")
"""of Meta's conversations; models of others are built like Llama, too"""
REASONING_MARKS = (
    (HARMONY_MARK, HARMONY),
    ("◁think▷", "kimi"),
    ("[THINK]", "mistral"),
)
THINK_MARKS = ("<think>", "</think>")
THINKING_BY_CALLS = {"kimi_k2": "kimi_k2", "glm45": "glm45", "deepseekv31": "deepseek-v3"}
THINKING_BY_CALLS["deepseekv32"] = "deepseek-v3"


def choose_tool_parser(name: str | None, template: str, model_type: str) -> str | None:
    """The parser that --tool-call-parser asks for; None when nobody knows the model's calls."""
    if name != AUTO:
        return name
    newer = DSML_MARK in template and DSML_SECTION not in template
    if newer or any(mark in template for mark in OTHER_MARKS):
        return None
    for mark, parser in TOOL_MARKS:
        if mark in template:
            return parser
    if DEEPSEEK_MARK in template:
        return "deepseekv3" if DEEPSEEK_V3_MARK in template else "deepseekv31"
    of_meta = "tools" in template and any(mark in template for mark in HEADER_MARKS)
    return TOOLS_BY_MODEL.get(model_type) if of_meta else None


def choose_reasoning_parser(name: str | None, template: str, model_type: str) -> str | None:
    """The parser that --reasoning-parser asks for; None when the model does not think. Where an
    answer begins the prompt says, so `qwen3` is right for most of them."""
    if name != AUTO:
        return name
    for mark, parser in REASONING_MARKS:
        if mark in template:
            return parser
    if not any(mark in template for mark in THINK_MARKS):
        return None
    calls = choose_tool_parser(AUTO, template, model_type)
    return THINKING_BY_CALLS.get(calls or "", "qwen3")
