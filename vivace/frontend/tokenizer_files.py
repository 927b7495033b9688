"""Tokenizers from a model folder: tokenizer.json and the small files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Core

from vivace.checkpoint.fields import ConfigFields, Flag, ListOf, Text, readable_key
from vivace.checkpoint.file_state import SENTENCEPIECE_FILE, TIKTOKEN_FILE, TOKENIZER_FILE
from vivace.checkpoint.json_files import is_file, read_bytes, read_json
from vivace.frontend.chat_template import TemplateSet
from vivace.frontend.errors import TokenizerError
from vivace.frontend.tokenizer_core import Loaded, from_library, set_frame
from vivace.frontend.tokenizer_sentencepiece import sentencepiece_core
from vivace.frontend.tokenizer_tiktoken import tiktoken_core

_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_CONFIG, _NAMES = "tokenizer_config.json", "special_tokens_map.json"
_LARGEST_TOKENIZER = 256 << 20
_LARGEST_CONFIG = 16 << 20
_MOST_TOKENS = 1 << 24
_MOST_RESERVED = 1024
_ADVICE = "Correct the file, or give the folder of another tokenizer with --tokenizer-path"
_BOS_BY_CONFIG = ("Llama", "CodeLlama", "Gemma", "Cohere")


def load_from_folder(folder: Path) -> Loaded:
    """(core, chat templates, eos ids, bos id) of a folder that holds tokenizer.json.

    Raises TokenizerError or SourceError, naming the file and the key.
    """
    config = _settings(folder)
    core, file = _read_core(folder, config)
    reserves = file.name == TIKTOKEN_FILE
    from_library(
        lambda: _add_declared_tokens(core, config, reserves), f"{folder / _CONFIG}: added tokens"
    )
    from_library(lambda: _mark_special(core, config), f"{folder / _CONFIG}: special tokens")
    named = {name: text for name in _NAMED if (text := _token_text(config, name))}
    _follow_bos_flags(core, config, named, file)
    end = core.token_to_id(named["eos_token"]) if "eos_token" in named else None
    begin = core.token_to_id(named["bos_token"]) if "bos_token" in named else None
    found = _templates(folder, config)
    templates = TemplateSet(
        sources={name: text for name, (text, _) in found.items()},
        places={name: place for name, (_, place) in found.items()},
        special_tokens=named,
    )
    return core, templates, [] if end is None else [end], begin


def _read_core(folder: Path, config: ConfigFields) -> tuple[Core, Path]:
    """(words and merges, the file they are from)"""
    for name, read in _READERS.items():
        file = folder / name
        if (data := read_bytes(file, _LARGEST_TOKENIZER)) is not None:
            return read(data, config, file), file
    raise TokenizerError(_missing(folder))


def _read_json(data: bytes, config: ConfigFields, file: Path) -> Core:
    core = from_library(lambda: Core.from_buffer(data), f"{file}: not a usable tokenizer.json")
    _check_ids(core, file)
    return core


def _read_ranks(data: bytes, config: ConfigFields, file: Path) -> Core:
    return from_library(lambda: tiktoken_core(data, config, str(file)), f"{file}")


def _read_sentencepiece(data: bytes, config: ConfigFields, file: Path) -> Core:
    return from_library(lambda: sentencepiece_core(data, config, str(file)), f"{file}")


_READERS: Mapping[str, Callable[[bytes, ConfigFields, Path], Core]] = {
    TOKENIZER_FILE: _read_json,
    TIKTOKEN_FILE: _read_ranks,
    SENTENCEPIECE_FILE: _read_sentencepiece,
}
"""The first file that is there is read."""


def _settings(folder: Path) -> ConfigFields:
    """tokenizer_config.json over special_tokens_map.json."""
    config = read_json(folder / _CONFIG, limit=_LARGEST_CONFIG)
    names = read_json(folder / _NAMES, limit=_LARGEST_CONFIG)

    def place(key: str) -> str:
        file = _NAMES if key not in config and key in names else _CONFIG
        return f"{folder / file}: {key}"

    return ConfigFields({**names, **config}, place, _ADVICE)


def _check_ids(core: Core, file: Path) -> None:
    """Ids that two tokens share, or that no vocabulary has, are damage."""
    ids = core.get_vocab(with_added_tokens=True).values()
    if not ids:
        raise TokenizerError(f"{file}: the vocabulary is empty; fetch it again")
    if max(ids) >= _MOST_TOKENS:
        raise TokenizerError(f"{file}: a token has the id {max(ids)}; fetch it again")
    if len(set(ids)) < len(ids):
        raise TokenizerError(f"{file}: two tokens have the same id; fetch it again")


def _missing(folder: Path) -> str:
    if is_file(folder / "vocab.json"):
        return (
            f"{folder}: there is vocab.json but no tokenizer.json. Convert it once with "
            "transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...)), or pass "
            "--tokenizer-path to a folder that has it."
        )
    return (
        f"{folder}: no tokenizer.json. Pass --tokenizer-path to a folder or GGUF file with a "
        "tokenizer, or --skip-tokenizer-init to serve token ids only."
    )


def _token_text(config: ConfigFields, key: str) -> str | None:
    """A token, as text or as an object that has it as `content`."""
    value = config.values.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, dict):
        return config.need_inner(key).find("content", _TOKEN)
    return config.need(key, _TOKEN)


_TOKEN = Text(1024, name=False)
_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _add_declared_tokens(core: Core, config: ConfigFields, reserves: bool) -> None:
    """Tokens that only tokenizer_config.json knows; their ids must follow on the vocabulary.
    `reserves`: ids between two are tokens, too."""
    declared = config.inner("added_tokens_decoder")
    if declared is None:
        return
    known = core.get_added_tokens_decoder()
    for key in declared.values:
        if not key.isascii() or not key.isdigit() or len(key) > 8 or int(key) >= _MOST_TOKENS:
            raise declared.refusal(key, f"its key must be a token id below {_MOST_TOKENS}")
    for key in sorted(declared.values, key=int):
        entry = declared.need_inner(key)
        content = entry.need("content", _TOKEN)
        flags = {name: entry.get(name, Flag(), False) for name in _ADDED_FLAGS}
        if int(key) in known:
            continue
        if reserves:
            _reserve_tokens(core, int(key))
        core.add_tokens([AddedToken(content, **flags)])
        if core.token_to_id(content) != int(key):
            raise declared.refusal(
                key, f"the place of {content!r} in the vocabulary is {core.token_to_id(content)}"
            )


def _reserve_tokens(core: Core, end: int) -> None:
    """The ids below `end` that are nothing yet, as Kimi's code names them."""
    first = core.get_vocab_size()
    if end - first <= _MOST_RESERVED:
        names = [f"<|reserved_token_{token}|>" for token in range(first, end)]
        core.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])


def _mark_special(core: Core, config: ConfigFields) -> None:
    special = {t.content for t in core.get_added_tokens_decoder().values() if t.special}
    for text in [*(_token_text(config, name) for name in _NAMED), *_extra_tokens(config)]:
        if text and text not in special and core.token_to_id(text) is not None:
            core.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def _extra_tokens(config: ConfigFields) -> list[str | None]:
    """A list of tokens, or an object of them by name."""
    keys = ("additional_special_tokens", "extra_special_tokens")
    key = next((key for key in keys if config.values.get(key)), keys[0])
    value = config.values.get(key)
    if not value and config.has(key) and not isinstance(value, dict | list):
        value = config.need(key, ListOf(_TOKEN, 0))
    if isinstance(value, list):
        value = {str(place): one for place, one in enumerate(value)}
    if value is not None and not isinstance(value, dict):
        raise config.refusal(key, "it must be a list of tokens or an object of them by name")
    entries = ConfigFields(
        value or {}, lambda name: f"{config.place(key)}.{readable_key(name)}", _ADVICE
    )
    return [_token_text(entries, name) for name in entries.values]


def _follow_bos_flags(core: Core, config: ConfigFields, named: dict[str, str], file: Path) -> None:
    """add_bos_token / add_eos_token of the families whose code obeys them."""
    family = config.get("tokenizer_class", Text(), "")
    flags = {name: config.find(f"add_{name}_token", Flag()) for name in ("bos", "eos")}
    if not family.startswith(_BOS_BY_CONFIG) or all(flag is None for flag in flags.values()):
        return
    first = named.get("bos_token") if flags["bos"] is not False else None
    last = named.get("eos_token") if flags["eos"] else None
    for token in (first, last):
        if token is not None and core.token_to_id(token) is None:
            raise TokenizerError(f"{file}: {token!r}, which frames prompts, is no token of it")
    set_frame(core, first, last)


Template = tuple[str, str]
"""its text, and the file and key it is from"""


def _templates(folder: Path, config: ConfigFields) -> dict[str, Template]:
    """Chat templates by name; a file wins over tokenizer_config.json."""
    found = _configured_templates(config)
    listed = read_json(folder / "chat_template.json", limit=_LARGEST_CONFIG)
    place = f"{folder / 'chat_template.json'}"
    beside = ConfigFields(listed, lambda key: f"{place}: {key}", _ADVICE)
    if listed.get("chat_template"):
        found["default"] = _template(beside, "chat_template")
    others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    for name, file in (
        *((one.stem, one) for one in others),
        ("default", folder / "chat_template.jinja"),
    ):
        text = _template_file(file)
        if text is not None:
            found[name] = text, str(file)
    return found


def _template(fields: ConfigFields, key: str) -> Template:
    return fields.need(key, Text(1 << 20, name=False)), fields.place(key)


def _configured_templates(config: ConfigFields) -> dict[str, Template]:
    """One template, an object of them by name, or a list of objects with `name` and `template`."""
    own: Any = config.values.get("chat_template")
    if own in (None, ""):
        return {}
    if isinstance(own, dict):
        named = config.need_inner("chat_template")
        names = [name for name in named.values if name.isprintable()]  # others nobody can ask for
        return {name: _template(named, name) for name in names}
    if not isinstance(own, list):
        return {"default": _template(config, "chat_template")}
    found: dict[str, Template] = {}
    for number, entry in enumerate(own):
        key = f"chat_template.{number}"
        one = ConfigFields({key: entry}, config.place, _ADVICE).need_inner(key)
        found[one.need("name", Text())] = _template(one, "template")
    return found


def _template_file(file: Path) -> str | None:
    data = read_bytes(file, 4 << 20)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        raise TokenizerError(f"{file}: not UTF-8; fetch it again") from None
