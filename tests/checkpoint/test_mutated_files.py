"""Any value in any file of a model: it is served with facts that make sense, or one line says what
is wrong. Thousands of mutations run in this process; a dozen go through the commands."""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from gguf_toys import write as write_gguf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutations import damage, gguf_bytes, mutated, write_json
from paged_model import UNSEEN, PagedModel, plain_packer
from served_toy import write_byte_tokenizer
from toy_models import make

from vivace.checkpoint.fields import ConfigFields
from vivace.checkpoint.gguf_config import ARCHITECTURES as GGUF
from vivace.checkpoint.gguf_file import GGUFFile
from vivace.checkpoint.source import locate
from vivace.errors import CannotStart
from vivace.frontend.tokenizer import load_tokenizer
from vivace.frontend.tokenizer_gguf import build_tokenizer
from vivace.models.facts import ModelFacts, read_facts
from vivace.models.families import FAMILIES as KNOWN
from vivace.models.loading import load_model
from vivace.models.registry import ARCHITECTURES, check_architecture
from vivace.quantization.description import read_quantization

SLOW = os.environ.get("VIVACE_SLOW_TESTS") == "1"
MEMORY = 3 << 30
"""bytes that all of this may allocate"""


def examples(count: int) -> settings:
    return settings(
        max_examples=count * (40 if SLOW else 1),
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
            HealthCheck.function_scoped_fixture,
            HealthCheck.large_base_example,
            HealthCheck.too_slow,
        ],
    )


SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GROUPED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("Llama", "llama", {}),
    "mistral": ("Mistral", "llama", {"sliding_window": 7}),
    "qwen2": ("Qwen2", "qwen2", {}),
    "qwen3": ("Qwen3", "qwen3", {}),
    "qwen2-moe": ("Qwen2Moe", "qwen2moe", {**EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3-moe": ("Qwen3Moe", "qwen3moe", {**EXPERTS, "norm_topk_prob": True}),
    "deepseek": ("DeepseekV3", "deepseek2", {
        **GROUPED, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 16, "v_head_dim": 8,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}),
    "glm4-moe": ("Glm4Moe", "glm4moe", GROUPED),
    "gpt-oss": ("GptOss", "gpt-oss", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 7}),
    "llama4": ("Llama4Text", "llama4", {
        "num_local_experts": 4, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 2}),
    "gemma2": ("Gemma2", "gemma2", {"sliding_window": 7, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3Text", "gemma3", {"sliding_window": 7, "query_pre_attn_scalar": 8}),
}  # fmt: skip
SCALED = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0,
    "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1, "rope_theta": 10000.0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LONG = {
    "type": "longrope", "original_max_position_embeddings": 32, "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
}  # fmt: skip
UNSAID = (
    "rope_scaling", "rope_theta", "head_dim", "torch_dtype", "quantization_config", "text_config",
    "partial_rotary_factor", "layer_types", "sliding_window", "use_sliding_window",
    "sliding_window_pattern", "max_window_layers", "eos_token_id", "tie_word_embeddings",
    "rope_local_base_freq", "num_key_value_heads", "rms_norm_eps", "hidden_act", "mlp_bias",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """What a header merely claims must not be allocated: here that fails."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every family as a folder and, in it, as a GGUF file."""
    found = {}
    for name, (kind, architecture, more) in FAMILIES.items():
        folder = tmp_path_factory.mktemp(name)
        model = make(kind, folder, **{**SMALL, **more})
        (folder / "gguf").mkdir()
        write_gguf(model, folder / "gguf" / "toy.gguf", architecture)
        found[name] = folder
    return found


def outcome(path: Path, said: dict[str, Any] | None = None) -> str:
    """Serve one step of the model at `path`: "served", or the line that refuses it. `said`: its
    config.json."""
    try:
        source = locate(str(path))
        check_architecture(source)
        facts = read_facts(source)
        check_sense(facts)
        if said is not None:
            check_meaning(facts, said)
        model = load_model(
            source, facts, plain_packer(torch.float32), UNSEEN, positions=facts.context, longest=256
        )
        ids = [facts.vocabulary - 1, 1, 2][: facts.context]
        logits = PagedModel(model).step({"a": ids})["a"]
    except CannotStart as error:
        return one_line(error)
    assert torch.isfinite(logits).all()
    return "served"


def check_meaning(facts: ModelFacts, said: dict[str, Any]) -> None:
    """What is served is what the file says: a value is in effect, or one that authors write for
    "none", or there is a notice of it. Read here without the code that reads facts."""
    inner = said.get("text_config")
    values = {**said, **(inner if isinstance(inner, dict) else {})}
    assert facts.decoder is not None
    family = KNOWN[facts.architecture]
    two_widths = family.reads("intermediate_size_mlp")
    for key, fact in {
        "hidden_size": facts.hidden_size,
        "intermediate_size": values.get("intermediate_size")
        if two_widths
        else facts.intermediate_size,
        "num_hidden_layers": facts.layers,
        "num_attention_heads": facts.heads,
        "vocab_size": facts.vocabulary,
        "max_position_embeddings": facts.context,
        "rms_norm_eps": facts.decoder.norm_eps,
        "tie_word_embeddings": facts.tied,
    }.items():
        assert key not in values or values[key] == fact, (key, values[key], fact)
    for key, fact in {
        "head_dim": facts.head_dim,
        "intermediate_size_mlp": facts.intermediate_size,
        "num_key_value_heads": facts.kv_heads if facts.latent is None else facts.heads,
        "attention_bias": facts.decoder.attention_bias,
        "mlp_bias": facts.decoder.mlp_bias,
    }.items():
        if family.reads(key):
            assert values.get(key) in (None, fact), (key, values[key], fact)
    window = values.get("sliding_window", family.defaults.get("sliding_window"))
    if not family.reads("use_sliding_window") or values.get("use_sliding_window"):
        assert window in (None, False, 0, -1) or window >= 1, window
    assert facts.sliding_window in (None, window)
    ends, noticed = values.get("eos_token_id"), "eos_token_id" in "".join(facts.notices)
    for end in ends if isinstance(ends, list) else [ends] if ends is not None else []:
        real = end is not None and 0 <= end < facts.vocabulary
        # generation_config.json of these models names 2, and goes first
        assert (end in facts.eos_ids or facts.eos_ids == (2,)) if real else noticed, end


def one_line(error: CannotStart) -> str:
    line = str(error)
    assert line.isprintable() and 20 < len(line) < 1200, line
    return line


def check_sense(facts: ModelFacts) -> None:
    """What everything behind the facts relies on; and they travel unchanged."""
    assert facts.heads % facts.kv_heads == 0 and facts.head_dim % 2 == 0
    assert 1 <= facts.context <= 1 << 25 and facts.parameters > 0
    assert all(0 <= token < facts.vocabulary for token in facts.eos_ids)
    assert len(facts.layer_windows) == facts.layers
    assert all(window is None or window > 0 for window in facts.layer_windows)
    assert facts.dtype in ("float32", "bfloat16", "float16")
    decoder = facts.decoder
    assert decoder is not None
    for rope in (decoder.rope, decoder.local_rope):
        assert 2 <= rope.rotated <= facts.head_dim and rope.rotated % 2 == 0
    numbers = [decoder.norm_eps, decoder.query_scale, decoder.rope.theta]
    assert all(0 < number < math.inf for number in numbers)
    encoded = msgspec.json.encode(facts)
    assert msgspec.json.decode(encoded, type=ModelFacts) == facts


@pytest.mark.parametrize("name", FAMILIES)
def test_unchanged_models_are_served(name: str, families: dict[str, Path]) -> None:
    assert outcome(families[name]) == "served"
    assert outcome(families[name] / "gguf" / "toy.gguf") == "served"


@pytest.mark.parametrize("name", FAMILIES)
def test_config(name: str, families: dict[str, Path]) -> None:
    file = families[name] / "config.json"
    original = json.loads(file.read_text())
    scalings = [{"rope_parameters": None, "rope_scaling": s} for s in (SCALED, LLAMA3, LONG)]
    bases = [original, original, *({**original, **scaling} for scaling in scalings)]

    @examples(100)
    @given(tree=st.sampled_from(bases).flatmap(lambda base: mutated(base, UNSAID)))
    def check(tree: dict[str, Any]) -> None:
        write_json(file, tree)
        outcome(file.parent, tree)

    try:
        check()
    finally:
        write_json(file, original)


NONSENSE = {
    "rms_norm_eps": [None, 0, -1e-5, 1.0],
    "sliding_window": [-5, -2, 0.5, "7"],
    "max_position_embeddings": [None, 0, -1],
    "tie_word_embeddings": [None, 1],
    "hidden_act": [None],
}
"""What no model means, each alone in a good configuration."""


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_numbers_of_the_right_type_that_mean_nothing(name: str, families: dict[str, Path]) -> None:
    """Where the value would have no effect (a Llama does not slide), too."""
    file = families[name] / "config.json"
    original = json.loads(file.read_text())
    try:
        for key, wrong in NONSENSE.items():
            for value in wrong:
                write_json(file, {**original, key: value})
                line = outcome(file.parent)
                assert f"config.json: {key} is" in line, (key, value, line)
    finally:
        write_json(file, original)


def test_a_file_that_names_no_end_is_told(families: dict[str, Path]) -> None:
    """2^32 - 1 is GGUF's way to say that there is none; an id beyond the vocabulary is told too."""
    opened = GGUFFile(families["llama"] / "gguf" / "toy.gguf")
    file = families["llama"] / "gguf" / "ends" / "toy.gguf"
    file.parent.mkdir()
    for end, ids, notices in ((2**32 - 1, (), 1), (10**6, (), 1), (2, (2,), 0)):
        tree = {**opened.metadata, "tokenizer.ggml.eos_token_id": end}
        tree.pop("tokenizer.ggml.eot_token_id", None)
        file.write_bytes(gguf_bytes(tree, opened))
        facts = read_facts(locate(str(file)))
        said = [notice for notice in facts.notices if "eos_token_id has what is no token" in notice]
        assert (facts.eos_ids, len(said)) == (ids, notices), facts.notices


@pytest.mark.parametrize("name", FAMILIES)
def test_gguf_metadata(name: str, families: dict[str, Path]) -> None:
    opened = GGUFFile(families[name] / "gguf" / "toy.gguf")
    architecture = opened.metadata["general.architecture"]
    keys = (
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.dimension_count", "rope.scale_linear", "attention.sliding_window",
        "rope.scaling.attn_factor", "rope.freq_base_swa",
    )  # fmt: skip
    extra = (*(f"{architecture}.{key}" for key in keys), "split.count", "general.alignment")
    yarn = {f"{architecture}.{keys[0]}": "yarn", f"{architecture}.{keys[1]}": 4.0}
    bases = [dict(opened.metadata), {**opened.metadata, **yarn}]
    file = families[name] / "gguf" / "changed" / "toy.gguf"
    file.parent.mkdir(exist_ok=True)

    @examples(100)
    @given(tree=st.sampled_from(bases).flatmap(lambda base: mutated(base, extra)))
    def check(tree: dict[str, Any]) -> None:
        file.write_bytes(gguf_bytes(tree, opened))
        outcome(file)

    check()


@pytest.mark.parametrize("file", ["gguf/toy.gguf", "model.safetensors", "config.json"])
def test_damaged_bytes(file: str, families: dict[str, Path], tmp_path: Path) -> None:
    """Bytes of headers changed, files cut off. (Nobody can tell that a weight was another.)"""
    folder = families["llama"]
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    data = (folder / file).read_bytes()
    changed = tmp_path / Path(file).name
    if changed.suffix == ".gguf":
        header = data.index(b"output_norm") + 30
    else:
        header = int.from_bytes(data[:8], "little") if file.startswith("model") else len(data)

    @examples(300)
    @given(data=damage(data, header))
    def check(data: bytes) -> None:
        changed.write_bytes(data)
        outcome(changed if changed.suffix == ".gguf" else tmp_path)

    check()


def test_index(families: dict[str, Path], tmp_path: Path) -> None:
    """One shard, and an index that places every tensor in it."""
    folder, index = families["llama"], tmp_path / "model.safetensors.index.json"
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    shard = tmp_path / "model-1.safetensors"
    shard.write_bytes((folder / "model.safetensors").read_bytes())
    names = {"model.norm.weight": shard.name, "lm_head.weight": shard.name}
    base = {"metadata": {"total_size": 5}, "weight_map": names}

    @examples(150)
    @given(tree=mutated(base))
    def check(tree: dict[str, Any]) -> None:
        write_json(index, tree)
        outcome(tmp_path)

    check()


@examples(120)
@given(
    tree=mutated(
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "config_groups": {
                "group_0": {
                    "weights": {"num_bits": 8, "type": "int", "symmetric": True,
                                "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "type": "int", "symmetric": True,
                                          "strategy": "token", "dynamic": True},
                }
            },
        }
    )
)  # fmt: skip
def test_quantization(tree: dict[str, Any]) -> None:
    try:
        read_quantization(
            ConfigFields({"quantization_config": tree}, lambda key: f"config.json: {key}")
        )
    except CannotStart as error:
        one_line(error)


TEXTS = ["Hello <s> wörld", "", "\0", "a" * 300, "</s>\n\n"]


def tokenizer_outcome(folder: Path) -> str:
    try:
        tokenizer = load_tokenizer(locate(str(folder), load_format="dummy"))
    except CannotStart as error:
        return one_line(error)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert all(0 <= token < 1 << 24 for token in ids)
        assert isinstance(tokenizer.decode(ids), str)
    return "served"


@pytest.fixture
def words(families: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with a configuration, a byte tokenizer and a chat template."""
    (tmp_path / "config.json").write_bytes((families["llama"] / "config.json").read_bytes())
    write_byte_tokenizer(tmp_path)
    return tmp_path


NAMED = {
    "added_tokens_decoder": {
        "256": {"content": "<s>", "special": True},
        "258": {"content": "<new>", "special": True, "lstrip": False},
    },
    "additional_special_tokens": ["<new>", {"content": "<s>"}],
    "add_bos_token": True,
    "tokenizer_class": "LlamaTokenizer",
}


@pytest.mark.parametrize(
    ("name", "count"), [("tokenizer.json", 200), ("tokenizer_config.json", 150)]
)
def test_tokenizer_files(name: str, count: int, words: Path) -> None:
    file = words / name
    base = json.loads(file.read_text())
    if name == "tokenizer_config.json":
        base |= NAMED
    extra = ("chat_template", "extra_special_tokens", "unk_token", "add_eos_token", "truncation")
    write_json(file, base)
    assert tokenizer_outcome(words) == "served"

    @examples(count)
    @given(tree=mutated(base, extra))
    def check(tree: dict[str, Any]) -> None:
        write_json(file, tree)
        tokenizer_outcome(words)

    check()


def spoken(model: str) -> dict[str, Any]:
    """Metadata of a small vocabulary."""
    if model == "gpt2":
        pieces = [chr(n) for n in range(33, 127)] + ["ab", "<s>"]
        merges = {"tokenizer.ggml.merges": ["a b"]}
    else:
        pieces = ["<unk>", *(f"<0x{n:02X}>" for n in range(256)), "\u2581", "a", "b", "ab", "<s>"]
        merges = {"tokenizer.ggml.scores": [-float(n) for n in range(len(pieces))]}
    types = [3 if piece.startswith("<s") else 1 for piece in pieces]
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        **merges,
        "tokenizer.ggml.bos_token_id": len(pieces) - 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_gguf_vocabulary(model: str) -> None:
    extra = tuple(
        f"tokenizer.{key}"
        for key in ("ggml.eos_token_id", "ggml.unknown_token_id", "ggml.add_eos_token",
                    "ggml.add_space_prefix", "chat_templates", "ggml.merges", "ggml.scores")
    )  # fmt: skip

    @examples(250)
    @given(tree=mutated(spoken(model), extra))
    def check(tree: dict[str, Any]) -> None:
        try:
            core = build_tokenizer(tree, "toy.gguf")[0]
        except CannotStart as error:
            one_line(error)
            return
        for text in TEXTS:
            core.decode(core.encode(text).ids)

    check()


def test_the_embedded_file(tmp_path: Path) -> None:
    """Its real header before weights of zeros, which take no place on the disk."""
    original = locate(None).path
    opened = GGUFFile(original)
    first = min(entry.offset for entry in opened.tensors.values())
    with original.open("rb") as file:
        header = file.read(first)
    size, changed = original.stat().st_size, tmp_path / "changed.gguf"

    @examples(40)
    @given(data=damage(header, len(header) - 1), whole=st.booleans())
    def check(data: bytes, whole: bool) -> None:
        changed.write_bytes(data)
        if whole:
            os.truncate(changed, size)
        try:
            source = locate(str(changed))
            check_architecture(source)
            check_sense(read_facts(source))
            load_tokenizer(source).encode("Hello")
        except CannotStart as error:
            one_line(error)

    check()


def test_every_architecture_has_a_family_and_is_damaged_above() -> None:
    assert {name for _, name, _ in FAMILIES.values()} == set(GGUF)
    assert set(ARCHITECTURES) == set(KNOWN)
