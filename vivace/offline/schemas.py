"""Classes as JSON schemas: pydantic's models, and whatever msgspec decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_origin

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.grammar.schema_keywords import subschemas

PYDANTIC = "model_json_schema"
USABLE = "use a class of pydantic (RootModel for lists of them), or a type that msgspec decodes"


@dataclass(frozen=True)
class AnswerType:
    """A class that answers are made: one of pydantic, or a type that msgspec knows."""

    kind: Any

    def schema(self, field: str) -> dict[str, Any]:
        """Raises BadRequest, of `field`, for a class that no JSON stands for."""
        try:
            if hasattr(self.kind, PYDANTIC):
                return closed(self.kind.model_json_schema())
            return closed(msgspec.json.schema(self.kind))
        except Exception as error:  # whatever the class's own library raises
            name = getattr(self.kind, "__name__", repr(self.kind))
            detail = " ".join(str(error).split())
            reason = f"{name:.60} has no JSON schema; {USABLE} ({detail:.200})"
            raise BadRequest(field, reason) from error

    def response_format(self) -> dict[str, Any]:
        schema = self.schema("response_format")
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    def parse(self, text: str | None) -> Any:
        """What a text says; None where it is not whole, or breaks a rule that no schema has."""
        try:
            if hasattr(self.kind, PYDANTIC):
                return self.kind.model_validate_json(text or "")
            return msgspec.json.decode(text or "", type=self.kind)
        except (ValueError, RecursionError):  # of both libraries
            return None


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same without properties that the class does not have: they would be dropped, and so are
    doubles in a set."""
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    for _, one in subschemas(copy):
        if "properties" in one:
            one.setdefault("additionalProperties", False)
        one.pop("uniqueItems", None)
    return copy


def answer_type(given: Any) -> AnswerType | None:
    """None where `given` is no class, and none with parameters (`list[int]`)."""
    if isinstance(given, type) or get_origin(given) is not None:
        return AnswerType(given)
    return None


def with_schemas(settings: Any) -> Any:
    """Sampling settings, in which `json_schema` may be a class. BadRequest."""
    if isinstance(settings, list):
        return [with_schema(one) for one in settings]
    return with_schema(settings)


def with_schema(settings: Any) -> Any:
    kind = answer_type(settings.get("json_schema")) if isinstance(settings, dict) else None
    if kind is None:
        return settings
    return {**settings, "json_schema": kind.schema("sampling_params.json_schema")}
