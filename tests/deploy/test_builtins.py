"""Builtins of bash that assign, and arithmetic that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.deployments import found
from vivace.deploy.from_script.script import import_files, import_scripts

SERVER = "python3 -m sglang.launch_server --model-path m --tp 16 --nnodes 2"
RANKED = f"{SERVER} --dist-init-addr n1:5000 --node-rank"
HOSTS = "i=0\nfor ip in n1 n2; do\n"
PAIRS = 'for s in n1:0 n2:1; do\n  {}\n  ssh $ip "' + RANKED + ' $r" &\ndone\n'


def started(script: str, folder: Path) -> list[tuple[str | None, object]]:
    (folder / "start.sh").write_text(script)
    (folder / "hosts").write_text("n1\nn2\n")
    loaded = import_files([folder / "start.sh"])
    return [(each.host, each.flags["node-rank"]) for each in loaded.started]


@pytest.mark.parametrize(
    "step",
    """let i++; let i=i+1; let "i+=1"; : $((i++)); : $((i += 1)); printf -v i %d $((i+1)); ((i++));
    ((++i)); ((i+=1)); read i <<< $((i+1)); mapfile -t i < <(echo $((i+1)));
    i=$(printf %d $((i + 1)))""".split(";"),
)
def test_ranks_are_counted_in_every_way(step: str, tmp_path: Path) -> None:
    script = f'{HOSTS}  ssh $ip "{RANKED} $i" &\n  {step.strip()}\ndone\n'
    assert started(script, tmp_path) == [("n1", 0), ("n2", 1)]


@pytest.mark.parametrize("rank", ["$((i++))", "$(( i++ ))", "$((++i - 1))", "$(((i += 1) - 1))"])
def test_arithmetic_changes_what_it_computes_with(rank: str, tmp_path: Path) -> None:
    script = f'{HOSTS}  rank={rank}\n  ssh $ip "{RANKED} $rank" &\ndone\n'
    assert started(script, tmp_path) == [("n1", 0), ("n2", 1)]


def test_a_command_in_the_background_changes_no_variable(tmp_path: Path) -> None:
    """bash computes its words in a shell of its own: both nodes get rank 0."""
    script = f'{HOSTS}  ssh $ip "{RANKED} $((i++))" &\ndone\n'
    assert started(script, tmp_path) == [("n1", 0), ("n2", 0)]


@pytest.mark.parametrize(
    "split",
    [
        'IFS=: read -r ip r <<< "$s"',
        "IFS=':' read ip r rest <<< $s",
        'IFS=: read -ra a <<< "$s"; ip=${a[0]}; r=${a[1]}',
        "set -- ${s/:/ }; ip=$1 r=$2",
        "set -- ${s%:*} ${s#*:}; ip=$1; shift; r=$1",
        "ip=${s%:*} r=${s#*:}",
        'read ip r < <(echo "${s/:/ }")',
        "IFS=:; set -- $s; ip=$1 r=$2; unset IFS",
    ],
)
def test_lists_are_cut_into_variables(split: str, tmp_path: Path) -> None:
    assert started(PAIRS.format(split), tmp_path) == [("n1", 0), ("n2", 1)]


@pytest.mark.parametrize(
    "assigning",
    """read r; read -p rank: r < /dev/tty; read x r <<< "$(ask)"; read r < elsewhere; let r=r+q
    mapfile r < elsewhere; readarray -t r < <(ask); printf -v r %s $(ask); set -- $(ask), r=$2
    printf -v r "%x" 9; let r--, r=$((r * q)); shift $(ask), r=$1""".replace("\n", ";").split(";"),
)
def test_what_gets_an_unknown_text_is_unknown(assigning: str) -> None:
    script = f"r=0\nset -- 0 1\n{assigning.replace(',', ';')}\n{RANKED} $r --port 7\n"
    (server,) = import_scripts([("a.sh", script)]).started
    assert "<" in str(server.flags["node-rank"]) and server.flags["port"] == 7


@pytest.mark.parametrize(
    ("taken", "given"),
    [
        ("local role=$1 port=$2; shift 2", "prefill 30000"),
        ("a=$1\n  shift\n  port=$1\n  shift 1", "x 30000"),
        ("shift; shift; port=$1; shift", "x y 30000"),
        ('set -- "${@:2}"; port=30000', "x"),
    ],
)
@pytest.mark.parametrize("rest", ['"$@"', '"${@}"', "$*", "$@"])
def test_arguments_are_shifted_in_functions(taken: str, given: str, rest: str) -> None:
    body = f"{taken}\n  {SERVER.replace('--nnodes 2', '')} --port $port {rest} &"
    script = f"launch() {{\n  {body}\n}}\nlaunch {given} --base-gpu-id 4\n"
    assert found({"script": script}, "stray-word") == []
    (server,) = import_scripts([("a.sh", script)]).started
    assert (server.flags["port"], server.flags["base-gpu-id"]) == (30000, 4)


def test_arguments_of_the_caller_come_back() -> None:
    script = f"f() {{ shift 2; }}\nset -- 1 2 3\nf a b c\n{SERVER} --port $2\n"
    (server,) = import_scripts([("a.sh", script)]).started
    assert server.flags["port"] == 2


@pytest.mark.parametrize("host", ["$ip", "root@$ip", "$(pick $s)", '"<your host>"'])
def test_nobody_knows_which_host_an_unknown_one_is(host: str) -> None:
    """Each may be another machine: nothing is said of ports and devices that they share."""
    one = f'ssh {host} "{RANKED} $r --host $ip"'
    script = f"for s in a b; do\n  read ip r <<< $(ask $s)\n  {one} &\ndone\n"
    for rule in ("ports-apart", "devices-apart", "node-ranks"):
        assert [each for each in found({"script": script}, rule) if each.severity == "error"] == []


def test_lines_of_a_file_become_an_array(tmp_path: Path) -> None:
    loop = 'for i in ${!all[@]}; do ssh ${all[$i]} "' + RANKED + ' $i" & done\n'
    for read in ("mapfile -t all < hosts", "readarray -t all < <(cat hosts)"):
        assert started(f"{read}\n{loop}", tmp_path) == [("n1", 0), ("n2", 1)]
