"""`Engine.score`: how likely certain tokens are behind a query and each of its items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vivace.frontend.errors import BadRequest
from vivace.frontend.frontend import Frontend

PLAIN: dict[str, Any] = {
    "max_new_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "ignore_eos": True,
}  # fmt: skip
"""sampling under which log-probabilities are the model's own, whatever the defaults are"""


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """`scores`: for each item one number per label token. `prompt_tokens`: of all prompts."""

    scores: list[list[float]]
    prompt_tokens: int


def score_prompts(frontend: Frontend, query: Any, items: Any, item_first: bool) -> list[list[int]]:
    """Token ids of query + item (or item + query) for each item. Texts are joined before they
    are encoded. Raises BadRequest."""
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, list) or not items:
        raise BadRequest("items", "must be a text, a list of texts or a list of token id lists")
    kind = str if isinstance(query, str) else list
    if not isinstance(query, str | list) or not all(isinstance(item, kind) for item in items):
        raise BadRequest("items", "query and items must both be text, or both token ids")
    joined = [item + query if item_first else query + item for item in items]
    if kind is list:
        return joined
    if frontend.tokenizer is None:
        raise BadRequest("query", "skip_tokenizer_init is set; give token ids")
    return frontend.tokenizer.encode_batch(joined)


def compute_scores(
    answers: Sequence[dict[str, Any]], labels: Sequence[int], apply_softmax: bool
) -> ScoreResult:
    """From answers of one token with `token_ids_logprob`."""
    scores = []
    for answer in answers:
        found = {token: value for value, token, _ in label_logprobs(answer)}
        logprobs = [found[label] for label in labels]
        total = math.log(sum(map(math.exp, logprobs))) if apply_softmax else 0.0
        scores.append([math.exp(value - total) for value in logprobs])
    tokens = sum(answer["meta_info"]["prompt_tokens"] for answer in answers)
    return ScoreResult(scores=scores, prompt_tokens=tokens)


def label_logprobs(answer: dict[str, Any]) -> list[tuple[float, int, str | None]]:
    return answer["meta_info"]["output_token_ids_logprobs"][0]
