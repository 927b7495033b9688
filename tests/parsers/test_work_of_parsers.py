"""How many characters parsers copy, however much text comes at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transcripts import TOOLS, TRANSCRIPTS, Transcript

from vivace.frontend.fairness import run_now
from vivace.parsers.events import gather
from vivace.parsers.parser import AnswerParser, ParseOptions, answer_format
from vivace.parsers.reader import TextReader
from vivace.parsers.tagged_calls import MAX_PYTHON


class CopiedText(str):
    """A text that counts what is cut out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> str:
        found = super().__getitem__(key)
        CopiedText.copied += len(found)
        return found


def feed(reader: TextReader, text: str) -> None:
    reader.text = CopiedText(str.__getitem__(reader.text, slice(reader.at, None)) + text)
    reader.at = 0


def copied(transcript: Transcript, count: int) -> int:
    """Characters, of that many such answers at once."""
    CopiedText.copied = 0
    parser = AnswerParser(answer_format(transcript.parser, None), ParseOptions(tools=TOOLS))
    parser.push(transcript.text * count)
    parser.finish()
    return CopiedText.copied


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda each: each.parser)
def test_work_grows_as_the_text_does(
    transcript: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextReader, "feed", feed)
    few, many = copied(transcript, 10), copied(transcript, 40)
    assert many <= 5 * few
    assert many <= 4 * 40 * len(transcript.text)


def test_many_calls_are_put_together_bit_by_bit() -> None:
    """100,000 calls of one text held up everybody for half a second."""
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    parser = AnswerParser(answer_format("hermes", None), ParseOptions(tools={"f": {}}))
    events = run_now(parser.push_slices(call * 500))
    assert sum(1 for _ in gather(events)) >= len(events) + 500


class CountedTypes(list[str]):
    """Types that a schema allows, which count how often they are read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        CountedTypes.reads += 1
        return super().__getitem__(key)


def tagged(values: dict[str, str]) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()
    )
    return f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"


def parsed(schema: dict[str, Any], values: dict[str, str]) -> dict[str, Any]:
    """The arguments of a call with these values."""
    options = ParseOptions(tools={"f": schema})
    parser = AnswerParser(answer_format("qwen3_coder", None), options)
    found = run_now(gather(parser.push(tagged(values)) + parser.finish()))
    assert len(found.calls) == 1
    return json.loads(found.calls[0].arguments)


def test_a_schema_of_many_parameters_is_read_once() -> None:
    """8000 names under one `additionalProperties` took 24 seconds."""
    CountedTypes.reads = 0
    others = {"type": CountedTypes(["integer"] * 100)}
    names = {f"k{i}": "1" for i in range(200)}
    assert parsed({"additionalProperties": others}, names) == dict.fromkeys(names, 1)
    assert CountedTypes.reads == 1


def test_types_are_read_up_to_an_amount() -> None:
    """Of all parameters together: those behind it are read as if nothing were said of them."""
    long = "/" + "%41" * 1000
    each = {"anyOf": [{"$ref": f"#{long}{i}"} for i in range(20)] + [{"type": "integer"}]}
    names = {f"k{i}": "1" for i in range(20)}
    found = parsed({"properties": {name: dict(each) for name in names}}, names)
    assert found["k0"] == 1 and found["k19"] == "1"


@pytest.mark.parametrize(("count", "is_list"), [(1000, True), (MAX_PYTHON, False)])
def test_long_values_in_the_syntax_of_python_stay_text(count: int, is_list: bool) -> None:
    """They become JSON all at once: 800 KB took four seconds."""
    value = "[" + "'a'," * count + "]"
    found = parsed({"properties": {"a": {"type": "array"}}}, {"a": value})
    assert found == {"a": ["a"] * count if is_list else value}
    value = value.replace("'", '"').replace(",]", "]")
    assert parsed({"properties": {"a": {"type": "array"}}}, {"a": value})["a"] == ["a"] * count
