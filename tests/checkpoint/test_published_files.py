"""Files as their authors publish them: what nobody reads is not judged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import write_gguf
from served_toy import write_byte_tokenizer, write_toy_llama
from tokenizers import Tokenizer as Core
from toy_models import make

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.json_files import read_json
from vivace.checkpoint.source import locate
from vivace.errors import CannotStart
from vivace.frontend.tokenizer import load_tokenizer
from vivace.frontend.tokenizer_files import load_from_folder
from vivace.models.facts import read_facts
from vivace.models.registry import check_architecture
from vivace.models.transformers_facts import trace_request

UNREAD = {
    "no limit": '"unread": 1000000000000000019884624838656',
    "many digits": f'"unread": -{"9" * 3990}',
    "not finite": '"unread": [NaN, {"x": -Infinity}, 1e400]',
    "half characters": '"\\ud800": ["\\udfff", {"\\ud800": 1}]',
    "twice": '"unread": 1, "unread": "x"',
}
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def changed(file: Path, **values: Any) -> None:
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(old | values))


def facts_and_words(folder: Path) -> Any:
    core, templates, ends, begin = load_from_folder(folder)
    return read_facts(locate(str(folder))), core.encode("Hello").ids, templates, ends, begin


def test_a_tokenizer_as_transformers_saves_it(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    write_byte_tokenizer(tmp_path)
    core = Core.from_file(str(tmp_path / "tokenizer.json"))
    for file in tmp_path.iterdir():
        file.unlink()
    theirs = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    ours = load_tokenizer(locate(str(tmp_path), load_format="dummy"))
    assert ours.encode("Hello") == core.encode("Hello").ids
    assert ours.eos_ids == (theirs.eos_token_id,)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", UNREAD)
def test_what_nobody_reads_is_not_judged(name: str, what: str, folder: Path) -> None:
    before = facts_and_words(folder)
    file = folder / name
    old = file.read_text().strip()[1:] if file.exists() else "}"
    file.write_text("{" + UNREAD[what] + ("," if len(old) > 2 else "") + old)
    assert facts_and_words(folder) == before


def test_the_index_too(folder: Path) -> None:
    single = folder / "model.safetensors"
    single.rename(folder / "a.safetensors")
    index = '{%s, "weight_map": {"x": "b.safetensors", "x": "a.safetensors"}}'
    for unread in UNREAD.values():
        (folder / "model.safetensors.index.json").write_text(index % unread)
        assert [file.name for file in locate(str(folder)).files] == ["a.safetensors"]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), 10**30, 10**3000, "\ud800"]
)
@pytest.mark.parametrize(
    "key", ["rms_norm_eps", "vocab_size", "hidden_act", "model_type", "max_position_embeddings"]
)
def test_what_is_read_is_judged(key: str, value: Any, folder: Path) -> None:
    changed(folder / "config.json", **{key: value})
    with pytest.raises(SourceError, match=rf"config\.json: {key} is ") as caught:
        read_facts(locate(str(folder)))
    assert str(caught.value).isprintable()


def test_what_a_library_quotes_from_a_file_is_harmless(folder: Path) -> None:
    changed(folder / "tokenizer.json", version="\0\x1b[2J")
    with pytest.raises(CannotStart, match=r"tokenizer\.json") as caught:
        load_from_folder(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_clone_without_git_lfs(name: str, folder: Path) -> None:
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CannotStart, match=f"{name}: .* LFS .*git lfs"):
        facts_and_words(folder)


def test_tokens_are_text(folder: Path) -> None:
    for key in ("bos_token", "chat_template"):
        file = folder / "tokenizer_config.json"
        whole = file.read_text()
        changed(file, **{key: "a\ud800"})
        with pytest.raises(SourceError, match=key):
            load_from_folder(folder)
        file.write_text(whole)


@pytest.mark.parametrize(
    "text", ['{"a": %s}' % ("9" * 5000), "[" * 9000, '{"a": ' * 40 + "1" + "}" * 40]
)
def test_what_costs_without_end_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(SourceError, match=r"config\.json: .*(nested|number)"):
        read_json(file)


NONE = {
    "eos_token_id": [-1, [-1], [None, 10**6], 10**30, [2, -1, 999_999], 10.0**9],
    "sliding_window": [0, False, None, -1, 0.0],
    "bos_token_id": [-1, [1, 2], 10**9, None],
    "torch_dtype": ["auto", None],
}
"""what authors write for "none", or leave from another model"""


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2"])
@pytest.mark.parametrize("key", NONE)
def test_values_for_none(key: str, family: str, tmp_path: Path) -> None:
    make(family, tmp_path)
    file = tmp_path / "config.json"
    old = json.loads(file.read_text())
    for value in NONE[key]:
        file.write_text(json.dumps({**old, key: value, "use_sliding_window": True}))
        facts = read_facts(locate(str(tmp_path)))
        if key == "eos_token_id":
            # generation_config.json of `make` names one that is in the vocabulary
            assert facts.eos_ids == (2,)
            assert len(facts.notices) == 1 and "eos_token_id" in facts.notices[0]
            assert facts.notices[0].isprintable()
        elif key == "sliding_window":
            assert set(facts.layer_windows) == {None} and not facts.notices
        elif key == "torch_dtype":
            assert facts.dtype == old.get("dtype", "bfloat16")


def test_generation_config_loses_what_never_comes(folder: Path) -> None:
    changed(folder / "generation_config.json", eos_token_id=[-1, 5, None, 10**9])
    facts = read_facts(locate(str(folder)))
    assert facts.eos_ids == (5,)
    assert "generation_config.json: eos_token_id" in facts.notices[0]
    changed(folder / "generation_config.json", eos_token_id=[5, "x"])
    with pytest.raises(SourceError, match="eos_token_id is"):
        read_facts(locate(str(folder)))


def test_ends_of_gguf_files_lose_what_never_comes(tmp_path: Path) -> None:
    """llama.cpp goes on too; several published files have such ids."""
    file = write_gguf(tmp_path / "toy.gguf", ends={"eos": 10**6, "eot": 3, "eom": 40})
    facts = read_facts(locate(str(file)))
    assert facts.eos_ids == (3,)
    said = [line for line in facts.notices if "no token of the 40" in line]
    assert len(said) == 1 and "1000000" in said[0] and "40)" in said[0], facts.notices


@pytest.mark.parametrize("value", ["x", 10**12, float("nan"), [7]])
def test_a_window_that_is_off_is_not_judged(value: Any, tmp_path: Path) -> None:
    make("Qwen2", tmp_path)
    file = tmp_path / "config.json"
    off = {"sliding_window": value, "use_sliding_window": False}
    changed(file, **off)
    assert set(read_facts(locate(str(tmp_path))).layer_windows) == {None}
    kinds = ["sliding_attention"] * json.loads(file.read_text())["num_hidden_layers"]
    changed(file, **{**off, "use_sliding_window": True, "layer_types": kinds})
    with pytest.raises(SourceError, match="sliding_window is"):
        read_facts(locate(str(tmp_path)))


@pytest.mark.parametrize("kind", ["conv", "linear_attention", "mamba"])
def test_layers_of_another_kind_are_named(kind: str, folder: Path) -> None:
    changed(folder / "config.json", layer_types=["full_attention", kind])
    with pytest.raises(SourceError) as caught:
        read_facts(locate(str(folder)))
    assert f"layers of kind '{kind}' are not supported" in str(caught.value)
    assert "etch" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"add_eos_token": "false"}, {"eos_token": 2}, {"chat_template": 5}, {"chat_template": [1]}],
)
def test_advice_for_values_that_cannot_be_used(change: dict[str, Any], folder: Path) -> None:
    """Fetching again what is as its author wrote it helps nobody."""
    changed(folder / "tokenizer_config.json", **change)
    with pytest.raises(SourceError, match="--tokenizer-path") as caught:
        load_from_folder(folder)
    assert "etch" not in str(caught.value)


def test_advice_for_the_configuration(folder: Path) -> None:
    changed(folder / "config.json", rms_norm_eps="x")
    with pytest.raises(SourceError, match=r"rms_norm_eps .*--json-model-override-args") as caught:
        read_facts(locate(str(folder)))
    assert "etch" not in str(caught.value)
    given = locate(str(folder), overrides={"rms_norm_eps": 1e-5})
    assert read_facts(given).decoder


def test_an_empty_chat_template_is_none(folder: Path) -> None:
    changed(folder / "tokenizer_config.json", chat_template="")
    assert not load_from_folder(folder)[1].sources
    (folder / "chat_template.json").write_text('{"chat_template": ""}')
    assert not load_from_folder(folder)[1].sources


def test_an_adapter_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"LoRA adapter \(adapter_config\.json"):
        locate(str(tmp_path))


QUANTIZED: dict[str, tuple[str, Any, str]] = {
    "GPTQ": ("quantization_config", {"bits": 3, "group_size": 128, "quant_method": "gptq"}, "gptq"),
    "AWQ": ("quantization_config", {"bits": 4, "version": "gemv", "quant_method": "awq"}, "awq"),
    "GPTQ of 2023": ("quantization_config", {"bits": 4, "group_size": 128}, "'bits': 4"),
    "8 bits of 2022": ("quantization_config", {"load_in_8bit": True}, "load_in_8bit"),
    "MLX": ("quantization", {"group_size": 64, "bits": 4}, "'bits': 4"),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_weights_are_refused_by_what_describes_them(name: str, folder: Path) -> None:
    key, value, said = QUANTIZED[name]
    changed(folder / "config.json", **{key: value})
    source = locate(str(folder))
    for read in (read_facts, trace_request):
        with pytest.raises(SourceError, match=f"{key}: .*{said}"):
            read(source)
    changed(folder / "config.json", **{key: None})
    assert read_facts(locate(str(folder)))


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", None, "unet", ["llama"]])
def test_a_class_that_is_not_named_is_proposed(value: Any, model_type: Any, folder: Path) -> None:
    """Files of other tools have none; what the message proposes is what runs."""
    changed(folder / "config.json", architectures=value, model_type=model_type)
    source = locate(str(folder))
    with pytest.raises(SourceError, match=r"config\.json: architectures ") as caught:
        check_architecture(source)
    proposed = re.search(r"--json-model-override-args '(.*)'", str(caught.value))
    if model_type not in ("llama", "gpt2"):
        assert proposed is None and "give the folder of such a model" in str(caught.value)
        return
    assert proposed is not None
    overrides = json.loads(proposed[1])
    assert overrides["architectures"][0].lower().startswith(model_type)
    if model_type == "llama":
        assert read_facts(locate(str(folder), overrides=overrides))


@pytest.mark.parametrize("name", ["LlamaOther", "LLaMAForCausalLM", "LlamaForTokenClassification"])
def test_other_classes_of_a_known_type_name_the_one_that_generates(name: str, folder: Path) -> None:
    changed(folder / "config.json", architectures=[name])
    with pytest.raises(SourceError, match=f"{name} .*LlamaForCausalLM"):
        check_architecture(locate(str(folder)))


def test_code_of_a_checkpoint_is_never_run_and_said(folder: Path) -> None:
    changed(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_x.Other"})
    (said,) = read_facts(locate(str(folder))).notices
    assert "auto_map" in said and "never run" in said and "as LlamaForCausalLM" in said
    for harmless in ({"AutoTokenizer": ["x.Y", None]}, None, "x", []):
        changed(folder / "config.json", auto_map=harmless)
        assert not read_facts(locate(str(folder))).notices


def test_of_two_dtypes_the_newer_key_counts(folder: Path) -> None:
    from transformers import AutoConfig

    changed(folder / "config.json", dtype="float16", torch_dtype="float32")
    theirs = AutoConfig.from_pretrained(folder).dtype
    assert read_facts(locate(str(folder))).dtype == str(theirs).removeprefix("torch.") == "float16"
