"""What the files of a draft must have, by their headers: found before weights are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from vivace.checkpoint.source import ModelSource, SourceError
from vivace.checkpoint.tensor_headers import (
    STEM,
    StoredTensor,
    check_shapes,
    name_head_tensors,
    read_headers,
)
from vivace.config.config import DraftModel, HeadShape
from vivace.models.facts import DecoderFacts, ModelFacts, checkpoint_quantization
from vivace.models.families import FAMILIES

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""(name, shape)"""
BEHIND = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
"""of a layer behind a model's last one: what joins embedding and state, norms around it"""
BESIDE = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
"""the same of one that stands beside the model (Qwen3-Next)"""
HEADS = ("q_proj", "k_proj", "v_proj")
BIASED_LATENTS = ("q_a_proj", "kv_a_proj_with_mqa", "o_proj")
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def read_head_tensors(source: ModelSource) -> dict[str, StoredTensor] | None:
    """By the names that a head's have; None: its files are not read, or are of another format.
    Raises SourceError."""
    if source.format != "safetensors":
        return None
    found = read_headers(source.files)
    return {name: found[stored] for stored, name in name_head_tensors(found).items()}


def check_head_tensors(
    draft: DraftModel,
    head: HeadShape,
    features: int,
    tensors: Mapping[str, StoredTensor] | None,
    *,
    third: bool,
) -> None:
    """`features`: the model's hidden size. `third`: of EAGLE3. What a quantization makes of them is
    not looked at. Raises SourceError."""
    if tensors is None or checkpoint_quantization(draft.source) is not None:
        return
    wanted = dict(eagle_layer(draft.facts, third=third))
    hidden = draft.facts.hidden_size
    if not third:
        wanted["fc.weight"] = hidden, 2 * hidden
    elif head.taps:
        wanted["fc.weight"] = hidden, len(head.taps) * features
    if head.own_words:
        wanted[OUTPUT] = head.vocabulary, hidden
    if head.own_embedding:
        wanted[EMBEDDING.removeprefix(STEM)] = draft.facts.vocabulary, hidden
    check_shapes(draft.source.path, tensors, wanted.items())


def check_layer_tensors(source: ModelSource, own: ModelFacts, head: HeadShape) -> int:
    """Of layers for multi-token prediction; repositories of quantized weights may have dropped
    them. `own`: of the model that they belong to. How many there are. Raises SourceError."""
    if source.format != "safetensors":
        return own.draft_layers
    beside = FAMILIES[own.architecture].draft_stem
    places = range(head.first_layer, head.first_layer + head.behind)
    stems = [beside] if beside else [f"model.layers.{place}." for place in places]
    joined = (BESIDE if beside else BEHIND)[0]
    found = read_headers(source.files, tuple(stems))
    plain = checkpoint_quantization(source) is None
    for stem in stems:
        if not any(name.startswith(f"{stem}{joined}.") for name in found):
            raise SourceError(
                f"{source.path}: its files have no {stem}{joined}, so they lack the layer for "
                "drafts that models of its architecture have, or that config.json tells of "
                "(num_nextn_predict_layers); give a checkpoint that has it with "
                "--speculative-draft-model-path, or use NGRAM"
            )
        wanted = nextn_layer(own, stem)
        check_shapes(source.path, found, wanted if plain else stored_so(wanted, found))
    layers = {name.split(".")[2] for name in found if name.startswith(f"{beside}layers.")}
    return max(own.draft_layers, len(layers)) if beside else own.draft_layers


def stored_so(wanted: Shapes, found: Mapping[str, StoredTensor]) -> Shapes:
    """Without matrices that a format stores in its own way, whatever it has of them."""
    layers = {name.rpartition(".")[0] for name in found}
    for name, shape in wanted:
        if len(shape) == 1 or name.rpartition(".")[0] not in layers:
            yield name, shape


def check_whole_model(draft: DraftModel) -> None:
    """Of a smaller model: files that are cut, or of another one, or a head. Raises SourceError."""
    source, facts = draft.source, draft.facts
    found = read_headers(source.files) if source.format == "safetensors" else {}
    if "fc.weight" in name_head_tensors(found).values():
        raise SourceError(f"{source.path}: a head, no model; use --speculative-algorithm EAGLE")
    if checkpoint_quantization(source) is None and not facts.tied and EMBEDDING in found:
        check_shapes(source.path, found, [(OUTPUT, (facts.vocabulary, facts.hidden_size))])


def eagle_layer(own: ModelFacts, *, third: bool) -> Shapes:
    """Of a head. `third`: of EAGLE3."""
    hidden = own.hidden_size
    stem, inputs = ("midlayer", 2 * hidden) if third else ("layers.0", hidden)
    for name, shape in attention_matrices(own, inputs):
        yield f"{stem}.self_attn.{name}.weight", shape
    yield from gated_mlp(f"{stem}.mlp", hidden, own.intermediate_size)
    norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm") if third else ()
    yield from vectors((f"{stem}.post_attention_layernorm", *norms), hidden)


def nextn_layer(own: ModelFacts, stem: str) -> Shapes:
    """Of one for multi-token prediction, whose names begin with `stem`. `own`: of its model, whose
    last layer it is like, or first, where it stands beside it."""
    decoder, hidden = own.decoder, own.hidden_size
    assert decoder is not None
    beside = bool(FAMILIES[own.architecture].draft_stem)
    joined, *norms = BESIDE if beside else BEHIND
    yield f"{stem}{joined}.weight", (hidden, 2 * hidden)
    yield from vectors((f"{stem}{name}" for name in norms), hidden)
    stem, index = (f"{stem}layers.0.", 0) if beside else (stem, own.layers - 1)
    ends = ("input_layernorm", "post_attention_layernorm")
    yield from vectors((f"{stem}{name}" for name in ends), hidden)
    biased = BIASED_LATENTS if own.latent else (*HEADS, "o_proj") if beside else HEADS
    for name, shape in attention_matrices(own, hidden):
        yield f"{stem}self_attn.{name}.weight", shape
        if decoder.attention_bias and name in biased:
            yield f"{stem}self_attn.{name}.bias", shape[:1]
    for name, size in head_norms(own, decoder):
        yield f"{stem}self_attn.{name}.weight", (size,)
    yield from feed_forward(own, decoder, f"{stem}mlp", index)


def attention_matrices(own: ModelFacts, inputs: int) -> Shapes:
    latent, hidden = own.latent, own.hidden_size
    if latent is not None:
        queries = own.heads * (latent.nope + latent.rope)
        if latent.q_rank:
            yield "q_a_proj", (latent.q_rank, inputs)
        yield "q_b_proj" if latent.q_rank else "q_proj", (queries, latent.q_rank or inputs)
        yield "kv_a_proj_with_mqa", (latent.kv_rank + latent.rope, inputs)
        yield "kv_b_proj", (own.heads * (latent.nope + latent.value), latent.kv_rank)
    else:
        gated = FAMILIES[own.architecture].reads("full_attention_interval")
        yield "q_proj", ((1 + gated) * own.heads * own.head_dim, inputs)
        yield from ((name, (own.kv_heads * own.head_dim, inputs)) for name in ("k_proj", "v_proj"))
    yield "o_proj", (hidden, own.attended_width)


def head_norms(own: ModelFacts, decoder: DecoderFacts) -> Iterator[tuple[str, int]]:
    if (latent := own.latent) is not None:
        yield "kv_a_layernorm", latent.kv_rank
        if latent.q_rank:
            yield "q_a_layernorm", latent.q_rank
    elif decoder.qk_norm or FAMILIES[own.architecture].reads("full_attention_interval"):
        yield from (("q_norm", own.head_dim), ("k_norm", own.head_dim))


def feed_forward(own: ModelFacts, decoder: DecoderFacts, name: str, index: int) -> Shapes:
    """What follows the attention of a layer; one at a time, as it may tell of millions."""
    experts, hidden = decoder.experts, own.hidden_size
    if experts is None or not experts.layers[index]:
        yield from gated_mlp(name, hidden, own.intermediate_size)
        return
    yield f"{name}.gate.weight", (experts.count, hidden)
    if experts.choice.corrected:
        yield f"{name}.gate.e_score_correction_bias", (experts.count,)
    if experts.shared_width:
        shared = "shared_expert" if experts.shared_gate else "shared_experts"
        yield from gated_mlp(f"{name}.{shared}", hidden, experts.shared_width)
    if experts.shared_gate:
        yield f"{name}.shared_expert_gate.weight", (1, hidden)
    for expert in range(experts.count):
        yield from gated_mlp(f"{name}.experts.{expert}", hidden, experts.width)


def gated_mlp(name: str, hidden: int, inner: int) -> Shapes:
    yield f"{name}.gate_proj.weight", (inner, hidden)
    yield f"{name}.up_proj.weight", (inner, hidden)
    yield f"{name}.down_proj.weight", (hidden, inner)


def vectors(names: Iterable[str], size: int) -> Shapes:
    return ((f"{name}.weight", (size,)) for name in names)
