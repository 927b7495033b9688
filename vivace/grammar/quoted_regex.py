"""Expressions of texts that stand in strings of JSON: in what they allow, quotes, backslashes and
control characters are written with escapes, and the rest as it is. So a text has one spelling."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from vivace.grammar.backend import GrammarError

ESCAPED = [*map(chr, range(32)), '"', "\\"]
"""characters that strings of JSON write with an escape"""
PLAIN = r'[^"\\\x00-\x1f]'
"""the class of all others"""
ALL = frozenset(ESCAPED)
WITHIN = "in an argument that is a string of JSON, as this model writes it, "
ESCAPE = (
    r"\\(?>[xu]\{[^}]{0,40}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
    r"|[pP](?:\{[^}]{0,40}\}|.)|\d+|.)"
)
POSIX_CLASS = r"\[:\^?\w+:\]"
_SET = rf"\[\^?+\]?+(?:{ESCAPE}|{POSIX_CLASS}|[^\\\]])*+"
"""without an end"""
_PART = re.compile(
    rf"(?P<plain>[\w ]+)|(?P<set>{_SET}\])|(?P<escape>{ESCAPE})|(?P<dot>\.)"
    rf"|(?P<refused>\(\?#[^)]*\)?|\\\Z|{_SET})"
    r"|(?P<flags>\(\?[a-zA-Z]*+-?+[a-zA-Z]*+[:)])|(?P<group>\((?:\?P?<\w+>)?)|(?P<end>\))"
    r"|(?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)|(?P<brace>\{(?!,))|(?P<anchor>[$^])|(?P<other>.)",
    re.DOTALL,
)
"""`refused`: comments, which the library has not, a last backslash, a set without an end; `brace`:
one that repeats nothing"""
CONTROLS, QUOTES = r"\x00-\x1f", r'"\\'
NAMED = {
    **dict.fromkeys("graph print punct p po punctuation otherpunctuation".split(), QUOTES),
    **dict.fromkeys(("cntrl", "cc", "c", "control", "other"), CONTROLS),
    "space": r"\s",
    "blank": r"\t",
    "ascii": CONTROLS + QUOTES,
}
"""classes of ASCII, and categories of Unicode -> those of their characters that are escaped"""
_WITHOUT = re.compile(
    r"[lmnsz]\w?|p[cdseif]|c[fon]|\w*(letter|number|symbol|separator)|alpha|alnum|digit|lower|upper"
    r"|word|xdigit|(nonspacing|spacing|enclosing)?mark|format|privateuse|unassigned"
    r"|(dash|connector|open|close|initial|final)punctuation"
)
"""those that have none"""
_READ = re.compile(rf"{POSIX_CLASS}|{ESCAPE}|\||[^\x00-\x7f]", re.DOTALL)
_PROPERTIES = (r"\p", r"\P")
_PLAIN_SET = re.compile(rf"(?:{ESCAPE}|{POSIX_CLASS}|[^\\[&~-]|-(?!-)|&(?!&)|~(?!~))*+", re.DOTALL)
OTHER_SYNTAX = frozenset("xR")
"""flags with which white space, or a dot, is something else"""


def quote_regex(pattern: str) -> str:
    """In the syntax of Rust's regex crate, which the given one is in, too. Raises GrammarError."""
    found: list[str] = []
    for kind, text, flags in regex_parts(pattern):
        if kind == "dot":
            escaped = ALL if "s" in flags else ALL - {"\n"}
        else:  # what is refused, the library refuses
            escaped = escaped_ones(kind, text) if kind != "refused" else frozenset[str]()
        found.append(_spelled(text, escaped))
    return "".join(found)


def regex_parts(pattern: str) -> Iterator[tuple[str, str, set[str]]]:
    """Of each part: its kind, which is a group of `_PART`, its text, and the flags there. Raises
    GrammarError."""
    scopes = [set[str]()]
    for part in _PART.finditer(pattern):
        kind, text = part.lastgroup or "", part[0]
        yield kind, text, scopes[-1]
        if kind == "flags":
            on, _, off = text[2:-1].partition("-")
            if wrong := set(on) & OTHER_SYNTAX:
                raise GrammarError(f"inside of JSON no expression can have the flag {min(wrong)}")
            scopes[len(scopes) - text.endswith(")") :] = [scopes[-1].union(on) - {*off}]
        elif kind == "group":
            scopes.append(scopes[-1])
        elif kind == "end" and len(scopes) > 1:
            scopes.pop()


def escaped_ones(kind: str, text: str) -> frozenset[str]:
    """Of those that are escaped, what a part fits that stands for a character and is no dot.
    Raises GrammarError."""
    if kind not in ("set", "escape"):
        return frozenset((text,)) & ALL
    if kind == "set" and _PLAIN_SET.fullmatch(text[1:-1]) is None:
        raise GrammarError(f"{WITHIN}sets of characters cannot have others in them: {text[:40]}")
    try:
        read = _READ.sub(_in_python, text)
        read = f"[{read}]" if text[:2] in _PROPERTIES else read
        return ALL & set(re.findall(read, "".join(ESCAPED), re.ASCII))
    except (re.error, ValueError) as error:
        raise GrammarError(f"{WITHIN}{text[:40]} cannot stand: {error}") from error


def _in_python(found: re.Match[str]) -> str:
    """A part of a set, or an escape, as Python's `re` has it for those that are escaped."""
    text = found[0]
    if re.match(r"\\[xuU].", text):
        return rf"\x{min(int(text[2:].strip('{}'), 16), 127):02x}"
    if text[:2] not in ("[:", *_PROPERTIES):
        return {r"\z": r"\Z", "|": r"\|"}.get(text, text if text.isascii() else "\x7f")
    name = re.sub(r"(gc|general[\s_-]?category)[=:]|[\s_{}\]:^-]", "", text[2:].lower())
    if name not in NAMED and not _WITHOUT.fullmatch(name):
        raise GrammarError(f"{WITHIN}{text[:40]} cannot stand; name a category, as \\p{{L}}")
    fits = f"[a{NAMED.get(name, '')}]"
    without = text.startswith(r"\P") != ("^" in text)
    has = [one for one in ESCAPED if (re.match(fits, one, re.ASCII) is None) == without]
    return "".join(rf"\x{ord(one):02x}" for one in has) or "a"


def _spelled(text: str, escaped: frozenset[str]) -> str:
    """What `text`, of one character, allows, of which these have to be `escaped`."""
    if not escaped:
        return text
    written = [json.dumps(one)[2:-1] for one in ESCAPED if one in escaped]
    codes = [one[3:] for one in written if len(one) > 1]
    ways = [re.escape(one) for one in written if len(one) == 1]
    ways += [f"u00(?:{'|'.join(codes)})"] * bool(codes)
    way = rf"(?-i:\\(?:{'|'.join(ways)}))"
    if text == ".":
        return f"(?:{PLAIN}|{way})"
    return way if len(escaped) == 1 and text[0] != "[" else f"(?:[{text}&&{PLAIN}]|{way})"
