"""Builtins of bash that assign: what they assign is unknown where their text is not known."""

from __future__ import annotations

import re
from collections.abc import Callable

from vivace.deploy.shell.interpreter import Interpreter
from vivace.deploy.shell.state import ScriptState
from vivace.deploy.shell.strings import BLANKS, NotUnderstood, fields, formatted, integer
from vivace.deploy.shell.text import EMPTY, MAX_WORDS, Text, known_text, text, unknown
from vivace.deploy.shell.words import follow_assignment

Builtin = Callable[[Interpreter, ScriptState, list[Text], str], bool]
"""bool: whether it succeeds; str: IFS"""
VALUED = {"read": "adinNptu", "mapfile": "dnOsuCc"}
"""letters of their options that have a value"""
PARTLY = frozenset("nNu")
"""letters of `read` that have it take another part of its input than a line"""
ASSIGNED = re.compile(r"\W*([A-Za-z_]\w*)")


def parse_names(program: str, words: list[Text]) -> tuple[list[str], str, set[str]]:
    """(names of variables, of an array, letters of options) in the words of read and mapfile."""
    names, array, waiting, letters = list[str](), "", "", set[str]()
    for word in (known_text(each) or "" for each in words):
        if waiting:
            array, waiting = (word if waiting == "a" else array), ""
        elif word.startswith("-"):
            waiting = word[-1] if word[-1] in VALUED[program] else ""
            letters |= {*word[1:]}
        elif word.isidentifier():
            names.append(word)
    return names, array, letters


def read(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    names, array, letters = parse_names("read", words)
    end = delimiter(words)
    line, newline, rest = (state.given or "").partition(end or "\0")
    partly = end is None or letters & PARTLY or ("\\" in line and "r" not in letters)
    if state.given is None or partly:
        forget([*(names or ["REPLY"]), array], state)
        if state.given is None:
            return True
        raise NotUnderstood("what `read` takes of its input")
    state.given = rest
    if array:
        state.assign(array, [text(word) for word in fields(line, separators)])
        return bool(newline or line)
    found = [*(fields(line, separators, len(names)) if names else [line]), *[""] * len(names)]
    for name, word in zip(names or ["REPLY"], found, strict=False):
        state.assign(name, text(word))
    return bool(newline or line)


def delimiter(words: list[Text]) -> str | None:
    """-d of read: a line ends there; empty: at the end of the text. None: unknown."""
    for word, value in zip(words, [*words[1:], EMPTY], strict=False):
        option = known_text(word) or ""
        if option.startswith("-") and option.endswith("d"):
            given = known_text(value)
            return given and given[0] if given is not None else None
    return "\n"


def read_lines(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    """mapfile"""
    names, _, letters = parse_names("mapfile", words)
    lines = (state.given or "").splitlines(keepends="t" not in letters)[:MAX_WORDS]
    name = (names or ["MAPFILE"])[0]
    state.assign(name, [text(line) for line in lines])
    if state.given is None or letters & {*VALUED["mapfile"]}:
        forget([name], state)
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
    plain = [known_text(each) for each in words]
    options = bool(plain and plain[0] and plain[0][0] in "-+")
    if words and not (options and "--" not in plain):
        given = words[plain.index("--") + 1 :] if options else words
        give_words(given, state)
        if None in map(known_text, given):
            forget([name for name in state.variables if name.isdecimal()], state)
    return True


def shift(shell: Interpreter, state: ScriptState, words: list[Text], separators: str) -> bool:
    count, given = integer(known_text(words[0])) if words else 1, state.elements("@")
    if given is not None and count is not None:
        give_words(given[max(0, count) if count <= len(given) else 0 :], state)
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
