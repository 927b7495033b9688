"""The messages between frontends and the engine, and what the supervisor tells frontends.

A frontend sends requests, cancellations and commands; the engine answers with a `Deltas` message
per step and frontend (several where it is large), and with a `Reply` to each command.
"""

from __future__ import annotations

from math import inf
from typing import Any, Literal

import msgspec

from vivace.protocol.constraints import Constraint
from vivace.protocol.metrics import Metrics, StepCosts
from vivace.protocol.tasks import GENERATE, KVTransfer, Payload, Task
from vivace.protocol.workers import AddCorpus, CorpusRemoved, RemoveCorpus, WorkerState

# -- requests: frontend -> engine ------------------------------------------------------------------


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
    constraint: Constraint | None = None
    stream_interval: int = 0
    """Tokens between two deltas; 0 = the server's `--stream-interval`."""


class LogprobOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which log-probabilities to return. Positions are prompt positions; -1 = output only."""

    start: int = -1
    top: int = 0
    token_ids: tuple[int, ...] = ()


UNTIL_FIRST_TOKEN, ALWAYS = 1, 2
"""How long a suspect runs in steps of its own: `Request.suspect`, 0 = it is none."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="request"):
    """One sequence. `key` is unique in this server's lifetime; `rid` is the client's.

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
    begin: float = inf
    """as `arrival`, but before its body was read and it waited for an engine: later aborts are
    meant for it"""
    stream: bool = False
    log_metrics: bool = True
    """False: counted in no metric of requests, tokens and latencies."""
    client: int = 0
    """Whose API key it came with; the engine shares rows and prompt tokens among clients."""
    resumed: list[int] = []
    """Output tokens the client already has: after an engine restart a frontend sends its live
    requests again with this ledger, and generation goes on behind it (same seed, same tokens)."""
    dp_rank: int | None = None
    """the engine that is asked for"""
    suspect: int = 0
    """UNTIL_FIRST_TOKEN: an engine died in a step with this request, so it runs alone until it
    draws a token; ALWAYS: that happened again, so it always runs alone"""
    transfer: KVTransfer | None = None
    task: Task = GENERATE


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Stop requests. `keys` are exact; `rid_prefix` matches SGLang's /abort_request semantics;
    "" is all of them.

    `finished` = the client has already got its answer (stop string): nothing is sent back.
    `moved` = another engine goes on with them: they count as nothing here.
    `when`: time.monotonic() of the frontend, in seconds. Requests that began later are not meant;
    those that began before but have not come yet are. inf = what is there now.
    """

    keys: list[int] = []
    rid_prefix: str | None = None
    finished: bool = False
    moved: bool = False
    when: float = inf


class LastRequest(msgspec.Struct, frozen=True, tag="last_request"):
    """Frontend -> engine: no request comes behind this, neither new nor resumed."""

    frontend: int


MAX_RID_CHARACTERS = 512
KEY_SHIFT = 40
"""A key is a counter with the index of the frontend process above this bit."""

# -- answers: engine -> frontend -------------------------------------------------------------------

FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_ABORT = "abort"


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request ended. `matched` is the stop id or string. `status` is HTTP's, for aborts;
    `param`: the field that is to blame."""

    type: str
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    param: str | None = None
    status: int | None = None
    retry_after: float | None = None
    """Seconds until it is worth trying again (503 only)."""
    bad_numbers: bool = False
    """the model computed NaN or infinite logits"""


ABORTED = Finish(type=FINISH_ABORT, message="the request was aborted")


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
    """What is new of a request. `index` = how many output tokens were sent before (the ledger)."""

    key: int
    index: int
    tokens: list[int]
    finish: Finish | None = None
    cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None
    """The next of them; with nothing else, and all before the first token."""
    logprobs: list[TokenLogprob] | None = None
    """One per token of `tokens`, when asked for."""
    payload: Payload | None = None
    """An embedding, with the end; hidden states alone, before the token that they draw."""
    retractions: int = 0
    queue_time: float = 0.0
    """Seconds between arrival and the first scheduled step; set on the first and last delta."""
    first_token_time: float = 0.0
    """Seconds between arrival and the first token, however long it waited for its delta; set as
    `queue_time`."""
    drafts: tuple[int, int, int] | None = None
    """With the end, or where a stop string may be it: verified drafts, right ones, later steps."""


class Deltas(msgspec.Struct, tag="deltas"):
    """Deltas of one step for one frontend, in several messages where they are many. `epoch` is that
    of one life of one engine: no two have the same."""

    epoch: int
    deltas: list[Delta]


# -- commands, and what the device can hold --------------------------------------------------------


class FlushCache(msgspec.Struct, frozen=True, tag="flush_cache"):
    """Drop the prefix cache; refused (ok=False) while requests run or wait."""


class GetState(msgspec.Struct, frozen=True, tag="get_state"):
    """Ask for an `EngineState`."""


class RecordExperts(msgspec.Struct, frozen=True, tag="record_experts"):
    """Record where tokens go among experts, or write that to a file, whose name is the answer."""

    action: Literal["start", "stop", "dump"]


EngineCommand = FlushCache | GetState | RecordExperts | AddCorpus | RemoveCorpus
"""What every engine is asked at once."""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Finish what `frontends` send before their `LastRequest`, then reply. What has not ended after
    `timeout` seconds is ended (503); the reply, which is not `ok` then, says how many that were."""

    timeout: float
    frontends: list[int]


class Command(msgspec.Struct, frozen=True, tag="command"):
    """A control command with a ticket; answered by exactly one `Reply` with the same ticket. All
    but `Drain`, which begins at once, wait until no step is in flight."""

    ticket: int
    """frontend << 40 | counter, like a request key"""
    body: EngineCommand | Drain


class EngineState(msgspec.Struct, kw_only=True, tag="state"):
    """What /server_info, /metrics and the tests look at."""

    running: int
    waiting: int
    total_tokens: int
    """KV capacity"""
    used_tokens: int
    """held by live requests (not merely cached)"""
    cached_tokens: int
    """evictable: in the prefix tree alone"""
    last_gen_throughput: float
    steps: int
    audit: list[str]
    """findings of the KV audit; empty when every page has exactly one explanation"""
    metrics: Metrics
    memory: dict[str, float] = {}
    """weight, kvcache, kvcache_resident, graph: GB; token_capacity: tokens"""
    avg_spec_accept_length: float | None = None
    """tokens that a step drew for a sequence; None: nothing is speculated"""
    avg_spec_accept_rate: float | None = None
    """of the drafts that were verified, 0..1"""
    spec_draft_widths: dict[int, int] = {}
    """drafts -> how many spans had so many"""
    executor: str = ""
    workers: list[WorkerState] = []  # one for each rank
    pid: int = 0
    instructions: str = ""
    """as in `Capacity`"""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    ticket: int
    ok: bool
    message: str = ""
    state: EngineState | None = None
    status: int = 400


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Engine -> every frontend, once it can serve; `capacity` is what was sized on the device."""

    epoch: int
    capacity: Capacity
    engine: int = 0


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that was decided for the user. `field`: the option's name, or a retired one;
    `typed`: the user had asked for something else."""

    field: str
    before: Any
    after: Any
    rule: str
    reason: str
    typed: bool = False


STATE_INTERVAL = 256
"""tokens from one state that is kept for others to start from to the next"""


class CacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that need no more than the end of what was computed, with pages of their own.

    Page i of a row stands for the same positions in every group. Of a group of windows a row needs
    the pages from `first_page` on. Of a group of states it needs one page, which holds the state
    behind the page's last position; which pages are filled the scheduler decides (`Save`).
    """

    pages: int
    reach: int
    """positions before the next one that it needs: window - 1, or 1 of states"""
    state: bool = False
    kv_bytes: int = 0
    """that its pages take"""

    def first_page(self, tokens: int, page_size: int) -> int:
        """The first page that is needed to go on behind so many tokens."""
        return max(0, tokens - self.reach) // page_size

    def row_pages(self, slack: int, page_size: int) -> int:
        """The most that a row needs of a group of windows, with `slack` tokens beside those that
        its next token sees."""
        return -(-(self.reach + slack) // page_size) + 1


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the device can hold, known after weights are loaded."""

    pages: int
    """of the first cache group: layers that need every position; it counts positions where no
    layer does, too"""
    page_size: int
    others: tuple[CacheGroup, ...] = ()
    """groups 1, 2 ..., whose pages are numbered each from 0"""
    rows: int
    """sequences that can run at once (max_running_requests after sizing)"""
    context: int
    """longest prompt + output in tokens"""
    vocabulary: int
    weight_bytes: int = 0
    kv_bytes: int = 0
    """of all groups"""
    cache_share: int | None = None
    """pages beyond which cached prefixes go before memory is taken for new ones (see
    kv/pages.py); None: all pages have their memory, there is none to take or give back"""
    graph_bytes: int = 0
    """of captured steps and their buffers"""
    available_bytes: int = 0
    free_bytes: int = 0
    """what each worker had to size with, before it loaded"""
    rewrites: tuple[Rewrite, ...] = ()
    """settings that the device or the pool did not allow as they were"""
    instructions: str = ""
    """whose operations compute, with which instruction set: "native kernels, avx2" """
    step_costs: StepCosts = StepCosts()
    """known where drafts are to pay for themselves"""
    reports_ready: bool = False
    """results say how many drafts each row has; otherwise it has all that it may have"""
    undivided_draft: str = ""
    """why each rank has all of the model that drafts; empty: ranks divide it, or there is one"""

    @property
    def tokens(self) -> int:
        return self.pages * self.page_size


class EngineDown(msgspec.Struct, frozen=True, tag="down"):
    """Supervisor -> frontends: the engine died (reason) and is, or is not, being restarted."""

    reason: str
    restarting: bool
    engine: int | None = None
    """None: all, for good"""
    refused: list[int] = []
    """keys of requests that were found to kill engines"""
    suspects: dict[int, int] = {}
    """key -> `Request.suspect` of those that were in a step in which an engine died"""


class Draining(msgspec.Struct, frozen=True, tag="draining"):
    """Supervisor -> frontends: refuse new requests, go on with what runs."""


ToEngine = Request | Cancel | LastRequest | Command
ToFrontend = Deltas | Reply | Ready | EngineDown | Draining | CorpusRemoved
