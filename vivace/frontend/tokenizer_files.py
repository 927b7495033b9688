"""Tokenizers from a model folder: tokenizer.json and the small files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Core

from vivace.frontend.chat_template import TemplateSet
from vivace.frontend.tokenizer import TokenizerError

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_SMALL_FILE = 16 << 20
_BOS_BY_CONFIG = ("Llama", "CodeLlama", "Gemma", "Cohere")

Loaded = tuple[Core, TemplateSet, list[int], int | None]


def load_from_folder(folder: Path) -> Loaded:
    """(core, chat templates, eos ids, bos id) of a folder that holds tokenizer.json."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(_missing(folder))
    config = {
        **_json(folder / "special_tokens_map.json"),
        **_json(folder / "tokenizer_config.json"),
    }
    try:
        core = Core.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{file}: not a usable tokenizer.json ({error})") from error
    _add_declared_tokens(core, config, file)
    _mark_special(core, config)
    named = {name: text for name in _NAMED if (text := _text(config.get(name)))}
    _follow_bos_flags(core, config, named)
    end = core.token_to_id(named["eos_token"]) if "eos_token" in named else None
    begin = core.token_to_id(named["bos_token"]) if "bos_token" in named else None
    templates = TemplateSet(sources=_templates(folder, config), special_tokens=named)
    return core, templates, [] if end is None else [end], begin


def _missing(folder: Path) -> str:
    found = [name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()]
    if found:
        return (
            f"{folder}: there is {found[0]} but no tokenizer.json. Convert it once with "
            "transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...)), or pass "
            "--tokenizer-path to a folder that has it."
        )
    return (
        f"{folder}: no tokenizer.json. Pass --tokenizer-path to a folder or GGUF file with a "
        "tokenizer, or --skip-tokenizer-init to serve token ids only."
    )


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    if file.stat().st_size > _SMALL_FILE:
        raise TokenizerError(f"{file}: larger than {_SMALL_FILE >> 20} MiB; this is not a config")
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, RecursionError) as error:
        raise TokenizerError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise TokenizerError(f"{file}: must hold a JSON object")
    return found


def _text(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_declared_tokens(core: Core, config: dict[str, Any], file: Path) -> None:
    """Tokens that only tokenizer_config.json knows; their ids must follow on the vocabulary."""
    declared = config.get("added_tokens_decoder") or {}
    known = core.get_added_tokens_decoder()
    for key, entry in sorted(declared.items(), key=lambda item: int(item[0])):
        content = _text(entry)
        if content is None or int(key) in known:
            continue
        flags = {
            name: bool(entry.get(name))
            for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
        }
        core.add_tokens([AddedToken(content, **flags)])
        if core.token_to_id(content) != int(key):
            raise TokenizerError(
                f"{file.with_name('tokenizer_config.json')}: token {content!r} is declared with id "
                f"{key} but its place in the vocabulary is {core.token_to_id(content)}"
            )


def _mark_special(core: Core, config: dict[str, Any]) -> None:
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    special = {t.content for t in core.get_added_tokens_decoder().values() if t.special}
    for token in [*(config.get(name) for name in _NAMED), *extra]:
        text = _text(token)
        if text and text not in special and core.token_to_id(text) is not None:
            core.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def _follow_bos_flags(core: Core, config: dict[str, Any], named: dict[str, str]) -> None:
    """add_bos_token / add_eos_token of the families whose code obeys them."""
    family = str(config.get("tokenizer_class", ""))
    flags = {"bos": config.get("add_bos_token"), "eos": config.get("add_eos_token")}
    if not family.startswith(_BOS_BY_CONFIG) or all(flag is None for flag in flags.values()):
        return
    begin, end = named.get("bos_token"), named.get("eos_token")
    first = begin if (flags["bos"] if flags["bos"] is not None else True) else None
    last = end if flags["eos"] else None
    set_frame(core, first, last)


def set_frame(core: Core, first: str | None, last: str | None) -> None:
    """Put `first` before and `last` behind every prompt (None: nothing)."""
    tokens = {t: core.token_to_id(t) for t in (first, last) if t is not None}
    pattern = [*([first] if first else []), "$A", *([last] if last else [])]
    pair = [*([first] if first else []), "$B:1", *([last] if last else [])]
    core.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=pattern, pair=pattern + pair, special_tokens=list(tokens.items())
    )


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; a file wins over tokenizer_config.json."""
    found: dict[str, str] = {}
    own = config.get("chat_template")
    if isinstance(own, str):
        found["default"] = own
    elif isinstance(own, list):
        found.update({t["name"]: t["template"] for t in own if isinstance(t, dict)})
    listed = _json(folder / "chat_template.json").get("chat_template")
    if isinstance(listed, str):
        found["default"] = listed
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = file.read_text("utf-8")
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text("utf-8")
    return found
