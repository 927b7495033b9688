"""Which rows need masks, step by step."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import msgspec
import numpy as np
import pytest
import torch
from grammar_kit import BACKEND, SIZE, VOCABULARY, apply_masks
from llguidance import LLParserLimits

from vivace.grammar.backend import LIBRARY_FAILED, GrammarMatcher, JsonFormat
from vivace.grammar.compiler import GrammarCompiler
from vivace.grammar.joint_matcher import STUCK
from vivace.grammar.llguidance_backend import SIZES, LLGuidanceBackend, SizeLimits
from vivace.grammar.matcher_cache import MOST_MATCHERS, MOST_TOKENS, MatcherCache
from vivace.grammar.processor import GrammarLogitsProcessor
from vivace.grammar.replay import SLICE
from vivace.grammar.thinking import ThinkingBackend
from vivace.grammar.thinking_rule import ThinkingRule, thinking_constraint
from vivace.platforms.ops.sampling import TorchSampling
from vivace.protocol.constraints import REGEX, Constraint
from vivace.protocol.messages import LogprobOptions, SamplingParams
from vivace.protocol.step import Join, StepPlan
from vivace.sampling.processors import Entries, Histories, LogitsProcessors


class CountingMatcher:
    def __init__(self, matcher: GrammarMatcher, backend: CountingBackend) -> None:
        self._matcher, self._backend = matcher, backend

    def fill(self, mask: np.ndarray) -> None:
        self._backend.filled += 1
        self._matcher.fill(mask)

    def copy(self) -> Any:
        return CountingMatcher(self._matcher.copy(), self._backend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


class CountingBackend:
    fill = BACKEND.fill

    def __init__(self) -> None:
        self.filled = 0
        """masks"""

    def compile(self, constraint: Constraint) -> Any:
        return CountingMatcher(BACKEND.compile(constraint), self)


def build(compiler: GrammarCompiler) -> GrammarLogitsProcessor:
    """For one row."""
    tokens = torch.zeros(1, 2000, dtype=torch.int32)
    histories = Histories(tokens=tokens, prompt=torch.ones(1).long(), known=np.ones(1, np.int64))
    return GrammarLogitsProcessor(TorchSampling(reads=True), histories, compiler)


def join(
    tokens: list[int], sampling: SamplingParams, options: LogprobOptions | None = None
) -> Join:
    """Into row 0, behind a prompt of one token."""
    return Join(
        row=0,
        key=0,
        tokens=tokens,
        prompt=1,
        cached=0,
        pages=[],
        sampling=sampling,
        logprobs=options,
    )


def draw(processor: GrammarLogitsProcessor, logits: torch.Tensor) -> int:
    """The best token of one row."""
    entries = Entries(torch.zeros(1).long(), torch.ones(1).long(), np.zeros(1, np.int64))
    apply_masks(processor, logits, entries)
    return int(logits[0].argmax())


@pytest.mark.parametrize(
    ("temperature", "options", "masks"),
    [(0.0, None, 2), (0.9, None, 6), (0.0, LogprobOptions(), 6)],
    ids=["greedy", "sampled", "scored"],
)
def test_a_greedy_row_is_masked_only_where_its_best_token_may_not_follow(
    temperature: float, options: LogprobOptions | None, masks: int
) -> None:
    """And once more behind that, ahead of time."""
    backend = CountingBackend()
    processor = build(GrammarCompiler(lambda: backend))
    constraint = Constraint(kind=REGEX, text="[ab]{30}")
    sampling = SamplingParams(temperature=temperature, constraint=constraint)
    processor.joined(0, join([1], sampling, options))
    said = ""
    for best in "aaxaba":
        logits = torch.zeros(1, SIZE)
        logits[0, ord("b")] = 1.0
        logits[0, ord(best)] = 2.0
        token = draw(processor, logits)
        said += chr(token)
        if len(said) < 6:
            processor.landed({0: [token]}, at_once=False)
    assert said == "aababa"
    assert backend.filled == masks


def test_nothing_is_drawn_behind_a_draft_that_may_not_stand() -> None:
    """Where only a limit forbids it, it may be what the row draws all the same."""
    tokens = torch.tensor([[0, ord("x"), 0]], dtype=torch.int32)
    known = np.ones(1, np.int64)
    histories = Histories(tokens=tokens, prompt=torch.ones(1).long(), known=known, drafts=1)
    compiler = GrammarCompiler(CountingBackend)
    processor = GrammarLogitsProcessor(TorchSampling(reads=True), histories, compiler)
    constraint = Constraint(kind=REGEX, text="[ab]*")
    processor.joined(0, join([1], SamplingParams(temperature=0.9, constraint=constraint)))
    logits = torch.zeros(2, SIZE)
    entries = Entries(torch.zeros(2).long(), torch.tensor([1, 2]), np.zeros(2, np.int64))
    apply_masks(processor, logits, entries)
    assert logits[0].isfinite().any()
    assert not logits[1].isfinite().any()


@pytest.mark.parametrize("seed", range(3))
def test_limits_end_no_answer_for_its_drafts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of copies, which go on over drafts, some come to it first."""
    monkeypatch.setattr("vivace.grammar.llguidance_backend.MAX_LEXER_STATES", 300)
    chance = random.Random(seed)
    tokens = torch.zeros(1, 200, dtype=torch.int32)
    known = np.ones(1, np.int64)
    histories = Histories(tokens=tokens, prompt=torch.ones(1).long(), known=known, drafts=3)
    compiler = GrammarCompiler(lambda: LLGuidanceBackend(VOCABULARY, JsonFormat()))
    processor = GrammarLogitsProcessor(TorchSampling(reads=True), histories, compiler)
    text = "|".join(f"{one}[xy{one}]{{900}}" for one in "abc")
    sampling = SamplingParams(temperature=0.9, constraint=Constraint(kind=REGEX, text=text))
    for first in b"abc":
        wanted = [first, *b"xy" * 50]
        processor.joined(0, join([1], sampling))
        said = list[int]()
        while len(said) < 90:
            right = wanted[len(said) :][: chance.randrange(4)]
            drafts = [one if chance.random() < 0.7 else ord("q") for one in right]
            said += draw_behind(processor, tokens, drafts, wanted[len(said) :], len(said))
        assert said == wanted[: len(said)]
        processor.left(0)


def draw_behind(
    processor: GrammarLogitsProcessor,
    tokens: torch.Tensor,
    drafts: list[int],
    best: list[int],
    known: int,
) -> list[int]:
    """What stays of what row 0 draws behind its known tokens and its drafts."""
    places = torch.arange(known + 1, known + 2 + len(drafts))
    tokens[0, places[:-1]] = torch.tensor(drafts, dtype=torch.int32)
    logits = torch.zeros(len(places), SIZE)
    logits[range(len(places)), best[: len(places)]] = 1.0
    rows = np.zeros(len(places), np.int64)
    entries = Entries(torch.zeros(len(places)).long(), places, rows)
    apply_masks(processor, logits, entries)
    drawn, bad = logits.argmax(1).tolist(), (~logits.isfinite().any(1)).tolist()
    assert not bad[0], processor.why_stuck(0)
    count = 1
    while count <= len(drafts) and drawn[count - 1] == drafts[count - 1] and not bad[count]:
        count += 1
    processor.landed({0: drawn[:count]}, at_once=False)
    return drawn[:count]


@pytest.mark.parametrize("length", [0, SLICE, 3 * SLICE + 5])
def test_a_row_that_joins_again_stands_behind_its_tokens(length: int) -> None:
    processor = build(GrammarCompiler(CountingBackend))
    constraint = Constraint(kind=REGEX, text=f"a{{{length}}}b+")
    sampling = SamplingParams(temperature=0.9, seed=1, constraint=constraint)
    processor.joined(0, join([1, *length * b"a"], sampling))
    logits = torch.zeros(1, SIZE)
    logits[0, ord("a")] = 1.0
    entries = Entries(torch.zeros(1).long(), torch.ones(1).long(), np.zeros(1, np.int64))
    apply_masks(processor, logits, entries)
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [ord("b")]


def test_a_row_that_joins_again_goes_on_with_its_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = build(GrammarCompiler(CountingBackend))
    constraint, said = Constraint(kind=REGEX, text="a{999}b+"), [*(SLICE + 5) * b"a"]
    sampling = SamplingParams(temperature=0.9, seed=1, constraint=constraint)
    processor.joined(0, join([1, *said[:9]], sampling))
    processor.landed({0: said[9:]}, at_once=False)
    processor.left(0)
    replayed: list[int] = []

    def replay(_: object, tokens: list[int]) -> int:
        replayed.append(len(tokens))
        return len(tokens)

    monkeypatch.setattr("vivace.grammar.replay.replay", replay)
    for tokens, anew in ((said, []), (said, [len(said)]), (said[1:], [len(said), len(said) - 1])):
        processor.joined(0, join([1, *tokens], sampling))
        assert draw(processor, torch.zeros(1, SIZE)) >= 0
        assert replayed == anew


def test_matchers_are_kept_of_few_tokens() -> None:
    kept = MatcherCache()
    constraint = Constraint(kind=REGEX, text="[ab]*")
    answers = [[number] * (MOST_TOKENS // 3) for number in range(5)]
    matcher = BACKEND.compile(constraint)
    for answer in (*answers, [1] * SLICE, [1] * (MOST_TOKENS + 1)):
        kept.keep(constraint, answer, matcher)
    assert [kept.take(constraint, answer) for answer in answers] == [None, None, *[matcher] * 3]
    assert [kept.take(constraint, answer) for answer in answers] == [None] * 5


def test_few_matchers_are_kept_of_answers_of_any_length() -> None:
    kept = MatcherCache()
    constraint = Constraint(kind=REGEX, text="[ab]*")
    matcher = BACKEND.compile(constraint)
    answers = [[number] * (SLICE + 1) for number in range(MOST_MATCHERS + 2)]
    for answer in answers:
        kept.keep(constraint, answer, matcher)
    found = [kept.take(constraint, answer) for answer in answers]
    assert found == [None, None, *[matcher] * MOST_MATCHERS]


@pytest.mark.parametrize("thinks", [False, True])
def test_answers_do_not_count_in_the_limits_of_others(
    thinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's copies have one lexer together, of so many states."""
    monkeypatch.setattr("vivace.grammar.llguidance_backend.MAX_LEXER_STATES", 300)
    backend = ThinkingBackend(LLGuidanceBackend(VOCABULARY, JsonFormat()), VOCABULARY)
    compiler = GrammarCompiler(lambda: backend)
    processor = build(compiler)
    constraint = Constraint(kind=REGEX, text="|".join(f"{one}[xy{one}]{{900}}" for one in "abcdef"))
    if thinks:
        rule = ThinkingRule(begin="<t>", end="</t>", answer=constraint)
        constraint = thinking_constraint(rule, "regex")
    sampling = SamplingParams(temperature=0.9, constraint=constraint)
    told: list[Any] = []
    for first in b"abcdef":
        processor.joined(0, join([1], sampling))
        for best in (first, *b"xy" * 50):
            logits = torch.zeros(1, SIZE)
            logits[0, best] = 1.0
            if draw(processor, logits) != best:
                break
            processor.landed({0: [best]}, at_once=False)
        told.append(processor.why_stuck(0))
        processor.left(0)
    assert told == [None] * 6
    processor.joined(0, join([1, *b"a" + b"xy" * 300], sampling))
    for _ in range(2):
        draw(processor, torch.zeros(1, SIZE))
        processor.landed({0: [*b"x"]}, at_once=False)
    told.append(processor.why_stuck(0))
    assert told[-1], "its own are too many"


class RowsTogether:
    """Rows of one constraint that begin with other letters, which the state of each remembers."""

    def __init__(
        self, rows: int, monkeypatch: pytest.MonkeyPatch, text: str = "", /, **limits: int
    ) -> None:
        self.told: dict[int, tuple[int, str] | None] = {}
        """of rows that could not go on"""
        monkeypatch.setattr("vivace.grammar.llguidance_backend.MAX_LEXER_STATES", 300)
        for name, limit in limits.items():
            monkeypatch.setattr(f"vivace.grammar.processor.{name}", limit)
        self.every = np.arange(rows)
        tokens = torch.zeros(rows, 2000, dtype=torch.int32)
        ones = torch.ones(rows).long()
        histories = Histories(tokens=tokens, prompt=ones, known=np.ones(rows, np.int64))
        compiler = GrammarCompiler(lambda: LLGuidanceBackend(VOCABULARY, JsonFormat()))
        self.processor = GrammarLogitsProcessor(TorchSampling(reads=True), histories, compiler)
        self.firsts = [ord("a") + row % 20 for row in range(rows)]
        text = text or "|".join(
            f"{one}[xy{one}]{{900}}" for one in map(chr, sorted({*self.firsts}))
        )
        sampling = SamplingParams(temperature=0.9, constraint=Constraint(kind=REGEX, text=text))
        for row in range(rows):
            self.processor.joined(row, msgspec.structs.replace(join([1], sampling), row=row))

    def draw(self, place: int) -> list[int]:
        """Statuses of rows that cannot go on, which leave; the others draw a token."""
        logits, ones = torch.zeros(len(self.every), SIZE), torch.ones(len(self.every)).long()
        entries = Entries(torch.from_numpy(self.every), ones, self.every)
        apply_masks(self.processor, logits, entries)
        stuck = self.every[~logits.isfinite().any(1).numpy()].tolist()
        told = [self.processor.why_stuck(row) for row in stuck]
        self.told |= dict(zip(stuck, told, strict=True))
        self.every = np.setdiff1d(self.every, stuck)
        for row in stuck:
            self.processor.left(row)
        drawn = {row: [ord("x") if place else self.firsts[row]] for row in self.every.tolist()}
        self.processor.landed(drawn, at_once=False)
        return [why[0] if why else 0 for why in told]


def test_all_rows_that_come_to_a_limit_together_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RowsTogether(40, monkeypatch)
    assert not any(rows.draw(place) for place in range(60))


@pytest.mark.parametrize("limit", [{"MOST_MADE": 1}, {"MOST_REPLAYED": 99}, {"MOST_ALONE": 0}])
def test_rows_for_which_there_is_no_room_at_a_limit_may_come_again(
    limit: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes to it alone is told that it is to blame."""
    rows = RowsTogether(10, monkeypatch, **limit)
    told = [status for place in range(60) for status in rows.draw(place)]
    assert set(told) == {503}
    alone = RowsTogether(1, monkeypatch, **limit | {"MOST_ALONE": 1})
    told = [status for place in range(400) if len(alone.every) for status in alone.draw(place)]
    assert told == [400]


def test_a_step_has_room_for_some_rows_of_a_large_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long answers take none from others that fit."""
    rows = RowsTogether(8, monkeypatch, MOST_REPLAYED=100)
    told = [status for place in range(60) for status in rows.draw(place)]
    assert set(told) == {503} and len(rows.every) >= 2


def test_work_of_one_row_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the lexer whose fuel that has used up, each time that they get another one."""

    def limits(kind: str, sizes: SizeLimits = SIZES) -> LLParserLimits:
        return LLParserLimits(initial_lexer_fuel=sizes.fuel, step_lexer_fuel=1000)

    monkeypatch.setattr("vivace.grammar.llguidance_backend.parser_limits", limits)
    rows = RowsTogether(12, monkeypatch, "[b-z][xy]*|a(?:.{0,400}x){9}")
    assert [status for place in range(20) for status in rows.draw(place)] == [400]
    assert list(rows.told) == [0] and "too many expressions" in str(rows.told[0])


def test_rows_that_get_no_other_matcher_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not known which of them is to blame."""
    monkeypatch.setattr("vivace.grammar.llguidance_backend.QUICK_CHARACTERS", 1)
    for count, status in ((3, 503), (1, 400)):
        rows = RowsTogether(count, monkeypatch)
        told = [status for place in range(400) if len(rows.every) for status in rows.draw(place)]
        assert told == [status] * count


class WatchedMatcher:
    living: WeakSet[WatchedMatcher] = WeakSet()

    def __init__(self) -> None:
        self.living.add(self)

    def copy(self) -> WatchedMatcher:
        return WatchedMatcher()

    def accept(self, tokens: list[int]) -> int:
        return len(tokens)


def test_a_row_that_leaves_lets_go() -> None:
    backend: Any = SimpleNamespace(compile=lambda constraint: WatchedMatcher())
    processors = LogitsProcessors([build(GrammarCompiler(lambda: backend))], 1)
    sampling = SamplingParams(constraint=Constraint(kind=REGEX, text="a"))
    before = len(WatchedMatcher.living)
    processors.update(StepPlan(number=1, joins=[join([1], sampling)]))
    assert len(WatchedMatcher.living) == before + 2, "that of the row, and the one that it copied"
    processors.update(StepPlan(number=2, leaves=[0]))
    assert len(WatchedMatcher.living) == before + 1


class FailedMatcher(WatchedMatcher):
    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def copy(self) -> FailedMatcher:
        return FailedMatcher(self.error)


@pytest.mark.parametrize(
    ("error", "status", "remedy", "times"),
    [
        (STUCK, 400, "exclude", 1),
        ("parser error: Too many items (limit 10000; mask)", 400, "left-recursive", 2),
        ("lexer error: too many states: 20001 >= 20000", 503, "try again", 2),
        ("parser error: fuel", 400, "maxLength", 2),
        ("lexer error: too many expressions constructed", 503, "try again", 2),
        (f"{LIBRARY_FAILED}: assertion failed", 500, LIBRARY_FAILED, 2),
        (f"{LIBRARY_FAILED}: of a lock: PoisonError {{ .. }}", 503, "try again", 2),
    ],
)
def test_a_grammar_is_compiled_anew_where_it_is_to_blame(
    error: str, status: int, remedy: str, times: int
) -> None:
    compiled: list[Constraint] = []

    def compile_constraint(constraint: Constraint) -> FailedMatcher:
        compiled.append(constraint)
        return FailedMatcher(error)

    backend: Any = SimpleNamespace(compile=compile_constraint)
    compiler = GrammarCompiler(lambda: backend)
    constraint = Constraint(kind=REGEX, text="a")
    processor = build(compiler)
    processor.joined(0, join([1], SamplingParams(constraint=constraint)))
    stuck = processor.why_stuck(0)
    assert stuck is not None and stuck[0] == status
    assert (error in stuck[1] or status == 503) and remedy in stuck[1]
    compiler.matcher(constraint)
    assert len(compiled) == times
