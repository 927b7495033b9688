"""What the files of a draft must have, by their headers: found before the model's weights are
read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vivace.checkpoint.source import ModelSource, SourceError
from vivace.checkpoint.tensor_headers import (
    STEM,
    StoredTensor,
    name_head_tensors,
    read_headers,
    read_integers,
)
from vivace.config.config import DraftModel, HeadShape
from vivace.models.facts import ModelFacts, checkpoint_quantization
from vivace.models.families import FAMILIES

MAP = "d2t"
BEHIND = ("eh_proj", "enorm", "hnorm")
"""what joins embedding and state in a layer behind a model's last one, and the norms in front"""
BESIDE = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
"""the same of one that stands beside the model (Qwen3-Next)"""
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def read_head_tensors(source: ModelSource) -> dict[str, StoredTensor] | None:
    """By the names that a head's have; None: its files are not read, or are of another format.
    Raises SourceError."""
    if source.format != "safetensors":
        return None
    found = read_headers(source.files)
    return {name: found[stored] for stored, name in name_head_tensors(found).items()}


def read_ids(
    source: ModelSource, tensors: Mapping[str, StoredTensor], vocabulary: int, whole: int
) -> tuple[int, ...]:
    """The model's ids of a head's `vocabulary`; none: they are the same. Raises SourceError."""
    if MAP not in tensors:
        if vocabulary < whole:
            raise SourceError(
                f"{source.path}: the tensor {MAP!r} is missing, which says what the "
                f"{vocabulary} tokens of draft_vocab_size are; fetch the head again"
            )
        return ()
    if tensors[MAP].shape != (vocabulary,):  # before it is read: it may be of any size
        raise SourceError(
            f"{tensors[MAP].label} has the shape {list(tensors[MAP].shape)}, draft_vocab_size is "
            f"{vocabulary}; one of the two is damaged: fetch it again"
        )
    offsets = read_integers(tensors[MAP])
    ids = tuple(own + offset for own, offset in enumerate(offsets))
    if wrong := next((one for one in ids if not 0 <= one < whole), None):
        own = ids.index(wrong)
        raise SourceError(
            f"{tensors[MAP].label}: entry {own} is {offsets[own]}, which makes token {wrong} of "
            f"{whole}; it holds offsets, the model's id less the head's"
        )
    return ids


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
    wanted = dict(layer_shapes(draft.facts, third=third))
    hidden = draft.facts.hidden_size
    if not third:
        wanted["fc.weight"] = hidden, 2 * hidden
    elif head.taps:
        wanted["fc.weight"] = hidden, len(head.taps) * features
    if head.own_words:
        wanted[OUTPUT] = head.vocabulary, hidden
    if head.own_embedding:
        wanted[EMBEDDING.removeprefix(STEM)] = draft.facts.vocabulary, hidden
    check_tensors(draft.source, tensors, wanted)


def layer_shapes(own: ModelFacts, *, third: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = own.hidden_size, own.intermediate_size
    queries, keys = own.heads * own.head_dim, own.kv_heads * own.head_dim
    stem, inputs = ("midlayer", 2 * hidden) if third else ("layers.0", hidden)
    for part, shape in (
        ("self_attn.q_proj", (queries, inputs)),
        ("self_attn.k_proj", (keys, inputs)),
        ("self_attn.v_proj", (keys, inputs)),
        ("self_attn.o_proj", (hidden, queries)),
        ("mlp.gate_proj", (inner, hidden)),
        ("mlp.up_proj", (inner, hidden)),
        ("mlp.down_proj", (hidden, inner)),
        ("post_attention_layernorm", (hidden,)),
    ):
        yield f"{stem}.{part}.weight", shape
    if third:
        for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm"):
            yield f"{name}.weight", (hidden,)


def check_layer_tensors(source: ModelSource, own: ModelFacts, head: HeadShape) -> None:
    """Of layers for multi-token prediction; quantized repositories may have dropped them. `own`: of
    the model that they belong to. Raises SourceError."""
    if source.format != "safetensors":
        return
    beside = FAMILIES[own.architecture].draft_stem
    places = range(head.first_layer, head.first_layer + head.behind)
    stems = [beside] if beside else [f"model.layers.{place}." for place in places]
    joined, *norms = BESIDE if beside else BEHIND
    found = read_headers(source.files, tuple(stems))
    for stem in stems:
        if not any(name.startswith(f"{stem}{joined}.") for name in found):
            raise SourceError(
                f"{source.path}: its files have no {stem}{joined}, so they lack the layer for "
                "drafts that models of its architecture have, or that config.json tells of "
                "(num_nextn_predict_layers); give a checkpoint that has it with "
                "--speculative-draft-model-path, or use NGRAM"
            )
        check_tensors(source, found, {f"{stem}{name}.weight": (own.hidden_size,) for name in norms})


def check_whole_model(draft: DraftModel) -> None:
    """Of a smaller model: files that are cut, or of another one. Raises SourceError."""
    source, facts = draft.source, draft.facts
    if source.format != "safetensors":
        return
    found = read_headers(source.files)
    plain = checkpoint_quantization(source) is None
    if plain and not facts.tied and EMBEDDING in found:
        check_tensors(source, found, {OUTPUT: (facts.vocabulary, facts.hidden_size)})


def check_tensors(
    source: ModelSource,
    tensors: Mapping[str, StoredTensor],
    wanted: Mapping[str, tuple[int, ...]],
) -> None:
    for name, shape in wanted.items():
        if (found := tensors.get(name)) is None:
            raise SourceError(
                f"{source.path}: the tensor {name!r} is missing, which its config.json asks for; "
                "fetch the draft again, or use NGRAM"
            )
        if found.shape != shape:
            raise SourceError(
                f"{found.label} has the shape {list(found.shape)}, config.json and the model need "
                f"{list(shape)}; use a draft that was made for it, or fetch it again"
            )
