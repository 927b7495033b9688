"""Logging, metrics, debugging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vivace.config.option import no_effect, not_available, option
from vivace.config.unavailable import ALONE, GPU_KERNELS, NO_CODE, NO_DUMPS, NO_TRACE

NO_LABELS = not_available("custom metric labels are not supported yet")


@dataclass(frozen=True)
class LoggingOptions:
    log_level: str = option(
        "info", "Log level of all processes: debug, info, warning, error, critical."
    )
    log_level_http: str | None = option(help="Level of the access log; default: --log-level.")
    verbose: bool = option(
        False, "Show all decisions at the start, not only what differs from the flags."
    )
    startup_profile: bool = option(
        False, "Show where the time of the start went, stage by stage, for every process."
    )
    startup_profile_file: str | None = option(
        help="Write the same as JSON to this file once the server is ready."
    )
    log_requests: bool = option(False, "Log every request at receipt and at its end.")
    log_requests_level: int = option(
        2, "0 metadata, 1 and sampling settings, 2 and shortened texts, 3 everything.",
        choices=["0", "1", "2", "3"],
    )  # fmt: skip
    log_requests_format: str = option(
        "text", "Format of the request lines.", choices=["text", "json"]
    )
    log_requests_target: tuple[str, ...] | None = option(
        help="Where those lines go: stdout (the log, the default), and directories that get a "
        "requests.log."
    )
    decode_log_interval: int = option(40, "Decode steps between two statistics lines.")
    enable_request_time_stats_logging: bool = option(
        False, "Log how long each request spent where.",
        cpu=not_available("this log line is not supported yet", "use --enable-metrics"),
    )  # fmt: skip
    crash_dump_folder: str | None = option(
        help="Where the last five minutes' requests are written after a crash."
    )
    enable_metrics: bool = option(False, "Answer /metrics in Prometheus' form.")
    enable_metrics_for_all_schedulers: bool = option(
        False, "Metrics of every rank, not of the first only.", cpu=ALONE
    )
    tokenizer_metrics_custom_labels_header: str = option(
        "x-custom-labels", "HTTP header that carries further metric labels.", cpu=NO_LABELS
    )
    tokenizer_metrics_allowed_custom_labels: tuple[str, ...] | None = option(
        help="Labels accepted from that header.", cpu=NO_LABELS
    )
    bucket_time_to_first_token: tuple[float, ...] | None = option(
        help="Histogram bounds of the time to the first token, in seconds; default: SGLang's."
    )
    bucket_inter_token_latency: tuple[float, ...] | None = option(
        help="Histogram bounds of the time between tokens, in seconds; default: SGLang's."
    )
    bucket_e2e_request_latency: tuple[float, ...] | None = option(
        help="Histogram bounds of a request's whole time, in seconds; default: SGLang's."
    )
    collect_tokens_histogram: bool = option(
        False,
        "Histograms of prompt and answer lengths.",
        cpu=no_effect("they are always there with metrics"),
    )
    prompt_tokens_buckets: tuple[str, ...] | None = option(
        help="Bounds of prompt lengths: default, tse or custom.",
        trivial=[("default",)],
        cpu=not_available("the bounds are fixed"),
    )
    generation_tokens_buckets: tuple[str, ...] | None = option(
        help="Bounds of answer lengths: default, tse or custom.",
        trivial=[("default",)],
        cpu=not_available("the bounds are fixed"),
    )
    gc_warning_threshold_secs: float = option(
        0.0, "Log garbage collections longer than this; 0 = never."
    )
    kv_events_config: str | None = option(
        help="JSON of the publisher of KV cache events for routers.",
        cpu=not_available("publishing KV events is not supported yet"),
    )
    enable_trace: bool = option(False, "Send OpenTelemetry traces.", cpu=NO_TRACE)
    otlp_traces_endpoint: str = option(
        "localhost:4317", "host:port of the collector of traces.", cpu=NO_TRACE
    )
    export_metrics_to_file: bool = option(
        False, "Write a JSON line of figures per request.",
        cpu=not_available("metric files are not supported yet", "use --enable-metrics"),
    )  # fmt: skip
    export_metrics_to_file_dir: str | None = option(
        help="Directory of those lines.",
        cpu=not_available("metric files are not supported yet", "use --enable-metrics"),
    )


@dataclass(frozen=True)
class DebugOptions:
    debug_tensor_dump_output_folder: str | None = option(
        help="Folder to dump every layer's tensors to.", cpu=NO_DUMPS
    )
    debug_tensor_dump_layers: tuple[int, ...] | None = option(help="Layers to dump.", cpu=NO_DUMPS)
    debug_tensor_dump_input_file: str | None = option(
        help="Saved input to run instead of requests.", cpu=NO_DUMPS
    )
    debug_tensor_dump_inject: str | None = option(
        help="Run with saved tensors put in.", trivial=["False"], cpu=NO_DUMPS
    )
    enable_layerwise_nvtx_marker: bool = option(
        False, "NVTX ranges around every layer.", cpu=GPU_KERNELS
    )
    forward_hooks: Any = option(
        None, "JSON list of hooks to attach to layers.", json=True, cpu=NO_CODE
    )
    enable_p2p_check: bool = option(
        False, "Check that devices can reach each other's memory.", cpu=GPU_KERNELS
    )
    enable_profile_cuda_graph: bool = option(
        False, "Profile the capture of graphs.", cpu=no_effect("a capture runs no kernels here")
    )
    enable_cudagraph_gc: bool = option(
        False, "Collect garbage while capturing graphs.", cpu=no_effect("a capture takes a moment")
    )
