"""One role as rules see it: flags parsed, defaults filled in, parallelism computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from vivace.config.draft_sizes import default_draft_tokens
from vivace.config.errors import ConfigError
from vivace.config.parallelism import Parallelism
from vivace.config.sglang import RETIRED, VALUES
from vivace.config.values import parse_value
from vivace.deploy.catalogue.flags import ServerFlag
from vivace.deploy.catalogue.models import exact_model
from vivace.deploy.from_script.flags import find_option
from vivace.deploy.from_script.programs import DYNAMO, DYNAMO_FLAGS
from vivace.deploy.schema.deployment import FlagValue, Kind, Role
from vivace.deploy.schema.nodes import RoleNode

PREFILLS: tuple[Kind, ...] = ("mixed", "prefill")
DECODES: tuple[Kind, ...] = ("mixed", "decode")
DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DISPATCH_DEFAULT = 128
FUSED_MODE = "SGLANG_NPU_FUSED_MOE_MODE"
PARTITION = "SGLANG_PP_LAYER_PARTITION"
PAGE_ON_ASCEND = 128
"""tokens"""
PAGES = {"flashmla": 64, "cutlass_mla": 128, "trtllm_mla": 64, "trtllm_mha": 64, "fa4": 128,
         "nsa": 64, "dsa": 64}  # fmt: skip
"""pages of attention backends that do not take any size (0.5.10, server_args.py)"""
ATTENTION_BACKENDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
T = TypeVar("T")
UNKNOWN = re.compile(r"<[$\w][^<>]*>")
DRAFTED_RUNNING = 48
"""max-running-requests that SGLang sets for speculation by default"""


class UnknownValue(Exception):
    """A value is needed that only the machine or its owner knows: `<$TP>`, `<your ip>`; the text
    names what has it."""


def unknown(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(unknown(each) for each in value)
    return isinstance(value, str) and UNKNOWN.search(value) is not None


def if_known(ask: Callable[[], T], otherwise: T) -> T:
    """What `ask` finds; `otherwise` where it needs a value that is not known."""
    try:
        return ask()
    except UnknownValue:
        return otherwise


def placeholder(value: Any) -> bool:
    """`{node}`, `xxx`, and what only the machine that runs a script knows."""
    text = str(value)
    named = "<" in text or ("{" in text and "}" in text)
    return named or (len(text) > 1 and not text.strip("xX"))


class ServerPlan(msgspec.Struct, frozen=True, dict=True):
    """One role. Values are looked up by the option's name, as `max_running_requests`."""

    name: str
    role: Role
    environment: Mapping[str, str]
    nodes: tuple[RoleNode, ...]
    ours: bool = False
    """Vivace serves it, whatever program its commands name."""

    @property
    def kind(self) -> str:
        return self.role.kind

    @property
    def decodes(self) -> bool:
        return self.kind in DECODES

    @property
    def prefills(self) -> bool:
        return self.kind in PREFILLS

    @property
    def caches_prefixes(self) -> bool:
        """Whether prompts that begin alike share their KV."""
        enabled = self.prefills or self.role.flags.get("disaggregation-decode-enable-radix-cache")
        return bool(enabled) and not self.has("disable_radix_cache")

    @property
    def max_total_tokens(self) -> int | None:
        """None where the memory alone decides."""
        limit = self.number("max_total_tokens")
        return limit if limit and limit > 0 else None

    @cached_property
    def given(self) -> dict[str, tuple[str, Any]]:
        """Option name -> (the flag as it was typed, its value); unknown flags are left out."""
        found: dict[str, tuple[str, Any]] = {}
        for flag, value in self.role.flags.items():
            option = find_option(flag)
            if option is not None and value is not None:
                found[option.name] = (flag, parse_given(option, value))
        for flag, value in self.role.flags.items():
            for name, meant in current_options(flag, value).items():
                found.setdefault(name, (flag, meant))
        return found

    @property
    def names(self) -> dict[str, str]:
        """As `Options.names`."""
        options = ((flag, find_option(flag)) for flag in self.role.flags)
        return {option.flag: f"--{flag}" for flag, option in options if option is not None}

    def value(self, name: str) -> Any:
        """What was given, or the option's default. Raises UnknownValue."""
        if name in self.given:
            flag, value = self.given[name]
            if unknown(value):
                raise UnknownValue(f"--{flag} {value}")
            return value
        option = find_option(name.replace("_", "-"))
        return None if option is None else option.default

    def number(self, name: str) -> int | None:
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def ratio(self, name: str) -> float | None:
        """None: not given, or no number that one can be."""
        value = self.value(name)
        return float(value) if isinstance(value, int | float) and 0 < value < 1e9 else None

    def has(self, name: str) -> bool:
        return name in self.given and self.given[name][1] is not False

    def flag(self, name: str) -> str:
        """How a finding calls the option: as it was typed, else by its own name."""
        return "--" + (self.given[name][0] if name in self.given else name.replace("_", "-"))

    @property
    def long_flags(self) -> list[str]:
        """With their dashes, without those that were typed with a single one, and those that only
        the program in front of the engine has."""
        flags = ["--" + flag for flag in self.role.flags if not flag.startswith("-")]
        own = DYNAMO_FLAGS if self.role.program in DYNAMO else ()
        return [flag for flag in flags if flag not in own]

    def variable(self, name: str) -> str:
        """Raises UnknownValue."""
        value = self.environment.get(name, "").strip()
        if unknown(value):
            raise UnknownValue(f"{name}={value}")
        return value

    def enabled(self, name: str) -> bool:
        return self.variable(name).lower() in ("1", "true", "yes", "on")

    def int_variable(self, name: str) -> int | None:
        text = self.variable(name)
        return int(text) if text.isdecimal() and len(text) < 12 else None

    @cached_property
    def parallelism(self) -> Parallelism:
        return Parallelism(self, engine_heads=self.ours)

    def positive(self, name: str) -> int:
        return max(1, self.number(name) or 1)

    @property
    def stage_layers(self) -> list[int]:
        """Of each pipeline rank, where they are stated."""
        parts = self.variable(PARTITION).split(",")
        stated = all(part.strip().isdecimal() and len(part) < 6 for part in parts)
        return [int(part) for part in parts] if stated else []

    @property
    def running(self) -> int | None:
        """--max-running-requests, or SGLang's default for speculation."""
        limit = self.number("max_running_requests")
        if limit is None and self.has("speculative_algorithm") and not self.ours:
            return DRAFTED_RUNNING
        return limit if limit and limit > 0 else None

    @property
    def running_per_rank(self) -> int | None:
        """Concurrent requests that one attention group admits: SGLang divides by dp with dp
        attention, and rounds down; replicas admit all of them each."""
        if self.running is None:
            return None
        return max(1, self.parallelism.running_requests(self.running))

    @property
    def admitted(self) -> int | None:
        """Concurrent requests that all instances of the role admit."""
        if self.running is None:
            return None
        return self.running * self.parallelism.replicas * self.role.instances

    def page_size(self, platform: str) -> int | None:
        """Tokens of a page of KV; None where the model and the device decide, as on CUDA without
        an attention backend."""
        given = self.number("page_size")
        if given is not None:
            return given
        if platform == "npu":
            return PAGE_ON_ASCEND
        backends = [self.value(name) for name in ATTENTION_BACKENDS]
        sizes = [PAGES[each] for each in backends if each in PAGES]
        return max(sizes) if sizes else 1 if any(backends) else None

    def handed_over(self, name: str, platform: str) -> Any:
        """What prefill and decode have in common: an option's value; the model, if it is sure."""
        if name == "model_path":
            return exact_model(str(self.value(name)))
        return self.page_size(platform) if name == "page_size" else self.value(name)

    def page_tokens(self, platform: str, otherwise: int = 1) -> int:
        """To round by: `page_size`, and `otherwise` where it is not known."""
        return if_known(lambda: max(1, self.page_size(platform) or otherwise), otherwise)

    @property
    def speculative_algorithm(self) -> str:
        """EAGLE for NEXTN, its other name; empty without speculation."""
        algorithm = self.value("speculative_algorithm")
        return "EAGLE" if algorithm == "NEXTN" else str(algorithm or "")

    @property
    def external_draft(self) -> bool:
        """Whether a checkpoint of its own drafts."""
        return self.speculative_algorithm in ("EAGLE3", "STANDALONE")

    @property
    def draft_tokens(self) -> int:
        """Tokens of one request in one decode step; the least that is usual where no flag says."""
        if not self.has("speculative_algorithm"):
            return 1
        steps = self.number("speculative_num_steps")
        if self.number("speculative_eagle_topk") == 1 and steps is not None:
            return max(1, steps + 1)
        topk, algorithm = self.number("speculative_eagle_topk") or 1, self.speculative_algorithm
        most = default_draft_tokens(algorithm, steps, topk)
        return max(1, self.number("speculative_num_draft_tokens") or most)

    @property
    def dispatch_tokens(self) -> int | None:
        """Tokens a rank sends to experts in a decode step: those of its attention group's
        requests, scattered over the group."""
        if self.running_per_rank is None:
            return None
        return -(-self.running_per_rank * self.draft_tokens // self.parallelism.attention_tp)

    def decode_dispatch(self, *modes: str) -> int | None:
        """`dispatch_tokens` of a server that decodes in one of these modes."""
        return self.dispatch_tokens if self.decodes and self.expert_mode in modes else None

    @property
    def dispatch_terms(self) -> str:
        """What `dispatch_tokens` is made of."""
        layout = self.parallelism
        tokens = f"{self.running} requests / dp {layout.attention_dp}"
        tokens += f" x {self.draft_tokens} token(s) per step"
        return f"{tokens} / {layout.attention_tp} ranks per group"

    @property
    def dispatch_limit(self) -> int:
        """Tokens a rank may send at a time in low-latency mode; 0: unlimited."""
        found = self.int_variable(DISPATCH)
        return DISPATCH_DEFAULT if found is None else found

    @property
    def expert_mode(self) -> str:
        """normal, low_latency, auto or fused; empty without expert parallelism."""
        backend = self.value("moe_a2a_backend")
        if backend == "ascend_fuseep":
            return "fused"
        return str(self.value("deepep_mode") or "auto") if backend == "deepep" else ""

    @property
    def fused_mode(self) -> int:
        """Of the fused kernel: 1, or 2, which combines dispatch and experts; 0 without it."""
        if self.expert_mode != "fused":
            return 0
        mode = self.role.flags.get("fuseep-mode") or self.variable(FUSED_MODE) or 1
        return 2 if str(mode) == "2" else 1

    @property
    def graphs(self) -> tuple[int, ...]:
        """Captured batch sizes, if given."""
        sizes = self.value("cuda_graph_bs")
        if isinstance(sizes, tuple | list) and sizes:
            return tuple(size for size in sizes if isinstance(size, int))
        limit = self.number("cuda_graph_max_bs")
        return () if limit is None else (limit,)


def current_options(flag: str, value: FlagValue) -> dict[str, Any]:
    """What a retired flag means, as (option name -> value)."""
    retired = RETIRED.get("--" + flag)
    option = find_option(retired.today[0][2:]) if retired and retired.today else None
    if retired is None or option is None or any("{" in word for word in retired.today):
        return {}
    return {option.name: retired.today[1] if len(retired.today) > 1 else value}


def parse_given(option: ServerFlag, value: FlagValue) -> Any:
    """Converted to the option's type if possible; a retired value becomes its replacement."""
    replaced = VALUES.get((option.name, str(value)))
    try:
        return replaced[0] if replaced else parse_value(option, value)
    except ConfigError:
        return value


def by_value(
    servers: Sequence[ServerPlan], value: Callable[[ServerPlan], Any]
) -> dict[Any, list[ServerPlan]]:
    """Those with the same value together, without those whose value is not known."""
    found: dict[Any, list[ServerPlan]] = {}
    for server in servers:
        with suppress(UnknownValue):
            key = value(server)
            found.setdefault(str(key) if isinstance(key, list) else key, []).append(server)
    return found


def join_names(servers: Sequence[ServerPlan]) -> str:
    return ", ".join(server.name for server in servers)
