"""Tokenizers from GGUF metadata (`tokenizer.ggml.*`): byte-level BPE and SentencePiece BPE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Core

from vivace.frontend.chat_template import TemplateSet
from vivace.frontend.split_rules import SPLIT_RULES, SplitRule
from vivace.frontend.tokenizer import TokenizerError
from vivace.frontend.tokenizer_files import Loaded, set_frame

_UNKNOWN, _CONTROL, _USER = 2, 3, 4
_KEY = "tokenizer.ggml."
_ENDS_BY_NAME = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|eom_id|>")


def load_from_gguf(file: Path) -> Loaded:
    """(core, chat templates, eos ids, bos id) of a GGUF file."""
    from vivace.checkpoint.gguf_file import GGUFFile

    return tokenizer_of(GGUFFile(file).metadata, str(file))


def tokenizer_of(metadata: Mapping[str, Any], where: str) -> Loaded:
    """The same from a metadata table; `where` is for error messages."""
    words = _Words(metadata, where)
    match metadata.get(_KEY + "model"):
        case "gpt2":
            core, adds_bos = _byte_level(words)
        case "llama":
            core, adds_bos = _sentencepiece(words), True
        case other:
            raise TokenizerError(
                f"{where}: vocabulary type {other!r} cannot be read (known: gpt2, llama). Pass "
                "--tokenizer-path to a folder with the model's tokenizer.json."
            )
    _add_tokens(core, words)
    begin, end = words.named("bos"), words.named("eos")
    set_frame(
        core,
        begin if words.flag("add_bos_token", adds_bos) else None,
        end if words.flag("add_eos_token", False) else None,
    )
    return core, _templates(metadata, words), words.ends(), words.id("bos")


class _Words:
    """The vocabulary's columns, checked against each other."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self.metadata = metadata
        self.where = where
        self.tokens: list[str] = list(metadata.get(_KEY + "tokens") or ())
        if not self.tokens:
            raise TokenizerError(f"{where}: no {_KEY}tokens in its metadata: no tokenizer inside")
        self.types: list[int] = self._column("token_type", 1)
        self.scores: list[float] = self._column("scores", 0.0)

    def _column(self, name: str, default: Any) -> list[Any]:
        found = self.metadata.get(_KEY + name)
        if found is None:
            return [default] * len(self.tokens)
        if len(found) != len(self.tokens):
            raise TokenizerError(
                f"{self.where}: {_KEY}{name} has {len(found)} entries for {len(self.tokens)} tokens"
            )
        return list(found)

    def id(self, name: str) -> int | None:
        found = self.metadata.get(f"{_KEY}{name}_token_id")
        if found is None or int(found) == 0xFFFFFFFF:
            return None
        if not 0 <= int(found) < len(self.tokens):
            raise TokenizerError(
                f"{self.where}: {_KEY}{name}_token_id is {found}, outside of the vocabulary"
            )
        return int(found)

    def named(self, name: str) -> str | None:
        found = self.id(name)
        return None if found is None else self.tokens[found]

    def flag(self, name: str, default: bool) -> bool:
        found = self.metadata.get(_KEY + name)
        return default if found is None else bool(found)

    def ends(self) -> list[int]:
        """eos, end of turn, end of message; also control tokens known to end a turn."""
        by_key = [i for name in ("eos", "eot", "eom") if (i := self.id(name)) is not None]
        by_name = [
            i
            for i, kind in enumerate(self.types)
            if kind == _CONTROL and self.tokens[i] in _ENDS_BY_NAME
        ]
        return list(dict.fromkeys([*by_key, *by_name]))

    def merges(self) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for number, line in enumerate(self.metadata.get(_KEY + "merges") or ()):
            cut = line.find(" ", 1)
            if cut < 0:
                raise TokenizerError(
                    f"{self.where}: {_KEY}merges[{number}] is not a pair: {line!r}"
                )
            pairs.append((line[:cut], line[cut + 1 :]))
        return pairs

    def vocabulary(self) -> dict[str, int]:
        """Piece -> id; of equal pieces the first keeps the name."""
        return {piece: i for i, piece in reversed(list(enumerate(self.tokens)))}


def _byte_level(words: _Words) -> tuple[Core, bool]:
    name = str(words.metadata.get(_KEY + "pre") or "default")
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise TokenizerError(
            f"{words.where}: pre-tokenizer {name!r} is not known, and a wrong one gives wrong "
            "tokens. Pass --tokenizer-path to a folder with the model's tokenizer.json."
        )
    model = _bpe(words, words.merges(), ignore_merges=rule.whole_words)
    return _byte_level_core(model, rule), rule.adds_bos


def _byte_level_core(model: models.BPE, rule: SplitRule) -> Core:
    core = Core(model)
    core.pre_tokenizer = rule.pre_tokenizer()  # type: ignore[assignment]
    core.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return core


def _sentencepiece(words: _Words) -> Core:
    vocabulary = words.vocabulary()
    merges = words.merges() or merges_by_score(words.tokens, words.scores, vocabulary)
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
    return core


def _bpe(words: _Words, merges: list[tuple[str, str]], **settings: Any) -> models.BPE:
    try:
        return models.BPE(vocab=words.vocabulary(), merges=merges, **settings)
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{words.where}: inconsistent vocabulary: {error}") from error


def merges_by_score(
    tokens: Sequence[str], scores: Sequence[float], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """SentencePiece BPE as merges: the pair whose result has the best score joins first.

    Every way to split a piece into two pieces is a merge that leads to it.
    """
    found = [
        (-score, vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece[:cut], piece[cut:])
        for piece, score in zip(tokens, scores, strict=True)
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    found.sort(key=lambda entry: entry[:3])
    return [(left, right) for *_, left, right in found]


def _add_tokens(core: Core, words: _Words) -> None:
    """Control tokens are special (hidden by default); user-defined ones are whole but visible."""
    prefixed = core.normalizer is not None and words.flag("add_space_prefix", True)
    added: list[AddedToken] = []
    for index, kind in enumerate(words.types):
        piece = words.tokens[index]
        if kind not in (_CONTROL, _UNKNOWN, _USER) or core.token_to_id(piece) != index:
            continue
        if kind in (_CONTROL, _UNKNOWN):
            added.append(AddedToken(piece, special=True, normalized=False))
        else:
            normalized = core.normalizer is not None and not prefixed
            added.append(AddedToken(piece, special=False, normalized=normalized))
    core.add_tokens(added)


def _templates(metadata: Mapping[str, Any], words: _Words) -> TemplateSet:
    key = "tokenizer.chat_template"
    sources: dict[str, str] = {}
    if isinstance(metadata.get(key), str):
        sources["default"] = metadata[key]
    for name in metadata.get(key + "s") or ():
        if isinstance(text := metadata.get(f"{key}.{name}"), str):
            sources[str(name)] = text
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
    return TemplateSet(sources=sources, special_tokens=named)
