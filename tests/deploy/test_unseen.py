"""Launches of kinds nobody had looked at: engines that are not read, loops and arguments that only
the machine knows, functions that start several kinds of servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.commands.check import main
from vivace.deploy.from_script.roles import LoadedDeployment
from vivace.deploy.from_script.script import NothingStarted, import_scripts
from vivace.deploy.load_case import Overrides, build_case
from vivace.deploy.rules.judge import Finding, judge
from vivace.deploy.shell.reader import ScriptError

SERVER = "python -m sglang.launch_server --model-path m"


def read(script: str, name: str = "start.sh") -> LoadedDeployment:
    return import_scripts([(name, script)])


def errors(script: str) -> list[Finding]:
    result = judge(build_case(read(script), Overrides()))
    return [each for each in result.findings if each.severity == "error"]


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("text-generation-launcher --model-id m --port 8080", "text-generation-inference"),
        ("./build/bin/llama-server -m m.gguf -c 8192", "llama.cpp"),
        ("OLLAMA_HOST=0.0.0.0 ollama serve &", "Ollama"),
        ("trtllm-serve m --tp_size 4", "TensorRT-LLM"),
        ("lmdeploy serve api_server m --tp 2", "LMDeploy"),
        ("python3 -m lightllm.server.api_server --tp 8", "LightLLM"),
        ("python3 -m dynamo.trtllm --model-path m", "Dynamo"),
        ("python -m sgl_jax.launch_server --model-path m --tp-size 4", "SGL-JAX"),
        ("python -m nobody_knows.entrypoints.api_server --model m", "nobody_knows"),
    ],
)
def test_other_engines_are_named_in_one_line(command: str, engine: str) -> None:
    with pytest.raises(NothingStarted) as caught:
        read(f"set -e\nmkdir -p logs\n{command}\n")
    assert str(caught.value) == (
        f"start.sh:3: a server of {engine}: only those of SGLang, Vivace and vLLM are read"
    )


def test_why_nothing_is_started_is_told_line_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "start.sh"
    script.write_text("make it\nbash /opt/elsewhere.sh\n")
    assert main([str(script)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    other = f"{script}:2: not understood: /opt/elsewhere.sh"
    assert other in line and line.endswith(f"; {script}:1: not a part of the deployment: make it")
    assert main(["--each", str(script)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(other) and "make it" not in line


def test_a_function_may_start_several_kinds_of_servers() -> None:
    found = read(
        f"""start() {{
  {SERVER} --disaggregation-mode $1 --port $2 &
}}
start prefill 30000
start decode 30001
"""
    )
    assert list(found.deployment.roles) == ["prefill", "decode"]


@pytest.mark.parametrize(
    "script",
    [
        f"for ((g = 0; g < COUNT; g++)); do\n  {SERVER} --port $((30000 + g)) &\ndone\n",
        f"for ((i = 0; i < $(nvidia-smi -L | wc -l); i++)); do\n  {SERVER} &\ndone\n",
    ],
)
def test_a_loop_without_a_known_end_is_gone_through_once_and_told(script: str) -> None:
    found = read(script)
    assert len(found.started) == 1
    assert [each.rule for each in found.remarks] == ["not-understood"]


@pytest.mark.parametrize(
    "usage",
    [
        "if [ $# -ne 2 ]; then\n  echo usage\n  exit 1\nfi\n",
        "if (( $# < 1 )); then\n  exit 1\nfi\n",
        "[[ $# -ge 1 ]] || exit 1\n",
    ],
)
def test_a_script_that_wants_arguments_is_read_as_if_it_had_them(usage: str) -> None:
    assert len(read(usage + SERVER + " --tp $2\n").started) == 1


def test_the_arguments_of_a_function_are_counted() -> None:
    found = read(f"go() {{\n  if [ $# -eq 2 ]; then\n    {SERVER}\n  fi\n}}\ngo a b\n")
    assert len(found.started) == 1
    with pytest.raises(NothingStarted):
        read(f"go() {{\n  if [ $# -eq 2 ]; then\n    {SERVER}\n  fi\n}}\ngo a\n")


@pytest.mark.parametrize(
    "wrapper",
    [
        "/opt/tools/with-new-libstdc.sh",
        "ray job submit --address http://10.0.0.1:8265 --no-wait --",
        "systemd-run --unit llm --property=MemoryMax=1T",
        "docker run --rm --entrypoint python3 lmsysorg/sglang:latest",
    ],
)
def test_what_an_unknown_program_is_given_to_run_is_read(wrapper: str) -> None:
    given = SERVER.removeprefix("python ") if "--entrypoint" in wrapper else SERVER
    (server,) = read(f"NCCL_DEBUG=WARN {wrapper} {given} --tp 8 &\n").started
    assert server.flags == {"model-path": "m", "tp": 8}


@pytest.mark.parametrize(
    "line", [f"echo {SERVER}", f"pkill -f '{SERVER}'", f"grep -r {SERVER} .", "docker build -t x ."]
)
def test_what_only_names_a_server_starts_none(line: str) -> None:
    with pytest.raises(NothingStarted):
        read(line + "\n")


@pytest.mark.parametrize(
    ("image", "program"),
    [("vllm/vllm-openai:v0.11.0", "vllm"), ("reg.io:5000/x/vllm-openai@sha256:1", "vllm")],
)
def test_an_image_has_a_program_of_its_own(image: str, program: str) -> None:
    flags = "--model m --tensor-parallel-size 2"
    compose = f"services:\n  a:\n    image: {image}\n    command: {flags}\n"
    pod = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n"
        f"    - image: {image}\n      args: [{', '.join(flags.split())}]\n"
    )
    for found in (
        read(f"docker run --gpus all -p 8000:8000 {image} {flags}\n"),
        read(compose, "compose.yaml"),
        read(pod, "pod.yaml"),
    ):
        (server,) = found.started
        own = {"port": 8000, "host": "0.0.0.0"}
        assert server.flags == {"model-path": "m", "tp-size": 2, **own}
    with pytest.raises(NothingStarted, match="text-generation-inference"):
        read("docker run ghcr.io/huggingface/text-generation-inference:3 --model-id m\n")


CONTAINERS = f"containers: [{{command: [{', '.join(SERVER.split())}, --tp, '2']}}]"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (f"kind: Pod\nspec: {{{CONTAINERS}}}", 1),
        (f"kind: StatefulSet\nspec: {{replicas: 2, template: {{spec: {{{CONTAINERS}}}}}}}", 2),
        (f"kind: InferenceService\nspec: {{predictor: {{{CONTAINERS}}}}}", 1),
        (
            "kind: RoleBasedGroup\nspec: {roles: [{name: a, replicas: 3, "
            f"template: {{spec: {{{CONTAINERS}}}}}}}]}}",
            3,
        ),
        (f"kind: List\nitems: [{{kind: Pod, spec: {{{CONTAINERS}}}}}]", 1),
    ],
)
def test_pods_of_any_kind_are_read(body: str, count: int) -> None:
    assert len(read(f"apiVersion: a/v1\n{body}\n", "k8s.yaml").started) == count


def test_a_template_is_told_from_a_manifest() -> None:
    with pytest.raises(ScriptError, match="helm template"):
        read("{{- if .Values.x }}\napiVersion: v1\nkind: Pod\n{{- end }}\n", "k8s.yaml")


@pytest.mark.parametrize(
    ("resource", "flags", "text"),
    [
        ("nvidia.com/gpu: 1", "--tp, '2'", "2 ranks in a container with a limit of 1"),
        (
            "huawei.com/Ascend910: 8",
            "--tp, 8, --dp, 2",
            "16 ranks in a container with a limit of 8",
        ),
        ("nvidia.com/gpu: 2", "--tp, 2", ""),
        ("nvidia.com/gpu: 1, nvidia.com/gpumem: 30000", "--tp, 2", "2 ranks in a container"),
        ("nvidia.com/mig-1g.10gb: 1", "--tp, 2", ""),
        ("nvidia.com/gpu.shared: 1", "--tp, 2", ""),
        ("huawei.com/Ascend910-2c: 1", "--tp, 2", ""),
    ],
)
def test_a_container_has_the_devices_that_its_ranks_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], resource: str, flags: str, text: str
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n"
        f"    - command: [{', '.join(SERVER.split())}, {flags}]\n"
        f"      resources: {{limits: {{{resource}}}}}\n"
    )
    assert main([str(path)]) == bool(text)
    assert (text or "nothing found") in capsys.readouterr().out


def test_ranks_of_vllm_may_be_in_other_containers(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    command = "[vllm, serve, m, --tensor-parallel-size, 8, --pipeline-parallel-size, 2]"
    limits = "{limits: {nvidia.com/gpu: 8}}"
    container = f"{{command: {command}, resources: {limits}}}"
    path.write_text(f"apiVersion: v1\nkind: Pod\nspec: {{containers: [{container}]}}\n")
    assert main([str(path)]) == 0


@pytest.mark.parametrize(
    "script",
    [
        'eval "sglang serve --model-path "${MODEL:-}" --port 8000"',
        'M=${MODEL:-}\neval "sglang serve --model-path $M ${MORE:-} $(cat more.conf)"',
        f"{SERVER} --tp ${{TP:-}} --dtype ${{DTYPE:-${{TYPE:-}}}}",
        f'A="--tp $TP"\neval "{SERVER} $A $(cat more.conf)"',
        f"{SERVER} --tp 2 $(cat more.conf) `cat others`",
        f'start() {{ {SERVER} --dtype "${{DTYPE:-}}"; }}\nstart 2',
    ],
)
def test_what_is_empty_unless_it_is_exported_is_unknown(script: str) -> None:
    assert errors(script) == []


@pytest.mark.parametrize(
    "script",
    [
        f"unset DTYPE\n{SERVER} --dtype ${{DTYPE:-}}",
        f"DTYPE=\n{SERVER} --dtype ${{DTYPE:-}}",
        f"start() {{ {SERVER} --tp $1 --dtype ${{2:-}}; }}\nstart 2",
    ],
)
def test_what_is_certainly_empty_is_no_value(script: str) -> None:
    assert [(each.rule, each.text) for each in errors(script)] == [
        ("flag-value", "--dtype needs a value")
    ]


def test_conditions_take_what_is_empty_by_default_as_empty() -> None:
    found = read(
        'M=${MODEL:-}\nif [ -z "$M" ]; then M=/own; fi\nX=${M:-/other}\n'
        'if [[ "${TEST:-}" == yes ]]; then exit; fi\ncase "${1:-}" in a) exit;; esac\n'
        "python -m sglang.launch_server --model-path $X\n"
    )
    assert [each.flags["model-path"] for each in found.started] == ["/own"]
    assert found.remarks == ()


TASK = f"""\
resources:
  accelerators: H100:8
  image_id: docker:lmsysorg/sglang:v0.5.10-cu126
num_nodes: 2
envs:
  MODEL: Qwen/Qwen3-8B
  TOKEN:
setup: |
  cd /opt
  pip install sglang
run: |
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  {SERVER.removesuffix("m")}$MODEL --api-key $TOKEN \\
    --nnodes $SKYPILOT_NUM_NODES --node-rank $SKYPILOT_NODE_RANK \\
    --tp 16 --dist-init-addr $HEAD:5000
"""


def test_a_task_of_skypilot_is_read_as_what_its_nodes_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read(TASK, "task.yaml")
    assert [each.flags["node-rank"] for each in found.started] == [0, 1]
    assert [each.flags["model-path"] for each in found.started] == ["Qwen/Qwen3-8B"] * 2
    assert found.deployment.engine == "sglang==0.5.10"
    assert {each.rule for each in found.remarks} <= {"left-out"}
    file = tmp_path / "task.yaml"
    file.write_text(TASK)
    assert main([str(file)]) == 0
    file.write_text(TASK.replace("--tp 16", "--tpp 16"))
    assert main([str(file)]) == 1
    assert f"{file}:15" in capsys.readouterr().out


ROUTED = "python -m sglang_router.launch_server --model-path Qwen/Qwen3-8B --host 0.0.0.0 "


def test_a_router_with_workers_of_its_own_is_read_as_both() -> None:
    found = read(f"{ROUTED} --port 8000 --dp-size 2 --tp 4 --router-policy random\n")
    one, other, router = found.started
    assert (router.kind, router.flags["port"], router.flags["policy"]) == ("router", 8000, "random")
    assert [each.flags["port"] for each in (one, other)] == [31000, 31001]
    assert [each.flags["base-gpu-id"] for each in (one, other)] == [0, 4]
    assert not {"dp-size", "router-policy"} & one.flags.keys()
    assert router.flags["worker-urls"] == ["http://127.0.0.1:31000", "http://127.0.0.1:31001"]
    assert judge(build_case(found, Overrides(hardware="h100"))).errors == 0


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ("--dp-size 4 --tp 4", "devices-there"),  # 16 devices, and a node has 8
        ("--dp-size 2 --tp-sise 4", "unknown-flag"),
        ("--dp $DP --tp 3", "heads"),
        ("--router-policy cache_awere", "router-mode"),
        ("--router-dp-worker-base-port 30000", "ports-apart"),
    ],
)
def test_mistakes_in_both_are_found(flags: str, rule: str) -> None:
    made = build_case(read(f"{ROUTED} --port 30000 {flags}\n"), Overrides(hardware="h100"))
    assert rule in {each.rule for each in judge(made).findings if each.severity == "error"}
