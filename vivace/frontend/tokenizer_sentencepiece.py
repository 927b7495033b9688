"""Tokenizers from tokenizer.model, SentencePiece's own file (a protocol buffer, `ModelProto`): its
columns are those that GGUF files have of it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core

from vivace.checkpoint.fields import ConfigFields, Flag
from vivace.errors import CannotStart
from vivace.frontend.errors import TokenizerError
from vivace.frontend.gguf_words import KEY, USER
from vivace.frontend.tokenizer_core import from_library
from vivace.frontend.tokenizer_gguf import build_tokenizer

PIECES, TRAINER, NORMALIZER = 1, 2, 3
MOST_PIECES = 1 << 20
TEXT, SCORE, TYPE = 1, 2, 3
"""of a piece"""
MODEL_TYPE, BPE, UNIGRAM = 3, 2, 1
IDS = {40: ("unknown", 0), 41: ("bos", 1), 42: ("eos", 2)}
"""of the trainer: names, and what they are unless it says so"""
BYTE_TAIL = r"(?<=\A<0x[0-9A-F]{2})>\z"
"""of a text that is no byte, though the piece of one is written like that, where it is all between
others: elsewhere merges may go across it. Hardly any goes across its last character."""
ADDED = (("bos", True), ("eos", False))
"""tokens that frame a prompt, unless tokenizer_config.json says otherwise"""
SUFFIXED = 24
"""of the trainer: whether spaces end pieces, not begin them"""
TABLE, DUMMY_PREFIX, SQUEEZES, MARKS_SPACES = 2, 3, 4, 5
"""of the normalizer: characters that it replaces, whether it puts a space before a text, whether it
makes one of several, and whether it writes them as the mark that pieces have"""
NORMAL = 1
CONVERT = (
    "convert it once with transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...)), "
    "or pass --tokenizer-path to a folder with a tokenizer.json"
)
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
Value = int | float | bytes


def sentencepiece_core(data: bytes, config: ConfigFields, where: str) -> Core:
    """`config`: tokenizer_config.json. Raises TokenizerError, SourceError."""
    legacy = config.get("legacy", Flag(), True)
    adds = {name: config.get(f"add_{name}_token", Flag(), is_usual) for name, is_usual in ADDED}
    try:
        model = read_model(data, adds, where)
        prefixed = model[f"{KEY}add_space_prefix"]
        whole = take_user_pieces(model) if prefixed else []
        core = build_tokenizer(model, where)[0]
        once = prefixed and not legacy
        from_library(
            lambda: split_texts(core, whole, once=once), f"{where}: pieces that are kept whole"
        )
        return core
    except CannotStart:  # says what is wrong
        raise
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise TokenizerError(
            f"{where}: is damaged ({type(error).__name__}); fetch it again"
        ) from None


def read_model(data: bytes, adds: dict[str, bool], where: str) -> dict[str, Any]:
    """The metadata that a GGUF file would have. `adds`: which tokens frame a prompt."""
    pieces: list[dict[int, Value]] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in read_fields(data):
        if number == PIECES:
            if len(pieces) == MOST_PIECES:
                raise TokenizerError(f"{where}: has more than {MOST_PIECES} pieces")
            pieces.append(dict(read_fields(as_bytes(value))))
        elif number == TRAINER:
            trainer = dict(read_fields(as_bytes(value)))
        elif number == NORMALIZER:
            normalizer = dict(read_fields(as_bytes(value)))
    if not pieces:
        raise TokenizerError(f"{where}: has no pieces, so it is none of SentencePiece's; {CONVERT}")
    if trainer.get(MODEL_TYPE, UNIGRAM) != BPE:
        raise TokenizerError(f"{where}: of its kinds only BPE is read; {CONVERT}")
    if normalizer.get(TABLE) or normalizer.get(SQUEEZES, 1):
        raise TokenizerError(f"{where}: it rewrites texts, which is not read; {CONVERT}")
    if trainer.get(SUFFIXED, 0) or not normalizer.get(MARKS_SPACES, 1):
        raise TokenizerError(f"{where}: its spaces are not those of others; {CONVERT}")
    ids = {name: trainer.get(number, default) for number, (name, default) in IDS.items()}
    known = {f"{KEY}{name}_token_id": one for name, one in ids.items() if one in range(len(pieces))}
    return {
        f"{KEY}model": "llama",
        f"{KEY}tokens": [as_bytes(one.get(TEXT, b"")).decode() for one in pieces],
        f"{KEY}scores": [float(one.get(SCORE, 0.0)) for one in pieces],
        f"{KEY}token_type": [int(one.get(TYPE, NORMAL)) for one in pieces],
        f"{KEY}add_space_prefix": bool(normalizer.get(DUMMY_PREFIX, 1)),
        **{f"{KEY}add_{name}_token": added for name, added in adds.items()},
        **known,
    }


def take_user_pieces(model: dict[str, Any]) -> list[str]:
    """Pieces that the trainer was told to keep whole, which are words like others from now on: an
    added token would have a space put behind it, too, not only before the text."""
    tokens, types = model[f"{KEY}tokens"], model[f"{KEY}token_type"]
    found = [token for token, kind in zip(tokens, types, strict=True) if kind == USER and token]
    model[f"{KEY}token_type"] = [NORMAL if kind == USER else kind for kind in types]
    return found


def split_texts(core: Core, whole: list[str], *, once: bool) -> None:
    """Have each of these pieces be one token wherever it stands, the longest first. `once`: a space
    is put before the text, not behind each special token, as transformers has it (`legacy`)."""
    steps = list[pre_tokenizers.PreTokenizer]()
    if once:
        core.normalizer = normalizers.Replace(" ", "\u2581")  # type: ignore[assignment]
        steps.append(pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    if whole:
        words = map(re.escape, sorted(whole, key=len, reverse=True))
        for pattern in ("|".join(words), BYTE_TAIL):
            steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
        core.model.ignore_merges = True  # type: ignore[attr-defined]
    if steps:
        core.pre_tokenizer = pre_tokenizers.Sequence(steps)  # type: ignore[assignment]


def as_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def read_fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of a message's fields. Raises what damage leads to."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        size = 8 if kind == EIGHT_BYTES else 4
        if kind == BYTES:
            size, at = read_varint(data, at)
        elif kind not in (EIGHT_BYTES, FOUR_BYTES):
            raise ValueError
        if at + size > len(data):
            raise ValueError
        part, at = data[at : at + size], at + size
        yield number, struct.unpack("<f", part)[0] if kind == FOUR_BYTES else part


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, where it ends)"""
    found = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
    raise ValueError
