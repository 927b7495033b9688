"""Every causal language model that the installed transformers knows, at toy size with random
weights: served as the engine does it, or refused before loading, and nothing else.

    python tests/kit/every_architecture.py [MODEL_TYPE ...]      prints what came of each
    python tests/kit/every_architecture.py --write               writes the table of docs/models.md
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from paged_model import PagedModel, load, traced
from toy_models import VOCABULARY, reference, scramble, tokens

from vivace.checkpoint.source import SourceError, locate
from vivace.models.transformers_facts import TraceRequest
from vivace.models.transformers_support import FILE, ModelSupport, SupportTable
from vivace.models.transformers_trace import CannotTrace, model_class

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "sliding_window": 7,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"), 80),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "dff", "decoder_layers"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    "head_dim": 16,
    "global_head_dim": 32,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "qk_head_dim": 24,
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    "n_positions": 128,
    "n_ctx": 128,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
    "image_size": 16,
    "patch_size": 8,
}
"""what a configuration that has the key is given"""
LATENT = {"head_dim": 8, "num_key_value_heads": 4}
"""multi-head latent attention: head_dim is that of the rotated part"""
ALTERNATING = ["sliding_attention", "full_attention"] * 2
SHARED = {"layer_types": ALTERNATING, "num_kv_shared_layers": 2}
SPECIAL: dict[str, dict[str, Any]] = {
    "gemma4_text": SHARED,
    "gemma4_unified_text": SHARED,
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "fuyu": {"text_config": {"model_type": "persimmon", **SIZES}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 7},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"] * 2},
    "moshi": {"audio_vocab_size": 32},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
}
"""of a model type, where that does not do"""
NOT_TRIED = {
    "blt": "its patches come from a second network",
    "cohere_compass_text": "its configuration's defaults do not go together",
    "dots3_note": "its layers need configurations of their own",
    "dots3_note_text": "its layers need configurations of their own",
    "gemma4_assistant": "a drafter for another model",
    "gemma4_unified_assistant": "a drafter for another model",
    "moss_transcribe_diarize": "it hears: its toy would not be small",
    "musicgen": "it draws sounds from a text encoder",
    "musicgen_melody": "it draws sounds from a text encoder",
}
"""no toy of it is made here: it is traced and checked like every other when somebody loads it"""
LARGEST_TOY = 200_000_000
"""parameters"""
PROMPT, DRAWN = 11, 12
UNEXPECTED = ("it does not take", "it cannot build", "its forward", "its head")


def toy_config(model_type: str) -> Any:
    kind = transformers.CONFIG_MAPPING[model_type]
    return kind(**sizes_for(kind))


def sizes_for(kind: Any) -> dict[str, Any]:
    try:
        given = kind().to_dict()
    except Exception:  # its defaults do not go together
        given = dict.fromkeys(SIZES)
    names = {**dict.fromkeys(given), **getattr(kind, "attribute_map", {})}
    found = {key: value for key, value in SIZES.items() if key in names}
    if "qk_rope_head_dim" in names:
        found |= {key: value for key, value in LATENT.items() if key in names}
    for key, inner in (getattr(kind, "sub_configs", None) or {}).items():
        if hasattr(inner, "model_type") and inner is not transformers.AutoConfig:
            found[key] = sizes_for(inner)
    return {**found, **SPECIAL.get(kind.model_type, {})}


def outcome(model_type: str, folder: Path) -> str:
    """ "" = equal tokens, else why it was refused. Raises whatever else comes of it."""
    try:
        model_class(TraceRequest(architecture(model_type), {"model_type": model_type}))
    except CannotTrace as error:
        return str(error)
    theirs = toy(model_type, folder)
    try:
        traced(locate(str(folder)))
    except SourceError as error:
        reason = str(error).partition("): ")[2].removesuffix(". docs/models.md lists what is")
        if reason.startswith(UNEXPECTED) and "ImportError" not in reason:
            reference(theirs(), [3])  # a toy that transformers cannot run proves nothing
        return reason
    network = theirs()
    prompt = tokens(PROMPT, 4)
    wanted = greedy(prompt, lambda ids: reference(network, ids)[-1])
    ours = PagedModel(load(folder, implementation="transformers"))
    ours.step({"other": tokens(5, 9)})
    fed = {"mine": 0}

    def last(ids: list[int]) -> torch.Tensor:
        fresh, fed["mine"] = ids[fed["mine"] :], len(ids)
        head, tail = fresh[: len(fresh) // 2], fresh[len(fresh) // 2 :]
        if head:
            ours.step({"mine": head})
        return ours.step({"mine": tail, "other": [7]})["mine"][-1]

    found = greedy(prompt, last)
    assert found == wanted, f"{model_type}: WRONG TOKENS {found} instead of {wanted}"
    return ""


def greedy(ids: list[int], last_logits: Any) -> list[int]:
    ids = list(ids)
    for _ in range(DRAWN):
        ids.append(int(last_logits(ids).argmax()))
    return ids


def toy(model_type: str, folder: Path) -> Any:
    """Write config.json; returns what writes the weights and gives transformers' own model."""
    config = toy_config(model_type)
    kind = class_for(model_type)
    text = config if kind.config_class is type(config) else config.get_text_config()
    config.architectures = [kind.__name__]
    config.save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")

    def write() -> Any:
        torch.manual_seed(5)
        text._attn_implementation = "eager"
        with torch.device("meta"):
            size = sum(one.numel() for one in kind._from_config(text).parameters())
        assert size < LARGEST_TOY, f"the toy has {size} parameters"
        model = kind._from_config(text, dtype=torch.float32)
        scramble(model)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder / "saved")
        for file in (folder / "saved").glob("*.safetensors*"):
            file.rename(folder / file.name)
        return model.eval()

    return write


def known() -> list[str]:
    """Model types whose configuration leads to a causal language model."""
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return sorted(names)


def class_for(model_type: str) -> Any:
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[transformers.CONFIG_MAPPING[model_type]]


def architecture(model_type: str) -> str:
    return class_for(model_type).__name__


def tried(model_type: str) -> ModelSupport:
    if untried := NOT_TRIED.get(model_type, ""):
        return ModelSupport(model_type, architecture(model_type), untried=untried)
    with tempfile.TemporaryDirectory() as folder:
        refused = outcome(model_type, Path(folder))
    return ModelSupport(model_type, architecture(model_type), refused=refused)


def main(arguments: list[str]) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    found: list[ModelSupport] = []
    for model_type in [one for one in arguments if one != "--write"] or known():
        try:
            found.append(tried(model_type))
            what = found[-1].refused or found[-1].untried or "equal"
        except Exception as error:
            what = f"FAILED {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(f"{model_type:28} {what}", flush=True)
    if "--write" in arguments:
        text = msgspec.json.encode(SupportTable(transformers.__version__, tuple(found)))
        FILE.write_bytes(msgspec.json.format(text) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
