"""Which strings a JSON schema describes, as expressions."""

from __future__ import annotations

import re
from typing import Any

POINTER = r"(/([^/~]|~[01])*)*"
ESCAPED = "%[0-9A-Fa-f][0-9A-Fa-f]"
NAME = rf"([A-Za-z0-9_]|{ESCAPED})(\.?([A-Za-z0-9_]|{ESCAPED}))*"
VARIABLE = rf"{NAME}(:[1-9][0-9]{{0,3}}|\*)?"
LITERAL = r"[!#$&(-;=?-\[\]_a-z~\u00a0-\ud7ff\ue000-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd]"
HEX = "[0-9A-Fa-f]"
UUID = f"{HEX}{{8}}-{HEX}{{4}}-V{HEX}{{3}}-[89ABab]{HEX}{{3}}-{HEX}{{12}}"
FORMATS = {
    "json-pointer": POINTER,
    "relative-json-pointer": rf"(0|[1-9][0-9]*)(#|{POINTER})",
    "uri-template": rf"({LITERAL}|{ESCAPED}|\{{[+#./;?&=,!@|]?{VARIABLE}(,{VARIABLE})*\}})*",
    "base64": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": "([A-Za-z0-9_-]{4})*",
    "uuid": f"{HEX}{{8}}(-{HEX}{{4}}){{3}}-{HEX}{{12}}",
    **{f"uuid{n}": UUID.replace("V", str(n)) for n in range(1, 9)},
}
"""RFC 6901, 6570, 4648 (of base64url what needs no padding), 9562 as pydantic names its versions"""
NOTES = frozenset(("$comment", "title", "description", "default", "examples"))
"""keywords that nothing has to obey"""


def names_pattern(names: Any) -> str:
    """Of all strings that a schema allows, and no others; empty: none is known."""
    said = names.keys() - NOTES - {"type"} if isinstance(names, dict) else set[str]()
    if not said or "string" not in names.get("type", "string"):
        return ""
    if said <= {"minLength", "maxLength"}:
        return rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    if said in ({"enum"}, {"const"}):
        listed = [one for one in names.get("enum", [names.get("const")]) if isinstance(one, str)]
        return f"^({'|'.join(map(re.escape, listed))})$" if listed else ""
    return names["pattern"] if said == {"pattern"} else ""
