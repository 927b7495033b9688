"""`generated-shared-prefix`: groups of prompts that begin with the same system prompt.

Made anew in every run from the seed (it takes seconds); nothing is kept on disk.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from vivace.bench.errors import BenchError
from vivace.bench.tokenizer import PromptMaker, TokenCodec
from vivace.bench.workload import BenchRequest, lengths_between

ZIPF_ALPHA = 1.0
"""Skew of the zipf distribution when --gsp-zipf-alpha is not given."""
JOINT = "\n\n"


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """`groups` system prompts and `groups * per_group` requests over them. Lengths in tokens."""

    groups: int
    per_group: int
    system_len: int
    question_len: int
    output_len: int
    ratio: float = 1.0
    turns: int = 1
    zipf_alpha: float | None = None
    """None = the same number of requests for every group."""
    ordered: bool = False
    routing_key: bool = False
    count_again: bool = True
    """False (--gsp-fast-prepare): trust the sum of the parts instead of encoding the whole."""
    seed: int = 42
    as_ids: bool = False

    def queries(self, codec: TokenCodec) -> list[BenchRequest]:
        if self.as_ids and self.turns > 1:
            raise BenchError("--gsp-num-turns above 1 needs text: leave --tokenize-prompt out")
        chance = random.Random(self.seed)
        owners = self._owners(chance)
        made = self._as_ids(codec, chance, owners)
        if not self.as_ids:
            made = self._as_text(codec, chance, owners)
        if not self.ordered:
            chance.shuffle(made)
        return made

    def _owners(self, chance: random.Random) -> list[int]:
        """Group of each request, groups one after the other."""
        count = self.groups * self.per_group
        if self.groups < 1 or self.per_group < 1:
            raise BenchError("--gsp-num-groups and --gsp-prompts-per-group must be at least 1")
        if self.zipf_alpha is None:
            return [index // self.per_group for index in range(count)]
        weights = [1.0 / (rank + 1) ** self.zipf_alpha for rank in range(self.groups)]
        drawn = chance.choices(range(self.groups), cum_weights=list(accumulate(weights)), k=count)
        return sorted(drawn)

    def _lengths(self, chance: random.Random, owners: Sequence[int]) -> _Lengths:
        questions = len(owners) * self.turns
        return _Lengths(
            lengths_between(chance, self.system_len, self.ratio, self.groups),
            lengths_between(chance, self.question_len, self.ratio, questions),
            lengths_between(chance, self.output_len, self.ratio, len(owners)),
        )

    def _as_ids(
        self, codec: TokenCodec, chance: random.Random, owners: Sequence[int]
    ) -> list[BenchRequest]:
        if not self.as_ids:
            return []
        maker = PromptMaker(codec, self.seed)
        lengths = self._lengths(chance, owners)
        systems = [maker.ids(length) for length in lengths.systems]
        prompts = [
            systems[owner] + maker.ids(length)
            for owner, length in zip(owners, lengths.questions, strict=True)
        ]
        return [
            BenchRequest(
                prompt=prompt,
                input_len=len(prompt),
                output_len=output,
                routing_key=self._key(owner),
            )
            for prompt, output, owner in zip(prompts, lengths.outputs, owners, strict=True)
        ]

    def _as_text(
        self, codec: TokenCodec, chance: random.Random, owners: Sequence[int]
    ) -> list[BenchRequest]:
        maker = PromptMaker(codec, self.seed)
        lengths = self._lengths(chance, owners)
        systems = maker.texts(lengths.systems)
        questions = maker.texts(lengths.questions)
        first = questions[:: self.turns]
        prompts = [
            systems[owner][0] + JOINT + question
            for owner, (question, _) in zip(owners, first, strict=True)
        ]
        counts = [
            systems[owner][1] + 1 + count for owner, (_, count) in zip(owners, first, strict=True)
        ]
        if self.count_again:
            counts = [len(ids) for ids in codec.encode(prompts)]
        return [
            BenchRequest(
                prompt=prompts[i],
                input_len=counts[i],
                output_len=lengths.outputs[i],
                routing_key=self._key(owner),
                followups=tuple(
                    text for text, _ in questions[i * self.turns + 1 : (i + 1) * self.turns]
                ),
            )
            for i, owner in enumerate(owners)
        ]

    def _key(self, owner: int) -> str | None:
        return f"group-{self.seed}-{owner}" if self.routing_key else None


@dataclass(frozen=True, slots=True)
class _Lengths:
    systems: list[int]
    questions: list[int]
    outputs: list[int]


def load(args: argparse.Namespace, codec: TokenCodec) -> list[BenchRequest]:
    zipf = args.gsp_group_distribution == "zipf"
    if args.gsp_zipf_alpha is not None and not zipf:
        raise BenchError("--gsp-zipf-alpha needs --gsp-group-distribution zipf")
    return SharedPrefix(
        groups=args.gsp_num_groups,
        per_group=args.gsp_prompts_per_group,
        system_len=args.gsp_system_prompt_len,
        question_len=args.gsp_question_len,
        output_len=args.gsp_output_len,
        ratio=args.gsp_range_ratio,
        turns=args.gsp_num_turns,
        zipf_alpha=(args.gsp_zipf_alpha or ZIPF_ALPHA) if zipf else None,
        ordered=args.gsp_ordered,
        routing_key=args.gsp_send_routing_key,
        count_again=not args.gsp_fast_prepare,
        seed=args.seed,
        as_ids=args.tokenize_prompt,
    ).queries(codec)
