"""`vllm serve ...` -> the words of SGLang that mean the same, and what has no such words.

Every flag here is one of vLLM 0.33.0 but --disable-log-requests, which 0.9.0 has, and
--num-redundant-experts, which was one before it became a part of --eplb-config; 0.9.0 lacks a dozen
of them, and versions between were not looked at. What is nearly the same is not translated:
it is listed, with what comes nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from vivace.config.releases.tables import flags_at, latest
from vivace.deploy.files import packaged_path
from vivace.deploy.from_script.flags import groups
from vivace.deploy.from_script.vllm_drafts import draft_flags, draft_settings, sets_drafts
from vivace.files import read_file

LARGEST = 1 << 16
"""bytes of the file"""
SERVER = "sglang.launch_server"
DEFAULTS = {"--port": "8000", "--host": "0.0.0.0"}
"""that are others in SGLang"""
TABLES = msgspec.json.decode(
    read_file(packaged_path("catalogue/vllm.json"), LARGEST), type=dict[str, dict[str, str]]
)
SAME = TABLES["same"]
"""flag of vLLM -> the one of SGLang with the same values"""
USUAL_NODE = 8
"""devices; Ray spreads more of them over machines by itself"""
MACHINES = "<machines of Ray>"
SHORT = TABLES["short"]
PARSERS = {
    "tool-call-parser": "llama3_json=llama3 llama4_pythonic=pythonic deepseek_v3=deepseekv3 "
    "deepseek_v31=deepseekv31 deepseek_v32=deepseekv32 openai=gpt-oss minimax_m2=minimax-m2 "
    "qwen3_xml=qwen3_coder",
    "reasoning-parser": "deepseek_r1=deepseek-r1 deepseek_v3=deepseek-v3 openai_gptoss=gpt-oss "
    "minimax_m2=minimax minimax_m2_append_think=minimax-append-think",
}
VALUES = {("kv-cache-dtype", "fp8"): "fp8_e4m3", ("quantization", "ascend"): "modelslim"} | {
    (flag, theirs): ours
    for flag, names in PARSERS.items()
    for theirs, ours in (name.split("=") for name in names.split())
}
"""(flag, value of vLLM or vllm-ascend) -> SGLang's name of it"""
USUAL = frozenset(
    """enable-prefix-caching enable-chunked-prefill async-scheduling enable-auto-tool-choice
    disable-log-requests no-enable-log-requests disable-log-stats""".split()
)
"""what SGLang does anyway"""
NEAREST = TABLES["nearest"]
"""flag of vLLM -> what comes nearest and is not the same"""


class Translation(msgspec.Struct):
    """`mapped`: (flag of vLLM, flag of SGLang); `left`: (flag or variable, why)."""

    words: list[str] = []
    mapped: list[tuple[str, str]] = []
    left: list[tuple[str, str]] = []

    def add(self, name: str, flag: str, values: Sequence[str]) -> None:
        self.words += ["--" + flag, *values]
        if name != flag:
            self.mapped.append(("--" + name, "--" + flag))


def translate(words: Sequence[str], environment: Sequence[str] = ()) -> Translation:
    """What follows `vllm serve`, and the names of variables it is started with."""
    found = Translation()
    given = dict(split_flags(words))
    for name, values in given.items():
        special = SPECIAL.get(name)
        if special is not None:
            special(name, values, given, found)
        elif sets_drafts(name):
            translate_drafts(name, values, given, found)
        elif name in USUAL:
            found.mapped.append(("--" + name, "what SGLang does without a flag"))
        elif name in SAME and taken(SAME[name], values):
            found.add(name, SAME[name], [VALUES.get((name, each), each) for each in values])
        else:
            why = NEAREST.get(name, "no flag of SGLang means the same")
            found.left.append((" ".join(["--" + name, *values])[:80], why))
    for variable in environment:
        if variable.startswith("VLLM_"):
            found.left.append((variable, "a variable of vLLM"))
    return found


def split_flags(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """(flag without dashes, its values); the model may stand first. vLLM takes underscores too."""
    found: list[tuple[str, list[str]]] = []
    for word, values in groups(words):
        flag, equals, attached = word.partition("=")
        values = [attached, *values] if equals else values
        name = SHORT.get(flag, flag.lstrip("-")).replace("_", "-")
        found.append((name or "model", values))
    return found


def taken(flag: str, values: Sequence[str]) -> bool:
    """Whether SGLang has the flag with these values among its choices."""
    row = flags_at(latest()).get("--" + flag)
    choices = row.choices if row is not None else ()
    known = {VALUES.get((flag, each), each) for each in values}
    return not choices or known <= set(choices)


Given = dict[str, list[str]]


def ranks(given: Given, name: str) -> int:
    text = (given.get(name) or ["1"])[0]
    return int(text) if text.isdecimal() and len(text) < 6 else 1


def translate_running(name: str, values: list[str], given: Given, found: Translation) -> None:
    """--max-num-seqs is of one data-parallel rank, --max-running-requests of all."""
    text, dp = (values or [""])[0], ranks(given, "data-parallel-size")
    total = str(int(text) * dp) if text.isdecimal() and len(text) < 9 else text
    found.add(name, "max-running-requests", [total])


def translate_experts(name: str, values: list[str], given: Given, found: Translation) -> None:
    """vLLM spreads experts over all ranks of both kinds, SGLang over those of --tp-size, which
    counts the data-parallel ones too."""
    found.add(name, "ep-size", [str(all_ranks(given))])


def all_ranks(given: Given) -> int:
    """What --tp-size of SGLang counts: with expert parallelism also the data-parallel ranks, which
    are those of dp attention."""
    tp, dp = ranks(given, "tensor-parallel-size"), ranks(given, "data-parallel-size")
    return tp * dp if "enable-expert-parallel" in given else tp


def translate_tensors(name: str, values: list[str], given: Given, found: Translation) -> None:
    found.add(name, "tp-size", [str(all_ranks(given))] if "<" not in str(values) else values)


def translate_replicas(name: str, values: list[str], given: Given, found: Translation) -> None:
    """Ranks of dp attention, with expert parallelism; else whole replicas."""
    found.add(name, "dp-size", values)
    if "enable-expert-parallel" in given and values != ["1"]:
        found.words.append("--enable-dp-attention")
        if "tensor-parallel-size" not in given:
            translate_tensors("tensor-parallel-size", [], given, found)


def translate_local(name: str, values: list[str], given: Given, found: Translation) -> None:
    """Of several nodes, vLLM says how many replicas are here, and which is the first of them."""
    here, total = ranks(given, name), ranks(given, "data-parallel-size")
    if not 0 < here < total:
        return
    port = (given.get("data-parallel-rpc-port") or ["29550"])[0]
    found.add(name, "nnodes", [str(-(-total // here))])
    rank = (given.get("data-parallel-start-rank") or ["0"])[0]
    if rank.isdecimal() and len(rank) < 6:
        found.add("data-parallel-start-rank", "node-rank", [str(int(rank) // here)])
    for address in given.get("data-parallel-address", []):
        found.add("data-parallel-address", "dist-init-addr", [f"{address}:{port}"])


def part_of_nodes(name: str, values: list[str], given: Given, found: Translation) -> None:
    """--data-parallel-size-local takes it along."""
    if "data-parallel-size-local" not in given:
        found.left.append((" ".join(["--" + name, *values])[:80], "--nnodes and its flags"))


def translate_executor(name: str, values: list[str], given: Given, found: Translation) -> None:
    """Who starts the ranks: Ray, or the server itself."""
    flag = " ".join(["--" + name, *values])[:80]
    if values == ["ray"]:
        if "--use-ray" not in found.words:
            found.words.append("--use-ray")
            spread = not {"nnodes", "data-parallel-size-local"} & given.keys()
            if spread and all_ranks(given) * ranks(given, "pipeline-parallel-size") > USUAL_NODE:
                found.words += ["--nnodes", MACHINES]
        found.mapped.append((flag, "--use-ray, on as many machines as --nnodes says"))
    elif values == ["mp"]:
        found.mapped.append((flag, "what SGLang does without a flag"))
    else:
        found.left.append((flag, "ranks are processes of the server, or with --use-ray Ray's"))


def translate_address(name: str, values: list[str], given: Given, found: Translation) -> None:
    port = (given.get("master-port") or ["29501"])[0]
    found.add(name, "dist-init-addr", [f"{(values or [''])[0]}:{port}"])


def skip_port(name: str, values: list[str], given: Given, found: Translation) -> None:
    """--master-addr takes it along."""
    if "master-addr" not in given:
        found.left.append(("--" + name, "it needs --master-addr"))


def translate_drafts(name: str, values: list[str], given: Given, found: Translation) -> None:
    """The first flag of drafts takes the others along."""
    together = [each for each in given if sets_drafts(each)]
    if name != together[0]:
        return
    typed = ["--" + each for each in together]
    try:
        flags, left = draft_flags(draft_settings(given))
    except (ValueError, RecursionError) as error:
        found.left += [(each, str(error)) for each in typed]
        return
    for flag, value in flags:
        found.words += ["--" + flag, value]
    meant = " ".join(f"--{flag} {value}" for flag, value in flags)
    found.mapped.append((", ".join(typed), meant))
    found.left += [(f"{key} of {typed[0]}", "no flag of SGLang means the same") for key in left]


def disable_chunks(name: str, values: list[str], given: Given, found: Translation) -> None:
    found.add(name, "chunked-prefill-size", ["-1"])


SPECIAL: dict[str, Callable[[str, list[str], Given, Translation], None]] = {
    "max-num-seqs": translate_running,
    "tensor-parallel-size": translate_tensors,
    "data-parallel-size": translate_replicas,
    "data-parallel-size-local": translate_local,
    "data-parallel-address": part_of_nodes,
    "data-parallel-rpc-port": part_of_nodes,
    "data-parallel-start-rank": part_of_nodes,
    "enable-expert-parallel": translate_experts,
    "distributed-executor-backend": translate_executor,
    "data-parallel-backend": translate_executor,
    "master-addr": translate_address,
    "master-port": skip_port,
    "no-enable-chunked-prefill": disable_chunks,
}
