"""A number that was asked for is what runs, or the summary says why not, or the start is refused.

Every numeric option that works on the CPU starts toy engines at its extremes, alone and beside
flags that leave it little room; EFFECTIVE knows where the value in effect can be read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from served_toy import free_port
from toy_config import LLAMA

from vivace.commands.serve import Descriptors, build_plan
from vivace.config.config import Config, all_options
from vivace.config.option import Option, Support
from vivace.config.parsing import from_arguments
from vivace.engine.settings import EngineSettings, engine_settings
from vivace.engine.step_builder import NewTokenEstimate
from vivace.errors import CannotStart
from vivace.launch.configure import configure
from vivace.launch.engine import build_runner
from vivace.launch.listen import PortInUse, bind
from vivace.launch.summary import build_summary, plain_lines
from vivace.platforms.cpu import facts as cpu
from vivace.platforms.cpu import instructions
from vivace.platforms.cpu.facts import has_kernels
from vivace.protocol.listening_socket import new_socket
from vivace.protocol.messages import Capacity
from vivace.protocol.shared_memory import new_descriptor
from vivace.server.settings import build_server_settings
from vivace.supervisor.supervisor import Plan
from vivace.worker.sizing import PAGE_COST

pytestmark = pytest.mark.skipif(not has_kernels(), reason="the native kernels were not built")

FREE = 600 << 20
"""bytes of the made-up machine"""
MODEL = {**LLAMA, "torch_dtype": "float32"}
INTS = (-1, 0, 1, 2, 7, 96, 1000, 65_000, 1_000_003, 1 << 40)
FLOATS = (-1.0, 0.0, 0.01, 0.5, 0.99, 1.0, 100.0, 1e9, math.inf, math.nan)
LISTS = ((), (0,), (1,), (1, 3), (3, 1, 1), (2, 1_000_000))
CROWDS: tuple[dict[str, Any], ...] = (
    {},
    {"max_total_tokens": 64},
    {"max_running_requests": 2, "page_size": 32},
    {"mem_fraction_static": 0.5, "cuda_graph_max_bs": 3},
    {"disable_cpu_kernels": True, "watchdog_timeout": 5.0},
    {"enable_priority_scheduling": True, "enable_metrics": True, "log_requests": True},
)
"""what else was asked for"""


@dataclass(frozen=True)
class Started:
    """A toy engine and what a server would do beside it."""

    config: Config
    worker: Any
    engine: EngineSettings
    plan: Plan

    @property
    def capacity(self) -> Capacity:
        return self.worker.capacity

    def static_share(self) -> float:
        """Of the memory that was free: what weights and KV take."""
        kept = self.capacity.kv_bytes + PAGE_COST * self.capacity.pages
        return (self.capacity.weight_bytes + kept) / FREE

    def window_ratio(self) -> float | None:
        """Tokens of the largest pool of windows for one of the first pool."""
        pages = (group.pages for group in self.capacity.others)
        return max((one / self.capacity.pages for one in pages), default=None)

    def threads(self) -> int:
        if self.config.runtime.disable_cpu_kernels:
            return torch.get_num_threads()
        return self.worker._attention._kernels.started

    def captured(self) -> list[int]:
        return [step.shape.rows for step in getattr(self.worker._runner, "_steps", ())]

    def conservativeness(self) -> float:
        """Of the ratio that admission begins with."""
        return (
            NewTokenEstimate(self.engine, self.capacity.page_size).ratio / self.engine.initial_ratio
        )


def started(asked: dict[str, Any], model: Path) -> Started:
    """An engine in this process; raises what refuses the start."""
    settings = {"log_level": "warning", "cpu_threads": 1, "load_format": "dummy", **asked}
    settings.setdefault("port", free_port())  # the default may be somebody's
    config = configure(from_arguments(model_path=str(model), **settings))
    worker = build_runner(config, lambda stage, fraction: None)
    shared = Descriptors(memory=new_descriptor(), engine=new_socket())
    try:
        with bind(config.http.host, config.http.port) as listener:
            plan = build_plan(config, listener, shared)
            for engine in plan.engines:
                os.close(engine.file)
            return Started(
                config=config,
                worker=worker,
                engine=engine_settings(config, worker.capacity),
                plan=plan,
            )
    finally:
        os.close(shared.memory)
        os.close(shared.engine)


EFFECTIVE: dict[str, Callable[[Started], Any]] = {
    "port": lambda it: it.config.http.port,  # `started` has bound it
    "tokenizer_worker_num": lambda it: it.plan.frontends,
    "context_length": lambda it: it.capacity.context,
    "mem_fraction_static": Started.static_share,
    "max_total_tokens": lambda it: it.capacity.tokens,
    "swa_full_tokens_ratio": Started.window_ratio,
    "page_size": lambda it: it.capacity.page_size,
    "max_running_requests": lambda it: it.engine.rows,
    "prefill_max_requests": lambda it: it.engine.prefill_max_requests,
    "max_queued_requests": lambda it: it.engine.max_queued,
    "chunked_prefill_size": lambda it: -1 if it.engine.chunk is None else it.engine.chunk,
    "chunked_prefill_stall_target": lambda it: 1000 * it.engine.stall_target,
    "max_prefill_tokens": lambda it: it.engine.max_prefill_tokens,
    "priority_scheduling_preemption_threshold": lambda it: it.engine.preemption_threshold,
    "schedule_conservativeness": Started.conservativeness,
    "num_continuous_decode_steps": lambda it: it.engine.continuous_decode_steps,
    "scheduler_recv_interval": lambda it: it.engine.receive_interval,
    "cpu_threads": Started.threads,
    "random_seed": lambda it: it.engine.seed,
    "stream_interval": lambda it: it.engine.stream_interval,
    # Their processes are started in tests/e2e/test_ranks.py.
    "tp_size": lambda it: it.config.parallel.tp_size,
    "dp_size": lambda it: len(it.plan.engines),
    "pp_size": lambda it: it.config.parallel.pp_size,
    "pp_max_micro_batch_size": lambda it: it.config.parallel.pp_max_micro_batch_size,
    "pp_async_batch_depth": lambda it: it.config.parallel.pp_async_batch_depth,
    # Nodes are started in tests/e2e/test_nodes.py.
    "nccl_port": lambda it: it.config.parallel.nccl_port,
    "dist_timeout": lambda it: it.config.parallel.dist_timeout,
    "watchdog_timeout": lambda it: it.plan.watchdog,
    "soft_watchdog_timeout": lambda it: it.plan.soft_watchdog,
    "cuda_graph_bs": Started.captured,
    "cuda_graph_max_bs": lambda it: max(it.captured(), default=None),
    "log_requests_level": lambda it: build_server_settings(it.config).log_requests_level,
    "decode_log_interval": lambda it: it.engine.decode_log_interval,
    "bucket_time_to_first_token": lambda it: it.engine.time_to_first_token_buckets,
    "bucket_inter_token_latency": lambda it: it.engine.inter_token_latency_buckets,
    "bucket_e2e_request_latency": lambda it: it.engine.e2e_latency_buckets,
    "gc_warning_threshold_secs": lambda it: it.config.logging.gc_warning_threshold_secs,
}
"""option -> the value in effect, read where it takes effect"""
NUMERIC = [
    option
    for option in all_options()
    if option.states["cpu"].kind is Support.WORKS
    and option.slice_name != "experts"  # this model has none: tests/config/test_expert_options.py
    and option.slice_name != "speculative"  # they need a drafter: tests/config/test_draft_flags.py
    and option.slice_name != "mamba"  # no layer has a state: tests/config/test_recurrent_options.py
    and option.name not in ("nnodes", "node_rank")  # another machine: tests/e2e/test_nodes.py
    and (
        option.shape.removeprefix("list of ") in ("int", "float")
        or (option.choices and all(choice.isdigit() for choice in option.choices))
    )
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which it need not be shown 1,000 times that its products are right."""
    monkeypatch.setattr(cpu, "memory", lambda: (2 * FREE, FREE))
    monkeypatch.setattr(instructions, "wrong_product", lambda kernels: None)


def test_every_numeric_option_has_an_effective_value() -> None:
    assert sorted(EFFECTIVE) == sorted(option.name for option in NUMERIC)


def extremes(option: Option) -> tuple[Any, ...]:
    if option.choices:
        return (*map(int, option.choices), 99)
    if option.shape == "int":
        return INTS
    return FLOATS if option.shape == "float" else LISTS


@pytest.mark.parametrize("option", NUMERIC, ids=lambda option: option.name)
def test_what_was_asked_runs_or_is_explained(option: Option, model: Path) -> None:
    starts = 0
    for crowd in CROWDS:
        for value in extremes(option):
            asked = {**crowd, option.name: value}
            try:
                it = started(asked, model)
            except (CannotStart, PortInUse) as refusal:
                refused(str(refusal), asked)
                continue
            explain(it, option, value)
            starts += 1
    assert starts > len(CROWDS)


def refused(text: str, asked: dict[str, Any]) -> None:
    """One line that names a flag, or the port that is taken."""
    flags = {option.name: option.flags for option in all_options()}
    assert "\n" not in text, text
    assert (
        any(flag in text for name in asked for flag in flags[name])
        or str(asked.get("port")) in text
    ), text


def same(it: Started, name: str, asked: Any, effective: Any) -> bool:
    if effective is None:
        return asked == effective
    if isinstance(asked, list | tuple) or isinstance(effective, list | tuple):
        return not asked or set(asked) == set(effective)
    if name == "mem_fraction_static" and it.config.memory.max_total_tokens is not None:
        return effective <= asked  # both are upper limits
    if isinstance(asked, float):
        tolerance = 0.002 if name == "mem_fraction_static" else 1e-9
        return math.isclose(asked, effective, abs_tol=tolerance)
    return asked == effective


def explain(it: Started, option: Option, value: Any) -> None:
    """Raises unless the value is in effect or the summary says what is, and why."""
    effective = EFFECTIVE[option.name](it)
    if same(it, option.name, value, effective):
        return
    summary = build_summary(it.config, it.capacity, "http://127.0.0.1:1")
    told = [
        rewrite
        for rewrite in (*it.config.rewrites, *it.capacity.rewrites)
        if rewrite.field == option.name and same(it, option.name, rewrite.after, effective)
    ]
    assert told, (option.flag, value, effective)
    assert told[-1].reason
    assert any(option.flag in line and told[-1].reason in line for line in plain_lines(summary))


def test_every_stage_of_the_start_is_told_once_and_in_order(model: Path) -> None:
    told: list[str] = []
    config = configure(from_arguments(model_path=str(model), load_format="dummy", cpu_threads=1))
    build_runner(config, lambda stage, fraction: told.append(stage))
    stages = [stage for at, stage in enumerate(told) if stage not in told[at - 1 : at]]
    assert stages[-2:] == ["Sizing the KV pool", "Capturing decode steps"]
    assert len(set(stages)) == len(stages)
