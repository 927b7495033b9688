"""Vocabularies of encoders from GGUF metadata: BERT's WordPiece, and Unigram (XLM-R)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from vivace.checkpoint.fields import Column
from vivace.frontend.gguf_words import CONTROL, KEY, GGUFWords
from vivace.frontend.tokenizer_core import from_library

SPACE = "\u2581"
CONTINUES = "##"
CHARACTERS = KEY + "precompiled_charsmap"
MOST_BYTES = 1 << 24
UNKNOWN_KEY = KEY + "unknown_token_id"
NO_UNKNOWN = "it must be a token, which stands for what the vocabulary has no word for"


def wordpiece(words: GGUFWords) -> Core:
    """Words are lower-case where the vocabulary has no other ones."""
    control = [
        kind == CONTROL or (token.startswith("[") and token.endswith("]"))
        for token, kind in zip(words.tokens, words.types, strict=True)
    ]
    spelled = [
        token if alone else respell(token)
        for token, alone in zip(words.tokens, control, strict=True)
    ]
    vocabulary = {token: index for index, token in reversed(list(enumerate(spelled)))}
    unknown = words.named("unknown") or "[UNK]"
    if unknown not in vocabulary:
        raise words.fields.refusal(UNKNOWN_KEY, NO_UNKNOWN)
    core = from_library(
        lambda: Core(models.WordPiece(vocab=vocabulary, unk_token=unknown)),  # type: ignore[call-arg]
        f"{words.where}: inconsistent vocabulary",
    )
    words_alone = compress(spelled, (not alone for alone in control))
    lower = all(word == word.lower() or is_special(word) for word in words_alone)
    core.normalizer = normalizers.BertNormalizer(lowercase=lower)  # type: ignore[assignment]
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    core.decoder = decoders.WordPiece()  # type: ignore[assignment]
    first = words.named("cls") or words.named("bos")
    last = words.named("seperator") or words.named("eos")  # llama.cpp spells it so
    frame_pairs(core, words, first, last, behind=[])
    return core


def respell(token: str) -> str:
    """llama.cpp marks words that begin, WordPiece those that go on."""
    return token.removeprefix(SPACE) if token.startswith(SPACE) else CONTINUES + token


def is_special(token: str) -> bool:
    return token.startswith("[") and token.endswith("]")


def unigram(words: GGUFWords) -> Core:
    """SentencePiece's model by probabilities; `scores` are their logarithms."""
    if words.id("unknown") is None:
        raise words.fields.refusal(UNKNOWN_KEY, NO_UNKNOWN)
    pieces = list(zip(words.tokens, words.scores, strict=True))
    core = from_library(
        lambda: Core(models.Unigram(pieces, words.id("unknown"))),
        f"{words.where}: inconsistent vocabulary",
    )
    steps: list[normalizers.Normalizer] = []
    octets = Column(int, f"a list of at most {MOST_BYTES} bytes")
    table = words.fields.get(CHARACTERS, octets, [])
    if len(table) > MOST_BYTES or not all(0 <= one < 256 for one in table):
        raise words.fields.refusal(CHARACTERS, f"it must be {octets.expected}")
    if table:
        steps.append(
            from_library(
                lambda: normalizers.Precompiled(bytes(table)), words.fields.place(CHARACTERS)
            )
        )
    if words.flag("remove_extra_whitespaces", True):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    core.normalizer = normalizers.Sequence(steps)  # type: ignore[assignment]
    scheme = "always" if words.flag("add_space_prefix", True) else "never"
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)  # type: ignore[assignment]
    core.decoder = decoders.Metaspace(prepend_scheme=scheme)  # type: ignore[assignment]
    first, last = words.added("bos", True), words.added("eos", True)
    frame_pairs(core, words, first, last, behind=[last] if last else [])
    return core


def frame_pairs(
    core: Core, words: GGUFWords, first: str | None, last: str | None, behind: Sequence[str]
) -> None:
    """`first` before a text, `last` behind it and behind a second one; `behind`: between them."""
    begin, end = [first] if first else [], [last] if last else []
    named = {token: core.token_to_id(token) for token in (*begin, *end, *behind)}
    core.post_processor = from_library(  # type: ignore[assignment]
        lambda: processors.TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[*begin, "$A", *end, *behind, "$B:1", *(f"{one}:1" for one in end)],
            special_tokens=list(named.items()),
        ),
        f"{words.where}: special tokens",
    )
