"""A small body for each route that takes one."""

from __future__ import annotations

from typing import Any

HI: list[Any] = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 2}},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "x"},
    "/invocations": {"messages": HI, "max_tokens": 2},
    "/vertex_generate": {
        "instances": [{"text": "x"}],
        "parameters": {"sampling_params": {"max_new_tokens": 2}},
    },
    "/api/chat": {"messages": HI, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "x", "stream": False, "options": {"num_predict": 2}},
    "/api/embed": {"input": "x"},
    "/api/embeddings": {"prompt": "x"},
    "/api/show": {"model": "toy"},
    "/v1/messages": {"messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": HI},
    "/encode": {"text": "x"},
    "/v1/embeddings": {"input": "x"},
    "/classify": {"text": "x"},
    "/v1/classify": {"input": "x"},
    "/score": {"query": "x", "items": ["y"], "label_token_ids": [65]},
    "/v1/score": {"query": "x", "items": ["y"], "label_token_ids": [65]},
    "/rerank": {"query": "x", "documents": ["y"]},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v2/rerank": {"query": "x", "documents": ["y"]},
    "/tokenize": {"prompt": "x"},
    "/v1/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [65]},
    "/v1/detokenize": {"tokens": [65]},
    "/parse_function_call": {"text": "x", "tools": [], "tool_call_parser": "hermes"},
    "/separate_reasoning": {"text": "x", "reasoning_parser": "qwen3"},
    "/abort_request": {"rid": "nobody"},
    "/add_external_corpus": {"documents": ["x"]},
    "/remove_external_corpus": {"corpus_id": "x"},
    "/configure_logging": {"log_requests_level": 2},
}
