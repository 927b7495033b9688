"""Answers that obey grammars are the same whatever is switched on: batches, chunks, retraction,
steps in flight, drafts; and those that have ended obey."""

from __future__ import annotations

import json
import random
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from drafting_engines import SETTINGS, TREES
from engine_under_test import Answer, Engine, Setting, build_config, skip_unbuilt, write_toy_llama
from layout_engines import LayoutEngines

from vivace.frontend.tokenizer import load_encoder
from vivace.grammar import processor
from vivace.grammar.processor import GrammarLogitsProcessor
from vivace.launch.grammars import grammar_compiler, grammar_processors
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint
from vivace.protocol.messages import LogprobOptions, Request, SamplingParams
from vivace.sampling.processors import ProcessorFactory
from vivace.worker.build import build_worker

EOS = 257


def silent(stage: str, done: float) -> None: ...


ALONE = Setting(batch=1, chunk=-1, radix="off", depth=1, page=16, operations="eager")
NGRAM = {"speculative_algorithm": "NGRAM", "speculative_fixed_width": True}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "<call>"},
        {"type": "json_schema", "json_schema": PERSON},
        {"type": "const_string", "value": "</call>"},
    ],
}
CONSTRAINTS = [
    Constraint(kind=JSON_SCHEMA, text=json.dumps(PERSON)),
    Constraint(kind=REGEX, text="(ab|cd){2,20}[0-9]{3}"),
    Constraint(kind=EBNF, text='root ::= "[" [a-c]* "]" | "(" root ")"'),
    Constraint(kind=STRUCTURAL_TAG, text=json.dumps({"format": TAG})),
    None,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("grammars") / "toy")


def requests() -> list[Request]:
    chance = random.Random(4)
    shared = [chance.randrange(3, 250) for _ in range(40)]
    return [
        Request(
            key=0,
            rid=str(index),
            tokens=(shared if index % 2 else [])
            + [chance.randrange(3, 250) for _ in range(chance.randint(1, 50))],
            sampling=SamplingParams(
                max_new_tokens=chance.choice([6, 60, 90]),
                min_new_tokens=4 if index % 3 else 0,
                temperature=0.0 if index % 4 == 0 else 0.9,
                top_p=0.9 if index % 4 == 1 else 1.0,
                repetition_penalty=1.2 if index % 4 == 2 else 1.0,
                logit_bias={40: 2.0} if index % 4 == 3 else {},
                seed=index,
                ignore_eos=index % 5 == 0,
                constraint=CONSTRAINTS[index % len(CONSTRAINTS)],
            ),
            stream=index % 2 == 0,
            logprobs=LogprobOptions(top=2) if index % 3 == 0 else None,
        )
        for index in range(20)
    ]


def build(model: Path, setting: Setting, **flags: Any) -> Engine:
    """With what obeys grammars, as a server has it."""
    skip_unbuilt(setting.operations)
    config = build_config(model, setting, constrained_json_disable_any_whitespace=True, **flags)
    processors = grammar_processors(config, grammar_compiler(config))
    return Engine(build_worker(config, silent, processors=processors), config, setting)


@cache
def plain(model: Path) -> dict[str, Answer]:
    """Every token is drawn, from what its mask leaves."""
    config = build_config(model, ALONE, constrained_json_disable_any_whitespace=True)
    compiler = grammar_compiler(config)
    assert compiler is not None
    draws: list[ProcessorFactory] = [
        lambda ops, history: GrammarLogitsProcessor(
            ops, history, compiler, forces=False, tries=False
        )
    ]
    worker = build_worker(config, silent, processors=draws)
    return Engine(worker, config, ALONE).run(requests())


def tokens(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {rid: answer.tokens for rid, answer in answers.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_answers_in_any_engine(
    model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of an answer that goes on is accepted at once."""
    monkeypatch.setattr(processor, "SLICE", 2)
    engine = build(model, SETTINGS[name])
    found = engine.run(requests(), arrivals=random.Random(1))
    assert tokens(found) == tokens(plain(model))
    assert not engine.audit()
    if SETTINGS[name].retraction:
        assert engine.retractions


@pytest.mark.parametrize(
    "flags",
    [
        NGRAM,
        pytest.param({**NGRAM, "speculative_ngram_max_bfs_breadth": 1}, id="chains"),
        pytest.param({"itself": 3}, id="a model"),
        pytest.param(
            {"itself": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 14},
            id="trees of a model",
            marks=TREES,
        ),
    ],
)
def test_the_same_answers_with_drafts(model: Path, flags: dict[str, Any]) -> None:
    """Of drafters that know nothing of grammars."""
    given = dict(flags)
    if steps := given.pop("itself", 0):
        given |= {
            "speculative_algorithm": "STANDALONE",
            "speculative_draft_model_path": str(model),
            "speculative_num_steps": steps,
            "speculative_fixed_width": True,
        }
    engine = build(model, SETTINGS["captured"], **given)
    found = engine.run(requests(), arrivals=random.Random(2))
    assert tokens(found) == tokens(plain(model))
    assert engine.accept_rate() is not None


def test_forced_tokens_come_together(model: Path) -> None:
    """Nothing of it where log-probabilities are wanted; a limit counts every token."""
    engine, text = build(model, SETTINGS["captured"]), "property_with_a_long_name"
    constraint = Constraint(kind=REGEX, text=f"[ab]{text}[ab]")
    kinds: list[tuple[int, LogprobOptions | None]] = [(99, None), (9, None), (99, LogprobOptions())]
    steps: list[int] = []
    for most, logprobs in kinds:
        sampling = SamplingParams(max_new_tokens=most, seed=1, constraint=constraint)
        request = Request(key=0, rid="0", tokens=[5, 6], sampling=sampling, logprobs=logprobs)
        steps.clear()
        answer = engine.run([request], after_step=lambda: steps.append(1))["0"]
        assert len(answer.tokens) == min(most, len(text) + 3)
        assert (len(steps) >= len(answer.tokens)) == (logprobs is not None)


@pytest.mark.parametrize("flags", [{}, NGRAM], ids=["plain", "drafts"])
def test_the_same_answers_of_stages(model: Path, flags: dict[str, Any]) -> None:
    """What is forced the stages before the last one hear of, too."""
    skip_unbuilt("native")
    setting = Setting(batch=8, chunk=48, radix="on", depth=2, page=16)
    config = build_config(
        *(model, setting), pp_size=2, constrained_json_disable_any_whitespace=True, **flags
    )
    with closing(LayoutEngines(config, setting)) as staged:
        found = staged.run(requests(), arrivals=random.Random(3))
        assert tokens(found) == tokens(plain(model))
        before = len(staged.plans())
        constraint = Constraint(kind=REGEX, text="[ab]property_with_a_long_name[ab]")
        sampling = SamplingParams(max_new_tokens=99, seed=1, constraint=constraint)
        one = staged.run([Request(key=0, rid="one", tokens=[5, 6], sampling=sampling)])["one"]
        assert 2 * (len(staged.plans()) - before) < len(one.tokens)


def test_answers_that_have_ended_obey(model: Path) -> None:
    tokenizer = load_encoder(build_config(model, ALONE).source)
    answers, ended = plain(model), 0
    for request in requests():
        found = answers[request.rid].tokens
        if request.sampling.constraint != CONSTRAINTS[0] or found[-1] != EOS:
            continue
        ended += 1
        jsonschema.validate(json.loads(tokenizer.decode(found)), PERSON)
    assert ended
