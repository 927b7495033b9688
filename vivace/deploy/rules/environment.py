"""Rules about environment variables and what a node is told besides its flags."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vivace.config.values import nearest
from vivace.deploy.catalogue.flags import tables
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import Server

OF_ENGINES = ("SGLANG_", "SGL_", "VIVACE_")
NO_READER = {"SGLANG_DP_ROUND_ROBIN"}
DEPRECATED = {
    "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE": "--enable-prefill-delayer took its place in 0.5.8",
}
GONE = {"SGLANG_ENABLE_SPEC_V2": ("0.5.23", "it is always on there")}
ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
HOME = re.compile(r"^/(?:mnt|home|data\d*|root|Users)/")
OWN_ADDRESSES = ("127.0.0.1", "0.0.0.0", "2.2.2.2")
GUIDE = "Ascend parameter guide"
INVENTORY = "SGLang's environ.py and the libraries that read variables"


def variables(case: Case) -> Iterator[tuple[Server, str, str]]:
    for server in case.all:
        for name, value in server.environment.items():
            yield server, name, value


def once(found: Iterator[Found]) -> Iterator[Found]:
    """Of findings that say the same of several roles, the first."""
    seen: set[str] = set()
    for each in found:
        if each.text not in seen:
            seen.add(each.text)
            yield each


def unknown_variable(case: Case) -> Iterator[Found]:
    def found() -> Iterator[Found]:
        for server, name, _ in variables(case):
            family = name.startswith(OF_ENGINES) or name in nearly()
            if family and name not in tables().variables and name not in NO_READER:
                near = nearest(name, tables().variables)
                yield Found(
                    role=server.name,
                    flag=name,
                    text=f"nothing is known to read {name}{near}",
                    remedy="correct the name, or leave it out",
                )

    return once(found())


def nearly() -> frozenset[str]:
    """Misspellings that have been seen of variables outside the engines' families."""
    return frozenset(("HCCL_BUFFERSIZE", "HCCL_BUFF_SIZE", "HCCL_SOCKET_IFNAMES"))


def dead_variable(case: Case) -> Iterator[Found]:
    def found() -> Iterator[Found]:
        for server, name, _ in variables(case):
            known = tables().variables.get(name)
            if name in NO_READER or (known is not None and known.dead):
                yield Found(
                    role=server.name,
                    flag=name,
                    text=f"no version of SGLang or its router reads {name}",
                    remedy="leave it out",
                )
            elif name in DEPRECATED:
                yield Found(
                    role=server.name,
                    flag=name,
                    text=f"{name} is deprecated: {DEPRECATED[name]}",
                    severity="note",
                )
            elif name in GONE and case.target.version == GONE[name][0]:
                text = f"SGLang {GONE[name][0]} does not read {name}: {GONE[name][1]}"
                yield Found(role=server.name, flag=name, text=text, severity="note")

    return once(found())


def number_variable(case: Case) -> Iterator[Found]:
    whole = ("HCCL_BUFFSIZE", "STREAMS_PER_DEVICE", "TASK_QUEUE_ENABLE",
             "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK")  # fmt: skip
    for server, name, value in variables(case):
        known = tables().variables.get(name)
        wanted = name in whole or (known is not None and known.kind == "whole number")
        if wanted and not re.fullmatch(r"-?\d+", value.strip()) and "<" not in value:
            yield Found(
                role=server.name,
                flag=name,
                text=f"{name}={value}: a whole number is wanted",
                remedy="correct the value",
            )


def allocator(case: Case) -> Iterator[Found]:
    if case.platform != "npu":
        return
    for server in case.servers:
        if not server.variable("PYTORCH_NPU_ALLOC_CONF"):
            yield Found(
                role=server.name,
                flag="PYTORCH_NPU_ALLOC_CONF",
                text="PYTORCH_NPU_ALLOC_CONF is not set: memory is lost between segments of "
                "different sizes",
                remedy="export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
            )


def task_queue(case: Case) -> Iterator[Found]:
    wanted = {"prefill": "2", "decode": "0"}
    if case.platform != "npu":
        return
    for server in case.of("prefill", "decode"):
        value, best = server.variable("TASK_QUEUE_ENABLE"), wanted[server.kind]
        if value != best:
            said = f"is {value}" if value else "is not set (1)"
            yield Found(
                role=server.name,
                flag="TASK_QUEUE_ENABLE",
                text=f"TASK_QUEUE_ENABLE {said}; {best} is best for {server.kind}"
                + ("" if best == "2" else ": higher levels interfere with captured graphs"),
                remedy=f"export TASK_QUEUE_ENABLE={best}",
            )


def task_queue_graphs(case: Case) -> Iterator[Found]:
    for server in case.of("decode"):
        if server.variable("TASK_QUEUE_ENABLE") == "2" and not server.has("disable_cuda_graph"):
            yield Found(
                role=server.name,
                flag="TASK_QUEUE_ENABLE",
                text="TASK_QUEUE_ENABLE=2 conflicts with captured graphs, which are on",
                remedy="export TASK_QUEUE_ENABLE=0, or give --disable-cuda-graph",
            )


def nz_layout(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.switched_on("SGLANG_USE_FIA_NZ") and not server.switched_on(
            "SGLANG_NPU_USE_MLAPO"
        ):
            yield Found(
                role=server.name,
                flag="SGLANG_USE_FIA_NZ",
                text="SGLANG_USE_FIA_NZ=1 without SGLANG_NPU_USE_MLAPO=1: only the fused operator "
                "writes KV in that layout",
                remedy="export SGLANG_NPU_USE_MLAPO=1",
            )


def skip_gather(case: Case) -> Iterator[Found]:
    balanced = ("round_robin", "decode_round_robin", "auto", "follow_bootstrap_room")
    for server in case.servers:
        if not server.switched_on("SGLANG_SCHEDULER_SKIP_ALL_GATHER"):
            continue
        if server.kind != "decode":
            yield Found(
                role=server.name,
                flag="SGLANG_SCHEDULER_SKIP_ALL_GATHER",
                text="SGLANG_SCHEDULER_SKIP_ALL_GATHER=1 on a role that prefills: ranks in "
                "different steps no longer agree",
                remedy="keep it to decode roles",
            )
        elif str(server.value("load_balance_method")) not in balanced:
            yield Found(
                role=server.name,
                flag="SGLANG_SCHEDULER_SKIP_ALL_GATHER",
                text="SGLANG_SCHEDULER_SKIP_ALL_GATHER=1 needs an even load, and "
                f"--load-balance-method is {server.value('load_balance_method')}",
                remedy="--load-balance-method round_robin",
            )


def hard_coded(case: Case) -> Iterator[Found]:
    """Addresses and personal folders among flags, and interface names that only one machine has."""
    for server in case.all:
        known = {host for each in case.all for host in each.role.hosts}
        for flag, value in server.role.flags.items():
            text = str(value)
            strange = [
                each
                for each in ADDRESS.findall(text)
                if each not in OWN_ADDRESSES and each not in known
            ]
            if flag == "host" or not (strange or personal(flag, text)):
                continue
            yield Found(
                role=server.name,
                flag="--" + flag,
                text=f"--{flag} {text} is of one particular machine",
                remedy="replace it by your own",
            )
        name = server.variable("HCCL_SOCKET_IFNAME")
        if "." in name:
            yield Found(
                role=server.name,
                flag="HCCL_SOCKET_IFNAME",
                text=f"HCCL_SOCKET_IFNAME={name} is of one particular machine",
                remedy="replace it by your own",
            )


def personal(flag: str, value: str) -> bool:
    paths = flag not in ("model-path", "model", "tokenizer-path") or "/share/" in value
    return paths and bool(HOME.match(value))


RULES = (
    Rule(
        name="unknown-variable",
        severity="warning",
        title="Every variable of an engine is read by something",
        explanation="An unknown variable is ignored without a word.",
        source=INVENTORY,
        check=unknown_variable,
    ),
    Rule(
        name="dead-variable",
        severity="warning",
        title="Variables still have an effect",
        explanation="Some variables of published scripts belong to changes that were never merged, "
        "or were replaced by flags.",
        source=INVENTORY,
        check=dead_variable,
    ),
    Rule(
        name="number-variable",
        severity="error",
        title="Variables that count hold numbers",
        explanation="Libraries read them with their own parsers; a wrong value stops the start or "
        "counts as nothing.",
        source=INVENTORY,
        check=number_variable,
    ),
    Rule(
        name="allocator-segments",
        severity="note",
        title="The allocator may grow its segments",
        explanation="Without expandable segments, memory between the static part and activations "
        "fragments and large prompts run out of memory.",
        source=GUIDE,
        check=allocator,
    ),
    Rule(
        name="task-queue",
        severity="note",
        title="The launch queue suits the role",
        explanation="Level 2 fuses launches, which helps prefill; decode replays graphs and wants "
        "0.",
        source=GUIDE,
        check=task_queue,
    ),
    Rule(
        name="task-queue-graphs",
        severity="warning",
        title="The launch queue does not meet captured graphs",
        explanation="Level 2 conflicts with graph capture.",
        source=GUIDE,
        check=task_queue_graphs,
    ),
    Rule(
        name="nz-layout",
        severity="error",
        title="The NZ layout of KV comes with its operator",
        explanation="SGLANG_USE_FIA_NZ must be used together with SGLANG_NPU_USE_MLAPO.",
        source=GUIDE,
        check=nz_layout,
    ),
    Rule(
        name="skip-all-gather",
        severity="error",
        title="Ranks that do not compare notes do the same",
        explanation="SGLANG_SCHEDULER_SKIP_ALL_GATHER is safe for decode servers whose ranks are "
        "evenly loaded.",
        source=GUIDE,
        check=skip_gather,
    ),
    Rule(
        name="hard-coded",
        severity="warning",
        title="Nothing belongs to somebody else's machine",
        explanation="Published scripts carry addresses, folders and interfaces of their authors.",
        source="the published configurations",
        check=hard_coded,
    ),
)
