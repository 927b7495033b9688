"""Suggested values: what is given stays, and `check` has nothing to say about the rest."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deployments import LEAVE_OUT, case, changed, mixed, separated
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.commands.check import main
from vivace.deploy.case import Case
from vivace.deploy.memory.plan import plan_role
from vivace.deploy.rules.judge import find_rule, judge
from vivace.deploy.schema.files import load, parse_deployment, to_yaml
from vivace.deploy.suggest import (
    LIMITING,
    captured_sizes,
    changes,
    find_unresolved,
    prefill_sizes,
    suggest,
    with_suggestions,
)

ROOT = Path(__file__).resolve().parents[2]
DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
OPEN_FLAGS: dict[str, Any] = dict.fromkeys(
    ("mem-fraction-static", "max-running-requests", "cuda-graph-bs"), LEAVE_OUT
)
OPEN_VARIABLES = {"HCCL_BUFFSIZE": LEAVE_OUT}
MODELS = ("qwen3-30b-a3b", "qwen3-32b", "deepseek-r1", "qwen3-next", "qwen3-235b", "llama-3.1-8b")
LAYOUTS = ((16, 16), (16, 4), (16, 2), (16, 1), (8, 1), (4, 1), (2, 1), (1, 1))
DRAFTS = {
    "speculative-algorithm": "NEXTN",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
GIVEN = {
    "mem-fraction-static": st.sampled_from([0.5, 0.7, 0.9]),
    "max-running-requests": st.sampled_from([16, 64, 512]),
    "cuda-graph-bs": st.sampled_from([[1, 2, 4], [8, 64]]),
    "chunked-prefill-size": st.sampled_from([-1, 4096, 65536]),
}


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bare(flags: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """The mixed deployment without values that can be suggested."""
    return mixed(flags={**OPEN_FLAGS, **(flags or {})}, environment=OPEN_VARIABLES, **top)


def bare_pair(**top: Any) -> dict[str, Any]:
    return separated(
        prefill=OPEN_FLAGS,
        decode=OPEN_FLAGS,
        prefill_environment=OPEN_VARIABLES,
        decode_environment=OPEN_VARIABLES,
        **top,
    )


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {
        "input": draw(st.integers(1, 60_000)),
        "output": draw(st.integers(1, 5_000)),
    }
    how = draw(st.sampled_from(["concurrency", "rate", "nothing"]))
    if how == "concurrency":
        found["concurrency"] = draw(st.integers(1, 5_000))
    if how == "rate":
        found["rate"] = draw(st.floats(0.01, 50))
    return found


@st.composite
def deployments(draw: st.DrawFn) -> tuple[dict[str, Any], set[str]]:
    """Any sound layout and load; the names of values that are given."""
    tp, dp = draw(st.sampled_from(LAYOUTS))
    chosen = draw(st.sets(st.sampled_from(sorted(GIVEN))))
    flags: dict[str, Any] = {name: draw(GIVEN[name]) for name in chosen}
    flags |= {"tp-size": tp, "dp-size": dp, "enable-dp-attention": dp > 1, "context-length": None}
    flags["moe-a2a-backend"] = draw(st.sampled_from(["deepep", "ascend_fuseep", None]))
    if draw(st.booleans()):
        flags |= DRAFTS
    device = draw(st.sampled_from(["atlas-800i-a3", "atlas-800i-a2-32g", "h200"]))
    parts = {
        "model": {"name": draw(st.sampled_from(MODELS)), "quantization": "w8a8"},
        "hardware": {"device": device, "cards": 8},
        "workload": draw(workloads()),
        "targets": {"tpot_ms": draw(st.sampled_from([20, 50, 200])), "ttft_ms": 5000},
        "benchmarks": [],
    }
    if draw(st.booleans()):
        return bare(flags, **parts), chosen
    shared = {name: value for name, value in flags.items() if name not in chosen}
    both = {**shared, "nnodes": 1, "node-rank": 0}
    return changed(
        separated(
            prefill={**OPEN_FLAGS, **both, "deepep-mode": "normal"},
            decode={**OPEN_FLAGS, **flags, **both, "dist-init-addr": LEAVE_OUT},
            prefill_environment=OPEN_VARIABLES,
            decode_environment=OPEN_VARIABLES,
            decode_role={"nodes": 1, "hosts": ["10.0.1.1"]},
        ),
        parts,
    ), chosen


def about_values(it: Case) -> set[tuple[str, str]]:
    """(role, rule) of errors and warnings about what can be suggested."""
    rules = [find_rule(name) for name in (*LIMITING, "running-divides", "limits")]
    found = judge(it, [rule for rule in rules if rule is not None]).findings
    return {(each.role, each.rule) for each in found if each.severity in ("error", "warning")}


def too_small(it: Case, role: str) -> bool:
    """Whether not even one request of a group fits."""
    server = next(each for each in it.servers if each.name == role)
    one = changed(dict(server.role.flags), {"max-running-requests": server.parallelism.dp})
    content = {name: value for name, value in one.items() if name != "cuda-graph-bs"}
    roles = {role: {"kind": server.kind, "flags": content, "environment": {}}}
    smallest = parse_deployment(
        {
            "model": {"name": it.deployment.model.name, "quantization": "w8a8"},
            "hardware": {"device": it.deployment.hardware.device},  # type: ignore[union-attr]
            "roles": roles,
        },
        "one.yaml",
    )
    made = Case(smallest, "one.yaml", it.target, it.device, it.model)
    plan = plan_role(made, made.servers[0])
    assert plan is not None
    tokens = (it.load.input or 0) + (0 if server.kind == "prefill" else it.load.output or 0)
    return plan.pool <= 0 or plan.capacity < tokens + 256


@settings(max_examples=120, deadline=None)
@given(deployments())
def test_check_is_silent_about_what_was_suggested(drawn: tuple[dict[str, Any], set[str]]) -> None:
    content, kept = drawn
    it = case(content)
    found = suggest(it)
    after = with_suggestions(it, found)
    assert not kept & {each.name for each in found if each.role != "prefill"}
    assert suggest(after) == [], "the suggestions are a fixed point"
    left = about_values(after)
    listed = {(each.role, each.rule) for each in find_unresolved(it, found)}
    assert left <= listed, "whatever is left is said"
    if not kept:
        assert {role for role, _ in left} <= {role for role, _ in left if too_small(after, role)}


@pytest.mark.parametrize("made", [bare(), bare_pair()], ids=["mixed", "separated"])
def test_the_stated_load_is_covered_without_a_finding(made: dict[str, Any]) -> None:
    it = case(made)
    found = suggest(it)
    after = with_suggestions(it, found)
    assert not find_unresolved(it, found)
    assert {each.place for each in found} == {"flags", "environment"}
    for server in after.of("mixed", "decode"):
        assert server.running is not None and it.load.concurrency is not None
        assert server.running * server.role.instances >= it.load.concurrency
        assert max(server.graphs) == server.running_per_rank
        assert 0.5 < float(server.value("mem_fraction_static")) < 0.9


@pytest.mark.parametrize("target", ["vivace", "sglang==0.4.6", "sglang==0.5.10", "sglang==0.5.23"])
def test_the_target_takes_what_is_suggested(target: str) -> None:
    it = case(bare_pair(), target)
    before = {(each.rule, each.flag) for each in find_unresolved(it, [])}
    after = {(each.rule, each.flag) for each in find_unresolved(it, suggest(it))}
    assert after <= before


def test_prompts_count_where_they_travel_with_low_latency() -> None:
    """A server that computes prompts and requests sends both at once; at most 1,024 of a rank."""
    it = case(bare({"deepep-mode": "low_latency"}), "vivace")
    found = suggest(it)
    values = {each.name: each.value for each in found}
    limit = int(values["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"])
    assert 16 * limit == values["chunked-prefill-size"] + values["max-running-requests"]
    assert limit <= 1024
    assert not [each for each in find_unresolved(it, found) if each.rule == "vivace-layout"]


@pytest.mark.parametrize("dp", [32, 64, 1000, 10**20])
def test_many_groups_leave_a_prefill_of_whole_pages(dp: int) -> None:
    """Also where a group's share of the smallest prefill is less than a page."""
    flags = {"tp-size": dp, "dp-size": dp, "chunked-prefill-size": LEAVE_OUT}
    found = case(bare(flags))
    sizes = [size for server in found.servers for size in prefill_sizes(found, server, None)]
    assert sizes and sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)
    suggest(found)


def test_a_rate_and_targets_say_how_many_run_at_once() -> None:
    load = {"input": 2048, "output": 1000, "rate": 10}
    made = bare(workload=load, targets={"tpot_ms": 50, "ttft_ms": 2000}, benchmarks=[])
    found = {each.name: each.value for each in suggest(case(made))}
    assert found["max-running-requests"] == 528, "10/s x (1000 x 50 ms + 2 s) = 520, of dp 16"


def test_a_short_target_admits_less() -> None:
    def running(tpot: float) -> int:
        load = {"input": 2048, "output": 1000}
        made = bare(workload=load, targets={"tpot_ms": tpot}, benchmarks=[])
        found = {each.name: each.value for each in suggest(case(made))}
        return found["max-running-requests"]

    assert 0 < running(8) < running(20) <= running(1000)


def test_given_values_stay_and_the_rest_follows_them() -> None:
    it = case(bare({"cuda-graph-bs": [1, 2, 4]}))
    found = {each.name: each.value for each in suggest(it)}
    assert found["max-running-requests"] == 4 * 16 and "cuda-graph-bs" not in found
    assert found[DISPATCH] == "4"


def test_what_cannot_be_mended_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deployment.yaml"
    made = bare(model={"name": "deepseek-r1", "quantization": "bf16"})
    path.write_text(to_yaml(parse_deployment(made, "made")))
    assert main([str(path), "--suggest"]) == 1
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "weights-fit" in each]
    assert line.startswith("left: error weights-fit") and "->" in line


def test_suggestions_are_written_into_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text("# mine\n" + to_yaml(parse_deployment(bare(), "made")))
    assert main([str(path), "--suggest", "--write"]) == 0
    assert "--cuda-graph-bs 1 2 4 8 12 16" in capsys.readouterr().out
    assert path.read_text().startswith("# mine")
    flags = load(path).roles["mixed"].flags
    assert (flags["cuda-graph-bs"], flags["max-running-requests"]) == ([1, 2, 4, 8, 12, 16], 256)
    assert main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "error" not in shown and "warning" not in shown
    script = ROOT / "tests" / "deploy" / "scripts" / "one_node.sh"
    assert main([str(script), "--suggest", "--write"]) == 2


def test_suggestions_go_to_their_place() -> None:
    found = changes(suggest(case(bare_pair())))
    assert found["roles", "decode", "flags", "cuda-graph-bs"] == [1, 2, 4, 8, 12, 16]
    assert ("roles", "prefill", "environment", "HCCL_BUFFSIZE") in found


@pytest.mark.parametrize(
    ("most", "drafts", "sizes"),
    [
        (1, False, [1]),
        (16, False, [1, 2, 4, 8, 12, 16]),
        (10, True, [1, 2, 3, 4, 5, 6, 7, 8, 10]),
        (30, False, [1, 2, 4, 8, 12, 16, 24, 30]),
    ],
)
def test_captured_sizes(most: int, drafts: bool, sizes: list[int]) -> None:
    assert captured_sizes(most, drafts=drafts) == sizes


def test_limiting_rules_exist() -> None:
    assert all(find_rule(name) for name in LIMITING)


def test_the_comparison_with_the_published_values_is_current() -> None:
    """`python tools/suggested_values.py` writes it."""
    values = tool("suggested_values")
    page = values.PAGE.read_text()
    assert values.with_section(page) == page


def test_suggested_values_come_near_the_published_ones() -> None:
    rows = list(tool("suggested_values").compared())
    assert sum(row.close for row in rows) >= 33
    assert all(row.covers for row in rows if row.decodes)
    tight = [row for row in rows if row.dispatch[1] is not None and row.dispatch[1] == row.needed]
    assert len(tight) == 6
    assert {row.name for row in tight if row.dispatch[0] != row.dispatch[1]} == {
        "r1-a3-16c-pd-2k-2k-50ms"  # 400 requests, of which its authors admit 384
    }
