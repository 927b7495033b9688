"""SGLang Engine's arguments -> one `Ask` per prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.fields import kind_of

UNAVAILABLE = {
    "image_data": "the served models read text only",
    "audio_data": "the served models read text only",
    "video_data": "the served models read text only",
    "input_embeds": "prompts are text or token ids",
    "lora_path": "LoRA adapters are not available in this version of Vivace",
    "custom_logit_processor": "logit processors from a request are never run",
    "return_hidden_states": "hidden states are not available in this version of Vivace",
    "return_routed_experts": "routed experts are not available in this version of Vivace",
    "session_params": "sessions are not available in this version of Vivace",
    "bootstrap_host": "disaggregation is not available in this version of Vivace",
    "bootstrap_port": "disaggregation is not available in this version of Vivace",
    "bootstrap_room": "disaggregation is not available in this version of Vivace",
    "data_parallel_rank": "there is one engine in the offline API",
    "routed_dp_rank": "there is one engine in the offline API",
    "external_trace_header": "tracing is not available in this version of Vivace",
}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One prompt (text or token ids) and what is asked of it. `place` names it in errors."""

    prompt: str | list[int]
    sampling: Mapping[str, Any] | None
    rid: str | None
    return_logprob: Any
    logprob_start_len: Any
    top_logprobs_num: Any
    token_ids_logprob: Any
    place: str


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of one `generate` call, not yet split."""

    prompt: Any
    input_ids: Any
    sampling_params: Any
    rid: Any
    return_logprob: Any
    logprob_start_len: Any
    top_logprobs_num: Any
    token_ids_logprob: Any


def refuse_unavailable(extra: Mapping[str, Any]) -> None:
    """Arguments of SGLang's Engine that do nothing here are refused, not ignored."""
    for name, value in extra.items():
        if name not in UNAVAILABLE:
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}")
        if value is not None and value is not False:
            raise BadRequest(name, UNAVAILABLE[name])


def split(arguments: Arguments) -> tuple[list[Ask], bool]:
    """(one Ask per prompt, whether the caller gave a batch). Raises BadRequest."""
    name, prompts, batch = _prompts(arguments)
    count = len(prompts)
    columns = {
        field: _column(field, getattr(arguments, field), count, batch)
        for field in (
            "sampling_params",
            "rid",
            "return_logprob",
            "logprob_start_len",
            "top_logprobs_num",
        )
    }
    chosen = _id_lists(arguments.token_ids_logprob, count, batch)
    asks = [
        Ask(
            prompt=prompt,
            sampling=columns["sampling_params"][i],
            rid=columns["rid"][i],
            return_logprob=columns["return_logprob"][i],
            logprob_start_len=columns["logprob_start_len"][i],
            top_logprobs_num=columns["top_logprobs_num"][i],
            token_ids_logprob=chosen[i],
            place=f"{name}[{i}]" if batch else name,
        )
        for i, prompt in enumerate(prompts)
    ]
    return asks, batch


def _prompts(arguments: Arguments) -> tuple[str, list[Any], bool]:
    if (arguments.prompt is None) == (arguments.input_ids is None):
        raise BadRequest("prompt", "give either prompt or input_ids")
    if arguments.prompt is not None:
        if isinstance(arguments.prompt, str):
            return "prompt", [arguments.prompt], False
        if isinstance(arguments.prompt, list) and arguments.prompt:
            return "prompt", arguments.prompt, True
        raise BadRequest(
            "prompt", f"must be a string or a list of them, not {kind_of(arguments.prompt)}"
        )
    if not isinstance(arguments.input_ids, list) or not arguments.input_ids:
        raise BadRequest("input_ids", "must be a list of token ids, or a list of such lists")
    if isinstance(arguments.input_ids[0], list):
        return "input_ids", arguments.input_ids, True
    return "input_ids", [arguments.input_ids], False


def _column(field: str, value: Any, count: int, batch: bool) -> list[Any]:
    """One value per prompt: a list has one for each, anything else is for all."""
    if not isinstance(value, list):
        if field == "rid" and value is not None and batch:
            return [f"{value}-{i}" for i in range(count)]
        return [value] * count
    if len(value) != count:
        raise BadRequest(field, f"has {len(value)} entries for {count} prompts")
    return value


def _id_lists(value: Any, count: int, batch: bool) -> list[Any]:
    if batch and isinstance(value, list) and value and isinstance(value[0], list | type(None)):
        return _column("token_ids_logprob", value, count, batch)
    return [value] * count
