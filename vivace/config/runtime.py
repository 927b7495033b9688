"""Flags of the device, captured steps, watchdogs and tokenizing."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.config.option import ABSENT, no_effect, not_available, option


@dataclass(frozen=True)
class RuntimeOptions:
    device: str | None = option(
        help="Device to run on; default: the best there is.",
        choices=["auto", "cpu", "cuda", "npu", "xpu", "hpu"],
        values={
            **ABSENT,
            "xpu": not_available("XPU is not supported", "use --device cpu"),
            "hpu": not_available("HPU is not supported", "use --device cpu"),
        },
    )
    cpu_threads: int | None = option(help="Threads that compute; default: the usable cores.")
    random_seed: int | None = option(help="Default seed (random if unset).")
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
        help="Seconds without progress until stacks are logged; default and 0: never."
    )
    sleep_on_idle: bool = option(
        False, "Sleep while idle instead of polling.", cpu=no_effect("an idle engine always sleeps")
    )
    disable_cpu_kernels: bool = option(
        False, "Compute with torch's operations instead of Vivace's native CPU kernels."
    )
    disable_cuda_graph: bool = option(False, "Run every step eagerly; none is captured.")
    cuda_graph_bs: tuple[int, ...] | None = option(
        help="Batch sizes of decode steps to capture; default: one that serves all.",
        aliases=["cuda-graph-bs-decode"],
    )
    cuda_graph_max_bs: int | None = option(
        help="Largest decode batch to capture; default: 256, or the largest of --cuda-graph-bs.",
        aliases=["cuda-graph-max-bs-decode"],
    )
    enable_nan_detection: bool = option(
        False,
        "End requests whose numbers went wrong (NaN), with a message.",
        cpu=no_effect("it is always on: every step is checked"),
    )
    enable_deterministic_inference: bool = option(
        False,
        "Bitwise equal log-probabilities however requests are batched and, by the native kernels, "
        "on any number of devices; slower.",
    )
    allow_auto_truncate: bool = option(
        False, "Truncate prompts that are too long instead of rejecting them."
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
        32, "Maximum batch size of that.", cpu=no_effect("requests are not gathered")
    )
    dynamic_batch_tokenizer_batch_timeout: float = option(
        0.002, "Maximum wait of that, in seconds.", cpu=no_effect("requests are not gathered")
    )
    numa_node: tuple[int, ...] | None = option(
        help="NUMA node of each worker.",
        cpu=not_available("pinning is not supported yet", "start the server with numactl"),
    )
    show_time_cost: bool = option(
        False, "Print SGLang's custom time marks.", cpu=no_effect("there are no such marks")
    )
