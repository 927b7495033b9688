"""Grammars that begin behind the thinking, and thinking that ends in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Protocol

import numpy as np

from vivace.grammar.backend import (
    GrammarBackend,
    GrammarError,
    GrammarMatcher,
    PlacedMatcher,
    TokenVocabulary,
)
from vivace.grammar.masks import has_bit, pack_mask, set_bit
from vivace.grammar.thinking_rule import THINKING, read_thinking_rule
from vivace.grammar.vocabulary import SpecialWords
from vivace.protocol.constraints import Constraint

SPACES = 2
"""tokens of white space that may stand between thinking and an answer"""


class ThinkingBackend:
    """A backend that knows thinking, too; the answers behind it are those of `backend`."""

    def __init__(self, backend: GrammarBackend, vocabulary: TokenVocabulary) -> None:
        self._backend = backend
        self._words = ThinkingVocabulary(vocabulary)

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        if constraint.kind != THINKING:
            return self._backend.compile(constraint)
        rule = read_thinking_rule(constraint.text)
        if rule.budget is not None and not self._words.can_end(rule.end):
            raise GrammarError(f"no tokens of the model are {rule.end!r}, which ends thinking")
        answer = self._backend.compile(rule.answer) if rule.answer else self._words.any_answer
        closing = self._words.closing(rule.end) if rule.answer is not None else ()
        avoided = [text for text in rule.avoided if closing or text not in rule.end]
        plan = ThinkingPlan(
            words=self._words,
            begin=rule.begin.encode(),
            end=rule.end.encode(),
            budget=rule.budget,
            closing=closing,
            free=self._words.mask(avoided, ends=rule.answer is None),
            spaces=self._words.spaces,
            pure=self._words.pure(rule.end.encode()) if rule.answer is not None else (),
        )
        start = partial(plan.start, inside=rule.inside)
        return ThinkingMatcher(start, start(answer), answer)

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        answers: list[PlacedMatcher] = []
        for matcher, place in matchers:
            deciding = matcher.deciding if isinstance(matcher, ThinkingMatcher) else matcher
            if isinstance(deciding, ThinkingMatcher | AnyAnswer):
                deciding.fill(masks[place])
            else:
                answers.append((deciding, place))
        if answers:
            self._backend.fill(answers, masks)


class ThinkingVocabulary:
    """Tokens and masks as thinking needs them."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self._vocabulary = vocabulary
        self._special = SpecialWords(vocabulary.special_texts)
        self.tokens = vocabulary.tokens
        self.pure = lru_cache(4)(self._find_pure)

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, special ones among them."""
        found: list[int] = []
        for part in self._special.split(text):
            found += [part] if isinstance(part, int) else self._vocabulary.encode(part)
        return found

    def closing(self, end: str) -> tuple[int, ...]:
        """What ends thinking, if a special token begins it and others follow: behind that one they
        do. Empty where none does."""
        ids = self.ids(end)
        special = isinstance(self._special.split(end)[0], int)
        return tuple(ids) if special and len(ids) > 1 else ()

    def can_end(self, text: str) -> bool:
        """Whether tokens say it, and whatever is left of it behind its beginning."""
        rests = [text[place:] for place in range(len(text))]
        return all(b"".join(self.tokens[i] for i in self.ids(one)) == one.encode() for one in rests)

    def mask(self, avoided: Sequence[str], *, ends: bool) -> np.ndarray:
        """Every token but those that are one of the texts `avoided`; `ends`: and those that end an
        answer."""
        bits = np.ones(len(self.tokens), np.bool_)
        bits[[ids[0] for ids in map(self.ids, avoided) if len(ids) == 1]] = False
        bits[list(self._vocabulary.eos_ids)] = ends
        return pack_mask(bits)

    def _find_pure(self, end: bytes) -> Sequence[np.ndarray]:
        """By bytes of `end` that were said: all tokens but those with more than that and space. No
        others than its last one behind the rest, unless `closing` knows: `final <|constrain|>json`
        would be thought."""
        bits = np.ones((len(end), len(self.tokens)), np.bool_)
        near = [(i, text) for i, text in enumerate(self.tokens) if end[-1:] in text]
        spelled = [self.tokens[token] for token in self.ids(end.decode())]
        exact = b"".join(spelled) == end and not self.closing(end.decode())
        nearly = len(end) - len(spelled[-1]) if exact else 0
        for said, pure in enumerate(bits):
            parts = [(i, *text.partition(end[said:])) for i, text in near]
            ended = [(i, behind) for i, a, found, behind in parts if found and not (said and a)]
            pure[:] = not said or said != nearly
            pure[[i for i, _ in ended]] = [not behind.strip(b" \n") for _, behind in ended]
        return [*map(pack_mask, bits)]

    @cached_property
    def any_answer(self) -> GrammarMatcher:
        return AnyAnswer(self.mask((), ends=True))

    @cached_property
    def spaces(self) -> np.ndarray:
        """Tokens of white space."""
        return pack_mask(np.array([is_space(token) for token in self.tokens]))


def is_space(token: bytes) -> bool:
    return bool(token) and not token.strip(b" \n")


@dataclass(frozen=True, kw_only=True)
class ThinkingPlan:
    """What one request says; `closing`: the tokens that end thinking, if they follow the first;
    `free`: the mask of its thinking, `spaces`: of white space; `pure`: more of thinking, so that
    nothing of an answer is in the token that ends it."""

    words: ThinkingVocabulary
    begin: bytes
    end: bytes
    budget: int | None
    closing: tuple[int, ...]
    free: np.ndarray
    spaces: np.ndarray
    pure: Sequence[np.ndarray]

    @cached_property
    def begin_ids(self) -> tuple[int, ...]:
        return tuple(self.words.ids(self.begin.decode()))

    def start(self, answer: GrammarMatcher, *, inside: bool) -> ThinkingPhase:
        return self.think(0, b"") if inside else BeforeThinking(self, answer.copy())

    def think(self, count: int, tail: bytes) -> ThinkingPhase:
        """Behind `count` tokens of thinking that end with `tail`."""
        if self.budget is None or count < self.budget:
            return OpenThinking(self, count, tail)
        end = self.end.decode()
        said = next(n for n in range(len(end) - 1, -1, -1) if tail.endswith(end[:n].encode()))
        return ThinkingEnd(self, tuple(self.words.ids(end[said:])))


class ThinkingPhase(Protocol):
    """Where an answer stands until its own grammar alone decides. Phases do not change."""

    @property
    def plan(self) -> ThinkingPlan: ...

    def fill(self, mask: np.ndarray, answer: GrammarMatcher) -> None:
        """As `GrammarMatcher.fill`; `answer`: the grammar of the answer, at its start."""
        ...

    def follow(self, token: int, answer: GrammarMatcher) -> ThinkingPhase | AnswerStart | None:
        """Where it stands behind a token; None where that may not follow."""
        ...


@dataclass(frozen=True)
class AnswerStart:
    """The answer has, and stands there."""

    answer: GrammarMatcher


@dataclass(frozen=True)
class BeforeThinking:
    """What was `said` may become what begins thinking; or it is the answer, which stands at `trial`
    then."""

    plan: ThinkingPlan
    trial: GrammarMatcher | None
    given: tuple[int, ...] = ()
    said: bytes = b""

    def fill(self, mask: np.ndarray, answer: GrammarMatcher) -> None:
        mask[:] = 0
        if self.trial is not None:
            self.trial.fill(mask)
        known, begin = len(self.given), self.plan.begin_ids
        if known < len(begin) and self.given == begin[:known]:
            set_bit(mask, begin[known])

    def follow(self, token: int, answer: GrammarMatcher) -> ThinkingPhase | AnswerStart | None:
        said = self.said + self.plan.words.tokens[token]
        trial = self.trial and self.trial.copy()
        if trial is not None and not (trial.accept([token]) or trial.error):
            trial = None
        if said.lstrip().startswith(self.plan.begin):
            thought, ended, behind = said.lstrip()[len(self.plan.begin) :].partition(self.plan.end)
            if ended:
                return None if behind.strip(b" \n") else BehindThinking(self.plan)
            return self.plan.think(0, thought[max(0, len(thought) - len(self.plan.end) + 1) :])
        if self.plan.begin.startswith(said.lstrip()):
            return BeforeThinking(self.plan, trial, (*self.given, token), said)
        return None if trial is None else AnswerStart(trial)


@dataclass(frozen=True)
class OpenThinking:
    """`count` tokens of it; `tail`: their last bytes, which what ends it may begin with."""

    plan: ThinkingPlan
    count: int
    tail: bytes

    @property
    def mask(self) -> np.ndarray:
        masks, end = self.plan.pure, self.plan.end
        pure = [mask for said, mask in enumerate(masks) if self.tail.endswith(end[:said])]
        return np.bitwise_and.reduce([self.plan.free, *pure])

    def fill(self, mask: np.ndarray, answer: GrammarMatcher) -> None:
        mask[:] = 0
        mask[: len(self.plan.free)] = self.mask

    def follow(self, token: int, answer: GrammarMatcher) -> ThinkingPhase | None:
        if not has_bit(self.mask, token):
            return None
        if token in self.plan.closing[:1]:
            return ThinkingEnd(self.plan, self.plan.closing[1:])
        text, end = self.tail + self.plan.words.tokens[token], self.plan.end
        if end in text:
            return BehindThinking(self.plan)
        return self.plan.think(self.count + 1, text[max(0, len(text) - len(end) + 1) :])


@dataclass(frozen=True)
class ThinkingEnd:
    """The budget is spent: what ends thinking has to come, these tokens."""

    plan: ThinkingPlan
    tokens: tuple[int, ...]

    def fill(self, mask: np.ndarray, answer: GrammarMatcher) -> None:
        mask[:] = 0
        set_bit(mask, self.tokens[0])

    def follow(self, token: int, answer: GrammarMatcher) -> ThinkingPhase | None:
        if token != self.tokens[0]:
            return None
        rest = self.tokens[1:]
        return ThinkingEnd(self.plan, rest) if rest else BehindThinking(self.plan)


@dataclass(frozen=True)
class BehindThinking:
    """Nothing of the answer is there yet."""

    plan: ThinkingPlan
    spaces: int = SPACES

    def fill(self, mask: np.ndarray, answer: GrammarMatcher) -> None:
        answer.fill(mask)
        if self.spaces:
            mask[: len(self.plan.spaces)] |= self.plan.spaces

    def follow(self, token: int, answer: GrammarMatcher) -> ThinkingPhase | AnswerStart | None:
        begun = answer.copy()
        if begun.accept([token]) or begun.error:  # which it says then
            return AnswerStart(begun)
        if self.spaces and is_space(self.plan.words.tokens[token]):
            return BehindThinking(self.plan, self.spaces - 1)
        return None


ThinkingStart = Callable[[GrammarMatcher], ThinkingPhase]


class ThinkingMatcher:
    """A phase and, at its start, the grammar of the answer; or that alone."""

    def __init__(
        self, start: ThinkingStart, phase: ThinkingPhase | None, answer: GrammarMatcher
    ) -> None:
        """`start`: the first phase before an answer of that grammar"""
        self._start, self._phase, self._answer = start, phase, answer

    @property
    def deciding(self) -> GrammarMatcher:
        """The grammar of the answer, if it alone does."""
        return self._answer if self._phase is None else self

    @property
    def ended(self) -> bool:
        return self._phase is None and self._answer.ended

    @property
    def error(self) -> str:
        trial = self._phase.trial if isinstance(self._phase, BeforeThinking) else None
        return self._answer.error or (trial.error if trial else "")

    def fill(self, mask: np.ndarray) -> None:
        if self._phase is None:
            self._answer.fill(mask)
        else:
            self._phase.fill(mask, self._answer)

    def allows(self, token: int) -> bool:
        if self._phase is None:
            return self._answer.allows(token)
        mask = np.zeros_like(self._phase.plan.free)
        self._phase.fill(mask, self._answer)
        return has_bit(mask, token)

    def forced(self) -> list[int]:
        if self._phase is None:
            return self._answer.forced()
        return [*self._phase.tokens] if isinstance(self._phase, ThinkingEnd) else []

    def accept(self, tokens: list[int]) -> int:
        for count, token in enumerate(tokens):
            if self._phase is None:
                return count + self._answer.accept(tokens[count:])
            following = self._phase.follow(token, self._answer)
            if following is None:
                return count
            if isinstance(following, AnswerStart):
                self._phase, self._answer = None, following.answer
            else:
                self._phase = following
        return len(tokens)

    def copy(self) -> ThinkingMatcher:
        return ThinkingMatcher(self._start, self._phase, self._answer.copy())

    @property
    def cost(self) -> int:
        return self._answer.cost

    def fresh(self) -> ThinkingMatcher | None:
        answer = self._answer.fresh()
        return ThinkingMatcher(self._start, self._start(answer), answer) if answer else None


class AnyAnswer:
    """No grammar: `mask` has every token."""

    ended, error, cost = False, "", 0

    def __init__(self, mask: np.ndarray) -> None:
        self._mask = mask

    def fill(self, mask: np.ndarray) -> None:
        mask[:] = 0
        mask[: len(self._mask)] = self._mask

    def allows(self, token: int) -> bool:
        return has_bit(self._mask, token)

    def forced(self) -> list[int]:
        return []

    def accept(self, tokens: list[int]) -> int:
        return len(tokens)

    def copy(self) -> AnyAnswer:
        return self

    def fresh(self) -> AnyAnswer:
        return self
