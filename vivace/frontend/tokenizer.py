"""Text <-> token ids, from tokenizer.json or from GGUF metadata, and what every id stands for in
bytes and text, worked out once per id. No state per call.

Full decoding is defined here for the two families that cover nearly every model: the bytes of the
tokens are joined and read as UTF-8 (invalid parts become U+FFFD). So streaming can add up to
exactly the same text without ever decoding twice.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Core

from vivace.errors import is_panic
from vivace.frontend.chat_template import ChatTemplate
from vivace.frontend.errors import BadRequest, TokenizerError
from vivace.frontend.tokenizer_core import byte_alphabet, from_library
from vivace.frontend.tokenizer_files import load_from_folder

if TYPE_CHECKING:
    from vivace.checkpoint.source import ModelSource
    from vivace.config.config import Config

BYTE_LEVEL = "byte-level"
SENTENCEPIECE = "sentencepiece"
OTHER = "other"

DAMAGED = "the tokenizer's files are damaged, as this text shows; fetch them again"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
_Utf8 = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How token strings become text. `strips_start`: a space at the start of a text is dropped."""

    kind: str
    strips_start: bool = False
    byte_fallback: bool = False


def detect_decoding(core: Core) -> Decoding:
    """Recognize the decoder of a `tokenizers` object; anything unusual is `OTHER`."""
    if core.decoder is None:
        return Decoding(kind=OTHER)
    steps = _flatten(json.loads(core.decoder.__getstate__()))
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return Decoding(kind=BYTE_LEVEL)
    if not all(_is_sentencepiece_step(step) for step in steps):
        return Decoding(kind=OTHER)
    if "Replace" not in types and "Metaspace" not in types:
        return Decoding(kind=OTHER)
    return Decoding(
        kind=SENTENCEPIECE,
        strips_start=any(_strips_start(step) for step in steps),
        byte_fallback="ByteFallback" in types,
    )


def _flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flatten(part)]


def _is_sentencepiece_step(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "Replace":
            return step["pattern"] == {"String": _SPACE} and step["content"] == " "
        case "Metaspace":
            return step["replacement"] == _SPACE
        case "Strip":
            return step["content"] == " " and step["start"] <= 1 and step["stop"] == 0
        case kind:
            return kind in ("ByteFallback", "Fuse")


def _strips_start(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return step["start"] == 1
    return step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"


class TokenBytes:
    """Bytes and text per token id, filled on first use. Safe to share between threads: an entry is
    a pure function of its id, so a lost race writes the same value twice."""

    def __init__(self, core: Core, decoding: Decoding, hidden: Iterable[int] = ()) -> None:
        self.decoding = decoding
        self.bytes = _Bytes(core, decoding)
        self.texts = _Texts(self.bytes, frozenset())
        self.hidden = frozenset(hidden)
        self.visible_texts = _Texts(self.bytes, self.hidden)
        self._texts_with: dict[frozenset[int], _Texts] = {}

    def skipping(self, shown: frozenset[int]) -> tuple[frozenset[int], _Texts]:
        """(special ids that have no text, texts of all ids) where special tokens are skipped but
        those `shown`: the few that a parser must see."""
        if not shown:
            return self.hidden, self.visible_texts
        hidden = self.hidden - shown
        return hidden, self._texts_with.setdefault(shown, _Texts(self.bytes, hidden))

    def decode(self, ids: Iterable[int], *, skip: bool) -> str:
        table, hidden = self.bytes, self.hidden if skip else ()
        text = b"".join([table[i] for i in ids if i not in hidden]).decode("utf-8", "replace")
        return text[1:] if self.decoding.strips_start and text.startswith(" ") else text

    def decode_in_runs(self, ids: Sequence[int], run: int, *, skip: bool) -> Iterator[str]:
        """The same text in parts, `run` ids at a time; a character is in the part it ends in."""
        table, hidden = self.bytes, self.hidden if skip else ()
        read = _Utf8("replace").decode
        begun = not self.decoding.strips_start
        for start in range(0, len(ids), run):
            known = [table[i] for i in ids[start : start + run] if i not in hidden]
            text = read(b"".join(known), start + run >= len(ids))
            if text and not begun:
                begun = True
                text = text.removeprefix(" ")
            yield text


class _Bytes(dict[int, bytes]):
    def __init__(self, core: Core, decoding: Decoding) -> None:
        super().__init__()
        self._core = core
        self._decoding = decoding
        self._alphabet = byte_alphabet()

    def __missing__(self, key: int) -> bytes:
        token = self._core.id_to_token(key) if 0 <= key < 1 << 32 else None
        value = b"" if token is None else self._token_bytes(token)
        if token is not None:
            self[key] = value  # unknown ids are not kept: they would grow without bound
        return value

    def _token_bytes(self, token: str) -> bytes:
        if self._decoding.kind == BYTE_LEVEL:
            try:
                return bytes([self._alphabet[char] for char in token])
            except KeyError:  # an added token outside the alphabet stands for itself
                return token.encode("utf-8", "replace")
        if self._decoding.byte_fallback and (found := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(found[1], 16)])
        if self._decoding.kind == SENTENCEPIECE:
            token = token.replace(_SPACE, " ")
        return token.encode("utf-8", "replace")


class _Texts(dict[int, str | None]):
    """Text of a token that is whole characters on its own; None when it is part of one."""

    def __init__(self, table: _Bytes, hidden: frozenset[int]) -> None:
        super().__init__()
        self._table = table
        self._hidden = hidden

    def __missing__(self, key: int) -> str | None:
        data = b"" if key in self._hidden else self._table[key]
        try:
            text: str | None = data.decode("utf-8")
        except UnicodeDecodeError:
            text = None
        if key in self._table:
            self[key] = text
        return text


class Tokenizer:
    """One model's vocabulary. Immutable and safe to share between threads.

    `vocabulary` counts ids (highest + 1); `special_ids` are hidden by skip_special_tokens;
    `eos_ids` are the ids by which the tokenizer's own files say that a text ends.
    """

    def __init__(
        self,
        core: Core,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        chat: ChatTemplate | None = None,
    ) -> None:
        core.no_truncation()
        core.no_padding()
        added = core.get_added_tokens_decoder()
        self._core = core
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.vocabulary = max(
            [core.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added)]
        )
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self.bos_id = bos_id
        self.chat = chat
        self.token_table = TokenBytes(core, detect_decoding(core), self.special_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it are recognized.

        Raises BadRequest for text that is not valid Unicode (lone surrogates).
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        return [one.ids for one in self._encode(texts, add_special_tokens)]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], step: int) -> list[list[int]]:
        """Token ids of two texts each, as the tokenizer's own template puts them together; those of
        the second one's type are `step` larger."""
        return [
            [token + step * kind for token, kind in zip(one.ids, one.type_ids, strict=True)]
            for one in self._encode(pairs, True)
        ]

    def _encode(self, texts: Sequence[Any], special: bool) -> list[Any]:
        # The batch call gives up the interpreter lock while it works; a single `encode` does not.
        try:
            return self._core.encode_batch_fast(list(texts), add_special_tokens=special)
        except (UnicodeEncodeError, TypeError) as error:
            raise BadRequest("text", "is not valid Unicode text") from error
        except BaseException as error:  # some damage shows with some texts only
            if not is_panic(error):
                raise
            raise BadRequest("text", DAMAGED, 500) from None

    def decode(
        self,
        ids: Iterable[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of token ids. Bytes that are no UTF-8 become U+FFFD; ids without a token, nothing.

        Byte-level and SentencePiece vocabularies never put spaces between special tokens, so
        `spaces_between_special_tokens` changes only the others.
        """
        if self.token_table.decoding.kind != OTHER:
            return self.token_table.decode(ids, skip=skip_special_tokens)
        if skip_special_tokens or spaces_between_special_tokens:
            return self._core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self._decode_tight(ids)

    @property
    def decodes_in_runs(self) -> bool:
        """Whether `decode_in_runs` comes bit by bit."""
        return self.token_table.decoding.kind != OTHER

    def decode_in_runs(
        self, ids: Sequence[int], run: int, skip_special_tokens: bool = True
    ) -> Iterator[str]:
        """`decode`, as parts of `run` ids each where the vocabulary allows it."""
        if self.decodes_in_runs:
            return self.token_table.decode_in_runs(ids, run, skip=skip_special_tokens)
        return iter((self.decode(ids, skip_special_tokens),))

    def _decode_tight(self, ids: Iterable[int]) -> str:
        """Words as the decoder joins them, runs of special tokens without spaces."""
        runs: list[tuple[bool, list[int]]] = []
        for token in ids:
            special = token in self.special_ids
            if not runs or runs[-1][0] != special:
                runs.append((special, []))
            runs[-1][1].append(token)
        return " ".join(
            "".join(self.token_text(token) for token in run)
            if special
            else self._core.decode(run, skip_special_tokens=False)
            for special, run in runs
        )

    def token_text(self, token: int) -> str:
        """Text of one token on its own, special tokens and leading spaces shown."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return self.token_table.bytes[token]

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact written form."""
        return self._core.token_to_id(token)


def load_tokenizer(
    source: ModelSource,
    *,
    mode: str = "auto",
    chat_template: str | None = None,
    template_name: str | None = None,
) -> Tokenizer:
    """The tokenizer of a model. `chat_template`: a file or a built-in name that replaces the
    model's own; `template_name`: which one, when the model brings several by name. `mode`: auto
    and slow mean the same, there is one implementation."""
    if mode not in ("auto", "slow"):
        raise TokenizerError(f"--tokenizer-mode {mode} is unknown; use auto")
    from vivace.checkpoint.layouts import is_gguf_file
    from vivace.frontend.chat_template import own_template
    from vivace.frontend.renderer import Renderer
    from vivace.frontend.tokenizer_gguf import load_from_gguf

    path = source.tokenizer_path
    renderer = Renderer()  # its process starts while the vocabulary is loaded
    chat = None
    try:
        load = load_from_gguf if is_gguf_file(path) else load_from_folder
        core, templates, ends, bos = load(path)
        chat = own_template(chat_template, templates, template_name, renderer)
    finally:
        if chat is None:
            renderer.close()
    return from_library(
        lambda: Tokenizer(core, eos_ids=ends, bos_id=bos, chat=chat), f"{path}: its tokenizer"
    )


def load_encoder(source: ModelSource) -> Tokenizer:
    """A tokenizer for texts alone: without templates, and the process that renders them."""
    from vivace.checkpoint.layouts import is_gguf_file
    from vivace.frontend.tokenizer_gguf import load_from_gguf

    path = source.tokenizer_path
    core, _, ends, bos = (load_from_gguf if is_gguf_file(path) else load_from_folder)(path)
    return from_library(lambda: Tokenizer(core, eos_ids=ends, bos_id=bos), f"{path}: its tokenizer")


def configured_tokenizer(config: Config) -> Tokenizer | None:
    """The tokenizer that a configuration names; None with --skip-tokenizer-init."""
    model = config.model
    if model.skip_tokenizer_init:
        return None
    return load_tokenizer(
        config.source,
        mode=model.tokenizer_mode,
        chat_template=model.chat_template,
        template_name=model.hf_chat_template_name,
    )
