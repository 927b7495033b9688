"""What a step takes: its budget of tokens, its columns, and the record of it while in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from vivace.engine.sequence import Sequence
from vivace.engine.sequence_pages import Pages
from vivace.engine.sequence_table import SequenceTable
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import LogprobOptions
from vivace.protocol.step import Grant, Join, Save, StepPlan, Transfer
from vivace.protocol.tasks import Generate, Task

MIN_CHUNK = 16
"""tokens: shorter chunks cost as much, and say nothing about the speed"""
FIRST_CHUNK = 64
"""tokens while no speed is known"""
MIN_SHARE = 4
"""prompt tokens of a decode step that a short prompt shares"""
_SHARE_DECODE_STEPS = 0.5
"""of a decode step that such a share may take"""
_CHUNK_DECODE_STEPS = 8
"""of the running streams' own steps that a chunk may take: prompts keep eight ninths of the time,
and few decode steps run with half a batch while many prompts arrive (with two, waves of 32 prompts
cost a fifth of the throughput)"""
_FULL_SHARE_STALL = 0.05
"""seconds: who asks for shorter stalls than the default gives up this share in proportion"""
_MAX_PROMPTS = 4
"""prompts that lengthen a chunk: where several wait, they are streams too"""
_MAX_SLOWER = 4
"""times slower that one step can make the prompts look: it may have been an accident"""


@dataclass(slots=True)
class StepBuilder:
    """A step while it is composed, in columns: chunks of prompts, then decode spans."""

    number: int
    pages: Pages
    chunks: list[Sequence] = field(default_factory=list[Sequence])
    counts: list[int] = field(default_factory=list[int])
    """parallel to `chunks`"""
    pairs: float = 0.0
    """of a token of the chunks and one that it attends to"""
    decodes: list[Sequence] = field(default_factory=list[Sequence])
    decode_counts: list[int] = field(default_factory=list[int])
    """parallel to `decodes`: the last known token and its drafts"""
    joins: list[Join] = field(default_factory=list[Join])
    grants: list[Grant] = field(default_factory=list[Grant])
    saves: list[Save] = field(default_factory=list[Save])
    ahead: int = 0
    """of `chunks`, the first ones: who decodes, and had several tokens known at once"""
    admitted: int = 0
    """sequences that entered a row for this step"""
    num_cached_tokens: int = 0
    """their tokens found in the prefix cache"""
    reserved: int = 0
    """tokens they were promised beyond the pages they hold"""
    undrafted: list[int] = field(default_factory=list[int])
    """as in `StepPlan`"""
    on_trial: bool = False
    """those of a step that failed run once more (`FaultBisection`)"""

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)

    @property
    def chunk_tokens(self) -> int:
        """of prompts"""
        return sum(self.counts[self.ahead :])

    @property
    def num_sequences(self) -> int:
        return len(self.chunks) + len(self.decodes)

    def add_chunk(self, sequence: Sequence, count: int, grants: list[Grant]) -> None:
        """`count` tokens for a sequence that was just given `grants`."""
        if not sequence.joined:
            self.joins.append(new_join(sequence, self.pages))
            sequence.joined = True
        else:
            self.grants += grants
        self.pairs += count * (sequence.scheduled_len + count / 2)
        sequence.scheduled_len += count
        sequence.last_step = self.number
        self.chunks.append(sequence)
        self.counts.append(count)

    def add_decodes(self, sequences: list[Sequence], counts: list[int]) -> None:
        """A token and its drafts for each sequence; the lists are kept."""
        number, same = self.number, counts[0]
        if counts.count(same) == len(counts):  # so it is without drafts, and this is the hot path
            for sequence in sequences:
                sequence.scheduled_len += same
                sequence.last_step = number
        else:
            for sequence, count in zip(sequences, counts, strict=True):
                sequence.scheduled_len += count
                sequence.last_step = number
        self.decodes, self.decode_counts = sequences, counts

    def add_ahead(self, decoding: list[Sequence], table: SequenceTable) -> list[Sequence]:
        """Known tokens of those that have several which no step computes, as far as there are
        pages. Returns the others."""
        others: list[Sequence] = []
        table.ahead = len(decoding) < len(table.decoding)  # others may have some, too
        for sequence in decoding:
            known = count = sequence.prefill_len - sequence.scheduled_len
            if known > 1:
                count = self.pages.cut(sequence, self.pages.coverable(sequence, known))
            if count > 1:
                self.add_chunk(sequence, count, self.pages.cover(sequence, count))
                self.saves += self.pages.save_states(sequence)
                self.ahead += 1
                table.clients.charge(sequence.client, count)
            else:
                others.append(sequence)
            table.ahead |= count < known
        return others

    def apart(self) -> list[StepBuilder]:
        """The same work in several steps: one for all who may share it, then one for each suspect.
        If the engine dies in one of those, the heartbeat shows who did it. Rows are filled for all
        in the first."""
        spans = self.in_flight(0.0).spans()
        together = [span for span in spans if not span[0].suspect]
        groups = [[span] for span in spans if span[0].suspect]
        if together:
            groups.insert(0, together)
        steps = [self._part(self.number + index, spans) for index, spans in enumerate(groups)]
        first = steps[0]
        first.joins, first.grants = self.joins, self.grants
        first.admitted, first.num_cached_tokens = self.admitted, self.num_cached_tokens
        return steps

    def _part(self, number: int, spans: list[tuple[Sequence, int]]) -> StepBuilder:
        part, decoding = StepBuilder(number, self.pages, on_trial=self.on_trial), set(self.decodes)
        for sequence, count in spans:
            sequence.last_step = number
            decodes = sequence in decoding
            (part.decodes if decodes else part.chunks).append(sequence)
            (part.decode_counts if decodes else part.counts).append(count)
        rows = {sequence.row for sequence, _ in spans}
        part.saves = [save for save in self.saves if save.row in rows]
        return part

    def in_flight(self, now: float) -> InFlightStep:
        return InFlightStep(
            *(self.number, self.chunks, self.counts, self.pairs, self.decodes, self.decode_counts),
            *(self.ahead, self.on_trial, now),
        )

    def plan(
        self, rows_to_free: list[int], sends: list[Transfer], receives: list[Transfer]
    ) -> StepPlan:
        decodes = self.decodes
        return StepPlan(
            number=self.number,
            rows=[sequence.row for sequence in self.chunks] + [s.row for s in decodes],
            counts=self.counts + self.decode_counts,
            undrafted=self.undrafted,
            joins=self.joins,
            leaves=rows_to_free,
            grants=self.grants,
            saves=self.saves,
            sends=sends,
            receives=receives,
        )


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A step in flight: whose spans it computes, in the plan's order."""

    number: int
    chunks: list[Sequence]
    counts: list[int]
    pairs: float
    decodes: list[Sequence]
    decode_counts: list[int]
    ahead: int
    on_trial: bool
    planned: float
    """when, in seconds"""

    def spans(self) -> list[tuple[Sequence, int]]:
        return [
            *zip(self.chunks, self.counts, strict=True),
            *zip(self.decodes, self.decode_counts, strict=True),
        ]


def new_join(sequence: Sequence, pages: Pages) -> Join:
    """How a worker learns of a sequence: all that is known, and where its valid KV is."""
    assert sequence.lease is not None
    request = sequence.request
    return Join(
        row=sequence.row,
        key=sequence.key,
        tokens=sequence.tokens.copy(),
        prompt=sequence.num_prompt_tokens,
        cached=sequence.computed_len,
        pages=sequence.lease.pages.copy(),
        others=pages.others(sequence, sequence.computed_len),
        sampling=request.sampling,
        logprobs=_remaining_logprobs(sequence),
        stop_ids=sequence.stop_ids,
        cache_key=request.cache_key,
        task=_remaining_task(sequence),
    )


def _remaining_task(sequence: Sequence) -> Task:
    """Hidden states are sent once, not again after a retraction."""
    task = sequence.request.task
    if isinstance(task, Generate) and task.hidden_state_start >= 0:
        return Generate(sequence.hidden_state_start)
    return task


def _remaining_logprobs(sequence: Sequence) -> LogprobOptions | None:
    """Prompt positions are scored once, not again after a retraction."""
    options = sequence.request.logprobs
    if options is None or options.start < 0:
        return options
    start = sequence.logprob_start if sequence.logprob_start < sequence.num_prompt_tokens else -1
    return msgspec.structs.replace(options, start=start)


# --- how much a step may take ---------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """Tokens that chunks may still take in this step; None = no limit."""

    chunk: int | None
    prefill: int
    requests: int | None

    @property
    def open(self) -> bool:
        return self.chunk is None or self.chunk > 0

    def share(self, wanted: int) -> int:
        return wanted if self.chunk is None else min(wanted, self.chunk)

    def limit(self, tokens: int) -> None:
        self.prefill = min(self.prefill, tokens)
        if self.chunk is not None:
            self.chunk = min(self.chunk, tokens)

    def spend(self, count: int) -> None:
        self.prefill -= count
        if self.chunk is not None:
            self.chunk -= count


class DynamicChunk:
    """How many prompt tokens a step may take while others decode, or several clients have
    requests: a time, in tokens.

    Sarathi-Serve (Agrawal et al. 2024) bounds the pause of running streams by cutting prompts; here
    the cut follows from the speed that the scheduler has measured itself. A chunk beside running
    streams takes `stall` seconds for each of up to four prompts that wait, and eight of the
    streams' own steps, fewer when `stall` is shorter than its default.

    Steps, not a constant alone, because prompts need a share of the time that does not shrink
    while the batch grows. Times come from whole steps, so a token behind a long context or with
    log-probabilities counts as what it cost.
    """

    def __init__(self, stall: float) -> None:
        self.enabled = stall > 0
        """False: prompts come first, whatever waits for them"""
        self._stall = stall
        self._steps = _CHUNK_DECODE_STEPS * min(1.0, stall / _FULL_SHARE_STALL)
        self._token: float | None = None
        """seconds of a prompt token"""
        self._decodes: deque[float] = deque(maxlen=3)
        """seconds that decoding took in the last steps, or would have taken without their chunks"""

    def max_tokens(self, prompts: int) -> int | None:
        """Prompt tokens of a step that running streams wait for, while `prompts` have not got
        their first token; None = no limit."""
        if not self.enabled:
            return None
        if self._token is None:
            return FIRST_CHUNK
        stall = self._stall * max(1, min(prompts, _MAX_PROMPTS))
        seconds = stall + self._steps * self._decode_step()
        return max(MIN_CHUNK, int(min(seconds / max(self._token, 1e-9), 1 << 31)))

    def max_share(self) -> int:
        """Tokens of short prompts in a decode step, which they make half as long again."""
        if not self._token:
            return MIN_SHARE
        return max(MIN_SHARE, int(_SHARE_DECODE_STEPS * self._decode_step() / self._token))

    def observe(self, chunk: int, decodes: int, seconds: float) -> None:
        """A step with `chunk` prompt tokens and `decodes` decode tokens took `seconds`."""
        if decodes:
            self._decodes.append(self._without_chunk(chunk, decodes, seconds))
        if chunk >= MIN_CHUNK:
            self._learn(seconds / (chunk + decodes))

    def _without_chunk(self, chunk: int, decodes: int, seconds: float) -> float:
        """What is left of a step beyond its prompt tokens, and not less than steps took before."""
        if not chunk:
            return seconds
        token = self._token
        left = seconds * decodes / (chunk + decodes) if token is None else seconds - chunk * token
        return max(left, min(self._decode_step(), seconds))

    def _learn(self, token: float) -> None:
        """Slower counts at once, faster by and by: a chunk too short harms nobody."""
        known = self._token
        if known is None:
            self._token = token
        elif token > known:
            self._token = min(token, _MAX_SLOWER * known) if known else token
        else:
            self._token = (known + token) / 2

    def _decode_step(self) -> float:
        """The middle one of the last steps: an accident does not count."""
        decodes = sorted(self._decodes)
        return decodes[len(decodes) // 2] if decodes else 0.0


class NewTokenEstimate:
    """Whether one more sequence may run: believes in `ratio` of the output that running sequences
    may still produce.

    The ratio starts high (0.7), decays linearly while all goes well, and jumps after a retraction
    to what the running sequences have really used.
    """

    def __init__(self, settings: EngineSettings, page_size: int) -> None:
        self._clip = settings.clip_new_tokens
        self._page_size = page_size
        self._retract_steps = settings.retract_steps
        initial = min(1.0, settings.initial_ratio * settings.conservativeness)
        self._floor = min(1.0, initial * settings.final_ratio_factor)
        self._decay_per_step = (initial - self._floor) / max(1, settings.ratio_decay_steps)
        self._initial = initial
        self.ratio = initial

    def decay(self) -> None:
        """A decode step was planned without trouble."""
        if self.ratio > self._floor:
            self.ratio = max(self._floor, self.ratio - self._decay_per_step)

    def on_retraction(self, running: Iterable[Sequence]) -> None:
        """Pages ran out; `running` are those that stay."""
        produced = total = count = 0
        for sequence in running:
            count += 1
            produced += sequence.num_output_tokens
            total += sequence.max_len - sequence.num_prompt_tokens
        if total:
            self.ratio = min(1.0, (produced + self._retract_steps * count) / total)

    def reset(self) -> None:
        """Nothing lived for a while: what was learned about earlier requests is forgotten."""
        self.ratio = self._initial

    def running_demand(self, prefilling: Iterable[Sequence], decoding: Iterable[Sequence]) -> int:
        """Tokens that running sequences will take beyond the pages they hold."""
        clip, chunks, output = self._clip, 0, 0
        for sequence in decoding:
            left = sequence.max_len - len(sequence.tokens)
            output += left if left < clip else clip
        for sequence in prefilling:
            assert sequence.lease is not None
            held = len(sequence.lease.pages) * self._page_size
            chunks += max(0, sequence.prefill_len - held)
            output += min(sequence.max_len - len(sequence.tokens), clip)
        return chunks + int(output * self.ratio)

    def newcomer_demand(self, sequence: Sequence) -> int:
        """Tokens a newcomer is admitted for: its uncached tokens and all it may produce."""
        known = len(sequence.tokens)
        output = min(sequence.max_len - known, self._clip)
        return known - sequence.computed_len + output + self._page_size

    def affords(self, sequence: Sequence, promised: int, table: SequenceTable) -> bool:
        """May a sequence that has its lease run beside those that were `promised` so many tokens?
        Alone it always may."""
        if not table.prefilling and not table.decoding:
            return True
        return self.newcomer_demand(sequence) <= table.pages.available_tokens - promised
