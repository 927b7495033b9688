"""Text <-> token ids, from tokenizer.json or from GGUF metadata. No state per call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as Core

from vivace.frontend.chat_template import ChatTemplate
from vivace.frontend.errors import BadRequest, TokenizerError
from vivace.frontend.token_bytes import OTHER, TokenBytes, detect_decoding
from vivace.frontend.tokenizer_files import from_library, load_from_folder

if TYPE_CHECKING:
    from vivace.checkpoint.source import ModelSource
    from vivace.config.config import Config


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
        self.pieces = TokenBytes(core, detect_decoding(core), self.special_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it are recognized.

        Raises BadRequest for text that is not valid Unicode (lone surrogates).
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        # The batch call gives up the interpreter lock while it works; a single `encode` does not.
        try:
            found = self._core.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise BadRequest("text", "is not valid Unicode text") from error
        return [one.ids for one in found]

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
        if self.pieces.decoding.kind != OTHER:
            return self.pieces.decode(ids, skip=skip_special_tokens)
        if skip_special_tokens or spaces_between_special_tokens:
            return self._core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return self._decode_tight(ids)

    @property
    def decodes_in_runs(self) -> bool:
        """Whether `decode_in_runs` comes bit by bit."""
        return self.pieces.decoding.kind != OTHER

    def decode_in_runs(
        self, ids: Sequence[int], run: int, skip_special_tokens: bool = True
    ) -> Iterator[str]:
        """`decode`, as parts of `run` ids each where the vocabulary allows it."""
        if self.decodes_in_runs:
            return self.pieces.decode_in_runs(ids, run, skip=skip_special_tokens)
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
        return self.pieces.bytes[token]

    def token_id(self, piece: str) -> int | None:
        """Id of a token by its exact written form."""
        return self._core.token_to_id(piece)


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
