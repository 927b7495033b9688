"""Whatever a deployment file says: findings or one line of error, never a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from deployments import mixed, separated
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from vivace.deploy.case import Case
from vivace.deploy.catalogue.flags import tables
from vivace.deploy.from_script.programs import DEFAULT_PORT
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case, open_command
from vivace.deploy.memory.plan import plans
from vivace.deploy.render.compose import render_compose
from vivace.deploy.render.kubernetes import render_kubernetes
from vivace.deploy.render.process import list_processes
from vivace.deploy.render.ray import render_ray
from vivace.deploy.render.shell import render_shell
from vivace.deploy.render.systemd import render_systemd
from vivace.deploy.report.github import github_lines
from vivace.deploy.report.machine import json_report
from vivace.deploy.report.page import page
from vivace.deploy.report.sarif import sarif_log
from vivace.deploy.rules.disaggregation import TRANSFER
from vivace.deploy.rules.judge import CaseResult, judge
from vivace.deploy.schema.deployment import Deployment, DeploymentError
from vivace.deploy.schema.files import parse_deployment
from vivace.deploy.suggest import suggest

FLAGS = [flag.removeprefix("--") for known in tables().flags for flag in known.flags]
OFTEN = ["port", "node-rank", "tp-size", "dp-size", "nnodes", "host", "prefill", "decode"]
SINGLE = st.sampled_from(
    [0, -1, 10**20, 1.5, -0.0, float("inf"), True, None, "", "x", "<$A>", "{node}", "a:b:c", "²"]
) | st.sampled_from(["9" * 11, "7" * 5000])
VALUES = SINGLE | st.lists(SINGLE, max_size=3) | st.lists(st.lists(SINGLE, max_size=2), max_size=2)
VARIABLES = st.sampled_from(
    [
        "HCCL_BUFFSIZE",
        "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "DEEPEP_NORMAL_LONG_SEQ_ROUND",
        "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS",
    ]
)
CHANGES = st.one_of(
    st.tuples(st.just("flags"), st.sampled_from(FLAGS) | st.sampled_from(OFTEN), VALUES),
    st.tuples(st.just("environment"), VARIABLES, SINGLE),
    st.tuples(st.just("nodes"), st.none(), st.integers(1, 3)),
    st.tuples(st.just("hosts"), st.none(), st.sampled_from([[], ["a"], ["a"] * 9])),
)
MODELS = st.sampled_from([None, "deepseek-v3.2", "qwen3-next", "smollm2-135m"])
TARGETS = st.sampled_from(["sglang", "vivace", "sglang==0.4.6", "sglang==0.5.23"])


@st.composite
def deployments(draw: st.DrawFn) -> Deployment | None:
    """A sound deployment with a few values of any kind in it; None: the file is refused."""
    content = draw(st.sampled_from([mixed, separated]))()
    for what, name, value in draw(st.lists(CHANGES, min_size=1, max_size=6)):
        role: dict[str, Any] = content["roles"][draw(st.sampled_from(sorted(content["roles"])))]
        if name is None:
            role[what] = value
        else:
            role.setdefault(what, {})[name] = value
    model = draw(MODELS)
    if model is not None:
        content["model"] = {"name": model}
    try:
        return parse_deployment(content, "drawn.yaml")
    except DeploymentError:
        return None


def make_case(deployment: Deployment) -> Case:
    return build_case(LoadedDeployment(deployment, (), "drawn.yaml"), Overrides())


@pytest.mark.parametrize("value", [[], [["a"]], 0.5, True, ""], ids=repr)
def test_halves_are_compared_whatever_their_values_are(value: Any) -> None:
    deployment = parse_deployment(separated(), "made")
    for name in TRANSFER:
        deployment.roles["decode"].flags[name.replace("_", "-")] = value
    judge(make_case(deployment))


@pytest.mark.parametrize("value", ["-1", "0", "nan", "x", "", "1e400", "9" * 20])
@pytest.mark.parametrize(
    "flag", ["mamba-full-memory-ratio", "mem-fraction-static", "speculative-num-steps"]
)
@pytest.mark.parametrize("topk", ["1", "2"])
def test_sizes_are_planned_whatever_their_flags_say(flag: str, value: str, topk: str) -> None:
    drafts = f"--speculative-algorithm NEXTN --speculative-eagle-topk {topk} --{flag}"
    command = open_command([*f"vivace serve --tp-size 4 {drafts}".split(), value])
    sizes = Overrides(model="qwen3-next-80b-a3b", hardware="h200", input=4096, output=512)
    found = build_case(command, sizes)
    assert any(flag in one.text for one in judge(found).findings)
    list(plans(found))


@settings(max_examples=150, deadline=None)
@given(deployments(), TARGETS)
def test_any_values_are_judged_and_reported(deployment: Deployment | None, target: str) -> None:
    if deployment is None:
        return
    found = build_case(LoadedDeployment(deployment, (), "drawn.yaml"), Overrides(target=target))
    verdict = judge(found)
    list(plans(found))
    suggest(found)
    assert page(found, verdict).endswith("</html>\n")
    checked = [CaseResult(found, verdict)]
    assert json_report(checked, memory=True)
    lines = "".join(github_lines(checked, "/", notes=True))
    assert "\n" not in lines and sarif_log(checked, "/")


@settings(max_examples=100, deadline=None)
@given(deployments())
def test_any_values_are_rendered_or_refused(deployment: Deployment | None) -> None:
    if deployment is None:
        return
    for render in (
        render_shell,
        render_systemd,
        lambda given: render_compose(make_case(given)),
        lambda given: render_kubernetes(make_case(given)),
        lambda given: render_ray(make_case(given)),
    ):
        try:
            assert render(deployment)
        except DeploymentError as error:
            assert str(error)


@pytest.mark.parametrize("said", ["70000", "0", "7" * 5000, "²", "-1", "x", ""])
def test_what_is_no_port_leaves_the_usual_one(said: str) -> None:
    one = next(list_processes(parse_deployment(mixed(), "f")))
    assert replace(one, words=("serve", "--port", "65535")).port == 65535
    assert replace(one, words=("serve", "--port", said)).port == DEFAULT_PORT
