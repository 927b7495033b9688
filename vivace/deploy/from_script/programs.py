"""Which program a command line starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from vivace.deploy.files import packaged_path
from vivace.files import read_file

Part = Literal["server", "router", "benchmark"]
SERVERS = ("sglang.launch_server", "vivace.launch_server", "vivace serve", "sglang serve")
DYNAMO = ("dynamo.sglang", "dynamo.sglang.worker", "dynamo.sglang.decode_worker")
"""Dynamo's workers of SGLang: they take SGLang's flags beside their own, and no requests by HTTP"""
TABLES = msgspec.json.decode(
    read_file(packaged_path("catalogue/programs.json"), 1 << 16), type=dict[str, dict[str, str]]
)
DYNAMO_FLAGS = frozenset(TABLES["dynamo"])
"""of theirs alone (Dynamo's reference of its SGLang backend, and DynamoRuntimeConfig)"""
VLLM = ("vllm serve", "vllm.entrypoints.openai.api_server")
"""servers of vLLM, whose flags are translated"""
ROUTERS = (
    "sglang_router.launch_router",
    "sglang_router.launch_server",
    "vivace.launch_router",
    "sglang.srt.disaggregation.launch_lb",
    "sglang.srt.disaggregation.mini_lb",
    "vivace route",
)
DEFAULT_PORT = 30000
PORTS = {
    "sglang.srt.disaggregation.launch_lb": 8000,
    "sglang.srt.disaggregation.mini_lb": 8000,
    **dict.fromkeys(DYNAMO, 0),
}
"""of the programs that have another one, or none (the first two went with 0.5.2)"""
BENCHMARKS = ("sglang.bench_serving", "vivace.bench_serving", "vivace bench serving")
OTHERS = TABLES["others"]
"""programs of engines that are not read"""
LIKE_OTHERS = re.compile(r"(?!(?:sglang|vivace|vllm)\b)(\w+)\..*\b(?:launch|api)_server")
"""modules of engines that nobody here knows"""
PARTS: dict[str, Part] = {
    **dict.fromkeys((*SERVERS, *VLLM), "server"),
    **dict.fromkeys(ROUTERS, "router"),
    **dict.fromkeys(BENCHMARKS, "benchmark"),
}


class Invocation(msgspec.Struct, frozen=True):
    """`program` as the deployment file names it, and the words after it."""

    part: Part
    program: str
    words: tuple[str, ...]


def invocation(words: Sequence[str]) -> Invocation | None:
    """None for a command that is no part of a deployment."""
    name = words[0].rsplit("/", 1)[-1] if words else ""
    if is_python(name) and len(words) > 2 and "-m" in words[1:]:
        at = words.index("-m")
        module = words[at + 1] if at + 1 < len(words) else ""
        return parse_invocation(module, words[at + 2 :])
    for count in (3, 2):
        found = parse_invocation(" ".join((name, *words[1:count])), words[count:])
        if found is not None:
            return found
    return None


def other_engine(words: Sequence[str]) -> str:
    """The engine of a server that is not read; empty for any other command."""
    name = words[0].rsplit("/", 1)[-1]
    if is_python(name) and "-m" in words[1:-1]:
        module = words[words.index("-m") + 1]
        similar = LIKE_OTHERS.fullmatch(module)
        return OTHERS.get(module, similar[1] if similar else "")
    return OTHERS.get(name) or OTHERS.get(" ".join((name, *words[1:2])), "")


def is_python(name: str) -> bool:
    return name.rstrip("0123456789.") == "python"


def parse_invocation(program: str, words: Sequence[str]) -> Invocation | None:
    part = "server" if program in DYNAMO else PARTS.get(program)
    if program == "sglang serve" and words and not words[0].startswith("-"):
        words = ("--model-path", *words)
    return None if part is None else Invocation(part, program, tuple(words))


def default_port(program: str) -> int:
    """On which a program answers without --port."""
    return PORTS.get(program, DEFAULT_PORT)


def program_command(program: str) -> list[str]:
    """The words that start a program of the deployment file."""
    return program.split(" ") if " " in program else ["python", "-m", program]
