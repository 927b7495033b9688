"""Servers inside of other commands, loops and files are found; nothing is ever run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deployments import found

from vivace.deploy.from_script.script import import_files, import_scripts
from vivace.deploy.render.shell import render_shell
from vivace.deploy.shell.reader import ScriptError, read_script
from vivace.deploy.shell.state import Launch

SERVER = "python3 -m sglang.launch_server --model-path m --tp 8"


def servers(script: str) -> list[Launch]:
    return [each for each in read_script(script).launches if "sglang.launch_server" in each.words]


@pytest.mark.parametrize(
    "script",
    [
        f"numactl --cpunodebind=0 -m 0 {SERVER}",
        f"taskset -c 0-7 {SERVER}",
        f"timeout -k 5 60 {SERVER}",
        f"sudo -E -u root {SERVER}",
        f"env -u X {SERVER}",
        f"nice -n 5 ionice -c 2 {SERVER}",
        f"conda run -n sgl --no-capture-output {SERVER}",
        f"uv run --with torch {SERVER}",
        f"poetry run {SERVER}",
        f"srun -N 2 --ntasks=2 --output=log_$SLURM_NODEID.out {SERVER}",
        f"mpirun -np 2 --allow-run-as-root -x A {SERVER}",
        f"docker run -itd --gpus all -p 30000:30000 -v /a:/b --ipc=host image {SERVER}",
        f"docker exec -it -w /w box {SERVER}",
        f"kubectl exec -it pod-0 -n ns -- {SERVER}",
        f"ssh -o X=y root@h 'cd /w && {SERVER}'",
        f'bash -lc "{SERVER}"',
        f'CMD="{SERVER}"\nbash -c "$CMD"',
        f'CMD="{SERVER}"\neval "$CMD"',
        f"tmux new-session -d -s a '{SERVER}'",
        f"screen -dmS a {SERVER}",
        f"nohup setsid stdbuf -oL {SERVER} > log 2>&1 &",
        f"while true; do {SERVER}; sleep 1; done",
        f"bash <<EOF\n{SERVER}\nEOF",
        f"ssh h bash <<'EOF'\n{SERVER}\nEOF",
        f"cat > run.sh <<'EOF'\n{SERVER}\nEOF\nbash run.sh",
        f'run() {{ {SERVER} "$@"; }}\nrun',
        f"cd /w && time {SERVER} | tee log",
    ],
)
def test_wrappers_are_taken_off(script: str) -> None:
    reading = read_script(script)
    (launch,) = servers(script)
    assert launch.words == tuple(SERVER.split()) and reading.notes == ()


def test_a_container_and_a_remote_shell_have_their_own_environment() -> None:
    script = (
        f"export A=1 B=2\ndocker run -e B -e C=3 image {SERVER}\nssh h 'D=4 {SERVER}'\n{SERVER}"
    )
    contained, remote, plain = servers(script)
    assert contained.environment == {"B": "2", "C": "3"} and contained.placement.contained
    assert remote.environment == {"D": "4"} and remote.placement.host == "h"
    assert plain.environment == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    "loop",
    [
        "for i in $(seq 0 3); do {} & done",
        "for i in 0 1 2 3; do {} & done",
        "for i in {{0..3}}; do {} & done",
        "for ((i = 0; i < 4; i++)); do {} & done",
        "i=0; while [ $i -lt 4 ]; do {} & i=$((i + 1)); done",
        "i=0; until (( i >= 4 )); do {} & ((i++)); done",
    ],
)
def test_each_round_of_a_loop_is_a_server(loop: str) -> None:
    made = import_scripts([("loop.sh", loop.format(SERVER + " --port $((30000 + i))"))])
    (role,) = made.deployment.roles.values()
    ports = [each.flags["port"] for each in role.each]
    assert role.instances == 4 and ports == [30000, 30001, 30002, 30003]


@pytest.mark.parametrize(
    ("expansion", "value"),
    [
        ("${M,,}", "prefill.sh"),
        ("${M^^}", "PREFILL.SH"),
        ("${M%.sh}", "Prefill"),
        ("${M##*.}", "sh"),
        ("${M/fill/pare}", "Prepare.sh"),
        ("${M:3:4}", "fill"),
    ],
)
def test_text_is_changed_as_bash_would(expansion: str, value: str) -> None:
    (launch,) = read_script(f"M=Prefill.sh; a {expansion}").launches
    assert launch.words == ("a", value)


PLACEHOLDERS = f"""export GLOO_SOCKET_IFNAME=<network-interface>
P_IP=(<your prefill ip>)
{SERVER} --host ${{P_IP[0]}} --nnodes <N> --dist-init-addr <your prefill ip>:5000 \\
  --mem-fraction-static <0.8 or less>
"""


def test_placeholders_are_unknown_values() -> None:
    (launch,) = servers(PLACEHOLDERS)
    assert launch.environment == {"GLOO_SOCKET_IFNAME": "<network-interface>"}
    assert launch.words[len(SERVER.split()) :][:2] == ("--host", "<your prefill ip>")
    assert "<your prefill ip>:5000" in launch.words


def test_redirections_stay_redirections() -> None:
    for script in ("a <in >out", "a <in>out", "a 2<x> y", "a <<EOF > x\nb\nEOF", "a <(b) >(c)"):
        assert "<in>" not in str(read_script(script).launches)


@pytest.mark.parametrize(
    "name", ["tp", "dp", "nnodes", "max-running-requests", "page-size", "port"]
)
def test_a_rule_that_needs_an_unknown_value_is_silent(name: str) -> None:
    from vivace.deploy.load_case import Overrides, build_case
    from vivace.deploy.rules.judge import judge

    script = f"{SERVER} --dp 2 --enable-dp-attention --max-running-requests 8 --{name} <value>"
    loaded = import_scripts([("x.sh", script)])
    overrides = Overrides(hardware="atlas-800i-a3", cards=4, model="deepseek-r1")
    errors = [
        each for each in judge(build_case(loaded, overrides)).findings if each.severity == "error"
    ]
    assert [each.rule for each in errors if each.rule != "cards"] in ([], ["weights-fit"])
    if name == "tp":
        assert errors == []


def test_files_beside_the_script_are_followed_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    (folder / "lib").mkdir(parents=True)
    (tmp_path / "secret.sh").write_text("TP=4\n")
    (folder / "link.sh").symlink_to(tmp_path / "secret.sh")
    os.mkfifo(folder / "pipe.sh")
    (folder / "lib" / "env.sh").write_text("# sizes\nTP=16\nexport HCCL_BUFFSIZE=300\n")
    start = folder / "start.sh"
    line = "python3 -m sglang.launch_server --model-path m --tp $TP\n"
    start.write_text(f'source "$(dirname "$0")/lib/env.sh"\n{line}')
    found = import_files([start])
    assert found.deployment.roles["mixed"].flags["tp"] == 16
    place = found.sources.find("mixed", "HCCL_BUFFSIZE")
    assert (Path(place.file).name, place.line) == ("env.sh", 3)
    (folder / "serve.sh").write_text("python -m sglang.launch_server --model-path m --tp $1\n")
    start.write_text("export HCCL_BUFFSIZE=200\n./serve.sh 4\n")
    found = import_files([start])
    assert found.deployment.roles["mixed"].flags["tp"] == 4
    place = found.sources.find("mixed", "--tp")
    assert (Path(place.file).name, place.line) == ("serve.sh", 1)
    start.write_text(f"bash decode.sh\n{line}")
    (remark, *_) = import_files([start]).remarks
    assert (remark.rule, remark.line) == ("not-understood", 1) and "decode.sh" in remark.text
    for outside in ("../secret.sh", str(tmp_path / "secret.sh"), "link.sh", "pipe.sh", "none.sh"):
        start.write_text(f"source {outside}\n{line}")
        found = import_files([start])
        assert found.deployment.roles["mixed"].flags["tp"] == "<$TP>", outside


def test_what_is_not_understood_is_never_rendered() -> None:
    script = f"""pip install sglang
rm -rf /tmp/cache
sysctl -w vm.swappiness=0
echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor
parallel -j 2 -- python -m sglang.launch_server --port {{}}
{SERVER}
"""
    made = import_scripts([("a.sh", script)])
    assert made.deployment.prepare == [
        "sysctl -w vm.swappiness=0",
        "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    ]
    told = {(each.rule, each.line) for each in made.remarks}
    assert told == {("left-out", 1), ("left-out", 2), ("not-understood", 5)}
    rendered = "\n".join(render_shell(made.deployment).values())
    assert "rm -rf" not in rendered and "parallel" not in rendered


def test_a_condition_that_decides_what_runs_is_told() -> None:
    script = f'[[ $(nproc) -gt 4 ]] && ARGS="--dp 2"\n{SERVER} $ARGS'
    (remark,) = import_scripts([("a.sh", script)]).remarks
    assert (remark.rule, remark.line) == ("not-understood", 2) and "nproc" in remark.text


def test_a_lost_backslash_is_found_where_it_is_missing() -> None:
    script = f"{SERVER} \\\n  --port 8000\n  --host 10.0.0.1 \\\n  --trust-remote-code\n"
    (finding,) = found({"script": script}, "broken-line")
    assert (finding.file, finding.line, finding.flag) == ("made.sh", 3, "--host")


def test_a_misspelled_variable_is_found() -> None:
    script = (
        "MODEL_PATH=/m\nexport A=1\npython -m sglang.launch_server \\\n --model-path $MODEL_PTH"
    )
    (finding,) = found({"script": script}, "undefined-variable")
    assert (finding.line, finding.flag) == (4, "--model-path") and "MODEL_PATH" in finding.text
    outside = "python -m sglang.launch_server --model-path $MODEL_PATH --node-rank $SLURM_NODEID"
    assert found({"script": outside}, "undefined-variable") == []


@pytest.mark.parametrize(
    "script",
    [
        "x=aa\nfor i in {1..90}; do x=$x$x; done",
        "x=(a b)\nfor i in {1..90}; do x=(${x[@]} ${x[@]}); done",
        "for i in {1..4000}; do for j in {1..4000}; do a & done; done",
        "for ((i = 0; i >= 0; i++)); do a; done",
        "i=0; while [ $i -ge 0 ]; do i=$((i + 1)); done",
        'e=\'eval "$e"\'; eval "$e"',
        "f() { bash -c 'f'; f; }; f",
        "sudo " * 5000 + "a",
        "cat > a.sh <<'EOF'\nbash a.sh\nEOF\nbash a.sh",
        "a " + "$(" * 3000 + ")" * 3000,
        "a {1..999999999}",
    ],
)
def test_scripts_that_explode_end_soon(script: str) -> None:
    try:
        assert len(read_script(script).launches) <= 1024
    except ScriptError as error:
        assert str(error)


RANKED = f"{SERVER} --nnodes 2 --node-rank $i --dist-init-addr n1:5000"
ROUND = f'  ssh -n $host "{RANKED}" &\n  i=$((i + 1))\ndone'


@pytest.mark.parametrize(
    "script",
    [
        f"i=0\nfor host in $(cat hosts); do\n{ROUND}\n",
        f"i=0\nLIST=$(cat ./hosts)\nfor host in $LIST; do\n{ROUND}\n",
        f"i=0\nwhile read -r host; do\n{ROUND} < hosts\n",
        f"i=0\nwhile IFS= read -r host; do\n{ROUND} <<EOF\nn1\nn2\nEOF\n",
        f"i=0\nwhile read host rest; do\n{ROUND} <<'EOF'\nn1 first node\nn2\nEOF\n",
        f"cat > list <<EOF\nn1\nn2\nEOF\ni=0\nwhile read host; do\n{ROUND} < list\n",
        f"i=0\ncat hosts | while read host; do\n{ROUND}\n",
    ],
)
def test_lists_of_hosts_are_read_where_they_are_known(tmp_path: Path, script: str) -> None:
    (tmp_path / "hosts").write_text("n1\nn2\n")
    (tmp_path / "start.sh").write_text(script)
    loaded = import_files([tmp_path / "start.sh"])
    assert [(each.host, each.flags["node-rank"]) for each in loaded.started] == [
        ("n1", 0), ("n2", 1)
    ]  # fmt: skip


@pytest.mark.parametrize("source", ["< elsewhere", "< /etc/hosts", "< <(scontrol show hostnames)"])
def test_lists_of_hosts_that_are_not_known_are_named(source: str) -> None:
    for body in (ROUND, ROUND.replace("  i=$((i + 1))\n", "")):
        loaded = import_scripts([("a.sh", f"i=0\nwhile read host; do\n{body} {source}\n")])
        assert [each.line for each in loaded.remarks if each.rule == "not-understood"] == [2]
