"""Thirty published configurations, as data: every error that a rule can see, and no other.

Their launch lines, lengths and cards are facts of "Best Practice on Ascend NPU"; addresses and
folders are made up. Errors in the page's tables and results are not in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vivace.deploy.case import Case
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.memory import buffers
from vivace.deploy.memory.plan import plan_role
from vivace.deploy.memory.windows import windows
from vivace.deploy.render.process import list_processes
from vivace.deploy.render.shell import render_shell
from vivace.deploy.rules.judge import judge
from vivace.deploy.suggest import suggest

FOLDER = Path(__file__).parent / "published"
FILES = sorted(FOLDER.glob("*.yaml"))
ERRORS = {
    "r1-a3-32c-pd-3.5k-1.5k-50ms": {"hosts-apart"},
    "v3.2-a3-32c-pd-64k-1k-30ms": {"router-prefill"},
    "q235b-a3-24c-pd-3.5k-1.5k-50ms": {"benchmark-port"},
    "q235b-a3-8c-mix-2k-2k-100ms": {"dispatch-tokens"},
    "q235b-a3-16c-mix-2k-2k-50ms": {"draft-quantisation", "separation-halves"},
    "q32b-a3-4c-mix-4k-1.5k-11ms": {"flag-value", "single-dash", "benchmark-port"},
    "q480b-a3-24c-pd-3.5k-1.5k-50ms": {"benchmark-port"},
    "q32b-a2-8c-mix-3.5k-1.5k-50ms": {"cards"},
    "q32b-a2-8c-mix-2k-2k-50ms": {"cards"},
}
WARNINGS = {
    "dispatch-fused": {"q235b-a3-24c-pd-3.5k-1.5k-50ms", "q235b-a3-16c-mix-2k-2k-50ms"},
    "load-fits": {"v3.2-a3-32c-pd-64k-1k-30ms"},
    "dp-lm-head": {"q235b-a3-8c-mix-11k-1k-10ms"},
    "quantisation": {"q235b-a3-8c-mix-11k-1k-10ms"},
    "workload": {
        "r1-a3-32c-pd-3.5k-1.5k-50ms",
        "v3.2-a3-32c-pd-64k-1k-30ms",
        "q235b-a3-16c-mix-2k-2k-50ms",
        "q32b-a3-4c-mix-4k-1.5k-11ms",
        "q32b-a3-8c-mix-18k-4k-12ms",
        "q32b-a2-8c-mix-4k-1.5k-11ms",
    },
}
ROUND_ROBIN = 10
"""configurations with the value that only 0.5.7 takes"""


def loaded(file: Path) -> Case:
    return build_case(open_files([file]), Overrides())


def by_severity(file: Path, severity: str) -> set[str]:
    return {each.rule for each in judge(loaded(file)).findings if each.severity == severity}


def test_there_are_thirty() -> None:
    assert len(FILES) == 30 and {*ERRORS} < {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_errors_that_are_there_and_no_others(file: Path) -> None:
    verdict = judge(loaded(file))
    errors = {each.rule for each in verdict.findings if each.severity == "error"}
    assert errors == ERRORS.get(file.stem, set())
    assert verdict.skipped == {}


@pytest.mark.parametrize("rule", WARNINGS)
def test_warnings_are_where_they_belong(rule: str) -> None:
    assert {file.stem for file in FILES if rule in by_severity(file, "warning")} == WARNINGS[rule]


def test_old_values_and_abbreviations_are_told() -> None:
    values = [file for file in FILES if "retired-value" in by_severity(file, "warning")]
    short = [file for file in FILES if "abbreviated-flag" in by_severity(file, "warning")]
    assert len(values) == ROUND_ROBIN and len(short) == 5


def test_the_guide_is_wrong_about_dispatch_where_the_deployment_is_right() -> None:
    assert len([file for file in FILES if "dispatch-guide" in by_severity(file, "doc")]) >= 13


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_import_of_what_is_rendered_starts_the_same(file: Path) -> None:
    deployment = open_files([file]).deployment

    def started(found: Any) -> set[tuple[Any, ...]]:
        return {
            (each.host, each.words, tuple(sorted(each.environment.items())))
            for each in list_processes(found)
        }

    rendered = sorted(render_shell(deployment).items())
    again = import_scripts(rendered)
    assert started(again.deployment) == started(deployment)
    assert not [each for each in again.remarks if each.rule == "not-understood"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_known_to_have_run_fits(file: Path) -> None:
    """All of them ran; only the longest context is at its limit."""
    case = loaded(file)
    for server in case.servers:
        plan = plan_role(case, server)
        assert plan is not None and plan.pool > 0
        if plan.needed is not None and "v3.2" not in file.stem:
            assert plan.needed <= plan.capacity, (server.name, plan.needed, plan.capacity)


@pytest.mark.parametrize(
    ("name", "role", "tokens"),
    [
        ("r1-a3-32c-pd-3.5k-1.5k-50ms", "decode", "78"),
        ("r1-a3-8c-mix-2k-2k-50ms", "mixed", "64"),
        ("r1-a3-16c-pd-2k-2k-50ms", "decode", "96"),
        ("r1-a3-16c-pd-3.5k-1.5k-50ms", "decode", "96"),
        ("r1-a3-8c-mix-3.5k-1.5k-50ms", "mixed", "36"),
        ("qnext-a3-2c-mix-3.5k-1.5k-50ms", "mixed", "20"),
    ],
)
def test_dispatch_tokens_are_derived_exactly(name: str, role: str, tokens: str) -> None:
    case = loaded(FOLDER / f"{name}.yaml")
    (server,) = case.of(role)
    assert server.environment["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == tokens
    assert str(server.dispatch_tokens) == tokens


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("r1-a3-16c-pd-2k-2k-50ms", "decode"),
        ("r1-a3-16c-pd-3.5k-1.5k-50ms", "decode"),
        ("q480b-a3-16c-mix-3.5k-1.5k-50ms", "mixed"),
    ],
)
def test_the_tightest_buffers_are_derived_within_two_percent(name: str, role: str) -> None:
    case = loaded(FOLDER / f"{name}.yaml")
    (server,) = case.of(role)
    assert case.model is not None
    need = max(window.size for window in windows(server, case.model, case.load))
    published = int(server.environment["HCCL_BUFFSIZE"])
    assert published * 0.98 <= need / buffers.MIB <= published
    values = [
        int(each.value)
        for each in suggest(case)
        if (each.role, each.name) == (role, "HCCL_BUFFSIZE")
    ]
    assert all(abs(value - published) <= 0.02 * published for value in values)
