"""`random-ids`: consecutive token ids from a random offset (special ids are left out)."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

from vivace.bench.tokenizer import PromptMaker, TokenCodec
from vivace.bench.workload import BenchRequest, lengths_between


@dataclass(frozen=True, kw_only=True)
class ConsecutiveIds:
    """`count` prompts; as text their length is counted again, because text merges anew."""

    count: int
    input_len: int
    output_len: int
    ratio: float
    seed: int
    as_ids: bool

    def queries(self, codec: TokenCodec) -> list[BenchRequest]:
        chance = random.Random(self.seed)
        inputs = lengths_between(chance, self.input_len, self.ratio, self.count)
        outputs = lengths_between(chance, self.output_len, self.ratio, self.count)
        ring = PromptMaker(codec, self.seed).ordinary
        offsets = [chance.randrange(len(ring)) for _ in range(self.count)]
        rows = [
            [ring[(offset + index + step) % len(ring)] for step in range(length)]
            for index, (offset, length) in enumerate(zip(offsets, inputs, strict=True))
        ]
        if self.as_ids:
            return [
                BenchRequest(prompt=row, input_len=len(row), output_len=output)
                for row, output in zip(rows, outputs, strict=True)
            ]
        texts = codec.decode(rows)
        counts = [len(ids) for ids in codec.encode(texts)]
        return [
            BenchRequest(prompt=text, input_len=count, output_len=output)
            for text, count, output in zip(texts, counts, outputs, strict=True)
        ]


def load(args: argparse.Namespace, codec: TokenCodec) -> list[BenchRequest]:
    return ConsecutiveIds(
        count=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        ratio=args.random_range_ratio,
        seed=args.seed,
        as_ids=args.tokenize_prompt,
    ).queries(codec)
