"""Rules about speculation and captured graphs."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.deploy.rules.case import Case
from vivace.deploy.rules.finding import Found, Rule

ARGS = "SGLang's server_args.py"
GUIDE = "Ascend parameter guide"


def overlap_v2(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if not server.switched_on("SGLANG_ENABLE_SPEC_V2") or not server.has(
            "speculative_algorithm"
        ):
            continue
        topk = server.number("speculative_eagle_topk")
        if topk is not None and topk > 1:
            yield Found(
                role=server.name,
                flag=server.flag("speculative_eagle_topk"),
                text=f"SGLANG_ENABLE_SPEC_V2=1 with --speculative-eagle-topk {topk}: only 1 works",
                remedy="--speculative-eagle-topk 1, or unset SGLANG_ENABLE_SPEC_V2",
            )


def plan_stream(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.switched_on("SGLANG_ENABLE_SPEC_V2") and not server.switched_on(
            "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
        ):
            yield Found(
                role=server.name,
                flag="SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
                text="SGLANG_ENABLE_SPEC_V2=1 without SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1: the "
                "guide "
                "asks for both, the code does not insist",
                remedy="export SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1",
            )


def plan_stream_doc(case: Case) -> Iterator[Found]:
    for server in case.servers:
        both = server.switched_on("SGLANG_ENABLE_SPEC_V2") and server.switched_on(
            "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"
        )
        if both and server.value("speculative_algorithm") == "NEXTN":
            yield Found(
                role=server.name,
                flag="SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
                text="the guide calls SGLANG_ENABLE_OVERLAP_PLAN_STREAM not applicable for NEXTN, "
                "and says SGLANG_ENABLE_SPEC_V2 requires it: NEXTN configurations set both",
                remedy="nothing to do",
            )


def draft_quantised(case: Case) -> Iterator[Found]:
    for server in case.servers:
        external = server.value("speculative_algorithm") in ("EAGLE3", "STANDALONE")
        if not external or server.value("quantization") != "modelslim":
            continue
        marked = server.value("speculative_draft_model_quantization") == "unquant"
        if not marked and not server.switched_on("DISABLE_EAGLE3_QUANT"):
            yield Found(
                role=server.name,
                flag=server.flag("quantization"),
                text="the draft model inherits --quantization modelslim: its plain weights are "
                "read "
                "as quantised ones, which fails or gives garbage",
                remedy="--speculative-draft-model-quantization unquant",
            )


def draft_width(case: Case) -> Iterator[Found]:
    for server in case.servers:
        steps, topk = (
            server.number("speculative_num_steps"),
            server.number("speculative_eagle_topk"),
        )
        tokens = server.number("speculative_num_draft_tokens")
        if not server.has("speculative_algorithm") or topk != 1 or steps is None or tokens is None:
            continue
        if tokens != steps + 1:
            yield Found(
                role=server.name,
                flag=server.flag("speculative_num_draft_tokens"),
                text=f"--speculative-num-draft-tokens {tokens} becomes {steps + 1}: with topk 1 it "
                f"is steps ({steps}) + 1",
                remedy=f"write {steps + 1}",
            )


def draft_complete(case: Case) -> Iterator[Found]:
    for server in case.servers:
        algorithm = server.value("speculative_algorithm")
        if algorithm is None or algorithm == "NGRAM":
            continue
        others = ("speculative_eagle_topk", "speculative_num_draft_tokens")
        named = [name for name in others if server.has(name)]
        if named and not server.has("speculative_num_steps"):
            yield Found(
                role=server.name,
                flag=server.flag(named[0]),
                text=f"{server.flag(named[0])} without --speculative-num-steps: an assertion stops "
                "the start, without a message",
                remedy="give --speculative-num-steps too, or none of them",
            )
        if algorithm in ("EAGLE3", "STANDALONE") and not server.has("speculative_draft_model_path"):
            yield Found(
                role=server.name,
                flag=server.flag("speculative_algorithm"),
                text=f"--speculative-algorithm {algorithm} needs --speculative-draft-model-path",
                remedy="name the draft model",
            )


def ngram(case: Case) -> Iterator[Found]:
    for server in case.servers:
        if server.value("speculative_algorithm") != "NGRAM":
            continue
        if case.platform not in ("", "cuda"):
            yield Found(
                role=server.name,
                flag=server.flag("speculative_algorithm"),
                text=f"NGRAM speculation needs CUDA, and this is {case.platform}",
                remedy="EAGLE3 or NEXTN",
                severity="warning" if case.platform == "npu" else "error",
            )
        if server.layout.dp_attention:
            yield Found(
                role=server.name,
                flag=server.flag("enable_dp_attention"),
                text="NGRAM speculation does not go with --enable-dp-attention",
                remedy="leave out one of them",
            )


def adapters(case: Case) -> Iterator[Found]:
    for server in case.servers:
        lora = next((name for name in ("enable_lora", "lora_paths") if server.has(name)), None)
        if lora is not None and server.has("speculative_algorithm"):
            yield Found(
                role=server.name,
                flag=server.flag(lora),
                text="LoRA adapters and speculation work together with restrictions only: the "
                "draft "
                "knows no adapter, and accepts less",
                remedy="measure the accept length with adapters before you rely on it",
            )


def graph_covers(case: Case) -> Iterator[Found]:
    for server in case.servers:
        rank, graphs = server.running_per_rank, server.graphs
        captured = server.decodes and not server.has("disable_cuda_graph")
        if captured and rank is not None and graphs and max(graphs) < rank:
            yield Found(
                role=server.name,
                flag=server.flag("cuda_graph_bs" if len(graphs) > 1 else "cuda_graph_max_bs"),
                text=f"up to {rank} requests of a rank run at once, the largest captured batch is "
                f"{max(graphs)}: larger ones run without a graph",
                remedy=f"capture {rank}, or --max-running-requests "
                f"{max(graphs) * server.layout.dp}",
            )


def graph_beyond(case: Case) -> Iterator[Found]:
    for server in case.servers:
        rank, graphs = server.running_per_rank, server.graphs
        if server.decodes and rank is not None and graphs and max(graphs) > rank:
            yield Found(
                role=server.name,
                flag=server.flag(
                    "cuda_graph_bs" if server.has("cuda_graph_bs") else "cuda_graph_max_bs"
                ),
                text=f"batches up to {max(graphs)} are captured, a rank runs {rank} at most: "
                "memory "
                "and start-up time for graphs that are never used",
                remedy=f"capture up to {rank}",
            )


def graph_pads(case: Case) -> Iterator[Found]:
    for server in case.servers:
        sizes = server.value("cuda_graph_bs")
        graphs = server.graphs
        if not server.decodes or not isinstance(sizes, tuple | list) or not graphs:
            continue
        rank = server.running_per_rank or 0
        if min(graphs) > 1 and rank > 1:
            only = len(graphs) == 1
            yield Found(
                role=server.name,
                flag=server.flag("cuda_graph_bs"),
                text=f"the smallest captured batch is {min(graphs)}: "
                + ("every batch" if only else "a smaller one")
                + f" is filled up to {min(graphs)} rows",
                remedy="capture small batches too when they occur (1 2 4 ..)",
            )


def graph_on_prefill(case: Case) -> Iterator[Found]:
    for server in case.of("prefill"):
        if server.has("cuda_graph_bs") and not server.has("disable_cuda_graph"):
            yield Found(
                role=server.name,
                flag=server.flag("cuda_graph_bs"),
                text="a prefill role captures no decode graphs: --cuda-graph-bs has no effect "
                "there",
                remedy="leave it out",
            )


RULES = (
    Rule(
        name="spec-v2",
        severity="error",
        title="Overlapped speculation drafts one token a step",
        explanation="SGLANG_ENABLE_SPEC_V2 works with --speculative-eagle-topk 1 only.",
        source=GUIDE,
        check=overlap_v2,
    ),
    Rule(
        name="plan-stream",
        severity="note",
        title="Overlapped speculation plans on its own stream",
        explanation="The guide says SPEC_V2 requires the plan stream.",
        source=GUIDE,
        check=plan_stream,
    ),
    Rule(
        name="plan-stream-guide",
        severity="doc",
        title="What the parameter guide says about the plan stream",
        explanation="It contradicts itself for NEXTN.",
        source=GUIDE,
        check=plan_stream_doc,
    ),
    Rule(
        name="draft-quantisation",
        severity="error",
        title="A plain draft model is not taken for a quantised one",
        explanation="The draft inherits the target's --quantization unless it is marked.",
        source="SGLang; every published EAGLE3 configuration but one marks it",
        check=draft_quantised,
    ),
    Rule(
        name="draft-tokens",
        severity="warning",
        title="Draft tokens are steps + 1 with topk 1",
        explanation="SGLang rewrites the value.",
        source=ARGS,
        check=draft_width,
    ),
    Rule(
        name="draft-complete",
        severity="error",
        title="Speculation is told all it needs",
        explanation="Steps, topk and draft tokens go together; EAGLE3 and STANDALONE need a draft "
        "model.",
        source=ARGS,
        check=draft_complete,
    ),
    Rule(
        name="ngram",
        severity="error",
        title="N-gram speculation runs where it can",
        explanation="It is for CUDA, without dp attention; on Ascend it is experimental.",
        source=ARGS,
        check=ngram,
    ),
    Rule(
        name="adapter-drafts",
        severity="warning",
        title="Adapters go without drafts",
        explanation="SGLang restricts LoRA with speculation.",
        source=ARGS,
        check=adapters,
    ),
    Rule(
        name="graph-covers",
        severity="error",
        title="Captured batches cover the admitted ones",
        explanation="A batch larger than the largest graph runs eagerly, several times slower, "
        "just "
        "when the load is highest. max-running-requests / dp is what a rank admits.",
        source="Ascend parameter guide, --cuda-graph-max-bs; 29 of 30 published configurations",
        check=graph_covers,
    ),
    Rule(
        name="graph-unused",
        severity="note",
        title="No batch is captured that cannot occur",
        explanation="Graphs take memory outside of mem-fraction-static.",
        source="implied",
        check=graph_beyond,
    ),
    Rule(
        name="graph-padding",
        severity="note",
        title="Small batches have small graphs",
        explanation="A batch is filled up to the next captured size.",
        source="implied",
        check=graph_pads,
    ),
    Rule(
        name="graph-on-prefill",
        severity="note",
        title="Prefill roles do not list decode graphs",
        explanation="A prefill server turns decode graphs off.",
        source=ARGS,
        check=graph_on_prefill,
    ),
)
