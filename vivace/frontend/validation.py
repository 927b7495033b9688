"""Request fields -> `SamplingParams` and `LogprobOptions`: every check happens here, once.

Sources: SGLang's SamplingParams (names, defaults and ranges) for the fields; the caps on list
lengths are ours, so that no request can make the engine allocate without bound.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from vivace.errors import CannotStart
from vivace.frontend.constraints import GIVEN, read_constraint
from vivace.frontend.errors import CONTEXT_EXCEEDED, BadRequest
from vivace.frontend.fields import PLAIN_TEXT, Fields, abbreviate, is_set, json_type
from vivace.frontend.served_model import ServedModel
from vivace.protocol.constraints import CONSTRAINTS, Constraint
from vivace.protocol.messages import MAX_RID_CHARACTERS, LogprobOptions, SamplingParams

GREEDY_BELOW = 1e-6
_MOST_TOKENS = (1 << 31) - 1
_SEED_LIMIT = 1 << 63
_LARGEST_BIAS = 1e6
_SMALLEST_REPETITION = 1e-6
"""Logits are divided by it, and must stay finite in float32."""
NO_STOP_REGEX = "stop expressions are not supported yet; use stop or stop_token_ids"
NO_WATERMARK = "watermarking is not supported yet; leave the field out"
NO_PROCESSORS = (
    "executable logit processors are never accepted from a request; use logit_bias, or leave the "
    "field out"
)
BESIDE = ("max_thinking_tokens", "thinking_budget", "thinking_token_budget")
UNAVAILABLE = {
    "stop_regex": NO_STOP_REGEX,
    "beam_width": "beam search is not supported yet; use n, or leave the field out",
    "watermark": NO_WATERMARK,
    "custom_params": f"{NO_PROCESSORS}; a limit of thinking stands beside sampling_params",
}
"""SGLang's names of what nothing here does -> why, and what to do."""
SAMPLING_FIELDS = (
    *(name for name in SamplingParams.__struct_fields__ if name not in ("seed", GIVEN)),
    *CONSTRAINTS,
    "n",
    "sampling_seed",
)
"""SGLang's names of what a request may say of sampling."""
OTHER_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "num_predict": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "eos_token_id": "stop_token_ids",
    "num_return_sequences": "n",
    "response_format": "json_schema",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_grammar": "ebnf",
}
"""OpenAI's, vLLM's, Ollama's or transformers' name of a setting -> SGLang's."""


class CheckedSampling:
    """SGLang's field names, checked once for however many prompts.

    A field that is absent takes the server's default. `max_new_tokens` is cut to the room left in
    the context; an explicit None asks for all of it.
    """

    def __init__(
        self,
        raw: Mapping[str, Any] | None,
        served: ServedModel,
        field_prefix: str = "sampling_params",
    ) -> None:
        """Raises BadRequest with the field's name."""
        raw = _checked_mapping(raw, field_prefix)
        self._served = served
        self._fields = fields = Fields({**served.defaults, **_without_none(raw)}, field_prefix)
        _refuse_unavailable(fields)
        self._everything = "max_new_tokens" in raw and raw["max_new_tokens"] is None
        self._seeded = fields.get("sampling_seed") is not None
        temperature = fields.number("temperature", 1.0, 0.0, 1e4)
        self._sampling = SamplingParams(
            max_new_tokens=fields.integer("max_new_tokens", 128, 0, _MOST_TOKENS),
            min_new_tokens=fields.integer("min_new_tokens", 0, 0, _MOST_TOKENS),
            temperature=0.0 if temperature < GREEDY_BELOW else temperature,
            top_p=fields.number("top_p", 1.0, 0.0, 1.0, open_low=True),
            top_k=_top_k(fields, served.vocabulary),
            min_p=fields.number("min_p", 0.0, 0.0, 1.0),
            frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
            presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
            repetition_penalty=fields.number("repetition_penalty", 1.0, _SMALLEST_REPETITION, 2.0),
            stop=fields.strings("stop", served.max_stop_strings, served.max_stop_characters),
            stop_token_ids=fields.token_ids(
                "stop_token_ids", served.max_stop_ids, served.vocabulary
            ),
            ignore_eos=fields.flag("ignore_eos", False),
            skip_special_tokens=fields.flag("skip_special_tokens", True),
            spaces_between_special_tokens=fields.flag("spaces_between_special_tokens", True),
            no_stop_trim=fields.flag("no_stop_trim", False),
            logit_bias=_logit_bias(fields, served),
            seed=_seed(fields),
            constraint=read_constraint(fields, served),
            stream_interval=fields.integer("stream_interval", 0, 1, _MOST_TOKENS),
        )
        self.n = fields.integer("n", 1, 1, served.max_samples)

    def behind(self, prompt_tokens: int) -> SamplingParams:
        """Of the first sample behind a prompt of so many tokens; see `samples` for the others. A
        seed that nobody gave is another one each time. Raises BadRequest where there is no room."""
        longest, shortest = self._lengths(prompt_tokens)
        seed = self._sampling.seed if self._seeded else mix(next(self._served.seeds))
        return msgspec.structs.replace(
            self._sampling, max_new_tokens=longest, min_new_tokens=shortest, seed=seed
        )

    def _lengths(self, prompt_tokens: int) -> tuple[int, int]:
        """(max_new_tokens, min_new_tokens) that fit behind the prompt."""
        served, shortest = self._served, self._sampling.min_new_tokens
        if served.allow_auto_truncate:
            prompt_tokens = min(prompt_tokens, served.context - 1)
        room = served.context - prompt_tokens
        longest = max(room, 0) if self._everything else self._sampling.max_new_tokens
        if shortest > longest:
            raise self._fields.refuse(
                "min_new_tokens", f"{shortest} is more than max_new_tokens, which is {longest}"
            )
        if room < 0 or (room == 0 and longest > 0):
            raise too_long("prompt", prompt_tokens, served)
        return min(longest, room), min(shortest, room)


class SamplingChecks:
    """Of many prompts, most of which have the same settings as the one before."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._given: tuple[Mapping[str, Any] | None, str] | None = None
        self._checked: CheckedSampling | None = None

    def check(self, raw: Mapping[str, Any] | None, field_prefix: str) -> CheckedSampling:
        """Raises BadRequest."""
        given, checked = self._given, self._checked
        if checked is None or given is None or given[0] is not raw or given[1] != field_prefix:
            checked = CheckedSampling(raw, self._served, field_prefix)
            self._given, self._checked = (raw, field_prefix), checked
        return checked


def check_defaults(served: ServedModel) -> None:
    """CannotStart when the server's own defaults would make every request fail."""
    try:
        raw = _checked_mapping(served.defaults, "sampling defaults")
        for kind in CONSTRAINTS:
            if kind in raw:
                raise BadRequest(f"sampling defaults.{kind}", "is for single requests only")
        CheckedSampling(raw, served, "sampling defaults").behind(0)
    except BadRequest as error:
        raise CannotStart(
            f"{error} (from --preferred-sampling-params or the model's files; "
            "--sampling-defaults openai leaves the latter out)"
        ) from error


def samples(sampling: SamplingParams, n: int) -> list[SamplingParams]:
    """The settings of `n` parallel samples: the same with the seeds seed, seed + 1, ..."""
    if n == 1:
        return [sampling]
    return [
        msgspec.structs.replace(sampling, seed=(sampling.seed + index) % _SEED_LIMIT)
        for index in range(n)
    ]


def build_logprobs(
    served: ServedModel,
    prompt_tokens: int,
    *,
    return_logprob: Any = False,
    logprob_start_len: Any = None,
    top_logprobs_num: Any = None,
    token_ids_logprob: Any = None,
    field_prefix: str = "",
) -> LogprobOptions | None:
    """SGLang's logprob fields of one request; None when it asks for no log-probabilities."""
    fields = Fields(
        {
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
            "token_ids_logprob": token_ids_logprob,
        },
        field_prefix,
    )
    wanted = fields.flag("return_logprob", False)
    start = fields.integer("logprob_start_len", -1, -1, max(prompt_tokens, 0))
    top = fields.integer("top_logprobs_num", 0, 0, served.max_top_logprobs)
    chosen = fields.token_ids("token_ids_logprob", served.max_logprob_ids, served.vocabulary)
    return LogprobOptions(start=start, top=top, token_ids=chosen) if wanted else None


def check_rid(rid: Any) -> str:
    """A request's id; BadRequest when it cannot be one."""
    if isinstance(rid, str) and 0 < len(rid) <= MAX_RID_CHARACTERS:
        return rid
    shape = f"must be a string of 1 to {MAX_RID_CHARACTERS} characters"
    given = f"one of {len(rid)}" if isinstance(rid, str) else json_type(rid)
    raise BadRequest("rid", f"{shape}, not {given}")


def check_prompt(
    tokens: Any, served: ServedModel, *, field: str = "input_ids", room: int = 1
) -> list[int]:
    """A prompt that fits: token ids of the vocabulary, leaving `room` tokens for the answer.

    With `allow_auto_truncate` a prompt that is too long loses its end instead.
    """
    if not isinstance(tokens, list):
        raise BadRequest(field, f"must be a list of token ids, not {json_type(tokens)}")
    if not tokens:
        raise BadRequest(field, "the prompt is empty")
    limit = served.context - room
    if len(tokens) > limit:
        if not served.allow_auto_truncate:
            raise too_long(field, len(tokens), served)
        tokens = tokens[:limit]
    if not _all_in_vocabulary(tokens, served.vocabulary):
        reader = Fields({}, "")
        return [reader.token_id(field, token, served.vocabulary) for token in tokens]
    return tokens


def too_long(field: str, tokens: int | str, served: ServedModel) -> BadRequest:
    """Clients know it by the code, or by SGLang's words "longer than the model's context length",
    and shorten the conversation."""
    return BadRequest(
        field,
        f"the prompt of {tokens} tokens is longer than the model's context length "
        f"({served.context} tokens for prompt and answer together)",
        code=CONTEXT_EXCEEDED,
    )


def _all_in_vocabulary(tokens: list[Any], vocabulary: int) -> bool:
    """Quick check at C speed; the slow one names the offender."""
    if set(map(type, tokens)) != {int}:
        return False
    return min(tokens) >= 0 and max(tokens) < vocabulary


def _checked_mapping(raw: Any, prefix: str) -> Mapping[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise BadRequest(prefix, f"must be an object, not {json_type(raw)}")
    for key in raw:
        if key == GIVEN and isinstance(raw[key], Constraint):
            continue
        if key == "response_format" and raw[key] == PLAIN_TEXT:
            continue
        if key not in SAMPLING_FIELDS and key not in UNAVAILABLE:
            near = [OTHER_NAMES[key]] if key in OTHER_NAMES else _similar(str(key)[:60])
            hint = f"; did you mean {near[0]!r}?" if near else ""
            hint = f"; it stands beside {prefix}" if key in BESIDE else hint
            raise BadRequest(prefix, f"unknown field {abbreviate(key)!r}{hint}")
    return raw


def _similar(key: str) -> list[str]:
    return difflib.get_close_matches(key, [*SAMPLING_FIELDS, *UNAVAILABLE], 1)


def _without_none(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if value is not None}


def _refuse_unavailable(fields: Fields) -> None:
    for key, reason in UNAVAILABLE.items():
        if is_set(fields.get(key)):
            raise fields.refuse(key, reason)


def _top_k(fields: Fields, vocabulary: int) -> int:
    """0 = the whole vocabulary (SGLang: -1)."""
    value = fields.integer("top_k", -1, -1, _MOST_TOKENS)
    if value == 0:
        raise fields.refuse("top_k", "must be -1 (the whole vocabulary) or at least 1, got 0")
    return 0 if value == -1 or value >= vocabulary else value


def _seed(fields: Fields) -> int:
    return fields.integer("sampling_seed", 0, -_SEED_LIMIT, 2 * _SEED_LIMIT - 1) % _SEED_LIMIT


def mix(value: int) -> int:
    """SplitMix64's finisher, kept to 63 bits."""
    value = (value * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (value ^ (value >> 31)) % _SEED_LIMIT


def _logit_bias(fields: Fields, served: ServedModel) -> dict[int, float]:
    value = fields.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise fields.refuse("logit_bias", f"must be an object, not {json_type(value)}")
    if len(value) > served.max_bias_ids:
        raise fields.refuse(
            "logit_bias", f"has {len(value)} entries; at most {served.max_bias_ids} are allowed"
        )
    found: dict[int, float] = {}
    for key, bias in value.items():
        token = fields.token_id("logit_bias", _bias_token(fields, key), served.vocabulary)
        number = fields.finite("logit_bias", bias)
        if abs(number) > _LARGEST_BIAS:
            raise fields.refuse("logit_bias", f"must be within {_LARGEST_BIAS:g} of zero")
        found[token] = number
    return found


def _bias_token(fields: Fields, key: Any) -> Any:
    """JSON object keys are strings; they must be plain decimal numbers."""
    if not isinstance(key, str):
        return key
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise fields.refuse("logit_bias", f"key {abbreviate(key)!r} is not a token id")
    return int(key)
