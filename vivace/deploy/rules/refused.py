"""Rules about settings that SGLang refuses together, after minutes or at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import Server

ARGS = "SGLang's server_args.py, 0.5.10"
PAGE_ON_ASCEND = 128
OLD = ("0.4.6", "0.5.7", "0.5.8", "0.5.10")
Refusal = Callable[[Case, Server], Iterator[tuple[str, str, str]]]
"""yields (option, why it is refused, what to do)"""


def each(refusal: Refusal) -> Callable[[Case], Iterator[Found]]:
    def check(case: Case) -> Iterator[Found]:
        for server in case.servers:
            for name, text, remedy in refusal(case, server):
                yield Found(role=server.name, flag=server.flag(name), text=text, remedy=remedy)

    return check


def page_of(case: Case, server: Server) -> int:
    return PAGE_ON_ASCEND if case.platform == "npu" else server.number("page_size") or 1


def host_cache(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.has("enable_hierarchical_cache") and server.has("disable_radix_cache"):
        text = "--enable-hierarchical-cache needs the prefix cache that --disable-radix-cache takes"
        yield "enable_hierarchical_cache", text, "leave out one of them"


def scoring(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if not server.has("multi_item_scoring_delimiter"):
        return
    if not server.has("disable_radix_cache"):
        text = "multi-item scoring needs --disable-radix-cache"
        yield "multi_item_scoring_delimiter", text, "--disable-radix-cache"
    if server.number("chunked_prefill_size") != -1:
        text = "multi-item scoring needs --chunked-prefill-size -1"
        yield "multi_item_scoring_delimiter", text, "--chunked-prefill-size -1"


def priorities(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    policy = server.value("schedule_policy")
    if server.has("enable_priority_scheduling") and policy not in ("fcfs", "lof", "priority"):
        text = f"--enable-priority-scheduling does not go with --schedule-policy {policy}"
        yield "enable_priority_scheduling", text, "--schedule-policy fcfs"


def chunk_pages(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    chunk, page = server.number("chunked_prefill_size"), page_of(case, server)
    if chunk and chunk > 0 and server.has("chunked_prefill_size") and chunk % page:
        text = f"--chunked-prefill-size {chunk} is no multiple of the page size {page}"
        yield "chunked_prefill_size", text, f"use {max(1, chunk // page) * page}"


def tokenizer_batches(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.has("enable_tokenizer_batch_encode") and server.has("enable_dynamic_batch_tokenizer"):
        text = "--enable-tokenizer-batch-encode and --enable-dynamic-batch-tokenizer exclude each "
        "other"
        yield "enable_tokenizer_batch_encode", text, "leave out one of them"


def served_name(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    name = server.value("served_model_name")
    if isinstance(name, str) and ":" in name:
        text = f"--served-model-name {name}: a colon separates a LoRA adapter's name"
        yield "served_model_name", text, "a name without a colon"


def both_certificates(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    key, certificate = server.has("ssl_keyfile"), server.has("ssl_certfile")
    if key != certificate:
        name = "ssl_keyfile" if key else "ssl_certfile"
        yield name, "TLS needs both --ssl-keyfile and --ssl-certfile", "give both, or none"


def metrics_folder(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.has("export_metrics_to_file") and not server.has("export_metrics_to_file_dir"):
        text = "--export-metrics-to-file needs --export-metrics-to-file-dir"
        yield "export_metrics_to_file", text, "name the folder"


def topk_pages(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    topk, page = server.number("speculative_eagle_topk"), page_of(case, server)
    if server.has("speculative_algorithm") and topk and topk > 1 and page > 1:
        backend = server.value("attention_backend")
        if backend not in ("flashinfer", "fa3", "triton"):
            text = (
                f"--speculative-eagle-topk {topk} with pages of {page} tokens needs an attention "
            )
            text += f"backend that can follow a tree; {backend or 'the default'} cannot"
            yield "speculative_eagle_topk", text, "--speculative-eagle-topk 1"


def hybrid_cache(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if case.model is None or not case.model.linear_layers:
        return
    if server.has("enable_hierarchical_cache") and case.target.version in OLD:
        text = f"SGLang {case.target.version} has no host cache for models with recurrent layers"
        yield "enable_hierarchical_cache", text, "leave it out"
    if server.has("disable_radix_cache"):
        return
    strategy = server.value("mamba_scheduler_strategy")
    if server.has("speculative_algorithm") and strategy in ("auto", "no_buffer", None):
        text = "a model with recurrent layers, the prefix cache and speculation need "
        yield (
            "speculative_algorithm",
            text + "extra buffers",
            "--mamba-scheduler-strategy extra_buffer",
        )


def positive_numbers(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    fraction = server.value("mem_fraction_static")
    if isinstance(fraction, int | float) and not 0 < fraction < 1:
        text = f"--mem-fraction-static {fraction}: a share of memory, between 0 and 1"
        yield "mem_fraction_static", text, "for example 0.8"
    for name in ("tp_size", "dp_size", "pp_size", "nnodes", "ep_size"):
        value = server.number(name)
        if value is not None and value < 1:
            yield name, f"{server.flag(name)} {value}: at least 1 is wanted", "use 1"
    rank, nodes = server.number("node_rank"), server.positive("nnodes")
    if rank is not None and not 0 <= rank < nodes:
        text = f"--node-rank {rank}: with --nnodes {nodes}, ranks are 0 to {nodes - 1}"
        yield "node_rank", text, "number the nodes from 0"


REFUSALS: tuple[tuple[str, str, Refusal], ...] = (
    ("host-cache", "The host cache extends the prefix cache", host_cache),
    ("multi-item-scoring", "Scoring of several items has whole prompts", scoring),
    ("priority-policy", "Priorities go with an order of arrival", priorities),
    ("chunk-pages", "Chunks are whole pages", chunk_pages),
    ("tokenizer-batches", "There is one way to batch the tokenizer", tokenizer_batches),
    ("served-name", "The model's name has no colon", served_name),
    ("tls-files", "TLS has a key and a certificate", both_certificates),
    ("metrics-folder", "Exported metrics have a folder", metrics_folder),
    ("topk-pages", "Draft trees go with the attention backend", topk_pages),
    ("hybrid-cache", "Recurrent layers can be cached and drafted", hybrid_cache),
    ("limits", "Sizes and shares are possible ones", positive_numbers),
)
RULES = tuple(
    Rule(
        name=name,
        severity="error",
        title=title,
        explanation="SGLang checks it when it starts and stops.",
        source=ARGS,
        check=each(refusal),
    )
    for name, title, refusal in REFUSALS
)
