"""Servers that a script ends before it starts the next ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.deployments import found
from vivace.deploy.from_script.script import import_files, import_scripts

SERVER = "python3 -m sglang.launch_server --model-path m --tp 8 --port 30000"
STOPS = """kill $PID; kill %1 && wait; pkill -f sglang || true; wait; wait $PID; killall python3
    docker rm -f sglang; sudo pkill -9 sglang; fuser -k 30000/tcp; bash stop.sh; ./stop_server.sh
    stop_server; ray stop --force; tmux kill-session -t s; cleanup_servers
    bash -c 'pkill sglang'""".replace("\n", ";").split(";")
BENCH = "python3 -m sglang.bench_serving --backend sglang --port 30000"
RULES = ("ports-apart", "devices-apart", "node-ranks", "hosts-apart")


def errors(script: str) -> list[str]:
    issues = [each for rule in RULES for each in found({"script": script}, rule)]
    return [each.rule for each in issues if each.severity == "error"]


@pytest.mark.parametrize("stop", [each.strip() for each in STOPS])
def test_the_next_server_may_take_the_ports_and_devices(stop: str) -> None:
    begin = 'stop_server() { kill "$PID"; }\n'
    in_turn = f"{begin}{SERVER} &\nPID=$!\n{BENCH}\n{stop}\n{SERVER} --dtype half &\n"
    sweep = f"{begin}for tp in 1 2 4; do\n  {SERVER[:-5]}30000 --dp $tp &\n  {stop}\ndone\n"
    assert errors(in_turn) == [] and errors(sweep) == []


@pytest.mark.parametrize(
    "between",
    ["sleep 9", "kill -0 $PID || exit 1", "while kill -0 $PID; do sleep 1; done",
     BENCH, "echo wait", "trap 'kill $PID' EXIT", "rm -rf logs", "ssh b 'pkill sglang'",
     "echo stop > log"],
)  # fmt: skip
def test_what_ends_no_server_leaves_it_where_it_is(between: str) -> None:
    script = f"{SERVER} &\n{between}\n{SERVER} --dtype half &\n"
    assert "ports-apart" in errors(script) and "devices-apart" in errors(script)


def test_servers_of_other_hosts_are_ended_by_ssh() -> None:
    node = SERVER + " --nnodes 2 --dist-init-addr a:5000 --node-rank"
    start = f'ssh a "{node} 0" &\nssh b "{node} 1" &\n'
    assert errors(start + "ssh a 'pkill sglang'; ssh b 'pkill sglang'\n" + start) == []
    assert errors(start + start) != []
    each = "".join(f'ssh {host} "pkill sglang; {node} {at}" &\n' for at, host in enumerate("ab"))
    assert errors(each) == [] and "node-ranks" in errors(each.replace("rank 1", "rank 0"))


def test_comments_are_no_statements() -> None:
    loaded = import_scripts([("a.sh", "# a comment\n" * 60_000 + SERVER)])
    assert [each.place.line for each in loaded.started] == [60_001]


@pytest.mark.parametrize("text", ["source ./a.sh", "bash b.sh", ". ./b.sh"])
def test_a_file_that_reads_itself_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"{text}\n{SERVER}\n")
    (tmp_path / "b.sh").write_text(f"{SERVER} --port 1\n. ./a.sh\n")
    loaded = import_files([tmp_path / "a.sh"])
    noted = [each for each in loaded.remarks if each.rule == "not-understood"]
    assert loaded.started and any(".sh" in each.text for each in noted)


def test_numbers_of_any_length_are_refused_in_a_line() -> None:
    for rule in ("flag-value", "flag-given-twice"):
        script = f"{SERVER} --tp {'9' * 100_000} --tp {'8' * 100_000}"
        for each in found({"script": script}, rule):
            assert each.severity in ("error", "warning") and len(each.text) < 1000
