"""Flags that Vivace knows by name only: of other engines than SGLang, and of its later releases."""

from __future__ import annotations

from vivace.config.releases.tables import takers

ELSEWHERE = {
    "--max-model-len": ("vLLM", "--context-length"),
    "--gpu-memory-utilization": ("vLLM", "--mem-fraction-static"),
    "--max-num-seqs": ("vLLM", "--max-running-requests"),
    "--max-num-batched-tokens": ("vLLM", "--chunked-prefill-size"),
    "--tokenizer": ("vLLM", "--tokenizer-path"),
    "--block-size": ("vLLM", "--page-size"),
    "--ctx-size": ("llama.cpp", "--context-length"),
    "-c": ("llama.cpp", "--context-length"),
    "-m": ("llama.cpp", "--model-path"),
    "-hf": ("llama.cpp", "--model-path"),
    "--hf-repo": ("llama.cpp", "--model-path"),
    "--parallel": ("llama.cpp", "--max-running-requests"),
    "-np": ("llama.cpp", "--max-running-requests"),
    "--threads": ("llama.cpp", "--cpu-threads"),
    "-t": ("llama.cpp", "--cpu-threads"),
    "--alias": ("llama.cpp", "--served-model-name"),
    "--num-ctx": ("Ollama", "--context-length"),
    "--enforce-eager": ("vLLM", "--disable-cuda-graph"),
    "--no-enable-prefix-caching": ("vLLM", "--disable-radix-cache"),
    "--guided-decoding-backend": ("vLLM", "--grammar-backend"),
    "--structured-outputs-config": ("vLLM", "--grammar-backend"),
    "--reasoning-format": ("llama.cpp", "--reasoning-parser"),
    "--chat-template-file": ("llama.cpp", "--chat-template"),
    "-tp": ("vLLM", "--tp-size"),
    "-dp": ("vLLM", "--dp-size"),
    "-pp": ("vLLM", "--pp-size"),
    "-ep": ("vLLM", "--ep-size"),
    "--enable-expert-parallel": ("vLLM", "--ep-size"),
    "--all2all-backend": ("vLLM", "--moe-a2a-backend"),
    "--distributed-executor-backend": ("vLLM", "--use-ray"),
    "--data-parallel-backend": ("vLLM", "--use-ray"),
    "--embedding": ("llama.cpp", "--is-embedding"),
    "--embeddings": ("llama.cpp", "--is-embedding"),
    "--cache-type-k": ("llama.cpp", "--kv-cache-dtype"),
    "-ctk": ("llama.cpp", "--kv-cache-dtype"),
    "--speculative-config": ("vLLM", "--speculative-algorithm"),
    "-sc": ("vLLM", "--speculative-algorithm"),
    "--speculative-model": ("vLLM", "--speculative-draft-model-path"),
    "--speculative-model-quantization": ("vLLM", "--speculative-draft-model-quantization"),
    "--num-speculative-tokens": ("vLLM", "--speculative-num-draft-tokens"),
    "--ngram-prompt-lookup-max": ("vLLM", "--speculative-ngram-max-match-window-size"),
    "--ngram-prompt-lookup-min": ("vLLM", "--speculative-ngram-min-match-window-size"),
    **dict.fromkeys(
        ("-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft"),
        ("llama.cpp", "--speculative-draft-model-path"),
    ),
    **dict.fromkeys(
        ("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"),
        ("llama.cpp", "--speculative-num-draft-tokens"),
    ),
    "--spec-type": ("llama.cpp", "--speculative-algorithm"),
    **dict.fromkeys(
        ("-lcs", "--lookup-cache-static"),
        ("llama.cpp", "--speculative-ngram-external-corpus-path"),
    ),
}
"""what people type who come from elsewhere -> (from where, the flag that means it here)"""
_GPU = ("llama.cpp", "this version runs on the CPU")
_BATCHED = ("llama.cpp", "requests are always batched continuously")
_MEASURED = (
    "llama.cpp",
    "how many drafts a request gets follows what was accepted and what steps take",
)
_OF_THE_MODEL = ("llama.cpp", "a draft model has the threads and the KV type of the model")
_TASK = ("vLLM", "text is generated, or vectors made with --is-embedding")
_COPIED = ("llama.cpp", "weights are copied into memory")
WITHOUT = {
    "--enable-prefix-caching": (
        "vLLM",
        "prefixes are cached unless --disable-radix-cache is given",
    ),
    "--enable-chunked-prefill": ("vLLM", "long prompts are always computed in chunks"),
    "--enable-auto-tool-choice": ("vLLM", "--tool-call-parser alone finds calls"),
    "--enable-reasoning": ("vLLM", "--reasoning-parser alone splits thinking off"),
    **dict.fromkeys(
        ("--grammar", "--grammar-file", "-j", "--json-schema", "--json-schema-file"),
        ("llama.cpp", "each request brings its own, as ebnf or json_schema"),
    ),
    **dict.fromkeys(
        ("--draft-min", "--draft-n-min", "--draft-p-min", "--draft-p-split", "--spec-draft-n-min"),
        _MEASURED,
    ),
    **dict.fromkeys(
        ("-td", "--threads-draft", "-ctkd", "-ctvd", "--cache-type-k-draft"), _OF_THE_MODEL
    ),
    **dict.fromkeys(
        ("-cd", "--ctx-size-draft"), ("llama.cpp", "a draft model has the model's context")
    ),
    **dict.fromkeys(
        ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "-devd", "--device-draft"), _GPU
    ),
    "-ngl": _GPU,
    "--gpu-layers": _GPU,
    "--n-gpu-layers": _GPU,
    "-cb": _BATCHED,
    "--cont-batching": _BATCHED,
    "--mlock": _COPIED,
    "--no-mmap": _COPIED,
    "--jinja": ("llama.cpp", "templates are always Jinja"),
    "--task": _TASK,
    "--runner": _TASK,
    "--convert": _TASK,
    "--pooling": ("llama.cpp", "the model's files say what is pooled"),
    "--pooler-config": ("vLLM", "the model's files say what is pooled"),
    "--override-pooler-config": ("vLLM", "the model's files say what is pooled"),
}
"""the same where nothing means it here -> (from where, why it is to be left out)"""
_ADAPTIVE = (
    "how many drafts a request gets follows what was accepted unless --speculative-fixed-width is "
    "given"
)
_EXACT = "drafts are accepted exactly where they are what is drawn anyway"
_BLOCKS = "drafters of whole blocks (DFLASH, DSPARK) are not supported yet"
_WINDOW = "a draft attends to as much as its files say"
LATER = {
    "--speculative-adaptive": _ADAPTIVE,
    "--speculative-adaptive-config": _ADAPTIVE,
    "--speculative-use-rejection-sampling": _EXACT,
    "--speculative-use-block-verification": _EXACT,
    "--speculative-dflash-block-size": _BLOCKS,
    "--speculative-dflash-draft-window-size": _BLOCKS,
    "--speculative-dspark-block-size": _BLOCKS,
    "--speculative-dspark-align-verify-tokens-to-graph-tier": _BLOCKS,
    "--speculative-dspark-confidence-sts-path": _BLOCKS,
    "--speculative-dspark-sps-table-path": _BLOCKS,
    "--speculative-draft-window-size": _WINDOW,
    "--speculative-draft-sink-size": _WINDOW,
    "--speculative-draft-kv-cache-dtype": "a draft's KV has the type of the model's, which is "
    "--kv-cache-dtype",
    "--speculative-dsa-topk-backend": "the draft is computed by the kernels that compute the model",
    "--spec-trace-dir": "/server_info and the metrics tell how many drafts are accepted",
}
"""flags of SGLang's later releases -> why there is none here"""


def whose_flag(flag: str) -> str:
    """Of a flag of SGLang's other releases, and of other tools; else empty."""
    if releases := takers(flag):
        last = releases[-1]
        if flag in LATER:
            return f"{flag} is a flag of SGLang {last}; leave it out: {LATER[flag]}"
        return f"{flag} is a flag of SGLang {last} that this version does not have; leave it out"
    dashed = flag.replace("_", "-")  # vLLM takes both
    if dashed in ELSEWHERE:
        tool, ours = ELSEWHERE[dashed]
        return f"{flag} is a flag of {tool}; here it is {ours}"
    if dashed in WITHOUT:
        tool, reason = WITHOUT[dashed]
        return f"{flag} is a flag of {tool}; leave it out: {reason}"
    return ""
