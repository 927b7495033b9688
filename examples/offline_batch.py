"""Answers to prompts, one a line on standard input, as JSON lines. Nothing listens."""

from __future__ import annotations

import json
import sys
from typing import Any

import vivace

SYSTEM = {"role": "system", "content": "You answer in one short sentence."}


def main() -> None:
    prompts = [line.strip() for line in sys.stdin if line.strip()]
    if not prompts:
        sys.exit("no prompt on standard input; give one a line")
    conversations = [[SYSTEM, {"role": "user", "content": prompt}] for prompt in prompts]
    try:
        engine = vivace.Engine(*sys.argv[1:2], context_length=2048)
    except vivace.CannotStart as error:  # no model there, or settings that do not go together
        sys.exit(str(error))
    with engine:
        # one call: the engine computes them together and shares what they have in common
        answers: Any = engine.chat(conversations, {"temperature": 0, "max_new_tokens": 24})
        for prompt, answer in zip(prompts, answers, strict=True):
            print(json.dumps({"prompt": prompt, "answer": answer["text"]}))


if __name__ == "__main__":
    main()
