"""What the engine answers: one `Deltas` message per step and frontend."""

from __future__ import annotations

import msgspec

FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_ABORT = "abort"


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request ended. `matched` is the stop id or string. `status` is HTTP's, for aborts."""

    type: str
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status: int | None = None
    retry_after: float | None = None
    """Seconds until it is worth trying again (503 only)."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token. `top` and `chosen` are (logprob, id), best first."""

    token: int
    logprob: float | None
    """None for the first prompt token."""
    top: list[tuple[float, int]] | None = None
    chosen: list[tuple[float, int]] | None = None
    """For `LogprobOptions.token_ids`, in the asked order."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Log-probabilities of the prompt tokens at `start`, `start` + 1 ... as bytes in the machine's
    order: who reads the message makes no object of each. `start` is at least 1, as nothing stands
    before the first token."""

    start: int
    logprobs: bytes
    """[n] float32"""
    top: bytes = b""
    """[n, k] float32, best first; k is what was asked for, or the vocabulary"""
    top_ids: bytes = b""
    """[n, k] int32"""
    chosen: bytes = b""
    """[n, m] float32, for `LogprobOptions.token_ids` in the asked order"""


class Delta(msgspec.Struct, omit_defaults=True, kw_only=True):
    """News of one request. `index` = how many output tokens were sent before (the ledger)."""

    key: int
    index: int
    tokens: list[int]
    finish: Finish | None = None
    cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    """The next of them; with nothing else, and all before the first token."""
    logprobs: list[TokenLogprob] | None = None
    """One per token of `tokens`, when asked for."""
    retractions: int = 0
    queue_time: float = 0.0
    """Seconds between arrival and the first scheduled step; set on the first and last delta."""
    first_token_time: float = 0.0
    """Seconds between arrival and the first token, however long it waited for its delta; set as
    `queue_time`."""


class Deltas(msgspec.Struct, tag="deltas"):
    """News of one step for one frontend, in several messages where they are many. `epoch` changes
    when the engine restarts."""

    epoch: int
    deltas: list[Delta]
