"""Rules about speculative decoding and captured graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from vivace.deploy.case import Case
from vivace.deploy.memory.plan import concurrent_requests
from vivace.deploy.rules.rule import ARGS, GUIDE, Issue, server_rule
from vivace.deploy.server_plan import ServerPlan, if_known

GRAPHS = f"{GUIDE}, --cuda-graph-max-bs; 29 of 30 published configurations"
MTP = "SGLang 0.5.10: multi_layer_eagle_worker_v2.py"
WITH_ADAPTERS = ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")
ADAPTED_DRAFTS = "0.5.19"  # from here on some algorithms draft beside LoRA
PLAN_STREAM, RAGGED = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM", "SGLANG_RAGGED_VERIFY_MODE"
UNPUBLISHED_LORA = "experimental_sgl_trtllm"


@server_rule("draft-tokens", "warning", source=ARGS)
def draft_tokens(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """--speculative-num-draft-tokens is steps + 1 with topk 1.
    A chain has one draft for each step, and the verified token in front of them; SGLang
    corrects other values at start-up."""
    tokens = server.number("speculative_num_draft_tokens")
    steps = server.number("speculative_num_steps")
    chain = server.has("speculative_algorithm") and server.number("speculative_eagle_topk") == 1
    if chain and steps is not None and tokens is not None and tokens != steps + 1:
        text = f"{tokens} becomes {steps + 1}: with topk 1 it is steps ({steps}) + 1"
        yield Issue("speculative_num_draft_tokens", text, f"write {steps + 1}")


@server_rule("draft-complete", "error", source=ARGS)
def draft_complete(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Speculative decoding has all its flags.
    EAGLE3 and STANDALONE need a draft model. Of SGLang steps, topk and draft tokens go together;
    Vivace has a default for each."""
    algorithm = server.value("speculative_algorithm")
    if algorithm in (None, "NGRAM"):
        return
    others = ("speculative_eagle_topk", "speculative_num_draft_tokens")
    given = [server.flag(name) for name in others if server.has(name)]
    if given and not (server.ours or server.has("speculative_num_steps")):
        text = f"{given[0]} without --speculative-num-steps: an assertion without message stops it"
        yield Issue(given[0], text, "set --speculative-num-steps too, or none of them")
    if server.external_draft and not server.has("speculative_draft_model_path"):
        text = f"--speculative-algorithm {algorithm} needs --speculative-draft-model-path"
        yield Issue("speculative_algorithm", text, "set the draft model's path")


@server_rule("multi-layer-mtp", "warning", source=MTP, needs=("model",), since="0.5.7")
def multi_layer_mtp(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Multi-layer MTP makes as many steps as the checkpoint has MTP layers.
    With --enable-multi-layer-eagle, which SGLang sets itself for some models, each step has a layer
    of its own; one that the checkpoint lacks has no weights, so its drafts are refused. Other
    algorithms than EAGLE (NEXTN) ignore the flag."""
    name = "enable_multi_layer_eagle"
    model, drafts = case.known_model, server.speculative_algorithm == "EAGLE"
    if server.has(name) and not drafts:
        text = f"{server.flag(name)} is ignored: only --speculative-algorithm EAGLE drafts with it"
        yield Issue(name, text, "remove it, or draft with EAGLE")
    used, layers = server.has(name) or model.multi_layer, model.draft_layers
    steps = server.number("speculative_num_steps")
    if used and drafts and steps is not None and layers and steps > layers:
        text = f"{steps} steps, but the checkpoint has {layers} MTP layer(s), one for each step"
        remedy = f"--speculative-num-steps {layers}"
        remedy += f", or remove {server.flag(name)}" if server.has(name) else ""
        yield Issue("speculative_num_steps", text, remedy)


@server_rule("adapter-drafts", "warning", source=ARGS)
def adapter_drafts(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """LoRA is used without speculative decoding, or with NGRAM.
    The draft model has no adapters, so it guesses what the base model would say and fewer
    tokens are accepted. 0.5.5.post3 to 0.5.18 stop; later ones with algorithms but EAGLE, EAGLE3,
    DFLASH and DSPARK, with --speculative-adaptive, the overlap plan stream, verification of ragged
    lengths (DSPARK) and the MoE runner experimental_sgl_trtllm."""
    lora = next((name for name in ("enable_lora", "lora_paths") if server.has(name)), None)
    algorithm, target = server.speculative_algorithm, case.target
    if lora is None or algorithm in ("", "NGRAM"):
        return
    refused = [algorithm] if target.since("0.5.5.post3") else []
    if target.since(ADAPTED_DRAFTS):
        refused = list(refused_with_adapters(server, algorithm))
    for what in refused:
        text = f"{target.text} refuses LoRA with {what}"
        yield Issue(server.flag(lora), text, "NGRAM, or remove one of them", "error")
    if not refused:
        text = "speculation with LoRA accepts fewer tokens"
        yield Issue(server.flag(lora), text, "measure the accept length")


def refused_with_adapters(server: ServerPlan, algorithm: str) -> Iterator[str]:
    """What speculation with LoRA may not have (arg_groups/lora_hook.py, 0.5.19 to 0.5.23)."""
    if algorithm not in WITH_ADAPTERS:
        yield algorithm
    if server.role.flags.get("speculative-adaptive"):
        yield "--speculative-adaptive"
    for name in ("moe_runner_backend", "speculative_moe_runner_backend"):
        if if_known(partial(server.value, name), None) == UNPUBLISHED_LORA:
            yield f"{server.flag(name)} {UNPUBLISHED_LORA}"
    if if_known(partial(server.enabled, PLAN_STREAM), False):
        yield f"{PLAN_STREAM}=1"
    if algorithm == "DSPARK" and if_known(partial(server.variable, RAGGED), "") not in (
        "",
        "static",
    ):
        yield RAGGED


@server_rule("lossy-drafts", "warning", source="Vivace's own checks", engine="vivace")
def lossy_drafts(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Drafts change nothing but the speed.
    With --speculative-accept-threshold-single or -acc below 1 sampled answers depend on what is
    drafted, so on load, and the same seed may give another answer."""
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        value = server.value(name)
        if server.has("speculative_algorithm") and isinstance(value, int | float) and value < 1:
            text = f"{server.flag(name)} {value}: drafts change sampled answers"
            yield Issue(name, text, "leave it out for answers that do not depend on drafts")


@server_rule("graph-covers", "warning", source=GRAPHS)
def graph_covers(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Captured graphs cover the largest batch.
    A batch larger than the largest graph runs eagerly, several times slower, just when the load is
    highest. A rank admits max-running-requests, with dp attention divided by dp. It is a note where
    the stated load stays below."""
    rank, graphs = server.running_per_rank, server.graphs
    captures = server.decodes and not server.has("disable_cuda_graph")
    if captures and rank is not None and graphs and max(graphs) < rank:
        largest = max(graphs)
        stated = concurrent_requests(server, case.load)
        severity = "note" if stated is not None and stated <= largest else None
        text = f"up to {rank} requests per rank, but the largest captured batch is {largest}"
        remedy = (
            f"capture {rank}, or --max-running-requests {largest * server.parallelism.attention_dp}"
        )
        name = "cuda_graph_bs" if len(graphs) > 1 else "cuda_graph_max_bs"
        yield Issue(name, text, remedy, severity)


@server_rule("graph-sizes", "note", source=ARGS, roles=("mixed", "prefill", "decode"))
def graph_sizes(server: ServerPlan, case: Case) -> Iterator[Issue]:
    """Captured graphs are those that batches need.
    They take memory outside of mem-fraction-static. A batch is padded to the next captured size and
    costs as much as one of that size; a prefill role never decodes."""
    rank, graphs, listed = server.running_per_rank, server.graphs, server.has("cuda_graph_bs")
    name = "cuda_graph_bs" if listed else "cuda_graph_max_bs"
    if server.kind == "prefill" and listed and not server.has("disable_cuda_graph"):
        text = "--cuda-graph-bs has no effect: a prefill role captures no decode graphs"
        yield Issue(name, text, "remove it")
    if not server.decodes or rank is None or not graphs:
        return
    if max(graphs) > rank:
        text = f"batches up to {max(graphs)} are captured, but a rank runs at most {rank}"
        yield Issue(name, text, f"capture up to {rank}")
    if listed and min(graphs) > 1 and rank > 1:
        batches = "every batch" if len(graphs) == 1 else "a smaller one"
        text = f"the smallest captured batch is {min(graphs)}: {batches} is padded to it"
        yield Issue(name, text, "capture small batches too if they occur (1 2 4 ..)")
