"""Heads that draft for toy Llamas, as published checkpoints have them, and what they must say: the
papers' definitions, a whole sequence at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from reference_trees import Way
from safetensors.torch import load_file, save_file
from served_toy import write_byte_tokenizer
from torch import Tensor
from torch.nn import functional
from toy_models import make

HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 64, 96, 4, 2, 16
VOCABULARY, DRAFT_VOCABULARY = 300, 120
EPS, THETA = 1e-5, 10000.0
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "model_type": "llama",
    "torch_dtype": "float32",
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def layer_weights(
    prefix: str, inputs: int, random: torch.Generator, hidden: int = HIDDEN
) -> dict[str, Tensor]:
    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=random) * columns**-0.5

    return {
        f"{prefix}.self_attn.q_proj.weight": matrix(HEADS * HEAD, inputs),
        f"{prefix}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, inputs),
        f"{prefix}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, inputs),
        f"{prefix}.self_attn.o_proj.weight": matrix(hidden, HEADS * HEAD),
        f"{prefix}.mlp.gate_proj.weight": matrix(INNER, hidden),
        f"{prefix}.mlp.up_proj.weight": matrix(INNER, hidden),
        f"{prefix}.mlp.down_proj.weight": matrix(hidden, INNER),
        f"{prefix}.post_attention_layernorm.weight": 1 + 0.2 * matrix(1, hidden)[0],
    }


def write_eagle3(folder: Path, after: list[int], hidden: int = HIDDEN) -> dict[str, Tensor]:
    """A random EAGLE3 head that reads what the layers `after` hand on. One that is not as wide as
    the model has an embedding."""
    random = torch.Generator().manual_seed(7)
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm")
    ids = torch.randperm(VOCABULARY, generator=random)[:DRAFT_VOCABULARY].sort().values
    weights = {
        **layer_weights("midlayer", 2 * hidden, random, hidden),
        **{f"{n}.weight": 1 + 0.2 * torch.randn(hidden, generator=random) for n in norms},
        "fc.weight": torch.randn(hidden, 3 * HIDDEN, generator=random) * (3 * HIDDEN) ** -0.5,
        "lm_head.weight": torch.randn(DRAFT_VOCABULARY, hidden, generator=random),
        "d2t": ids - torch.arange(DRAFT_VOCABULARY),
        "t2d": torch.isin(torch.arange(VOCABULARY), ids),
    }
    config = {
        **CONFIG,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCABULARY,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": after},
    }
    if hidden != HIDDEN:
        config |= {"hidden_size": hidden, "target_hidden_size": HIDDEN}
        weights["embed_tokens.weight"] = torch.randn(VOCABULARY, hidden, generator=random)
    return write(folder, config, weights)


def rewrite(
    source: Path, folder: Path, weights: Callable[[str], str | None] = str, **keys: Any
) -> dict[str, Tensor]:
    """The same head with other keys, and with other names of tensors (None: left out)."""
    config = {**json.loads((source / "config.json").read_text()), **keys}
    saved = load_file(source / "model.safetensors")
    named = {name: one for old, one in saved.items() if (name := weights(old)) is not None}
    return write(folder, config, named)


def write_eagle(folder: Path, *, bias: bool) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(9)
    weights = {
        **layer_weights("layers.0", HIDDEN, random),
        "fc.weight": torch.randn(HIDDEN, 2 * HIDDEN, generator=random) * (2 * HIDDEN) ** -0.5,
        "embed_tokens.weight": torch.zeros(VOCABULARY, HIDDEN),  # the model's own is used
    }
    if bias:
        weights["fc.bias"] = torch.randn(HIDDEN, generator=random)
    return write(folder, {**CONFIG, "architectures": ["LlamaForCausalLM"]}, weights)


def write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return weights


class ReferenceHead:
    """`model`: transformers' target. `after`: of EAGLE3, whose states are made of what these layers
    hand on, or of what the model leaves if there are none; None: EAGLE. `norms`: settings of the
    head's that are true."""

    def __init__(
        self,
        model: Any,
        weights: dict[str, Tensor],
        after: list[int] | None,
        norms: tuple[str, ...] = (),
    ) -> None:
        self.model = model
        self._norms = norms
        self._weights = weights
        self._after = after
        self.ids: list[int] | None = None
        """those that may be proposed"""

    def drafts(self, known: list[int], count: int) -> list[int]:
        """What may follow these tokens of the model."""
        say, way = self.behind(known), ()
        for _ in range(count):
            logits, ids = say(way)
            way = (*way, ids[int(logits.argmax())])
        return list(way)

    def behind(self, known: list[int]) -> Callable[[Way], tuple[Tensor, Sequence[int]]]:
        """(logits, ids that they are of) behind these tokens of the model and some drafts."""
        first = self.states(known)[: len(known) - 1]

        @cache
        def compute(way: Way) -> tuple[Tensor, Tensor]:
            """(what logits are made of, the states that are given to the next pass)"""
            given = compute(way[:-1])[1] if way else first
            hidden, further = self.compute(torch.tensor([*known, *way][1:]), given)
            return hidden[-1], torch.cat((given, further[-1:]))

        return lambda way: self.name(compute(way)[0])

    def states(self, known: list[int]) -> Tensor:
        """What the model leaves of each of these tokens"""
        found = list[Tensor]()
        last = self.model.model.norm.register_forward_pre_hook(
            lambda _, inputs: found.append(inputs[0])
        )
        with torch.inference_mode():
            states = self.model(
                input_ids=torch.tensor([known]), use_cache=False, output_hidden_states=True
            ).hidden_states
        last.remove()
        if not self._after:
            return states[-1][0]
        before = [*states[:-1], *found]
        joined = torch.cat([before[layer + 1][0] for layer in self._after], dim=-1)
        return joined @ self._weights["fc.weight"].T

    def name(self, hidden: Tensor) -> tuple[Tensor, Sequence[int]]:
        """(logits, ids that they are of)"""
        if "lm_head.weight" not in self._weights:
            with torch.inference_mode():
                logits = self.model.lm_head(hidden)
            ids = range(len(logits)) if self.ids is None else self.ids
            return logits[list(ids)], ids
        offsets = self._weights["d2t"]
        ids = (offsets + torch.arange(len(offsets))).tolist()
        return self._weights["lm_head.weight"] @ hidden, ids

    def compute(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """(what logits are made of, the next states)"""
        own = self._weights.get("embed_tokens.weight")
        with torch.inference_mode():
            embedded = self.model.get_input_embeddings()(ids)
        if own is not None and own.shape[1] != HIDDEN:
            embedded = own[ids]
        if self._after is None:
            joined = torch.cat((embedded, states), -1) @ self._weights["fc.weight"].T
            joined = joined + self._weights.get("fc.bias", torch.zeros(HIDDEN))
            hidden = self._complete("layers.0", joined, joined)
            return hidden, hidden
        normed = self._norm("midlayer.input_layernorm", embedded)
        own = self._norm("midlayer.hidden_norm", states)
        residual = own if "norm_before_residual" in self._norms else states
        state = self._complete("midlayer", torch.cat((normed, own), -1), residual)
        hidden = self._norm("norm", state)
        return hidden, hidden if "norm_output" in self._norms else state

    def _complete(self, prefix: str, x: Tensor, residual: Tensor) -> Tensor:
        residual = residual + self._attend(prefix, x)
        x = self._norm(f"{prefix}.post_attention_layernorm", residual)
        gate, up = (self._linear(f"{prefix}.mlp.{n}_proj", x) for n in ("gate", "up"))
        return residual + self._linear(f"{prefix}.mlp.down_proj", functional.silu(gate) * up)

    def _attend(self, prefix: str, x: Tensor) -> Tensor:
        q, k, v = (
            self._linear(f"{prefix}.self_attn.{n}_proj", x)
            .unflatten(-1, (-1, HEAD))
            .transpose(0, 1)
            for n in "qkv"
        )
        positions = torch.arange(len(x), dtype=torch.float32)
        angles = torch.outer(positions, THETA ** (-torch.arange(0, HEAD, 2) / HEAD))
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def turn(y: Tensor) -> Tensor:
            half = HEAD // 2
            return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin

        k, v = (y.repeat_interleave(HEADS // KV_HEADS, 0) for y in (turn(k), v))
        attended = functional.scaled_dot_product_attention(turn(q), k, v, is_causal=True)
        return self._linear(f"{prefix}.self_attn.o_proj", attended.transpose(0, 1).flatten(1))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self._weights[f"{name}.weight"].T

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
        return x * scale * self._weights[f"{name}.weight"]


MIXTURE: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 2,
    "topk_group": 1,
}
RECURRENT: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 24,
}
"""settings of "Qwen3Next": layers with states, of which every fourth attends"""
RECURRENT_MODEL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "head_dim": 16,
    "num_hidden_layers": 4,
    **RECURRENT,
}
"""the least of one that has both kinds of layers"""
NEXTN: dict[str, dict[str, Any]] = {
    "Glm4Moe": MIXTURE,
    "DeepseekV3": {**MIXTURE, **LATENT},
    "Qwen3Next": RECURRENT,
}
"""transformers' families of models with a layer for drafts"""


@dataclass(frozen=True)
class LayerNames:
    """Of a layer for drafts in files; norms in front of what joins, of embedding and state, and
    the last one. `norm_offset`: is added to weights of norms."""

    joined: str
    norms: tuple[str, str, str]
    norm_offset: float = 0.0


BEHIND = LayerNames("eh_proj", ("enorm", "hnorm", "shared_head.norm"))
BESIDE = LayerNames("fc", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), 1.0)


class ReferenceNextn(ReferenceHead):
    """Puts such a layer behind those of a model that `toy_models.make` has saved, and behind
    `before` others; Qwen3-Next's beside them."""

    def __init__(self, model: Any, folder: Path, before: int = 0) -> None:
        beside = model.config.model_type == "qwen3_next"
        self._names = names = BESIDE if beside else BEHIND
        place = "mtp" if beside else f"model.layers.{len(model.model.layers) + before}"
        random = torch.Generator().manual_seed(5 + before)
        layer = type(model.model.layers[-1])(model.config, len(model.model.layers) - 1)
        own = {
            f"{name}.weight": 1 - names.norm_offset + 0.2 * torch.randn(HIDDEN, generator=random)
            for name in names.norms
        }
        own[f"{names.joined}.weight"] = (
            torch.randn(HIDDEN, 2 * HIDDEN, generator=random) / (2 * HIDDEN) ** 0.5
        )
        for tensor in layer.state_dict().values():
            wide = tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.2
            noise = torch.randn(tensor.shape, generator=random) * wide
            tensor.copy_(noise if tensor.dim() > 1 else 1 + noise)
        super().__init__(model, own, None)
        self._block = layer.eval()
        last = f"model.layers.{len(model.model.layers) - 1}."
        file = folder / "model.safetensors"
        saved = load_file(file)
        spelled = self._as_saved(saved, last)
        if beside:
            spelled = {f"layers.0.{name}": tensor for name, tensor in spelled.items()}
        extra = {f"{place}.{name}": tensor for name, tensor in {**own, **spelled}.items()}
        if not beside:
            extra[f"{place}.embed_tokens.weight"] = saved["model.embed_tokens.weight"].clone()
            extra[f"{place}.shared_head.head.weight"] = saved["lm_head.weight"].clone()
        save_file({**saved, **extra}, file)

    def _as_saved(self, saved: dict[str, Tensor], last: str) -> dict[str, Tensor]:
        """The layer's tensors by their names in files, where each expert has its own."""
        found = dict(self._block.state_dict())
        experts = found.pop("mlp.experts.gate_up_proj", None)
        if experts is not None:
            down = found.pop("mlp.experts.down_proj")
            for index in range(len(experts)):
                gate, up = experts[index].chunk(2)
                stem = f"mlp.experts.{index}"
                found[f"{stem}.gate_proj.weight"] = gate.clone()
                found[f"{stem}.up_proj.weight"] = up.clone()
                found[f"{stem}.down_proj.weight"] = down[index].clone()
        wanted = {name.removeprefix(last) for name in saved if name.startswith(last)}
        assert set(found) == wanted, set(found) ^ wanted
        return {name: tensor.contiguous() for name, tensor in found.items()}

    def compute(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            embedded = self.model.get_input_embeddings()(ids)
            of_embedding, of_state, last = self._names.norms
            normed = self._norm(of_embedding, embedded), self._norm(of_state, states)
            x = self._linear(self._names.joined, torch.cat(normed, -1)).unsqueeze(0)
            positions = torch.arange(len(ids)).unsqueeze(0)
            mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
            found = self._block(
                x,
                attention_mask=mask,
                position_ids=positions,
                position_embeddings=self.model.model.rotary_emb(x, positions),
            )
        hidden = found[0] if isinstance(found, tuple) else found
        hidden = self._norm(last, hidden.view(len(ids), -1))
        return hidden, hidden

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
        return x * scale * (self._weights[f"{name}.weight"] + self._names.norm_offset)


def export_layer(whole: Path, folder: Path, number: int) -> None:
    """The layer for multi-token prediction with this number alone, as SGLang saves it."""
    kind = json.loads((whole / "config.json").read_text())["architectures"][0]
    place = f"model.layers.{number}."

    def named(name: str) -> str | None:
        first = "model.layers.0."
        return name.replace(place, first) if name.startswith(place) else None

    keys = {"architectures": [f"{kind}NextN"], "num_hidden_layers": 1}
    rewrite(whole, folder, named, **keys, num_nextn_predict_layers=0)


class ReferenceLayers:
    """A layer for each draft: the one behind another is given the states that this leaves, and
    tokens one further on."""

    ids: list[int] | None = None

    def __init__(self, model: Any, folder: Path, count: int) -> None:
        self._heads = [ReferenceNextn(model, folder, before) for before in range(count)]

    def drafts(self, known: list[int], count: int) -> list[int]:
        ids, states = list(known), self._heads[0].states(known)[: len(known) - 1]
        for ahead, head in enumerate(self._heads[:count], 1):
            hidden, states = head.compute(torch.tensor(ids[ahead:]), states)
            logits, words = head.name(hidden[-1])
            ids.append(words[int(logits.argmax())])
        return ids[len(known) :]


LAYERED = {
    "two layers": ("DeepseekV3", 2),
    "three layers": ("Glm4Moe", 3),
}
"""families of `NEXTN` with so many layers, each of which says one token"""
AFTER = [0, 1, 2]
"""the layers that the toy of EAGLE3 is given"""


@dataclass(frozen=True)
class HeadToys:
    folder: Path
    heads: dict[str, Any]

    def model(self, head: str) -> Path:
        return self.folder / (head if head in NEXTN or head in LAYERED else "model")

    def flags(self, head: str) -> dict[str, Any]:
        if head in NEXTN:
            return {"speculative_algorithm": "NEXTN"}
        if head in LAYERED:
            return {"speculative_algorithm": "NEXTN", "enable_multi_layer_eagle": True}
        return {
            "speculative_algorithm": head.split()[-1],
            "speculative_draft_model_path": str(self.folder / head),
        }


def write_toys(folder: Path, shape: dict[str, int]) -> HeadToys:
    """Models of this shape, and heads for them."""
    shape = {**shape, "num_hidden_layers": 4}
    model = make("Llama", folder / "model", **shape)
    write_byte_tokenizer(folder / "model")
    heads: dict[str, Any] = {
        "EAGLE3": ReferenceHead(model, write_eagle3(folder / "EAGLE3", AFTER), AFTER)
    }
    for name, bias in (("EAGLE", True), ("plain EAGLE", False)):
        heads[name] = ReferenceHead(model, write_eagle(folder / name, bias=bias), None)
    for kind, settings in NEXTN.items():
        own = make(kind, folder / kind, **{**shape, **settings})
        write_byte_tokenizer(folder / kind)
        heads[kind] = ReferenceNextn(own, folder / kind)
    for name, (kind, count) in LAYERED.items():
        layers = {"num_nextn_predict_layers": count}
        own = make(kind, folder / name, **{**shape, **NEXTN[kind], **layers})
        write_byte_tokenizer(folder / name)
        heads[name] = ReferenceLayers(own, folder / name, count)
    return HeadToys(folder, heads)
