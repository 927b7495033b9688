"""Expressions of texts that stand in strings of JSON: in what they allow, quotes, backslashes and
control characters are written with escapes, and the rest as it is. So a text has one spelling."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator

from vivace.grammar.backend import GrammarError

ESCAPED = [*map(chr, range(32)), '"', "\\"]
"""characters that strings of JSON write with an escape"""
PLAIN = r'[^"\\\x00-\x1f]'
"""the class of all others"""
SPACE = frozenset("\t\n\v\f\r")
ALL = frozenset(ESCAPED)
CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
CODE = re.compile(r"[xuU]\{?([0-9a-fA-F]+)\}?")
WITHIN = "in an argument that is a string of JSON, as this model writes it, "
_ESCAPE = (
    r"\\(?>[xu]\{[^}]{0,40}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
    r"|[pP](?:\{[^}]{0,40}\}|.)|.)"
)
_CLASS = r"\[:\^?\w+:\]"
_SET = rf"\[\^?+\]?+(?:{_ESCAPE}|{_CLASS}|[^\\\]])*+"
"""without an end"""
_SETS = _CLASS
for _ in range(4):
    _SETS = rf"\[\^?+\]?+(?:{_ESCAPE}|{_CLASS}|{_SETS}|[^\\\[\]])*+\]"
"""with others in them, which have others in them"""
_PART = re.compile(
    rf"(?P<set>{_SETS})|(?P<escape>{_ESCAPE})|(?P<dot>\.)"
    rf"|(?P<refused>\(\?#[^)]*\)?|\\\Z|{_SET})"
    r"|(?P<flags>\(\?[a-zA-Z]*-?[a-zA-Z]*[:)])|(?P<group>\((?:\?P?<\w+>)?)|(?P<end>\))"
    r"|(?P<brace>\{(?!,|\d+(?:,\d*)?\}))|(?P<other>.)",
    re.DOTALL,
)
"""`refused`: comments, which the library has not, a last backslash, a set without an end: as they
stand; `brace`: one that repeats nothing"""
_MEMBER = re.compile(rf"({_ESCAPE}|[^\\])(?:-({_ESCAPE}|[^\\\]]))?", re.DOTALL)
NAMED = {
    **dict.fromkeys(("graph", "print", "punct"), frozenset('"\\')),
    "space": SPACE,
    "blank": frozenset("\t"),
    "cntrl": ALL - frozenset('"\\'),
    "ascii": ALL,
}
"""classes of ASCII -> those of their characters that are escaped; others have none"""
LONG_NAMES = (
    "Letter L Cased_Letter LC Uppercase_Letter Lu Lowercase_Letter Ll Titlecase_Letter Lt "
    "Modifier_Letter Lm Other_Letter Lo Mark M Nonspacing_Mark Mn Spacing_Mark Mc "
    "Enclosing_Mark Me Number N Decimal_Number Nd Letter_Number Nl Other_Number No "
    "Punctuation P Dash_Punctuation Pd Connector_Punctuation Pc Open_Punctuation Ps "
    "Close_Punctuation Pe Initial_Punctuation Pi Final_Punctuation Pf Other_Punctuation Po "
    "Symbol S Math_Symbol Sm Currency_Symbol Sc Modifier_Symbol Sk Other_Symbol So Separator Z "
    "Space_Separator Zs Line_Separator Zl Paragraph_Separator Zp Other C Control Cc Format Cf "
    "Private_Use Co Unassigned Cn"
).split()
_LOOSE = re.compile(r"[\s_-]")
CATEGORIES = {
    _LOOSE.sub("", name).lower(): short
    for long, short in zip(LONG_NAMES[::2], LONG_NAMES[1::2], strict=True)
    for name in (long, short)
}
"""general categories of Unicode, however they are spelled -> as `unicodedata` has them"""
_NESTED = re.compile(rf"(?:{_ESCAPE}|{_CLASS}|[^\\\[&~-]|-(?!-)|&(?!&)|~(?!~))*+", re.DOTALL)
_ANCHORS = frozenset("AzbB")
OTHER_SYNTAX = frozenset("xR")
"""flags with which white space, or a dot, is something else"""


def quote_regex(pattern: str, flags: str = "") -> str:
    """In the syntax of Rust's regex crate, which the given one is in, too. `flags`: of the whole
    pattern. Raises GrammarError."""
    found: list[str] = []
    scopes = ["s" in flags]
    """whether `.` is a newline, too, in each group that is open"""
    for part in _PART.finditer(pattern):
        text = part[0]
        match part.lastgroup:
            case "set":
                found.append(_spelled(text, _members(text)))
            case "dot":
                found.append(_spelled(text, ALL if scopes[-1] else ALL - {"\n"}))
            case "escape":
                anchor = text[1] in _ANCHORS
                found.append(text if anchor else _spelled(text, _class_members(text)))
            case "flags":
                on, _, off = text[2:-1].partition("-")
                if wrong := set(on) & OTHER_SYNTAX:
                    raise GrammarError(f"{WITHIN}an expression cannot have the flag {min(wrong)}")
                newline = (scopes[-1] or "s" in on) and "s" not in off
                if text.endswith(")"):
                    scopes[-1] = newline
                else:
                    scopes.append(newline)
                found.append(text)
            case "group" | "end" | "refused":
                if part.lastgroup == "group":
                    scopes.append(scopes[-1])
                elif part.lastgroup == "end" and len(scopes) > 1:
                    scopes.pop()
                found.append(text)
            case _:
                found.append(_spelled(text, {text} & ALL))
    return "".join(found)


def literal_braces(pattern: str) -> str:
    """For Rust's crate: in a schema's pattern `{` is a character where it repeats nothing."""
    return _PART.sub(lambda part: "\\{" if part.lastgroup == "brace" else part[0], pattern)


def set_parts(pattern: str) -> Iterator[tuple[str, frozenset[str] | None]]:
    """Every part of a pattern, all together as it is written; of one that stands for a character
    those of `ESCAPED` that it fits, None where that is not known. Raises GrammarError."""
    for part in _PART.finditer(pattern):
        text, kind, fits = part[0], part.lastgroup, frozenset[str]()
        if kind == "flags" and "x" in text.partition("-")[0]:
            raise GrammarError("an expression with the flag x cannot be enforced")
        if kind == "refused" and text.startswith("[") and "[" in text[1:]:
            raise GrammarError(
                r"a set has no end, or sets in it that are too deep; \[ is a bracket"
            )
        try:
            if kind == "set":
                fits = _members(text)
            elif kind == "escape":
                fits = frozenset[str]() if text[1] in _ANCHORS else _class_members(text)
            elif kind == "other":
                fits = frozenset((text,)) & ALL
        except GrammarError:
            fits = None
        yield text, fits


def _spelled(text: str, escaped: frozenset[str] | set[str]) -> str:
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
    single = not text.startswith("[") and _character(text) is not None
    return way if single else f"(?:[{text}&&{PLAIN}]|{way})"


def _members(text: str) -> frozenset[str]:
    """Of a set in brackets, those that are escaped. Raises GrammarError."""
    inner = text[1:-1]
    negated = inner.startswith("^")
    inner = inner.removeprefix("^")
    nested = _NESTED.fullmatch(inner)
    if nested is None:
        raise GrammarError(f"{WITHIN}sets of characters cannot have others in them: {text[:40]}")
    found: set[str] = set()
    for named in re.findall(_CLASS, inner):
        known = NAMED.get(named.strip("[:^]"), frozenset())
        found |= ALL - known if "^" in named else known
    for first, last in _MEMBER.findall(re.sub(_CLASS, "", inner)):
        if last and (low := _character(first)) and (high := _character(last)):
            found.update(one for one in ESCAPED if low <= one <= high)
        else:
            for one in filter(None, (first, last)):
                found.update(_class_members(one))
    return ALL - found if negated else frozenset(found)


def _class_members(text: str) -> frozenset[str]:
    """The same of a character, or of an escape that may stand for several."""
    if (one := _character(text)) is not None:
        return frozenset((one,)) & ALL
    kind = text[1]
    if kind in "dDwW":
        return frozenset() if kind in "dw" else ALL
    if kind in "sS":
        return SPACE if kind == "s" else ALL - SPACE
    spelled = _LOOSE.sub("", text[2:].strip("{}").removeprefix("^")).lower()
    name = CATEGORIES.get(re.sub("^(?:gc|generalcategory)[=:]", "", spelled))
    if name is None:
        raise GrammarError(
            f"{WITHIN}{text[:40]} cannot stand; name a general category, as \\p{{Letter}}"
        )
    found = frozenset(one for one in ESCAPED if unicodedata.category(one).startswith(name))
    return ALL - found if (kind == "P") != ("^" in text) else found


def _character(text: str) -> str | None:
    """That an escape, or a character itself, stands for; None: several."""
    if len(text) == 1:
        return text
    kind = text[1]
    if code := CODE.fullmatch(text[1:]):
        return chr(min(int(code[1], 16), 0x10FFFF))
    if kind in "dDwWsSpP":
        return None
    return CHARACTERS.get(kind, kind)
