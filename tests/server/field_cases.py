"""What each field of each request does: the facts that test_server_every_field proves.

A field is refused (it stands in a table of refused fields), or it has cases here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from server_kit import MODEL

from vivace.requests import custom_tools, tools
from vivace.requests import schema as requests
from vivace.requests.embeddings import ENCODE_REFUSED, EncodeRequest
from vivace.server import schema as native
from vivace.server.apis import anthropic_schema as anthropic
from vivace.server.apis import ollama_schema as ollama
from vivace.server.apis import responses_schema as responses
from vivace.server.apis import vertex
from vivace.server.classify import ClassifyRequest
from vivace.server.openai import schema as openai
from vivace.server.openai.embeddings import EMBEDDING_REFUSED, EmbeddingRequest
from vivace.server.rerank import RERANK_REFUSED, RankedDocument, RerankRequest
from vivace.server.scores import SCORE_REFUSED, ScoreRequest
from vivace.server.tokens import OF_CONVERSATIONS

ABSENT = object()


@dataclass(frozen=True)
class Effect:
    """`one` and `other` differ in what `sees` sees: the answer, the engine's request, the request
    log, or the metrics of the HTTP layer. `around`: the rest of the body, where it matters."""

    one: Any
    other: Any
    sees: str = "answer"
    around: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Logged:
    """The value is in the request log, and nothing else differs."""

    value: Any


@dataclass(frozen=True)
class Refused:
    """400 names the field and says `says`."""

    value: Any
    says: str
    around: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Harmless:
    """The same as leaving the field out, because of `why`."""

    values: tuple[Any, ...]
    why: str
    around: Mapping[str, Any] = field(default_factory=dict)


Case = Effect | Logged | Refused | Harmless

HI: list[Any] = [{"role": "user", "content": "hi"}]
HALF: list[Any] = [*HI, {"role": "assistant", "content": "Well"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
THOUGHT = "<think>hm</think>The quick brown fox"
"""What the model says: reasoning, and then text."""
TWO_CALLS = '<tool_call>{"name": "f"}</tool_call>' * 2
"""What it says next."""
OTHER_TOOL = {"type": "function", "function": {"name": "g"}}
NAMED = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}

A_FORMAT = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
REGEX_TOOL = {"type": "custom", "custom": {"name": "f", "format": A_FORMAT}}
A_FILE = {"type": "input_file"}
OWN_TEXT = {"type": "custom", "name": "f", "parameters": None}

KEYS: dict[str, list[Case]] = {
    "rid": [Effect("a", "b", "engine")],
    "priority": [Effect(1, 2, "engine")],
    "routed_dp_rank": [Effect(ABSENT, 0, "engine"), Refused(1, "0 to 0")],
    "data_parallel_rank": [Effect(ABSENT, 0, "engine"), Refused(1, "0 to 0")],
    "extra_key": [Effect("a", "b", "engine")],
    "cache_salt": [Effect("a", "b", "engine")],
}

SAMPLING: dict[str, list[Case]] = {
    "temperature": [Effect(0.5, 0.7, "engine")],
    "top_p": [Effect(0.5, 0.7, "engine")],
    "top_k": [Effect(5, 7, "engine")],
    "min_p": [Effect(0.1, 0.2, "engine")],
    "frequency_penalty": [Effect(0.5, 0.7, "engine")],
    "presence_penalty": [Effect(0.5, 0.7, "engine")],
    "repetition_penalty": [Effect(0.5, 0.7, "engine")],
    "logit_bias": [Effect({"65": 1}, {"65": 2}, "engine")],
    "n": [Effect(1, 2)],
    "stop": [Effect("hm", "think")],
    "stop_token_ids": [Effect([ord("k")], [ord("h")])],
    "no_stop_trim": [Effect(True, False, around={"stop": "hm"})],
    "ignore_eos": [Effect(True, False, "engine")],
    "skip_special_tokens": [Effect(True, False)],
    "spaces_between_special_tokens": [Effect(True, False, "engine")],
}

STRUCTURED: dict[str, list[Case]] = {
    "json_schema": [
        Effect('{"type": "null"}', {"type": "integer"}, "engine"),
        Refused(3, "string or an object"),
    ],
    "regex": [Effect("a+", "b+", "engine"), Refused({"a": 1}, "string")],
    "ebnf": [Effect('root ::= "a"', 'root ::= "b"', "engine"), Refused(["a"], "string")],
    "structural_tag": [Effect("{}", {"format": {}}, "engine"), Refused(["a"], "string")],
}

NATIVE_SAMPLING: dict[str, list[Case]] = {
    **SAMPLING,
    **STRUCTURED,
    "max_new_tokens": [Effect(2, 3)],
    "min_new_tokens": [Effect(1, 2, "engine")],
    "sampling_seed": [Effect(1, 2, "engine")],
    "stream_interval": [Effect(1, 2, "engine")],
}

WITH_LOGPROBS = {"return_logprob": True}

GENERATE: dict[str, list[Case]] = {
    "max_thinking_tokens": [
        Effect(1, 2, "engine"),
        Effect(1, None, "engine", {"sampling_params": {"regex": "a+"}}),
        Refused(-1, "at least"),
    ],
    "thinking_token_budget": [Effect(1, 2, "engine"), Refused(-1, "at least")],
    "thinking_budget": [Refused(1, "give one", {"max_thinking_tokens": 2})],
    "custom_params": [
        Effect({"thinking_budget": 1}, {"thinking_budget": 2}, "engine"),
        Refused({"a": 1}, "thinking_budget"),
    ],
    **KEYS,
    "text": [Effect("ab", "abc")],
    "input_ids": [Effect([65], [65, 66], around={"text": None})],
    "sampling_params": [Effect({"max_new_tokens": 1}, {"max_new_tokens": 2})],
    "return_logprob": [Effect(True, False)],
    "logprob_start_len": [Effect(0, -1, around=WITH_LOGPROBS)],
    "top_logprobs_num": [Effect(1, 2, around=WITH_LOGPROBS)],
    "token_ids_logprob": [Effect([65], [66], around=WITH_LOGPROBS)],
    "return_text_in_logprobs": [Effect(True, False, around=WITH_LOGPROBS)],
    "return_prompt_token_ids": [Effect(True, False)],
    "return_hidden_states": [
        Effect(True, False),
        Effect(True, False, around={"stream": True}),
        Refused("last", "bool"),
    ],
    "stream": [Effect(True, False)],
    "resumed": [
        Effect([65], [66], "engine", {"sampling_params": {"temperature": 0}}),
        Effect(ABSENT, [65], around={"sampling_params": {"sampling_seed": 3}}),
        Refused([65], "sampling_seed", {"sampling_params": {"temperature": 0.7}}),
        Refused([65], "n must", {"sampling_params": {"temperature": 0, "n": 2}}),
        Refused([-1], "token ids", {"sampling_params": {"temperature": 0}}),
        Refused(
            [65, 66], "max_new_tokens", {"sampling_params": {"temperature": 0, "max_new_tokens": 1}}
        ),
    ],
    "no_logs": [Effect(True, False, "log")],
    "log_metrics": [Effect(True, False, "engine")],
    "routing_key": [Logged("key-1")],
    "conversation_id": [Logged("talk-1")],
    "external_trace_header": [Logged({"traceparent": "00-4bf9"}), Refused("00-4bf9", "object")],
}

ENCODE_KEYS = (
    *("rid", "priority", "routed_dp_rank", "data_parallel_rank"),
    *("extra_key", "cache_salt"),
)
ENCODE: dict[str, list[Case]] = {
    **{key: KEYS[key] for key in ENCODE_KEYS},
    "text": [Effect("ab", "abc"), Effect("ab", ["ab"])],
    "input_ids": [Effect([65], [65, 66], around={"text": None})],
    "dimensions": [Effect(None, 2), Effect(2, 3), Refused(0, "between"), Refused(5, "between")],
    "return_prompt_token_ids": [Effect(True, False)],
    "log_metrics": [Effect(True, False, "engine")],
    "routing_key": [Logged("key-1")],
    "external_trace_header": [Logged({"traceparent": "00-4bf9"})],
    "embed_override_token_id": [Refused(0, "overrides"), Refused(3, "overrides")],
}

SHARED: dict[str, list[Case]] = {
    **KEYS,
    **SAMPLING,
    **STRUCTURED,
    "model": [
        Effect(MODEL, "gpt-9", "metrics"),
        Effect(MODEL, "llama3:8b", "metrics"),
        Refused("toy:poet", "LoRA"),
        Refused("default:poet", "LoRA"),
        Refused("/models/toy:poet", "LoRA"),
        Harmless((MODEL, "default", "", "/models/toy"), "names of the served model"),
    ],
    "max_tokens": [Effect(2, 3)],
    "min_tokens": [Effect(1, 2, "engine")],
    "seed": [Effect(1, 2, "engine")],
    "stream": [Effect(True, False)],
    "stream_options": [Effect({"include_usage": True}, None, around={"stream": True})],
    "user": [Logged("somebody")],
    "metadata": [Logged({"trace": "trace-1"}), Refused({"trace": 1}, "str")],
    "return_token_ids": [Effect(True, False)],
    "return_prompt_token_ids": [Effect(True, False)],
    "return_cached_tokens_details": [
        Effect(True, False),
        Effect(True, False, around={"stream": True}),
    ],
    "response_format": [
        Harmless(({"type": "text"},), "answers are text"),
        Effect({"type": "text"}, {"type": "json_object"}, "engine"),
        Refused({"type": "json"}, "json_schema"),
    ],
    "return_flat_raw_top_logprobs_b64": [
        Harmless((True, False), "the form of something that is refused")
    ],
}

EMBEDDING: dict[str, list[Case]] = {
    "normalize": [Refused(False, "files"), Harmless((True, None), "as the files say")],
    "add_special_tokens": [Refused(False, "files"), Harmless((True, None), "as the files say")],
    "rid": KEYS["rid"],
    "priority": KEYS["priority"],
    "model": SHARED["model"],
    "input": [Effect("ab", "abc"), Effect([65], ["a", "b"])],
    "encoding_format": [
        Effect("float", "base64"),
        Harmless(("float",), "the default"),
        Refused("int8", "float"),
    ],
    "dimensions": ENCODE["dimensions"],
    "user": [Logged("somebody")],
    "embed_override_token_id": ENCODE["embed_override_token_id"],
}

CLASSIFY: dict[str, list[Case]] = {
    **{name: EMBEDDING[name] for name in ("rid", "priority", "model", "input", "user")}
}
SCORE: dict[str, list[Case]] = {
    "query": [Effect("ab", "abc")],
    "items": [Effect("ab", ["a", "b"]), Refused([], "not empty")],
    "label_token_ids": [Effect([65], [65, 66]), Effect([65], [[66]])],
    "apply_softmax": [Effect(True, False)],
    "item_first": [Effect(True, False, "engine")],
    "rid": KEYS["rid"],
    "temperature": [Effect(0.5, None, "engine"), Refused("hot", "float")],
    "model": SHARED["model"],
    "embed_override_token_id": ENCODE["embed_override_token_id"],
}
RERANK: dict[str, list[Case]] = {
    "query": [Effect("ab", "abc", "engine")],
    "documents": [Effect(["a"], ["a", "b"])],
    "instruct": [Effect("judge", None, "engine")],
    "top_n": [Effect(1, None, around={"documents": ["a", "b"]}), Refused(0, "at least 1")],
    "return_documents": [Effect(True, False)],
    "rid": KEYS["rid"],
    "model": SHARED["model"],
    "user": [Logged("somebody")],
}

COMPLETION: dict[str, list[Case]] = {
    **SHARED,
    "prompt": [Effect("ab", "abc"), Effect([65], ["a", "b"])],
    "best_of": [
        Harmless((1,), "it is what n says"),
        Refused(3, "equal to n"),
    ],
    "echo": [Effect(True, False), Effect(True, False, around={"stream": True})],
    "suffix": [Refused("x", "fill in the middle")],
    "logprobs": [Effect(None, 0), Effect(1, 2)],
}

CHAT: dict[str, list[Case]] = {
    **SHARED,
    "messages": [Effect(HI, HALF)],
    "max_completion_tokens": [Effect(2, 3)],
    "logprobs": [Effect(True, False)],
    "top_logprobs": [Effect(1, 2, around={"logprobs": True})],
    "continue_final_message": [Effect(True, False, "engine", {"messages": HALF})],
    "chat_template_kwargs": [Effect({"shout": 1}, {"shout": 2}, "engine")],
    "reasoning_effort": [Effect("low", "high", "engine")],
    "max_thinking_tokens": [
        Effect(1, 2, "engine"),
        Refused(-1, "at least"),
    ],
    "thinking_token_budget": [Effect(1, 2, "engine")],
    "thinking_budget": [
        Effect(1, None, "engine"),
        Refused(1, "give one", {"max_thinking_tokens": 2}),
    ],
    "custom_params": [
        Effect({"thinking_budget": 1}, {"thinking_budget": 2}, "engine"),
        Refused({"thinking_budget": "x"}, "whole number"),
        Refused({"a": 1}, "thinking_budget"),
    ],
    "tools": [
        Effect([TOOL], None, around={"max_tokens": 99}),
        Effect([TOOL], None, "engine"),
        Refused([TOOL, TOOL], "twice"),
        Harmless(([], [TOOL]), "they are not to be called", {"tool_choice": "none"}),
    ],
    "tool_choice": [
        Effect("auto", "none", "engine", {"tools": [TOOL]}),
        Effect("required", "auto", "engine", {"tools": [TOOL]}),
        Refused("required", "does not go", {"tools": [TOOL], "regex": "a"}),
        Refused(NAMED, "none of tools"),
        Refused("required", "needs tools"),
        Refused("always", "must be"),
        Harmless(("none", "auto"), "there are no tools"),
    ],
    "parallel_tool_calls": [Effect(True, False, around={"tools": [TOOL], "max_tokens": 200})],
    "separate_reasoning": [Effect(True, False), Effect(True, False, around={"stream": True})],
    "stream_reasoning": [Effect(True, False, around={"stream": True})],
    "service_tier": [
        Effect("auto", None),
        Effect("priority", None, around={"stream": True}),
        Effect("on_demand", None),
    ],
    "prediction": [
        Harmless(({"type": "content", "content": "The quick"}, "x"), "it is about speed only")
    ],
    "safety_identifier": [Logged("hash-1")],
    "prompt_cache_key": [Logged("bucket-1")],
    "prompt_cache_retention": [Logged("24h")],
    "verbosity": [Logged("low")],
    "web_search_options": [Refused({}, "searches no web")],
}

TOKENIZE_CHAT = {"prompt": None, "messages": HALF}

TOKENIZE: dict[str, list[Case]] = {
    "model": SHARED["model"],
    "prompt": [Effect("a", ["a", "b"])],
    "messages": [Effect(HI, HALF, around={"prompt": None})],
    "tools": [
        Effect([TOOL], None, around=TOKENIZE_CHAT),
        Harmless(([TOOL],), "not called", {**TOKENIZE_CHAT, "tool_choice": "none"}),
    ],
    "tool_choice": [
        Refused("required", "needs tools", TOKENIZE_CHAT),
        Harmless(("none", "auto"), "there are no tools", TOKENIZE_CHAT),
    ],
    "add_special_tokens": [
        Effect(True, False),
        Harmless((True, False), "templates write special tokens themselves", TOKENIZE_CHAT),
    ],
    "add_generation_prompt": [Effect(True, False, around=TOKENIZE_CHAT)],
    "continue_final_message": [
        Effect(True, False, around={**TOKENIZE_CHAT, "add_generation_prompt": False})
    ],
    "chat_template_kwargs": [Effect({"shout": 1}, {"shout": 2}, around=TOKENIZE_CHAT)],
    "reasoning_effort": [Effect("low", "high", around=TOKENIZE_CHAT)],
}
for name, value in zip(OF_CONVERSATIONS, (True, True, "low", {"shout": 1}, [TOOL]), strict=True):
    TOKENIZE[name].append(Refused(value, "goes with messages only"))

DETOKENIZE: dict[str, list[Case]] = {
    "model": SHARED["model"],
    "tokens": [Effect([65], [[65], [66]])],
    "skip_special_tokens": [Effect(True, False, around={"tokens": [65, 257]})],
}

TWO_TURNS = {"messages": [*HI, {"role": "user", "content": [{"type": "text", "text": "a"}]}]}
ANTHROPIC_BASE = {**TWO_TURNS, "max_tokens": 24}
ANTHROPIC_TOOLS = {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"}}
TOOL_USE = {"type": "tool_use", "name": "f", "id": "1"}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "1"}
CACHED = "prefixes are cached without being asked"
UNCALLED = "tools are not to be called"
CLEAR: dict[str, Any] = {"type": "clear_thinking_20251015"}
THOUGHTS: dict[str, Any] = {
    "messages": [
        *HI,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
        *HI,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "ha"}]},
        *HI,
    ]
}
DOCUMENT: dict[str, Any] = {"type": "document", "source": {"type": "text", "data": "x"}}
PARTS: dict[str, Any] = {"type": "content", "content": [{"type": "text", "text": "x"}]}
COUNT_TOKENS: dict[str, list[Case]] = {
    "model": SHARED["model"],
    "messages": [Effect(HI, HALF)],
    "system": [Effect("a", "abc")],
    "tools": [
        Effect(ANTHROPIC_TOOLS["tools"], None),
        Harmless(([], ANTHROPIC_TOOLS["tools"]), UNCALLED, {"tool_choice": {"type": "none"}}),
    ],
    "tool_choice": [
        Harmless(({"type": "none"}, {"type": "auto"}), "there are no tools"),
        Refused({"type": "any"}, "needs tools"),
    ],
    "thinking": [Effect({"type": "enabled"}, {"type": "disabled"})],
    "output_config": [Effect({"effort": "low"}, {"effort": "high"})],
    "context_management": [
        Harmless(({}, {"edits": []}), "no edits"),
        Effect({"edits": [CLEAR]}, None, around=THOUGHTS),
        Refused({"edits": [{"type": "clear_tool_uses_20250919"}]}, "only clear_thinking"),
    ],
    "cache_control": [Harmless(({"type": "ephemeral"},), CACHED)],
}
ANTHROPIC: dict[str, list[Case]] = {
    **COUNT_TOKENS,
    "max_tokens": [Effect(2, 3)],
    "stop_sequences": [Effect(["hm"], ["think"])],
    "stream": [Effect(True, False)],
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k")},
    "metadata": [Logged({"user_id": "u-1"})],
    "service_tier": [Harmless(("auto", "standard_only"), "there is one tier")],
}
FILE_FIELDS: dict[str, list[Case]] = {
    "file_data": [
        Effect("aGk=", "data:text/plain;base64,aGEh", "engine", A_FILE),
        Effect("a\r\nGk=\n", "data:application/octet-stream;base64,aGEh", "engine", A_FILE),
        Refused(None, "required", A_FILE),
        Refused("data:application/pdf;base64,aGk=", "text only", A_FILE),
        Refused("data:text/plain,hi", "base64", A_FILE),
        Refused("data:" + ";" * 100_000, "base64", A_FILE),
        Refused("?", "base64", A_FILE),
        Refused("//8=", "no text", A_FILE),
    ],
    "filename": [Effect("a.txt", "b.txt", "engine", {**A_FILE, "file_data": "aGk="})],
    "file_id": [Refused("file-1", "stores no files", A_FILE)],
    "file_url": [Refused("http://localhost", "fetches none", A_FILE)],
}
CONTENT_BLOCK: dict[str, list[Case]] = {
    "type": [
        Refused("image", "takes text only"),
        Refused("server_tool_use", "no tools of its own"),
        Refused("search_result", "document"),
    ],
    "text": [Effect("a", "b", "engine"), Refused(ABSENT, "text", {"text": None})],
    "id": [Effect("1", "2", "engine", TOOL_USE), Refused(None, "required", TOOL_USE)],
    "name": [Effect("f", "g", "engine", TOOL_USE), Refused(None, "required", TOOL_USE)],
    "input": [Effect({"a": 1}, {"a": 2}, "engine", TOOL_USE)],
    "tool_use_id": [
        Effect("1", "2", "engine", TOOL_RESULT),
        Refused(None, "required", {"type": "tool_result"}),
    ],
    "content": [
        Effect("x", "y", "engine", TOOL_RESULT),
        Effect("x", [{"type": "text", "text": "y"}], "engine", TOOL_RESULT),
        Refused([{"type": "image"}], "takes text only", TOOL_RESULT),
    ],
    "is_error": [Effect(True, False, "engine", {**TOOL_RESULT, "content": "x"})],
    "thinking": [
        Effect("hm", "ha", "engine", {"type": "thinking"}),
        Refused(None, "required", {"type": "thinking"}),
    ],
    "signature": [Harmless(("abc",), "nobody checks it", {"type": "thinking", "thinking": "hm"})],
    "data": [Harmless(("abc",), "only Anthropic can read it", {"type": "redacted_thinking"})],
    "source": [
        Effect(
            {"type": "text", "data": "x"}, {"type": "content", "content": "y"}, "engine", DOCUMENT
        ),
        Refused({"type": "base64", "data": "aGk="}, "text only", DOCUMENT),
        Refused("x", "text only", DOCUMENT),
        Harmless(("x",), "it is no document"),
    ],
    "title": [Effect("a", "b", "engine", DOCUMENT)],
    "context": [Effect("a", "b", "engine", DOCUMENT)],
    "citations": [
        Harmless((None, {"enabled": False}), "there are none", DOCUMENT),
        Refused({"enabled": True}, "leave citations out", DOCUMENT),
        Harmless(([{"type": "char_location"}],), "of a past answer"),
    ],
    "cache_control": [Harmless(({"type": "ephemeral"},), CACHED)],
}

STAYS = "the model stays while the server runs"
AT_THE_START = "decided when the server starts"
OLLAMA: dict[str, list[Case]] = {
    "model": SHARED["model"],
    "stream": [Effect(True, False)],
    "options": [Effect({"num_predict": 2}, {"num_predict": 3})],
    "format": [
        Effect("", "json", "engine"),
        Effect({"type": "array"}, {"type": "object"}, "engine"),
        Refused("xml", "JSON schema"),
        Harmless(("",), "answers are text"),
    ],
    "think": [
        Effect(True, False, "engine"),
        Effect("low", "high", "engine"),
        Refused("much", "must be"),
    ],
    "logprobs": [Effect(True, False)],
    "top_logprobs": [Effect(1, 2, around={"logprobs": True})],
    "keep_alive": [Harmless(("5m", 0, -1), STAYS)],
}
OLLAMA_OPTIONS: dict[str, list[Case]] = {
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "stop")},
    **{name: SAMPLING[name] for name in ("presence_penalty", "frequency_penalty")},
    "seed": SHARED["seed"],
    "num_predict": [Effect(2, 3), Harmless((-1, -2), "as many as there is room for")],
    "repeat_penalty": [Effect(1.1, 1.2, "engine")],
    "repeat_last_n": [
        Effect(0, -1, "engine", {"repeat_penalty": 1.2}),
        Refused(64, "whole answer"),
    ],
    "mirostat_tau": [Harmless((5.0,), "it is about mirostat, which is refused")],
    "mirostat_eta": [Harmless((0.1,), "it is about mirostat, which is refused")],
    "penalize_newline": [Refused(False, "every token"), Harmless((True,), "they are penalized")],
    **{
        name: [Harmless((4096, True), AT_THE_START)]
        for name in (
            *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa"),
            *("low_vram", "use_mmap", "use_mlock"),
        )
    },
}
OLLAMA_SHORT = {"stream": False, "options": {"num_predict": 24}}
OLLAMA_BASE = {"messages": HI, **OLLAMA_SHORT}
OLLAMA_CALLS = {
    **OLLAMA_BASE,
    "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
}

RESPONSE_TOOL = {"type": "function", "name": "f", "parameters": {}}
SERVER: dict[str, Any] = {"type": "mcp", "server_label": "fake", "name": None}
RESPONSE_CHOICE = {"type": "function", "name": "f"}
RESPONSE_TOOLS = {"tools": [RESPONSE_TOOL], "tool_choice": "none"}
RESPONSES: dict[str, list[Case]] = {
    **{name: SAMPLING[name] for name in ("temperature", "top_p", "top_k", "min_p", "stop")},
    **{name: SAMPLING[name] for name in ("presence_penalty", "frequency_penalty")},
    "repetition_penalty": SAMPLING["repetition_penalty"],
    **{name: KEYS[name] for name in ("priority", "extra_key", "cache_salt")},
    "routed_dp_rank": KEYS["routed_dp_rank"],
    "data_parallel_rank": KEYS["data_parallel_rank"],
    "model": SHARED["model"],
    "input": [Effect("a", "abc"), Effect("a", [{"role": "system", "content": "a"}])],
    "instructions": [Effect("a", "b")],
    "previous_response_id": [Refused("resp_0", "not found")],
    "store": [Effect(True, False)],
    "background": [
        Effect(True, False, around={"store": True}),
        Effect(True, False, around={"store": True, "stream": True}),
        Refused(True, "store", {"store": False}),
    ],
    "stream": [Effect(True, False)],
    "stream_options": [Harmless(({"include_obfuscation": True},), "no text differs")],
    "max_output_tokens": [Effect(2, 3)],
    "top_logprobs": [Effect(1, 2)],
    "include": [
        Effect(["message.output_text.logprobs"], []),
        Harmless((["reasoning.encrypted_content"],), "reasoning comes as it is"),
    ],
    "tools": [
        Effect([RESPONSE_TOOL], [], "engine"),
        Refused([{"type": "web_search"}], "no tools of its own"),
        Harmless(([],), "there are none"),
    ],
    "tool_choice": [
        Effect("required", "auto", "engine", {"tools": [RESPONSE_TOOL]}),
        Refused("required", "needs tools"),
        Effect(
            {"type": "allowed_tools", "mode": "required", "tools": [RESPONSE_CHOICE]},
            {"type": "allowed_tools", "tools": [RESPONSE_CHOICE]},
            "engine",
            {"tools": [RESPONSE_TOOL]},
        ),
        Refused({"type": "mcp"}, "must be"),
        Refused({"type": "allowed_tools", "tools": [{"name": "f"}]}, "must be"),
        Refused({"type": "allowed_tools", "tools": 1}, "list"),
        Refused(ALLOWED, "beside type"),
    ],
    "parallel_tool_calls": [Effect(True, False)],
    "max_tool_calls": [Effect(1, 2), Refused(-1, "0 or more")],
    "reasoning": [Effect({"effort": "low"}, {"effort": "high"}, "engine")],
    "text": [
        Harmless(({"format": {"type": "text"}},), "answers are text"),
        Effect({}, {"format": {"type": "json_object"}}, "engine"),
    ],
    "truncation": [
        Harmless(("disabled",), "nothing is cut"),
        Effect("auto", None),
        Refused("never", "must be"),
    ],
    "service_tier": [Effect("auto", None)],
    "metadata": [Effect({"a": "b"}, {"a": "c"}), Effect({"a": "b"}, {"a": "c"}, "log")],
    "user": [Effect("Ann", "Bob"), Effect("Ann", "Bob", "log")],
    "safety_identifier": [Effect("a", "b"), Effect("a", "b", "log")],
    "prompt_cache_key": [Effect("a", "b"), Effect("a", "b", "log")],
    "prompt_cache_retention": [Effect("24h", None), Effect("24h", None, "log")],
    "chat_template_kwargs": [Effect({"shout": 1}, {"shout": 2}, "engine")],
}
SERVER_CALL = {"type": "mcp_call", "id": "1", "name": "f", "server_label": "a", "error": None}
ANSWER = {"type": "mcp_approval_response", "approval_request_id": "ask", "approve": True}
INPUT_ITEM: dict[str, list[Case]] = {
    "type": [
        Harmless(("message", None), "it is one"),
        Refused("computer_call", "no such items"),
    ],
    "role": [Effect("user", "system", "engine"), Refused("narrator", "must be")],
    "content": [Effect("a", "b", "engine"), Refused(None, "required")],
    "call_id": [
        Effect("1", "2", "engine", {"type": "function_call", "name": "f"}),
        Refused(None, "required", {"type": "function_call", "name": "f"}),
    ],
    "name": [
        Effect("f", "g", "engine", {"type": "function_call", "call_id": "1"}),
        Refused(None, "required", {"type": "function_call", "call_id": "1"}),
    ],
    "arguments": [
        Effect(
            '{"a": 1}', '{"a": 2}', "engine", {"type": "function_call", "name": "f", "call_id": "1"}
        )
    ],
    "input": [
        Effect("a", "b", "engine", {"type": "custom_tool_call", "name": "f", "call_id": "1"}),
        Refused(None, "required", {"type": "custom_tool_call", "name": "f", "call_id": "1"}),
    ],
    "output": [
        Effect("x", "y", "engine", {"type": "function_call_output", "call_id": "1"}),
        Refused(None, "required", {"type": "function_call_output", "call_id": "1"}),
    ],
    "summary": [
        Effect(
            [{"type": "summary_text", "text": "hm"}],
            [{"type": "summary_text", "text": "ha"}],
            "engine",
            {"type": "reasoning", "content": None},
        )
    ],
    "id": [
        Harmless(("msg_1",), "items are told apart by their place"),
        Refused("msg_1", "no stored response", {"type": "item_reference"}),
    ],
    "status": [Harmless(("completed",), "what has come is complete")],
    "encrypted_content": [
        Harmless(("abc",), "it comes with content", {"type": "reasoning", "content": "hm"})
    ],
    "server_label": [Harmless(("b",), "none of the tools is called so", SERVER_CALL)],
    "error": [Effect("x", "y", "engine", SERVER_CALL)],
    "approval_request_id": [
        Refused("other", "no request", ANSWER),
        Refused(None, "required", ANSWER),
    ],
    "approve": [Refused(None, "required", ANSWER)],
    "reason": [Effect("x", "y", "engine", {**ANSWER, "approve": False})],
    "tools": [Harmless(([],), "the label alone counts", {"type": "mcp_list_tools"})],
}

NO_FOLDERS = "start-up flags only"


@dataclass(frozen=True)
class Body:
    """Where a struct is sent: `base` is a complete body, `place` the way to the struct in it."""

    path: str
    base: Mapping[str, Any]
    cases: Mapping[str, list[Case]]
    refused: Mapping[str, str] = field(default_factory=dict)
    harmless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    place: tuple[str | int, ...] = ()


CHAT_BASE = {"messages": HI, "max_tokens": 24, "seed": 0, "rid": "r"}
CALL_BASE = {
    **CHAT_BASE,
    "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}],
}

BODIES: dict[type[msgspec.Struct], Body] = {
    requests.GenerateRequest: Body(
        "/generate",
        {"text": "ab", "rid": "r", "sampling_params": {"max_new_tokens": 24, "sampling_seed": 0}},
        GENERATE,
        requests.REFUSED,
        requests.HARMLESS,
    ),
    openai.CompletionRequest: Body(
        "/v1/completions",
        {"prompt": "ab", "max_tokens": 24, "seed": 0, "rid": "r"},
        COMPLETION,
        {**openai.REFUSED, **openai.COMPLETION_REFUSED},
    ),
    openai.ChatRequest: Body(
        "/v1/chat/completions",
        CHAT_BASE,
        CHAT,
        {**openai.REFUSED, **openai.CHAT_REFUSED},
        openai.CHAT_HARMLESS,
    ),
    EncodeRequest: Body("/encode", {"text": "ab", "rid": "r"}, ENCODE, ENCODE_REFUSED),
    EmbeddingRequest: Body(
        "/v1/embeddings", {"input": "ab", "rid": "r"}, EMBEDDING, EMBEDDING_REFUSED
    ),
    ClassifyRequest: Body("/v1/classify", {"input": "ab", "rid": "r"}, CLASSIFY),
    ScoreRequest: Body(
        "/v1/score",
        {"query": "a", "items": ["b"], "label_token_ids": [65], "rid": "r"},
        SCORE,
        SCORE_REFUSED,
    ),
    RerankRequest: Body(
        "/v1/rerank", {"query": "a", "documents": ["b"], "rid": "r"}, RERANK, RERANK_REFUSED
    ),
    RankedDocument: Body(
        "/v1/rerank",
        {"query": "a", "documents": [{"text": "b"}]},
        {"text": [Effect("bc", "b", "engine")]},
        place=("documents", 0),
    ),
    openai.StreamOptions: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "stream": True, "stream_options": {}},
        {
            "include_usage": [Effect(True, False)],
            "continuous_usage_stats": [Effect(True, False)],
            "include_obfuscation": [Harmless((True, False, None), "no text differs")],
        },
        place=("stream_options",),
    ),
    openai.ResponseFormat: Body(
        "/v1/completions",
        {
            "prompt": "ab",
            "max_tokens": 24,
            "seed": 0,
            "rid": "r",
            "response_format": {"type": "text"},
        },
        {
            "type": [
                Effect("text", "json_object", "engine"),
                Refused("json_schema", "object"),
                Refused("json", "json_object"),
            ],
            "json_schema": [Refused({"schema": {}}, "does not go with")],
            "schema": [Refused({"type": "object"}, "does not go with")],
            "structures": [Refused([{}, {"begin": "<"}], "does not go with")],
            "triggers": [Refused(["<"], "does not go with")],
            "format": [Refused({"type": "sequence"}, "does not go with")],
        },
        place=("response_format",),
    ),
    requests.Message: Body(
        "/v1/chat/completions",
        CHAT_BASE,
        {
            "role": [Effect("user", "system", "engine")],
            "content": [Effect("a", "b", "engine")],
            "name": [Effect("Ann", "Bob", "engine")],
            "tool_call_id": [Effect("1", "2", "engine")],
            "tool_calls": [Effect([{"function": {"name": "f"}}], [], "engine")],
            "reasoning_content": [Effect("hm", "ha", "engine")],
        },
        requests.MESSAGE_REFUSED,
        place=("messages", 0),
    ),
    requests.ContentPart: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {
            "type": [
                Refused("image_url", "takes text only"),
                Refused("input_file", "text and file"),
            ],
            "text": [Effect("a", "b", "engine")],
            "file": [
                Effect({"file_data": "aGk="}, {"file_data": "aGE="}, "engine", {"type": "file"}),
                Refused(None, "required", {"type": "file"}),
            ],
        },
        place=("messages", 0, "content", 0),
    ),
    requests.FileContent: Body(
        "/v1/chat/completions",
        {
            **CHAT_BASE,
            "messages": [
                {"role": "user", "content": [{"type": "file", "file": {"file_data": "aGk="}}]}
            ],
        },
        FILE_FIELDS,
        place=("messages", 0, "content", 0, "file"),
    ),
    requests.ToolCall: Body(
        "/v1/chat/completions",
        CALL_BASE,
        {
            "function": [
                Effect({"name": "f"}, {"name": "g"}, "engine"),
                Refused(None, "missing"),
            ],
            "custom": [
                Effect({"name": "f"}, {"name": "g"}, "engine", {"type": "custom"}),
                Refused(None, "missing", {"type": "custom"}),
            ],
            "id": [Effect("1", "2", "engine")],
            "index": [Effect(0, 1, "engine")],
            "type": [
                Harmless(("function", None), "without it calls are of functions"),
                Refused("x", "function or custom"),
            ],
        },
        place=("messages", 0, "tool_calls", 0),
    ),
    requests.FunctionCall: Body(
        "/v1/chat/completions",
        CALL_BASE,
        {
            "name": [Effect("f", "g", "engine")],
            "arguments": [
                Effect('{"a": 1}', {"a": 2}, "engine"),
                Harmless(("", "{}", {}, None), "no arguments"),
                Refused("[1]", "JSON object"),
            ],
        },
        place=("messages", 0, "tool_calls", 0, "function"),
    ),
    requests.CustomCall: Body(
        "/v1/chat/completions",
        {
            **CHAT_BASE,
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "a"}}],
                }
            ],
        },
        {"name": [Effect("f", "g", "engine")], "input": [Effect("a", "b", "engine")]},
        place=("messages", 0, "tool_calls", 0, "custom"),
    ),
    anthropic.MessagesRequest: Body(
        "/v1/messages", ANTHROPIC_BASE, ANTHROPIC, anthropic.ANTHROPIC_REFUSED
    ),
    anthropic.CountTokensRequest: Body(
        "/v1/messages/count_tokens", TWO_TURNS, COUNT_TOKENS, anthropic.ANTHROPIC_REFUSED
    ),
    anthropic.Turn: Body(
        "/v1/messages",
        ANTHROPIC_BASE,
        {
            "role": [Effect("user", "assistant", "engine"), Refused("narrator", "must be")],
            "content": [Effect("a", "b", "engine")],
        },
        place=("messages", 1),
    ),
    anthropic.ContentBlock: Body(
        "/v1/messages", ANTHROPIC_BASE, CONTENT_BLOCK, place=("messages", 1, "content", 0)
    ),
    anthropic.DocumentSource: Body(
        "/v1/messages",
        {
            **ANTHROPIC_BASE,
            "messages": [{"role": "user", "content": [DOCUMENT]}],
        },
        {
            "type": [Refused("url", "text only")],
            "data": [Effect("a", "b", "engine"), Refused(None, "required")],
            "content": [
                Effect("a", PARTS["content"], "engine", {"type": "content"}),
                Refused([{"type": "image"}], "text only", {"type": "content"}),
            ],
            "media_type": [Harmless(("text/plain",), "texts are plain")],
        },
        place=("messages", 0, "content", 0, "source"),
    ),
    anthropic.ContextManagement: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, **THOUGHTS, "context_management": {}},
        {"edits": [Effect([CLEAR], [], "engine")]},
        place=("context_management",),
    ),
    anthropic.ContextEdit: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, **THOUGHTS, "context_management": {"edits": [CLEAR]}},
        {
            "type": [Refused("compact_20260112", "only clear_thinking")],
            "keep": [
                Effect("all", None, "engine"),
                Effect({"type": "thinking_turns", "value": 2}, None, "engine"),
                Harmless(({"type": "thinking_turns", "value": 1},), "as without it"),
                Refused("some", "must be"),
            ],
        },
        place=("context_management", "edits", 0),
    ),
    anthropic.KeptThoughts: Body(
        "/v1/messages",
        {
            **ANTHROPIC_BASE,
            **THOUGHTS,
            "context_management": {
                "edits": [{**CLEAR, "keep": {"type": "thinking_turns", "value": 1}}]
            },
        },
        {
            "type": [Effect("all", "thinking_turns", "engine"), Refused("none", "must be")],
            "value": [Effect(1, 2, "engine"), Refused(0, "1 or more")],
        },
        place=("context_management", "edits", 0, "keep"),
    ),
    anthropic.ResultBlock: Body(
        "/v1/messages",
        {
            **ANTHROPIC_BASE,
            "messages": [
                {
                    "role": "user",
                    "content": [{**TOOL_RESULT, "content": [{"type": "text", "text": "a"}]}],
                }
            ],
        },
        {
            "type": [Refused("image", "takes text only")],
            "text": [Effect("a", "b", "engine"), Refused(None, "is missing")],
        },
        place=("messages", 0, "content", 0, "content", 0),
    ),
    anthropic.SystemBlock: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, "system": [{"type": "text", "text": "a"}]},
        {
            "type": [Refused("image", "takes text only")],
            "text": [Effect("a", "b", "engine"), Refused(None, "is missing")],
            "cache_control": [Harmless(({"type": "ephemeral"},), CACHED)],
        },
        place=("system", 0),
    ),
    anthropic.ToolParam: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, **ANTHROPIC_TOOLS},
        {
            "name": [Harmless(("f", "g"), UNCALLED, {"name": "h"})],
            "input_schema": [
                Harmless(({}, {"type": "object"}), UNCALLED),
                Refused(None, "required"),
            ],
            "description": [Harmless(("x",), UNCALLED)],
            "type": [
                Harmless(("custom",), "all tools are"),
                Refused("web_search_20250305", "no tools of its own"),
            ],
            "strict": [Harmless((True, False), UNCALLED)],
            "cache_control": [Harmless(({"type": "ephemeral"},), CACHED)],
        },
        place=("tools", 0),
    ),
    anthropic.ToolChoiceParam: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, "tool_choice": {"type": "auto"}},
        {
            "type": [
                Harmless(("auto", "none"), "there are no tools", {"type": "auto"}),
                Refused("any", "needs tools"),
                Refused("some", "must be"),
            ],
            "name": [Refused(None, "required", {"type": "tool"})],
            "disable_parallel_tool_use": [Harmless((True, False), "there are no tools")],
        },
        place=("tool_choice",),
    ),
    anthropic.ThinkingParam: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, "thinking": {"type": "enabled"}},
        {
            "type": [Effect("adaptive", "disabled", "engine"), Refused("some", "must be")],
            "budget_tokens": [Effect(1024, 2048, "engine")],
            "display": [
                Effect("summarized", "omitted"),
                Refused("some", "must be"),
            ],
        },
        place=("thinking",),
    ),
    anthropic.OutputConfig: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, "output_config": {}},
        {
            "effort": [Effect("low", "high", "engine")],
            "format": [Effect(None, {"type": "json_schema", "schema": {}}, "engine")],
        },
        place=("output_config",),
    ),
    anthropic.OutputFormat: Body(
        "/v1/messages",
        {**ANTHROPIC_BASE, "output_config": {"format": {"type": "json_schema"}}},
        {
            "type": [Refused("xml", "json_schema")],
            "schema": [
                Refused(None, "required"),
                Effect({"type": "array"}, {"type": "object"}, "engine"),
            ],
        },
        place=("output_config", "format"),
    ),
    ollama.OllamaChatRequest: Body(
        "/api/chat",
        OLLAMA_BASE,
        {
            **OLLAMA,
            "messages": [Effect(HI, HALF)],
            "tools": [Effect([TOOL], [], "engine")],
        },
        ollama.OLLAMA_REFUSED,
    ),
    ollama.OllamaGenerateRequest: Body(
        "/api/generate",
        {"prompt": "ab", **OLLAMA_SHORT},
        {
            **OLLAMA,
            "prompt": [Effect("ab", "abc")],
            "system": [Effect("a", "b", "engine"), Refused("a", "raw", {"raw": True})],
            "raw": [Effect(True, False, "engine")],
            "suffix": [Refused("x", "fill in the middle")],
        },
        ollama.GENERATE_REFUSED,
    ),
    ollama.OllamaMessage: Body(
        "/api/chat",
        OLLAMA_BASE,
        {
            "role": [Effect("user", "system", "engine"), Refused("narrator", "must be")],
            "content": [Effect("a", "b", "engine")],
            "thinking": [Effect("hm", "ha", "engine")],
            "tool_calls": [Effect([{"function": {"name": "f"}}], [], "engine")],
            "tool_name": [Effect("f", "g", "engine")],
            "tool_call_id": [Effect("1", "2", "engine")],
            "images": [Refused(["aGk="], "text"), Harmless(([], None), "there are none")],
        },
        place=("messages", 0),
    ),
    ollama.OllamaCall: Body(
        "/api/chat",
        OLLAMA_CALLS,
        {"function": [Effect({"name": "f"}, {"name": "g"}, "engine")]},
        place=("messages", 0, "tool_calls", 0),
    ),
    ollama.OllamaFunction: Body(
        "/api/chat",
        OLLAMA_CALLS,
        {
            "name": [Effect("f", "g", "engine")],
            "arguments": [Effect({"a": 1}, {"a": 2}, "engine")],
        },
        place=("messages", 0, "tool_calls", 0, "function"),
    ),
    ollama.OllamaOptions: Body(
        "/api/chat",
        {**OLLAMA_BASE, "options": {}},
        OLLAMA_OPTIONS,
        ollama.OPTIONS_REFUSED,
        ollama.OPTIONS_HARMLESS,
        place=("options",),
    ),
    ollama.OllamaEmbedRequest: Body(
        "/api/embed",
        {"input": "ab"},
        {
            "input": [Effect("ab", ["ab", "c"])],
            "model": SHARED["model"],
            "dimensions": ENCODE["dimensions"],
            "truncate": [Harmless((True, False), "a text that is too long is refused")],
            "keep_alive": [Harmless(("5m", 0, -1), STAYS)],
            "options": [Harmless(({"temperature": 1},), "nothing is drawn")],
        },
    ),
    ollama.OllamaEmbeddingsRequest: Body(
        "/api/embeddings",
        {"prompt": "ab"},
        {
            "prompt": [Effect("ab", "abc")],
            "model": SHARED["model"],
            "keep_alive": [Harmless(("5m", 0, -1), STAYS)],
            "options": [Harmless(({"temperature": 1},), "nothing is drawn")],
        },
    ),
    ollama.OllamaShowRequest: Body(
        "/api/show",
        {},
        {
            "model": [Harmless((MODEL, "default", "", f"{MODEL}:latest"), "the served model")],
            "verbose": [Harmless((True, False), "there is no more to tell")],
        },
    ),
    responses.ResponsesRequest: Body(
        "/v1/responses",
        {"input": "ab", "max_output_tokens": 24, "store": False},
        RESPONSES,
        responses.RESPONSES_REFUSED,
    ),
    responses.InputItem: Body(
        "/v1/responses",
        {
            "input": [
                {"type": "mcp_approval_request", "id": "ask", "name": "f", "server_label": "a"},
                {"role": "user", "content": "a"},
                {"role": "user", "content": "a"},
            ],
            "max_output_tokens": 24,
        },
        INPUT_ITEM,
        place=("input", 2),
    ),
    responses.ItemPart: Body(
        "/v1/responses",
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
            "max_output_tokens": 24,
        },
        {
            "type": [Refused("input_image", "takes text only")],
            "text": [Effect("a", "b", "engine"), Refused(None, "is missing")],
            **FILE_FIELDS,
            "detail": [Harmless(("low",), "no page is a picture")],
            "annotations": [Harmless(([],), "of a past answer")],
            "logprobs": [Harmless(([],), "of a past answer")],
        },
        place=("input", 0, "content", 0),
    ),
    responses.ResponseTool: Body(
        "/v1/responses",
        {"input": "ab", "max_output_tokens": 24, **RESPONSE_TOOLS},
        {
            "type": [
                Refused("web_search", "tool-server"),
                Refused("apply_patch", "custom tool"),
                Refused("namespace", "beside the others"),
                Refused("shell", "function"),
            ],
            "name": [Effect("f", "g"), Refused(None, "required")],
            "description": [Effect("a", "b")],
            "parameters": [
                Effect({}, {"type": "object"}),
                Refused({"type": "object"}, "is text", {"type": "custom"}),
            ],
            "strict": [Effect(True, False)],
            "format": [
                Effect({"type": "text"}, None, around=OWN_TEXT),
                Refused({"type": "text"}, "has parameters"),
            ],
            "server_label": [
                Refused("other", "named at the start", {"type": "mcp"}),
                Refused(None, "required", {"type": "mcp"}),
            ],
            "allowed_tools": [
                Effect(["look"], {"tool_names": ["fail"]}, around=SERVER),
                Refused(["other"], "has no tool", SERVER),
            ],
            "require_approval": [
                Effect("always", "never", around=SERVER),
                Refused("perhaps", "must be", SERVER),
            ],
            "server_description": [Effect("a", "b", around=SERVER)],
            "allowed_callers": [Effect(["direct"], ["programmatic"], around=SERVER)],
            "defer_loading": [Effect(True, False, around=SERVER)],
            **{name: [Refused("x", "at the start", SERVER)] for name in responses.PEERS},
        },
        place=("tools", 0),
    ),
    responses.InputFormat: Body(
        "/v1/responses",
        {
            "input": "ab",
            "max_output_tokens": 24,
            "tool_choice": "required",
            "tools": [
                {
                    "type": "custom",
                    "name": "f",
                    "format": {"type": "grammar", "syntax": "regex", "definition": "a+"},
                }
            ],
        },
        {
            "type": [Effect("text", "grammar", "engine"), Refused("xml", "must be")],
            "syntax": [Effect("lark", "regex", "engine"), Refused(None, "required")],
            "definition": [Effect("a+", "b+", "engine"), Refused(None, "required")],
        },
        place=("tools", 0, "format"),
    ),
    responses.ToolFilter: Body(
        "/v1/responses",
        {
            "input": "ab",
            "max_output_tokens": 24,
            "tools": [{**SERVER, "allowed_tools": {}}],
            "tool_choice": "none",
        },
        {
            "tool_names": [Effect(["look"], ["fail"]), Effect(["look"], None)],
            "read_only": [Effect(True, False)],
        },
        place=("tools", 0, "allowed_tools"),
    ),
    responses.ToolApproval: Body(
        "/v1/responses",
        {
            "input": "ab",
            "max_output_tokens": 24,
            "tools": [{**SERVER, "require_approval": {}}],
            "tool_choice": "none",
        },
        {
            "always": [Effect({"read_only": True}, {"read_only": False})],
            "never": [Effect({"read_only": True}, {"read_only": False})],
        },
        place=("tools", 0, "require_approval"),
    ),
    responses.ReasoningParam: Body(
        "/v1/responses",
        {"input": "ab", "max_output_tokens": 24, "reasoning": {}},
        {
            "effort": [Effect("low", "high", "engine")],
            "summary": [Effect("auto", "detailed")],
            "generate_summary": [Harmless(("auto",), "reasoning comes whole")],
        },
        place=("reasoning",),
    ),
    responses.TextParam: Body(
        "/v1/responses",
        {"input": "ab", "max_output_tokens": 24, "text": {}},
        {
            "format": [Effect({"type": "text"}, {"type": "json_object"}, "engine")],
            "verbosity": [Effect("low", "high", "log")],
        },
        place=("text",),
    ),
    responses.TextFormat: Body(
        "/v1/responses",
        {"input": "ab", "max_output_tokens": 24, "text": {"format": {"type": "text"}}},
        {
            "type": [Refused("xml", "must be"), Refused("json_schema", "required")],
            "name": [Refused(None, "required", {"type": "json_schema", "schema": {}})],
            "schema": [
                Refused(None, "required", {"type": "json_schema", "name": "x"}),
                Effect(
                    {"type": "array"},
                    {"type": "object"},
                    "engine",
                    {"type": "json_schema", "name": "x"},
                ),
            ],
            "strict": [Effect(True, False)],
            "description": [Effect("a", "b")],
        },
        place=("text", "format"),
    ),
    vertex.VertexRequest: Body(
        "/vertex_generate",
        {
            "instances": [{"text": "ab"}],
            "parameters": {"rid": ["r"], "sampling_params": {"max_new_tokens": 24}},
        },
        {
            "instances": [Effect([{"text": "ab"}], [{"text": "abc"}])],
            "parameters": [
                Effect(
                    {"sampling_params": {"max_new_tokens": 1}},
                    {"sampling_params": {"max_new_tokens": 2}},
                ),
                Refused({"stream": True}, "answers are whole"),
            ],
        },
        vertex.VERTEX_REFUSED,
    ),
    vertex.VertexInstance: Body(
        "/vertex_generate",
        {
            "instances": [{"text": "ab"}],
            "parameters": {"rid": ["r"], "sampling_params": {"max_new_tokens": 24}},
        },
        {
            "text": [Effect("a", "b", "engine"), Refused(None, "every")],
            "input_ids": [
                Effect([65], [66], "engine", {"text": None}),
                Refused([65], "every"),
            ],
        },
        vertex.INSTANCE_REFUSED,
        place=("instances", 0),
    ),
    tools.ToolDefinition: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [TOOL]},
        {
            "function": [
                Effect({"name": "f"}, {"name": "g"}, "engine"),
                Refused(None, "missing"),
            ],
            "custom": [
                Effect({"name": "f"}, {"name": "g"}, "engine", {"type": "custom"}),
                Refused(None, "missing", {"type": "custom"}),
            ],
            "type": [Harmless(("function",), "as without it"), Refused("x", "or custom")],
        },
        place=("tools", 0),
    ),
    custom_tools.CustomDefinition: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [REGEX_TOOL], "tool_choice": "required"},
        {
            "name": [Effect("f", "g", "engine"), Refused("", "letters")],
            "description": [Effect("It looks.", None, "engine")],
            "format": [Effect({"type": "text"}, A_FORMAT, "engine")],
        },
        place=("tools", 0, "custom"),
    ),
    custom_tools.CustomFormat: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [REGEX_TOOL], "tool_choice": "required"},
        {
            "type": [Effect("text", "grammar", "engine"), Refused("xml", "must be text")],
            "grammar": [
                Effect({"syntax": "lark", "definition": "a"}, A_FORMAT["grammar"], "engine"),
                Refused(None, "is missing"),
            ],
        },
        place=("tools", 0, "custom", "format"),
    ),
    custom_tools.GrammarDefinition: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [REGEX_TOOL], "tool_choice": "required"},
        {
            "syntax": [Effect("lark", "regex", "engine"), Refused("ebnf", "must be lark")],
            "definition": [Effect("a+", "b+", "engine")],
        },
        place=("tools", 0, "custom", "format", "grammar"),
    ),
    tools.FunctionDefinition: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [TOOL]},
        {
            "name": [Effect("f", "g", "engine"), Refused("", "letters"), Refused("a b", "letters")],
            "description": [Effect("It looks.", None, "engine")],
            "parameters": [Effect({"type": "object"}, {}, "engine"), Refused("x", "object")],
            "strict": [Effect(True, False, "engine")],
        },
        place=("tools", 0, "function"),
    ),
    tools.ToolChoice: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [TOOL], "tool_choice": NAMED},
        {
            "function": [Refused({"name": "g"}, "none of tools"), Refused(None, "missing")],
            "custom": [Refused({"name": "f"}, "none of tools", {"type": "custom"})],
            "type": [Refused("x", "must be function"), Refused("allowed_tools", "missing")],
            "allowed_tools": [
                Effect(
                    ALLOWED["allowed_tools"],
                    {"tools": [NAMED]},
                    "engine",
                    {"type": "allowed_tools"},
                )
            ],
        },
        place=("tool_choice",),
    ),
    tools.AllowedTools: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [TOOL, OTHER_TOOL], "tool_choice": ALLOWED},
        {
            "mode": [Effect("auto", "required", "engine"), Refused("always", "must be auto")],
            "tools": [
                Effect([NAMED], [NAMED, {"function": {"name": "g"}}], "engine"),
                Refused([], "must name"),
            ],
        },
        place=("tool_choice", "allowed_tools"),
    ),
    tools.NamedTool: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [TOOL], "tool_choice": ALLOWED},
        {
            "function": [Refused({"name": "g"}, "none of tools")],
            "custom": [Refused({"name": "f"}, "none of tools", {"type": "custom"})],
            "type": [Refused("x", "function or custom")],
        },
        place=("tool_choice", "allowed_tools", "tools", 0),
    ),
    tools.ToolName: Body(
        "/v1/chat/completions",
        {**CHAT_BASE, "tools": [TOOL], "tool_choice": NAMED},
        {"name": [Refused("g", "none of tools")]},
        place=("tool_choice", "function"),
    ),
    native.ParseFunctionCallRequest: Body(
        "/parse_function_call",
        {"text": TWO_CALLS, "tools": [TOOL], "tool_call_parser": "hermes"},
        {
            "text": [Effect("a", "b")],
            "tools": [Effect([TOOL], []), Refused([TOOL, TOOL], "twice")],
            "tool_call_parser": [Effect("qwen25", "mistral"), Refused("x", "must be one of")],
        },
    ),
    native.SeparateReasoningRequest: Body(
        "/separate_reasoning",
        {"text": THOUGHT, "reasoning_parser": "qwen3"},
        {
            "text": [Effect("a", "b")],
            "reasoning_parser": [Effect("qwen3", "kimi"), Refused("x", "must be one of")],
        },
    ),
    native.TokenizeRequest: Body("/tokenize", {"prompt": "ab"}, TOKENIZE),
    native.DetokenizeRequest: Body("/detokenize", {"tokens": [65]}, DETOKENIZE),
    native.AbortRequest: Body(
        "/abort_request",
        {"rid": "nobody"},
        {
            "rid": [Effect("a", "b", "engine")],
            "abort_all": [Effect(True, False, "engine")],
        },
    ),
    native.AddExternalCorpus: Body(
        "/add_external_corpus",
        {"documents": ["ab"]},
        {
            "corpus_id": [Effect("a", "b"), Refused("a" * 257, "characters")],
            "documents": [Effect(["a"], ["bb"])],
            "token_chunks": [Refused([[65]], "exactly one")],
            "file_path": [Refused("/tmp/x", "no path")],
        },
    ),
    native.RemoveExternalCorpus: Body(
        "/remove_external_corpus", {"corpus_id": "a"}, {"corpus_id": [Effect("a", "b")]}
    ),
    native.ConfigureLogging: Body(
        "/configure_logging",
        {},
        {
            "log_requests": [Effect(True, False)],
            "log_requests_level": [Effect(0, 1)],
            "log_requests_format": [Effect("json", "text")],
            "log_requests_target": [Refused(["/tmp/x"], NO_FOLDERS)],
            "dump_requests_folder": [Refused("/tmp/x", NO_FOLDERS)],
            "dump_requests_threshold": [Refused(5, NO_FOLDERS)],
            "crash_dump_folder": [Refused("/tmp/x", NO_FOLDERS)],
        },
    ),
}
