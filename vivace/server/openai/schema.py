"""Bodies of the OpenAI-style endpoints. Unknown fields are accepted, known ones are typed."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.frontend.validation import NO_PROCESSORS, NO_STOP_REGEX
from vivace.requests import schema as native
from vivace.requests.limits import Chosen, Entries, Ids, Members, Messages, PerPrompt, Prompts
from vivace.requests.response_format import ResponseFormat
from vivace.requests.schema import Message
from vivace.requests.tools import ToolChoice, ToolDefinition

DEFAULT_MODEL = "default"


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    include_obfuscation: bool | None = False
    """Any value: it pads events on OpenAI's side of the network, and no text differs."""


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that chat and text completions share. None = the model's default."""

    model: str = DEFAULT_MODEL
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = 1
    max_tokens: int | None = None
    stop: str | Entries[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Members[float] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    # For the request log.
    user: str | None = None
    metadata: Members[str] | None = None
    # SGLang's extensions
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Chosen[int] | None = None
    no_stop_trim: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    rid: str | PerPrompt[str] | None = None
    priority: int | None = None
    extra_key: str | PerPrompt[str] | None = None
    cache_salt: str | PerPrompt[str] | None = None
    return_token_ids: bool = False
    return_prompt_token_ids: bool = False
    return_cached_tokens_details: bool = False
    """Adds `sglext` with the cached tokens of each tier."""
    response_format: ResponseFormat | None = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None
    # Refused with a reason when set (REFUSED).
    resumed: Any = None
    custom_labels: Any = None
    return_spec_tokens_details: Any = None
    grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    stop_regex: Any = None
    lora_path: Any = None
    session_id: Any = None
    session_params: Any = None
    custom_logit_processor: Any = None
    custom_params: Any = None
    watermark: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    routed_experts_start_len: Any = None
    return_sampling_mask: Any = None
    sampling_logprobs_mode: Any = None
    return_flat_raw_output_top_logprobs: Any = None
    return_flat_raw_top_logprobs_b64: bool | None = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    disagg_prefill_dp_rank: int | None = None
    images_config: Any = None
    video_config: Any = None
    mm_processor_kwargs: Any = None
    max_dynamic_patch: Any = None
    min_dynamic_patch: Any = None
    use_audio_in_video: Any = None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions. `prompt`: text, texts, ids, or a list of lists of ids."""

    prompt: str | Prompts[str | int | Ids]
    max_tokens: int | None = 16
    best_of: int | None = None
    echo: bool | None = False
    logprobs: int | None = None
    suffix: str | None = None
    """What stands behind the answer, for models that fill in the middle."""


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Members[Any] | None = None
    reasoning_effort: str | None = None
    max_thinking_tokens: int | None = None
    """At most so many tokens of reasoning; then it is ended."""
    thinking_token_budget: int | None = None
    """The same by vLLM's name."""
    thinking_budget: int | None = None
    """The same by Qwen's name."""
    tools: Entries[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    """False: calls behind the first one are text."""
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    """False: reasoning comes in one event, when it is complete."""
    service_tier: str | None = None
    """The answer names the tier it was served in: there is one, "default"."""
    prediction: Any = None
    """Text that may come: it would only make the answer quicker."""
    # For the request log.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    verbosity: str | None = None
    prompt_cache_retention: str | None = None
    # Refused with a reason when set (CHAT_REFUSED).
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    input_ids: Any = None
    thinking: Any = None
    task: Any = None
    return_meta_info: Any = None
    return_input_ids_in_sglext: Any = None
    return_output_ids_in_sglext: Any = None
    web_search_options: Any = None
    modalities: Any = None
    store: Any = None
    moderation: Any = None


NO_FUNCTIONS = "use tools and tool_choice in the place of functions and function_call"

REFUSED: dict[str, str] = {
    "resumed": "answers are taken up by /generate only",
    "custom_labels": native.REFUSED["custom_labels"],
    "return_spec_tokens_details": "use /generate, whose meta_info has spec_verify_ct and the like",
    "grammar": "use ebnf, which takes the same grammars",  # llama.cpp's name, and vLLM's
    "guided_json": "use json_schema, or response_format",
    "guided_regex": "use regex",
    "guided_choice": 'use json_schema with an enum, or regex: "one|other"',
    "guided_grammar": "use ebnf",
    "structured_outputs": "use json_schema, regex, ebnf or structural_tag",
    "stop_regex": NO_STOP_REGEX,
    "lora_path": native.NO_LORA,
    **dict.fromkeys(("session_id", "session_params"), native.NO_SESSIONS),
    "custom_logit_processor": NO_PROCESSORS,
    "watermark": native.REFUSED["watermark"],
    "return_hidden_states": "hidden states come with /generate only",
    "return_routed_experts": native.NO_EXPERTS,
    "routed_experts_start_len": native.NO_EXPERTS,
    **dict.fromkeys(("return_sampling_mask", "sampling_logprobs_mode"), native.NO_MASK),
    "return_flat_raw_output_top_logprobs": "use logprobs instead",
    "bootstrap_host": native.NO_DISAGGREGATION,
    "bootstrap_port": native.NO_DISAGGREGATION,
    "bootstrap_room": native.NO_DISAGGREGATION,
    "disagg_prefill_dp_rank": native.NO_DISAGGREGATION,
    "images_config": native.TEXT_ONLY,
    "video_config": native.TEXT_ONLY,
    "mm_processor_kwargs": native.TEXT_ONLY,
    "max_dynamic_patch": native.TEXT_ONLY,
    "min_dynamic_patch": native.TEXT_ONLY,
    "use_audio_in_video": native.TEXT_ONLY,
}

CHAT_REFUSED: dict[str, str] = {
    "functions": NO_FUNCTIONS,
    "function_call": NO_FUNCTIONS,
    "audio": native.TEXT_ONLY,
    "input_ids": "chat takes messages; send token ids to /v1/completions or /generate",
    "task": "the served model knows no tasks",
    "thinking": 'use chat_template_kwargs, e.g. {"enable_thinking": false}',
    "return_meta_info": "use /generate for meta_info",
    "return_input_ids_in_sglext": "use return_prompt_token_ids",
    "return_output_ids_in_sglext": "use return_token_ids",
    "web_search_options": "this server searches no web",
    "modalities": native.TEXT_ONLY,
    "store": "this server stores no completions; remove the field",
    "moderation": "this server judges no texts; remove the field",
}

CHAT_HARMLESS: dict[str, tuple[Any, ...]] = {
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}
"""Values of refused fields that ask for what happens anyway."""

COMPLETION_REFUSED: dict[str, str] = {
    "custom_params": NO_PROCESSORS,
}

SERVED_TIER = "default"


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """Token counts; `prompt_tokens_details` only with --enable-cache-report,
    `completion_tokens_details` only where reasoning is split off."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    reasoning_tokens: int = 0
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """One entry per token in every list. `text_offset` counts characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Choice(msgspec.Struct, kw_only=True):
    """What choices of all kinds have; the ids only when asked for."""

    index: int
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    prompt_token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET


class CachedTokensDetails(msgspec.Struct, kw_only=True):
    """Cached prompt tokens by the tier they were found in; there is only the device."""

    device: int
    host: int = 0


class SglExt(msgspec.Struct, kw_only=True):
    """SGLang's extension of OpenAI's answers."""

    cached_tokens_details: CachedTokensDetails


class Answer(msgspec.Struct, kw_only=True):
    """What answers and events of all kinds have."""

    id: str
    created: int
    model: str
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    sglext: SglExt | msgspec.UnsetType = msgspec.UNSET


class CompletionChoice(Choice, kw_only=True):
    text: str
    logprobs: CompletionLogprobs | None = None


class CompletionAnswer(Answer, kw_only=True):
    """Answer of /v1/completions, and (without usage) the data of each event of its stream."""

    choices: list[CompletionChoice]
    object: str = "text_completion"
    usage: Usage | None = None


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[ContentLogprob]
    refusal: None = None


class AnswerFunction(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`arguments`: JSON as the model wrote it, of an event what is new of it."""

    name: str | None = None
    arguments: str


class AnswerInput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`input`: of a custom tool, of an event what is new of it."""

    name: str | None = None
    input: str


class AnswerCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call, of a function or `custom`; `index` in events, `id`, `type` and the name only in
    the first one."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: AnswerFunction | None = None
    custom: AnswerInput | None = None


class AnswerMessage(msgspec.Struct, kw_only=True):
    content: str | None
    role: str = "assistant"
    reasoning_content: str | None = None
    tool_calls: list[AnswerCall] | None = None


class ChatChoice(Choice, kw_only=True):
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    response_token_ids: list[int] | msgspec.UnsetType | None = msgspec.UNSET


class ChatAnswer(Answer, kw_only=True):
    """Answer of /v1/chat/completions."""

    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"


class ChunkDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[AnswerCall] | None = None


class ChunkChoice(Choice, kw_only=True):
    delta: ChunkDelta
    logprobs: ChatLogprobs | None = None


class ChatChunk(Answer, kw_only=True):
    """Data of each event of a chat stream."""

    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "vivace"
    parent: str | None = None


class ModelList(msgspec.Struct, kw_only=True):
    data: list[ModelCard]
    object: str = "list"
