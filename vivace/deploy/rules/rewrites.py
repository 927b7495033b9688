"""Rules about settings that SGLang changes without being asked: shown as what they become."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vivace.deploy.catalogue.architecture import LatentAttention
from vivace.deploy.memory.plan import graph_default
from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule
from vivace.deploy.rules.server import Server

ARGS = "SGLang's server_args.py, 0.5.10"
Change = Callable[[Case, Server], Iterator[tuple[str, str, str]]]
"""yields (option, what it becomes, why)"""


def notes(change: Change) -> Callable[[Case], Iterator[Found]]:
    """A rule's check from what becomes of one role."""

    def check(case: Case) -> Iterator[Found]:
        if case.target.engine != "sglang":
            return
        for server in case.servers:
            for name, becomes, why in change(case, server):
                yield Found(role=server.name, flag=server.flag(name), text=f"{becomes}: {why}")

    return check


def expert_ranks(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    asked, backend = server.number("ep_size") or 1, server.value("moe_a2a_backend")
    if server.layout.ep != asked and server.has("ep_size"):
        yield "ep_size", f"ep {asked} becomes {server.layout.ep}", f"{backend} spreads over tp"


def single_dp(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.layout.dp == 1 and server.has("enable_dp_attention"):
        yield "enable_dp_attention", "--enable-dp-attention is switched off", "dp is 1"


def chunk_by_dp(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    chunk, layout = server.number("chunked_prefill_size"), server.layout
    if layout.dp_attention and server.has("chunked_prefill_size") and chunk and chunk > 0:
        becomes = f"--chunked-prefill-size {chunk} becomes {chunk // layout.dp} for a rank"
        yield "chunked_prefill_size", becomes, f"it is divided by dp {layout.dp}"


def conservative(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.layout.dp_attention:
        given = server.value("schedule_conservativeness")
        asked = given if isinstance(given, int | float) and given else 1.0
        becomes = f"--schedule-conservativeness {asked} becomes {round(asked * 0.3, 3)}"
        yield "schedule_conservativeness", becomes, "dp attention multiplies it by 0.3"


def ascend_defaults(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if case.platform != "npu":
        return
    page = server.number("page_size")
    if server.has("page_size") and page != 128:
        yield "page_size", f"--page-size {page} becomes 128", "the only one on Ascend"
    backend = server.value("attention_backend")
    if server.has("attention_backend") and backend != "ascend":
        yield "attention_backend", f"--attention-backend {backend} becomes ascend", "on Ascend"


def draft_path(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    own = server.value("speculative_algorithm") in ("NEXTN", "EAGLE")
    brought = case.model is None or case.model.draft_layers > 0
    if own and brought and not server.has("speculative_draft_model_path"):
        why = "the model brings its own draft layers"
        yield "speculative_algorithm", "the draft model's path becomes the model's", why


def draft_name(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.value("speculative_algorithm") == "NEXTN":
        becomes = "--speculative-algorithm NEXTN becomes EAGLE"
        yield "speculative_algorithm", becomes, "one is the other's name"


def draft_limits(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if not server.has("speculative_algorithm"):
        return
    if not server.has("max_running_requests"):
        yield "max_running_requests", "--max-running-requests becomes 48", "speculation is on"
    if server.has("enable_mixed_chunk"):
        yield "enable_mixed_chunk", "--enable-mixed-chunk is switched off", "speculation is on"
    overlapped = server.switched_on("SGLANG_ENABLE_SPEC_V2") or case.target.version == "0.5.23"
    if not overlapped and not server.has("disable_overlap_schedule"):
        why = "speculation overlaps with SGLANG_ENABLE_SPEC_V2=1 only"
        yield "speculative_algorithm", "overlap of steps is switched off", why


def pipeline_overlap(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.layout.pp > 1 and not server.has("disable_overlap_schedule"):
        yield "pp_size", "overlap of steps is switched off", "a pipeline has its own"


def decode_cache(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.kind == "decode" and not server.has("disable_radix_cache"):
        yield "disaggregation_mode", "the prefix cache is switched off", "decode servers have none"


def prefill_graphs(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    piecewise = server.has("enable_piecewise_cuda_graph")
    if server.kind == "prefill" and not server.has("disable_cuda_graph") and not piecewise:
        yield "disaggregation_mode", "decode graphs are switched off", "the role only prefills"


def normal_graphs(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    normal = server.expert_mode == "normal"
    if normal and server.decodes and not server.has("disable_cuda_graph"):
        yield "deepep_mode", "decode graphs are switched off", "--deepep-mode normal"


def expert_balance(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.has("enable_eplb"):
        yield "enable_eplb", "the expert recorder's mode becomes stat", "balancing reads it"
    moved = server.has("init_expert_location") or server.number("ep_num_redundant_experts")
    if moved and not server.has("ep_dispatch_algorithm"):
        name = (
            "init_expert_location"
            if server.has("init_expert_location")
            else ("ep_num_redundant_experts")
        )
        yield name, "--ep-dispatch-algorithm becomes static", "experts have chosen places"


def shared_fusion(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    spread = server.layout.ep > 1 or case.platform == "npu"
    if server.has("disable_shared_experts_fusion") and spread:
        why = "it is off with several expert ranks and on Ascend anyway"
        yield (
            "disable_shared_experts_fusion",
            "--disable-shared-experts-fusion changes nothing",
            why,
        )


def prefix_order(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    policy = server.value("schedule_policy")
    if policy in ("lpm", "dfs-weight") and server.has("disable_radix_cache"):
        becomes = f"--schedule-policy {policy} behaves as fcfs"
        yield "schedule_policy", becomes, "it orders by cached prefixes, which are off"


def one_tokenizer(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.has("skip_tokenizer_init") and (server.number("tokenizer_worker_num") or 1) > 1:
        yield "tokenizer_worker_num", "--tokenizer-worker-num becomes 1", "nothing is tokenised"


def symmetric(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.has("enable_symm_mem") and case.platform not in ("", "cuda"):
        yield "enable_symm_mem", "--enable-symm-mem is ignored", "it is for CUDA"


def deterministic(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    if server.has("enable_deterministic_inference"):
        asked = server.value("sampling_backend")
        if asked not in (None, "pytorch"):
            becomes = f"--sampling-backend {asked} becomes pytorch"
            yield "sampling_backend", becomes, "deterministic inference"


def hicache_layout(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    layout = str(server.value("hicache_mem_layout") or "")
    if server.has("enable_hierarchical_cache") and layout.startswith("page_first"):
        io = server.value("hicache_io_backend")
        if io in ("kernel", "direct") and (layout == "page_first") == (io == "direct"):
            why = f"--hicache-io-backend {io} copies another layout"
            yield "hicache_mem_layout", f"--hicache-mem-layout {layout} is changed", why
    if server.value("hicache_storage_backend") == "mooncake" and layout == "layer_first":
        yield "hicache_mem_layout", "--hicache-mem-layout layer_first is changed", "for mooncake"


def sparse_attention(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    attention = None if case.model is None else case.model.attention
    if not isinstance(attention, LatentAttention) or not attention.index_heads:
        return
    if case.platform == "cuda" and server.number("page_size") not in (None, 64):
        becomes = f"--page-size {server.number('page_size')} becomes 64"
        yield "page_size", becomes, "sparse attention (DeepSeek-V3.2) has pages of 64"


def ascend_sizes(case: Case, server: Server) -> Iterator[tuple[str, str, str]]:
    device = case.device
    if device is None or device.platform != "npu":
        return
    if server.prefills and not server.has("chunked_prefill_size"):
        chunk = 4096 if device.memory_gib <= 32 else 8192
        why = f"a device of {device.memory_gib:g} GiB"
        yield "chunked_prefill_size", f"--chunked-prefill-size becomes {chunk}", why
    if server.decodes and not server.graphs and not server.has("disable_cuda_graph"):
        most = graph_default(server, device)
        why = f"a device of {device.memory_gib:g} GiB, tp {server.layout.tp}"
        yield "cuda_graph_max_bs", f"--cuda-graph-max-bs becomes {most}", why


CHANGES: tuple[tuple[str, str, Change], ...] = (
    ("becomes-ep", "Expert ranks follow the all-to-all backend", expert_ranks),
    ("becomes-dp-attention", "dp attention needs dp above 1", single_dp),
    ("becomes-chunk", "dp attention divides the chunk", chunk_by_dp),
    ("becomes-conservativeness", "dp attention admits more", conservative),
    ("becomes-ascend", "Ascend has one page size and attention backend", ascend_defaults),
    ("becomes-draft-path", "DeepSeek drafts with its own layers", draft_path),
    ("becomes-eagle", "NEXTN is EAGLE", draft_name),
    ("becomes-draft-limits", "Speculation limits requests and chunks", draft_limits),
    ("becomes-no-overlap", "A pipeline does not overlap steps", pipeline_overlap),
    ("becomes-no-prefix-cache", "Decode servers have no prefix cache", decode_cache),
    ("becomes-no-graphs", "Prefill servers have no decode graphs", prefill_graphs),
    ("becomes-eager", "Normal dispatch cannot be captured", normal_graphs),
    ("becomes-static-experts", "Moved experts are found by a table", expert_balance),
    ("becomes-unfused", "Shared experts are not fused here", shared_fusion),
    ("becomes-fcfs", "Without a prefix cache there is no order by prefix", prefix_order),
    ("becomes-one-tokenizer", "Without tokenizer there is one worker", one_tokenizer),
    ("becomes-no-symmetric", "Symmetric memory is for CUDA", symmetric),
    ("becomes-pytorch-sampling", "Deterministic inference has one sampler", deterministic),
    ("becomes-sparse-pages", "Sparse attention has a page size of its own", sparse_attention),
    ("becomes-sizes", "Chunks and graphs follow the device's memory", ascend_sizes),
    ("becomes-hicache-layout", "Layouts of the host cache follow its copies", hicache_layout),
)
RULES = tuple(
    Rule(
        name=name,
        severity="note",
        title=title,
        explanation="SGLang changes the setting at start-up, some with a log line, some without.",
        source=ARGS,
        check=notes(change),
    )
    for name, title, change in CHANGES
)
