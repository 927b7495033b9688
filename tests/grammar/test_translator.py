"""Constraints that take exponential time or all memory end a process, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from grammar_kit import VOCABULARY, spell, walk_randomly

from vivace.config.time_slices import be_less_urgent
from vivace.config.trial_process import frame, receive
from vivace.grammar.backend import GrammarError, JsonFormat, LibraryFault
from vivace.grammar.limited_child import serve
from vivace.grammar.limited_process import (
    CompilerFailure,
    ProcessLink,
    TrialLimits,
    encode,
    read_answer,
)
from vivace.grammar.llguidance_backend import LLGuidanceBackend
from vivace.grammar.source import GrammarDialect, translate
from vivace.grammar.translator import TranslatedGrammar, TranslatorProcess
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, STRUCTURAL_TAG, Constraint

DIALECT = GrammarDialect(JsonFormat(compact=True), VOCABULARY.special_texts)
LIMITS = TrialLimits(cpu_seconds=0.3, wall_seconds=250.0, memory=256 << 20)
PATTERNS = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{count}}}"} for count in range(1, 40)]
BOMBS = {
    "doubles with each pattern": (JSON_SCHEMA, {"allOf": PATTERNS}),
    "a state for each remainder": (JSON_SCHEMA, {"type": "integer", "multipleOf": 262139}),
}
PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
}
PLAIN["additionalProperties"] = False


@pytest.fixture(scope="module")
def translator() -> Iterator[TranslatorProcess]:
    yield TranslatorProcess(DIALECT, LIMITS)


def schema(given: object) -> Constraint:
    return Constraint(kind=JSON_SCHEMA, text=json.dumps(given))


def test_what_comes_out_is_what_a_thread_would_make(translator: TranslatorProcess) -> None:
    tag = {
        "format": {"type": "tag", "begin": "<|call|>", "content": {"type": "any_text"}, "end": "a"}
    }
    for constraint in (
        schema(PLAIN),
        Constraint(kind=REGEX, text="a+b"),
        Constraint(kind=EBNF, text='root ::= "a" root | "b"'),
        Constraint(kind=STRUCTURAL_TAG, text=json.dumps(tag)),
    ):
        assert translator.translate(constraint) == translate(constraint, DIALECT)
    with pytest.raises(GrammarError, match="uniqueItems"):
        translator.translate(schema({"properties": {"a": {"uniqueItems": True}}}))


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_and_others_go_on(translator: TranslatorProcess, name: str) -> None:
    with pytest.raises(GrammarError, match="longer"):
        translator.translate(schema(BOMBS[name][1]))
    assert translator.translate(schema(PLAIN))


def test_a_process_that_somebody_kills_is_replaced(translator: TranslatorProcess) -> None:
    """By one that is as urgent, whoever asks."""

    def ask() -> int:
        translator.translate(schema(PLAIN))
        assert translator.process.pid is not None
        return translator.process.pid

    ask()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1) as thread:
        os.kill(thread.submit(ask).result(), signal.SIGKILL)
        thread.submit(be_less_urgent).result()
        second = thread.submit(ask).result()
        assert os.getpriority(os.PRIO_PROCESS, second) == own
    assert not Path(f"/proc/{second}").exists(), "each thread's ends with it"


MANY = " | ".join(f'"w{number}"' for number in range(600))


@pytest.mark.parametrize(
    ("kind", "text", "limit"),
    [
        (REGEX, "a{90000}", "expressions"),
        (REGEX, "x|a{90000}", ""),
        (EBNF, f'root ::= "before" ({MANY})', "row"),
        (EBNF, f'root ::= "x" | {MANY}', ""),
        (REGEX, "a[a&&b]", "nothing"),
    ],
)
def test_what_comes_to_a_limit_with_every_beginning_is_refused(
    translator: TranslatorProcess, kind: str, text: str, limit: str
) -> None:
    with pytest.raises(GrammarError, match=limit) if limit else nullcontext():
        translator.translate(Constraint(kind=kind, text=text))


PANICKED_AT = 'start: %regex {"substring_chunks": [""]}'
"""by llguidance 1.9.1, which catches that where it compiles, not where it explains"""
PANICKED_AT_PART = json.dumps({"format": {"type": "grammar", "grammar": PANICKED_AT}})


@pytest.mark.parametrize(
    ("kind", "text"), [(EBNF, PANICKED_AT), (STRUCTURAL_TAG, PANICKED_AT_PART)]
)
def test_a_panic_of_the_library_is_called_so_and_ends_nothing(
    translator: TranslatorProcess, kind: str, text: str
) -> None:
    before = translator.translate(schema(PLAIN)) and translator.process.pid
    with pytest.raises(LibraryFault, match="library"):
        translator.translate(Constraint(kind=kind, text=text))
    assert translator.process.pid == before


def test_only_who_is_as_urgent_as_streams_has_the_first_answer_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which is as urgent, too: with each that is ended the next one would be."""
    asked: list[bytes] = []
    exchange = ProcessLink.exchange
    monkeypatch.setattr(
        ProcessLink, "exchange", lambda link, said: asked.append(said) or exchange(link, said)
    )
    trial = TranslatorProcess(DIALECT, LIMITS)
    for less, count in ((False, 2), (True, 3)):
        with ThreadPoolExecutor(1, initializer=be_less_urgent if less else None) as thread:
            thread.submit(trial.translate, schema(PLAIN)).result()
        assert len(asked) == count and asked[-1] == encode(schema(PLAIN))
        asked.clear()


def test_an_error_of_ours_ends_no_process_and_blames_nobody() -> None:
    def answer(constraint: Constraint) -> TranslatedGrammar:
        if constraint.kind == REGEX:
            raise IndexError(f"{constraint.text} in \udcfc")  # as in a path that is not UTF-8
        return TranslatedGrammar(grammars=[constraint.text])

    ours, theirs = socket.socketpair()
    with ours, ThreadPoolExecutor(1) as thread:
        serving = thread.submit(serve, theirs, answer, TrialLimits(cpu_seconds=1000.0))
        ours.sendall(frame(encode(Constraint(kind=REGEX, text="a"))))
        with pytest.raises(CompilerFailure, match="Traceback"):
            read_answer(receive(ours))
        ours.sendall(frame(encode(Constraint(kind=EBNF, text="b"))))
        found = msgspec.msgpack.decode(read_answer(receive(ours)), type=TranslatedGrammar)
        assert found.grammars == ["b"]
        ours.shutdown(socket.SHUT_RDWR)
        serving.result()


def test_a_backend_obeys_what_the_process_made(translator: TranslatorProcess) -> None:
    backend = LLGuidanceBackend(VOCABULARY, DIALECT.form, translator=translator.translate)
    text = spell(walk_randomly(backend.compile(schema(PLAIN)), np.random.default_rng(1), 60))
    assert json.loads(text)["a"] in ("x", "y")
