"""What a client asked for, after validation: the messages that travel frontend -> engine."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Sampling settings of one sequence, complete and in range (see `frontend.validation`).

    `n` never gets here: the frontend expands it into separate requests. Greedy decoding is
    `temperature == 0`. `top_k == 0` means the whole vocabulary. `seed` is always set: the draw for
    the token at position p is a pure function of (seed, p), however the request is batched.
    `stop`, `skip_special_tokens`, `spaces_between_special_tokens` and `no_stop_trim` concern text
    and are used by the frontend only; the engine stops on ids and lengths.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    logit_bias: dict[int, float] = {}
    seed: int = 0
    stream_interval: int = 0
    """Tokens between two deltas; 0 = the server's `--stream-interval`."""


class LogprobOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which log-probabilities to return. Positions are prompt positions; -1 = output only."""

    start: int = -1
    top: int = 0
    token_ids: tuple[int, ...] = ()


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="request"):
    """One sequence to generate. `key` is unique in this server's lifetime; `rid` is the client's.

    `key = frontend << 40 | counter`, so the engine knows which frontend gets the answers.
    `cache_key` isolates the prefix cache (extra_key, cache_salt); equal keys share pages.
    `arrival` is time.monotonic() of the frontend at receipt, in seconds (one clock per host).
    """

    key: int
    rid: str
    tokens: list[int]
    sampling: SamplingParams
    logprobs: LogprobOptions | None = None
    priority: int | None = None
    cache_key: str = ""
    arrival: float = 0.0
    stream: bool = False
    log_metrics: bool = True
    """False: counted in no metric of requests, tokens and latencies."""
    client: int = 0
    """Whose API key it came with; the engine shares rows and prompt tokens among clients."""
    resumed: list[int] = []
    """Output tokens the client already has: after an engine restart a frontend sends its live
    requests again with this ledger, and generation goes on behind it (same seed, same tokens)."""
    suspect: int = 0
    """1: an engine died in a step with this request, so it runs alone until it draws a token;
    2: that happened again, so it always runs alone"""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop requests. `keys` are exact; `rid_prefix` matches SGLang's /abort_request semantics.

    `finished` = the client has already got its answer (stop string): nothing is sent back.
    """

    keys: list[int] = []
    rid_prefix: str | None = None
    everything: bool = False
    finished: bool = False


KEY_SHIFT = 40


def frontend_of(key: int) -> int:
    """Index of the frontend process that owns a request key."""
    return key >> KEY_SHIFT
