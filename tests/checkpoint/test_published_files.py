"""Files as their authors publish them: what nobody reads is not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_toy import write_byte_tokenizer, write_toy_llama
from tokenizers import Tokenizer as Core

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.json_files import read_json
from vivace.checkpoint.source import locate
from vivace.frontend.tokenizer import load_tokenizer
from vivace.models.facts import facts_of

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


def facts_and_ids(folder: Path) -> tuple[Any, list[int]]:
    source = locate(str(folder))
    return facts_of(source), load_tokenizer(source).encode("Hello")


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
    before = facts_and_ids(folder)
    file = folder / name
    old = file.read_text().strip()[1:] if file.exists() else "}"
    file.write_text("{" + UNREAD[what] + ("," if len(old) > 2 else "") + old)
    assert facts_and_ids(folder) == before


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
        facts_of(locate(str(folder)))
    assert str(caught.value).isprintable()


def test_tokens_are_text(folder: Path) -> None:
    for key in ("bos_token", "chat_template"):
        file = folder / "tokenizer_config.json"
        whole = file.read_text()
        changed(file, **{key: "a\ud800"})
        with pytest.raises(SourceError, match=key):
            load_tokenizer(locate(str(folder)))
        file.write_text(whole)


@pytest.mark.parametrize(
    "text", ['{"a": %s}' % ("9" * 5000), "[" * 9000, '{"a": ' * 40 + "1" + "}" * 40]
)
def test_what_costs_without_end_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(SourceError, match=r"config\.json: (nested|not valid JSON: a number)"):
        read_json(file)
