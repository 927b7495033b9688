"""Flags that Vivace knows by name only: those of other engines than SGLang."""

from __future__ import annotations

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
}
"""what people type who come from elsewhere -> (from where, the flag that means it here)"""
