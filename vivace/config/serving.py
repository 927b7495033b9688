"""HTTP, memory, scheduling and runtime options."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import ABSENT, no_effect, not_available, option
from vivace.config.secret import Secret
from vivace.config.unavailable import PIPELINE

NO_SLIDING_POOL = no_effect("sliding and full layers share one pool in this version")
NO_TLS = not_available("TLS is not in this version", "put a TLS proxy in front")


@dataclass(frozen=True)
class HttpOptions:
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(30000, "Port to listen on.")
    api_key: Secret | None = option(
        None, "Key that every path but health needs, as a bearer token.", secret=True
    )
    admin_api_key: Secret | None = option(
        None, "Key that management paths need instead of --api-key.", secret=True
    )
    api_key_file: str | None = option(
        help="File with one key per line, each of another client. Others must not read it."
    )
    admin_api_key_file: str | None = option(
        help="File with one management key per line. Others must not read it."
    )
    file_keys: tuple[Secret, ...] = ()
    """what --api-key-file holds"""
    admin_file_keys: tuple[Secret, ...] = ()
    allowed_origins: tuple[str, ...] | None = option(
        help="Web pages that may use this server without a key, as https://ui.example; * for all.",
        trivial=[()],
    )
    allowed_hosts: tuple[str, ...] | None = option(
        help="Names that browsers may call this server by, besides localhost and addresses; "
        "* for all.",
        trivial=[()],
    )
    insecure: bool = option(False, "Allow a non-loopback host without a key.")
    skip_server_warmup: bool = option(False, "Be ready without having generated anything.")
    warmups: str | None = option(
        help="Comma list of named warm-up routines.",
        trivial=[""],
        cpu=not_available(
            "SGLang's routines (voice_chat, whisper_autodetect, compile-deep-gemm) prepare audio "
            "models, grammars and GPU kernels, which are not in this version; a short generation "
            "warms up every start",
            "leave it out",
        ),
    )
    fastapi_root_path: str | None = option(
        help="URL prefix behind a path-rewriting proxy.", trivial=[""]
    )
    grpc_mode: bool = option(
        False,
        "Serve gRPC instead of HTTP.",
        aliases=["smg-grpc-mode"],
        cpu=not_available("there is no gRPC server", "use the HTTP API"),
    )
    enable_cache_report: bool = option(
        False, "Report cached tokens in the usage of OpenAI answers."
    )
    strict_model_name: bool = option(
        False, "Answer 404 to a model name that is not served; else the served model answers."
    )
    file_storage_path: str | None = option(
        help="Directory of uploaded files.", cpu=no_effect("there are no uploads")
    )
    uvicorn_access_log_exclude_prefixes: tuple[str, ...] | None = option(
        help="Beginnings of paths that the access log leaves out; probes that go well always are."
    )
    tool_call_parser: str | None = option(
        help="The model's syntax of tool calls.",
        cpu=not_available("tool calls are not in this version"),
    )
    reasoning_parser: str | None = option(
        help="The model's syntax of reasoning, to be split from the answer.",
        cpu=not_available("reasoning parsers are not in this version"),
    )
    tool_server: str | None = option(
        help="`demo` or tool servers for the Responses API.",
        cpu=not_available("the Responses API is not in this version"),
    )
    ssl_keyfile: str | None = option(help="File with the TLS key.", cpu=NO_TLS)
    ssl_certfile: str | None = option(help="File with the TLS certificate.", cpu=NO_TLS)

    @property
    def keys(self) -> tuple[Secret, ...]:
        """Of flag or variable, then of the file: a client's number is its place here."""
        return (*((self.api_key,) if self.api_key else ()), *self.file_keys)

    @property
    def admin_keys(self) -> tuple[Secret, ...]:
        return (*((self.admin_api_key,) if self.admin_api_key else ()), *self.admin_file_keys)


@dataclass(frozen=True)
class MemoryOptions:
    mem_fraction_static: float | None = option(
        help="Share for weights and KV of the memory that was free before loading; unset: for KV "
        "a quarter of what is free after loading, at most 4 GiB, of which cached prefixes take as "
        "much as one longest request at first. Given: they may fill the pool."
    )
    max_total_tokens: int | None = option(
        help="KV pool in tokens, as far as memory goes (--mem-fraction-static, or else 0.8). "
        "Cached prefixes may fill it."
    )
    page_size: int | None = option(help="Tokens per KV page; prefix hits are whole pages.")
    disable_radix_cache: bool = option(False, "No prefix reuse between requests.")
    radix_eviction_policy: str = option(
        "lru",
        "Which cached prefix gives way first.",
        choices=["lru", "lfu", "slru", "priority", "tlru"],
        values={
            name: not_available("this eviction policy is not in this version", "use lru or lfu")
            for name in ("slru", "priority", "tlru")
        },
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type of cached keys and values; int8 has a float scale for each token and head.",
        choices=[
            "auto", "float32", "bf16", "bfloat16", "int8", "fp8_e5m2", "fp8_e4m3", "fp4_e2m1",
            "mxfp8", "nvfp4", "fp4_mx_block16",
        ],
        values={
            name: not_available(
                "KV in this type is not in this version", "use int8, bfloat16 or auto"
            )
            for name in (
                "fp8_e5m2", "fp8_e4m3", "fp4_e2m1", "mxfp8", "nvfp4", "fp4_mx_block16",
            )
        },
    )  # fmt: skip
    swa_full_tokens_ratio: float = option(
        0.8, "Tokens of the sliding-window pool per token of the full one.", cpu=NO_SLIDING_POOL
    )
    disable_hybrid_swa_memory: bool = option(
        False, "One pool for sliding and full layers.", cpu=NO_SLIDING_POOL
    )


@dataclass(frozen=True)
class ScheduleOptions:
    max_running_requests: int | None = option(help="Most sequences that run at once.")
    prefill_max_requests: int | None = option(help="Most requests whose prompts share a step.")
    max_queued_requests: int | None = option(
        help="Requests that may wait; more are answered with 503."
    )
    chunked_prefill_size: int | None = option(
        help="Prompt tokens of one step; longer prompts continue later. -1: never cut."
    )
    chunked_prefill_stall_target: float = option(
        50.0,
        "Milliseconds that prompts take between two steps of streams: so many for each of up to "
        "four prompts that wait, and eight of those steps; chunks are cut to the measured speed. "
        "0: prompts come first.",
    )
    max_prefill_tokens: int = option(16384, "Prompt tokens admitted to one step.")
    schedule_policy: str = option(
        "fcfs",
        "Order of the waiting queue.",
        choices=[
            "fcfs", "lpm", "dfs-weight", "lof", "random", "priority", "routing-key", "hrrn",
            "shortest-prefill-first",
        ],
        values={
            name: not_available("this order is not in this version", "use fcfs")
            for name in ("routing-key", "hrrn", "shortest-prefill-first")
        },
    )  # fmt: skip
    enable_priority_scheduling: bool = option(
        False, "Requests carry a priority; larger runs first and may preempt."
    )
    schedule_low_priority_values_first: bool = option(
        False, "Smaller priority numbers are more important."
    )
    priority_scheduling_preemption_threshold: int = option(
        10, "Difference from which a request preempts another."
    )
    abort_on_priority_when_disabled: bool = option(
        False, "Refuse requests with a priority while priorities are off."
    )
    schedule_conservativeness: float = option(
        1.0, "Larger admits fewer requests and retracts less."
    )
    enable_mixed_chunk: bool = option(False, "Prompt chunks and decoding share a step.")
    disable_overlap_schedule: bool = option(False, "Plan a step only when the last is done.")
    num_continuous_decode_steps: int = option(
        1, "Decode steps between two looks at the waiting queue."
    )
    scheduler_recv_interval: int = option(
        1, "Steps between two looks at the mailbox while requests run."
    )
    enable_dynamic_chunking: bool = option(
        False, "Vary the chunk so that every chunk of a pipeline takes the same time.", cpu=PIPELINE
    )
    enable_prefill_delayer: bool = option(
        False,
        "Hold prompts until all ranks have one.",
        cpu=no_effect("it matters with data parallelism only"),
    )
    prefill_delayer_max_delay_passes: int = option(
        30, "Longest such hold, in steps.", cpu=no_effect("it matters with data parallelism only")
    )
    prefill_delayer_token_usage_low_watermark: float | None = option(
        help="Do not hold while KV use is below this share.",
        cpu=no_effect("it matters with data parallelism only"),
    )
    prefill_delayer_forward_passes_buckets: tuple[float, ...] | None = option(
        help="Histogram bounds of held steps.",
        cpu=no_effect("it matters with data parallelism only"),
    )
    prefill_delayer_wait_seconds_buckets: tuple[float, ...] | None = option(
        help="Histogram bounds of held seconds.",
        cpu=no_effect("it matters with data parallelism only"),
    )


@dataclass(frozen=True)
class RuntimeOptions:
    device: str | None = option(
        help="Device to run on; default: the best there is.",
        choices=["auto", "cpu", "cuda", "npu", "xpu", "hpu"],
        values={
            **ABSENT,
            "xpu": not_available("there is no XPU platform", "use --device cpu"),
            "hpu": not_available("there is no HPU platform", "use --device cpu"),
        },
    )
    cpu_threads: int | None = option(help="Threads that compute; default: the usable cores.")
    random_seed: int | None = option(help="Seed of unseeded requests; drawn when unset.")
    stream_interval: int = option(1, "Tokens between two streamed chunks.")
    stream_output: bool = option(
        False,
        "Native streams carry new text only, not everything so far.",
        flag="stream-output",
        aliases=["incremental-streaming-output"],
    )
    watchdog_timeout: float = option(
        300.0, "Seconds without progress after which the engine is replaced; 0: never."
    )
    soft_watchdog_timeout: float | None = option(
        help="Seconds without progress after which stacks are logged; 0: never."
    )
    sleep_on_idle: bool = option(
        False, "Sleep while idle instead of polling.", cpu=no_effect("an idle engine always sleeps")
    )
    disable_cpu_kernels: bool = option(
        False, "Compute with torch's operations instead of Vivace's native CPU kernels."
    )
    disable_cuda_graph: bool = option(False, "Run every step eagerly; none is captured.")
    cuda_graph_bs: tuple[int, ...] | None = option(
        help="Batch sizes of decode steps to capture.", aliases=["cuda-graph-bs-decode"]
    )
    cuda_graph_max_bs: int | None = option(
        help="Largest decode batch to capture.", aliases=["cuda-graph-max-bs-decode"]
    )
    enable_nan_detection: bool = option(
        False,
        "End requests whose numbers went wrong (NaN), with a message.",
        cpu=no_effect("it is always on: every step is checked"),
    )
    enable_deterministic_inference: bool = option(
        False, "Bitwise equal logits however requests are batched; slower."
    )
    allow_auto_truncate: bool = option(
        False, "Cut prompts that are too long instead of refusing them."
    )
    custom_sigquit_handler: str | None = option(
        help="Callback of SGLang's Python API for a crashed child.",
        cpu=not_available("it never was a flag", "use a supervisor such as systemd"),
    )
    disable_tokenizer_batch_decode: bool = option(
        False,
        "Detokenize outputs one by one.",
        cpu=no_effect("text is made incrementally per request"),
    )
    enable_tokenizer_batch_encode: bool = option(
        False,
        "Tokenize a list of prompts in one call.",
        cpu=no_effect("the prompts of a list are always tokenized side by side"),
    )
    enable_dynamic_batch_tokenizer: bool = option(
        False,
        "Gather concurrent requests and tokenize them together.",
        cpu=no_effect("tokenizing one by one is quick enough"),
    )
    dynamic_batch_tokenizer_batch_size: int = option(
        32, "Most requests gathered so.", cpu=no_effect("requests are not gathered")
    )
    dynamic_batch_tokenizer_batch_timeout: float = option(
        0.002, "Longest wait for that, in seconds.", cpu=no_effect("requests are not gathered")
    )
    numa_node: tuple[int, ...] | None = option(
        help="NUMA node of each worker.",
        cpu=not_available("pinning is not in this version", "start the server with numactl"),
    )
    show_time_cost: bool = option(
        False, "Print SGLang's custom time marks.", cpu=no_effect("there are no such marks")
    )
