"""From options to what will run, before any process is started."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from vivace import launch
from vivace.checkpoint.source import SourceError
from vivace.offline.build import configured

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}


def model(folder: Path, **changes: object) -> str:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return str(folder)


def test_an_unknown_architecture_stops_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "engine_ahead", lambda argv: None)
    monkeypatch.setattr(launch, "launch", lambda config, engine: pytest.fail("it was started"))
    path = model(tmp_path, architectures=["XyzzyForCausalLM"])
    assert launch.main(["--model-path", path, "--load-format", "dummy"]) == launch.BAD_COMMAND
    assert "XyzzyForCausalLM is not supported" in capsys.readouterr().err


def test_the_offline_api_refuses_it_too(tmp_path: Path) -> None:
    path = model(tmp_path, architectures=["XyzzyForCausalLM"])
    with pytest.raises(SourceError, match="--model-impl transformers"):
        configured({"model_path": path, "load_format": "dummy"})


def test_the_offline_api_logs_decisions_and_notices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vivace")
    configured({"model_path": model(tmp_path), "load_format": "dummy", "sleep_on_idle": True})
    lines = {record.getMessage(): record.levelname for record in caplog.records}
    assert any(line.startswith("--page-size: unset -> ") for line in lines)
    assert lines["--sleep-on-idle has no effect: an idle engine always sleeps"] == "WARNING"
