"""Which label follows a text most probably, and how sure the model was of each token it chose."""

from __future__ import annotations

import math
from typing import Any

import vivace

REVIEWS = ("I loved every minute of this film.", "A complete waste of time.")
LABELS = (" positive", " negative")


def main() -> None:
    with vivace.Engine(context_length=512) as engine:
        tokenizer = engine.get_tokenizer()
        labels = [tokenizer.encode(label)[0] for label in LABELS]
        items = [f"Review: {review}\nThe review is" for review in REVIEWS]
        scores = engine.score("", items, labels, apply_softmax=True).scores
        for review, row in zip(REVIEWS, scores, strict=True):
            shares = (f"{label} {share:.2f}" for label, share in zip(LABELS, row, strict=True))
            print(f"{review} ->{','.join(shares)}")

        answer: Any = engine.generate(
            "The capital of France is",
            {"temperature": 0, "max_new_tokens": 4},
            return_logprob=True,
            return_text_in_logprobs=True,
        )
        for logprob, _, text in answer["meta_info"]["output_token_logprobs"]:
            print(f"{text!r} {math.exp(logprob):.2f}")


if __name__ == "__main__":
    main()
