"""What a model's files say of sampling, down to the settings of a request that says nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import write_gguf, write_single

from vivace.checkpoint.gguf_sampling import CARDS
from vivace.checkpoint.source import SourceError, embedded_file
from vivace.config.parsing import from_arguments
from vivace.frontend.served_model import sampling_defaults, served_model
from vivace.frontend.validation import CheckedSampling
from vivace.launch.configure import configure


def request(asked: dict[str, Any], **flags: Any) -> tuple[Any, str]:
    """(the settings of a request that brings `asked`, what the start says of the defaults)"""
    config = configure(from_arguments(**flags))
    sampling = CheckedSampling(asked, served_model(config, None)).behind(1)
    return sampling, sampling_defaults(config).text()


def said_of_sampling(file: Path) -> list[str]:
    notices = configure(from_arguments(model_path=str(file))).notices
    return [line for line in notices if "general.sampling" in line]


def test_the_embedded_model_is_used_as_its_card_says() -> None:
    sampling, told = request({})
    assert (sampling.temperature, sampling.top_p) == (0.2, 0.9)
    assert told == "temperature 0.2, top_p 0.9 (the card of SmolLM2-135M-Instruct)"
    sampling, _ = request({"temperature": 1.0})
    assert (sampling.temperature, sampling.top_p) == (1.0, 0.9)
    sampling, told = request({}, sampling_defaults="openai")
    assert (sampling.temperature, sampling.top_p) == (1.0, 1.0) and "built in" in told
    sampling, told = request({}, preferred_sampling_params={"temperature": 0.7})
    assert (sampling.temperature, sampling.top_p) == (0.7, 0.9)
    assert told.startswith("temperature 0.7 (--preferred-sampling-params); top_p 0.9 (the card")


def test_a_card_goes_with_the_model_not_with_how_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "copy.gguf").symlink_to(embedded_file())
    for path in (embedded_file(), embedded_file().parent, tmp_path / "copy.gguf", tmp_path):
        sampling, told = request({}, model_path=str(path))
        assert (sampling.temperature, sampling.top_p, told) == (0.2, 0.9, request({})[1])
    (name,) = CARDS
    other = write_gguf(tmp_path / "requantized.gguf", name=name)
    assert request({}, model_path=str(other))[0].temperature == 0.2
    said = write_gguf(tmp_path / "own.gguf", name=name, sampling={"temp": 0.6})
    sampling, told = request({}, model_path=str(said))
    assert (sampling.temperature, sampling.top_p) == (0.6, 1.0) and "general.sampling" in told


def test_generation_config(tmp_path: Path) -> None:
    write_single(tmp_path)
    said = {"temperature": 0.6, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    (tmp_path / "generation_config.json").write_text(json.dumps({**said, "do_sample": True}))
    sampling, told = request({"min_p": 0.0}, model_path=str(tmp_path))
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.6, 20, 0.0)
    assert sampling.repetition_penalty == 1.1
    assert told.endswith("(generation_config.json)") and "top_k 20" in told
    sampling, _ = request({}, model_path=str(tmp_path), sampling_defaults="openai")
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0)


def test_keys_of_a_gguf_file(tmp_path: Path) -> None:
    said: dict[str, float] = {
        "temp": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "penalty_repeat": 1.1,
    }  # fmt: skip
    file = write_gguf(tmp_path / "toy.gguf", sampling=said)
    sampling, told = request({}, model_path=str(file))
    # the numbers as somebody wrote them, not as float32 holds them
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 20)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.05, 1.1)
    assert "top_p 0.95" in told and "general.sampling" in told
    assert not said_of_sampling(file)


def test_a_gguf_file_that_says_nothing(tmp_path: Path) -> None:
    sampling, told = request({}, model_path=str(write_gguf(tmp_path / "toy.gguf")))
    assert sampling.temperature == 1.0 and told == "temperature 1 (built in)"


def test_recommendations_that_are_not_followed_are_said(tmp_path: Path) -> None:
    said: dict[str, float] = {"xtc_probability": 0.5, "mirostat": 0, "penalty_last_n": 64}
    file = write_gguf(tmp_path / "toy.gguf", sampling=said)
    told = said_of_sampling(file)
    assert len(told) == 2 and "xtc_probability" in told[0] and "penalty_last_n" in told[1]


def test_a_value_that_nothing_can_have_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", sampling={"temp": -1.0})
    with pytest.raises(SourceError, match=r"general\.sampling\.temp.*sampling-defaults openai"):
        request({}, model_path=str(file))
