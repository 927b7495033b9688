"""Models that cannot be served, through every command: one line that says why, exit code 2."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from mutations import write_json
from safetensors.torch import load_file, save_file
from served_toy import write_toy_llama

from vivace import Engine, cli
from vivace.errors import CannotStart

ZEROS = {"rope_type": "llama3", "factor": 0, "low_freq_factor": 0, "high_freq_factor": 0}
BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "no number": ("config.json", {"rope_theta": "x"}, "rope_theta is 'x'"),
    "not a number": ("config.json", {"rope_theta": float("nan")}, "rope_theta is nan"),
    "a list": ("config.json", {"rope_scaling": [1]}, "rope_scaling is [1]"),
    "zeros": ("config.json", {"rope_scaling": ZEROS}, "low_freq_factor is 0"),
    "an activation": ("config.json", {"hidden_act": "quantum"}, "hidden_act is 'quantum'"),
    "a context": ("config.json", {"max_position_embeddings": (1 << 31) - 1}, "2147483647"),
    "ends": ("config.json", {"eos_token_id": [-1, "x"]}, "eos_token_id is [-1, 'x']"),
    "a dtype": ("config.json", {"dtype": "complex128"}, "'complex128'"),
    "defaults": ("generation_config.json", {"temperature": -1}, "temperature is -1"),
    "extra tokens": ("tokenizer_config.json", {"additional_special_tokens": 5}, "tokens is 5"),
    "added tokens": ("tokenizer_config.json", {"added_tokens_decoder": {"x": 1}}, "decoder.x is 1"),
    "a template": ("tokenizer_config.json", {"chat_template": "{% if %}"}, "chat_template: "),
    "shapes": ("config.json", {"intermediate_size": 48}, "has the shape"),
}
BEHIND = ("a template", "extra tokens", "added tokens", "shapes")
"""found by a child process, not by the one that starts it"""


@pytest.fixture
def broken(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A toy model with one of BROKEN."""
    name, change, _ = BROKEN[request.param]
    file = write_toy_llama(tmp_path) / name
    old = json.loads(file.read_text()) if file.exists() else {}
    if "rope_scaling" in change or "rope_theta" in change:
        del old["rope_parameters"]
    write_json(file, old | change)
    return tmp_path


def run(*words: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vivace", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "VIVACE_TEST_FAULT": fault},
    )


def check_end(name: str, folder: Path, code: int, told: str) -> None:
    said = [line for line in told.splitlines() if BROKEN[name][2] in line]
    assert code == 2, told
    assert len(said) == 1 and str(folder) in said[0], told
    assert "Traceback" not in told
    if name not in BEHIND:
        assert told.splitlines() == said


@pytest.mark.parametrize("broken", [name for name in BROKEN if name not in BEHIND], indirect=True)
def test_serve_ends_in_one_line(
    broken: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VIVACE_EXECUTOR", "oracle")  # it starts no engine ahead
    code = cli.main(["serve", "--port", "0", "--model-path", str(broken)])
    check_end(request.node.callspec.params["broken"], broken, code, capfd.readouterr().err)


@pytest.mark.parametrize("broken", ["no number", *BEHIND], indirect=True)
def test_the_whole_server_ends_in_one_line(broken: Path, request: pytest.FixtureRequest) -> None:
    """With the processes that it has started by then."""
    done = run("serve", "--port", "0", "--model-path", str(broken))
    check_end(request.node.callspec.params["broken"], broken, done.returncode, done.stderr)


def test_a_slice_that_only_another_rank_reads(tmp_path: Path) -> None:
    """A scale of the last head is no number: rank 0 has nothing to say against its own."""
    file = write_toy_llama(tmp_path) / "model.safetensors"
    weights, name = load_file(file), "model.layers.0.self_attn.q_proj.weight"
    scales = torch.ones(len(weights[name]), 1)
    scales[-1] = math.nan
    weights |= {name: weights[name].to(torch.float8_e4m3fn), f"{name}_scale": scales}
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", {**config, "quantization_config": FP8})
    done = run("serve", "--port", "0", "--model-path", str(tmp_path), "--tp-size", "2")
    said = [line for line in done.stderr.splitlines() if "weight_scale" in line]
    assert done.returncode == 2, done.stderr
    assert len(said) == 1 and "rank 1" in said[0] and str(file) in said[0], done.stderr
    assert "Traceback" not in done.stderr


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


@pytest.mark.parametrize("broken", ["a list", "extra tokens", "defaults"], indirect=True)
def test_the_offline_api_raises(broken: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CannotStart) as caught:
        Engine(model_path=str(broken), cpu_threads=1)
    assert str(caught.value).isprintable()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("broken", ["a list"], indirect=True)
@pytest.mark.parametrize(
    "command",
    [
        ["chat", "--local", "--model-path"],
        ["bench", "kernels", "--model-path"],
        ["bench", "one-batch", "--batch-size", "1", "--model-path"],
        ["bench", "offline", "--num-prompts", "1", "--model-path"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_other_commands_too(
    broken: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main([*command, str(broken)]) == 2
    told = capfd.readouterr().err
    assert "rope_scaling is [1]" in told and "Traceback" not in told


def test_weights_of_nan(tmp_path: Path) -> None:
    """Whole files; only the warm-up finds it."""
    file = write_toy_llama(tmp_path) / "model.safetensors"
    weights = {name: torch.full_like(one, math.nan) for name, one in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    done = run("serve", "--port", "0", "--model-path", str(tmp_path))
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path}: " in last and "NaN" in last and "internal error" not in done.stderr


def test_a_warm_up_that_fails_otherwise_says_nothing_of_the_model(tmp_path: Path) -> None:
    path = str(write_toy_llama(tmp_path))
    done = run("serve", "--port", "0", "--model-path", path, fault="engine-raise@0")
    assert done.returncode == 1, done.stderr
    assert str(tmp_path) not in done.stderr.splitlines()[-1]


def test_a_chat_needs_a_template_before_it_needs_weights(tmp_path: Path) -> None:
    """Weights of a large model take minutes; here they could not be loaded at all."""
    config = write_toy_llama(tmp_path) / "tokenizer_config.json"
    write_json(config, {**json.loads(config.read_text()), "chat_template": None})
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    done = run("chat", "--model-path", str(tmp_path), "hi")
    assert done.returncode == 2 and f"{tmp_path}: " in done.stderr, done.stderr
    assert "chat template" in done.stderr.splitlines()[-1]
    with pytest.raises(CannotStart, match="x"):
        Engine(model_path=str(tmp_path), cpu_threads=1)
