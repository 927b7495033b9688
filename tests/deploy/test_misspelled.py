"""Names that are nearly right: variables of every library, of the cluster, of releases, devices."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from deployments import found, mixed, separated

from vivace.commands.check import main
from vivace.commands.deploy import TARGETS
from vivace.commands.deploy import main as deploy
from vivace.config.releases.tables import library_variables, variable_rows
from vivace.deploy.catalogue.flags import tables
from vivace.deploy.load_case import Overrides, build_case, open_files
from vivace.deploy.rules.judge import Finding, judge

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "mutated"
KNOWN = {*library_variables(), *variable_rows(), *tables().variables}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("PYTORCH_NPU_ALOC_CONF", "PYTORCH_NPU_ALLOC_CONF"),
        ("PYTHORCH_NPU_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"),  # as in a public script
        ("HCCL_SOCKET_TFNAME", "HCCL_SOCKET_IFNAME"),  # as in a public script
        ("HCCL_SOCKET_IFNAMES", "HCCL_SOCKET_IFNAME"),
        ("HCCL_BUFFERSIZE", "HCCL_BUFFSIZE"),
        ("HCCL_BUFF_SIZE", "HCCL_BUFFSIZE"),
        ("ASCEND_RT_VISABLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"),
        ("TASK_QUEUE_ENABLED", "TASK_QUEUE_ENABLE"),
        ("DEEPEP_NORMAL_LONG_SEQ_ROUNDS", "DEEPEP_NORMAL_LONG_SEQ_ROUND"),
        ("NCCL_IB_GID_IDX", "NCCL_IB_GID_INDEX"),
        ("NCCL_SOKCET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NVSHMEM_SYMETRIC_SIZE", "NVSHMEM_SYMMETRIC_SIZE"),
        ("MC_GID_INDX", "MC_GID_INDEX"),
        ("MOONCAKE_PROTOCL", "MOONCAKE_PROTOCOL"),
        ("CUDA_VISABLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ("PYTORCH_CUDA_ALOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        ("GLOO_SOCKET_IFNAM", "GLOO_SOCKET_IFNAME"),
        ("SGLANG_ENABLE_SPECV2", "SGLANG_ENABLE_SPEC_V2"),
    ],
)
def test_a_misspelled_variable_is_found(wrong: str, right: str) -> None:
    (finding,) = found(mixed(environment={wrong: "1"}), "unknown-variable")
    assert finding.flag == wrong and right in finding.text


def test_a_letter_that_is_missing_is_found_in_any_variable() -> None:
    names = sorted(name for name in library_variables() if len(name) > 11)[::25]
    wrong = {name[:6] + name[7:]: name for name in names}
    missing = {each: name for each, name in wrong.items() if each not in KNOWN}
    findings = found(mixed(environment=dict.fromkeys(missing, "1")), "unknown-variable")
    assert {each.flag for each in findings} == set(missing)
    assert all(missing[each.flag] in each.text for each in findings)


def test_known_variables_are_known() -> None:
    read = {name: "1" for name in KNOWN if not name.startswith(("SGLANG_", "SGL_"))}
    assert found(mixed(environment=read), "unknown-variable") == []


@pytest.mark.parametrize("name", ["HOST_IP_2", "MODEL_DIR", "MY_PORT", "NODE_RANK0", "PYTHONPATH"])
def test_other_variables_are_left_alone(name: str) -> None:
    assert found(mixed(environment={name: "1"}), "unknown-variable") == []


def test_a_variable_that_the_script_itself_uses_is_its_own() -> None:
    script = "export MASTER_ADDRS=10.0.0.1\npython -m sglang.launch_server --model-path m"
    assert found({"script": script}, "unknown-variable")
    assert not found({"script": f"{script} --host $MASTER_ADDRS"}, "unknown-variable")


def findings_in(path: Path, *rules: str) -> list[Finding]:
    case = build_case(open_files([path]), Overrides(hardware="h200", cards=16))
    return [each for each in judge(case).findings if each.rule in rules]


def changed(tmp_path: Path, name: str, before: str, after: str) -> Path:
    text = (FOLDER / name).read_text()
    assert before in text
    path = tmp_path / name
    path.write_text(text.replace(before, after))
    return path


@pytest.mark.parametrize(
    ("before", "after", "severity", "says"),
    [
        ("$(LWS_LEADER_ADDRESS)", "$(LWS_LEADER_ADDRES)", "error", "$(LWS_LEADER_ADDRESS) is"),
        ("$(LWS_LEADER_ADDRESS)", "$(LEADER)", "warning", "not set by the container's env"),
        ("$(LWS_LEADER_ADDRESS)", "$(HEAD_SERVICE_HOST)", None, ""),
        ("value: bond0", "value: $(NIC_NAME)", "warning", "not set by the container's env"),
    ],
)
def test_variables_of_a_manifest_are_those_that_something_sets(
    tmp_path: Path, before: str, after: str, severity: str | None, says: str
) -> None:
    path = changed(tmp_path, "group.yaml", before, after)
    found_there = findings_in(path, "undefined-variable", "variable-from-outside")
    assert {each.severity for each in found_there} == ({severity} if severity else set())
    for each in found_there:
        assert says in each.text and each.file == str(path)
        assert after.strip("value: $()") in path.read_text().splitlines()[each.line - 1]


def test_commands_in_the_text_of_a_pod_are_no_variables(tmp_path: Path) -> None:
    path = changed(tmp_path, "group.yaml", "$(LWS_LEADER_ADDRESS)", "$(hostname)")
    assert findings_in(path, "undefined-variable", "variable-from-outside") == []


def test_variables_of_schedulers_are_known_by_name() -> None:
    script = "python -m sglang.launch_server --model-path m --nnodes 2 --node-rank ${}"
    for name, severity in (("SLURM_NODEDID", "warning"), ("SLURM_NODEID", None)):
        findings = found({"script": script.format(name)}, "undefined-variable")
        assert [each.severity for each in findings] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("hardware", "device", "wrong"),
    [
        ("atlas-800i-a3", "cuda", True),
        ("atlas-800i-a3", "npu", False),
        ("h200", "npu", True),
        ("h200", "cuda", False),
        ("h200", "cpu", False),
        ("mi300x", "cuda", False),
        ("mi300x", "npu", True),
    ],
)
def test_the_device_is_that_of_the_hardware(hardware: str, device: str, wrong: bool) -> None:
    made = mixed(
        flags={"device": device, "attention-backend": "triton"}, hardware={"device": hardware}
    )
    findings = [each for each in found(made, "backend-platform") if each.flag == "--device"]
    assert [each.severity for each in findings] == (["error"] if wrong else [])


def test_an_engine_that_does_not_exist_is_named_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made.yaml"
    path.write_text("engine: sglang==0.5.99\nroles: {mixed: {kind: mixed}}\n")
    assert main([str(path)]) == 2
    line = capsys.readouterr().err
    assert f"{path}: engine: unknown target 'sglang==0.5.99'; did you mean 0.5.9" in line
    assert main([str(path), "--target", "sglang==9"]) == 2
    assert "--target: unknown target 'sglang==9'" in capsys.readouterr().err


def test_the_tag_of_an_image_is_the_release(tmp_path: Path) -> None:
    path = tmp_path / "group.yaml"
    shutil.copy(FOLDER / "group.yaml", path)
    assert build_case(open_files([path]), Overrides()).target.version == "0.5.10"
    path = changed(tmp_path, "group.yaml", "sglang:v0.5.10", "sglang:v0.5.10-cu130-dev")
    assert build_case(open_files([path]), Overrides()).target.version == "0.5.10"
    path = changed(tmp_path, "group.yaml", "sglang:v0.5.10", "sglang:v0.5.99")
    (finding,) = findings_in(path, "unknown-release")
    assert "0.5.99" in finding.text and "image:" in path.read_text().splitlines()[finding.line - 1]


def test_the_names_of_a_library_are_read_out_of_its_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "tools" / "library_variables.py"
    spec = importlib.util.spec_from_file_location("library_variables", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    wheel = tmp_path / "nvidia_nccl_cu12-9.9.9-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("lib.so.2", b"\x7fELF\0NCCL_MADE_UP\0MC_OTHER\0xNCCL_NO_WORD\0NCCL_CUT")
        archive.writestr("a.py", 'os.environ.get("MADE_UP_TOO"), os.environ["OF_PYTHON"]\n')
    table = tmp_path / "libraries.json"
    table.write_text('{"hccl": {"source": "kept", "names": "HCCL_ALGO"}}')
    monkeypatch.setattr(tool, "TABLE", table)
    tool.main([str(wheel)])
    assert json.loads(table.read_text()) == {
        "hccl": {"source": "kept", "names": "HCCL_ALGO"},
        "nvidia_nccl_cu12": {
            "source": "read out of 9.9.9", "names": "MADE_UP_TOO NCCL_MADE_UP OF_PYTHON"
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--diff", "0.5.23", "{file}"], "--diff OLD NEW FILE"),
        (["--diff", "0.5.23", "{file}", "{file}"], "--diff OLD NEW FILE"),
        (["{file}", "--diff", "0.5.10", "0.5.99"], "0.5.99"),
    ],
)
def test_releases_that_are_none_are_told_first(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.sh"
    file.write_text("python -m sglang.launch_server --model-path m\n")
    assert main([word.format(file=file) for word in words]) == 2
    assert expected in capsys.readouterr().err


def test_a_few_choices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        deploy(["render", "x", "--to", "helm"])
    said = capsys.readouterr().err
    assert all(target in said for target in TARGETS)


def test_what_two_roles_have_in_common_is_found_once() -> None:
    made = separated()
    assert len(made["roles"]) > 1
    for role in made["roles"].values():
        role["environment"] = {**role.get("environment", {}), "HCCL_BUFSIZE": "800"}
    (finding,) = found(made, "unknown-variable")
    assert finding.flag == "HCCL_BUFSIZE"
