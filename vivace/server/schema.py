"""Bodies of the native (SGLang) endpoints. Unknown fields are accepted, known ones are typed."""

from __future__ import annotations

from typing import Any

import msgspec


class GenerateRequest(msgspec.Struct, kw_only=True):
    """POST /generate. Exactly one of `text` and `input_ids`; lists make a batch."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    """One for all prompts, or one per prompt."""
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    """First prompt position with log-probabilities; -1 = output only."""
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int] | None] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    stream: bool = False
    priority: int | None = None
    extra_key: str | list[str] | None = None
    cache_salt: str | list[str] | None = None
    no_logs: bool = False
    # Accepted without effect: they steer machinery outside one engine.
    log_metrics: bool = True
    modalities: list[Any] | None = None
    routing_key: str | None = None
    conversation_id: str | None = None
    custom_labels: dict[str, str] | None = None
    external_trace_header: dict[str, Any] | None = None
    received_time: float | None = None
    kv_hints: Any = None
    # Refused with a reason when set (REFUSED).
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    session_id: Any = None
    session_params: Any = None
    lora_path: Any = None
    lora_id: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_indexer_topk: Any = None
    return_sampling_mask: Any = None
    return_entropy: Any = None
    return_bytes: Any = None
    return_flat_raw_top_logprobs: Any = None
    return_flat_raw_output_top_logprobs: Any = None
    positional_embed_overrides: Any = None
    watermark: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None
    bootstrap_pair_key: Any = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    disagg_prefill_dp_rank: int | None = None
    max_thinking_tokens: Any = None
    multi_item_delimiter_indices: Any = None
    token_indices_to_pool: Any = None


TEXT_ONLY = "this server generates from text and token ids only"
NO_LORA = "no LoRA adapters are loaded in this server; remove the field"
NO_SESSIONS = "sessions are not available; send the whole conversation (its prefix is cached)"
NO_PROCESSORS = "executable logit processors are never accepted from a request"
NO_DISAGGREGATION = "this server runs prefill and decode together; remove the field"
NO_EXPERTS = "the served model has no routed experts to report"
NO_GRAMMAR = "structured output is not available in this server; remove the field"

REFUSED: dict[str, str] = {
    "input_embeds": "embeddings as input are not available; send text or input_ids",
    "image_data": TEXT_ONLY,
    "video_data": TEXT_ONLY,
    "audio_data": TEXT_ONLY,
    "session_id": NO_SESSIONS,
    "session_params": NO_SESSIONS,
    "lora_path": NO_LORA,
    "lora_id": NO_LORA,
    "custom_logit_processor": NO_PROCESSORS,
    "return_hidden_states": "hidden states are not available from this server",
    "return_routed_experts": NO_EXPERTS,
    "return_indexer_topk": "the served model has no sparse-attention indexer",
    "return_sampling_mask": "sampling masks are not available from this server",
    "return_entropy": "entropies are not available; use top_logprobs_num",
    "return_bytes": "raw bytes are not available; use output_ids",
    "return_flat_raw_top_logprobs": "use top_logprobs_num instead",
    "return_flat_raw_output_top_logprobs": "use top_logprobs_num instead",
    "positional_embed_overrides": "embedding overrides are not available",
    "watermark": "watermarking is not available",
    "bootstrap_host": NO_DISAGGREGATION,
    "bootstrap_port": NO_DISAGGREGATION,
    "bootstrap_room": NO_DISAGGREGATION,
    "bootstrap_pair_key": NO_DISAGGREGATION,
    "routed_dp_rank": "there is one data-parallel rank, 0",
    "data_parallel_rank": "there is one data-parallel rank, 0",
    "disagg_prefill_dp_rank": NO_DISAGGREGATION,
    "max_thinking_tokens": "no reasoning parser is active; use max_new_tokens",
    "multi_item_delimiter_indices": "multi-item scoring is not available",
    "token_indices_to_pool": "pooling is not available for a generation model",
}


class AbortRequest(msgspec.Struct, kw_only=True):
    """POST /abort_request: every request whose id starts with `rid`, or all of them."""

    rid: str | None = None
    abort_all: bool = False


class ConfigureLogging(msgspec.Struct, kw_only=True):
    """POST /configure_logging. Absent fields stay as they are."""

    log_requests: bool | None = None
    log_requests_level: int | None = None
    log_requests_format: str | None = None
    dump_requests_folder: Any = None
    dump_requests_threshold: Any = None
    crash_dump_folder: Any = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message; only `type: text` is served."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reasoning_content: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: `prompt` (text or texts) or `messages`."""

    model: str = "default"
    prompt: str | list[str] | None = None
    messages: list[Message] | None = None
    tools: Any = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """`tokens` and `count` are lists when `prompt` was a list."""

    tokens: list[int | list[int]]
    count: int | list[int]
    max_model_len: int


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize: ids, or a list of lists of ids."""

    tokens: list[int | list[int]]
    model: str = "default"
    skip_special_tokens: bool = True


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    text: str | list[str]


class GenerateMeta(msgspec.Struct, kw_only=True):
    """`meta_info` of a /generate answer. Log-probability entries are (logprob, id, text | null)."""

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: str
    e2e_latency: float | None = None
    input_token_logprobs: list[Any] | None = None
    output_token_logprobs: list[Any] | None = None
    input_top_logprobs: list[Any] | None = None
    output_top_logprobs: list[Any] | None = None
    input_token_ids_logprobs: list[Any] | None = None
    output_token_ids_logprobs: list[Any] | None = None


class GenerateAnswer(msgspec.Struct, kw_only=True):
    """Answer of /generate: one object, or a list for a batch or n > 1; the data of each event."""

    text: str
    output_ids: list[int]
    meta_info: GenerateMeta
    index: int | None = None


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: int | str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """Every answer other than 2xx: OpenAI's nested form beside SGLang's flat one."""

    message: str
    type: str
    code: int
    error: ErrorDetail
    object: str = "error"
    param: str | None = None
