"""Hosts, ranks, ports and devices are compared before processes become roles."""

from __future__ import annotations

import pytest
from deployments import case, found

from vivace.deploy.rules.judge import Finding, judge

EVERY_NODE = """\
D_IP=('10.0.1.1' '10.0.1.2')
MODEL_PATH=/models/deepseek-r1
LOCAL=$(hostname -I | awk '{print $1}')
for i in "${!D_IP[@]}"; do
    if [[ "$LOCAL" == "${D_IP[$i]}" ]]; then
        export HCCL_BUFFSIZE=650
        python -m sglang.launch_server --model-path ${MODEL_PATH} --device npu \\
            --attention-backend ascend --tp-size 32 --dp-size 32 --enable-dp-attention \\
            --host ${D_IP[$i]} --port 8001 \\
            --nnodes 2 --node-rank $i \\
            --dist-init-addr ${D_IP[0]}:5000
    fi
done
"""
ONE_NODE = """\
export HCCL_SOCKET_IFNAME=lo
python -m sglang.launch_server --model-path /m --tp 4 \\
    --mem-fraction-static 0.8 \\
    --host 127.0.0.1 --port 8000 \\
    --nccl-port 9000 &
python -m sglang.launch_server --model-path /m --tp 4 \\
    --mem-fraction-static 0.8 \\
    --host 127.0.0.1 --port 8001 \\
    --base-gpu-id 4 &
"""


def errors(script: str) -> list[Finding]:
    return [each for each in judge(case({"script": script})).findings if each.severity == "error"]


TWO_INSTANCES = "".join(
    f"ssh h{node} 'python -m sglang.launch_server --model-path m --tp 16 --nnodes 2 "
    f"--node-rank {node % 2} --dist-init-addr h{node // 2 * 2}:5000'\n"
    for node in range(4)
)


@pytest.mark.parametrize("script", [EVERY_NODE, ONE_NODE, TWO_INSTANCES])
def test_sound_scripts_have_no_errors(script: str) -> None:
    assert errors(script) == []


@pytest.mark.parametrize(
    ("script", "before", "after", "rule", "line", "words"),
    [
        (EVERY_NODE, "--nnodes 2", "--nnodes 4", "node-ranks", 10, "rank 2, 3"),
        (EVERY_NODE, "'10.0.1.2')", "'10.0.1.2' '10.0.1.3')", "node-ranks", 10, "--node-rank 2"),
        (EVERY_NODE, "--node-rank $i", "--node-rank 0", "node-ranks", 10, "10.0.1.2"),
        (EVERY_NODE, "'10.0.1.2'", "'10.0.1.1'", "hosts-apart", 7, "10.0.1.1"),
        (EVERY_NODE, "${D_IP[0]}:5000", "${D_IP[1]}:5000", "nodes-agree", 11, "not rank 0"),
        (EVERY_NODE, "${D_IP[0]}:5000", "${D_IP[$i]}:5000", "nodes-agree", 11, "10.0.1.2:5000"),
        (EVERY_NODE, "${D_IP[0]}:5000", "${D_IP[0]}:8001", "ports-apart", 11, "8001"),
        (EVERY_NODE, "${D_IP[0]}:5000", "${D_IP[0]}:7998", "ports-apart", 11, "8001"),
        (EVERY_NODE, "${MODEL_PATH}", "${MODEL_PTH}", "undefined-variable", 7, "MODEL_PATH"),
        (EVERY_NODE, "--dp-size 32 --enable-dp-attention \\", "--dp-size 32 --enable-dp-attention",
         "broken-line", 9, "--host"),
        (TWO_INSTANCES, " --dist-init-addr h2:5000", "", "meeting-point", 1, "--dist-init-addr"),
        (ONE_NODE, "--port 8001", "--port 8000", "ports-apart", 8, "8000"),
        (ONE_NODE, "--port 8001", "--port 9000", "ports-apart", 8, "9000"),
        (ONE_NODE, "--nccl-port 9000", "--nccl-port 8000", "ports-apart", 5, "its own"),
        (ONE_NODE, "export HCCL_SOCKET_IFNAME=lo", "export HCCL_IF_BASE_PORT=7990", "ports-apart",
         1, "8000"),
        (ONE_NODE, "--base-gpu-id 4", "--base-gpu-id 2", "devices-apart", 9, "2, 3"),
        (ONE_NODE, "    --base-gpu-id 4", "    --dtype auto", "devices-apart", 6, "0, 1, 2, 3"),
        (ONE_NODE, "export HCCL_SOCKET_IFNAME=lo", "export CUDA_VISIBLE_DEVICES=0,1,2",
         "devices-there", 1, "4 ranks"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_at_its_line(
    script: str, before: str, after: str, rule: str, line: int, words: str
) -> None:
    assert before in script
    findings = [each for each in errors(script.replace(before, after)) if each.rule == rule]
    assert any(
        each.file == "made.sh" and each.line == line and words in each.text for each in findings
    ), findings


def test_scripts_of_single_nodes_are_one_instance() -> None:
    """Two ranks in one script, as documentation has them, and one of two on its own."""
    node = (
        "python -m sglang.launch_server --model-path m --tp 16 --dist-init-addr 10.0.0.1:5000 "
        "--nnodes 2 --node-rank {}\n"
    )
    both = case({"script": node.format(0) + node.format(1)})
    assert [(name, role.nodes) for name, role in both.deployment.roles.items()] == [("mixed", 2)]
    assert errors(node.format(0) + node.format(1)) == [] == errors(node.format(1))
    (alone,) = found({"script": node.format(1)}, "node-ranks")
    assert alone.severity == "note" and "rank 0" in alone.text
    (twice,) = found({"script": node.format(0) * 2}, "node-ranks")
    assert (twice.severity, twice.line) == ("error", 2)


def test_srun_starts_as_many_as_there_are_nodes() -> None:
    script = (
        "srun -N {} python -m sglang.launch_server --model-path m --tp 16 --nnodes 2 "
        "--dist-init-addr $HEAD:5000 --node-rank $SLURM_NODEID"
    )
    assert found({"script": script.format(2)}, "node-ranks") == []
    (finding,) = found({"script": script.format(4)}, "node-ranks")
    assert finding.severity == "error" and "4 processes" in finding.text


def test_servers_that_never_run_together_share_ports_and_devices() -> None:
    server = "python -m sglang.launch_server --model-path m --tp 8 --port 8000"
    for script in (
        f"if [ $ROLE = a ]; then {server}; else {server} --dtype half; fi",
        f"case $1 in a) {server};; *) {server} --dtype half;; esac",
        f"ssh a '{server}' &\nssh b '{server} --dtype half' &",
        f"docker run -d i {server}\ndocker run -d i {server} --dtype half --base-gpu-id 8",
    ):
        assert errors(script) == [], script


def test_ssh_may_start_several_servers_on_a_host() -> None:
    server = "python -m sglang.launch_server --model-path m --tp 4 --dtype {} --port {} {}"
    script = "".join(
        f"ssh a '{server.format(*each)}' &\n"
        for each in (("half", 8000, ""), ("auto", 8001, "--base-gpu-id 4"))
    )
    assert errors(script) == []
    loop = server.format("half", "800$i", "--base-gpu-id $((4 * i))")
    assert errors(f'for i in 0 1; do ssh a "{loop}" & done') == []
    clash = errors(script.replace("8001", "8000"))
    assert [(each.rule, each.line) for each in clash] == [("ports-apart", 2)]


def test_small_servers_may_share_a_device() -> None:
    server = "python -m sglang.launch_server --model-path m --mem-fraction-static {} --port {} &\n"
    assert errors(server.format(0.4, 8000) + server.format(0.5, 8001)) == []
    (finding,) = errors(server.format(0.7, 8000) + server.format(0.5, 8001))
    assert finding.rule == "devices-apart"
