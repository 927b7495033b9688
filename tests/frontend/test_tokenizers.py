from __future__ import annotations

import contextlib
import functools
import itertools
import json
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from frontend_fakes import (
    embedded_file,
    embedded_metadata,
    embedded_tokenizer,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from vivace.checkpoint.fields import ConfigFields
from vivace.errors import CannotStart
from vivace.frontend.chat_template import own_template
from vivace.frontend.errors import BadRequest, ChatTemplateError, TokenizerError
from vivace.frontend.tokenizer import Tokenizer, load_encoder, load_tokenizer
from vivace.frontend.tokenizer_gguf import SPLIT_RULES, build_tokenizer
from vivace.frontend.tokenizer_sentencepiece import sentencepiece_core

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def reference() -> PreTrainedTokenizerFast:
    """SmolLM2 as its own tokenizer.json builds it, from the same words and merges."""
    meta = embedded_metadata()
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(line.split(" ")) for line in meta["tokenizer.ggml.merges"]]
    core = Core(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == 3]
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS | st.sampled_from(["it's 12345\n\n  \tx", "<|im_start|>user\nhi", "naïve 😀 日本"])
)
def test_equal_to_transformers_on_text(reference: PreTrainedTokenizerFast, text: str) -> None:
    ours = embedded_tokenizer()
    ids = ours.encode(text)
    assert ids == reference.encode(text)
    assert ours.decode(ids, False) == reference.decode(ids, skip_special_tokens=False)
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=20))
def test_equal_to_transformers_on_any_ids(
    reference: PreTrainedTokenizerFast, ids: list[int]
) -> None:
    ours = embedded_tokenizer()
    for skip in (True, False):
        assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


def test_facts_of_the_embedded_vocabulary() -> None:
    ours = embedded_tokenizer()
    assert ours.vocabulary == 49152
    assert ours.eos_ids == (2,) and ours.bos_id == 1
    assert {0, 1, 2} <= ours.special_ids and len(ours.special_ids) == 17
    assert ours.token_text(2) == "<|im_end|>"
    assert ours.token_bytes(ours.encode(" the")[0]) == b" the"
    assert ours.decode([10**9, -1]) == ""


def test_loading_the_embedded_file() -> None:
    loaded = load_tokenizer(Source(embedded_file(), {"eos_token_id": 2}))  # type: ignore[arg-type]
    text = "It's 12345\n\n<|im_end|> 日本"
    assert loaded.encode(text) == embedded_tokenizer().encode(text)
    assert loaded.eos_ids == (2,) and loaded.chat is not None


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(BadRequest, match="Unicode"):
        embedded_tokenizer().encode("a\ud800b")


def test_damage_that_shows_with_some_texts_is_told() -> None:
    """A table of characters that leads out of itself: the library panics when it is read."""
    table = [4, 0, 0, 0, *(683166312 ^ ord("h")).to_bytes(4, "little"), *b"abc\0"]
    meta = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["<unk>", "h"],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.precompiled_charsmap": table,
    }
    tokenizer = Tokenizer(build_tokenizer(meta, "file.gguf")[0], eos_ids=[])
    with pytest.raises(BadRequest, match="damaged") as caught:
        tokenizer.encode("hello")
    assert caught.value.status == 500
    assert tokenizer.encode("") == []


@pytest.mark.parametrize("name", sorted(SPLIT_RULES))
def test_every_split_rule_keeps_the_text(name: str) -> None:
    text = "It's 12345 naïve Überraschung: 3.14!\r\n\r\n  日本語テキスト,   x\t=y  "
    pieces = SPLIT_RULES[name].pre_tokenizer().pre_tokenize_str(text)
    assert pieces[0][1][0] == 0
    assert pieces[-1][1][1] == len(text)
    assert all(a[1][1] == b[1][0] for a, b in itertools.pairwise(pieces))


def test_split_rules_differ_where_the_families_do() -> None:
    def words(name: str, text: str) -> list[str]:
        found = SPLIT_RULES[name].pre_tokenizer().pre_tokenize_str(text)
        return [text[span[0] : span[1]] for _, span in found]

    assert words("llama-bpe", "12345 I'M") == ["123", "45", " I", "'M"]
    assert words("qwen2", "123 x\n\n") == ["1", "2", "3", " x", "\n\n"]
    assert words("gpt-2", "12345 x  y") == ["12345", " x", " ", " y"]
    assert words("smollm", "a 12") == ["a", " ", "1", "2"]
    assert words("deepseek-coder", "x\n\n1") == ["x", "\n", "\n", "1"]


def test_unknown_split_rule_is_refused() -> None:
    meta = {**embedded_metadata(), "tokenizer.ggml.pre": "made-up"}
    with pytest.raises(TokenizerError, match="made-up"):
        build_tokenizer(meta, "file.gguf")


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.model": "bert"},
        {"tokenizer.ggml.tokens": []},
        {"tokenizer.ggml.scores": [0.0]},
        {"tokenizer.ggml.eos_token_id": "2"},
        {"tokenizer.ggml.eos_token_id": 10**6, "tokenizer.ggml.add_eos_token": True},
        {"tokenizer.ggml.bos_token_id": 10**6},
    ],
)
def test_damaged_metadata_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CannotStart, match=r"file\.gguf"):
        build_tokenizer({**sentencepiece_metadata(), **change}, "file.gguf")


@pytest.mark.parametrize("name", ["eos", "eot", "eom", "unknown", "padding"])
def test_special_tokens_that_are_none_have_no_effect(name: str) -> None:
    key = f"tokenizer.ggml.{name}_token_id"
    _, _, plain, _ = build_tokenizer(sentencepiece_metadata(), "file.gguf")
    for value in (10**6, 0xFFFFFFFF):
        _, templates, ends, bos = build_tokenizer(
            {**sentencepiece_metadata(), key: value}, "x.gguf"
        )
        assert bos is not None and f"{name}_token" not in templates.special_tokens
        assert list(ends) == ([] if name == "eos" else list(plain))


def greedy_by_score(text: str) -> list[int]:
    """SentencePiece BPE the slow way: join the best scoring neighbors until none join."""
    meta = sentencepiece_metadata()
    tokens, scores = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.scores"]
    ids = {token: i for i, token in enumerate(tokens)}
    symbols = list(("\u2581" + text.replace(" ", "\u2581")) if text else "")
    while True:
        joined = [(ids.get(a + b), i) for i, (a, b) in enumerate(itertools.pairwise(symbols))]
        found = [(-scores[i], place) for i, place in joined if i is not None]
        if not found:
            break
        place = min(found)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    out: list[int] = []
    for symbol in symbols:
        if symbol in ids:
            out.append(ids[symbol])
        else:
            out.extend(ids[f"<0x{byte:02X}>"] for byte in symbol.encode())
    return out


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="helowrd   é😀", max_size=30) | st.integers(9, 40).map(" ".__mul__))
def test_sentencepiece_equals_greedy_joining(text: str) -> None:
    ours = sentencepiece_tokenizer()
    ids = ours.encode(text)
    assert ids == [1, *greedy_by_score(text)]
    core = build_tokenizer(sentencepiece_metadata(), "test")[0]
    assert ours.decode(ids) == core.decode(ids) == text
    assert ours.encode(text, add_special_tokens=False) == ids[1:]


@dataclass(frozen=True)
class Source:
    tokenizer_path: Path
    generation_config: dict[str, Any] = field(default_factory=dict)


def word_level_folder(folder: Path, **config: Any) -> Source:
    core = Core(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "<s>": 3, "</s>": 4}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "removed")
    core.enable_truncation(2)
    (folder / "tokenizer.json").write_text(core.to_str(), "utf-8")
    own = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    return Source(folder, {"eos_token_id": [4, 2]})


def test_pairs_of_roberta_have_two_tokens_between_them() -> None:
    """As `add_sep_token` of a file says, and only there."""
    meta = dict(embedded_metadata())
    meta |= {f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")}
    first, last = (meta[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos"))
    core = build_tokenizer(meta, "roberta")[0]
    (a,), (b,) = (core.encode(text, add_special_tokens=False).ids for text in "ab")
    assert core.encode("a").ids == [first, a, last]
    assert core.encode("a", "b").ids == [first, a, last, last, b, last]


def test_control_tokens_of_wordpiece_stand_as_they_are() -> None:
    """llama.cpp's converter goes by their type, not by their brackets."""
    meta = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "[UNK]", "\u2581sea", "s", "\u2581[x]"],
        "tokenizer.ggml.token_type": [3, 3, 2, 1, 1, 1],
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.cls_token_id": 0,
        "tokenizer.ggml.seperator_token_id": 1,
    }
    core = build_tokenizer(meta, "bert")[0]
    assert core.encode("Seas").tokens == ["<s>", "sea", "##s", "</s>"]


def test_folder_with_config_files(tmp_path: Path) -> None:
    source = word_level_folder(
        tmp_path,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
        added_tokens_decoder={"5": {"content": "<x>", "special": True}},
        tokenizer_class="LlamaTokenizerFast",
        add_bos_token=True,
        add_eos_token=True,
    )
    ours = load_tokenizer(source)  # type: ignore[arg-type]
    assert ours.encode("a b a") == [3, 1, 2, 1, 4]
    assert ours.encode("a b a", add_special_tokens=False) == [1, 2, 1]
    assert ours.special_ids == {3, 4, 5} and ours.vocabulary == 6
    assert ours.eos_ids == (4,) and ours.bos_id == 3
    assert ours.chat is not None and ours.chat.render([{"role": "user", "content": "a"}]) == "<s>a"
    assert ours.decode([3, 3, 1, 2], skip_special_tokens=False) == "<s> <s> a b"
    assert ours.decode([3, 3, 1, 2], False, spaces_between_special_tokens=False) == "<s><s> a b"


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
@pytest.mark.parametrize("none", [[], {}, None])
def test_no_further_special_tokens_are_none(key: str, none: Any, tmp_path: Path) -> None:
    """As in Mixtral-8x7B-Instruct-v0.1."""
    load_tokenizer(word_level_folder(tmp_path, **{key: none}))


WRONG = "{{ 'a' }}\n{% if %}"
PLACES: dict[str, tuple[str, Any]] = {
    "tokenizer_config.json: chat_template": ("tokenizer_config.json", WRONG),
    "tokenizer_config.json: chat_template.default": ("tokenizer_config.json", {"default": WRONG}),
    "tokenizer_config.json: chat_template.1.template": (
        "tokenizer_config.json",
        [{"name": "default", "template": "a"}, {"name": "tool_use", "template": WRONG}],
    ),
    "chat_template.json: chat_template": ("chat_template.json", WRONG),
    "chat_template.jinja": ("chat_template.jinja", WRONG),
    "additional_chat_templates/tool_use.jinja": ("additional_chat_templates/tool_use.jinja", WRONG),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_template_that_cannot_be_used_is_named_by_its_place(place: str, tmp_path: Path) -> None:
    """And the line in it, and what to do."""
    source = word_level_folder(tmp_path, chat_template="a")
    name, template = PLACES[place]
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    old = json.loads(file.read_text()) if name == "tokenizer_config.json" else {}
    wrapped = json.dumps({**old, "chat_template": template}) if name[-1] == "n" else template
    file.write_text(wrapped)
    with pytest.raises(ChatTemplateError) as caught:
        load_tokenizer(source)  # type: ignore[arg-type]
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / place}: ") and "line 2" in told and told.isprintable()
    assert "--chat-template FILE" in told
    load_tokenizer(source, chat_template="chatml")  # type: ignore[arg-type]


def test_a_template_of_a_gguf_file_is_named_by_its_key(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    for wrong in (key, f"{key}.tool_use"):
        more = {key: "a", f"{key}s": ["tool_use"], wrong: WRONG}
        _, templates, *_ = build_tokenizer({**embedded_metadata(), **more}, "x.gguf")
        with pytest.raises(ChatTemplateError, match=rf"^x\.gguf: {wrong}: .* line 2"):
            own_template(None, templates, None)


def proto(number: int, value: bytes | int | float) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    more = [value >> shift & 127 for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(one | 128 for one in more[:-1]), more[-1]])


def sentencepiece_file(
    *,
    kind: int = 2,
    squeezes: int = 0,
    marks_spaces: int = 1,
    suffixed: int = 0,
    whole: Sequence[str] = (),
    more: Sequence[str] = (),
) -> bytes:
    """`whole`: pieces that a user has defined; `more`: others, of characters first."""
    meta = sentencepiece_metadata()
    for pieces, kind_of_piece in ((whole, 4), (more, 1)):
        meta["tokenizer.ggml.tokens"] += pieces
        meta["tokenizer.ggml.scores"] += [-float(place) for place in range(len(pieces))]
        meta["tokenizer.ggml.token_type"] += [kind_of_piece] * len(pieces)
    columns = (meta[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    pieces = [
        proto(1, proto(1, token.encode()) + proto(2, score) + proto(3, kind_of_token))
        for token, score, kind_of_token in zip(*columns, strict=True)
    ]
    trainer = proto(3, kind) + proto(40, 0) + proto(41, 1) + proto(42, 2) + proto(43, 2**64 - 1)
    trainer += proto(24, suffixed)
    normalizer = proto(1, b"identity") + proto(4, squeezes) + proto(5, marks_spaces)
    return b"".join(pieces) + proto(2, trainer) + proto(3, normalizer)


@given(st.text(alphabet="helowrd \u2581é\n", max_size=30), st.booleans())
def test_a_file_of_sentencepiece_is_what_gguf_has_of_it(text: str, special: bool) -> None:
    ours, theirs = sentencepiece_from_file(), sentencepiece_tokenizer()
    ids = ours.encode(text, special)
    assert ids == theirs.encode(text, special)
    assert ours.decode(ids) == theirs.decode(ids)


@functools.cache
def sentencepiece_from_file() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(sentencepiece_file())
        names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(names))
        found = load_encoder(Source(Path(folder)))  # type: ignore[arg-type]
    assert found.eos_ids == (2,) and found.bos_id == 1
    return found


@pytest.mark.parametrize(
    "wrong", [{"kind": 1}, {"squeezes": 1}, {"marks_spaces": 0}, {"suffixed": 1}]
)
def test_sentencepiece_that_is_not_read(wrong: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_file(**wrong))
    with pytest.raises(TokenizerError, match="--tokenizer-path"):
        load_tokenizer(Source(tmp_path))  # type: ignore[arg-type]


def test_files_that_are_not_of_sentencepiece_and_wrong_flags_are_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")  # Llama 3's is such a file
    with pytest.raises(TokenizerError, match="pieces"):
        load_tokenizer(Source(tmp_path))  # type: ignore[arg-type]
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_file())
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": "yes"}')
    with pytest.raises(CannotStart, match="legacy"):
        load_tokenizer(Source(tmp_path))  # type: ignore[arg-type]


def test_pieces_of_sentencepiece_that_are_kept_whole() -> None:
    data = sentencepiece_file(whole=["<sep>", "\n", "\u2581\u2581", "\n\n"])
    core = sentencepiece_core(data, ConfigFields({}, str, ""), "tokenizer.model")
    for text, pieces in {
        "<sep>he": "<s> \u2581 <sep> he",
        "\n\n\n hello": "<s> \u2581 \n\n \n \u2581hello",
        "he   he": "<s> \u2581he \u2581\u2581 \u2581he",
    }.items():
        assert core.encode(text).tokens == pieces.split(" ")  # as the library sentencepiece says
        assert core.decode(core.encode(text).ids) == text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("he <0x41>", "<s> \u2581he \u2581< 0 x <0x34> <0x31> >"),
        ("he<0x41>", "<s> \u2581he <0 x <0x34> <0x31> >"),
        ("\n<0x41>\n", "<s> \u2581 \n <0 x <0x34> <0x31> > \n"),
    ],
)
def test_what_is_written_like_a_byte_is_divided_like_others(text: str, pieces: str) -> None:
    more = ["<", ">", "0", "x", "\u2581<", "<0"]
    data = sentencepiece_file(whole=["<sep>", "\n"], more=more)
    core = sentencepiece_core(data, ConfigFields({}, str, ""), "tokenizer.model")
    assert core.encode(text).tokens == pieces.split(" ")  # as the library sentencepiece says
    assert core.decode(core.encode(text).ids) == text


@pytest.mark.parametrize(("legacy", "last"), [(True, "\u2581he"), (False, "he")])
def test_spaces_behind_special_tokens_are_as_the_config_says(legacy: bool, last: str) -> None:
    config = ConfigFields({"legacy": legacy}, str, "")
    core = sentencepiece_core(sentencepiece_file(), config, "tokenizer.model")
    assert core.encode("he</s>he").tokens == ["<s>", "\u2581he", "</s>", last]  # transformers' too


@given(st.data())
def test_damaged_files_of_sentencepiece(data: st.DataObject) -> None:
    whole = sentencepiece_file()
    place = data.draw(st.integers(0, len(whole) - 1))
    broken = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    nothing = ConfigFields({}, str, "")
    for one in (broken, whole[:place], data.draw(st.binary(max_size=50))):
        with contextlib.suppress(CannotStart):
            sentencepiece_core(one, nothing, "tokenizer.model")


@pytest.mark.parametrize(("score", "kind", "said"), [(float("nan"), 1, "scores"), (0.0, 9, "type")])
def test_what_is_wrong_with_pieces_of_sentencepiece_is_said(
    score: float, kind: int, said: str
) -> None:
    piece = proto(1, proto(1, b"odd") + proto(2, score) + proto(3, kind))
    with pytest.raises(CannotStart, match=said) as caught:
        sentencepiece_core(piece + sentencepiece_file(), ConfigFields({}, str, ""), "the.model")
    assert "the.model" in str(caught.value) and "damaged" not in str(caught.value)


def test_what_a_folder_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(Source(tmp_path))  # type: ignore[arg-type]
    (tmp_path / "vocab.json").write_bytes(b"x")
    with pytest.raises(TokenizerError, match="Convert it"):
        load_tokenizer(Source(tmp_path))  # type: ignore[arg-type]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="usable"):
        load_tokenizer(Source(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="--tokenizer-mode quick"):
        load_tokenizer(Source(tmp_path), mode="quick")  # type: ignore[arg-type]
