"""What JSON schemas say of strings, as expressions for a text without quotes around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

DAY = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
HEX = "[0-9a-fA-F]"
NAME = r"[A-Za-z0-9_+-]+"
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "date": DAY,
        "time": TIME,
        "date-time": f"{DAY}T{TIME}",
        "uuid": f"{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}",
        "email": rf"{NAME}(?:\.{NAME})*@{LABEL}(?:\.{LABEL})+",
        "hostname": rf"{LABEL}(?:\.{LABEL})*",
        "ipv4": rf"{BYTE}(?:\.{BYTE}){{3}}",
        "uri": r"[A-Za-z][A-Za-z0-9+.-]*:(?://[A-Za-z0-9.-]+(?::\d{1,5})?)?"
        r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?"
        r"(?:#[A-Za-z0-9._~-]*)?",
    }
)
"""of texts that are of the format whoever judges: narrower than the standards"""
ANYTHING = "(?s:.*)"
GROUPED = re.compile(r"\\.|\[(?:\\.|[^\\\]])*\]?|[()|^$]", re.DOTALL)
"""what says where an expression's branches and anchors are; a set without an end goes to the end:
else each [ in it would be looked at as far"""


def as_search(pattern: str) -> str | None:
    """An expression for the whole of a text in which `pattern` is found; None where its anchors
    stand elsewhere than at its ends, or in one of several branches, or it is none."""
    begin, end = pattern.startswith("^"), False
    depth, branches, inner = 0, False, pattern[begin:]
    for found in GROUPED.finditer(inner):
        match found[0]:
            case "(":
                depth += 1
            case ")" if depth:
                depth -= 1
            case "|":
                branches = branches or not depth
            case "$" if found.end() == len(inner):
                end = True
            case "^" | "$" | ")":
                return None
            case _:
                pass
    if branches and (begin or end):
        return None
    inner = inner[:-1] if end else inner
    return f"{'' if begin else ANYTHING}(?:{inner}){'' if end else ANYTHING}"
