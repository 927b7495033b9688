"""/metrics beside the names of SGLang 0.5.10: each is there with its type and labels, or it needs
a feature that this server does not have."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from server_kit import VOCABULARY, ScriptedEngine, ask, running_server

from vivace.engine.scheduler import Scheduler
from vivace.engine.settings import EngineSettings
from vivace.protocol.messages import Capacity
from vivace.server.settings import ServerSettings

RANKS = {"model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank"}
HTTP = {*RANKS, "endpoint", "method"}

GAUGES = """
    cache_hit_rate decode_sum_seq_lens engine_load_weights_time engine_startup_time
    full_token_usage gen_throughput is_cuda_graph max_total_num_tokens new_token_ratio
    num_queue_reqs num_retracted_reqs num_running_reqs num_used_tokens token_usage""".split()
COUNTERS = """
    cached_tokens_total cuda_graph_passes_total evicted_tokens_total generation_tokens_total
    num_aborted_requests_total num_requests_total num_retracted_input_tokens_total
    num_retracted_output_tokens_total num_retracted_requests_total prompt_tokens_total""".split()
HISTOGRAMS = """
    e2e_request_latency_seconds generation_tokens_histogram inter_token_latency_seconds
    num_retractions prompt_tokens_histogram queue_time_seconds
    time_to_first_token_seconds""".split()

THERE: dict[str, tuple[str, set[str]]] = {
    **dict.fromkeys(GAUGES, ("gauge", RANKS)),
    **dict.fromkeys(COUNTERS, ("counter", RANKS)),
    **dict.fromkeys(HISTOGRAMS, ("histogram", RANKS)),
    "cache_config_info": ("gauge", {*RANKS, "page_size", "num_pages"}),
    "startup_latency_breakdown_seconds_max": ("gauge", {*RANKS, "context"}),
    "realtime_tokens_total": ("counter", {*RANKS, "mode"}),
    "process_cpu_seconds_total": ("counter", {*RANKS, "component"}),
    "per_stage_req_latency_seconds": ("histogram", {*RANKS, "stage"}),
    "http_requests_total": ("counter", HTTP),
    "http_responses_total": ("counter", {*HTTP, "status_code"}),
    "http_requests_active": ("gauge", HTTP),
}
MISSING = {
    "host and storage tiers of the cache": """
        backup_bandwidth backup_pgs backuped_tokens_total hicache_host_total_tokens
        hicache_host_used_tokens load_back_duration_seconds load_back_tokens_total
        prefetch_bandwidth prefetch_pgs prefetched_tokens_total""",
    "prefill and decode in different servers": """
        kv_transfer_alloc_ms kv_transfer_bootstrap_ms kv_transfer_latency_ms
        kv_transfer_speed_gb_s kv_transfer_total_mb num_bootstrap_failed_reqs_total
        num_decode_prealloc_queue_reqs num_decode_transfer_queue_reqs
        num_prefill_inflight_queue_reqs num_prefill_prealloc_queue_reqs num_prefill_retries_total
        num_transfer_failed_reqs_total pending_prealloc_token_usage""",
    "structured output": """
        grammar_compilation_time_seconds grammar_ebnf_size grammar_schema_count
        grammar_tree_traversal_time_avg grammar_tree_traversal_time_max num_grammar_aborted_total
        num_grammar_cache_hit_total num_grammar_queue_reqs num_grammar_timeout_total
        num_grammar_total num_so_requests_total""",
    "a GPU, its timers and the model's operation counts": """
        estimated_flops_per_gpu_total estimated_read_bytes_per_gpu_total
        estimated_write_bytes_per_gpu_total gpu_execution_seconds_total
        gpu_overlap_wait_seconds_total""",
    "several data-parallel ranks, expert parallelism": """
        dp_cooperation_gpu_execution_seconds_total dp_cooperation_realtime_tokens_total
        eplb_balancedness eplb_gpu_physical_count prefill_delayer_outcomes_total
        prefill_delayer_wait_forward_passes prefill_delayer_wait_seconds""",
    "adapters": "lora_pool_slots_total lora_pool_slots_used lora_pool_utilization",
    "speculation": "spec_accept_length spec_accept_rate",
    "recurrent layers, a pool for sliding windows": "mamba_usage swa_token_usage",
    "scheduling by routing key": """
        num_unique_running_routing_keys routing_key_all_req_count routing_key_running_req_count
        routing_keys_active""",
    "pausing of generation": "num_paused_reqs",
    "background requests": "num_running_reqs_offline_batch",
    "a number of requests that keeps a latency target": "utilization",
    "timers in functions of the server": "func_latency_seconds",
    "a clock in the page books: a step's evictions are part of its planning": """
        eviction_duration_seconds""",
}
NAMES = 101
"""How many there are."""


def test_every_metric_of_sglang_is_there_or_has_a_reason() -> None:
    missing = [name for names in MISSING.values() for name in names.split()]
    assert len(missing) == len(set(missing))
    assert not set(missing) & set(THERE)
    assert len(missing) + len(THERE) == NAMES


def test_names_types_and_labels() -> None:
    capacity = Capacity(pages=50, page_size=4, rows=4, context=64, vocabulary=VOCABULARY)
    startup = {"loading_weights": 1.5, "sizing_the_kv_pool": 0.5}
    scheduler = Scheduler(EngineSettings(eos_ids=(1,)), capacity, lambda: 0.0, startup)
    engine = ScriptedEngine(state=scheduler.state())
    with running_server(ServerSettings(metrics=True), engine) as server:
        ask(server, "/health", method="GET")
        ask(server, "/generate", {"text": "a", "unknown": 1, "model": "other"})
        page = ask(server, "/metrics", method="GET").text
    found: dict[str, tuple[str, set[str]]] = {}
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        if not family.name.startswith("sglang:"):
            assert family.name.startswith("vivace:"), family.name
            assert all(sample.labels.keys() >= RANKS for sample in family.samples), family.name
            continue
        name = family.name.removeprefix("sglang:") + ("_total" if family.type == "counter" else "")
        (labels,) = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        found[name] = (family.type, set(labels))
        values |= {sample.name: sample.value for sample in family.samples}
        for sample in family.samples:
            for rank in ("tp_rank", "pp_rank", "dp_rank"):
                assert sample.labels[rank] == "0"
    assert found == THERE
    assert "vivace:kv_resident_bytes{" in page
    assert values["sglang:engine_startup_time"] == 2.0
    assert values["sglang:engine_load_weights_time"] == 1.5
    assert values["sglang:cache_config_info"] == 1.0
    assert values["sglang:process_cpu_seconds_total"] > 0
