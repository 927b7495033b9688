"""Values of --tool-call-parser and --reasoning-parser, for the command line."""

from __future__ import annotations

AUTO = "auto"
HARMONY = "gpt-oss"
TOOL_CALL_PARSERS = (
    "hermes",
    "qwen",
    "qwen25",
    "qwen3_coder",
    "llama3",
    "pythonic",
    "mistral",
    "deepseekv3",
    "deepseekv31",
    "deepseekv32",
    "glm",
    "glm45",
    "glm47",
    HARMONY,
    "kimi_k2",
    "step3",
    "step3p5",
    "minimax-m2",
    "mimo",
    "trinity",
    "interns1",
    "lfm2",
)
REASONING_PARSERS = (
    "deepseek-r1",
    "deepseek-v3",
    "qwen3",
    "qwen3-thinking",
    "glm45",
    HARMONY,
    "kimi",
    "kimi_k2",
    "step3",
    "step3p5",
    "minimax",
    "minimax-append-think",
    "mimo",
    "mistral",
    "interns1",
    "nemotron_3",
    "nano_v3",
)
UNKNOWN_TOOL_CALL_PARSERS = (
    *("apertus2509", "beam", "cohere_command4", "deepseekv4", "deepseekv41", "dots", "gemma4"),
    *("gigachat3", "gigachat35", "hunyuan", "inkling", "iquest_q1", "k2_horizon", "kimi_k3"),
    *("ling3", "minicpm5", "minimax-m3", "muse", "nanbeige", "poolside_v1", "response_template"),
    "spark25",
)
"""SGLang has them; the families are not among those that were tried here"""
UNKNOWN_REASONING_PARSERS = (
    *("apertus2509", "beam", "cohere_command4", "deepseek-v4", "deepseek-v41", "dots", "gemma4"),
    *("gigachat35", "granite_thinking_parser", "hunyuan", "inkling", "iquest_q1", "k2_horizon"),
    *("kimi_k3", "ling3", "minimax-m3", "muse", "nanbeige", "poolside_v1", "response_template"),
)
