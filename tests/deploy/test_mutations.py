"""Sixty mistakes as people make them, each in one of twelve sound deployments: a rule finds it, at
its line, and says what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.rules.judge import Finding, judge

FOLDER = Path(__file__).parent / "mutated"
WORTH_A_LINE = ("error", "warning")


class Deployed(msgspec.Struct):
    """The files of one deployment, and what they do not say."""

    files: tuple[str, ...]
    facts: Overrides = Overrides()


class Mistake(msgspec.Struct):
    """`before` becomes `after`; `rule` finds it in the line of `at` (where it is not the changed
    one), and its remedy has `mend`."""

    deployed: str
    before: str
    after: str
    rule: str
    mend: str
    at: str = ""


DEPLOYED = {
    "chat": Deployed(("chat.yaml",)),
    "halves": Deployed(("halves.yaml",)),
    "every_node": Deployed(
        ("every_node.sh",),
        Overrides(hardware="a3", cards=16, model="qwen3-480b", quantization="w8a8"),
    ),
    "two_servers": Deployed(("two_servers.sh",), Overrides(hardware="a3", cards=4)),
    "h100": Deployed(("h100.sh",), Overrides(hardware="h100", cards=8, target="sglang==0.5.10")),
    "compose": Deployed(("compose.yaml",), Overrides(hardware="h100", cards=8)),
    "group": Deployed(("group.yaml",), Overrides(hardware="h200", cards=16)),
    "nodes": Deployed(("first_node.sh", "second_node.sh"), Overrides(hardware="h200", cards=16)),
    "laptop": Deployed(("laptop.sh",)),
    "split_box": Deployed(("split_box.sh",), Overrides(hardware="h100", cards=8)),
    "experts": Deployed(("experts.sh",), Overrides(hardware="a3", cards=8)),
    "documents": Deployed(("documents.yaml",)),
}
M = Mistake
MISTAKES = (
    # precision, drafts, lengths and units
    M("chat", "quantization: modelslim", "quantization: fp8", "quantisation", "modelslim"),
    M("chat", "mem-fraction-static: 0.8", "mem-fraction-static: 80", "limits", "0.8"),
    M("chat", "      speculative-draft-model-path: /srv/chat-eagle3\n", "", "draft-complete",
      "draft model's path", at="speculative-algorithm: EAGLE3"),
    M("chat", "speculative-num-draft-tokens: 4", "speculative-num-draft-tokens: 3",
      "draft-tokens", "write 4"),
    M("chat", "context-length: 16384", "context-length: 3072", "context", "4000"),
    # two halves that disagree
    M("halves", "['http://10.4.0.2:8000', 8999]", "['http://10.4.0.2:8000', 8998]",
      "router-entries", "same ports"),
    M("halves", "RANK: '24'", "RANK: '16'", "dispatch-tokens", "=24"),
    M("halves", "HCCL_BUFFSIZE: '640'", "HCCL_BUFFSIZE: '64'", "hccl-buffer", "HCCL_BUFFSIZE="),
    M("halves", "GLOO_SOCKET_IFNAME: enp23s0", "GLOO_SOCKET_IFNAME: lo", "loopback-nodes",
      "interface"),
    M("halves", "hosts: [10.4.1.1, 10.4.1.2]", "hosts: [10.4.1.1, 10.4.0.2]", "hosts-apart",
      "other nodes"),
    # nodes of one script
    M("every_node", "(172.30.5.11 172.30.5.12)", "(172.30.5.11 172.30.5.11)", "hosts-apart",
      "once", at="python3 -m"),
    M("every_node", "--node-rank $rank", "--node-rank $((rank + 1))", "node-ranks", "--nnodes"),
    M("every_node", "--dist-init-addr ${NODES[0]}:5100", "--dist-init-addr $MY_IP:5100",
      "nodes-agree", "the same"),
    M("every_node", "--nnodes ${#NODES[@]} \\", "--nnodes ${#NODES[@]}", "broken-line",
      "backslash", at="--node-rank $rank"),
    M("every_node", "HCCL_BUFFSIZE", "HCCL_BUFFERSIZE", "unknown-variable", "correct"),
    # two servers on a node
    M("two_servers", "--port 7202 \\", "--port 7201 \\", "ports-apart", "another port"),
    M("two_servers", "--base-gpu-id 4", "--base-gpu-id 2", "devices-apart", "--base-gpu-id"),
    M("two_servers", "--base-gpu-id 4", "--base-gpu-id 14", "devices-there", "--base-gpu-id 12"),
    M("two_servers", "7201 http://127.0.0.1:7202", "7201 http://127.0.0.1:7203", "router-ports",
      "port"),
    M("two_servers", "server $COMMON \\\n    --host 127.0.0.1 --port 7202",
      "server $COMON \\\n    --host 127.0.0.1 --port 7202", "undefined-variable", "correct",
      at="$COMON"),
    # words, and what cannot be divided
    M("h100", "--tp-size 8", "--tp-size 6", "heads", "divides 64"),
    M("h100", "--ep-size 8", "--ep-size 3", "experts", "divides 128"),
    M("h100", "--attention-backend fa3", "--attention-backend ascend", "backend-platform", "fa3"),
    M("h100", "fp8_e4m3", "fp8_e4m4", "flag-value", "value"),
    M("h100", "--max-running-requests", "--max-runing-requests", "unknown-flag", "correct"),
    # containers
    M("compose", "--disaggregation-bootstrap-port 8998", "--disaggregation-bootstrap-port 7301",
      "ports-apart", "another port"),
    M("compose", "--disaggregation-transfer-backend mooncake\n      --page-size 64\n      --max",
      "--disaggregation-transfer-backend nixl\n      --page-size 64\n      --max",
      "handshake", "same", at="--disaggregation-transfer-backend nixl"),
    M("compose", "--page-size 64\n      --max", "--page-size 32\n      --max",
      "handshake", "same", at="--page-size 32"),
    M("compose", "['4', '5', '6', '7']", "['3', '4', '5', '6']", "devices-apart", "devices",
      at="['3', '4', '5', '6']"),
    M("compose", "--disaggregation-mode decode", "--disaggregation-mode prefill",
      "router-ports", "--disaggregation-mode decode"),
    # a group of pods
    M("group", "size: 2", "size: 3", "node-ranks", "--nnodes 3", at="--node-rank"),
    M("group", "--nnodes=2", "--nnodes=4", "node-ranks", "--nnodes 2"),
    M("group", "$(LWS_WORKER_INDEX)", "0", "node-ranks", "number the nodes"),
    M("group", "--tp-size=16", "--tp-size=12", "heads", "divides 128"),
    M("group", "NCCL_SOCKET_IFNAME\n                value: bond0",
      "NCCL_SOCKET_IFNAME\n                value: lo", "loopback-nodes", "interface",
      at="NCCL_SOCKET_IFNAME"),
    # a script for each node
    M("nodes", "--node-rank 1", "--node-rank 0", "node-ranks", "number the nodes"),
    M("nodes", "--nnodes 2 --node-rank 1 \\\n    --dist-init-addr 10.60.2.1",
      "--nnodes 2 --node-rank 1 \\\n    --dist-init-addr 10.60.2.2", "nodes-agree", "same",
      at="--dist-init-addr 10.60.2.2"),
    M("nodes", "10.60.2.2 --port 30000 \\\n    --tp-size 16",
      "10.60.2.2 --port 30000 \\\n    --tp-size 8", "nodes-agree", "same", at="--tp-size 8"),
    M("nodes", "--node-rank 1", "--node-rank 2", "node-ranks", "--nnodes 3"),
    M("nodes", "--node-rank 1 \\\n    --dist-init-addr 10.60.2.1:20000 \\\n    --page-size 64",
      "--node-rank 1 \\\n    --dist-init-addr 10.60.2.1:20000 \\\n    --page-size 32",
      "nodes-agree", "same", at="--page-size 32"),
    # Vivace's own server
    M("laptop", "--port 8080", "--prot 8080", "unknown-flag", "correct"),
    M("laptop", "--dtype float32", "--dtype fp32", "flag-value", "value"),
    M("laptop", "--mem-fraction-static 0.5", "--mem-fraction-static 5", "flag-value", "value"),
    M("laptop", "VIVACE_API_KEY", "VIVACE_APIKEY", "unknown-variable", "correct"),
    M("laptop", "--max-running-requests 8", "--max-running-requests eight", "flag-value",
      "value"),
    # prefill and decode on one box
    M("split_box", "CUDA_VISIBLE_DEVICES=4,5,6,7", "CUDA_VISIBLE_DEVICES=4,5,6",
      "devices-there", "a device for each rank"),
    M("split_box", "CUDA_VISIBLE_DEVICES=4,5,6,7 \\\n", "", "devices-apart", "visible devices"),
    M("split_box", "http://127.0.0.1:7401 9100", "http://127.0.0.1:7401 9010", "router-entries",
      "same ports"),
    M("split_box", "bench_serving --backend sglang --port 7400",
      "bench_serving --backend sglang --port 7404", "benchmark-port", "7400"),
    M("split_box", "--num-prompts 320", "--num-prompts 32", "single-wave", "128"),
    # expert parallelism
    M("experts", "--max-running-requests 256", "--max-running-requests 250", "running-divides",
      "240"),
    M("experts", "--dp-size 16", "--dp-size 12", "dp-divides-tp", "divides tp"),
    M("experts", "    --enable-dp-attention \\\n", "", "node-capacity", "--enable-dp-attention",
      at="python -m"),
    M("experts", "deepep --deepep-mode", "deep_ep --deepep-mode", "flag-value", "value"),
    M("experts", "RANK=16", "RANK=8", "dispatch-tokens", "=16"),
    # goals, units and releases
    M("documents", "tpot_ms: 25", "tpot_ms: 0.025", "target-token", "larger target"),
    M("documents", "context-length: 65536", "context-length: 655360", "context-model",
      "163840"),
    M("documents", "mem-fraction-static: 0.85", "mem-fraction-static: 0.6", "weights-fit",
      "--mem-fraction-static"),
    M("documents", "cards: 8", "cards: 16", "cards", "number of cards"),
    M("documents", "speculative-eagle-topk: 1", "speculative-eagle-topk: 4", "spec-v2",
      "--speculative-eagle-topk 1"),
)  # fmt: skip


def findings(folder: Path, deployed: Deployed) -> tuple[Finding, ...]:
    files = [str(folder / name) for name in deployed.files]
    return judge(build_case(open_files(files), deployed.facts)).findings


def changed_file(folder: Path, mistake: Mistake) -> Path:
    """Of the deployment's copy in `folder`: the one file in which the mistake can be made, once."""
    deployed = DEPLOYED[mistake.deployed]
    for name in deployed.files:
        shutil.copy(FOLDER / name, folder / name)
    holders = [
        folder / name for name in deployed.files if mistake.before in (FOLDER / name).read_text()
    ]
    (path,) = holders
    text = path.read_text()
    assert text.count(mistake.before) == 1
    path.write_text(text.replace(mistake.before, mistake.after))
    return path


def find_line(path: Path, mistake: Mistake) -> int:
    """Of the mistake, from 1: of `at`, or where the text begins to differ."""
    sound, text = (
        (folder / path.name).read_text().splitlines() for folder in (FOLDER, path.parent)
    )
    pairs = enumerate(zip(sound, text, strict=False), 1)
    if not mistake.at:
        return next(at for at, (before, after) in pairs if before != after)
    (line,) = [at for at, line in enumerate(text, 1) if mistake.at in line]
    return line


def catches(found: Finding, mistake: Mistake, path: Path) -> bool:
    return (
        found.rule == mistake.rule
        and found.severity in WORTH_A_LINE
        and found.file == str(path)
        and found.line == find_line(path, mistake)
        and mistake.mend in found.remedy
    )


@pytest.mark.parametrize("name", DEPLOYED)
def test_the_deployments_are_sound(name: str) -> None:
    found = findings(FOLDER, DEPLOYED[name])
    assert [each for each in found if each.severity in WORTH_A_LINE] == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.deployed}-{each.rule}")
def test_a_mistake_is_caught(mistake: Mistake, tmp_path: Path) -> None:
    path = changed_file(tmp_path, mistake)
    found = findings(tmp_path, DEPLOYED[mistake.deployed])
    assert any(catches(each, mistake, path) for each in found), [
        each for each in found if each.severity in WORTH_A_LINE
    ]


def test_there_are_sixty_in_twelve_deployments() -> None:
    assert len(MISTAKES) == 60 and {each.deployed for each in MISTAKES} == set(DEPLOYED)
