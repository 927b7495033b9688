"""`Engine.score` and `Engine.rerank`: how likely certain tokens are behind texts, and what
cross-encoders make of pairs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from vivace.frontend.errors import BadRequest, NotSupported
from vivace.frontend.fairness import run_now
from vivace.frontend.frontend import Frontend
from vivace.frontend.sglang_output import SGLangOutput
from vivace.offline.job import Job
from vivace.offline.prompts import GenerateOptions, pythons_words
from vivace.requests.classes import pair_inputs, pair_score
from vivace.requests.prompts import expand
from vivace.requests.scores import (
    NO_TEMPLATE,
    Judgment,
    check_texts,
    item_labels,
    join_items,
    probabilities,
    yes_and_no,
)


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """`scores`: for each item one number per label token. `prompt_tokens`: of all prompts."""

    scores: list[list[float]]
    prompt_tokens: int


@dataclass(frozen=True)
class ScoreCall:
    """Prompts as token ids, and the tokens that are scored behind each."""

    prompts: list[list[int]]
    labels: list[list[int]]

    @property
    def options(self) -> GenerateOptions:
        return GenerateOptions(return_logprob=True, token_ids_logprob=self.labels)

    def scores(self, answers: Sequence[dict[str, Any]], apply_softmax: bool) -> ScoreResult:
        """From answers of one token."""
        metas = [answer["meta_info"] for answer in answers]
        scores = [
            probabilities([value for value, *_ in rows], apply_softmax)
            for meta in metas
            for rows in meta["output_token_ids_logprobs"]
        ]
        return ScoreResult(
            scores=scores, prompt_tokens=sum(meta["prompt_tokens"] for meta in metas)
        )

    def ranks(self, answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """As SGLang has them: the score of each pair is its `embedding`."""
        found = self.scores(answers, apply_softmax=True).scores
        return [
            {"embedding": yes, "meta_info": answer["meta_info"]}
            for (yes, _), answer in zip(found, answers, strict=True)
        ]


def read_score_call(
    frontend: Frontend, query: Any, items: Any, labels: Any, item_first: bool, *overrides: Any
) -> ScoreCall:
    """Texts are joined before they are encoded. Raises BadRequest."""
    if any(override is not None for override in overrides):
        raise NotSupported("embed_overrides", "replacing embeddings is not supported yet")
    joined = join_items(query, items, item_first)
    wanted = item_labels(labels, len(joined))
    if not isinstance(query, str):
        return ScoreCall(joined, wanted)
    return ScoreCall(need_tokenizer(frontend, "query").encode_batch(joined), wanted)


def check_pairs(pairs: Any) -> list[tuple[str, str]]:
    """Queries and documents. Raises BadRequest."""
    if not (isinstance(pairs, list) and pairs) or not all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(one, str) for one in pair)
        for pair in pairs
    ):
        raise BadRequest("prompt", "must be a list of pairs: a query and a document, both text")
    for query, document in pairs:
        check_texts(query, [document])
    return [(query, document) for query, document in pairs]


def create_pair_job(frontend: Frontend, prompt: Any, instruct: str | None) -> Job:
    """Of a cross-encoder: one number of each pair. Raises BadRequest."""
    arrival, served = time.monotonic(), frontend.served
    if instruct is not None:
        raise BadRequest("instruct", "a cross-encoder takes no task; leave it out")
    pairs = check_pairs(prompt)
    prompts = need_tokenizer(frontend, "prompt").encode_pairs(pairs, served.pair_step)
    with pythons_words():
        inputs = pair_inputs(served, prompts, None)
        work = expand(frontend, inputs, limit=served.max_live, stream=False, arrival=arrival)
        requests = run_now(work)
    answers = [SGLangOutput(request, weight_version=served.weight_version) for request in requests]

    def show(answer: SGLangOutput) -> dict[str, Any]:
        found = answer.embedding()
        return {**found, "embedding": pair_score(served, found["embedding"])}

    return Job(frontend, requests, answers, several=True, show=show)


def read_rerank_call(frontend: Frontend, prompt: Any, instruct: str | None) -> ScoreCall:
    """Each pair of a query and a document as a question that wants yes or no. Raises BadRequest."""
    pairs = check_pairs(prompt)
    tokenizer = need_tokenizer(frontend, "prompt")
    if tokenizer.chat is None:
        raise BadRequest("", NO_TEMPLATE)
    texts: list[str] = []
    for query, some in groupby(pairs, key=itemgetter(0)):
        judgment = Judgment(tokenizer.chat, query, instruct)
        rendered = tokenizer.chat.render(judgment.messages, variables=judgment.variables)
        texts += judgment.texts(rendered, [document for _, document in some])
    prompts = tokenizer.encode_batch(texts, add_special_tokens=False)
    return ScoreCall(prompts, [yes_and_no(tokenizer)] * len(prompts))


def need_tokenizer(frontend: Frontend, field: str) -> Any:
    if frontend.tokenizer is None:
        raise BadRequest(field, "skip_tokenizer_init is set; there are token ids only")
    return frontend.tokenizer
