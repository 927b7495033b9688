"""Compiling beside the steps: gates, what is kept, what is refused."""

from __future__ import annotations

import errno
import gc
import json
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from grammar_kit import BACKEND

from vivace.grammar import compiled as module
from vivace.grammar.backend import (
    LIBRARY_FAILED,
    GrammarError,
    GrammarMatcher,
    GrammarUnavailable,
    LibraryFault,
)
from vivace.grammar.compile_threads import MAX_SECONDS, PATIENCE, SpentTime, watch_thread
from vivace.grammar.compiler import MAX_CPU_SECONDS, SMALL, GrammarCompiler
from vivace.grammar.limits import STACK
from vivace.grammar.replay import SLICE, replay
from vivace.protocol.constraints import EBNF, JSON_SCHEMA, REGEX, Constraint
from vivace.protocol.messages import Request, SamplingParams


@pytest.fixture
def hasty() -> None:
    """What had no processor for a while is begun again."""


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nothing is begun twice, whatever else the machine does."""
    if "hasty" not in request.fixturenames:
        monkeypatch.setattr("vivace.grammar.compile_threads.PATIENCE", 60.0)
        monkeypatch.setattr("vivace.grammar.compiler.PATIENCE", 60.0)


class SlowBackend:
    """Compiles when it is let; counts."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.compiled: list[str] = []
        self._error = error

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        self.begun.set()
        assert self.go.wait(20)
        self.compiled.append(constraint.text)
        if self._error is not None:
            raise self._error
        return BACKEND.compile(constraint)

    fill = BACKEND.fill


class Watch:
    """What every job has spent."""

    spent = SpentTime(cpu=0.0, wall=0.0)

    def __call__(self) -> Callable[[], SpentTime]:
        return lambda: self.spent


def request(
    text: str,
    resumed: list[int] | None = None,
    client: int = 0,
    field: str = "sampling_params.regex",
) -> Request:
    constraint = Constraint(kind=REGEX, text=text, field=field)
    sampling = SamplingParams(constraint=constraint)
    return Request(
        key=1, rid="r", tokens=[1], sampling=sampling, resumed=resumed or [], client=client
    )


def rung(compiler: GrammarCompiler) -> threading.Event:
    bell = threading.Event()
    compiler.wake_with(bell.set)
    return bell


def test_a_gate_opens_when_the_grammar_is_there() -> None:
    backend = SlowBackend()
    compiler = GrammarCompiler(lambda: backend)
    bell = rung(compiler)
    gate = compiler.gate(request("ab"))
    assert gate is not None and not gate.is_open() and not bell.is_set()
    backend.go.set()
    assert bell.wait(20) and gate.is_open() and gate.refusal is None
    assert compiler.gate(request("ab")) is None
    assert compiler.gate(Request(key=2, rid="s", tokens=[1], sampling=SamplingParams())) is None
    assert backend.compiled == ["ab"]


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (GrammarError("a.b: no"), 400, "sampling_params.regex: a.b: no"),
        (RuntimeError("boom"), 500, "RuntimeError"),
        (GrammarUnavailable("no process"), 503, "no process"),
        (LibraryFault(f"{LIBRARY_FAILED}: boom"), 400, LIBRARY_FAILED),
    ],
)
def test_a_gate_refuses_what_does_not_compile(error: Exception, status: int, told: str) -> None:
    backend = SlowBackend(error=error)
    compiler = GrammarCompiler(lambda: backend)
    bell = rung(compiler)
    gate = compiler.gate(request("ab"))
    backend.go.set()
    assert bell.wait(20) and gate is not None and gate.is_open() and gate.refusal is not None
    assert gate.refusal.status == status and told in str(gate.refusal.message)
    with pytest.raises(type(error)):
        compiler.matcher(Constraint(kind=REGEX, text="ab"))
    again = ["ab"] * (not isinstance(error, GrammarError))
    assert backend.compiled == ["ab", *again], "what is not its own fault may not come again"


@pytest.mark.parametrize(
    ("reason", "field"),
    [
        ("tools[3].function.parameters.properties.a-b: no", "tools[3].function.parameters."),
        ("tools[0].custom.format.grammar.definition: no: at 1:2", "tools[0].custom."),
        ("becomes too large", "tools"),
    ],
)
def test_the_tool_that_is_to_blame_is_the_param(reason: str, field: str) -> None:
    backend = SlowBackend(error=GrammarError(reason))
    compiler = GrammarCompiler(lambda: backend)
    bell = rung(compiler)
    gate = compiler.gate(request("ab", field="tools"))
    backend.go.set()
    assert bell.wait(20) and gate is not None and gate.is_open() and gate.refusal is not None
    told = gate.refusal.message or ""
    assert (gate.refusal.param or "").startswith(field)
    assert told == (f"tools: {reason}" if field == "tools" else reason)


def test_what_is_made_once_is_as_urgent_as_streams_and_the_rest_is_less() -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    class Looking:
        fill = BACKEND.fill

        def __init__(self) -> None:
            look()

        def compile(self, constraint: Constraint) -> GrammarMatcher:
            look()
            return BACKEND.compile(constraint)

    compiler = GrammarCompiler(Looking)
    for text in ("ab", "cd"):
        compiler.matcher(Constraint(kind=REGEX, text=text))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert seen == [own, own, 19]


@pytest.mark.usefixtures("hasty")
def test_what_gets_no_processor_is_made_again_as_urgently_as_streams() -> None:
    """And what waits behind it, while the usual thread is stuck there."""
    begun, go, threads = threading.Event(), threading.Event(), list[str]()

    class StarvedBackend:
        fill = BACKEND.fill

        def compile(self, constraint: Constraint) -> GrammarMatcher:
            threads.append(threading.current_thread().name)
            if constraint.text == "slow" and len(threads) == 2:
                begun.set()
                assert go.wait(20)
            return BACKEND.compile(constraint)

    watch = Watch()
    compiler = GrammarCompiler(StarvedBackend, watch)
    compiler.matcher(Constraint(kind=REGEX, text="first"))
    bell = rung(compiler)
    gate = compiler.gate(request("slow"))
    assert gate is not None and not gate.is_open()
    assert begun.wait(20)
    watch.spent = SpentTime(cpu=0.1, wall=PATIENCE + 0.2)
    while not gate.is_open():
        bell.wait(0.1)
    assert gate.refusal is None
    behind = compiler.gate(request("next"))
    while behind is not None and not behind.is_open():
        bell.wait(0.1)
    go.set()
    assert compiler.matcher(Constraint(kind=REGEX, text="last")).accept([*b"last"]) == 4
    names = [name.rpartition("_")[0] or name for name in threads]
    assert names[:4] == ["grammar", "grammar", "grammar-urgent", "grammar-urgent"]


@pytest.mark.usefixtures("hasty")
def test_threads_begin_with_much_stack_whatever_else_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that are begun again at once, for a small and a large constraint."""
    sizes, both, go = list[int](), threading.Barrier(2), threading.Event()
    start, before = threading.Thread.start, threading.stack_size()

    def start_slowly(thread: threading.Thread) -> None:
        if thread.name == "grammar-urgent":
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
            sizes.append(threading.stack_size())
        start(thread)

    class StarvedBackend:
        fill = BACKEND.fill

        def compile(self, constraint: Constraint) -> GrammarMatcher:
            if threading.current_thread().name != "grammar-urgent" and len(constraint.text) > 1:
                assert go.wait(20)
            return BACKEND.compile(constraint)

    watch = Watch()
    compiler = GrammarCompiler(StarvedBackend, watch)
    compiler.matcher(Constraint(kind=REGEX, text="a"))
    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    waiting = [request(text) for text in ("bc", "x{1}" + "a?" * (SMALL // 2))]
    gates = [compiler.gate(one) for one in waiting]
    watch.spent = SpentTime(cpu=0.1, wall=PATIENCE + 0.2)
    opened = [False]
    while not all(opened):
        opened = [
            gate is None or gate.is_open() for gate in gates
        ]  # each hurries what it waits for
        time.sleep(0.01)
    go.set()
    assert sizes == [STACK, STACK] and threading.stack_size() == before


def test_a_thread_that_is_done_is_not_stuck() -> None:
    """What comes when it has just told so is not for a thread as urgent as streams."""
    threads, held = list[str](), list[Any]()

    class NamingBackend:
        fill = BACKEND.fill

        def compile(self, constraint: Constraint) -> GrammarMatcher:
            threads.append(threading.current_thread().name.rpartition("_")[0])
            return BACKEND.compile(constraint)

    compiler = GrammarCompiler(NamingBackend)

    def ring() -> None:
        if not held:
            held.append(request("second"))
            held.append(compiler.gate(held[0]))

    compiler.wake_with(ring)
    compiler.matcher(Constraint(kind=REGEX, text="first"))
    compiler.matcher(Constraint(kind=REGEX, text="second"))
    assert threads == ["grammar", "grammar"]


def test_a_failure_leaves_no_garbage() -> None:
    errors: list[weakref.ref[GrammarUnavailable]] = []

    def busy() -> GrammarUnavailable:
        error = GrammarUnavailable("busy")
        errors.append(weakref.ref(error))
        return error

    class BusyBackend(SlowBackend):
        def compile(self, constraint: Constraint) -> GrammarMatcher:
            raise busy()

    compiler = GrammarCompiler(BusyBackend)
    bell = rung(compiler)
    gc.collect()
    gc.disable()
    try:
        gate = compiler.gate(request("ab"))
        assert bell.wait(20) and gate is not None and gate.is_open()
        del gate
        compiler.gate(request("cd"))  # what nobody wants is let go of when the next one comes
        for _ in range(300):
            if errors[0]() is None:
                break
            time.sleep(0.01)
        assert errors[0]() is None
    finally:
        gc.enable()


def test_a_thread_that_has_just_ended_has_no_clock() -> None:
    def gone() -> SpentTime:
        raise OSError(errno.EINVAL, "as the clock of such a thread")

    backend = SlowBackend()
    compiler = GrammarCompiler(lambda: backend, lambda: gone)
    gate = compiler.gate(request("ab"))
    assert gate is not None and backend.begun.wait(20) and not gate.is_open()
    backend.go.set()


def test_a_compiler_that_nobody_has_any_more_is_no_garbage() -> None:
    compiler = GrammarCompiler(lambda: BACKEND)
    bell, there = rung(compiler), weakref.ref(compiler)
    gc.collect()
    gc.disable()
    try:
        compiler.prepare()
        assert bell.wait(20)
        del compiler
        for _ in range(300):  # its thread lets go of what it has made
            if there() is None:
                break
            time.sleep(0.01)
        assert there() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("spent", "status"),
    [
        (SpentTime(cpu=MAX_CPU_SECONDS - 1, wall=MAX_SECONDS - 1), None),
        (SpentTime(cpu=MAX_CPU_SECONDS + 1, wall=MAX_SECONDS + 1), 400),
        (SpentTime(cpu=MAX_CPU_SECONDS - 1, wall=MAX_SECONDS + 1), 503),
    ],
)
def test_what_takes_too_long_is_refused(spent: SpentTime, status: int | None) -> None:
    """Where the machine was busy it may come again."""
    backend, watch = SlowBackend(), Watch()
    compiler = GrammarCompiler(lambda: backend, watch)
    gate, behind = (compiler.gate(request(text)) for text in ("ab", "cd"))
    assert backend.begun.wait(20) and gate is not None and behind is not None
    assert not gate.is_open()
    watch.spent = spent
    assert gate.is_open() == (status is not None)
    assert (gate.refusal and gate.refusal.status) == status
    assert gate.refusal is None or (gate.refusal.retry_after is None) == (status == 400)
    assert not behind.is_open()  # it waits for its turn
    backend.go.set()


def test_a_thread_is_watched_from_others() -> None:
    watched: list[Callable[[], SpentTime]] = []
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        watched.append(watch_thread())
        while watched[0]().cpu < 0.01:
            pass
        begun.set()
        over.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(20)
    spent = watched[0]()
    assert 0.01 <= spent.cpu <= spent.wall + 0.01
    over.set()
    thread.join()


def test_clients_take_turns_and_who_has_left_costs_nothing() -> None:
    backend = SlowBackend()
    compiler = GrammarCompiler(lambda: backend)
    crowd = [request(text, client=1) for text in ("a", "b", "c", "d")]
    gates = [compiler.gate(one) for one in crowd]
    other = request("z", client=2)
    gates.append(compiler.gate(other))
    assert backend.begun.wait(20)
    del crowd[1:3], gates[1:3]  # b and c: their clients hang up
    backend.go.set()
    compiler.matcher(Constraint(kind=REGEX, text="now"))  # a step waits for it
    while not all(gate is None or gate.is_open() for gate in gates):
        time.sleep(0.01)
    assert backend.compiled == ["a", "now", "z", "d"]


@pytest.mark.parametrize("large", ["x{1}" + "a?" * (SMALL // 2), '"multipleOf": 0.99971'])
def test_no_quick_constraint_waits_for_one_that_takes_long(large: str) -> None:
    """Its thread is as little urgent as that of the others."""
    urgency = dict[str, int]()

    class LargeBackend(SlowBackend):
        def compile(self, constraint: Constraint) -> GrammarMatcher:
            urgency[constraint.text] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            if constraint.text == large:
                return super().compile(constraint)
            return BACKEND.compile(constraint)

    backend = LargeBackend()
    compiler = GrammarCompiler(lambda: backend)
    compiler.matcher(Constraint(kind=REGEX, text="first"))
    waiting = compiler.gate(behind := request(large, client=1))
    assert waiting is not None and backend.begun.wait(20)
    compiler.matcher(Constraint(kind=REGEX, text="ab"))
    assert not waiting.is_open() and behind
    backend.go.set()
    assert urgency["ab"] == urgency[large] == 19 != urgency["first"]


def test_tokens_that_were_resumed_must_obey() -> None:
    compiler = GrammarCompiler(lambda: BACKEND)
    bell = rung(compiler)
    good, bad = (compiler.gate(request("abc", list(text))) for text in (b"ab", b"ax"))
    assert good is not None and bad is not None
    while not (good.is_open() and bad.is_open()):
        assert bell.wait(20)
    assert bad.refusal is not None and bad.refusal.status == 400
    assert good.refusal is None


def test_a_long_answer_is_taken_up_beside_the_loop() -> None:
    """In slices, also where the grammar is known already."""
    threads: list[int] = []

    class SpyingMatcher:
        ended, error = False, ""

        def copy(self) -> Any:
            return self

        def accept(self, tokens: list[int]) -> int:
            assert len(tokens) <= SLICE
            threads.append(threading.get_ident())
            return len(tokens)

    class SpyingBackend(SlowBackend):
        def compile(self, constraint: Constraint) -> Any:
            return SpyingMatcher()

    compiler = GrammarCompiler(SpyingBackend)
    compiler.matcher(Constraint(kind=REGEX, text="a*"))
    bell = rung(compiler)
    gate = compiler.gate(request("a*", [97] * (3 * SLICE + 1)))
    assert gate is not None and bell.wait(20) and gate.is_open() and gate.refusal is None
    assert len(threads) == 4 and threading.get_ident() not in threads


def test_slices_are_accepted_as_the_whole_is() -> None:
    start = BACKEND.compile(Constraint(kind=REGEX, text="a*b?"))
    for length in (0, 1, SLICE, SLICE + 1, 2 * SLICE + 9):
        tokens = [97] * length + [98, 98]
        whole, sliced = start.copy(), start.copy()
        assert replay(sliced, tokens) == whole.accept(tokens) == length + 1
        assert sliced.ended and whole.ended


def test_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SlowBackend()
    backend.go.set()
    compiler = GrammarCompiler(lambda: backend)
    monkeypatch.setattr(module, "KEPT", 3)
    monkeypatch.setattr(module, "KEPT_CHARACTERS", 10)

    def take(*texts: str) -> None:
        for text in texts:
            compiler.matcher(Constraint(kind=REGEX, text=text))

    take("a", "b", "c", "a")
    assert backend.compiled == ["a", "b", "c"]
    take("d", "b")  # b was the oldest
    assert backend.compiled == ["a", "b", "c", "d", "b"]
    take("e" * 9)
    backend.compiled.clear()
    take("b", "d")
    assert backend.compiled == ["d"]
    take("f" * 11)
    backend.compiled.clear()
    take("f" * 11, "d")  # the last one is kept, however long
    assert backend.compiled == ["d"]


def test_living_requests_have_room_for_so_much() -> None:
    """One constraint of any length, or several: the next ones may come again."""
    backend = SlowBackend()
    compiler = GrammarCompiler(lambda: backend, room=100 * module.BYTES)
    living = [request("a" * 60), request("b" * 40), request("a" * 60)]
    gates = [compiler.gate(one) for one in living]
    refused = compiler.gate(request("c"))
    assert refused is not None and refused.is_open() and refused.refusal is not None
    assert refused.refusal.status == 503 and refused.refusal.retry_after
    assert all(gate is not None and not gate.is_open() for gate in gates)
    del living[1:], gates[1:]
    gate = compiler.gate(last := request("d" * 40))
    assert gate is not None and not gate.is_open() and last
    del living, last, gates, gate
    gate = compiler.gate(alone := request("e" * 101))
    assert gate is not None and not gate.is_open() and alone
    backend.go.set()


def test_who_lives_needs_room_though_others_begin_anew() -> None:
    """An automaton that was forgotten is there until nobody has it."""
    backend = SlowBackend()
    backend.go.set()
    compiler = GrammarCompiler(lambda: backend, room=100 * module.BYTES)
    compiler.gate(old := request("a" * 60))
    assert old.sampling.constraint is not None
    compiler.forget(old.sampling.constraint)
    refused = compiler.gate(new := request("a" * 60))
    assert refused is not None and refused.is_open() and refused.refusal is not None
    del old
    compiler.gate(newer := request("a" * 60))
    refused = compiler.gate(request("b" * 60))
    assert refused is not None and refused.is_open() and refused.refusal is not None
    assert new and newer
    compiler.gate(last := request("b" * 40))
    compiler.matcher(Constraint(kind=REGEX, text="b" * 40))
    assert "b" * 40 in backend.compiled and last


def test_what_living_requests_need_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are; and then as others are."""
    backend = SlowBackend()
    backend.go.set()
    compiler = GrammarCompiler(lambda: backend)
    monkeypatch.setattr(module, "KEPT", 2)
    texts = [chr(97 + number) for number in range(9)]
    living = [request(text) for text in [*texts, *texts]]
    assert len([compiler.gate(one) for one in living]) == 2 * len(texts)
    for text in texts:
        compiler.matcher(Constraint(kind=REGEX, text=text))
    assert sorted(backend.compiled) == texts
    living.clear()
    backend.compiled.clear()
    for text in texts:
        compiler.matcher(Constraint(kind=REGEX, text=text))
    assert len(backend.compiled) >= len(texts) - 2


def test_what_has_reached_a_limit_is_compiled_anew() -> None:
    backend = SlowBackend()
    backend.go.set()
    compiler = GrammarCompiler(lambda: backend)
    held, other = request("ab"), Constraint(kind=REGEX, text="b")
    compiler.gate(held)
    constraint = held.sampling.constraint
    assert constraint is not None
    for one in (constraint, constraint, other):
        compiler.matcher(one)
    compiler.forget(constraint)
    for one in (constraint, constraint, other):
        compiler.matcher(one)
    assert sorted(backend.compiled) == ["ab", "ab", "b"]


def test_answers_do_not_share_where_they_stand() -> None:
    compiler = GrammarCompiler(lambda: BACKEND)
    constraint = Constraint(kind=REGEX, text="ab")
    one, other = compiler.matcher(constraint), compiler.matcher(constraint)
    assert one.accept([97, 98]) == 2 and one.ended and not other.ended


def test_the_vocabulary_is_read_before_somebody_waits_for_it() -> None:
    made = threading.Event()
    backend = SlowBackend()
    backend.go.set()

    def create() -> SlowBackend:
        assert not made.is_set()
        made.set()
        return backend

    compiler = GrammarCompiler(create)
    compiler.prepare()
    assert made.wait(20)
    assert len(compiler.matcher(Constraint(kind=REGEX, text="ab")).copy().error) == 0
    assert len(backend.compiled) == 2, "one that nobody asked for, which tells nothing"


def test_a_backend_that_cannot_be_made_is_an_error_of_each_request() -> None:
    def create() -> Any:
        raise OSError("no vocabulary")

    compiler = GrammarCompiler(create)
    bell = rung(compiler)
    gate = compiler.gate(request("ab"))
    assert bell.wait(20) and gate is not None and gate.is_open()
    assert gate.refusal is not None and gate.refusal.status == 500


CHAIN = 3000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            JSON_SCHEMA,
            json.dumps(
                {
                    "$ref": "#/$defs/0",
                    "$defs": {
                        str(at): {"items": {"$ref": f"#/$defs/{at + 1}"}} for at in range(CHAIN)
                    }
                    | {str(CHAIN): {}},
                }
            ),
        ),
        (
            EBNF,
            "start: r0\n"
            + "\n".join(f'r{at}: r{at + 1} "a"' for at in range(CHAIN))
            + f'\nr{CHAIN}: "b"',
        ),
    ],
)
def test_long_chains_of_references_fit_into_the_stack(kind: str, text: str) -> None:
    compiler = GrammarCompiler(lambda: BACKEND)
    matcher = compiler.matcher(Constraint(kind=kind, text=text))
    assert matcher.accept([ord("[" if kind == JSON_SCHEMA else "b")]) == 1
