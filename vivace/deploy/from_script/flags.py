"""Words of a command line <-> flags of the deployment file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

import msgspec

from vivace.config.releases.tables import definitions
from vivace.deploy.catalogue.flags import ServerFlag, tables
from vivace.deploy.from_script.programs import Part
from vivace.deploy.schema.deployment import Flags, FlagValue, Scalar

MAX_SHOWN = 200
"""characters of a value"""
UNKNOWN = re.compile(r"<.+>", re.DOTALL)
"""what only the machine or the reader knows: it may be words, or none"""
NUMBER = re.compile(r"-(\d|\.\d)")
SHORT = re.compile(r"-[A-Za-z][\w-]*(=.*)?$", re.DOTALL)
REPEATED: dict[Part, tuple[str, ...]] = {"router": ("prefill", "decode")}
"""flags that add to earlier ones of the same name"""
BARE: dict[Part, frozenset[str]] = {
    "router": frozenset(
        """pd-disaggregation mini-lb dp-aware service-discovery disable-retries
        disable-circuit-breaker enable-igw disable-health-check enable-trace
        tokenizer-cache-enable-l0
        tokenizer-cache-enable-l1 control-plane-audit-enabled""".split()
    ),
    "benchmark": frozenset(
        """disable-stream disable-ignore-eos disable-tqdm return-logprob apply-chat-template profile
        pd-separated flush-cache tokenize-prompt output-details plot cache-report
        random-image-count bench-lora""".split()
    ),
}
"""switches of programs whose flags are not options of ours"""


class Remark(msgspec.Struct, frozen=True):
    """What reading a script found: `rule` is the rule that reports it, `line` counts from 1."""

    rule: str
    flag: str
    text: str
    file: str = ""
    line: int = 0
    end: int = 0
    severity: Literal["note", "warning"] | None = None
    """where it is not the rule's own"""


class ParsedFlags(msgspec.Struct):
    flags: Flags = {}
    remarks: list[Remark] = []


@cache
def server_options() -> dict[str, ServerFlag]:
    """Every spelling of a server's flag, with its dashes."""
    return {flag: option for option in tables().flags for flag in option.flags}


@lru_cache(4096)
def find_option(name: str) -> ServerFlag | None:
    """By a spelling without dashes, or by the start of only one option's spellings."""
    known = server_options()
    exact = known.get("--" + name)
    if exact is not None:
        return exact
    begun = {known[flag].name: known[flag] for flag in known if flag.startswith("--" + name)}
    return next(iter(begun.values())) if len(begun) == 1 else None


def canonical(name: str) -> str:
    option = find_option(name)
    return name if option is None else option.name


def parse_flags(words: Sequence[str], part: Part) -> ParsedFlags:
    """The flags in the order they first appear; of equal ones the last counts, as in argparse."""
    read = ParsedFlags()
    for word, values in groups(words):
        if not word:
            values = [value for value in values if not UNKNOWN.fullmatch(value)]
            if not values:
                continue
            text = f"{values[0]!r} belongs to no flag" + (
                f" ({len(values)} such words)" if len(values) > 1 else ""
            )
            read.remarks.append(Remark("stray-word", "", text))
            continue
        name, equals, attached = word.partition("=")
        name = name[2:] if name.startswith("--") else name
        values = [attached, *values] if equals else values
        taken, stray = split_values(name, values, part)
        add_flag(read, name, taken, part)
        stray = [value for value in stray if not UNKNOWN.fullmatch(value)]
        if stray:
            read.remarks.append(
                Remark("stray-word", name, f"{stray[0]!r} behind --{name} belongs to no flag")
            )
    return read


def groups(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(flag, the words after it); ("", words) for those before the first flag."""
    flag, values = "", list[str]()
    for word in words:
        if word.startswith("--") or (SHORT.match(word) and not NUMBER.match(word)):
            if flag or values:
                yield flag, values
            flag, values = word, []
        else:
            values.append(word)
    if flag or values:
        yield flag, values


def split_values(name: str, values: list[str], part: Part) -> tuple[FlagValue, list[str]]:
    """(the flag's value, words that it does not take)"""
    option = (find_option(name) or find_released(name)) if part == "server" else None
    if (option is not None and option.shape == "bool") or name in BARE.get(part, ()):
        return True, values
    if not values:
        return True, []
    many = option is None or option.shape.startswith("list of ")
    if not many:
        return scalar(values[0]), values[1:]
    if option is not None or len(values) > 1:
        return [scalar(value) for value in values], []
    return scalar(values[0]), []


def find_released(name: str) -> ServerFlag | None:
    """A flag that only SGLang has, as its newest release with it defines it."""
    rows = definitions().get("--" + name)
    if not rows:
        return None
    many = rows[-1].arity in ("+", "*")
    shape = f"list of {rows[-1].shape}" if many else rows[-1].shape
    return ServerFlag(rows[-1].name, (rows[-1].flag,), shape)


def add_flag(read: ParsedFlags, name: str, value: FlagValue, part: Part) -> None:
    if name in REPEATED.get(part, ()):
        before = read.flags.get(name)
        earlier = before if isinstance(before, list) else []
        read.flags[name] = [*earlier, *repeated_value(value)]
        return
    same = same_flag(name, read.flags, part)
    if same is not None:
        first = f"--{same} is given as {display(read.flags[same])}"
        text = f"{first} and again as {display(value)}; the last one counts"
        severity = "note" if read.flags[same] == value else None
        read.remarks.append(Remark("flag-given-twice", name, text, severity=severity))
        del read.flags[same]
    read.flags[name] = value


def repeated_value(value: FlagValue) -> list[Scalar | list[Scalar]]:
    """One entry of a repeated flag."""
    if not isinstance(value, list):
        return [value]
    return [[word for word in value if not isinstance(word, list)]]


def same_flag(name: str, flags: Flags, part: Part) -> str | None:
    """The flag with the same meaning that is already given."""
    if name in flags:
        return name
    option = find_option(name) if part == "server" else None
    if option is None:
        return None
    return next((other for other in flags if find_option(other) is option), None)


def display(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(display(each) for each in value)
    shown = "given" if value is True else str(value)
    return shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + ".."


def scalar(text: str) -> Scalar:
    """A number if it formats back to the same text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if repr(value) == text and text not in ("inf", "nan", "-inf"):
            return value
    return text


def flags_to_words(flags: Flags, part: Part) -> list[str]:
    """The words that give these flags; those that are false or null are left out."""
    words: list[str] = []
    for name, value in flags.items():
        flag = name if name.startswith("-") else "--" + name
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif name in REPEATED.get(part, ()) and isinstance(value, list):
            for each in value:
                words += [flag, *map(plain, each if isinstance(each, list) else [each])]
        elif isinstance(value, list):
            words += [flag, *(plain(word) for word in value)]
        else:
            words += [flag, plain(value)]
    return words


def plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
