"""Bodies of the native (SGLang) endpoints and their answers; `vivace.requests.schema` has those of
/generate. Unknown fields are accepted, known ones are typed."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.requests.limits import Entries, Ids, Members, Messages, PerPrompt, Prompts
from vivace.requests.schema import Message
from vivace.requests.tools import ToolChoice, ToolDefinition


class AbortRequest(msgspec.Struct, kw_only=True):
    """POST /abort_request: every request whose id starts with `rid`, or all of them."""

    rid: str | None = None
    abort_all: bool = False


class ConfigureLogging(msgspec.Struct, kw_only=True):
    """POST /configure_logging. Absent fields stay as they are."""

    log_requests: bool | None = None
    log_requests_level: int | None = None
    log_requests_format: str | None = None
    log_requests_target: Any = None
    dump_requests_folder: Any = None
    dump_requests_threshold: Any = None
    crash_dump_folder: Any = None


class AddExternalCorpus(msgspec.Struct, kw_only=True):
    """POST /add_external_corpus: a text that n-gram drafts may come from, as documents or as lists
    of token ids."""

    corpus_id: str | None = None
    documents: PerPrompt[str] | None = None
    token_chunks: Prompts[Ids] | None = None
    file_path: Any = None


class RemoveExternalCorpus(msgspec.Struct, kw_only=True):
    """POST /remove_external_corpus"""

    corpus_id: str


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: `prompt` (text or texts) or `messages`."""

    model: str = "default"
    prompt: str | PerPrompt[str] | None = None
    messages: Messages[Message] | None = None
    tools: Entries[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    reasoning_effort: str | None = None
    chat_template_kwargs: Members[Any] | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """`tokens` and `count` are lists when `prompt` was a list."""

    tokens: list[int | list[int]]
    count: int | list[int]
    max_model_len: int


class ParseFunctionCallRequest(msgspec.Struct, kw_only=True):
    """POST /parse_function_call: the calls of `tools` in an answer's text."""

    text: str
    tools: Entries[ToolDefinition]
    tool_call_parser: str


class FoundCall(msgspec.Struct, kw_only=True):
    """`tool_index`: the place in `tools`; `parameters`: JSON as it was written."""

    tool_index: int
    name: str
    parameters: str


class ParseFunctionCallResponse(msgspec.Struct, kw_only=True):
    normal_text: str
    calls: list[FoundCall]


class SeparateReasoningRequest(msgspec.Struct, kw_only=True):
    """POST /separate_reasoning: an answer's text in two."""

    text: str
    reasoning_parser: str


class SeparateReasoningResponse(msgspec.Struct, kw_only=True):
    reasoning_text: str
    text: str


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize: ids, or a list of lists of ids."""

    tokens: Prompts[int | Ids]
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
    cached_tokens_details: dict[str, int]
    """By tier: device, host."""
    weight_version: str
    dp_rank: int
    num_retractions: int
    # With the end of an answer: the limit in effect, seconds, and Unix times (`_ts`).
    max_new_tokens: int | None = None
    e2e_latency: float | None = None
    queue_time: float | None = None
    inference_time: float | None = None
    decode_throughput: float | None = None
    """Tokens per second behind the first one."""
    request_received_ts: float | None = None
    request_sent_to_scheduler_ts: float | None = None
    prefill_finished_ts: float | None = None
    decode_finished_ts: float | None = None
    response_sent_to_client_ts: float | None = None
    # With speculative decoding: steps behind the first token; tokens of one; drafts.
    spec_verify_ct: int | None = None
    spec_accept_length: float | None = None
    spec_accept_rate: float | None = None
    spec_accept_token_num: int | None = None
    spec_draft_token_num: int | None = None
    prompt_token_ids: list[int] | None = None
    input_token_logprobs: list[Any] | None = None
    output_token_logprobs: list[Any] | None = None
    input_top_logprobs: list[Any] | None = None
    output_top_logprobs: list[Any] | None = None
    input_token_ids_logprobs: list[Any] | None = None
    output_token_ids_logprobs: list[Any] | None = None
    hidden_states: list[list[Any]] | None = None
    """Of all prompt tokens, then of each output token but the last, which is not computed."""


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
