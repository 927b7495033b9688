"""For each op of the kernels: right arguments, one tensor of which is changed. Run as a program,
because a kernel that believed the change may end the process:

    python mismatches.py OP EXAMPLES     the op must raise ValueError with its name, or take it
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.platforms.attention import (
    AttentionLayer,
    HostStep,
    LatentLayer,
    RecurrentInputs,
    RecurrentLayer,
    RecurrentWeights,
    StepPages,
    StepStates,
)
from vivace.platforms.cpu.native import Kernels
from vivace.platforms.cpu.native_attention import NativeAttention
from vivace.platforms.cpu.native_ops import NativeSampling
from vivace.platforms.cpu.native_recurrence import NativeRecurrence
from vivace.platforms.cpu.native_table import native_ops
from vivace.platforms.ops.elementwise import SwigluOai
from vivace.platforms.ops.linear import Operands
from vivace.platforms.ops.moe import ExpertSlots, Gate, Routes
from vivace.platforms.ops.paged_cache import PagedCache
from vivace.platforms.ops.sampling import Penalties, SamplingBatch, TokenMasks, Truncations
from vivace.platforms.ops.segments import Segments
from vivace.platforms.ops.stored import Fp8Groups, Int8Rows, StoredBlocks, int8_rows
from vivace.platforms.ops.table import reference_ops

T, N, OUT, EXPERTS, TOP, HEADS, KV_HEADS, SIZE = 5, 64, 48, 6, 2, 4, 2, 16
PAGES, PAGE_SIZE = 6, 4
KERNELS = Kernels(2)
OPS = native_ops(KERNELS)
GATED_MLP: Any = OPS.gated_mlp
SAMPLING = NativeSampling(KERNELS)
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`call` takes one of the arguments in a changed form."""

    name: str
    arguments: Callable[[], Arguments]
    call: Callable[..., Any]


def blocks(rows: int, columns: int) -> StoredBlocks:
    return StoredBlocks("q4_1", np.zeros((rows, columns // 32 * 20), np.uint8), columns)


def packed(rows: int, columns: int, narrow: bool = False) -> Any:
    return OPS.pack_linear(
        [blocks(rows, columns).with_int8_activations()] if narrow else [weight(rows, columns)]
    )


def weight(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns)


LINEAR, NARROW = packed(OUT, N), packed(OUT, N, narrow=True)
GATE_UP, DOWN = packed(2 * N, N, narrow=True), packed(OUT, N, narrow=True)
GROUPED = OPS.pack_grouped([[weight(OUT, N)] for _ in range(EXPERTS)])
OF_HEADS = OPS.pack_heads([weight(OUT, N) for _ in range(HEADS)])
SEGMENTS = Segments(inputs=N, count=4, here=range(4), merges=(0, 1, 0, 2))
SEGMENTED = OPS.pack_segments([weight(OUT, N)], SEGMENTS)
OF_EXPERTS = OPS.pack_segments([weight(OUT, N)] * EXPERTS, SEGMENTS)
MERGES = torch.tensor([0, 1, 1])
CHOSEN = torch.arange(T * TOP).view(T, TOP) % EXPERTS
ROUTES = OPS.moe_routes(CHOSEN, EXPERTS)
LAYER = AttentionLayer(index=0, heads=HEADS, kv_heads=KV_HEADS, head_dim=SIZE, scale=1.0)
MEMORY: Any = SimpleNamespace(
    page_size=PAGE_SIZE,
    layers={0: torch.zeros(PAGES, PAGE_SIZE, 2, KV_HEADS, SIZE)},
    groups={0: 0},
    versions=np.zeros(PAGES, np.int64),
)
ATTENTION = NativeAttention(KERNELS, [LAYER], MEMORY, PAGES * PAGE_SIZE)
LATENT = LatentLayer(index=0, heads=HEADS, latent_dim=N, rope_dim=SIZE, scale=1.0)
LATENTS = PagedCache([LATENT], [PAGES - 1], PAGE_SIZE, torch.float32, torch.device("cpu"))
RECURRENT = RecurrentLayer(
    index=0, key_heads=2, value_heads=4, key_dim=SIZE, value_dim=SIZE, kernel=3
)
STATES = PagedCache([RECURRENT], [1], PAGE_SIZE, torch.float32, torch.device("cpu"), slots=16)
RECURRENCE = NativeRecurrence(KERNELS, STATES)
LATENT_ATTENTION = NativeAttention(KERNELS, [LATENT], LATENTS, PAGES * PAGE_SIZE)


def of_step(decode: bool) -> Arguments:
    spans = T if decode else 2
    return {
        "slot_mapping": torch.arange(T),
        "page_table": torch.arange(PAGES).repeat(spans, 1),
        "context_lens": torch.full((spans,), 3),
        "query_starts": torch.arange(T + 1) if decode else torch.tensor([0, 2, T]),
    }


def step_by(decode: bool, parts: Arguments) -> Any:
    empty = np.zeros(1, np.int64)
    host = HostStep(starts=empty, context_lens=empty, decode=decode)
    where = StepPages(slot_mapping=parts["slot_mapping"], page_table=parts["page_table"])
    return SimpleNamespace(**parts, host=host, groups=(where,), attention=LATENT_ATTENTION)


def recurrent(decode: bool) -> Case:
    def arguments() -> Arguments:
        layer, spans = RECURRENT, T if decode else 2
        return {
            "q": torch.ones(T, layer.key_heads, layer.key_dim),
            "k": torch.ones(T, layer.key_heads, layer.key_dim),
            "v": torch.ones(T, layer.key_heads, layer.group * layer.value_dim),
            "a": torch.ones(T, layer.key_heads, layer.group),
            "b": torch.ones(T, layer.key_heads, layer.group),
            "conv": torch.ones(layer.kernel, layer.channels),
            "decay": torch.ones(layer.value_heads),
            "dt_bias": torch.ones(layer.value_heads),
            "read": torch.arange(spans),
            "write": torch.arange(spans).unsqueeze(1) + spans,
            "query_starts": torch.arange(T + 1) if decode else torch.tensor([0, 2, T]),
        }

    def call(read: Any, write: Any, query_starts: Any, **rest: Any) -> Any:
        inputs = RecurrentInputs(**{name: rest[name] for name in "qkvab"})
        weights = RecurrentWeights(**{name: rest[name] for name in ("conv", "decay", "dt_bias")})
        empty = np.zeros(1, np.int64)
        step: Any = SimpleNamespace(
            states=StepStates(read=read, write=write, drafts=None),
            query_starts=query_starts,
            host=HostStep(starts=empty, context_lens=empty, decode=decode),
        )
        return RECURRENCE.recur(RECURRENT, inputs, weights, step)

    return Case("recur", arguments, call)


def latent_attention(decode: bool, rotated: bool) -> Case:
    def arguments() -> Arguments:
        turned = {"positions": torch.arange(T), "cos_sin": torch.ones(32, SIZE)} if rotated else {}
        return {
            "q": torch.ones(T, HEADS, N),
            "q_rope": torch.ones(T, HEADS, SIZE),
            "latent": torch.ones(T, N),
            "rope": torch.ones(T, SIZE),
            **turned,
            **of_step(decode),
        }

    def call(q: Any, q_rope: Any, latent: Any, rope: Any, **rest: Any) -> Any:
        step = step_by(decode, rest)
        if rotated:
            cos_sin = rest["cos_sin"]
            return OPS.rotary_attend_latent(LATENT, q, q_rope, latent, rope, cos_sin, step)
        return LATENT_ATTENTION.attend_latent(LATENT, q, q_rope, latent, rope, step)

    return Case("attend_latent", arguments, call)


def attention(decode: bool, rotated: bool) -> Case:
    def arguments() -> Arguments:
        turned = {"positions": torch.arange(T), "cos_sin": torch.ones(32, SIZE)} if rotated else {}
        return {
            "q": torch.ones(T, HEADS, SIZE),
            "k": torch.ones(T, KV_HEADS, SIZE),
            "v": torch.ones(T, KV_HEADS, SIZE),
            **turned,
            **of_step(decode),
        }

    def call(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        step = step_by(decode, rest)
        if rotated:
            turn = rest["positions"], rest["cos_sin"]
            return ATTENTION.rotate_and_attend(LAYER, q, k, v, *turn, step)
        return ATTENTION.attend(LAYER, q, k, v, step)

    return Case("attend", arguments, call)


def stored(name: str, piece: Callable[[], Any], kind: Any = Int8Rows) -> Case:
    """Packing one weight, a part of which is changed."""

    def arguments() -> Arguments:
        found = piece()
        if isinstance(found, Int8Rows | Fp8Groups):
            return {"numbers": found.numbers, "scales": found.scales}
        return {"data": torch.from_numpy(found.data)}

    def call(**parts: Any) -> Any:
        if "data" in parts:
            return OPS.pack_linear([StoredBlocks("q4_1", array(parts["data"]), N)])
        return OPS.pack_linear([kind(parts["numbers"], parts["scales"])])

    return Case(name, arguments, call)


def float8() -> Fp8Groups:
    return Fp8Groups(weight(OUT, N).to(torch.float8_e4m3fn), torch.ones(OUT, 1))


def plain(name: str, call: Callable[..., Any], **shapes: tuple[int, ...]) -> Case:
    """`call` of float32 tensors of these shapes."""
    return Case(name, lambda: {key: torch.ones(shape) for key, shape in shapes.items()}, call)


def array(x: torch.Tensor) -> np.ndarray:
    """numpy has no bfloat16: another wrong type stands for it."""
    return x.double().numpy() if x.dtype is torch.bfloat16 else x.numpy()


def ids(count: int) -> torch.Tensor:
    return torch.arange(count)


def drawn(x: torch.Tensor, entries: torch.Tensor) -> Any:
    values = {"temperature": 1.0, "top_k": 0.0, "top_p": 0.9, "min_p": 0.1, "uniform": 0.5}
    columns = {key: torch.full((T,), value).double() for key, value in values.items()}
    cuts = {key: columns[key].numpy() for key in ("top_k", "top_p", "min_p")}
    return SAMPLING.sample(x, entries, SamplingBatch(**columns, host=Truncations(**cuts)))


def penalized(x: torch.Tensor, entries: torch.Tensor, **kept: torch.Tensor) -> Any:
    ones = {key: torch.ones(T).double() for key in ("frequency", "presence", "repetition")}
    return SAMPLING.apply_penalties(x, entries, Penalties(**kept, **ones, longest=9))


CASES: dict[str, Case] = {
    "linear": plain(
        "linear", lambda **a: OPS.linear(a["x"], LINEAR, a["bias"], a["out"]),
        x=(T, N), bias=(OUT,), out=(T, OUT),
    ),
    "linear_int8_blocks": plain("linear", lambda **a: OPS.linear(a["x"], NARROW), x=(T, N)),
    "gated_mlp": plain(
        "gated_mlp",
        lambda **a: GATED_MLP(
            a["x"], Operands(GATE_UP, a["up"]), Operands(DOWN, a["down"]), "silu"
        ),
        x=(T, N), up=(2 * N,), down=(OUT,),
    ),
    "rms_norm": plain(
        "rms_norm", lambda **a: OPS.rms_norm(a["x"], a["weight"], 1e-5, out=a["out"]),
        x=(T, N), weight=(N,), out=(T, N),
    ),
    "rms_norm of heads": plain(
        "rms_norm", lambda **a: OPS.rms_norm(a["x"], a["weight"], 1e-5),
        x=(T, HEADS, SIZE), weight=(SIZE,),
    ),
    "add_rms_norm": plain(
        "add_rms_norm", lambda **a: OPS.add_rms_norm(a["x"], a["residual"], a["weight"], 1e-5),
        x=(T, N), residual=(T, N), weight=(N,),
    ),
    "gated_rms_norm": plain(
        "gated_rms_norm",
        lambda **a: OPS.gated_rms_norm(a["x"], a["weight"], a["gate"], 1e-5),
        x=(T, HEADS, SIZE), weight=(SIZE,), gate=(T, KV_HEADS, HEADS // KV_HEADS * SIZE),
    ),
    "sigmoid_mul": plain(
        "sigmoid_mul", lambda **a: OPS.sigmoid_mul(a["x"], a["gate"]),
        x=(T, HEADS * SIZE), gate=(T, HEADS, SIZE),
    ),
    "rotary": Case(
        "rotary",
        lambda: {
            "q": torch.ones(T, HEADS, SIZE), "k": torch.ones(T, KV_HEADS, SIZE),
            "positions": ids(T), "cos_sin": torch.ones(8, SIZE),
        },
        lambda **a: OPS.rotary(a["q"], a["k"], a["positions"], a["cos_sin"]),
    ),
    "silu_mul": plain(
        "silu_mul", lambda **a: OPS.silu_mul(a["x"], a["out"]), x=(T, 2 * N), out=(T, N)
    ),
    "gelu_mul": plain(
        "gelu_tanh_mul", lambda **a: OPS.gelu_mul(a["x"], tanh=True, out=a["out"]),
        x=(T, 2 * N), out=(T, N),
    ),
    "swigluoai_mul": plain(
        "swigluoai_mul", lambda **a: OPS.swigluoai_mul(a["x"], SwigluOai(1.7, 7.0)), x=(T, 2 * N)
    ),
    "scale_positions": Case(
        "scale_positions",
        lambda: {
            "x": torch.ones(T, HEADS, SIZE), "positions": ids(T), "factors": torch.ones(8),
        },
        lambda **a: OPS.scale_positions(a["x"], a["positions"], a["factors"]),
    ),
    "scale": plain("scale", lambda **a: OPS.scale(a["x"], 2.0), x=(T, N)),
    "soft_cap": plain("soft_cap", lambda **a: OPS.soft_cap(a["x"], 2.0), x=(T, N)),
    "quantize_static": plain(
        "quantize_static", lambda **a: OPS.quantize_static(a["x"], 0.1, 3.0), x=(T, N)
    ),
    "add_bias": plain(
        "add_bias", lambda **a: OPS.add_bias(a["x"], a["bias"]), x=(T, N), bias=(N,)
    ),
    "embedding": Case(
        "embedding",
        lambda: {"ids": ids(T), "out": torch.ones(T, N)},
        lambda **a: OPS.embedding(a["ids"], LINEAR, a["out"]),
    ),
    "moe_gate": plain(
        "moe_gate", lambda **a: OPS.moe_gate(Gate(top=TOP), a["logits"], a["bias"]),
        logits=(T, EXPERTS), bias=(EXPERTS,),
    ),
    "moe_place": Case(
        "moe_place",
        lambda: {
            "experts": CHOSEN.clone(), "positions": ids(T),
            "table": torch.zeros(EXPERTS, 2, dtype=torch.int64),
            "counts": torch.zeros(EXPERTS, dtype=torch.int64),
        },
        lambda **a: OPS.moe_place(
            a["experts"], a["positions"], ExpertSlots(a["table"], 0, a["counts"])
        ),
    ),
    "moe_routes": Case(
        "moe_routes",
        lambda: {"experts": CHOSEN.clone()},
        lambda **a: OPS.moe_routes(a["experts"], EXPERTS),
    ),
    "moe_permute": Case(
        "moe_permute",
        lambda: {
            "x": torch.ones(T, N), "places": ROUTES.places.clone(), "weights": torch.ones(T, TOP),
        },
        lambda **a: OPS.moe_permute(a["x"], Routes(a["places"], ROUTES.starts), a["weights"]),
    ),
    "moe_combine": Case(
        "moe_combine",
        lambda: {
            "x": torch.ones(T * TOP, N), "weights": torch.ones(T, TOP),
            "places": ROUTES.places.clone(),
        },
        lambda **a: OPS.moe_combine(a["x"], a["weights"], Routes(a["places"], ROUTES.starts)),
    ),
    "add_gated": plain(
        "add_gated", lambda **a: OPS.add_gated(a["y"], a["x"], a["gate"]),
        y=(T, N), x=(T, N), gate=(T, 1),
    ),
    "grouped_linear": Case(
        "grouped_linear",
        lambda: {
            "x": torch.ones(T * TOP, N), "places": ROUTES.places.clone(),
            "starts": ROUTES.starts.clone(), "bias": torch.ones(EXPERTS, OUT),
        },
        lambda **a: OPS.grouped_linear(
            a["x"], GROUPED, Routes(a["places"], a["starts"]), a["bias"]
        ),
    ),
    "quantize_experts": Case(
        "quantize_experts",
        lambda: {
            "x": torch.ones(T * TOP, N), "scales": torch.ones(EXPERTS),
            "offsets": torch.ones(EXPERTS), "places": ROUTES.places.clone(),
            "starts": ROUTES.starts.clone(),
        },
        lambda **a: OPS.quantize_experts(
            a["x"], a["scales"], a["offsets"], Routes(a["places"], a["starts"])
        ),
    ),
    "segmented_linear": plain(
        "segmented_linear", lambda **a: OPS.segmented_linear(a["x"], SEGMENTED, None, a["bias"]),
        x=(T, N), bias=(OUT,),
    ),
    "segmented_linear of experts": Case(
        "segmented_linear",
        lambda: {
            "x": torch.ones(T * TOP, N), "places": ROUTES.places.clone(),
            "starts": ROUTES.starts.clone(), "bias": torch.ones(EXPERTS, OUT),
        },
        lambda **a: OPS.segmented_linear(
            a["x"], OF_EXPERTS, Routes(a["places"], a["starts"]), a["bias"]
        ),
    ),
    "add_segments": Case(
        "add_segments", lambda: {"x": torch.ones(T, 3 * N), "merges": MERGES.clone()},
        lambda **a: OPS.add_segments(a["x"], a["merges"]),
    ),
    "heads_linear": plain(
        "heads_linear", lambda **a: OPS.heads_linear(a["x"], OF_HEADS), x=(T, HEADS, N)
    ),
    "pack_linear": plain(
        "pack_linear", lambda **a: OPS.pack_linear([a["first"], a["second"].bfloat16()]),
        first=(OUT, N), second=(OUT, N),
    ),
    "pack_linear of int8": stored("pack_linear", lambda: int8_rows(weight(OUT, N))),
    "pack_linear of fp8": stored("pack_linear", float8, Fp8Groups),
    "pack_linear of blocks": stored("pack_linear", lambda: blocks(OUT, N)),
    "attend prompts": attention(decode=False, rotated=False),
    "attend decoding": attention(decode=True, rotated=False),
    "rotate and attend": attention(decode=False, rotated=True),
    "attend_latent of prompts": latent_attention(decode=False, rotated=False),
    "rotary_attend_latent decoding": latent_attention(decode=True, rotated=True),
    "recur of prompts": recurrent(decode=False),
    "recur decoding": recurrent(decode=True),
    "argmax": plain("argmax", lambda **a: SAMPLING.argmax(a["x"]), x=(T, N)),
    "sample": Case("sample", lambda: {"x": torch.ones(T, N), "entries": ids(T)}, drawn),
    "apply_penalties": Case(
        "apply_penalties",
        lambda: {
            "x": torch.ones(T, N), "entries": ids(T), "rows": ids(T), "prompt": ids(T),
            "known": ids(T) + 1, "tokens": torch.zeros(T, 9, dtype=torch.int32),
        },
        penalized,
    ),
    "argmax behind masks": Case(
        "argmax",
        lambda: {
            "x": torch.ones(T, N), "entries": ids(T),
            "bits": torch.ones(T, N // 32, dtype=torch.int32),
        },
        lambda **a: SAMPLING.argmax(a["x"], TokenMasks(entries=a["entries"], bits=a["bits"])),
    ),
    "logsumexp": plain(
        "logsumexp", lambda **a: SAMPLING.logsumexp(a["x"], a["temperature"]),
        x=(T, N), temperature=(T,),
    ),
    "topk": plain("topk", lambda **a: SAMPLING.topk(a["x"], 3), x=(T, N)),
    "bad_tokens": plain("bad_tokens", lambda **a: SAMPLING.bad_tokens(a["x"]), x=(T, N)),
}  # fmt: skip

TRIED_BY_ANOTHER_NAME = {
    "rotary_attend", "pack_embedding", "pack_grouped", "pack_heads", "pack_segments",
    "select_grouped", "update_weight",
}  # fmt: skip
"""as "rotate and attend", and in what the cases of their users are given"""


def changes(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Every kind of mismatch, all readable memory of torch's own."""
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32):
        if dtype != x.dtype:
            yield x.to(dtype)
    for dim, by in itertools.product(range(x.dim()), (-1, 1, 16, -x.shape[0])):
        shape = list(x.shape)
        shape[dim] = max(0, shape[dim] + by)
        yield torch.ones(shape, dtype=x.dtype)
    yield x.unsqueeze(0)
    yield x.flatten()[0]
    if x.dim() > 1:
        yield x.flatten()
        yield torch.ones(x.shape[::-1], dtype=x.dtype).permute(*reversed(range(x.dim())))
    if x.dtype.is_floating_point or x.dim() > 1:
        yield x.repeat_interleave(2, -1)[..., ::2]
        yield x[:1].expand(x.shape)


def check(name: str, examples: int) -> None:
    case = CASES[name]
    possible = [
        (key, number)
        for key, x in case.arguments().items()
        for number in range(len(list(changes(x))))
    ]

    @settings(max_examples=examples, deadline=None, database=None)
    @given(st.lists(st.sampled_from(possible), min_size=1, max_size=2))
    def refused_or_taken(chosen: list[tuple[str, int]]) -> None:
        arguments = case.arguments()
        for key, number in chosen:
            arguments[key] = list(changes(case.arguments()[key]))[number]
        try:
            case.call(**arguments)
        except ValueError as error:
            assert str(error).startswith(case.name), error

    case.call(**case.arguments())
    refused_or_taken()


def refusals(name: str) -> tuple[int, int]:
    """(changes of one tensor that are refused, all)"""
    case, refused, every = CASES[name], 0, 0
    for key, x in case.arguments().items():
        for changed in changes(x):
            every += 1
            try:
                case.call(**{**case.arguments(), key: changed})
            except ValueError:
                refused += 1
    return refused, every


def untried() -> set[str]:
    """Ops that have a kernel and no case above."""
    tried = {name.partition(" ")[0] for name in CASES} | TRIED_BY_ANOTHER_NAME
    reference = reference_ops()
    ops = (each.name for each in fields(OPS))
    return {op for op in ops if getattr(OPS, op) != getattr(reference, op)} - tried


if __name__ == "__main__":
    if missing := untried():
        sys.exit(f"{', '.join(sorted(missing))}: CASES has no row")
    for each in sys.argv[2:] or CASES:
        check(each, int(sys.argv[1]))
        print(each, *refusals(each), flush=True)
