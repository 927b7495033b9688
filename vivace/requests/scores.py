"""How likely certain tokens are behind texts: what /v1/score, /v1/rerank and the offline API share.

A reranker that generates (Qwen3-Reranker) is asked, through its chat template, whether a document
answers a query; its score is the probability of "yes" beside that of "no".
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

from vivace.frontend.chat_template import ChatTemplate
from vivace.frontend.errors import BadRequest
from vivace.frontend.tokenizer import Tokenizer

PLAIN: dict[str, Any] = {
    "max_new_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "ignore_eos": True, "sampling_seed": 0,
}  # fmt: skip
"""sampling under which log-probabilities are the model's own, whatever the defaults are"""

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""what Qwen3-Reranker was trained with, and its default task"""
NO_TEMPLATE = (
    "the model has no chat template to be asked with; start with --chat-template, or serve a "
    "model for reranking"
)


def join_items(query: Any, items: Any, item_first: bool) -> list[Any]:
    """query + item (or item + query) for each item: texts, or token ids. Raises BadRequest."""
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, list) or not items:
        reason = "must be a text, a list of texts or a list of token id lists, and not empty"
        raise BadRequest("items", reason)
    kind = str if isinstance(query, str) else list
    if not isinstance(query, str | list) or not all(isinstance(item, kind) for item in items):
        raise BadRequest("items", "query and items must both be text, or both token ids")
    return [item + query if item_first else query + item for item in items]


def item_labels(labels: Any, count: int) -> list[list[int]]:
    """The tokens to be scored behind each of `count` items: the same, or a list for each. Raises
    BadRequest."""
    if not labels:
        raise BadRequest("label_token_ids", "say which tokens are to be scored")
    nested = isinstance(labels, list) and isinstance(labels[0], list)
    rows = labels if nested else [labels] * count
    if len(rows) != count:
        raise BadRequest("label_token_ids", f"has {len(rows)} lists for {count} items")
    if not all(
        isinstance(row, list) and row and all(type(one) is int for one in row) for row in rows
    ):
        raise BadRequest("label_token_ids", "must be a list of token ids")
    return rows


def probabilities(logprobs: Sequence[float], apply_softmax: bool) -> list[float]:
    """Of tokens with these log-probabilities; with `apply_softmax` they add up to 1."""
    if not apply_softmax:
        return [math.exp(value) for value in logprobs]
    most = max(logprobs)
    if most == -math.inf:
        return [0.0] * len(logprobs)
    weights = [math.exp(value - most) for value in logprobs]
    total = sum(weights)
    return [weight / total for weight in weights]


class Judgment:
    """Asks whether documents answer a query: one text for each document.

    A template that was written for reranking (SGLang's qwen3_reranker.jinja) is given the query and
    the document as messages, and `instruct`; every other one a system message and a question.
    """

    def __init__(self, template: ChatTemplate, query: str, instruct: str | None) -> None:
        self._marker = secrets.token_hex(16)
        """stands for the document while the template is rendered, once for all of them"""
        self._template = template
        own = SYSTEM.lower() in template.source.lower()
        shown = [query, self._marker] if own else [question(query, self._marker, instruct)]
        users = [{"role": "user", "content": text} for text in shown]
        self.messages = users if own else [{"role": "system", "content": SYSTEM}, *users]
        self.variables: dict[str, Any] = {"enable_thinking": False}
        if own and instruct is not None:
            self.variables["instruct"] = instruct

    def texts(self, rendered: str, documents: Sequence[str]) -> list[str]:
        """Of what the template made of `messages`. Raises BadRequest."""
        before, marker, behind = rendered.partition(self._marker)
        if not marker:
            raise BadRequest("documents", "the chat template does not show them to the model")
        return [before + document + behind for document in documents]


def question(query: str, document: str, instruct: str | None) -> str:
    return f"<Instruct>: {instruct or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"


def yes_and_no(tokenizer: Tokenizer) -> list[int]:
    """The tokens that the two answers begin with. Raises BadRequest."""
    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ("yes", "no"))
    if yes == no:
        raise BadRequest("", "the model's vocabulary does not tell yes from no: it cannot rerank")
    return [yes, no]


def check_texts(query: str, documents: Sequence[str]) -> None:
    """Neither the query nor a document may be empty. Raises BadRequest."""
    if not query.strip():
        raise BadRequest("query", "must not be empty")
    if not documents:
        raise BadRequest("documents", "must not be empty")
    for index, document in enumerate(documents):
        if not document.strip():
            raise BadRequest(f"documents[{index}]", "must not be empty")
