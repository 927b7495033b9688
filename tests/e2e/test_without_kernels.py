"""A server installed on a machine without a C++ compiler: torch's operations, every type."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from running_server import RunningServer
from served_toy import toy_llama, write_toy_llama

import vivace

PROMPT = list(range(40, 110))
"""long enough for the product of many rows"""
FLAGS = ("--cpu-threads", "1", "--max-total-tokens", "1024", "--skip-server-warmup")
TOLERANCE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.15}
"""of a log-probability"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the package is one whose kernels were never built."""
    folder = tmp_path_factory.mktemp("installed")
    leave_out = shutil.ignore_patterns("_kernels.so", "kernels")
    shutil.copytree(Path(vivace.__file__).parent, folder / "vivace", ignore=leave_out)
    (folder / "bin").mkdir()
    return {
        "PYTHONPATH": str(folder),
        "PYTHONSAFEPATH": "1",
        "PATH": str(folder / "bin"),
    }


@pytest.fixture(scope="module")
def wanted() -> list[float]:
    """Log-probabilities of the prompt's tokens after the first, by transformers in float32."""
    with torch.inference_mode():
        logits = toy_llama().eval()(torch.tensor([PROMPT])).logits[0]
    each = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])
    return each.flatten().tolist()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_type_is_served(
    dtype: str, model: Path, installed: dict[str, str], wanted: list[float], tmp_path: Path
) -> None:
    flags = ("--model-path", str(model), "--dtype", dtype, *FLAGS)
    with RunningServer(*flags, environment=installed, log=tmp_path / "log") as server:
        server.wait_ready()
        ask: dict[str, Any] = {
            "input_ids": PROMPT,
            "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = server.json("/generate", ask)
        found = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]]
        assert found == pytest.approx(wanted, abs=TOLERANCE[dtype])
        assert len(answer["output_ids"]) == 8
        assert server.json("/generate", ask)["output_ids"] == answer["output_ids"]
        told = server.json("/server_info")["internal_states"][0]["instructions"]
        assert told.startswith("torch, ") and told in server.text()
        assert "the kernels were not built (no C++ compiler" in server.text()
        server.signal()
        assert server.wait(20) == 0
