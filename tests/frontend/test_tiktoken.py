"""Vocabularies of tiktoken.model (Kimi-K2), against joining bytes by hand."""

from __future__ import annotations

import base64
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import damage

from vivace.checkpoint.fields import ConfigFields
from vivace.checkpoint.file_state import vocabulary_file
from vivace.checkpoint.source import locate
from vivace.errors import CannotStart
from vivace.frontend.errors import TokenizerError
from vivace.frontend.tokenizer import Tokenizer, load_tokenizer
from vivace.frontend.tokenizer_gguf import build_tokenizer
from vivace.frontend.tokenizer_tiktoken import read_ranks, tiktoken_core, written

WORDS = regex.compile(
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    regex.V1,
)
"""Kimi-K2's, as its tokenization_kimi.py has it"""
TEXT = "The tokens' theory: it's Thée they'LL then, 12345 的人中国的 的 人  \n\n x=(a+b)*theTHE"


def make_ranks() -> list[bytes]:
    """Bytes, and what joins most often in some text, or by chance."""
    chance = random.Random(3)
    singles = [bytes([byte]) for byte in range(256)]
    chance.shuffle(singles)
    ranks, pieces = singles, [[bytes([b]) for b in word.encode()] for word in WORDS.findall(TEXT)]
    while len(ranks) < 330:
        pairs = [a + b for piece in pieces for a, b in itertools.pairwise(piece)]
        fresh = sorted(set(pairs) - set(ranks)) or [b"qx%d" % len(ranks)]
        ranks.append(chance.choice(fresh))
        pieces = [join(piece, {token: i for i, token in enumerate(ranks)}) for piece in pieces]
    return ranks


def join(parts: list[bytes], ranks: dict[bytes, int]) -> list[bytes]:
    """The first pair of the lowest rank, again and again."""
    while True:
        found = [
            (ranks[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in ranks
        ]
        if not found:
            return parts
        at = min(found)[1]
        parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]


def encode_by_hand(text: str, ranks: dict[bytes, int]) -> list[int]:
    ids = []
    for word in WORDS.findall(text):
        data = word.encode()
        whole = [data] if data in ranks else join([bytes([byte]) for byte in data], ranks)
        ids += [ranks[token] for token in whole]
    return ids


RANKS = make_ranks()
DECLARED = {
    "330": {"content": "[BOS]", "special": True},
    "331": {"content": "[EOS]", "special": True},
    "332": {"content": "<|im_end|>", "special": True},
    "337": {"content": "<|im_user|>", "special": True},
    "340": {"content": "<|tool|>", "special": False},
}
CONFIG = {
    "tokenizer_class": "TikTokenTokenizer",
    "added_tokens_decoder": DECLARED,
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "additional_special_tokens": ["<|im_end|>", "<|im_user|>"],
    "chat_template": "{{ messages[0].content }}<|im_end|>",
}


def lines(ranks: list[bytes]) -> bytes:
    return b"".join(base64.b64encode(one) + b" %d\n" % rank for rank, one in enumerate(ranks))


def write(folder: Path, data: bytes, **changes: Any) -> Path:
    (folder / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
    (folder / "tiktoken.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def load(folder: Path) -> Tokenizer:
    return load_tokenizer(locate(str(folder), load_format="dummy"))


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(write(tmp_path_factory.mktemp("kimi"), lines(RANKS)))


ANY = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
LIKELY = st.lists(st.sampled_from(TEXT), max_size=60).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=ANY | LIKELY | st.just(TEXT))
def test_tokens_are_those_of_joining_by_hand(kimi: Tokenizer, text: str) -> None:
    ids = kimi.encode(text)
    assert ids == encode_by_hand(text, {token: rank for rank, token in enumerate(RANKS)})
    assert kimi.decode(ids) == text


def test_special_tokens_and_those_that_are_reserved(kimi: Tokenizer) -> None:
    assert (kimi.vocabulary, kimi.bos_id, kimi.eos_ids) == (341, 330, (331,))
    assert kimi.encode("<|im_user|>the<|tool|>") == [337, *kimi.encode("the"), 340]
    assert kimi.token_text(334) == "<|reserved_token_334|>"
    assert kimi.decode([337, *kimi.encode("the"), 332]) == "the"


def test_a_gguf_file_of_the_same_vocabulary(kimi: Tokenizer) -> None:
    """Its merges are the one pair that joins to each token (llama.cpp's converter)."""
    order = {token: rank for rank, token in enumerate(RANKS)}
    merges = []
    for rank, token in enumerate(RANKS):
        below = {one: at for one, at in order.items() if at < rank}
        if len(parts := join([bytes([byte]) for byte in token], below)) == 2 and len(token) > 1:
            merges.append(" ".join(map(written, parts)))
    core = build_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "kimi-k2",
            "tokenizer.ggml.tokens": [written(token) for token in RANKS],
            "tokenizer.ggml.merges": merges,
        },
        "kimi.gguf",
    )[0]
    assert core.encode(TEXT).ids == kimi.encode(TEXT)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "byte"),
        (b"!!! 0\n", "line 1"),
        (b"QQ== x\n", "line 1"),
        (b"QQ== -1\n", "line 1"),
        (b"QQ==\n", "line 1"),
        (b" 0\n", "line 1"),
        (b"QQ== 0\nQg== 0\n", "line 2"),
        (b"QQ== 99999999\n", "too large"),
        (b"QQ== 5\n", "left out"),
        (b"QQ== 0\nQQ== 1\n", "twice"),
        (lines(RANKS[:200]), "byte"),
        (b"\x00\xff" * 100, "line 1"),
    ],
)
def test_damaged_lines(data: bytes, said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        read_ranks(data, "tiktoken.model")


@settings(max_examples=100, deadline=None)
@given(data=damage(lines(RANKS), len(lines(RANKS)) - 1))
def test_any_bytes_are_a_vocabulary_or_refused_in_one_line(data: bytes) -> None:
    fields = ConfigFields(CONFIG, lambda key: f"tokenizer_config.json: {key}")
    try:
        core = tiktoken_core(data, fields, "tiktoken.model")
    except CannotStart as error:
        assert str(error).isprintable()
        return
    assert core.decode(core.encode(TEXT).ids) == TEXT


def test_code_that_nobody_knows_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="QWenTokenizer"):
        load(write(tmp_path, lines(RANKS), tokenizer_class="QWenTokenizer"))


@pytest.mark.parametrize("key", ["100", "2000000"])
def test_declared_tokens_that_do_not_follow(tmp_path: Path, key: str) -> None:
    declared = {**DECLARED, key: {"content": "<|far|>"}}
    with pytest.raises(CannotStart, match=key):
        load(write(tmp_path, lines(RANKS), added_tokens_decoder=declared))


def test_a_tokenizer_json_beside_it_counts(tmp_path: Path) -> None:
    folder = write(tmp_path, lines(RANKS))
    assert vocabulary_file(folder) == folder / "tiktoken.model"
    (folder / "tokenizer.json").write_text("{}")
    assert vocabulary_file(folder) == folder / "tokenizer.json"


@pytest.mark.parametrize(
    "words",
    [
        ["".join(word) for n in range(2, 18) for word in itertools.product("ab", repeat=n)],
        ["a" * n for n in range(2, 513)],
    ],
    ids=["short", "long"],
)
def test_tokens_of_which_all_parts_are_tokens_are_refused(words: list[str]) -> None:
    """Before their merges fill the memory."""
    data = lines([*(bytes([byte]) for byte in range(256)), *map(str.encode, words)])
    with pytest.raises(TokenizerError, match="pairs"):
        tiktoken_core(data, ConfigFields({"tokenizer_class": "TikTokenTokenizer"}, "x"), "x")
