"""Thirty published configurations, as data: every error that a rule can see, and no other.

Their launch lines, lengths and cards are facts of "Best Practice on Ascend NPU"; addresses and
folders are made up. Errors in the page's tables and results are not in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vivace.commands.deploy import render_files
from vivace.deploy.case import Case
from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case, open_files
from vivace.deploy.memory import buffers
from vivace.deploy.memory.plan import plan_role
from vivace.deploy.memory.windows import windows
from vivace.deploy.render.kubernetes import Manifests
from vivace.deploy.render.process import Process, list_processes
from vivace.deploy.render.shell import render_shell
from vivace.deploy.rules.judge import judge
from vivace.deploy.suggest import suggest

FOLDER = Path(__file__).parent / "published"
FILES = sorted(FOLDER.glob("*.yaml"))
ERRORS = {
    "r1-a3-32c-pd-3.5k-1.5k-50ms": {"hosts-apart"},
    "v3.2-a3-32c-pd-64k-1k-30ms": {"router-entries"},
    "q235b-a3-24c-pd-3.5k-1.5k-50ms": {"benchmark-port"},
    "q235b-a3-8c-mix-2k-2k-100ms": {"dispatch-tokens"},
    "q235b-a3-16c-mix-2k-2k-50ms": {"draft-quantisation", "separation-halves"},
    "q32b-a3-4c-mix-4k-1.5k-11ms": {"flag-value", "single-dash", "benchmark-port"},
    "q480b-a3-24c-pd-3.5k-1.5k-50ms": {"benchmark-port"},
}
WARNINGS = {
    "cards": {"q32b-a2-8c-mix-3.5k-1.5k-50ms", "q32b-a2-8c-mix-2k-2k-50ms"},
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


def started(processes: Iterable[Process]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (each.kind, each.host, each.words, tuple(sorted(each.environment.items())))
        for each in processes
    )


def sizes(case: Case) -> Counter[tuple[str, int, int]]:
    return Counter(
        (role.kind, role.instances, role.nodes) for role in case.deployment.roles.values()
    )


def found_in(case: Case) -> set[tuple[str, str]]:
    return {
        (each.rule, each.role)
        for each in judge(case).findings
        if each.severity in ("error", "warning")
    }


def imported_again(file: Path, to: str) -> tuple[Case, Case, set[tuple[str, str]]]:
    """(the case, the same rendered and imported, findings that only the second has)"""
    loaded = open_files([file])
    case = build_case(loaded, Overrides())
    again = import_scripts(list(render_files(loaded.deployment, to, loaded).items()))
    assert not [each for each in again.remarks if each.rule == "not-understood"]
    given = loaded.deployment
    deployment = replace(
        again.deployment,
        model=given.model,
        hardware=given.hardware,
        workload=given.workload,
        targets=given.targets,
    )
    files = LoadedDeployment(
        deployment, tuple(again.remarks), to, again.sources, tuple(again.started)
    )
    second = build_case(files, Overrides())
    return case, second, found_in(second) - found_in(case)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_import_of_a_compose_file_is_the_same_deployment(file: Path) -> None:
    case, again, new = imported_again(file, "compose")
    assert started(list_processes(again.deployment)) == started(list_processes(case.deployment))
    assert sizes(again) == sizes(case)
    shared_hosts = ("hosts-apart", "decode") in found_in(case)
    assert new == ({("devices-apart", "decode")} if shared_hosts else set())


def as_pods(processes: Iterable[Process], *, imported: bool) -> Iterator[Process]:
    """What the cluster fills in, in the words of the import."""
    for each in processes:
        values = {f"<${name}>": f"<{name}>" for name in ("POD_IP", "LWS_LEADER_ADDRESS")}
        values["<$LWS_WORKER_INDEX>"] = str(each.rank)
        words = list(each.words)
        for name, value in values.items():
            words = [word.replace(name, value) for word in words]
        told = ("POD_IP", "LWS_WORKER_INDEX") if imported else ()
        environment = {k: v for k, v in each.environment.items() if k not in told}
        yield replace(each, words=tuple(words), environment=environment, host=None)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_import_of_manifests_is_the_same_deployment(file: Path) -> None:
    """With names of services in place of addresses."""
    case, again, new = imported_again(file, "kubernetes")
    wanted = started(as_pods(Manifests(case).processes, imported=False))
    assert started(as_pods(list_processes(again.deployment), imported=True)) == wanted
    assert not new
    assert sizes(again) == sizes(case)


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
    need = max(window.size for window in windows(server, case))
    published = int(server.environment["HCCL_BUFFSIZE"])
    assert published * 0.98 <= need / buffers.MIB <= published
    values = [
        int(each.value)
        for each in suggest(case)
        if (each.role, each.name) == (role, "HCCL_BUFFSIZE")
    ]
    assert all(abs(value - published) <= 0.02 * published for value in values)
