"""Every family at toy size: logits equal transformers', whatever the chunks and the batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from draft_head_toys import RECURRENT
from paged_model import ONCE, PagedModel, load
from safetensors.torch import load_file
from toy_models import GROUPED, LATENT, config_class, make, reference, tokens

from vivace.checkpoint.source import SourceError, locate
from vivace.models.facts import read_facts
from vivace.models.registry import ARCHITECTURES, check_architecture
from vivace.platforms.cache import bytes_per_token

SLIDING = {"sliding_window": 7}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
LLAMA4 = {
    "head_dim": 16,
    "num_local_experts": 4,
    "intermediate_size_mlp": 112,
    "attention_chunk_size": 10,
    "floor_scale": 8,
    "attn_scale": 0.4,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 32, "num_key_value_heads": 6}),
    "mistral-sliding": ("Mistral", SLIDING),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-sliding": ("Qwen2", {**SLIDING, "use_sliding_window": True, "max_window_layers": 1}),
    "internlm2": ("InternLM2", {}),
    "internlm2-plain": ("InternLM2", {"bias": False, "num_key_value_heads": 6}),
    "internlm2-tied": ("InternLM2", {"tie_word_embeddings": True, "num_key_value_heads": 3}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 3, **SLIDING}),
    "mixtral-full": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 1}),
    "qwen2-moe": ("Qwen2Moe", EXPERTS | {"shared_expert_intermediate_size": 48}),
    "qwen2-moe-mixed": ("Qwen2Moe", EXPERTS | {
        "shared_expert_intermediate_size": 24, "mlp_only_layers": [1], "qkv_bias": False,
        "norm_topk_prob": True, "use_sliding_window": True, "max_window_layers": 2, **SLIDING}),
    "qwen3-moe": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-mixed": ("Qwen3Moe", EXPERTS | {
        "head_dim": 16, "decoder_sparse_step": 2, "attention_bias": True,
        "tie_word_embeddings": True, "use_sliding_window": True, **SLIDING}),
    "qwen3-next": ("Qwen3Next", RECURRENT | {"num_hidden_layers": 5, "head_dim": 16}),
    "qwen3-next-listed": ("Qwen3Next", RECURRENT | {
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "head_dim": 32, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 2,
        "mlp_only_layers": [1], "attention_bias": True, "tie_word_embeddings": True,
        "norm_topk_prob": False, "partial_rotary_factor": 0.5}),
    "deepseek-v2": ("DeepseekV2", LATENT | {
        "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
        "rope_parameters": YARN}),
    "deepseek-v2-lite": ("DeepseekV2", LATENT | {
        "q_lora_rank": None, "n_shared_experts": 2, "mlp_bias": True, "v_head_dim": 16}),
    "deepseek-v3": ("DeepseekV3", LATENT | {"n_group": 3, "topk_group": 2}),
    "deepseek-v3-yarn": ("DeepseekV3", LATENT | {
        "n_group": 1, "topk_group": 1, "attention_bias": True, "rope_parameters": YARN,
        "norm_topk_prob": False}),
    "deepseek-v3-halves": ("DeepseekV3", LATENT | {
        "q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_interleave": False,
        "first_k_dense_replace": 0, "tie_word_embeddings": True}),
    "glm4-moe": ("Glm4Moe", GROUPED | {"head_dim": 16, "n_group": 3, "topk_group": 2}),
    "glm4-moe-normed": ("Glm4Moe", GROUPED | {
        "head_dim": 32, "use_qk_norm": True, "attention_bias": True, "norm_topk_prob": False,
        "partial_rotary_factor": 0.25, "first_k_dense_replace": 0, "n_shared_experts": 2}),
    "llama4": ("Llama4Text", LLAMA4 | {"num_hidden_layers": 4}),
    "llama4-dense": ("Llama4Text", LLAMA4 | {
        "interleave_moe_layer_step": 2, "num_experts_per_tok": 2, "use_qk_norm": False,
        "no_rope_layers": [1, 0, 1], "attention_bias": True, "tie_word_embeddings": True,
        "layer_types": ["full_attention", "chunked_attention", "chunked_attention"]}),
    "gpt-oss": ("GptOss", SLIDING | {
        "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16, "swiglu_limit": 1.5}),
    "gpt-oss-full": ("GptOss", {
        "num_local_experts": 4, "num_experts_per_tok": 3, "head_dim": 32,
        "layer_types": ["full_attention"] * 3, "attention_bias": False,
        "tie_word_embeddings": True, "swiglu_alpha": 1.2}),
    "gemma2": ("Gemma2", {**SLIDING, "head_dim": 16, "query_pre_attn_scalar": 10}),
    "gemma3": ("Gemma3Text", {**SLIDING, "head_dim": 16, "query_pre_attn_scalar": 24,
                              "num_hidden_layers": 7}),
}  # fmt: skip


PROMPT = tokens(9)


@dataclass(frozen=True)
class Toy:
    """A family's model; `theirs`: transformers', which nobody changes"""

    folder: Path
    theirs: Any

    @cached_property
    def greedy(self) -> list[int]:
        """64 tokens behind PROMPT"""
        with torch.inference_mode():
            found = self.theirs.generate(
                torch.tensor([PROMPT]), max_new_tokens=64, do_sample=False, eos_token_id=None
            )
        return found[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Toy]:
    @cache
    def made(name: str) -> Toy:
        kind, settings = FAMILIES[name]
        folder = tmp_path_factory.mktemp(name)
        return Toy(folder, make(kind, folder, **settings))

    return made


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name: str, toys: Callable[[str], Toy]) -> None:
    toy = toys(name)
    ours = PagedModel(load(toy.folder))
    first, second = tokens(33, 1), tokens(21, 2)
    wanted = {"a": reference(toy.theirs, first), "b": reference(toy.theirs, second)}

    # One prompt in uneven chunks, the other joining in the middle, then both decoding.
    found: dict[str, list[torch.Tensor]] = {"a": [], "b": []}
    plan = [{"a": 9}, {"a": 1, "b": 6}, {"a": 13, "b": 5}, {"b": 1}] + 9 * [{"a": 1, "b": 1}]
    at = {"a": 0, "b": 0}
    streams = {"a": first, "b": second}
    for counts in [*plan, {"a": 1}]:
        spans = {key: streams[key][at[key] : at[key] + count] for key, count in counts.items()}
        for key, logits in ours.step(spans).items():  # type: ignore[arg-type]
            found[key].append(logits)
            at[key] += counts[key]
    assert at == {"a": 33, "b": 21}
    for key, logits in wanted.items():
        assert logits.std() > 0.1
        torch.testing.assert_close(torch.cat(found[key]), logits, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_64_greedy_tokens_equal_transformers(name: str, toys: Callable[[str], Toy]) -> None:
    toy = toys(name)
    ours = PagedModel(load(toy.folder))
    found = [int(ours.feed("a", PROMPT, [9])[-1].argmax())]
    while len(found) < 64:
        found.append(int(ours.step({"a": found[-1:]})["a"].argmax()))
    assert found == toy.greedy
    assert len(set(found)) > 4 or toy.theirs.config.tie_word_embeddings  # those repeat themselves


@ONCE
@pytest.mark.parametrize("name", FAMILIES)
def test_facts_describe_the_model(name: str, toys: Callable[[str], Toy]) -> None:
    kind, toy = FAMILIES[name][0], toys(name)
    folder, theirs = toy.folder, toy.theirs
    facts = read_facts(locate(str(folder)))
    config = theirs.config
    assert facts.architecture == type(theirs).__name__
    assert (facts.layers, facts.heads) == (config.num_hidden_layers, 6)
    assert (facts.vocabulary, facts.context, facts.dtype) == (96, 128, "float32")
    assert facts.eos_ids == (2,)
    assert facts.tied == bool(config.tie_word_embeddings)
    matrices = sum(
        weight.numel()
        for name, weight in theirs.named_parameters()
        if weight.dim() > 1 and not name.endswith("_bias")
    )
    assert facts.parameters == matrices
    shown = getattr(config, "layer_types", None) or ["full_attention"] * facts.layers
    if name in ("mistral-sliding", "mixtral", "qwen3-moe-mixed"):  # all layers
        shown = ["sliding_attention"] * facts.layers
    slides = [7 if kind == "sliding_attention" else None for kind in shown]
    assert list(facts.layer_windows) == slides
    chunks = [10 if kind == "chunked_attention" else None for kind in shown]
    layers = load(folder).attention_layers
    assert [getattr(one, "chunk", None) for one in layers] == chunks
    layer = 2 * facts.kv_heads * facts.head_dim
    if kind.startswith("Deepseek"):
        layer = 32 + 16  # a latent, and what is rotated of a key
    keeping = len(shown) - shown.count("linear_attention")
    assert facts.kv_elements == keeping * layer
    assert facts.full_kv_elements == (keeping - len(slides) + slides.count(None)) * layer
    assert bytes_per_token(load(folder).attention_layers, torch.float32) == 4 * facts.kv_elements


def test_every_architecture_is_compared() -> None:
    """Each that Vivace has written has a row above."""
    configs = [config_class(kind) for kind, _ in FAMILIES.values()]
    models = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    assert {models[config].__name__ for config in configs} == set(ARCHITECTURES)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen3"])
def test_a_body_without_a_head(kind: str, tmp_path: Path) -> None:
    """As AutoModel saves it, and models of embeddings are published."""
    theirs = make(kind, tmp_path, head_dim=16)
    theirs.base_model.save_pretrained(tmp_path)
    source = locate(str(tmp_path), overrides={"tie_word_embeddings": True})
    assert source.config["architectures"] == [f"{kind}Model"]
    assert read_facts(source).architecture == f"{kind}ForCausalLM"
    ids = tokens(9)
    with torch.inference_mode():
        wanted = theirs.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    paged = PagedModel(load(None, source=source))
    paged.model.lm_head = lambda hidden: hidden  # type: ignore[method-assign]
    torch.testing.assert_close(paged.feed("a", ids, [9]), wanted, rtol=1e-4, atol=2e-4)


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    theirs = make("Llama", tmp_path)
    ours = PagedModel(load(tmp_path, dtype=torch.bfloat16), dtype=torch.bfloat16)
    ids = tokens(24)
    found = ours.feed("a", ids, [16, *[1] * 8])
    assert found.dtype == torch.float32
    wanted = reference(theirs, ids)
    close = torch.nn.functional.cosine_similarity(found, wanted, dim=-1)
    assert close.min() > 0.995


def test_overrides_change_the_model(tmp_path: Path) -> None:
    """--json-model-override-args with fewer layers leaves weights over, which is an error."""
    make("Llama", tmp_path)
    with pytest.raises(ValueError, match=r"layers\.1"):
        load(tmp_path, overrides={"num_hidden_layers": 1})
    theta = load(tmp_path, overrides={"rope_parameters": {"rope_theta": 77.0}})
    ids = tokens(20)
    changed = PagedModel(theta).feed("a", ids, [20])
    assert not torch.allclose(changed, PagedModel(load(tmp_path)).feed("a", ids, [20]))


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Gemma2", "Gemma3Text"])
def test_a_tied_model_with_a_head_of_its_own_is_what_transformers_makes_of_it(
    kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    make(kind, tmp_path, tie_word_embeddings=False, head_dim=16)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tensors = load_file(file)
    assert not torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = tokens(20)
    found = PagedModel(load(tmp_path)).feed("a", ids, [20])
    torch.testing.assert_close(found, reference(theirs, ids), rtol=1e-4, atol=2e-4)


def test_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    with pytest.raises(SourceError, match=r"FooForCausalLM .*Qwen3ForCausalLM"):
        check_architecture(locate(str(tmp_path), overrides={"architectures": ["FooForCausalLM"]}))


def test_quantized_safetensors_are_refused(tmp_path: Path) -> None:
    make("Llama", tmp_path)
    with pytest.raises(SourceError, match=r"quantized \('gptq'\)"):
        load(tmp_path, overrides={"quantization_config": {"quant_method": "gptq"}})


def test_dummy_weights_need_no_files_and_repeat(tmp_path: Path) -> None:
    make("Gemma3Text", tmp_path, head_dim=16)
    (tmp_path / "model.safetensors").unlink()
    source = locate(str(tmp_path), load_format="dummy")
    ids = tokens(12)
    runs = [PagedModel(load(None, source=source)).feed("a", ids, [5, 7]) for _ in range(2)]
    assert torch.equal(*runs)
    assert torch.isfinite(runs[0]).all()
    assert runs[0].std() > 0


@ONCE
@pytest.mark.parametrize("name", FAMILIES)
def test_a_configuration_without_a_rotary_base(name: str, tmp_path: Path) -> None:
    """It means what it means to transformers."""
    kind, settings = FAMILIES[name]
    make(kind, tmp_path, **settings)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    file.write_text(json.dumps({key: saved[key] for key in saved if key[:5] != "rope_"}))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    bases = {
        key: theirs.get(key, theirs)["rope_theta"]
        for key in ("full_attention", "sliding_attention")
    }
    decoder = read_facts(locate(str(tmp_path))).decoder
    assert decoder is not None
    found = {"full_attention": decoder.rope.theta, "sliding_attention": decoder.local_rope.theta}
    assert found == bases
