"""Scripts as people have them become deployments; nothing of them is run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.commands.deploy import main
from vivace.deploy.from_script.flags import flags_to_words, parse_flags
from vivace.deploy.from_script.isolated import read_isolated
from vivace.deploy.from_script.script import import_command, import_files, import_scripts
from vivace.deploy.render.process import list_processes
from vivace.deploy.render.shell import render_shell
from vivace.deploy.schema.deployment import Deployment, Difference, Role
from vivace.deploy.schema.files import parse_deployment, parse_yaml, to_yaml
from vivace.deploy.shell.reader import MAX_BYTES, ScriptError

SCRIPTS = Path(__file__).parent / "scripts"
FAMILIES = (("separated.sh", "measure.sh"), ("one_node.sh",), ("rank_from_scheduler.sh",))


def imported(*names: str) -> Deployment:
    return import_files([SCRIPTS / name for name in names]).deployment


def started(deployment: Deployment) -> set[tuple[Any, ...]]:
    """What runs: commands with their environment and place."""
    return {
        (process.host, process.words, tuple(sorted(process.environment.items())))
        for process in list_processes(deployment)
    }


def test_a_script_for_every_node_becomes_roles() -> None:
    found = imported("separated.sh", "measure.sh")
    assert {
        name: (role.kind, role.instances, role.nodes, role.hosts)
        for name, role in found.roles.items()
    } == {
        "prefill": ("prefill", 2, 1, ["10.1.0.1", "10.1.0.2"]),
        "decode": ("decode", 1, 2, ["10.1.1.1", "10.1.1.2"]),
        "router": ("router", 1, 1, []),
    }
    prefill, decode = found.roles["prefill"], found.roles["decode"]
    assert [each.flags for each in prefill.each] == [
        {"disaggregation-bootstrap-port": 8998},
        {"disaggregation-bootstrap-port": 8999},
    ]
    assert prefill.flags["host"] == "{host}" and decode.flags["node-rank"] == "{node}"
    assert decode.flags["tp-size"] == 32 and decode.flags["mem-fraction-static"] == 0.815
    assert decode.flags["cuda-graph-bs"] == [1, 2, 4, 8, 16, 24, 26]
    assert "disable-overlap-schedule" not in decode.flags
    assert found.environment["ASCEND_MF_STORE_URL"] == "tcp://10.1.0.1:24669"
    assert prefill.environment == {"HCCL_BUFFSIZE": "1536", "TASK_QUEUE_ENABLE": "2"}
    assert found.unset == ["http_proxy", "https_proxy"]
    assert found.prepare == [
        "sysctl -w vm.swappiness=0",
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
    ]
    assert found.roles["router"].flags["prefill"] == [
        ["http://10.1.0.1:8000", 8998],
        ["http://10.1.0.2:8000", 8999],
    ]
    assert found.benchmarks[0].flags["num-prompts"] == 3328
    assert found.model.path == "/models/DeepSeek-R1-W8A8"


def test_arrays_branches_and_background() -> None:
    found = imported("one_node.sh")
    (role,) = found.roles.values()
    assert role.kind == "mixed" and role.flags["speculative-num-steps"] == 4
    assert role.flags["cuda-graph-bs"] == [1, 8, 16, 24, 32]
    assert found.environment["HCCL_OP_EXPANSION_MODE"] == "AIV"
    assert len(found.benchmarks) == 1


def test_a_rank_found_in_a_loop() -> None:
    (role,) = imported("rank_from_scheduler.sh").roles.values()
    assert (role.nodes, role.hosts) == (2, ["10.2.0.1", "10.2.0.2"])
    assert role.flags["tp"] == 32 and role.flags["dist-init-addr"] == "10.2.0.1:10000"
    assert [each.environment["HCCL_SOCKET_IFNAME"] for each in role.each] == ["eth2", "eth3"]


@pytest.mark.parametrize("names", FAMILIES)
def test_import_render_import_is_a_fixed_point(names: tuple[str, ...]) -> None:
    first = imported(*names)
    assert parse_deployment(parse_yaml(to_yaml(first))[0], "written") == first
    rendered = sorted(render_shell(first).items())
    second = import_scripts(rendered).deployment
    assert started(second) == started(first)
    assert sorted(render_shell(second).items()) == rendered
    assert second == first


def test_words_that_are_lost_are_told() -> None:
    read = parse_flags(["--tp-size", "8", "9", "--port=7", "--tp", "4", "-x-y", "1"], "server")
    assert read.flags == {"port": 7, "tp": 4, "-x-y": 1}
    assert [remark.rule for remark in read.remarks] == ["stray-word", "flag-given-twice"]


def test_a_long_value_is_told_with_a_sign_that_it_goes_on() -> None:
    long = "a" * 300
    (remark,) = parse_flags(["--port", long, "--port", long + "b"], "server").remarks
    assert remark.text.count("a..") == 2 and len(remark.text) < 600


VALUES = st.one_of(
    st.just(True),
    st.integers(-5, 1 << 40),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(float),
    st.text("abcXYZ0123456789._:/{}[]\"'$ ,=é", min_size=1).filter(lambda text: text[0] != "-"),
)


@given(st.dictionaries(st.sampled_from(["alpha", "beta-gamma", "x", "http-root"]), VALUES))
def test_flags_survive_being_written_as_words(flags: dict[str, Any]) -> None:
    words = flags_to_words(flags, "benchmark")
    again = flags_to_words(parse_flags(words, "benchmark").flags, "benchmark")
    assert again == words


def test_a_command_in_place_of_a_script_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--", "vivace", "serve", "--tp-size", "2"]) == 2
    assert "reads scripts" in capsys.readouterr().err


def test_one_command() -> None:
    found = import_command(
        ["HCCL_BUFFSIZE=400", "python3", "-m", "sglang.launch_server", "--tp", "8", "--host", "h"]
    ).deployment
    assert found.roles["mixed"].flags == {"tp": 8, "host": "h"}
    assert found.environment == {"HCCL_BUFFSIZE": "400"}
    assert import_command(["vivace", "serve", "--port", "1"]).deployment.roles["mixed"].program == (
        "vivace serve"
    )
    with pytest.raises(ScriptError, match="server"):
        import_command(["rm", "-rf", "/"])


def test_nothing_is_run(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    script = f"touch {witness}\nx=$(touch {witness})\n: ${{y:=`touch {witness}`}}\n"
    script += f"python -m sglang.launch_server --port $(touch {witness}; echo 1)\n"
    import_scripts([("evil.sh", script)])
    assert not witness.exists()


def test_a_script_without_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="server"):
        import_scripts([("x.sh", "echo hello")])
    with pytest.raises(ScriptError, match=r"missing\.sh"):
        import_files([Path("missing.sh")])
    large = tmp_path / "large.sh"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ScriptError, match="1 MiB"):
        import_files([large])


TEXTS = ["\n".join((SCRIPTS / name).read_text() for name in names) for names in FAMILIES]
SHREDS = st.lists(
    st.one_of(
        st.sampled_from("\n".join(TEXTS).split("\n")),
        st.sampled_from(["<<EOF", "EOF", "\r", "'", '"', "`", "$((", "}", "\\", "é中🙂", "\x00"]),
        st.text(max_size=12),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(SHREDS, st.sampled_from(["\n", "\r\n", " "]))
def test_shredded_scripts_never_crash(pieces: list[str], joint: str) -> None:
    """Truncated, oddly quoted, with here-documents, CRLF and letters of all kinds."""
    with contextlib.suppress(ScriptError):
        read_isolated(joint.join(pieces))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS), st.floats(0, 1), st.integers(0, 400))
def test_truncated_scripts_import_or_say_why(text: str, place: float, length: int) -> None:
    start = int(place * len(text))
    try:
        found = import_scripts([("cut.sh", text[: max(0, start - length)] + text[start:])])
    except ScriptError:
        return
    assert found.deployment.roles or found.deployment.benchmarks


WORDS = st.text("abcXYZ019._:/-' \"$é", min_size=1, max_size=8).filter(
    lambda text: text[0] != "-" and not re.search(":X+$", text)
)
"""none that end with a port which is left to the reader (`:XX`)"""
FLAGS = st.fixed_dictionaries(
    {"model-path": WORDS},
    optional={
        "tp-size": st.integers(1, 64),
        "mem-fraction-static": st.sampled_from([0.5, 0.81, 0.875]),
        "trust-remote-code": st.just(True),
        "cuda-graph-bs": st.lists(st.integers(1, 99), min_size=1, max_size=4),
        "served-model-name": WORDS,
        "watchdog-timeout": st.integers(1, 9000),
    },
)
VARIABLES = st.dictionaries(
    st.sampled_from(["HCCL_BUFFSIZE", "TASK_QUEUE_ENABLE", "A_B", "PATH"]),
    st.one_of(WORDS, st.just("/opt/bin:<$PATH>")),
    max_size=3,
)


SIZES = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3)]
"""Instances and nodes of one: every script is read in a process of its own."""


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Roles on hosts of their own; what differs from node to node is drawn too."""
    roles: dict[str, Role] = {}
    for number, kind in enumerate(draw(st.permutations(["mixed", "prefill", "decode"]))[:2]):
        instances, nodes = draw(st.sampled_from(SIZES))
        count = instances * nodes
        flags = {**draw(FLAGS), "host": "{host}"}
        if kind != "mixed":
            flags["disaggregation-mode"] = kind
        if nodes > 1:
            flags |= {"nnodes": nodes, "node-rank": "{node}", "dist-init-addr": "{first}:5000"}
        each = [Difference(flags={"port": 8000 + index}) for index in range(count)]
        roles[kind] = Role(
            kind=kind,  # type: ignore[arg-type]
            instances=instances,
            nodes=nodes,
            hosts=[f"10.{number}.0.{index + 1}" for index in range(count)],
            flags=flags,
            environment=draw(VARIABLES),
            each=each if draw(st.booleans()) else [],
        )
    return Deployment(environment=draw(VARIABLES), roles=roles, unset=["http_proxy"])


@settings(max_examples=15, deadline=None)
@given(deployments())
def test_rendered_scripts_import_as_what_they_start(deployment: Deployment) -> None:
    again = import_scripts(sorted(render_shell(deployment).items())).deployment
    assert started(again) == started(deployment)
    assert {
        (role.kind, role.instances, role.nodes, tuple(role.hosts)) for role in again.roles.values()
    } == {
        (role.kind, role.instances, role.nodes, tuple(role.hosts))
        for role in deployment.roles.values()
    }
    third = import_scripts(sorted(render_shell(again).items())).deployment
    assert third == again


ALTERNATIVES = """\
if [ "$SIZE" = small ]; then
  python -m sglang.launch_server --model-path /srv/qwen3-32b --tp 8 --port 7000
else
  python -m sglang.launch_server --model-path {} --tp 8 --port 7000 --dtype auto
fi
"""


@pytest.mark.parametrize(
    ("other", "path"),
    [
        ("/srv/qwen3-32b", "/srv/qwen3-32b"),
        ("/data2/qwen3-32b/", "/srv/qwen3-32b"),
        ("/srv/deepseek-r1", None),
    ],
)
def test_alternatives_do_not_share_a_model(other: str, path: str | None) -> None:
    """Memory and shapes of one model say nothing about the server of another."""
    found = import_scripts([("start.sh", ALTERNATIVES.format(other))])
    assert found.deployment.model.path == path
    said = [each for each in found.remarks if "several models" in each.text]
    assert [each.line for each in said] == ([] if path else [2])
    assert all("/srv/deepseek-r1" in each.text for each in said)
