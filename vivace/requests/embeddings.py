"""What /encode and `Engine.encode` take, and what they and /v1/embeddings ask the engine for.
Unknown fields are accepted, known ones are typed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from vivace.frontend.errors import BadRequest
from vivace.frontend.served_model import ServedModel
from vivace.protocol.tasks import Embed
from vivace.requests.limits import Ids, Members, PerPrompt, Prompts
from vivace.requests.prompts import PromptInput, cache_key, own_rid, share, wanted_rank
from vivace.requests.schema import NO_LORA, REFUSED, TEXT_ONLY

NOTHING_DRAWN = {"max_new_tokens": 0, "temperature": 0.0, "sampling_seed": 0}
"""SGLang's sampling settings of a request that draws no token"""


class EncodeRequest(msgspec.Struct, kw_only=True):
    """POST /encode. Exactly one of `text` and `input_ids`; lists make a batch."""

    text: str | PerPrompt[str] | None = None
    input_ids: Prompts[int | Ids] | None = None
    rid: str | PerPrompt[str] | None = None
    priority: int | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    """The engine that is to answer; the older name."""
    extra_key: str | PerPrompt[str] | None = None
    cache_salt: str | PerPrompt[str] | None = None
    """Prompts with different ones share no cached prefix."""
    dimensions: int | None = None
    """The first numbers of the vector, for models that were trained for it (Matryoshka)."""
    return_prompt_token_ids: bool = False
    log_metrics: bool = True
    """False: counted in no metric of requests, their tokens and their latencies."""
    # For the request log.
    routing_key: str | None = None
    external_trace_header: Members[Any] | None = None
    # Refused with a reason when set (ENCODE_REFUSED).
    sampling_params: Any = None
    modalities: Any = None
    received_time: Any = None
    background: Any = None
    http_worker_ipc: Any = None
    input_embeds: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    lora_path: Any = None
    lora_id: Any = None
    embed_override_token_id: int | None = None
    embed_overrides: Any = None
    positional_embed_overrides: Any = None
    is_cross_encoder_request: Any = None
    return_pooled_hidden_states: Any = None
    multi_item_delimiter_indices: Any = None
    token_indices_to_pool: Any = None
    decision_layout: Any = None
    # /generate's, of text.
    stream: Any = None
    return_logprob: Any = None
    return_hidden_states: Any = None
    resumed: Any = None


NO_OVERRIDES = REFUSED["positional_embed_overrides"]
NO_TEXT = "it is about generated text; remove the field"

ENCODE_REFUSED: dict[str, str] = {
    "sampling_params": "no token is drawn; remove the field",
    "modalities": TEXT_ONLY,
    "received_time": REFUSED["received_time"],
    "background": REFUSED["background"],
    "http_worker_ipc": REFUSED["http_worker_ipc"],
    "input_embeds": REFUSED["input_embeds"],
    "image_data": TEXT_ONLY,
    "video_data": TEXT_ONLY,
    "audio_data": TEXT_ONLY,
    "lora_path": NO_LORA,
    "lora_id": NO_LORA,
    "embed_overrides": NO_OVERRIDES,
    "positional_embed_overrides": NO_OVERRIDES,
    "is_cross_encoder_request": "pairs go to /v1/rerank; remove the field",
    "return_pooled_hidden_states": "the embedding is what was pooled; remove the field",
    "multi_item_delimiter_indices": REFUSED["multi_item_delimiter_indices"],
    "token_indices_to_pool": "the model says which tokens are pooled; remove the field",
    "decision_layout": REFUSED["multi_item_delimiter_indices"],
    "stream": NO_TEXT,
    "return_logprob": NO_TEXT,
    "return_hidden_states": NO_TEXT,
    "resumed": NO_TEXT,
}


def embedding_inputs(
    params: EncodeRequest, served: ServedModel, prompts: list[list[int]], batch: bool, place: str
) -> Iterator[PromptInput]:
    """Each prompt with what is asked for; `batch`: they came as a list, in the field `place`."""
    if params.embed_override_token_id is not None:
        raise BadRequest("embed_override_token_id", NO_OVERRIDES)
    task = embed_task(served, params.dimensions)
    for index, tokens in enumerate(prompts):
        yield PromptInput(
            tokens=tokens,
            sampling=NOTHING_DRAWN,
            prompt_field=f"{place}[{index}]" if batch else place,
            rid=own_rid(params.rid, index, len(prompts)),
            priority=params.priority,
            dp_rank=wanted_rank(params),
            cache_key=cache_key(
                share("extra_key", params.extra_key, index, len(prompts)),
                share("cache_salt", params.cache_salt, index, len(prompts)),
            ),
            log_metrics=params.log_metrics,
            task=task,
        )


def embed_task(served: ServedModel, dimensions: int | None) -> Embed:
    """What one text is asked for. BadRequest for what the model has no vector of."""
    task = served.task
    if not isinstance(task, Embed):
        raise BadRequest("", NO_EMBEDDINGS)
    if dimensions is None:
        return task
    if not 0 < dimensions <= served.hidden_size:
        raise BadRequest("dimensions", f"must be between 1 and {served.hidden_size}")
    if served.dimensions is not None and dimensions not in served.dimensions:
        taken = ", ".join(map(str, served.dimensions))
        whole = "the model was not trained for shorter vectors; remove the field"
        raise BadRequest("dimensions", f"must be one of {taken}" if taken else whole)
    return msgspec.structs.replace(task, dimensions=dimensions)


NO_EMBEDDINGS = (
    "this server generates text; embeddings need one with --is-embedding (and a model trained for "
    "them), classes one with a head for labels (docs/pooling.md lists which)"
)
NO_GENERATION = (
    "this server was started with --is-embedding, or has a model that answers with numbers: it "
    "generates no text (/v1/embeddings, /encode and, with a head for it, /classify and /rerank)"
)
