"""Masks what a grammar forbids, before a token is drawn."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby, takewhile

import numpy as np
from torch import Tensor

from vivace.errors import StepRefused
from vivace.grammar.backend import (
    GrammarError,
    GrammarMatcher,
    LibraryFault,
    PlacedMatcher,
    is_shared,
)
from vivace.grammar.compiled import Key, content_key
from vivace.grammar.compiler import GrammarCompiler
from vivace.grammar.joint_matcher import STUCK
from vivace.grammar.masks import mask_words
from vivace.grammar.next_masks import NextMasks
from vivace.grammar.replay import SLICE, follow, replay
from vivace.grammar.stuck_answers import NO_ROOM, explain_stuck
from vivace.platforms.host import HOST, download, upload
from vivace.platforms.ops.sampling import SamplingOps, TokenMasks
from vivace.platforms.rows import TokensByRow
from vivace.protocol.constraints import Constraint
from vivace.protocol.step import Join
from vivace.protocol.tasks import GENERATE
from vivace.sampling.processors import Entries, Histories

TOGETHER = 8, 1
"""rows that get copies of another matcher when theirs have come to a limit; the second time"""
MOST_RENEWALS = len(TOGETHER)
"""of a row: at the next limit it is alone, and to blame"""
RENEWALS_OF_A_STEP = 2
"""for rows that are at a limit again with the matcher that they got, or had no room at first"""
MOST_MADE = 100_000
"""costs of matchers that are made in a step for that: 50 ms; or that of a single one"""
MOST_REPLAYED = 20_000
"""tokens of answers in a step for that, 4 to 20 microseconds each, since a new lexer knows none of
their states; or those of a single one"""
MOST_ALONE = 64
"""rows with one of their own at a time: each takes tens of megabytes when it comes to a limit"""
MOST_FORCED = 11
"""tokens at once: with the one that was drawn a step of one row is still a replay of single tokens
(`REPLAYED_TOKENS`)"""
NOTHING = 0
"""mask behind a draft that may not stand where it does: whatever it is, it is refused then, so that
one that only a limit met by its copy forbids is tried again as what the row has drawn"""


@dataclass
class ConstrainedRow:
    """Where the answer of a row stands, and what it obeys."""

    constraint: Constraint
    future: Future[GrammarMatcher]
    prompt: int
    """tokens in front of the answer"""
    answer: array[int]
    """what it has of it"""
    stops: frozenset[int] | None
    """what it draws even where nothing else may follow, since it may be masked; None: it draws all
    of its tokens"""
    greedy: bool
    """it takes its best token, and nothing else is wanted of that"""
    obeying: bool = False
    """its last best token might follow without a mask"""
    renewals: int = 0
    """how often it got another matcher"""
    found: GrammarMatcher | None = None
    """what the future has brought, or the renewed one"""

    @property
    def known(self) -> int:
        """tokens of the row, its prompt among them"""
        return self.prompt + len(self.answer)

    @property
    def matcher(self) -> GrammarMatcher:
        if self.found is None:
            self.found = self.future.result()
        return self.found

    @property
    def content(self) -> Key:
        return content_key(self.constraint)

    @property
    def at_limit(self) -> bool:
        """Not known of one that is still built."""
        return (self.found is not None or self.future.done()) and is_shared(self.matcher.error)

    def go_on(self, tokens: list[int]) -> None:
        self.matcher.accept(tokens)
        self.answer.extend(tokens)


class GrammarLogitsProcessor:
    """json_schema, regex, ebnf, structural_tag. What a row has drawn its matcher has accepted; a
    copy goes on over drafts. A row that joins again behind a long answer goes on with the matcher
    that it had, or is built from its tokens, beside the steps that do not draw for it yet.

    Tokens that alone may follow a row knows without a draw: what it draws behind them is the same.
    Not where more is wanted of each token than what it is.

    What a greedy row draws is the same with its mask and without where the grammar allows its best
    token, and to try one token takes a fraction of what a mask takes. While it obeys no masks are
    filled for it; one that did not gets its next mask ahead of time.
    """

    def __init__(
        self,
        ops: SamplingOps,
        history: Histories,
        compiler: GrammarCompiler,
        *,
        forces: bool = True,
        tries: bool = True,
    ) -> None:
        """`forces`: whether rows know what is forced; `tries`: whether greedy rows try tokens"""
        self.host_state = self
        self._ops, self._history, self._compiler = ops, history, compiler
        self._forces = forces
        self._tries = tries and history.tokens.device == HOST and not history.drafts
        self._rows: dict[int, ConstrainedRow] = {}
        self._masks = NextMasks(compiler.fill)
        self._replays = ThreadPoolExecutor(1, thread_name_prefix="replays")

    def joined(self, row: int, join: Join) -> bool:
        self._masks.drop(row)
        constraint = join.sampling.constraint
        if constraint is None:
            return False
        answer = join.tokens[join.prompt :]
        alone = join.logprobs is None and join.task == GENERATE
        self._rows[row] = ConstrainedRow(
            constraint=constraint,
            future=self._find_matcher(constraint, answer),
            prompt=join.prompt,
            answer=array("i", answer),
            stops=frozenset(join.stop_ids) if self._forces and alone else None,
            greedy=self._tries and alone and join.sampling.temperature == 0.0,
        )
        return True

    def _find_matcher(self, constraint: Constraint, tokens: list[int]) -> Future[GrammarMatcher]:
        found: Future[GrammarMatcher] = Future()
        if (matcher := self._compiler.matcher_cache.take(constraint, tokens)) is None:
            try:
                matcher = self._compiler.matcher(constraint)
            except (GrammarError, LibraryFault) as error:
                raise StepRefused(f"{constraint.field or constraint.kind}: {error}") from error
            if len(tokens) > SLICE:
                return self._replays.submit(go_on, matcher, tokens)
            matcher = go_on(matcher, tokens)
        found.set_result(matcher)
        return found

    def left(self, row: int) -> None:
        """For good, or to join again."""
        gone = self._rows.pop(row)
        if len(gone.answer) > SLICE and gone.future.done():
            self._masks.wait()
            self._compiler.matcher_cache.keep(gone.constraint, gone.answer, gone.matcher)

    def apply(self, logits: Tensor, entries: Entries, places: np.ndarray) -> TokenMasks | None:
        places = self._find_masked(logits, entries, places)
        if not len(places):
            return None
        index = upload(places, logits.device)
        picked = entries.select(places, index)
        matchers = {row: self._rows[row].matcher for row in picked.host_rows.tolist()}
        take = partial(self._take, rows=picked.host_rows, words=mask_words(logits.shape[1]))
        masks, stuck = take(matchers)
        for _ in range(RENEWALS_OF_A_STEP):
            if not stuck:
                break
            matchers |= self._renew(stuck, matchers)
            masks, stuck = take(matchers)
        masks = self._with_drafts(picked, masks)
        return TokenMasks(entries=index, bits=upload(masks, logits.device))

    def _take(
        self, matchers: Mapping[int, GrammarMatcher], rows: np.ndarray, words: int
    ) -> tuple[np.ndarray, list[int]]:
        """Masks, and which matchers have come to a limit that they share. Threads decide who does
        so first, with all behind it: here everybody does, so that ranks have the same."""
        masks = self._masks.take(matchers, rows, words)
        if not (alike := {one.content for one in self._rows.values() if one.at_limit}):
            return masks, []
        for row, state in self._rows.items():
            if state.content in alike:
                self._masks.drop(row)
        masks = self._masks.take(matchers, rows, words)
        return masks, [row for row in matchers if self._rows[row].at_limit]

    def _renew(
        self, stuck: Sequence[int], matchers: Mapping[int, GrammarMatcher]
    ) -> dict[int, GrammarMatcher]:
        """Of rows whose matchers have come to a limit. That counts what all copies have found out
        together: few rows go on with copies of another one, and at the next limit each alone."""
        alone = sum(state.renewals == MOST_RENEWALS for state in self._rows.values())
        most = MOST_RENEWALS if alone < MOST_ALONE else 1
        alike: dict[tuple[Key, int], list[int]] = {}
        for row in stuck:
            state = self._rows[row]
            if state.renewals < most:
                alike.setdefault((state.content, state.renewals), []).append(row)
        groups = [
            rows[place : place + TOGETHER[renewals]]
            for (_, renewals), rows in alike.items()
            for place in range(0, len(rows), TOGETHER[renewals])
        ]
        found: dict[int, GrammarMatcher] = {}
        for rows in self._find_fitting(groups, matchers):
            found |= self._begin_again(rows, matchers[rows[0]])
        for constraint in {self._rows[row].constraint for row in found}:
            row = next(row for row in found if self._rows[row].constraint == constraint)
            self._compiler.forget(constraint, found[row].fresh())
        return found

    def _find_fitting(
        self, groups: Sequence[Sequence[int]], matchers: Mapping[int, GrammarMatcher]
    ) -> Iterator[list[int]]:
        """The rows of each for which there is time in a step; for one there always is."""
        work, room, known = MOST_MADE, MOST_REPLAYED, set[Key]()
        for rows in groups:
            content = self._rows[rows[0]].content
            cost = matchers[rows[0]].cost * (1 if content in known else 2)  # one for who comes next
            if cost > work and known:
                continue
            fitting: list[int] = []
            for row in rows:
                length = len(self._rows[row].answer)
                if length <= room or not (fitting or known):
                    room -= length
                    fitting.append(row)
            if fitting:
                work -= cost
                known.add(content)
                yield fitting

    def _begin_again(self, rows: Sequence[int], stuck: GrammarMatcher) -> dict[int, GrammarMatcher]:
        """Their matchers behind their answers, where these may go on."""
        found: dict[int, GrammarMatcher] = {}
        start = stuck.fresh()
        for row in rows:
            state = self._rows[row]
            state.renewals += 1
            matcher = start and start.copy()
            if matcher is not None and replay(matcher, state.answer) == len(state.answer):
                found[row] = matcher
                state.found = matcher
                self._masks.drop(row)
        return found

    def _find_masked(self, logits: Tensor, entries: Entries, places: np.ndarray) -> np.ndarray:
        """Those whose best token may not follow, or is not what they draw."""
        rows = [self._rows[row] for row in entries.host_rows[places].tolist()]
        if not any(row.greedy for row in rows):
            return places
        self._masks.wait()
        best, bad = (found.tolist() for found in self._ops.argmax(logits))
        for row, place in zip(rows, places.tolist(), strict=True):
            row.obeying = row.greedy and not bad[place] and row.matcher.allows(best[place])
        return places[[not row.obeying for row in rows]]

    def landed(self, drawn: TokensByRow, *, at_once: bool) -> TokensByRow:
        self._masks.wait()
        forced: dict[int, list[int]] = {}
        for row, tokens in drawn.items():
            state = self._rows[row]
            state.go_on(tokens)
            self._masks.drop(row)
            if at_once and (found := self._find_forced(state)):
                state.go_on(found)
                forced[row] = found
        behind = {row: self._rows[row] for row in drawn}
        self._masks.begin({row: one.matcher for row, one in behind.items() if not one.obeying})
        return forced

    def _find_forced(self, row: ConstrainedRow) -> list[int]:
        """As many as the row has room for."""
        if (stops := row.stops) is None or not (found := row.matcher.forced()):
            return []
        room = self._history.tokens.shape[1] - 1 - self._history.drafts - row.known
        tokens = takewhile(lambda token: token not in stops, found)
        return list(tokens)[: min(room, MOST_FORCED)]

    def why_stuck(self, row: int) -> tuple[int, str] | None:
        self._masks.wait()
        state = self._rows[row]
        error = state.matcher.error
        if not error:
            return None
        constraint = state.constraint
        if error != STUCK:  # of that the answer is to blame
            self._compiler.forget(constraint)
        own = not is_shared(error) or (
            state.renewals == MOST_RENEWALS and (state.matcher.cost > 0 or self._alone(state))
        )
        status, told = explain_stuck(error) if own else (503, NO_ROOM)
        return status, f"{constraint.field or constraint.kind}: {told}"

    def _alone(self, row: ConstrainedRow) -> bool:
        return sum(one.content == row.content for one in self._rows.values()) == 1

    def _with_drafts(self, entries: Entries, masks: np.ndarray) -> np.ndarray:
        """Those masks; where entries stand behind drafts a copy that has theirs."""
        drafts = self._drafts(entries)
        if not any(drafts):
            return masks
        masks = masks.copy()
        behind: list[PlacedMatcher] = []
        rows = entries.host_rows.tolist()
        content = [self._rows[row].content for row in rows]
        for row, lines in groupby(enumerate(drafts), lambda line: rows[line[0]]):
            branches = DraftBranches(self._rows[row].matcher)
            for place, line in lines:
                if not line:
                    continue
                matcher = branches.follow(tuple(line))
                if matcher is None:
                    masks[place] = NOTHING
                else:
                    behind.append((matcher.copy(), place))
        self._compiler.fill(behind, masks)
        alike = {content[place] for one, place in behind if is_shared(one.error)}
        for _, place in behind:
            if content[place] in alike:
                masks[place] = NOTHING  # as in `_take`
        return masks

    def _drafts(self, entries: Entries) -> list[list[int]]:
        """What stands between the known tokens and each entry."""
        if not self._history.drafts:
            return [[]] * len(entries)
        positions = download(entries.positions)
        known = np.array([self._rows[row].known for row in entries.host_rows.tolist()])
        if not (positions > known).any():
            return [[]] * len(entries)
        tokens, rows = self._history.tokens, entries.rows
        if entries.paths is not None:
            tokens, rows = entries.paths.read_tokens(tokens, rows, entries.positions)
        found = download(tokens.index_select(0, rows))
        return [
            line[start:end].tolist()
            for line, start, end in zip(found, known, positions, strict=True)
        ]


def go_on(matcher: GrammarMatcher, tokens: list[int]) -> GrammarMatcher:
    return follow(matcher, tokens) or matcher  # whose next mask fails


class DraftBranches:
    """Where a row would stand behind its drafts, in the order in which they stand: each behind
    those that lead to it."""

    def __init__(self, matcher: GrammarMatcher) -> None:
        self._found: dict[tuple[int, ...], GrammarMatcher | None] = {(): matcher}

    def follow(self, drafts: tuple[int, ...]) -> GrammarMatcher | None:
        """None where one of them may not stand."""
        if drafts not in self._found:
            before = self.follow(drafts[:-1])
            behind = before and before.copy()
            if behind is not None and not behind.accept([drafts[-1]]):
                behind = None
            self._found[drafts] = behind
        return self._found[drafts]
