"""Builtins of bash that assign: what they assign is unknown where their text is not known."""

from __future__ import annotations

import re
from collections.abc import Callable

from vivace.deploy.shell.interpreter import Interpreter
from vivace.deploy.shell.state import ScriptState
from vivace.deploy.shell.strings import BLANKS, fields, formatted, integer
from vivace.deploy.shell.text import EMPTY, MAX_WORDS, Text, known_text, text, unknown
from vivace.deploy.shell.words import follow_assignment

Builtin = Callable[[Interpreter, ScriptState, list[Text], str], bool]
"""bool: whether it succeeds; str: IFS"""
VALUED = {"read": "adinNptu", "mapfile": "dnOsuCc"}
"""letters of their options that have a value"""
ASSIGNED = re.compile(r"\W*([A-Za-z_]\w*)")


def parse_names(program: str, words: list[Text]) -> tuple[list[str], str]:
    """(names of variables, of an array) in the words of read and mapfile."""
    names, array, waiting = list[str](), "", ""
    for word in (known_text(each) or "" for each in words):
        if waiting:
            array, waiting = (word if waiting == "a" else array), ""
        elif word.startswith("-"):
            waiting = word[-1] if word[-1] in VALUED[program] else ""
        elif word.isidentifier():
            names.append(word)
    return names, array


def read(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    names, array = parse_names("read", words)
    if state.given is None:
        forget([*names, array], state)
        return True
    end = delimiter(words)
    if end is None:
        forget([*names, array], state)
        return True
    line, newline, state.given = state.given.partition(end or "\0")
    if array:
        state.assign(array, [text(word) for word in fields(line, separators)])
        return bool(newline or line)
    names = names or ["REPLY"]
    found = [*fields(line, separators, len(names)), *[""] * len(names)]
    for name, word in zip(names, found, strict=False):
        state.assign(name, text(word))
    return bool(newline or line)


def delimiter(words: list[Text]) -> str | None:
    """-d of read: a line ends there; empty: at the end of the text. None: unknown."""
    for word, value in zip(words, [*words[1:], EMPTY], strict=True):
        option = known_text(word) or ""
        if option.startswith("-") and option.endswith("d"):
            given = known_text(value)
            return given and given[0] if given is not None else None
    return "\n"


def read_lines(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    """mapfile"""
    names, _ = parse_names("mapfile", words)
    if state.given is None or any(known_text(each) == "-d" for each in words):
        forget(names or ["MAPFILE"], state)
    else:
        lines = state.given.splitlines()[:MAX_WORDS]
        state.assign((names or ["MAPFILE"])[0], [text(line) for line in lines])
    return True


def forget(names: list[str], state: ScriptState) -> None:
    """What they had before is no longer so."""
    for name in filter(None, names):
        if isinstance(state.variables.get(name), list):
            del state.variables[name]
        else:
            state.assign(name, unknown(f"${name}"))


def let(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    for word in words:
        known, name = known_text(word), ASSIGNED.match(known_text(word[:1]) or "")
        node = shell.parse(f"(({known}))").named_child(0) if known else None
        inner = None if node is None else node.named_child(0)
        if (inner is None or not follow_assignment(inner, state)) and name is not None:
            forget([name[1]], state)
    return True


def print_into(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    """printf -v"""
    if len(words) > 2 and known_text(words[0]) == "-v":
        name, *plain = [known_text(each) for each in words[1:]]
        value = formatted([each for each in plain if each is not None])
        known = None not in plain and value is not None
        state.assign(name or "", text(value or "") if known else unknown(f"${name}"))
    return True


def set_words(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    """set -- a b: what is unknown may be several words."""
    first = known_text(words[0]) if words else "-"
    if first == "--" or first is None or first[:1] not in ("-", "+"):
        given = words[first == "--" :]
        give_words(given, state)
        if None in map(known_text, given):
            forget([name for name in state.variables if name.isdecimal()], state)
    return True


def shift(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    count, given = integer(known_text(words[0])) if words else 1, state.elements("@")
    if given is not None and count is not None:
        give_words(given[max(0, count) :], state)
    else:
        forget([name for name in state.variables if name == "@" or name.isdecimal()], state)
    return True


def give_words(words: list[Text], state: ScriptState) -> None:
    """$@, $1, $2 .."""
    for name in [name for name in state.variables if name.isdecimal()]:
        state.variables[name] = EMPTY
    for number, word in enumerate(words[:99], 1):
        state.assign(str(number), word)
    state.assign("@", list(words))


def separators_in(prefix: dict[str, Text], state: ScriptState) -> str:
    """IFS; its usual value where it is not known."""
    given = prefix.get("IFS", state.scalar("IFS"))
    return BLANKS if given is None or (known := known_text(given)) is None else known


BUILTINS: dict[str, Builtin] = {
    "read": read,
    "mapfile": read_lines,
    "readarray": read_lines,
    "let": let,
    "printf": print_into,
    "set": set_words,
    "shift": shift,
}
