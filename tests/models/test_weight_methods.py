"""What a method may do that no reader, layer or model knows of: a LoRA adapter for each token,
other numbers in the same memory, experts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paged_model
import pytest
import torch
import transformers
from draft_head_toys import RECURRENT
from paged_model import CPU, PagedModel, load
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_models import make, reference, tokens
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from vivace.checkpoint.open import open_weights
from vivace.checkpoint.source import locate
from vivace.layers.module import Bindings
from vivace.models.causal_lm import CausalLM
from vivace.models.facts import read_facts
from vivace.models.loading import build_model, load_weights
from vivace.platforms.cpu.ops import cpu_ops
from vivace.platforms.ops.moe import Gate
from vivace.platforms.ops.table import Activation
from vivace.quantization.method import (
    ExpertMethod,
    LayerWeights,
    LinearMethod,
    LinearShape,
    LocalPart,
    Matrix,
)
from vivace.quantization.packed import WeightPacker
from vivace.quantization.packed_experts import packed_experts
from vivace.quantization.plain import PlainConfig, read_floats
from vivace.worker.step_input import StepInput
from vivace.worker.tensor_memory import memory_blocks

RANK, ALPHA = 4, 8
FAMILIES = ["Llama", "Qwen2", "Qwen3", "Gemma2"]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
GROUPED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
MIXTURES: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 48},
    "Qwen3Moe": EXPERTS,
    "Qwen3Next": RECURRENT,
    "DeepseekV2": {**GROUPED, **LATENT, "q_lora_rank": None},
    "DeepseekV3": {**GROUPED, **LATENT, "n_group": 2, "topk_group": 2},
    "Glm4Moe": GROUPED,
    "Llama4Text": {"num_local_experts": 4, "intermediate_size_mlp": 80},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def packer() -> WeightPacker:
    native = paged_model.PLATFORM
    return WeightPacker(
        ops=native.ops if native else cpu_ops(),
        dtype=torch.float32,
        activations=torch.float32,
        device=CPU,
        blocks=native is not None,
    )


# LoRA


class LoraMethod:
    """base(x) + x A^T B^T * alpha / rank, by the adapter of each token (PEFT's layout)."""

    fusible = False

    def __init__(self, base: LinearMethod, adapters: Sequence[dict[str, Tensor]]) -> None:
        self._base = base
        self._adapters = adapters
        self._weights: list[list[tuple[Tensor, Tensor]]] = []

    def load(self, weights: LayerWeights) -> None:
        self._base.load(weights)
        for adapter in self._adapters:
            names = [f"base_model.model.{part.name}.lora_" for part in weights.shape.parts]
            self._weights.append(
                [(adapter[f"{n}A.weight"], adapter[f"{n}B.weight"]) for n in names]
            )

    def apply(self, x: Tensor, step: Any) -> Tensor:
        y = self._base.apply(x, step)
        for number, parts in enumerate(self._weights):
            rows = step.adapters == number
            added = torch.cat([x[rows] @ a.T @ b.T for a, b in parts], 1)
            y[rows] += added * (ALPHA / RANK)
        return y

    def update(self, weights: LayerWeights) -> None:
        self._base.update(weights)

    def suffixes(self) -> Collection[str]:
        return self._base.suffixes()


class LoraConfig:
    norm_biases = False

    def __init__(self, base: PlainConfig, adapters: Sequence[dict[str, Tensor]]) -> None:
        self._base = base
        self._adapters = adapters

    def linear_method(self, layer: str, parts: Sequence[str]) -> LinearMethod:
        base = self._base.linear_method(layer, parts)
        return base if layer == "lm_head" else LoraMethod(base, self._adapters)

    def expert_method(self, layer: str, activation: Activation) -> ExpertMethod:
        return self._base.expert_method(layer, activation)

    def take_matrix(self, weights: LayerWeights, part: LocalPart) -> Matrix:
        return self._base.take_matrix(weights, part)


@dataclass(kw_only=True, slots=True)
class AdapterStep(StepInput):
    adapters: Tensor
    """[T] int64: the adapter of each token; -1: none"""


class AdapterModel(PagedModel):
    """The adapter of a sequence is the last letter of its name."""

    def _input(self, spans: dict[str, Sequence[int]]) -> AdapterStep:
        step = super()._input(spans)
        adapters = [int(name.split()[1]) for name, ids in spans.items() for _ in ids]
        kept = {field.name: getattr(step, field.name) for field in fields(step)}
        return AdapterStep(**kept, adapters=torch.tensor(adapters))


def write_adapter(model: Any, file: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, weight in model.named_parameters():
        if name.endswith("_proj.weight"):
            out, inner = weight.shape
            stem = f"base_model.model.{name.removesuffix('.weight')}.lora_"
            found[f"{stem}A.weight"] = torch.randn(RANK, inner, generator=generator) * inner**-0.5
            found[f"{stem}B.weight"] = torch.randn(out, RANK, generator=generator) * 0.3
    save_file(found, file)


def merged_logits(model: Any, adapter: dict[str, Tensor], ids: list[int]) -> Tensor:
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name, weight in model.named_parameters():
        stem = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        if f"{stem}A.weight" in adapter:
            added = adapter[f"{stem}B.weight"] @ adapter[f"{stem}A.weight"]
            weight.data += added * (ALPHA / RANK)
    found = reference(model, ids)
    model.load_state_dict(before)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_for_each_sequence_of_a_step(family: str, tmp_path: Path) -> None:
    model = make(family, tmp_path, head_dim=16)
    files = [tmp_path / "one.adapter", tmp_path / "two.adapter"]
    for seed, file in enumerate(files):
        write_adapter(model, file, seed)
    adapters = [load_file(file) for file in files]
    source = locate(str(tmp_path))
    facts, pack = read_facts(source), packer()
    ours = build_model(facts, facts.context)
    config = LoraConfig(PlainConfig(pack), adapters)
    ours.bind("", Bindings(packer=pack, quantization=config))
    load_weights(ours, open_weights(source, facts, seed=0, progress=lambda stage, part: None))
    ids = tokens(12)
    found = AdapterModel(ours).step({"a 0": ids, "b -1": ids, "c 1": ids[:7]})
    wanted = {
        "a 0": merged_logits(model, adapters[0], ids),
        "b -1": reference(model, ids),
        "c 1": merged_logits(model, adapters[1], ids[:7]),
    }
    for name, one in found.items():
        torch.testing.assert_close(one, wanted[name], rtol=1e-3, atol=2e-3)
    assert (wanted["a 0"] - wanted["b -1"]).abs().max() > 0.1


# other numbers in the same memory


def update(model: CausalLM, folder: Path, **how: Any) -> None:
    source = locate(str(folder))
    weights = open_weights(source, read_facts(source), seed=0, progress=lambda stage, part: None)
    with torch.inference_mode():
        model.update(weights)


@pytest.mark.parametrize("quantization", [None, "w8a8_int8", "w8a16"])
@pytest.mark.parametrize("family", [*FAMILIES, *MIXTURES])
def test_other_weights_in_the_same_memory(
    family: str, quantization: str | None, tmp_path: Path
) -> None:
    ids = tokens(9)
    for name in ("old", "new"):
        make(family, tmp_path / name, **{"head_dim": 16, **MIXTURES.get(family, {})})
    file = tmp_path / "new" / "model.safetensors"
    save_file({name: weight * 0.9 for name, weight in load_file(file).items()}, file)
    model = load(tmp_path / "old", quantization=quantization)
    old, before = PagedModel(model).feed("a", ids, [9]), memory_blocks(model)
    update(model, tmp_path / "new")
    assert memory_blocks(model) == before, "the same addresses, and no others"
    found = PagedModel(model).feed("a", ids, [9])
    fresh = PagedModel(load(tmp_path / "new", quantization=quantization)).feed("a", ids, [9])
    assert torch.equal(found, fresh)
    assert not torch.equal(found, old)


# experts


class ExpertTensors:
    """Names as Qwen3-MoE's files have them."""

    tied = False

    def __init__(self, found: dict[str, Tensor]) -> None:
        self._found = found

    def has(self, name: str) -> bool:
        return name in self._found

    def names(self) -> Iterator[str]:
        return iter(self._found)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._found[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._found[name].dtype

    def take(
        self, name: str, shape: tuple[int, ...], rows: slice, columns: slice, **_: Any
    ) -> Tensor:
        assert self.shape(name) == shape
        return self._found[name][rows, columns]

    take_stored = take


def test_experts_are_those_of_transformers() -> None:
    hidden, inner, count, top = 32, 24, 5, 2
    config = transformers.Qwen3MoeConfig(
        hidden_size=hidden, moe_intermediate_size=inner, num_experts=count, num_experts_per_tok=top
    )
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    block = Qwen3MoeSparseMoeBlock(config)
    for weight in block.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    tensors = {}
    for e in range(count):
        gate, up = block.experts.gate_up_proj[e].detach().chunk(2)
        down = block.experts.down_proj[e].detach()
        named = {"gate_proj": gate, "up_proj": up, "down_proj": down}
        tensors |= {f"experts.{e}.{n}.weight": w.contiguous() for n, w in named.items()}

    def layer(names: list[str], e: int, out: int, inputs: int) -> LayerWeights:
        parts = tuple(LocalPart(f"experts.{e}.{n}", out, slice(None)) for n in names)
        return LayerWeights(ExpertTensors(tensors), LinearShape(parts, inputs))  # type: ignore[arg-type]

    experts = [
        (layer(["gate_proj", "up_proj"], e, inner, hidden), layer(["down_proj"], e, hidden, inner))
        for e in range(count)
    ]
    method = packed_experts(packer(), read_floats, "silu")
    method.load(experts)
    x, ops = torch.randn(7, hidden), packer().ops
    with torch.inference_mode():
        router = block.gate.weight.detach()
        gate = Gate(top=top, renormalize=config.norm_topk_prob)
        weights, chosen = ops.moe_gate(gate, x @ router.T)
        step: Any = SimpleNamespace()
        found = method.apply(x, weights, chosen, step)
        wanted = block(x[None])
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-4)
        for name in tensors:
            tensors[name] *= 0.5
        method.update(experts)
        assert not torch.allclose(method.apply(x, weights, chosen, step), found)
