"""A small random decoder with the Model interface, made of ops and an attention backend only.

`OPERATIONS` says what a worker computes with when a test does not: torch's operations, or the
native kernels at once ("eager") or replayed from a capture ("captured").
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vivace.platforms.attention import AttentionLayer
from vivace.platforms.cpu.facts import has_kernels
from vivace.platforms.platform import PlatformSettings, detect, load_platform
from vivace.protocol.messages import SamplingParams
from vivace.protocol.step import Join, StepPlan
from vivace.protocol.tasks import GENERATE
from vivace.worker.build import assemble
from vivace.worker.captures import Captures
from vivace.worker.heads import SamplingSettings
from vivace.worker.sizing import PoolSize

VOCABULARY = 97
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 32, 4, 2, 16, 48
CONTEXT = 200
OPERATIONS = "torch"
ALL_OPERATIONS = ("torch", "eager", "captured")


def skip_unbuilt(operations):
    if operations != "torch" and not has_kernels():
        pytest.skip("the native kernels were not built")


class ToyModel:
    """`poison` is a token id whose hidden state is NaN. `activations` is the dtype of norms."""

    def __init__(
        self,
        ops,
        *,
        windows=(None, 24, None),
        seed=0,
        dtype=torch.float32,
        activations=torch.float32,
        poison=None,
    ):
        random = torch.Generator().manual_seed(seed)

        def weight(rows, columns):
            return (torch.randn(rows, columns, generator=random) * (1.3 / columns**0.5)).to(dtype)

        self.ops = ops
        self.attention_layers = [
            AttentionLayer(
                index=index,
                heads=HEADS,
                kv_heads=KV_HEADS,
                head_dim=HEAD_DIM,
                scale=HEAD_DIM**-0.5,
                window=window,
            )
            for index, window in enumerate(windows)
        ]
        embedding = weight(VOCABULARY, HIDDEN) * 4
        if poison is not None:
            embedding[poison] = torch.nan
        self.embedding = ops.pack_embedding(embedding)
        self.head = ops.pack_linear([weight(VOCABULARY, HIDDEN) * 2])
        self.ones = torch.ones(HIDDEN, dtype=activations)
        width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        self.weights = [
            [
                ops.pack_linear([weight(outputs, inputs)])
                for outputs, inputs in (
                    (width, HIDDEN),
                    (HIDDEN, HEADS * HEAD_DIM),
                    (2 * INNER, HIDDEN),
                    (HIDDEN, INNER),
                )
            ]
            for _ in windows
        ]
        angles = torch.outer(
            torch.arange(CONTEXT + 1.0), 100.0 ** -torch.arange(0, 1, 2 / HEAD_DIM)
        )
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
        self.forwards = 0

    def forward(self, step):
        self.forwards += 1
        ops, residual = self.ops, self.ops.embedding(step.input_ids, self.embedding)
        normed = ops.rms_norm(residual, self.ones, 1e-5)
        for layer, (qkv, o, gate_up, down) in zip(self.attention_layers, self.weights, strict=True):
            projected = ops.linear(normed, qkv)
            sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
            q, k, v = (part.unflatten(-1, (-1, HEAD_DIM)) for part in projected.split(sizes, -1))
            ops.rotary(q, k, step.positions, self.cos_sin)
            mixed = ops.linear(step.attention.attend(layer, q, k, v, step), o)
            normed, residual = ops.add_rms_norm(mixed, residual, self.ones, 1e-5)
            inner = ops.linear(ops.silu_mul(ops.linear(normed, gate_up)), down)
            normed, residual = ops.add_rms_norm(inner, residual, self.ones, 1e-5)
        return normed

    def lm_head(self, hidden):
        return self.ops.linear(hidden, self.head).float()


def toy_worker(
    *,
    page_size=16,
    rows=8,
    tokens=800,
    deterministic=False,
    dtype=torch.float32,
    poison=None,
    operations=None,
    threads=1,
    captures=None,
    platform=None,
    processors=(),
    sampling=SamplingSettings(),
    **settings,
):
    operations = operations or ("torch" if platform else OPERATIONS)
    skip_unbuilt(operations)
    platform = platform or load_platform(
        detect("cpu"),
        PlatformSettings(
            threads=threads, deterministic=deterministic, kernels=operations != "torch"
        ),
    )
    activations = platform.activations(dtype)
    model = ToyModel(platform.ops, dtype=dtype, activations=activations, poison=poison)
    worker = assemble(
        model,
        model.attention_layers,
        platform,
        PoolSize(
            pages=tokens // page_size,
            rows=rows,
            context=CONTEXT,
            cache_share=tokens // page_size,
        ),
        page_size=page_size,
        dtype=activations,
        kv_dtype=settings.pop("kv_dtype", dtype),
        vocabulary=VOCABULARY,
        sampling=dataclasses.replace(
            sampling, processors=[lambda ops, history, one=one: one for one in processors]
        ),
        captures=(captures or Captures((rows,)))
        if operations == "captured"
        else captures or Captures(),
        **settings,
    )
    return worker, model


class Driver:
    """Plays the scheduler: rows, pages (handed out in a shuffled order) and plans."""

    def __init__(self, worker, seed=0):
        self.worker = worker
        self.size = worker.capacity.page_size
        order = torch.randperm(worker.capacity.pages, generator=torch.Generator().manual_seed(seed))
        self.free = order.tolist()
        self.number = 0
        self.sequences = {}
        self.joins, self.leaves = [], []

    def join(
        self,
        row,
        tokens,
        *,
        prompt=None,
        cached=0,
        pages=None,
        stop_ids=(),
        logprobs=None,
        task=GENERATE,
        **sampling,
    ):
        needed = -(-(len(tokens) + 64) // self.size)
        pages = list(pages or [])
        pages += [self.free.pop() for _ in range(needed - len(pages))]
        self.sequences[row] = {
            "tokens": list(tokens),
            "done": cached,
            "pages": pages,
            "prompt": prompt or len(tokens),
        }
        params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 64, **sampling})
        self.joins.append(
            Join(
                row=row,
                key=row,
                tokens=list(tokens),
                prompt=prompt or len(tokens),
                cached=cached,
                pages=pages,
                sampling=params,
                logprobs=logprobs,
                stop_ids=stop_ids,
                task=task,
            )
        )

    def leave(self, row):
        sequence = self.sequences.pop(row)
        self.free = sequence["pages"] + self.free
        self.leaves.append(row)
        return sequence

    def plan(self, spans, **extra):
        """The next step, with all that joined and left since the last one."""
        plan = StepPlan(
            number=self.number,
            rows=list(spans),
            counts=list(spans.values()),
            joins=self.joins,
            leaves=self.leaves,
            **extra,
        )
        self.number += 1
        self.joins, self.leaves = [], []
        return plan

    def step(self, spans, **extra):
        """spans: {row: count}. Returns the StepResult; keeps the books."""
        result = self.worker.run(self.plan(spans, **extra)).result()
        for index, row in enumerate(spans):
            self.sequences[row]["done"] += result.advanced[index]
            self.sequences[row]["tokens"] += result.tokens[index]
        return result

    def advance(self, row, chunk):
        """The next count of a row when prompts are cut into pieces of `chunk`."""
        sequence = self.sequences[row]
        return min(chunk, len(sequence["tokens"]) - sequence["done"])

    def generate(self, row, count, *, chunk=10_000):
        """Run one row alone until it has `count` new tokens; returns them."""
        sequence = self.sequences[row]
        target = sequence["prompt"] + count
        while len(sequence["tokens"]) < target:
            self.step({row: self.advance(row, chunk)})
        return sequence["tokens"][sequence["prompt"] :]
