"""Bodies and answers of Ollama's API. Unknown fields are accepted, known ones are typed."""

from __future__ import annotations

from typing import Any

import msgspec

from vivace.protocol.constraints import CONSTRAINTS
from vivace.requests.limits import Calls, Entries, Members, Messages, PerPrompt
from vivace.requests.schema import OTHER_CONSTRAINTS, TEXT_ONLY
from vivace.server.openai.schema import DEFAULT_MODEL


class OllamaFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: Members[Any] | None = None


class OllamaCall(msgspec.Struct, kw_only=True):
    """A call in a past answer."""

    function: OllamaFunction


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | None = None
    thinking: str | None = None
    tool_calls: Calls[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Any = None


class OllamaOptions(msgspec.Struct, kw_only=True):
    """Sampling, by Ollama's names, and what a server decides when it starts."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    """-1 and -2: as many tokens as the context leaves room for."""
    stop: str | Entries[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # Any value: decided when the server starts.
    num_ctx: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    num_keep: Any = None
    numa: Any = None
    low_vram: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    # Refused unless they ask for what happens anyway (OPTIONS_HARMLESS).
    repeat_last_n: int | None = None
    tfs_z: float | None = None
    typical_p: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: bool | None = None


OPTIONS_REFUSED: dict[str, str] = {
    "repeat_last_n": "penalties look at the whole answer, which is -1; remove the option",
    "tfs_z": "tail-free sampling is not supported yet; use min_p",
    "typical_p": "typical sampling is not supported yet; use top_p",
    "mirostat": "mirostat is not supported yet; use min_p",
}
OPTIONS_HARMLESS: dict[str, tuple[Any, ...]] = {
    "repeat_last_n": (-1,),
    "tfs_z": (1.0,),
    "typical_p": (1.0,),
}
"""Values of refused options that ask for what happens anyway."""


class OllamaFields(msgspec.Struct, kw_only=True):
    """What /api/chat and /api/generate have in common."""

    model: str = DEFAULT_MODEL
    stream: bool | None = True
    options: OllamaOptions | None = None
    format: str | Members[Any] | None = None
    """"json", or a JSON schema"""
    think: bool | str | None = None
    """Whether to think, or how much: low, medium, high, xhigh, max."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: Any = None
    """Any value: the model stays while the server runs; 0 without a prompt is answered as if it
    did not."""
    # Refused with a reason when set (OLLAMA_REFUSED).
    response_format: Any = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    structural_tag: Any = None


OLLAMA_REFUSED: dict[str, str] = dict.fromkeys(
    ("response_format", *CONSTRAINTS), f"send a schema as format; {OTHER_CONSTRAINTS}"
)


class OllamaChatRequest(OllamaFields, kw_only=True):
    """POST /api/chat. Without messages it asks only whether the model is there."""

    messages: Messages[OllamaMessage] | None = None
    tools: Entries[Any] | None = None


class OllamaGenerateRequest(OllamaFields, kw_only=True):
    """POST /api/generate. Without a prompt it asks only whether the model is there."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    """The prompt is what the model is given, without a chat template."""
    suffix: str | None = None
    """What stands behind the answer, for models that fill in the middle."""
    # Refused with a reason when set (GENERATE_REFUSED).
    images: Any = None
    template: Any = None
    context: Any = None
    width: Any = None
    height: Any = None
    steps: Any = None


NO_PICTURES = "this server makes no pictures"
GENERATE_REFUSED: dict[str, str] = {
    **OLLAMA_REFUSED,
    "images": TEXT_ONLY,
    "template": "the chat template is the model's, or --chat-template's; send raw prompts",
    "context": "send the conversation to /api/chat; its prefix is cached",
    "width": NO_PICTURES,
    "height": NO_PICTURES,
    "steps": NO_PICTURES,
}


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """POST /api/embed."""

    input: str | PerPrompt[str]
    model: str = DEFAULT_MODEL
    dimensions: int | None = None
    truncate: bool | None = None
    """Any value: a text that is too long is refused."""
    keep_alive: Any = None
    options: Any = None
    """Any value: nothing is drawn."""


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    """POST /api/embeddings, the older form of /api/embed."""

    prompt: str
    model: str = DEFAULT_MODEL
    keep_alive: Any = None
    options: Any = None


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """POST /api/show."""

    model: str = DEFAULT_MODEL
    verbose: bool | None = None
    """Any value: there is no more to tell."""


# -- answers ---------------------------------------------------------------------------------------


class OllamaAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What answers and lines of streams have in common; counts come with the last one. Durations
    are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    logprobs: list[Any] | None = None


class OllamaAnswerMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    content: str
    role: str
    thinking: str | None = None
    tool_calls: list[Any] | None = None


class OllamaChatAnswer(OllamaAnswer, kw_only=True, omit_defaults=True):
    """Answer of /api/chat, and each line of its stream."""

    message: OllamaAnswerMessage


class OllamaGenerateAnswer(OllamaAnswer, kw_only=True, omit_defaults=True):
    """Answer of /api/generate, and each line of its stream."""

    response: str
    thinking: str | None = None


class OllamaEmbedAnswer(msgspec.Struct, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    prompt_eval_count: int
    load_duration: int = 0


class OllamaEmbeddingsAnswer(msgspec.Struct, kw_only=True):
    embedding: list[float]


class ModelDetails(msgspec.Struct, kw_only=True):
    """What the server knows of its model's kind; a text that is empty is not known."""

    format: str
    family: str
    families: list[str]
    parent_model: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The served model in /api/tags, and in /api/ps, where the last three are told too."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class OllamaModelList(msgspec.Struct, kw_only=True):
    models: list[OllamaModel]


class OllamaShowAnswer(msgspec.Struct, kw_only=True):
    """`template`: the model's chat template; `license` and `modelfile` are not known here."""

    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    parameters: str
    template: str
    license: str = ""
    modelfile: str = ""


class OllamaVersion(msgspec.Struct, kw_only=True):
    version: str
