"""Tokenizers from GGUF metadata (`tokenizer.ggml.*`): byte-level BPE and SentencePiece BPE, and
those of encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core
from tokenizers.pre_tokenizers import PreTokenizer

from vivace.checkpoint.fields import ListOf, Text, abbreviate
from vivace.frontend.chat_template import TemplateSet
from vivace.frontend.errors import TokenizerError
from vivace.frontend.gguf_words import CONTROL, KEY, UNKNOWN, USER, GGUFWords
from vivace.frontend.tokenizer_core import Loaded, from_library, set_frame
from vivace.frontend.tokenizer_gguf_encoders import frame_pairs, unigram, wordpiece

MERGES_CHARACTERS = 1 << 25
"""of all merges that follow from scores; of 260,000 tokens they have about 5 million"""
SPLIT_CHARACTERS = 1 << 32
"""of all ways to split all tokens: some seconds; 260,000 tokens have about 20 million"""


def load_from_gguf(file: Path) -> Loaded:
    """(core, chat templates, eos ids, bos id) of a GGUF file."""
    from vivace.checkpoint.gguf_file import GGUFFile

    return build_tokenizer(GGUFFile(file).metadata, str(file))


def build_tokenizer(metadata: Mapping[str, Any], where: str) -> Loaded:
    """The same from a metadata table; `where` is for error messages."""
    kind = metadata.get(KEY + "model")
    make = VOCABULARIES.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise TokenizerError(
            f"{where}: {KEY}model is {abbreviate(kind)}; vocabularies that can be read: "
            f"{', '.join(VOCABULARIES)}. Pass --tokenizer-path to a folder with the model's "
            "tokenizer.json"
        )
    words = GGUFWords(metadata, where)
    core = make(words)
    from_library(lambda: _add_tokens(core, words), f"{where}: special tokens")
    return core, _templates(words), words.ends(), words.id("bos")


def _byte_level(words: GGUFWords) -> Core:
    name = words.fields.get(KEY + "pre", Text(), "default")
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise TokenizerError(
            f"{words.where}: pre-tokenizer {name!r} is not known, and a wrong one gives wrong "
            "tokens. Pass --tokenizer-path to a folder with the model's tokenizer.json."
        )
    if not words.fields.has(KEY + "merges"):
        raise TokenizerError(
            f"{words.where}: no {KEY}merges, without which no token comes to be. Pass "
            "--tokenizer-path to a folder with the model's tokenizer.json, or fetch another file"
        )
    model = _bpe(words, words.merges(), ignore_merges=rule.whole_words)
    core = byte_level_core(model, rule)
    first, last = words.added("bos", rule.adds_bos), words.added("eos", False)
    if words.flag("add_sep_token", False) and last:  # RoBERTa's
        frame_pairs(core, words, first, last, behind=[words.named("seperator") or last])
    else:
        set_frame(core, first, last)
    return core


def byte_level_core(model: models.BPE, rule: SplitRule) -> Core:
    core = Core(model)
    core.pre_tokenizer = rule.pre_tokenizer()  # type: ignore[assignment]
    core.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return core


def _sentencepiece(words: GGUFWords) -> Core:
    vocabulary = words.vocabulary()
    merges = words.merges() or merges_by_score(words.tokens, words.scores, vocabulary, words.where)
    unknown = words.named("unknown") or ("<unk>" if "<unk>" in vocabulary else None)
    core = Core(_bpe(words, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = words.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", "\u2581")
    core.normalizer = (  # type: ignore[assignment]
        normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefixed else spaces
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence(  # type: ignore[assignment]
        [*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps
    )
    set_frame(core, words.added("bos", True), words.added("eos", False))
    return core


VOCABULARIES: dict[str, Callable[[GGUFWords], Core]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "bert": wordpiece,
    "t5": unigram,
}
"""llama.cpp's names"""


def _bpe(words: GGUFWords, merges: list[tuple[str, str]], **settings: Any) -> models.BPE:
    return from_library(
        lambda: models.BPE(vocab=words.vocabulary(), merges=merges, **settings),
        f"{words.where}: inconsistent vocabulary",
    )


def merges_by_score(
    tokens: Sequence[str], scores: Sequence[float], vocabulary: Mapping[str, int], where: str
) -> list[tuple[str, str]]:
    """SentencePiece BPE as merges: the pair whose result has the best score joins first.

    Every way to split a token into two tokens is a merge that leads to it. Of equal scores, which
    Mistral's files have for all runs of spaces, the pair on the left joins first: what has joined
    already stands there, so the one with the longer left part. Raises TokenizerError for a file in
    `where` that has too many.
    """
    if sum(len(token) ** 2 for token in tokens) > SPLIT_CHARACTERS:
        raise TokenizerError(f"{where}: its tokens are too long to be split")
    found, room = list[tuple[float, int, int, str, str]](), MERGES_CHARACTERS
    for left, right, score in split_tokens(tokens, scores, vocabulary):
        room -= len(left) + len(right)
        if room < 0:
            raise TokenizerError(f"{where}: too many pairs of its tokens are tokens")
        found.append((-score, -len(left), -len(right), left, right))
    found.sort(key=lambda entry: entry[:3])
    return [(left, right) for *_, left, right in found]


def split_tokens(
    tokens: Sequence[str], scores: Sequence[float], vocabulary: Mapping[str, int]
) -> Iterator[tuple[str, str, float]]:
    """(left, right, score of the whole)"""
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                yield left, right, score


def _add_tokens(core: Core, words: GGUFWords) -> None:
    """Control tokens are special (hidden by default); user-defined ones are whole but visible."""
    prefixed = core.normalizer is not None and words.flag("add_space_prefix", True)
    added: list[AddedToken] = []
    for index, kind in enumerate(words.types):
        token = words.tokens[index]
        if kind not in (CONTROL, UNKNOWN, USER) or core.token_to_id(token) != index:
            continue
        if kind in (CONTROL, UNKNOWN):
            added.append(AddedToken(token, special=True, normalized=False))
        else:
            normalized = core.normalizer is not None and not prefixed
            added.append(AddedToken(token, special=False, normalized=normalized))
    core.add_tokens(added)


def _templates(words: GGUFWords) -> TemplateSet:
    key = "tokenizer.chat_template"
    fields, template = words.fields, Text(1 << 20, name=False)
    sources: dict[str, str] = {}
    if fields.has(key):
        sources["default"] = fields.need(key, template)
    for name in fields.get(key + "s", ListOf(Text(), 64), ()):
        if fields.has(f"{key}.{name}"):
            sources[name] = fields.need(f"{key}.{name}", template)
    keys = {name: key if name == "default" else f"{key}.{name}" for name in sources}
    places = {name: fields.place(one) for name, one in keys.items()}
    named = {
        f"{short}_token": text
        for short, key_name in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("unk", "unknown"),
            ("pad", "padding"),
        )
        if (text := words.named(key_name)) is not None
    }
    return TemplateSet(sources=sources, places=places, special_tokens=named)


_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_APOSTROPHES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN2 = _APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN35 = (
    _APOSTROPHES + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_TEKKEN = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
_GPT4O = (
    _CASED % (_APOSTROPHES + "?", _APOSTROPHES + "?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _TAIL
)
_NO_HAN = r"&&[^\p{Han}]]"
_KIMI = (
    r"[\p{Han}]+|"
    + (_CASED % (_APOSTROPHES + "?", _APOSTROPHES + "?"))
    .replace(_UPPER, _UPPER[:-1] + _NO_HAN)
    .replace(_LOWER, _LOWER[:-1] + _NO_HAN)
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    + _TAIL
)
_SEED_CODER = (
    _APOSTROPHES
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL,
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True, kw_only=True)
class SplitRule:
    """Expressions applied one after the other; every match stands alone.

    `whole_words`: a word that is in the vocabulary is one token, whatever the merges say.
    `adds_bos`: the family starts every prompt with the begin token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        splits: list[PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns
        ]
        return pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )


_DIGITS_GPT2 = SplitRule(patterns=(r"\p{N}", _GPT2))
_PLAIN_GPT2 = SplitRule(patterns=(_GPT2,))
_LLAMA3_RULE = SplitRule(patterns=(_LLAMA3,), whole_words=True, adds_bos=True)
_QWEN2_RULE = SplitRule(patterns=(_QWEN2,))
_CASED_LETTERS = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"

_RULES: tuple[tuple[str, SplitRule], ...] = (
    ("gpt-2 gpt2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat mpt olmo", _PLAIN_GPT2),
    ("jais trillion granite-docling exaone4 a.x-4.0 mellum roberta-bpe modern-bert", _PLAIN_GPT2),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b", _DIGITS_GPT2),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        _LLAMA3_RULE,
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", SplitRule(patterns=(_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan grok-2 solar-open",
        _QWEN2_RULE,
    ),
    ("qwen35", SplitRule(patterns=(_QWEN35,))),
    ("tekken", SplitRule(patterns=(_TEKKEN,), whole_words=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", SplitRule(patterns=(_GPT4O,))),
    ("kimi-k2", SplitRule(patterns=(_KIMI,), whole_words=True)),
    ("seed-coder", SplitRule(patterns=(_SEED_CODER,))),
    ("bailingmoe bailingmoe2 llada-moe", SplitRule(patterns=(_BAILING,))),
    ("deepseek-v3 hunyuan-dense", SplitRule(patterns=_DEEPSEEK3)),
    (
        "deepseek-coder",
        SplitRule(patterns=("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    ),
    (
        "deepseek-llm",
        SplitRule(
            patterns=("[\r\n]", _CASED_LETTERS, _PUNCTUATION, r"\s+$", _CJK, r"\p{N}+"),
        ),
    ),
    ("falcon", SplitRule(patterns=_FALCON)),
    ("default", SplitRule(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9]{3}"))),
    ("bloom poro-chat gpt3-finnish", SplitRule(patterns=(_BLOOM,))),
    ("viking", SplitRule(patterns=(_BLOOM, r"\p{N}"))),
)

SPLIT_RULES: dict[str, SplitRule] = {name: rule for names, rule in _RULES for name in names.split()}
