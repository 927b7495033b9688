"""The only way to tell a worker anything per step, and the only way back.

Columnar: entry i of `rows`/`counts` is one span. A plan says how many tokens, never where: the
worker owns positions (rule 2 of docs/architecture.md).
"""

from __future__ import annotations

import msgspec

from vivace.protocol.messages import LogprobOptions, PromptLogprobs, SamplingParams, TokenLogprob
from vivace.protocol.tasks import GENERATE, Payload, Task


class Join(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A sequence enters a row. After a retraction `tokens` includes what was generated before.

    `tokens`: everything known (prompt, then output so far); `prompt`: how many are prompt;
    `cached`: how many of them have valid KV in `pages` already (a prefix hit);
    `pages`: page ids of the first cache group, in order, covering at least `cached` tokens (grown
    later by `grants`); `others`: those of each other group, from the first one that is needed
    behind `cached` tokens on (`CacheGroup.first_page`); of a group of states the one page of the
    state behind `cached` tokens, or none.
    """

    row: int
    key: int
    tokens: list[int]
    prompt: int
    cached: int
    pages: list[int]
    others: list[list[int]] = []
    sampling: SamplingParams
    logprobs: LogprobOptions | None = None
    stop_ids: tuple[int, ...] = ()
    """Ids masked out while fewer than `min_new_tokens` were drawn (eos and stop_token_ids)."""
    cache_key: str = ""
    """of its request: rows of other keys learn nothing of what it says"""
    task: Task = GENERATE
    """a row that draws no token ends with the last one that is known"""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Pages of a cache group to append to those of a row."""

    row: int
    pages: list[int]
    group: int = 0


class Save(msgspec.Struct, frozen=True, array_like=True):
    """Keep the state in which a row's span ends, in a page of a group of states."""

    row: int
    page: int
    group: int


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """Copy what `source` page holds to `target` page, before the step."""

    source: int
    target: int
    group: int = 0


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """KV of whole pages that goes to another engine, or comes from one, beside the steps behind it.
    The executor tells when it has ended (`TransferEnd`); until then nobody else gets the pages."""

    ticket: int
    room: int
    """`KVTransfer.room`"""
    pages: list[int]
    tokens: int
    """how many positions of these pages"""
    others: list[list[int]] = []
    """pages of each other group, from the first one that is needed behind the last whole page"""


class TransferEnd(msgspec.Struct, frozen=True, tag="transfer_end"):
    """A transfer has ended. Not `ok`: pages that were to be filled hold nothing."""

    ticket: int
    ok: bool = True
    reason: str = ""


class DrawnTokens(msgspec.Struct, frozen=True, array_like=True):
    """What the spans of an earlier step drew, for stages of a pipeline that have no head."""

    number: int
    """of the step"""
    advanced: list[int]
    """`StepResult.advanced`"""
    tokens: list[list[int]]
    """`StepResult.tokens`"""
    drafts: list[list[int]] = []
    """`StepResult.drafts`"""


ExecutorEvent = TransferEnd
"""What happens beside the steps; more kinds come with what they are of."""


class EngineShare(msgspec.Struct, frozen=True, array_like=True):
    """What an engine computes of a step that several take together (data parallel attention)."""

    tokens: int = 0
    """0: one that is nobody's, because the others wait for it in the layers that all share"""
    single: bool = True
    """every row has one token, as in a captured step"""
    moves: bool = False
    """its experts are to move, and it has no step in flight: when all say so, they do"""


class StepPlan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="plan"):
    """One step, applied in this order: leaves, joins, grants, copies, vacant, transfers begin, then
    the spans run, and states are saved.

    `counts[i]` tokens of row `rows[i]` are computed, starting where the worker's row stands. If
    that reaches the last known token of the row, one token is drawn and becomes known, unless the
    row's task is another one.
    """

    number: int
    rows: list[int] = []
    counts: list[int] = []
    joins: list[Join] = []
    leaves: list[int] = []
    grants: list[Grant] = []
    copies: list[Copy] = []
    saves: list[Save] = []
    vacant: list[int] = []
    """after the copies, pages of each group from this one on hold nothing: the device may give
    their memory back to the system; what they read as until they are written again is finite"""
    sends: list[Transfer] = []
    receives: list[Transfer] = []
    drawn: list[DrawnTokens] = []
    """of steps whose results have come since the plan before this one; the executor's to fill"""
    undrafted: list[int] = []
    """rows that get no drafts in the next step: nobody looks for any, nor has to read prompts"""
    shares: list[EngineShare] = []
    """of every engine that takes this step, this one's among them; empty: it takes it alone"""

    @property
    def together(self) -> bool:
        """Other engines wait for this one in the layers that all share."""
        return any(share.tokens for share in self.shares)


class StepResult(msgspec.Struct, omit_defaults=True, kw_only=True, tag="result"):
    """Columns parallel to the plan's spans.

    `advanced[i]`: positions whose KV is now valid. `tokens[i]`: ids drawn (empty when the span
    did not reach the end of what is known), and behind them such as nothing else could follow.
    `bad`: span index -> message, for requests whose numbers went wrong (NaN); their tokens are
    empty and the scheduler ends just those.
    """

    number: int
    advanced: list[int]
    tokens: list[list[int]]
    logprobs: dict[int, list[TokenLogprob]] = {}
    """span index -> one per drawn token"""
    prompt_logprobs: dict[int, list[PromptLogprobs]] = {}
    """span index -> prompt positions decided in this step that were asked for, in their order"""
    payloads: dict[int, Payload] = {}
    """span index -> its embedding, or the hidden states of the last positions it advanced by"""
    bad: dict[int, str] = {}
    stuck: dict[int, tuple[int, str]] = {}
    """of the spans in `bad` those whose constraint is to blame -> status and why"""
    expert_counts: bytes = b""
    """[layers with experts, slots] int64: pairs of tokens and experts that went to each slot; empty
    where nobody counts"""
    ready_drafts: list[int] = []
    """how many drafts there are for the next span of the row; empty: as many as it may have"""
    accepted_drafts: list[int] = []
    """of trees how many first, second ... drafts of all spans were accepted; empty: chains"""
    drafts: list[list[int]] = []
    """the drafts themselves, where stages of a pipeline must hear of them"""
    seconds: float = 0.0
    """Device time of the step."""
    captured: bool = False
    """True when the step was replayed from a captured graph."""


def growth(drafts: int) -> int:
    """Tokens that a decoding sequence gets pages for at a time, while there are plenty."""
    return 16 * (1 + drafts // 2)


def window_slack(depth: int, drafts: int) -> int:
    """Tokens that a decoding row may have pages for beside its window: until its next growth, and
    those that slide when the steps in flight are committed."""
    return growth(drafts) + (depth + 1) * (1 + drafts)
