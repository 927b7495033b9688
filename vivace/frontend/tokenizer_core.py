"""What tokenizers of all kinds of files share: the `tokenizers` library and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tokenizers import Tokenizer as Core
from tokenizers import processors

from vivace.errors import CannotStart, is_panic
from vivace.frontend.chat_template import TemplateSet
from vivace.frontend.errors import TokenizerError
from vivace.observability.log import escape

T = TypeVar("T")
Loaded = tuple[Core, TemplateSet, list[int], int | None]
"""(words and merges, chat templates, eos ids, bos id)"""


def set_frame(core: Core, first: str | None, last: str | None) -> None:
    """Put `first` before and `last` behind every prompt (None: nothing)."""
    tokens = {t: core.token_to_id(t) for t in (first, last) if t is not None}
    pattern = [*([first] if first else []), "$A", *([last] if last else [])]
    pair = [*([first] if first else []), "$B:1", *([last] if last else [])]
    core.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=pattern, pair=pattern + pair, special_tokens=list(tokens.items())
    )


def byte_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE writes the 256 bytes (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(rest)})
    return alphabet


def from_library(make: Callable[[], T], what: str) -> T:
    """What `make` returns. Raises TokenizerError for what the tokenizers library refuses: it raises
    plain Exception, and for some damage a BaseException of its own."""
    try:
        return make()
    except CannotStart:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reason = escape(" ".join(str(error).split())[:300])  # it may quote the file
        raise TokenizerError(f"{what} ({reason}); fetch it again") from None
