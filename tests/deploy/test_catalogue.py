"""Models and devices of the catalogue against published sizes, and folders of other models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployments import case, mixed
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.checkpoint.source import ModelSource
from vivace.commands.check import main
from vivace.deploy.catalogue.hardware import find_device
from vivace.deploy.catalogue.models import find_model, guess_model, known_architecture
from vivace.deploy.memory.plan import plan_role
from vivace.models.architecture import Architecture, parse_architecture
from vivace.models.facts import read_facts
from vivace.models.families import FAMILIES

PUBLISHED = {
    "deepseek-v2": (236, 21),
    "deepseek-v2-lite": (15.7, 2.4),
    "deepseek-v4-flash": (284, 13),
    "deepseek-v4-pro": (1600, 49),
    "kimi-k2": (1026, 32),
    "glm-4.6": (355, 32),
    "glm-4.5": (355, 32),
    "glm-4.5-air": (106, 12),
    "glm-5": (744, 40),
    "minimax-m2.5": (230, 10),
    "qwen1.5-moe-a2.7b": (14.3, 2.7),
    "qwen2-57b-a14b": (57.4, 14.2),
    "qwen3.5-397b-a17b": (397, 17),
    "qwen3.5-122b-a10b": (122, 10),
    "qwen3.5-35b-a3b": (35, 3),
    "qwen3.5-27b": (27, 27),
    "qwen3-vl-235b-a22b": (235, 22),
    "gpt-oss-120b": (116.8, 5.1),
    "gpt-oss-20b": (20.9, 3.6),
    "llama-4-maverick": (400, 17),
    "llama-4-scout": (109, 17),
    "llama-3.1-405b": (405, 405),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141, 39),
    "mistral-large-2411": (123, 123),
    "mimo-v2-flash": (309, 15),
    "mimo-7b": (7.6, 7.6),
    "gemma-3-27b": (27, 27),
    "phi-4": (14.7, 14.7),
    "phi-4-mini": (3.8, 3.8),
}
"""billions of parameters as their authors count them: in all, for a token"""


def find_shape(name: str) -> Architecture:
    model = find_model(name)
    assert model is not None
    return known_architecture(model)


def test_a_latent_is_all_that_a_token_keeps() -> None:
    """DeepSeek-V3: a latent of 512 and a key of 64 that is turned, in each of 61 layers; counted as
    heads of their own they would be 25 times as much."""
    assert find_shape("deepseek-r1").kv_elements(1) * 2 == 70_272


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_add_up_to_the_published_size(name: str) -> None:
    shape, (total, active) = find_shape(name), PUBLISHED[name]
    assert shape.parameters() / 1e9 == pytest.approx(total, rel=0.03)
    table = 2 * shape.vocabulary * shape.hidden / 1e9  # which some do not count
    assert abs(shape.parameters(active=True) / 1e9 - active) <= max(0.08 * active, table) + 0.5


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("zai-org/GLM-4.6-FP8", "glm-4.6"),
        ("zai-org/GLM-5.1", "glm-5"),
        ("/data/Kimi-K2-Instruct-0905", "kimi-k2-instruct-0905"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("Qwen/Qwen3.6-35B-A3B", "qwen3.5-35b-a3b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek-v4-flash"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-r1"),
    ],
)
def test_paths_of_new_families_name_them(path: str, name: str) -> None:
    found = guess_model(path)
    assert found is not None and found.name == name


def test_compressed_attention_keeps_little_of_a_token() -> None:
    """DeepSeek-V4-Flash: 21 layers keep one of 4 tokens and its index, 20 one of 128."""
    shape = find_shape("deepseek-v4-flash")
    exact = 21 * (512 + 128) / 4 + 20 * 512 / 128
    assert exact <= shape.kv_elements(8) <= exact + shape.layers
    assert shape.kv_elements(8) < find_shape("deepseek-v3.2").kv_elements(8) / 8


@pytest.mark.parametrize(
    ("name", "memory", "count"),
    [
        ("RTX 3090", 24, 8),
        ("rtx 4090", 24, 8),
        ("rtx-5090", 31.84, 8),
        ("l4", 24, 8),
        ("l40s", 44.98, 8),
        ("a100-40g", 40, 8),
        ("a100", 80, 8),
        ("b200", 180, 8),
        ("gb200", 185, 4),
        ("mi300x", 192, 8),
    ],
)
def test_devices(name: str, memory: float, count: int) -> None:
    device = find_device(name)
    assert device is not None and device.sources
    assert (device.memory_gib, device.cards_per_node) == (memory, count)


@pytest.mark.parametrize(
    ("path", "device", "tp"),
    [
        ("deepseek-ai/DeepSeek-R1", "h200", 8),
        ("Qwen/Qwen3-235B-A22B-FP8", "h100", 4),
        ("openai/gpt-oss-120b", "h100", 1),
        ("moonshotai/Kimi-K2-Instruct", "b200", 8),
    ],
)
def test_published_precisions_fit_where_they_are_run(
    path: str, device: str, tp: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["python", "-m", "sglang.launch_server", "--model-path", path, "--tp", str(tp)]
    main(["--hardware", device, "--cards", str(tp), "--", *command])
    assert "weights-fit" not in capsys.readouterr().out


def test_a_folder_describes_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever architecture it is, and relative to where the command runs."""
    config = dict(find_model("glm-5").config)  # type: ignore[union-attr]
    config["architectures"] = ["NobodyServesThisForCausalLM"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    command = ["python", "-m", "sglang.launch_server", "--model-path", "x", "--tp", "8"]
    rest = ["--memory", "--hardware", "b200", "--quantization", "fp8", "--", *command]
    shown = []
    for model in ("mine", "./mine", str(tmp_path / "mine" / "config.json"), "glm-5"):
        main(["--model", model, *rest])
        shown.append(capsys.readouterr().out.partition("memory of one device")[2])
    assert shown[0] == shown[1] == shown[2] == shown[3] != ""
    assert main(["--model", "./none", *rest]) == 2
    assert "none" in capsys.readouterr().err


LATENT = {
    "kv_lora_rank": 128,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": None,
    "num_experts_per_tok": 4,
}


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from([None, 64, 128]),
    st.sampled_from([None, 1, 2, 8]),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, 4096]),
    st.booleans(),
)
def test_a_served_model_has_the_shapes_it_is_served_with(
    name: str,
    head_dim: int | None,
    kv_heads: int | None,
    tied: bool | None,
    context: int | None,
    nested: bool,
) -> None:
    """The engine's own facts, and the check's."""
    values = {
        "model_type": FAMILIES[name].model_types[0],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "vocab_size": 1000,
        "max_position_embeddings": context,
        "head_dim": head_dim,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
    }
    if name.startswith("Deepseek"):
        values |= {**LATENT, "num_key_value_heads": 32}
    values = {key: value for key, value in values.items() if value is not None}
    config: dict[str, Any] = {"architectures": [name]}
    config |= {"text_config": values} if nested else values
    folder = Path("model")
    source = ModelSource(
        path=folder, format="dummy", files=(), config=config, tokenizer_path=folder
    )
    facts, shape = read_facts(source), parse_architecture(config, "model")
    assert shape.parameters() == facts.parameters
    assert shape.kv_elements(1) == facts.kv_elements
    assert (shape.layers, shape.context, shape.tied) == (facts.layers, facts.context, facts.tied)


def test_experts_of_four_bits_take_half_of_eight() -> None:
    def experts(form: str) -> int:
        made = mixed(model={"name": "deepseek-r1", "quantization": form})
        it = case(made)
        plan = plan_role(it, it.servers[0])
        assert plan is not None
        return next(part.size for part in plan.parts if part.name == "experts")

    assert experts("fp8") / experts("mxfp4") == pytest.approx(1 / (0.5 + 1 / 32), rel=0.01)
