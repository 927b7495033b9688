"""Prompts whose answers repeat them."""

from __future__ import annotations

import os
from typing import Any

import pytest

import vivace
from vivace.bench.repeating_prompts import REPEATING_CHATS


def longest_copies(prompt: list[int], answer: list[int], length: int) -> float:
    """Share of the answer's tokens that are in copies of so many tokens of the prompt."""
    grams = {tuple(prompt[at : at + length]) for at in range(len(prompt) - length + 1)}
    copied = set[int]()
    for at in range(len(answer) - length + 1):
        if tuple(answer[at : at + length]) in grams:
            copied.update(range(at, at + length))
    return len(copied) / len(answer)


@pytest.mark.skipif(
    not os.environ.get("VIVACE_SLOW_TESTS"), reason="VIVACE_SLOW_TESTS=1: 600 tokens of a model"
)
def test_the_embedded_model_repeats_them() -> None:
    flags: dict[str, Any] = {"context_length": 1024, "max_running_requests": 4}
    drafts: dict[str, Any] = {"speculative_algorithm": "NGRAM", "speculative_fixed_width": True}
    with vivace.Engine(**drafts, **flags) as engine:
        tokenizer: Any = engine.get_tokenizer()
        greedy = {"temperature": 0, "max_new_tokens": 200}
        answers: Any = engine.chat(list(REPEATING_CHATS.values()), greedy)
    for (name, chat), answer in zip(REPEATING_CHATS.items(), answers, strict=True):
        prompt = tokenizer.encode(tokenizer.chat.render(chat), add_special_tokens=False)
        assert 300 <= len(prompt) <= 800, (name, len(prompt))
        assert longest_copies(prompt, answer["output_ids"], 8) > 0.5, name
        assert answer["meta_info"]["spec_accept_length"] > 1.8, name
