"""What an answer has to obey."""

from __future__ import annotations

import msgspec

JSON_SCHEMA, REGEX, EBNF, STRUCTURAL_TAG = "json_schema", "regex", "ebnf", "structural_tag"
CONSTRAINTS = (JSON_SCHEMA, REGEX, EBNF, STRUCTURAL_TAG)
"""what an answer can be made to obey, by SGLang's names"""


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, weakref=True):
    """What an answer has to obey. `kind`: one of CONSTRAINTS; `field`: where the request says so,
    for errors."""

    kind: str
    text: str
    field: str = ""
