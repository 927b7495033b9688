"""`python -m vivace.models.document`: write docs/models.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from vivace.checkpoint.gguf_blocks import decode_blocks
from vivace.checkpoint.gguf_config import ARCHITECTURES as GGUF
from vivace.checkpoint.gguf_config import SLIDING_LLAMA
from vivace.checkpoint.gguf_mixtures import CORRECTED_DEEPSEEK, MIXED_LLAMA
from vivace.checkpoint.gguf_types import GGML_QUANT_SIZES, GGMLQuantizationType
from vivace.models.class_name import LANGUAGE_MODELS
from vivace.models.families import FAMILIES, Family
from vivace.models.pooling.document import pooled_families
from vivace.models.registry import ARCHITECTURES
from vivace.models.transformers_support import ModelSupport, read_support
from vivace.platforms.blocks import INT8_ACTIVATION_KINDS, KEPT, PLAIN

START = """# Models

<!-- written by python -m vivace.models.document -->

`--model-path` takes a folder with config.json, tokenizer.json (or Kimi's tiktoken.model) and
safetensors files, a GGUF file, or a model's name on the hub. The architecture is the first of
`architectures` in config.json, or `general.architecture` of a GGUF file.
"""
OWN = """## Architectures of Vivace

They run on the native CPU kernels, with captured decode steps, from safetensors (F32, F16, BF16;
int8 with a scale for each output channel; FP8 of e4m3, with blocks as DeepSeek's or as
compressed-tensors and fbgemm_fp8 store it; AWQ of 4 bits, GPTQ of 2, 4 and 8;
ModelSlim's W8A8, W8A8_DYNAMIC, W8A16, W4A8_DYNAMIC) and from GGUF files. Weights of 4 bits stay
4 bits in memory, as GGUF's blocks: exactly where zero points are 8 (symmetric), else with the
minimum of a group in float16. `--quantization w8a8_int8` and `w8a16` make int8 of matrices that
are floats or blocks. InternLM2's `wqkv` is taken apart, of AWQ and GPTQ, too. A tokenizer is read
from tokenizer.json, tiktoken.model (Kimi-K2) or tokenizer.model (SentencePiece's BPE).
Rotary embedding may be plain, linear, dynamic, llama3, yarn
or longrope.
"""
PICTURES = """
Three of four layers of Qwen3-Next keep a state of fixed size for each request, in float32, in the
place of keys and values: of the published shape 75 MiB. The prefix cache saves states, too: behind
every `--mamba-track-interval` tokens of a prompt and an answer, from where others go on. Prompts
may be cut anywhere, and answers are the same.

States may take `--mamba-full-memory-ratio` (0.9) times the memory of the other layers' keys and
values. A running request has two, one more for each draft, and one of its own to save; where there
is no room for those of `--max-running-requests`, this number is lowered, and the log says so. What
is left of their share is for saved states (`--max-mamba-cache-size`): at most one for each running
request and one for every `--mamba-track-interval` tokens of the pool, none with
`--disable-radix-cache`. What states do not need, keys and values get.

Of {classes} the language model is served, as {served}: text only; what reads pictures is not
loaded.
"""
SHARDED = """## Files of single ranks

Ranks read only their own slices of safetensors and GGUF files. Where that is too slow, as over a
network, `vivace save-sharded-state --output FOLDER` with the flags of `vivace serve` writes what
each rank takes into files of its own, as SGLang and vLLM name them
(model-rank-0-part-0.safetensors ...), and `--load-format sharded_state` reads them: each rank
opens its own files, and a node needs only those of its ranks (that all were made of one model is
compared when nodes join). They have the checkpoint's numbers as they are, not what a device makes
of them, so another CPU and another `--dtype` read them too. The flags that
divide the model (--tp-size, --pp-size, --ep-size, --enable-dp-attention, --moe-dense-tp-size,
copies and places of experts), `--quantization`, `--is-embedding` and the model must be those of
the saving; what differs is named before anything is loaded. Not with GGUF files, --model-impl
transformers and --enable-eplb. Files that SGLang or vLLM saved hold their own layers and are not
read.
"""
DEVICES = """## Numbers of devices

`--tp-size` divides attention heads (heads of keys may be fewer: several devices have the same
one), and each gets an even share of what is inside of MLPs and experts. A vocabulary is divided
whatever its size is. Numbers that share a scale stay together: groups of AWQ and GPTQ, blocks of
FP8, MXFP4 and of GGUF types that are kept. Experts are divided in whole blocks, of which some
devices have one more, so gpt-oss in MXFP4 (90 blocks) runs on 4 and 8 devices without padding.
Other layers are divided evenly, or the start ends, before anything is loaded, with the numbers
that are possible; `vivace check` says the same.
"""
TYPES = """## Types of GGUF matrices

*kept*: used as they are stored, by the kernels; *decoded*: turned into numbers of `--dtype` when
they are loaded, which takes more memory and is said at the start. Without the kernels everything
is decoded.
"""
THROUGH = """## Architectures through transformers

`--model-impl transformers` runs transformers' own code (`pip install transformers`, 5.4 or later)
over Vivace's scheduler, pages and sampling; weights go through transformers' own conversion, so
published files load as they are. It is slower: no native kernels, no captured steps, no int8,
one device. Code from a model's folder is never run.

Before weights are loaded, the model's forward pass is followed without them: which attention with
which heads, windows, caps and sinks, and which masks. What is not known to be right is refused in
one line. After loading, some tokens are computed as the engine does it and compared with what
transformers computes alone; a difference ends the start.

The tables are from trying every causal language model of transformers {version} at toy size with
random weights, in float32: {equal} give the same greedy tokens, {refused} are refused, for
{untried} there is no toy. A model's configuration may ask for more than the toy's does; it is
followed and compared again whenever it is started.
"""
ORDINALS = {2: "2nd", 3: "3rd"}


def document() -> str:
    parts = START, own_families(), pooled_families(), DEVICES, SHARDED, gguf_types(), through()
    return "\n".join(parts)


def own_families() -> str:
    gguf = {architecture: name for name, (architecture, _) in GGUF.items()}
    gguf |= dict.fromkeys((SLIDING_LLAMA[0], MIXED_LLAMA[0]), "as llama")
    gguf[CORRECTED_DEEPSEEK[0]] = "as deepseek2"
    rows = [
        (f"`{name}`", ", ".join(family.model_types), gguf.get(name, "no"), windows(family))
        for name, family in FAMILIES.items()
        if name in ARCHITECTURES
    ]
    families = table(("architecture", "model_type", "GGUF", "sliding windows"), rows)
    classes, served = (
        ", ".join(f"`{one}`" for one in names)
        for names in zip(*LANGUAGE_MODELS.items(), strict=True)
    )
    return OWN + "\n" + families + PICTURES.format(classes=classes, served=served)


def windows(family: Family) -> str:
    if family.reads("attention_chunk_size"):
        return "chunks (`attention_chunk_size`) in layers with rotary embedding; KV of all is kept"
    if not family.reads("sliding_window"):
        return "none"
    if family.reads("use_sliding_window"):
        return "where `use_sliding_window` is set"
    if family.full_every:
        return f"all layers but every {ORDINALS.get(family.full_every, f'{family.full_every}th')}"
    return "all layers, where `sliding_window` is set"


def gguf_types() -> str:
    rows = [(kind.name, what) for kind in GGMLQuantizationType if (what := treatment(kind))]
    return TYPES + "\n" + table(("type", "what becomes of it"), rows)


def treatment(kind: GGMLQuantizationType) -> str:
    """ "" for a type that nobody stores matrices in."""
    name = kind.name.lower()
    if name in PLAIN:
        return "numbers, used as they are"
    if name in INT8_ACTIVATION_KINDS:
        return "kept; multiplied with activations in int8 or float (`--activation-dtype`)"
    if name in KEPT:
        return "kept; multiplied with activations in float"
    size, nbytes = GGML_QUANT_SIZES[kind]
    if size == 1:
        return ""
    try:
        decode_blocks(np.zeros((1, nbytes), np.uint8), kind, torch.float32)
    except NotImplementedError:
        return "refused"
    return "decoded"


def through() -> str:
    found = read_support()
    equal = [one for one in found.models if one.equal]
    refused = [one for one in found.models if one.refused]
    untried = [one for one in found.models if one.untried]
    start = THROUGH.format(
        version=found.transformers, equal=len(equal), refused=len(refused), untried=len(untried)
    )
    same = table(("architecture", "model_type"), by_architecture(equal))
    reasons = [(f"`{one.architecture}`", one.model_type, one.refused) for one in refused]
    others = [(f"`{one.architecture}`", one.model_type, one.untried) for one in untried]
    header = ("architecture", "model_type", "why")
    return "\n".join(
        (
            start,
            f"### Equal tokens\n\n{same}",
            f"### Refused before loading\n\n{table(header, reasons)}",
            f"### Not tried\n\n{table(header, others)}",
        )
    )


def by_architecture(models: Iterable[ModelSupport]) -> list[tuple[str, str]]:
    types: dict[str, list[str]] = {}
    for one in models:
        types.setdefault(one.architecture, []).append(one.model_type)
    return [(f"`{name}`", ", ".join(kinds)) for name, kinds in sorted(types.items())]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    file = Path(__file__).resolve().parents[2] / "docs" / "models.md"
    file.write_text(document())
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
