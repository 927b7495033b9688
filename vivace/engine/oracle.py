"""A worker without a model that knows what every token and every KV slot has to be.

The token at position p of a sequence is `oracle_token(...)`, a pure function of the request's
sampling seed and p, so a client can compute the whole answer beforehand. The worker keeps a
simulated KV memory (`oracle_memory.py`). Each span re-reads the KV of everything before it, as far
as its cache groups reach; what is lost, doubled, foreign or stale raises OracleMismatch.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from vivace.engine.executor import CompletedStep
from vivace.engine.oracle_memory import REFUSED, OracleMemory, OracleMismatch
from vivace.engine.oracle_transfers import OracleTransfers
from vivace.protocol.messages import Capacity, LogprobOptions, PromptLogprobs, TokenLogprob
from vivace.protocol.step import ExecutorEvent, Join, StepPlan, StepResult
from vivace.protocol.tasks import EMBEDDING, GENERATE, HIDDEN_STATES, LAST, Embed, Payload
from vivace.protocol.workers import WorkerCommand, WorkerState

_MASK = (1 << 64) - 1

Draft = Callable[[int, int], int]
"""(seed of a request, position) -> the token that a drafter proposes there"""


def splitmix64(value: int) -> int:
    """One output of the splitmix64 generator (Steele, Lea, Flood 2014) for a 64-bit state."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def oracle_token(
    request_seed: int,
    position: int,
    vocabulary: int,
    *,
    seed: int = 0,
    eos_rate: float = 0.0,
    stop_ids: tuple[int, ...] = (),
    masked: bool = False,
) -> int:
    """The token the oracle draws for `position` (prompt positions count). With probability
    `eos_rate` it is the first stop id; `masked` (fewer than `min_new_tokens` were drawn) moves on
    to the next id that is no stop id."""
    word = splitmix64(splitmix64((seed ^ request_seed) & _MASK) ^ position)
    token = word % vocabulary
    if stop_ids and splitmix64(word) < eos_rate * 2.0**64:
        token = stop_ids[0]
    while masked and token in stop_ids:
        token = (token + 1) % vocabulary
    return token


def oracle_answer(
    request_seed: int,
    prompt_tokens: int,
    max_new_tokens: int,
    vocabulary: int,
    *,
    seed: int = 0,
    eos_rate: float = 0.0,
    stop_ids: tuple[int, ...] = (),
    min_new_tokens: int = 0,
    ignore_eos: bool = False,
) -> list[int]:
    """All output tokens of a request, the stop token included."""
    answer: list[int] = []
    while len(answer) < max_new_tokens:
        token = oracle_token(
            request_seed,
            prompt_tokens + len(answer),
            vocabulary,
            seed=seed,
            eos_rate=eos_rate,
            stop_ids=stop_ids,
            masked=len(answer) < min_new_tokens,
        )
        answer.append(token)
        if token in stop_ids and not ignore_eos:
            break
    return answer


class InjectedFault(RuntimeError):
    """A failure the test asked for."""


@dataclass(kw_only=True)
class Faults:
    """What should go wrong: the worker raises, or reports numbers gone bad."""

    raise_on_keys: set[int] = field(default_factory=set[int])
    """Any step with a span of one of these requests raises."""
    raise_on_steps: set[int] = field(default_factory=set[int])
    """The n-th step with spans that is run (from 0) raises, once."""
    bad_keys: set[int] = field(default_factory=set[int])
    """These requests' spans come back in `StepResult.bad`."""
    bad_drafts: set[int] = field(default_factory=set[int])
    """These do where they have drafts."""
    shorten_rate: float = 0.0
    """Share of the spans that come back with less than was planned, down to nothing."""
    ahead_rate: float = 0.0
    """Of those that draw, behind which up to five more tokens are known at once."""


class _Row:
    """One sequence as the worker sees it: what is known, where it stands, and its slots in every
    dense cache group. `hash`: of all computed tokens, which is also what a state has to be."""

    __slots__ = ("chain", "hash", "join", "position", "slots", "tokens")

    def __init__(self, join: Join, slots: list[list[int]]) -> None:
        self.join = join
        self.tokens = list(join.tokens)
        self.position = join.cached
        self.slots = slots
        self.chain: list[int] = []
        """what the KV of each position has to be"""
        self.hash = 0
        for token in self.tokens[: join.cached]:
            self.extend(token)

    def extend(self, token: int) -> int:
        self.hash = next_hash(self.hash, token)
        self.chain.append(self.hash)
        return self.hash


def next_hash(before: int, token: int) -> int:
    return splitmix64(before ^ (token + 1))


def hash_kv(tokens: list[int]) -> list[int]:
    """What the KV of these tokens, the first of a sequence, has to be."""
    return list(accumulate(tokens, next_hash, initial=0))[1:]


class OracleWorker:
    """The worker's side of protocol/step.py, checking the scheduler's side of it."""

    def __init__(
        self,
        capacity: Capacity,
        vocabulary: int,
        *,
        seed: int = 0,
        eos_rate: float = 0.0,
        faults: Faults | None = None,
        step_seconds: float = 0.0,
        draft: Draft | None = None,
    ) -> None:
        """`draft`: proposes the tokens that a decode span has behind the known one."""
        self._draft = draft
        self.memory = OracleMemory(capacity)
        self.transfers = OracleTransfers(self.memory)
        self.capacity = capacity
        self.vocabulary = vocabulary
        self.seed = seed
        self.eos_rate = eos_rate
        self.faults = faults or Faults()
        self.step_seconds = step_seconds
        self.steps = 0
        self.tokens_checked = 0
        self._rows: dict[int, _Row] = {}
        self._left: dict[int, int] = {}
        """row -> the state in which its last sequence left it"""
        self._pooled: dict[int, int] = {}
        """row -> how many tokens, from the first on, it has pooled"""

    def run(self, plan: StepPlan) -> CompletedStep:
        return CompletedStep(self.compute(plan))

    def compute(self, plan: StepPlan) -> StepResult:
        self._apply(plan)
        self.transfers.begin(plan)
        if not plan.rows:
            return StepResult(number=plan.number, advanced=[], tokens=[])
        self._inject(plan)
        result = StepResult(number=plan.number, advanced=[], tokens=[], seconds=self.step_seconds)
        if len(set(plan.rows)) != len(plan.rows):
            raise OracleMismatch(f"step {plan.number}: a row has two spans: {plan.rows}")
        for index, (row, count) in enumerate(zip(plan.rows, plan.counts, strict=True)):
            self._run_span(result, index, self._row(row), count)
        for save in plan.saves:
            self.memory.slots[save.group][save.page] = self._row(save.row).hash
        if self.step_seconds:
            time.sleep(self.step_seconds)
        return result

    def events(self) -> list[ExecutorEvent]:
        return [*self.transfers.events()]

    def control(self, command: WorkerCommand) -> WorkerState:
        return WorkerState(pid=os.getpid())

    def wake_with(self, ring: Callable[[], None]) -> None:
        self.transfers.ring = ring

    def end_transfer(self, ticket: int) -> None:
        self.transfers.end(ticket)

    def close(self) -> None:
        self._rows.clear()

    def _apply(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            left = self._rows.pop(row, None)
            if left is None:
                raise OracleMismatch(f"step {plan.number}: row {row} leaves but is empty")
            self._left[row] = left.hash
        for join in plan.joins:
            self._join(join)
        for grant in plan.grants:
            slots = self._row(grant.row).slots[grant.group]
            slots.extend(self.memory.find_slots(grant.pages, grant.group))
            self._check_length(grant.row, slots)
        self.memory.apply(plan)

    def _join(self, join: Join) -> None:
        if join.row in self._rows:
            raise OracleMismatch(f"request {join.key} joins row {join.row}, which is taken")
        if not 0 <= join.row < self.capacity.rows:
            raise OracleMismatch(f"request {join.key} joins row {join.row} of {self.capacity.rows}")
        slots = self.memory.row_slots(join)
        self._check_length(join.row, slots[0])
        fewest = min(len(slots[group]) for group in self.memory.dense)
        if not 0 <= join.cached < len(join.tokens) or fewest < join.cached:
            raise OracleMismatch(
                f"request {join.key}: {join.cached} cached of {len(join.tokens)} tokens, "
                f"{fewest} slots"
            )
        row = self._rows[join.row] = _Row(join, slots)
        self.memory.check_state(join, row.chain, self._left.get(join.row))

    def _check_length(self, row: int, slots: list[int]) -> None:
        longest = self.capacity.context + self.capacity.page_size
        if len(slots) > longest:
            raise OracleMismatch(f"row {row} has {len(slots)} slots, more than {longest}")

    def _row(self, row: int) -> _Row:
        if row not in self._rows:
            raise OracleMismatch(f"row {row} has work but nobody joined it")
        return self._rows[row]

    def _inject(self, plan: StepPlan) -> None:
        step, self.steps = self.steps, self.steps + 1
        if step in self.faults.raise_on_steps:
            self.faults.raise_on_steps.discard(step)
            raise InjectedFault(f"step {step} was told to fail")
        for row in plan.rows:
            key = self._row(row).join.key
            if key in self.faults.raise_on_keys:
                raise InjectedFault(f"request {key} was told to fail")

    def _run_span(self, result: StepResult, index: int, row: _Row, count: int) -> None:
        start, known, key = row.position, len(row.tokens), row.join.key
        span, end = f"request {key}: span {start}..{start + count}", min(start + count, known)
        has_drafts = end < start + count
        if count < 1 or end == start or (has_drafts and self._draft is None):
            raise OracleMismatch(f"{span} of {known} known tokens")
        self.tokens_checked += self.memory.check_prefix(key, row.slots, row.chain, start)
        granted = min(len(row.slots[group]) for group in self.memory.dense)
        if start + count > granted:
            raise OracleMismatch(f"{span} has no slot from {granted} on")
        if key in self.faults.bad_keys or (has_drafts and key in self.faults.bad_drafts):
            result.bad[index] = "logits contain NaN"
            result.advanced.append(0)
            result.tokens.append([])
            return
        drafts = self._draft_tokens(row, start + count - end)
        if self._happens(self.faults.shorten_rate, row, result.number):
            end -= splitmix64(result.number ^ key) % (end - start) + 1
            drafts = []
        self._write(row, start, end)
        if scored := self._prompt_logprobs(row, start, end):
            result.prompt_logprobs[index] = [scored]
        task = row.join.task
        if isinstance(task, Embed):
            self._pool(result, index, row, task, start)
            drawn = []
        else:
            drawn = self._verify(result, index, row, drafts) if end == known else []
            self._return_states(result, index, row, task.hidden_state_start, start)
        result.advanced.append(row.position - start)
        result.tokens.append(drawn)
        for position in range(row.position, start + count):
            self.memory.write(row.slots, position, REFUSED)

    def _pool(self, result: StepResult, index: int, row: _Row, task: Embed, start: int) -> None:
        """What a row has pooled stays with it while it joins again, as its states do."""
        number = row.join.row
        pooled = self._pooled.get(number, 0) if start else 0
        if task.pooling != LAST and pooled != start:
            raise OracleMismatch(f"request {row.join.key}: {pooled} of {start} tokens were pooled")
        self._pooled[number] = row.position
        if row.position == len(row.tokens):
            result.payloads[index] = pack_states(EMBEDDING, [row.hash])

    def _return_states(
        self, result: StepResult, index: int, row: _Row, wanted: int, start: int
    ) -> None:
        if wanted >= 0 and row.position > max(start, wanted):
            states = row.chain[max(start, wanted) : row.position]
            result.payloads[index] = pack_states(HIDDEN_STATES, states)

    def _happens(self, rate: float, row: _Row, number: int) -> bool:
        return splitmix64(splitmix64(number) ^ row.join.key) < rate * 2.0**64

    def _draft_tokens(self, row: _Row, count: int) -> list[int]:
        """What is proposed for the next `count` positions behind the known ones, before any of
        them is drawn."""
        if self._draft is None:
            return []
        join, known = row.join, len(row.tokens)
        return [self._draft(join.sampling.seed, known + ahead) for ahead in range(count)]

    def _verify(self, result: StepResult, index: int, row: _Row, drafts: list[int]) -> list[int]:
        """Draw the token behind every draft that was itself what is drawn, and one more."""
        drawn = self._draw(result, index, row)
        for draft in drafts:
            if draft != drawn[-1]:
                break
            self._write(row, row.position, row.position + 1)
            drawn += self._draw(result, index, row)
        ahead = self._happens(self.faults.ahead_rate, row, ~result.number & _MASK)
        if ahead and row.join.task == GENERATE:
            for _ in range(1 + result.number % 5):
                drawn += self._draw(result, index, row)
        return drawn

    def _write(self, row: _Row, start: int, end: int) -> None:
        for position in range(start, end):
            self.memory.write(row.slots, position, row.extend(row.tokens[position]))
        row.position = end

    def _draw(self, result: StepResult, index: int, row: _Row) -> list[int]:
        join = row.join
        token = oracle_token(
            join.sampling.seed,
            len(row.tokens),
            self.vocabulary,
            seed=self.seed,
            eos_rate=self.eos_rate,
            stop_ids=join.stop_ids,
            masked=len(row.tokens) - join.prompt < join.sampling.min_new_tokens,
        )
        if join.logprobs is not None:
            scored = oracle_logprob(token, len(row.tokens), join.logprobs)
            result.logprobs.setdefault(index, []).append(scored)
        row.tokens.append(token)
        return [token]

    def _prompt_logprobs(self, row: _Row, start: int, end: int) -> PromptLogprobs | None:
        options = row.join.logprobs
        if options is None or options.start < 0:
            return None
        first = max(start + 1, options.start)
        positions = range(first, min(end + 1, row.join.prompt))
        scored = [oracle_logprob(row.tokens[position], position, options) for position in positions]
        return pack_logprobs(first, scored) if scored else None


def pack_states(kind: str, states: list[int]) -> Payload:
    """What stands for a vector here: the hash of all tokens up to it, as two numbers."""
    shape = (2,) if kind == EMBEDDING else (len(states), 2)
    return Payload(kind, "float32", shape, array("Q", states).tobytes())


def oracle_logprob(
    token: int, position: int, options: LogprobOptions | None = None
) -> TokenLogprob:
    """What the oracle reports for a token: recognizable, and different at every position. Every
    value fits float32."""
    logprob = -1.0 - position / 1024
    top = [(logprob - rank, max(0, token - rank)) for rank in range(options.top if options else 0)]
    chosen = [(logprob, one) for one in (options.token_ids if options else ())]
    return TokenLogprob(token, logprob, top or None, chosen or None)


def pack_logprobs(start: int, scored: list[TokenLogprob]) -> PromptLogprobs:
    """As a worker packs them."""
    tops = [pair for one in scored for pair in one.top or ()]
    chosen = [pair for one in scored for pair in one.chosen or ()]
    return PromptLogprobs(
        start=start,
        logprobs=array("f", [one.logprob or 0.0 for one in scored]).tobytes(),
        top=array("f", [logprob for logprob, _ in tops]).tobytes(),
        top_ids=array("i", [token for _, token in tops]).tobytes(),
        chosen=array("f", [logprob for logprob, _ in chosen]).tobytes(),
    )
