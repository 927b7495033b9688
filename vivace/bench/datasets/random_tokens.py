"""`random`: prompts and answers of asked lengths.

SGLang cuts or repeats real ShareGPT prompts to the length, so its prompts are natural language,
need a download, and become predictable where a short prompt is repeated. Here the default is
random words of the tokenizer: nothing to download, nothing predictable, no prompt shares a prefix
with another. With --dataset-path naming a ShareGPT file the prompts are made as SGLang makes them.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

from vivace.bench.datasets.sharegpt import read_prompts
from vivace.bench.errors import BenchError
from vivace.bench.tokenizer import PromptMaker, TokenCodec
from vivace.bench.workload import BenchRequest, lengths_between


@dataclass(frozen=True, kw_only=True)
class RandomPrompts:
    """`count` prompts; lengths are uniform in [max(int(L * ratio), 1), L] tokens."""

    count: int
    input_len: int
    output_len: int
    ratio: float
    seed: int
    as_ids: bool
    file: str = ""

    def queries(self, codec: TokenCodec) -> list[BenchRequest]:
        chance = random.Random(self.seed)
        inputs = lengths_between(chance, self.input_len, self.ratio, self.count)
        outputs = lengths_between(chance, self.output_len, self.ratio, self.count)
        prompts = self._prompts(codec, inputs)
        return [
            BenchRequest(prompt=prompt, input_len=length, output_len=output)
            for (prompt, length), output in zip(prompts, outputs, strict=True)
        ]

    def _prompts(
        self, codec: TokenCodec, lengths: list[int]
    ) -> list[tuple[str, int]] | list[tuple[list[int], int]]:
        maker = PromptMaker(codec, self.seed)
        if self.file:
            return self._from_file(maker, lengths)
        if self.as_ids:
            return [(maker.ids(length), length) for length in lengths]
        return maker.texts(lengths)

    def _from_file(
        self, maker: PromptMaker, lengths: list[int]
    ) -> list[tuple[str, int]] | list[tuple[list[int], int]]:
        """Real prompts, cut or repeated to the length."""
        found = read_prompts(self.file, self.count, self.seed)
        texts = [prompt for prompt, _ in found]
        rows = [ids for ids in maker.codec.encode(texts) if len(ids) >= 2]
        if not rows:
            raise BenchError(f"{self.file} holds no prompt of at least 2 tokens")
        sized = [repeat(rows[i % len(rows)], length) for i, length in enumerate(lengths)]
        if self.as_ids:
            return [(ids, len(ids)) for ids in sized]
        return maker.fit(sized, lengths)


def repeat(ids: list[int], length: int) -> list[int]:
    """`ids` over and over, cut at `length`."""
    times = -(-length // len(ids))
    return (ids * times)[:length]


def load(args: argparse.Namespace, codec: TokenCodec) -> list[BenchRequest]:
    return RandomPrompts(
        count=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        ratio=args.random_range_ratio,
        seed=args.seed,
        as_ids=args.tokenize_prompt,
        file=args.dataset_path,
    ).queries(codec)
