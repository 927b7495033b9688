"""Schemas say what docstrings say, whichever Python compiled them."""

from __future__ import annotations

from vivace.config.json_schema import clean_descriptions


def test_descriptions_lose_the_indentation_of_the_source() -> None:
    schema = {
        "description": "One.\n\n    Two:\n        three.",
        "anyOf": [{"description": "A\n    b"}],
        "properties": {"description": {"type": "string", "default": "a\n    b"}},
    }
    assert clean_descriptions(schema) == {
        "description": "One.\n\nTwo:\n    three.",
        "anyOf": [{"description": "A\nb"}],
        "properties": {"description": {"type": "string", "default": "a\n    b"}},
    }
