"""Hostile HTTP requests, made from valid ones by seeded mutation."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

GENERATE = {
    "text": "hello there",
    "sampling_params": {"max_new_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5},
    "stream": False,
    "return_logprob": True,
    "top_logprobs_num": 2,
}
COMPLETION = {"model": "default", "prompt": "hello", "max_tokens": 2, "temperature": 0, "n": 1}
CHAT = {
    "model": "default",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 2,
    "logprobs": True,
    "top_logprobs": 1,
}
VALID: list[tuple[str, dict[str, Any]]] = [
    ("/generate", GENERATE),
    ("/generate", {"input_ids": [3, 4, 5], "sampling_params": {"max_new_tokens": 2, "min_p": 0.1}}),
    (
        "/generate",
        {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 1}] * 2, "rid": ["x", "y"]},
    ),
    ("/v1/completions", COMPLETION),
    ("/v1/completions", {"prompt": [[3, 4], [5]], "max_tokens": 1, "echo": True, "logprobs": 1}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/tokenize", {"prompt": "some text"}),
    ("/detokenize", {"tokens": [3, 4, 5]}),
    ("/abort_request", {"rid": "nobody"}),
]
FIELDS = """
text input_ids input_embeds sampling_params stream rid return_logprob logprob_start_len
priority top_logprobs_num token_ids_logprob image_data lora_path extra_key cache_salt
session_params prompt max_tokens temperature top_p n stop seed logit_bias logprobs
top_logprobs messages tools model echo best_of suffix presence_penalty frequency_penalty
stream_options response_format user tokens custom_logit_processor bootstrap_host
bootstrap_room return_hidden_states max_completion_tokens
""".split()
SAMPLING_FIELDS = """
max_new_tokens min_new_tokens temperature top_p top_k min_p frequency_penalty
presence_penalty repetition_penalty stop stop_token_ids ignore_eos n skip_special_tokens
no_stop_trim logit_bias sampling_seed json_schema regex ebnf custom_params
stream_interval beam_width nonsense
""".split()
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, -1e308, 2**31, 2**53, 2**63, 2**64, -(2**63),
    "", "1", "true", "\x00", "\ud7ff", "é" * 50, "a" * 5000, "<|im_end|>", "../../etc/passwd",
    "{{ 7*7 }}", "http://169.254.169.254/", [], {}, [[]], [{}], [None], [-1], [10**9], [1.5], ["x"],
    [True], [[1], "x"], {"0": 1}, {"-1": 5}, {"x": "y"}, {"99999999": 1}, {"5": 1e300}, [3] * 3000,
    ["stop"] * 40, {"type": "json_object"}, {"include_usage": "yes"}, [[[[[[1]]]]]],
]  # fmt: skip
RAW: list[bytes] = [
    b"", b"null", b"[]", b"0", b'"text"', b"{", b'{"text":', b'{"text": "a"}}', b"\xff\xfe\x00",
    b'{"text": "\xff\xfe"}', b'{"text": "\\ud800"}', b'{"text": NaN}', b"\x00" * 100,
    b'{"text": "a", "sampling_params": {"temperature": NaN}}',
    b'{"text": "a", "sampling_params": {"temperature": Infinity}}',
    b'{"text": "a", "sampling_params": {"temperature": 1e999}}',
    b'{"input_ids": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b'{"input_ids": [' + b"9" * 5000 + b"]}",
]  # fmt: skip


@dataclass(frozen=True)
class Hostile:
    """One request: where, how and what; `body` is sent as it is."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]


def hostile_requests(count: int, seed: int) -> list[Hostile]:
    chance = random.Random(seed)
    return [one(chance) for _ in range(count)]


def one(chance: random.Random) -> Hostile:
    path, body = chance.choice(VALID)
    kind = chance.random()
    if kind < 0.06:
        data = chance.choice(RAW)
    elif kind < 0.12:
        whole = json.dumps(body).encode()
        data = whole[: chance.randrange(len(whole))]
    elif kind < 0.16:
        data = scrambled(json.dumps(body).encode(), chance)
    else:
        data = json.dumps(mutated(body, chance)).encode()
    headers = {
        "Content-Type": chance.choice(["application/json", "text/plain", "application/json"])
    }
    method = "POST" if chance.random() < 0.97 else chance.choice(["GET", "PUT", "DELETE", "PATCH"])
    return Hostile(method, path, data, headers)


def mutated(body: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """One to three fields replaced, added or removed."""
    result = json.loads(json.dumps(body))
    for _ in range(chance.randint(1, 3)):
        target, names = result, FIELDS
        if isinstance(result.get("sampling_params"), dict) and chance.random() < 0.6:
            target, names = result["sampling_params"], SAMPLING_FIELDS
        if chance.random() < 0.1 and target:
            target.pop(chance.choice(sorted(target)))
        else:
            name = chance.choice(sorted(target) if target and chance.random() < 0.4 else names)
            target[name] = json.loads(json.dumps(chance.choice(HOSTILE)))
    return result


def scrambled(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        out[chance.randrange(len(out))] = chance.randrange(256)
    return bytes(out)
