"""What /generate and `Engine.generate` take, and the messages of a conversation. Unknown fields are
accepted, known ones are typed."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.frontend.validation import NO_PROCESSORS, NO_WATERMARK
from vivace.protocol.constraints import CONSTRAINTS
from vivace.requests.limits import Calls, Chosen, Ids, Members, Parts, PerPrompt, Prompts


class GenerateRequest(msgspec.Struct, kw_only=True):
    """POST /generate. Exactly one of `text` and `input_ids`; lists make a batch."""

    text: str | PerPrompt[str] | None = None
    input_ids: Prompts[int | Ids] | None = None
    sampling_params: Members[Any] | PerPrompt[Members[Any]] | None = None
    """One for all prompts, or one per prompt."""
    rid: str | PerPrompt[str] | None = None
    return_logprob: bool | PerPrompt[bool] | None = None
    logprob_start_len: int | PerPrompt[int] | None = None
    """First prompt position with log-probabilities; -1 = output only."""
    top_logprobs_num: int | PerPrompt[int] | None = None
    token_ids_logprob: Chosen[int | Chosen[int] | None] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    return_hidden_states: bool | PerPrompt[bool] = False
    """With --enable-return-hidden-states; they are behind the model's last norm."""
    stream: bool = False
    priority: int | None = None
    resumed: Ids | None = None
    """Tokens of the answer that the client has already: only what follows them is sent. Vivace's
    own field; a router resumes a stream on another server with it."""
    extra_key: str | PerPrompt[str] | None = None
    cache_salt: str | PerPrompt[str] | None = None
    no_logs: bool = False
    log_metrics: bool = True
    """False: counted in no metric of requests, their tokens and their latencies."""
    routing_key: str | None = None
    """For the request log: one engine is the same for every key."""
    # For the request log.
    conversation_id: str | None = None
    external_trace_header: Members[Any] | None = None
    # Refused with a reason when set (REFUSED).
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None
    response_format: Any = None
    modalities: Any = None
    custom_labels: Any = None
    received_time: Any = None
    kv_hints: Any = None
    background: Any = None
    require_reasoning: Any = None
    http_worker_ipc: Any = None
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    mm_hashes: Any = None
    mm_content_hashes: Any = None
    use_audio_in_video: Any = None
    video_config: Any = None
    images_config: Any = None
    mm_processor_kwargs: Any = None
    max_dynamic_patch: Any = None
    min_dynamic_patch: Any = None
    image_max_dynamic_patch: Any = None
    video_max_dynamic_patch: Any = None
    need_wait_for_mm_inputs: Any = None
    num_items_assigned: Any = None
    encoder_urls: Any = None
    session_id: Any = None
    session_params: Any = None
    lora_path: Any = None
    lora_id: Any = None
    custom_logit_processor: Any = None
    return_routed_experts: Any = None
    routed_experts_start_len: Any = None
    return_indexer_topk: Any = None
    return_sampling_mask: Any = None
    sampling_logprobs_mode: Any = None
    return_entropy: Any = None
    return_bytes: Any = None
    return_flat_raw_top_logprobs: Any = None
    return_flat_raw_output_top_logprobs: Any = None
    return_flat_raw_top_logprobs_b64: Any = None
    positional_embed_overrides: Any = None
    watermark: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None
    bootstrap_pair_key: Any = None
    decode_tp_size: Any = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    disagg_prefill_dp_rank: int | None = None
    max_thinking_tokens: int | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    custom_params: Any = None
    multi_item_delimiter_indices: Any = None
    token_indices_to_pool: Any = None


TEXT_ONLY = "this server generates from text and token ids only"
NO_LORA = "no LoRA adapters are loaded in this server; remove the field"
NO_SESSIONS = "sessions are not supported; send the whole conversation (its prefix is cached)"
NO_DISAGGREGATION = "this server runs prefill and decode together; remove the field"
NO_EXPERTS = "experts of tokens are not reported yet; remove the field"
NO_REASONING = "use max_thinking_tokens instead: a grammar begins behind the thinking then"
NO_MASK = "sampling masks are not supported yet; leave the field out"
NO_FLAT_LOGPROBS = "use top_logprobs_num instead"

OTHER_CONSTRAINTS = "/v1/chat/completions, /v1/completions and /generate take others"
REFUSED: dict[str, str] = {
    **dict.fromkeys(CONSTRAINTS, "goes into sampling_params"),
    "response_format": "use json_schema in sampling_params",
    "modalities": TEXT_ONLY,
    "custom_labels": "metrics take no labels from requests in this server",
    "received_time": "times are measured from the arrival at this server",
    "kv_hints": "the prefix cache takes no hints",
    "background": "there are no background requests; use priority",
    "require_reasoning": NO_REASONING,
    "http_worker_ipc": "the field is internal to SGLang's processes",
    "input_embeds": "embeddings as input are not supported yet; send text or input_ids",
    "image_data": TEXT_ONLY,
    "video_data": TEXT_ONLY,
    "audio_data": TEXT_ONLY,
    "mm_hashes": TEXT_ONLY,
    "mm_content_hashes": TEXT_ONLY,
    "use_audio_in_video": TEXT_ONLY,
    "video_config": TEXT_ONLY,
    "images_config": TEXT_ONLY,
    "mm_processor_kwargs": TEXT_ONLY,
    "max_dynamic_patch": TEXT_ONLY,
    "min_dynamic_patch": TEXT_ONLY,
    "image_max_dynamic_patch": TEXT_ONLY,
    **dict.fromkeys(("need_wait_for_mm_inputs", "num_items_assigned"), TEXT_ONLY),
    "video_max_dynamic_patch": TEXT_ONLY,
    "encoder_urls": TEXT_ONLY,
    "session_id": NO_SESSIONS,
    "session_params": NO_SESSIONS,
    "lora_path": NO_LORA,
    "lora_id": NO_LORA,
    "custom_logit_processor": NO_PROCESSORS,
    "return_routed_experts": NO_EXPERTS,
    "routed_experts_start_len": NO_EXPERTS,
    "return_indexer_topk": "the served model has no sparse-attention indexer",
    "return_sampling_mask": NO_MASK,
    "sampling_logprobs_mode": NO_MASK,
    "return_entropy": "entropies are not supported yet; use top_logprobs_num",
    "return_bytes": "raw bytes are not supported yet; use output_ids",
    "return_flat_raw_top_logprobs": NO_FLAT_LOGPROBS,
    "return_flat_raw_output_top_logprobs": NO_FLAT_LOGPROBS,
    "return_flat_raw_top_logprobs_b64": NO_FLAT_LOGPROBS,
    "positional_embed_overrides": "embedding overrides are not supported yet; send input_ids",
    "watermark": NO_WATERMARK,
    **{f"bootstrap_{part}": NO_DISAGGREGATION for part in ("host", "port", "room", "pair_key")},
    "decode_tp_size": NO_DISAGGREGATION,
    "disagg_prefill_dp_rank": NO_DISAGGREGATION,
    "multi_item_delimiter_indices": "items go to /v1/score as a list; remove the field",
    "token_indices_to_pool": "pooling is not supported for a generation model",
}

HARMLESS: dict[str, tuple[Any, ...]] = {"modalities": (["text"],)}
"""Values of refused fields that ask for what happens anyway."""


class FileContent(msgspec.Struct, kw_only=True):
    """A file that is text, in base64 or as a `data:` URL."""

    file_data: str | None = None
    filename: str | None = None
    # Refused with a reason when set (`input_files`).
    file_id: Any = None
    file_url: Any = None


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One part of a message: `type: text`, or `file` with a file that is text."""

    type: str
    text: str | None = None
    file: FileContent | None = None


class FunctionCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which function an answer called. `arguments`: an object, or one as JSON text."""

    name: str
    arguments: str | Members[Any] | None = None


class CustomCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which custom tool an answer called, and with which text."""

    name: str
    input: str = ""


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call in a past answer: of type function, or custom."""

    function: FunctionCall | None = None
    custom: CustomCall | None = None
    id: str | None = None
    index: int | None = None
    type: str | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn of a conversation."""

    role: str
    content: str | Parts[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Calls[ToolCall] | None = None
    reasoning_content: str | None = None
    # Refused with a reason when set (MESSAGE_REFUSED).
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


MESSAGE_REFUSED: dict[str, str] = {
    "function_call": "send tool_calls instead",
    "refusal": "send the text as content",
    "audio": TEXT_ONLY,
}
