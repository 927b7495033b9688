"""Launches and mistakes of strangers: none of these forms was read, or none of these mistakes was
found, when they were written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.deploy.from_script.script import import_scripts
from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.render.kubernetes import render_kubernetes
from vivace.deploy.rules.judge import Finding, judge

PUBLISHED = Path(__file__).parent / "published"
SERVER = "python3 -m sglang.launch_server --model-path"
ROUTER = "python3 -m sglang_router.launch_router"
BOXES = f"""\
for ((g=0; g<4; g++)); do
  port=$((30000+g))
  CUDA_VISIBLE_DEVICES=$g {SERVER} Qwen/Qwen3-8B --port $port --host 127.0.0.1 &
  WORKERS+=" http://127.0.0.1:$port"
done
{ROUTER} --worker-urls $WORKERS --port 8080
"""
NAMED = f"""\
case "$(hostname)" in
  node-a) RANK=0 ;;
  node-b) RANK=1 ;;
  *) exit 1 ;;
esac
{SERVER} m --tp 16 --dist-init-addr node-a:5000 --nnodes 2 --node-rank $RANK --host 0.0.0.0
"""
PAIR = f"""\
ssh 10.7.1.1 "{SERVER} Qwen/Qwen3-32B --disaggregation-mode prefill --host 10.7.1.1 --port 8000"
ssh 10.7.1.2 "{SERVER} Qwen/Qwen3-32B --disaggregation-mode prefill --host 10.7.1.2 --port 8000 \\
  --disaggregation-bootstrap-port 8999"
ssh 10.7.2.1 "{SERVER} Qwen/Qwen3-32B --disaggregation-mode decode --host 10.7.2.1 --port 8001 \\
  --page-size 64"
ssh 10.7.2.1 "{ROUTER} --pd-disaggregation --port 6688 --decode http://10.7.2.1:8001 \\
  --prefill http://10.7.1.1:8000 8998 \\
  --prefill http://10.7.1.2:8000 8999"
""".replace(" --port 8000", " --page-size 64 --port 8000")
COMPOSE = f"""\
services:
  prefill:
    image: lmsysorg/sglang:v0.5.10
    network_mode: host
    command: {SERVER} m --disaggregation-mode prefill --port 30000
  decode:
    image: lmsysorg/sglang:v0.5.10
    network_mode: host
    command: {SERVER} m --disaggregation-mode decode --port 30001 --base-gpu-id 1
  router:
    image: lmsysorg/sgl-model-gateway:latest
    network_mode: host
    command: --pd-disaggregation --prefill http://127.0.0.1:30000 8998
      --decode http://127.0.0.1:30001 --port 8000
"""
UNIT = f"""\
[Service]
Environment=CUDA_VISIBLE_DEVICES=0,1
ExecStart=/opt/venv/bin/{SERVER} Qwen/Qwen3-32B-AWQ \\
  --tp-size 2 \\
  --port 8000
"""


def findings(text: str, name: str = "a.sh", **facts: object) -> list[Finding]:
    made = build_case(import_scripts([(name, text)]), Overrides(**facts))  # pyright: ignore[reportArgumentType]
    return [each for each in judge(made).findings if each.severity in ("error", "warning")]


@pytest.mark.parametrize(
    ("text", "name"),
    [(BOXES, "a.sh"), (NAMED, "a.sh"), (PAIR, "a.sh"), (COMPOSE, "compose.yaml"),
     (UNIT, "a.service")],
)  # fmt: skip
def test_sound_launches_stay_without_findings(text: str, name: str) -> None:
    assert findings(text, name) == []


@pytest.mark.parametrize(
    ("text", "name", "before", "after", "rule", "line"),
    [
        (BOXES, "a.sh", "127.0.0.1:$port", "127.0.0.1:$((port+1))", "router-ports", 6),
        (NAMED, "a.sh", "RANK=1", "RANK=0", "node-ranks", 6),
        (NAMED, "a.sh", " --node-rank $RANK", "", "node-ranks", 6),
        (NAMED, "a.sh", "0.0.0.0", "0.0.0.0:30000", "limits", 6),
        (NAMED, "a.sh", "0.0.0.0", "http://0.0.0.0", "limits", 6),
        (PAIR, "a.sh", "host 10.7.2.1", "host 10.7.2.1,", "limits", 4),
        (PAIR, "a.sh", "http://10.7.1.2:8000", "http://10.7.1.3:8000", "router-ports", 8),
        (PAIR, "a.sh", "http://10.7.1.2:8000", "http://10.7.1.2:8010", "router-ports", 8),
        (PAIR, "a.sh", "10.7.1.2:8000 8999", "10.7.1.2:8000", "router-entries", 8),
        (PAIR, "a.sh", "Qwen3-32B --disaggregation-mode decode",
         "Qwen3-8B --disaggregation-mode decode", "handshake", 4),
        (PAIR, "a.sh", "--port 8001 \\\n  --page-size 64", "--port 8001 \\\n  --page-size 0",
         "limits", 5),
        (COMPOSE, "compose.yaml", "gateway:latest\n    network_mode: host", "gateway:latest",
         "router-ports", 12),
        (COMPOSE, "compose.yaml", "lmsysorg/sgl-model-gateway", "own/front", "not-understood", 10),
        (UNIT, "a.service", "Environment=", "Enviroment=", "not-understood", 2),
        (UNIT, "a.service", "--tp-size 2 \\", "--tp-size 2", "broken-line", 5),
        (UNIT, "a.service", "Environment=", "Environment ", "not-understood", 2),
    ],
)  # fmt: skip
def test_a_mistake_is_found_at_its_line(
    text: str, name: str, before: str, after: str, rule: str, line: int
) -> None:
    assert before in text
    found = findings(text.replace(before, after), name)
    assert (rule, line) in {(each.rule, each.line) for each in found}
    assert all(each.remedy for each in found)


@pytest.mark.parametrize(
    ("text", "name", "before"),
    [
        (UNIT, "a.service", "-AWQ \\"),
        (UNIT, "a.service", "--tp-size 2 \\"),
        (UNIT.replace("launch_server ", "launch_server \\\n  "), "a.service", "launch_server \\"),
        (f"{SERVER} m \\\n --port 80\n".replace("launch_server ", "launch_server \\\n "), "a.sh",
         "launch_server \\"),
    ],
)  # fmt: skip
def test_what_follows_from_a_lost_backslash_is_not_told_beside_it(
    text: str, name: str, before: str
) -> None:
    assert before in text
    found = findings(text.replace(before, before[:-2]), name)
    assert {each.rule for each in found} == {"broken-line"}


RANKED = (
    "{}python -m sglang.launch_server --model-path m --tp 16 --dist-init-addr a:5000 --nnodes 2 "
    "--node-rank $RANK\n"
)


@pytest.mark.parametrize(
    ("before", "severity"),
    [
        # The name decides only a variable: every other machine comes by, with an argument.
        ('RANK=${1:-0}\nif [ "$(hostname)" = a ]; then export X=1; fi\n', "note"),
        ('if [ "$(hostname)" = a ]; then RANK=0; else RANK=1; fi\n', "note"),
        ('if [ "$(hostname)" = a ]; then RANK=0; else exit 1; fi\n', "warning"),
        ('if [ "$(hostname)" = a ]; then RANK=0; fi\n', "warning"),
    ],
)
def test_a_script_that_runs_on_machines_without_a_name_lacks_no_node(
    before: str, severity: str
) -> None:
    result = judge(build_case(import_scripts([("a.sh", RANKED.format(before))]), Overrides()))
    found = [each.severity for each in result.findings if each.rule == "node-ranks"]
    assert found == [severity]


def test_flags_for_an_image_that_is_not_known_lack_no_backslash() -> None:
    found = findings(COMPOSE.replace("lmsysorg/sgl-model-gateway", "own/front"), "compose.yaml")
    more = "  metrics: {image: prom/prometheus, command: --config.file=/etc/prometheus.yml}\n"
    found += findings(COMPOSE + more, "compose.yaml")
    assert "broken-line" not in {each.rule for each in found}


@pytest.mark.parametrize("host", ["::", "[::]", "fe80::1%eth0", "gpu-1.lan", "<HOST>", "0.0.0.0"])
def test_addresses_and_names_are_hosts(host: str) -> None:
    assert findings(f"{SERVER} m --host '{host}'\n") == []


def test_a_node_has_other_addresses_than_ssh_is_given() -> None:
    """The URLs of the network between the nodes, none of which any file tells."""
    assert findings(PAIR.replace("ssh 10.7.1.", "ssh 192.168.1.")) == []
    told = PAIR.replace("http://10.7.", "http://10.9.").replace("--host 10.7.1.1", "--host 0.0.0.0")
    told = told.replace("--host 10.7.1.2", "--host 0.0.0.0")
    told = told.replace("--host 10.7.2.1", "--host 0.0.0.0")
    assert findings(told) == []


@pytest.mark.parametrize(
    ("model", "severity"),
    [
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", None),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", None),
        ("moonshotai/Kimi-K2-Instruct-0905", None),
        ("Qwen/Qwen3-32B-2612", "warning"),
        ("Qwen/Qwen3-32B", "error"),
    ],
)
def test_a_later_release_may_have_a_longer_context(model: str, severity: str | None) -> None:
    found = findings(f"{SERVER} {model} --tp 8 --context-length 262144\n")
    assert [each.severity for each in found if each.rule == "context-model"] == [severity][
        : severity is not None
    ]


def test_heads_are_padded_on_cpus() -> None:
    line = f"{SERVER} deepseek-ai/DeepSeek-R1 --tp 6"
    assert "heads" not in {each.rule for each in findings(f"{line} --device cpu\n")}
    assert "heads" in {each.rule for each in findings(f"{line} --device cuda\n")}


def test_a_buffer_for_prompts_of_unknown_length_is_a_warning(tmp_path: Path) -> None:
    """A published prefill server, whose prompts do not fill a step."""
    name = "r1-a3-32c-pd-6k-1.6k-20ms.yaml"
    text = (PUBLISHED / name).read_text()
    head, _, rest = text.partition("\nworkload:")
    (tmp_path / name).write_text(head + "\n")
    for each in PUBLISHED.glob("*.yaml"):
        if each.name != name:
            (tmp_path / each.name).write_text(each.read_text())
    assert rest and "benchmarks:" in head
    made = open_files([tmp_path / name])
    made.deployment.benchmarks, made.deployment.workload = [], None
    found = [each for each in judge(build_case(made, Overrides())).findings
             if each.rule == "hccl-buffer"]  # fmt: skip
    assert {each.severity for each in found} == {"warning"}
    assert all("--input" in each.remedy for each in found)


def test_read_takes_a_here_document_up_to_its_delimiter() -> None:
    script = f"read -r -d '' ARGS <<'A' || true\n--tp-size 8\n--port 9\nA\n{SERVER} m $ARGS\n"
    flags = import_scripts([("a.sh", script)]).deployment.roles["mixed"].flags
    assert flags == {"model-path": "m", "tp-size": 8, "port": 9}


def test_pods_number_their_own_devices_and_reach_one_another() -> None:
    """Servers of one box: in a pod neither its device 3 nor its loopback addresses are there."""
    launch = BOXES.replace("--host 127.0.0.1", "--base-gpu-id 0")
    files = render_kubernetes(build_case(import_scripts([("a.sh", launch)]), Overrides()))
    text = "".join(files.values())
    assert "VISIBLE_DEVICES" not in text and "--base-gpu-id" not in text
    assert "127.0.0.1:3000" not in text
    assert all(f"http://mixed-{rank}:{30000 + rank}" in text for rank in range(4))
