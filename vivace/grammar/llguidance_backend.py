"""llguidance: grammars become masks lazily, within limits of its own (fuel for each step)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from vivace.config.time_slices import yield_often
from vivace.grammar.backend import (
    LIBRARY_FAILED,
    GrammarError,
    GrammarMatcher,
    JsonFormat,
    LibraryFault,
    PlacedMatcher,
    TokenVocabulary,
)
from vivace.grammar.joint_matcher import JointMatcher, first_error
from vivace.grammar.masks import mask_words
from vivace.grammar.schema_numbers import coefficient
from vivace.grammar.source import GrammarDialect, explain, translate
from vivace.grammar.stuck_answers import explain_stuck
from vivace.protocol.constraints import EBNF, Constraint

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer


@dataclass(frozen=True)
class SizeLimits:
    """`symbols`: of a grammar; `fuel`: work on its expressions before the first token."""

    symbols: int
    fuel: int


SIZES = SizeLimits(symbols=200_000, fuel=200_000)
"""With the library's million fuel `😀{100000}` takes a second here, and one where it is tried."""
QUICK_SIZES = tuple(SizeLimits(symbols=2000, fuel=fuel) for fuel in (2000, 6000, 20_000, 50_000))
QUICK_CHARACTERS = 4096
QUICK_COST = 60_000
"""What may be made in a step: most take 1 ms, the largest 30. By sizes, since ranks have to do the
same."""
COST_OF_REMAINDER = 8
"""of each that a number may leave: `multipleOf` has a state for it, which takes no fuel"""
MAX_LEXER_STATES = 20_000
"""of a matcher and its copies together, 1 to 2 KB each"""
MULTIPLE_OF = re.compile(r'multipleOf\\*"\s*:\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)')
"""in the text of a grammar, which may stand in a string of another one"""
MAX_POWER = 9
PANIC = "panic: "
"""of the library, which it catches; a line of what was wrong and its backtrace follow"""
CHARACTER = r'[^"\\\x00-\x1F\x7F\u2028\u2029]'
"""that both strings and `.` of a schema's pattern have"""
SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{CHARACTER}{{1,{most}}}" for most in (6, 8, 10, 12, 15, 20, 30)),
    f"{CHARACTER}+",
)
"""Tokens of one of these the library lets follow together where any text of it may. It would have
those of 10 and 30 characters by itself; the others halve what the end of a bounded string takes."""
MOST_UNFUELED = 128
"""tokens that matchers of one lexer accept together until one has a mask: only with that does the
library give the lexer its fuel again, and a row that draws what it likes best may need none"""
NOTHING_FITS = "NoExtensionBias"
"""is the error of a matcher whose mask would be empty"""


OF_SCHEMAS = 2000, 50_000
"""ways to go on that a matcher may see, at one place (500 optional properties have 2000), and while
it fills one mask"""
OF_GRAMMARS = 500, 10_000
"""Ambiguous ones have ever more, and a mask takes the square of that: with 2000 half a second."""


class LLGuidanceBackend:
    """`LLMatcher`s of one vocabulary. What it knows of the vocabulary takes a tenth of a second or
    more to make, so it is made when the first grammar comes. `threads`: that fill
    masks; None: most of the cores. `translator`: `translate` of source.py, by a process."""

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        form: JsonFormat,
        threads: int | None = None,
        translator: Callable[[Constraint], list[str]] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._threads = threads
        self._executor: LLExecutor | None = None
        dialect = GrammarDialect(form, vocabulary.special_texts)
        self._translate = translator or partial(translate, dialect=dialect)
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._tokenizer: LLTokenizer | None = None

    def compile(self, constraint: Constraint) -> GrammarMatcher:
        grammars = self._translate(constraint)
        with yield_often():
            return self.build(constraint, grammars, renews=True)

    def build(
        self, constraint: Constraint, grammars: Sequence[str], *, renews: bool = False
    ) -> GrammarMatcher:
        """Of the constraint's translation. `renews`: it may say what `fresh` costs, and has it.
        Raises GrammarError, LibraryFault."""
        mask = np.zeros(mask_words(len(self._vocabulary.tokens)), np.int32)
        tokenizer = self._tokenizer = self._tokenizer or _tokenizer(self._vocabulary)
        makers = [partial(_match, tokenizer, grammar, constraint.kind) for grammar in grammars]
        matchers = [
            LLGuidanceMatcher(
                make(SIZES), _find_quick(make, grammar) if renews else SharedLexer(), self._eos_ids
            )
            for make, grammar in zip(makers, grammars, strict=True)
        ]
        matcher = matchers[0] if len(matchers) == 1 else JointMatcher(matchers)
        matcher.fill(mask)  # what is only found at the first step belongs to the request, too
        tried = [one.copy() for one in matchers]
        for one in tried:
            one.accept(one.forced()[:1])  # of a constant, which may be too long
        if (error := first_error(matchers)).startswith(LIBRARY_FAILED):
            raise LibraryFault(f"{error}; write it in other words")
        if error and error != NOTHING_FITS:
            raise GrammarError(explain(constraint, error))
        if (error := first_error(tried)) and error != NOTHING_FITS:
            raise GrammarError(explain_stuck(error)[1])
        if not mask.any():
            raise GrammarError("nothing can ever obey it")
        return matcher

    def fill(self, matchers: Sequence[PlacedMatcher], masks: np.ndarray) -> None:
        from llguidance import LLExecutor

        own: list[tuple[LLGuidanceMatcher, int]] = []
        for matcher, place in matchers:
            if isinstance(matcher, LLGuidanceMatcher):
                own.append((matcher, place))
            else:
                matcher.fill(masks[place])
        if not own:  # which the library refuses
            return
        if self._executor is None:
            self._executor = LLExecutor(self._threads)
        rows, row_bytes = len(masks), masks[:1].nbytes
        handles = [(matcher.handle, place) for matcher, place in own]
        self._executor.unsafe_compute_mask_ptr(handles, masks.ctypes.data, row_bytes, rows)
        for matcher, place in own:
            matcher.clear_if_stuck(masks[place])


@dataclass
class SharedLexer:
    """Of a matcher and its copies."""

    make: Callable[[], LLMatcher] | None = None
    """another matcher of the grammar, with one of its own; None: that takes long"""
    cost: int = 0
    """of that"""
    unfueled: int = 0
    """tokens that they have accepted since it got fuel"""


class LLGuidanceMatcher:
    """`LLMatcher` refuses the end where it has stopped by itself: here it may follow, and more."""

    def __init__(self, matcher: LLMatcher, lexer: SharedLexer, eos_ids: frozenset[int]) -> None:
        self.handle, self._lexer, self._eos_ids = matcher, lexer, eos_ids

    @property
    def ended(self) -> bool:
        return self.handle.is_stopped()

    @property
    def error(self) -> str:
        if not self.handle.is_error():
            return ""
        said = self.handle.get_error().removesuffix("\n<non-verbose/>")
        if not said.startswith(PANIC):
            return said
        return f"{LIBRARY_FAILED}: {said.removeprefix(PANIC).splitlines()[0]:.200}"

    def fill(self, mask: np.ndarray) -> None:
        self.handle.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self.clear_if_stuck(mask)

    def clear_if_stuck(self, mask: np.ndarray) -> None:
        """Of one that took more than a limit: the library would let the answer end."""
        if self.handle.is_error():
            mask[:] = 0

    def allows(self, token: int) -> bool:
        """Of what has to follow the mask has one division into tokens only."""
        if self.ended:
            return token in self._eos_ids and not self.error
        if self.handle.validate_tokens([token]) != 1:
            return False
        forced = self.handle.compute_ff_tokens()
        return not forced or forced[0] == token

    def forced(self) -> list[int]:
        """As the mask has it, where the library knows what text follows: of its tokens the one that
        begins as the tokenizer would divide it."""
        tokens = self.handle.compute_ff_tokens()
        return list(takewhile(lambda token: token not in self._eos_ids, tokens)) if tokens else []

    def accept(self, tokens: list[int]) -> int:
        count = 0
        while count < len(tokens) and (
            taken := self._consume(tokens[count : count + MOST_UNFUELED])
        ):
            count += taken
        if count == len(tokens) or not self.ended or self.error:
            return count
        ends = takewhile(self._eos_ids.__contains__, tokens[count:])
        return count + sum(1 for _ in ends)

    def _consume(self, tokens: list[int]) -> int:
        count = self.handle.try_consume_tokens(tokens)
        self._lexer.unfueled += count
        if self._lexer.unfueled >= MOST_UNFUELED:
            self._lexer.unfueled = 0
            self.handle.compute_bitmask()
        return count

    def copy(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self.handle.deep_copy(), self._lexer, self._eos_ids)

    @property
    def cost(self) -> int:
        return self._lexer.cost

    def fresh(self) -> LLGuidanceMatcher | None:
        """The library's copies have one lexer, with what it knows and its limits."""
        made = self._lexer.make and self._lexer.make()
        if made is None or made.is_error():
            return None
        lexer = SharedLexer(self._lexer.make, self._lexer.cost)
        return LLGuidanceMatcher(made, lexer, self._eos_ids)


def parser_limits(kind: str, sizes: SizeLimits = SIZES) -> LLParserLimits:
    """Of a constraint."""
    from llguidance import LLParserLimits

    most_at_one_place, most_of_a_mask = OF_GRAMMARS if kind == EBNF else OF_SCHEMAS
    return LLParserLimits(
        max_items_in_row=most_at_one_place,
        step_max_items=most_of_a_mask,
        max_grammar_size=sizes.symbols,
        initial_lexer_fuel=sizes.fuel,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )


class _WrappedVocabulary:
    """A vocabulary as `LLTokenizer` asks for it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = list(vocabulary.special_ids)
        self.eos_token_id = vocabulary.eos_ids[0]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _match(tokenizer: LLTokenizer, grammar: str, kind: str, sizes: SizeLimits) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits(kind, sizes))


def _find_quick(make: Callable[[SizeLimits], LLMatcher], grammar: str) -> SharedLexer:
    """Others are made where that takes little, as is tried: with how little fuel there is one."""
    size = len(grammar) + COST_OF_REMAINDER * count_remainders(grammar[:QUICK_CHARACTERS])
    if len(grammar) <= QUICK_CHARACTERS and size <= QUICK_COST:
        for sizes in QUICK_SIZES:
            tried = _behind_mask(make, sizes)
            tried.try_consume_tokens(tried.compute_ff_tokens())  # of which a mask says nothing
            if not tried.is_error():
                return SharedLexer(partial(_behind_mask, make, SIZES), size + sizes.fuel)
    return SharedLexer()


def _behind_mask(make: Callable[[SizeLimits], LLMatcher], sizes: SizeLimits) -> LLMatcher:
    """Its first mask takes of the first fuel; only then has it got more, for all that comes."""
    made = make(sizes)
    if not made.is_error():
        made.compute_bitmask()
    return made


def count_remainders(grammar: str) -> int:
    """By all its `multipleOf`, at most: some of these may become a common multiple."""
    found = [coefficient(float(number)) for number in MULTIPLE_OF.findall(grammar)]
    most = max((places for _, places in found), default=0)
    wholes = [whole * 10 ** min(most - places, MAX_POWER) for whole, places in found]
    return len(found) * lcm(*filter(None, wholes))


def _tokenizer(vocabulary: TokenVocabulary) -> LLTokenizer:
    from llguidance import LLTokenizer

    words: Any = _WrappedVocabulary(vocabulary)
    return LLTokenizer(words, eos_token=list(vocabulary.eos_ids), slices=list(SLICES))
