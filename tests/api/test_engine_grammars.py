"""Structured output of `vivace.Engine`: a real engine around a toy model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import jsonschema
import msgspec
import pydantic
import pytest
from call_parsers import DISTINCT
from served_toy import write_toy_llama

from vivace import Engine
from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.offline.schemas import AnswerType, closed
from vivace.parsers.events import gather
from vivace.parsers.parser import AnswerParser, ParseOptions, ParserFormat, answer_format
from vivace.requests.tool_constraints import ToolCalls
from vivace.requests.tools import OfferedTools

COLORS = ["red", "green", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": COLORS},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "ok": {"type": "boolean"},
    },
    "required": ["color", "age", "ok"],
    "additionalProperties": False,
}
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "cpu_threads": 1,
    "random_seed": 1,
    "constrained_json_disable_any_whitespace": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_toy_llama(tmp_path_factory.mktemp("grammars") / "toy"))


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[Engine]:
    with Engine(model_path=model, **FLAGS) as made:
        yield made


def ask(engine: Engine, **sampling: Any) -> dict[str, Any]:
    answer: Any = engine.generate("abc", {"max_new_tokens": 80, "sampling_seed": 3, **sampling})
    return answer


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"temperature": 1.5},
        {"top_k": 1},
        {"top_p": 0.1, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
        {"logit_bias": {"40": 100.0, "41": -100.0}},
        {"min_new_tokens": 70},
        {"ignore_eos": True},
        {"min_p": 0.9, "stop_token_ids": [5]},
    ],
)
def test_an_answer_obeys_its_schema(engine: Engine, sampling: dict[str, Any]) -> None:
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        answer = ask(engine, json_schema=schema, **sampling)
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        jsonschema.validate(json.loads(answer["text"]), SCHEMA)
        assert " " not in answer["text"]


@pytest.mark.parametrize("sampling", [{}, {"ignore_eos": True}, {"stop_token_ids": [5]}])
def test_an_answer_that_may_only_end_ends(engine: Engine, sampling: dict[str, Any]) -> None:
    """Whatever `min_new_tokens` says; not a token is drawn and counted behind it."""
    plain, longer = (ask(engine, regex="ab", min_new_tokens=least, **sampling) for least in (0, 40))
    for answer in (plain, longer):
        assert answer["text"] == "ab"
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    counts = [one["meta_info"]["completion_tokens"] for one in (plain, longer)]
    assert counts[0] == counts[1] <= 3


def test_each_sample_obeys(engine: Engine) -> None:
    answers: Any = engine.generate(
        "abc", {"n": 6, "temperature": 1.0, "json_schema": SCHEMA, "max_new_tokens": 80}
    )
    found = [json.loads(answer["text"]) for answer in answers]
    for one in found:
        jsonschema.validate(one, SCHEMA)
    assert len({json.dumps(one) for one in found}) > 1


def test_streams_concatenate_to_the_answer(engine: Engine) -> None:
    whole = ask(engine, json_schema=SCHEMA)
    parts: Any = engine.generate(
        "abc", {"max_new_tokens": 80, "sampling_seed": 3, "json_schema": SCHEMA}, stream=True
    )
    assert [part["text"] for part in parts][-1] == whole["text"]


def test_other_grammars(engine: Engine) -> None:
    assert re.fullmatch("[a-c]{4}-[0-9]+", ask(engine, regex="[a-c]{4}-[0-9]{1,9}")["text"])
    assert ask(engine, ebnf='root ::= "yes" | "no"')["text"] in ("yes", "no")
    tag = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}
    answer = ask(engine, structural_tag=tag, logit_bias={"27": 30.0})
    for inside in re.findall("<f>(.*?)</f>", answer["text"]):
        jsonschema.validate(json.loads(inside), SCHEMA)
    found = ask(engine, json_schema="$$ANY$$", max_new_tokens=300)
    if found["meta_info"]["finish_reason"]["type"] == "stop":
        json.loads(found["text"])


def test_what_is_cut_says_so(engine: Engine) -> None:
    answer = ask(engine, json_schema=SCHEMA, max_new_tokens=5)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    stopped = ask(engine, json_schema=SCHEMA, stop='"age"')
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": '"age"'}


def test_log_probabilities_are_of_what_is_allowed(engine: Engine) -> None:
    answer: Any = engine.generate(
        "abc",
        {"regex": "[ab]", "temperature": 1.0, "sampling_seed": 1},
        return_logprob=True,
        top_logprobs_num=2,
    )
    drawn = answer["meta_info"]["output_token_logprobs"]
    top = answer["meta_info"]["output_top_logprobs"]
    assert len(drawn) == 2 and sum(2.718281828**one for one, *_ in top[0]) == pytest.approx(1)
    assert drawn[1][0] == pytest.approx(0)  # only the end was left


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        (
            {"json_schema": {"properties": {"a": {"not": {"const": 1}}}}},
            "json_schema: properties.a.not",
        ),
        ({"json_schema": {"$ref": "#"}}, "json_schema: #"),
        ({"json_schema": "{"}, "sampling_params.json_schema"),
        ({"json_schema": 3}, "sampling_params.json_schema"),
        ({"regex": "("}, "sampling_params.regex"),
        ({"regex": "a" * 20_000}, "sampling_params.regex"),
        ({"ebnf": "root ::= x"}, "sampling_params.ebnf"),
        ({"structural_tag": {"format": {}}}, "sampling_params.structural_tag"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "sampling_params.ebnf"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(
    engine: Engine, sampling: dict[str, Any], told: str
) -> None:
    for _ in range(2):  # compiled, and remembered
        with pytest.raises(BadRequest) as caught:
            ask(engine, **sampling)
        assert caught.value.status == 400 and str(caught.value).startswith("sampling_params.")
        assert told in str(caught.value)


def test_two_ranks_give_the_same_answers(engine: Engine, model: str) -> None:
    with Engine(model_path=model, tp_size=2, **FLAGS) as ranks:
        for sampling in ({"temperature": 0}, {"temperature": 1.0}):
            wanted = ask(engine, json_schema=SCHEMA, **sampling)
            assert ask(ranks, json_schema=SCHEMA, **sampling)["text"] == wanted["text"]


def test_without_a_backend_requests_are_refused(model: str) -> None:
    with Engine(model_path=model, grammar_backend="none", **FLAGS) as made:
        with pytest.raises(BadRequest, match="none"):
            ask(made, regex="a")
        assert ask(made)["text"]


@pytest.mark.parametrize("pattern", [r"[\t]", ""])
def test_whitespace_is_as_the_server_says(model: str, pattern: str) -> None:
    flags = {**FLAGS, "constrained_json_disable_any_whitespace": False}
    schema = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    with Engine(model_path=model, constrained_json_whitespace_pattern=pattern, **flags) as made:
        text = ask(made, json_schema=schema)["text"]
        assert set(text) - set("[1,]") == ({"\t"} if pattern else set())


# -- classes, tools --------------------------------------------------------------------------------


class PydanticFruit(pydantic.BaseModel):
    color: Literal["red", "green"]
    ripe: bool


class MsgspecFruit(msgspec.Struct):
    color: Literal["red", "green"]
    ripe: bool


HI: Any = [{"role": "user", "content": "a"}]
SAMPLING: Any = {"max_new_tokens": 200, "sampling_seed": 3}
PAINT: Any = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}


@pytest.mark.parametrize("kind", [PydanticFruit, MsgspecFruit])
def test_answers_are_what_a_class_says(engine: Engine, kind: Any) -> None:
    answer: Any = engine.chat(HI, SAMPLING, response_format=kind)
    assert isinstance(answer["parsed"], kind) and answer["parsed"].color in ("red", "green")
    assert answer["message"]["content"] == answer["text"]
    cut: Any = engine.chat(HI, {**SAMPLING, "max_new_tokens": 3}, response_format=kind)
    assert cut["parsed"] is None
    text = ask(engine, json_schema=kind)["text"]
    assert json.loads(text).keys() == {"color", "ripe"}


def test_a_class_without_a_schema_is_refused(engine: Engine) -> None:
    with pytest.raises(BadRequest) as caught:
        engine.chat(HI, SAMPLING, response_format=object)
    assert caught.value.field == "response_format"
    with pytest.raises(BadRequest) as caught:
        ask(engine, json_schema=object)
    assert caught.value.field == "sampling_params.json_schema"


def test_conversations_call_tools(engine: Engine) -> None:
    asked: Any = {"tools": [PAINT], "tool_choice": "required", "parallel_tool_calls": False}
    answers: Any = engine.chat([HI, HI], [{**SAMPLING, "n": 2}] * 2, **asked)
    assert len(answers) == 4
    *_, last = engine.chat(HI, SAMPLING, stream=True, **asked)
    for answer in [*answers, last]:
        for call in answer["message"]["tool_calls"]:
            jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    with pytest.raises(BadRequest) as caught:
        engine.chat(HI, tools=[PAINT], tool_choice="look")
    assert caught.value.field == "tool_choice"


@pytest.mark.parametrize("name", DISTINCT)
def test_required_calls_obey_in_every_format(engine: Engine, name: str) -> None:
    """Whatever random weights draw, streamed and whole."""
    schemas: dict[str, Any] = {"paint": SCHEMA, "stop": {"additionalProperties": False}}
    offered = OfferedTools(
        schemas=schemas, places=dict.fromkeys(schemas, "here"), required=tuple(schemas)
    )
    calls = ToolCalls(offered=offered, form=answer_format(name, None), parallel=False)
    found = calls.syntax(None)
    assert found.constraint is not None
    sampling = {"max_new_tokens": 900, "structural_tag": found.constraint.text}
    streamed: Any = engine.generate("abc", {**sampling, "sampling_seed": 2}, stream=True)
    texts = ["", *(answer["text"] for answer in streamed)]
    pieces = [text[len(before) :] for before, text in pairwise(texts)]
    ((called, arguments),) = calls_in(found.form, schemas, pieces)
    jsonschema.validate(json.loads(arguments), schemas[called])
    assert calls_in(found.form, schemas, texts[-1:]) == [[called, arguments]]


def calls_in(form: ParserFormat, schemas: dict[str, Any], pieces: list[str]) -> list[list[str]]:
    parser = AnswerParser(form, ParseOptions(tools=schemas))
    events = [event for piece in pieces for event in parser.push(piece)]
    found = run_now(gather([*events, *parser.finish()]))
    assert not found.text.strip() and not found.reasoning
    return [[call.name, call.arguments] for call in found.calls]


def test_thinking_stands_apart_and_has_a_limit(model: str) -> None:
    flags = {**FLAGS, "reasoning_parser": "kimi", "tool_call_parser": "hermes"}
    begun: Any = [*HI, {"role": "assistant", "content": "◁think▷a"}]
    texts: list[str] = []
    variants: list[Any] = [{}, {"speculative_algorithm": "NGRAM"}]
    for drafts in variants:
        with Engine(model_path=model, **flags, **drafts) as engine:
            answer: Any = engine.chat(
                *(begun, SAMPLING),
                continue_final_message=True,
                max_thinking_tokens=4,
                response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            )
        jsonschema.validate(json.loads(answer["message"]["content"]), SCHEMA)
        texts.append(answer["text"])
    assert texts[0] == texts[1] and texts[0].count("◁/think▷") == 1


def test_classes_are_closed_and_sets_are_lists() -> None:
    schema = {"properties": {"properties": {"type": "array", "uniqueItems": True}}}
    kept = {"properties": {}, "additionalProperties": True}
    assert closed({**schema, "$defs": {"a": kept}}) == {
        "properties": {"properties": {"type": "array"}},
        "additionalProperties": False,
        "$defs": {"a": kept},
    }
    with pytest.raises(BadRequest, match="RootModel") as caught:
        AnswerType(list[object]).schema("a")
    assert "\n" not in str(caught.value)
