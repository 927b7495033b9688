"""What is wrong with a decoded request, as field and reason. Free of HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import asks

_AT = re.compile(r"^(?P<reason>.*) - at `(?:\$|key in \$)\.?(?P<field>[^`]*)`$", re.DOTALL)


def validation_error(text: str) -> BadRequest:
    """Turn msgspec's "Expected `int`, got `str` - at `$.n`" into field and reason."""
    found = _AT.match(text)
    if found is None:
        missing = re.search(r"missing required field `([^`]+)`", text)
        return BadRequest(missing.group(1) if missing else "body", text)
    field, reason = found["field"], found["reason"]
    missing = re.search(r"missing required field `([^`]+)`", reason)
    if missing is not None:
        field = f"{field}.{missing.group(1)}" if field else missing.group(1)
    return BadRequest(field or "body", reason)


def refuse_unsupported(
    request: Any,
    reasons: Mapping[str, str],
    harmless: Mapping[str, tuple[Any, ...]] | None = None,
    *,
    place: str = "",
) -> None:
    """BadRequest for the first field of `reasons` that is set: nothing is silently ignored.

    Empty values, lists of them and `harmless` values ask for what happens anyway. `place` stands
    before the field's name.
    """
    for field, reason in reasons.items():
        value = getattr(request, field)
        if asks(value) and value not in (harmless or {}).get(field, ()):
            raise BadRequest(place + field, reason)
