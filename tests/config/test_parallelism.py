"""The groups of ranks, against SGLang's layout read once more as nested loops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from vivace.config import parallelism
from vivace.config.parallelism import (
    Parallelism,
    ProcessGroups,
    process_groups,
    requested_sizes,
)
from vivace.config.parsing import from_arguments
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case
from vivace.deploy.report.groups import group_tables, ranks_text, table
from vivace.deploy.schema.files import parse_deployment
from vivace.platforms.groups import AbsentRank
from vivace.worker.layout import divide_layers

MOST = 64
SHARED = [*product((None, 1), (False, True))]
"""(--moe-dense-tp-size, --enable-dp-lm-head)"""
FLAGS = {
    "tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "attention": "enable_dp_attention",
    "cp": "attn_cp_size", "ep": "ep_size", "dense": "moe_dense_tp_size",
    "head": "enable_dp_lm_head", "nodes": "nnodes", "backend": "moe_a2a_backend",
}  # fmt: skip


class Flags:
    """A `SizeSource`"""

    def __init__(self, **sizes: Any) -> None:
        self._values = {FLAGS[name]: value for name, value in sizes.items()}

    def value(self, name: str) -> Any:
        return self._values.get(name)

    def has(self, name: str) -> bool:
        return bool(self.value(name))

    def number(self, name: str) -> int | None:
        return self.value(name)

    def positive(self, name: str) -> int:
        return self.value(name) or 1


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def legal() -> Iterator[dict[str, Any]]:
    for tp, pp, dp in product(range(1, MOST + 1), repeat=3):
        if tp * pp > MOST:
            continue
        attentions = [True] if tp * pp * dp > MOST else [False, True]
        for attention in attentions:
            spread = dp if attention else 1
            if tp % spread or (not attention and tp * pp * dp > MOST):
                continue
            for cp, ep in product((1, 2), divisors(tp)):
                if tp % (spread * cp):
                    continue
                for place, nodes in enumerate(divisors(tp * pp)):
                    if nodes > 1 and not attention and dp > 1:
                        continue
                    # which nodes there are changes neither of these two
                    for dense, head in SHARED if nodes == 1 else [SHARED[place % 4]]:
                        yield {
                            "tp": tp, "pp": pp, "dp": dp, "attention": attention, "cp": cp,
                            "ep": ep, "dense": dense, "head": head, "nodes": nodes,
                        }  # fmt: skip


@cache
def attention_groups(replicas: int, pp: int, dp: int, cp: int, heads: int) -> tuple[Any, ...]:
    """(attention tp, attention cp, attention dp): a rank is counted wherever the loops find it."""
    by_heads: dict[Any, list[int]] = {}
    by_context: dict[Any, list[int]] = {}
    by_requests: dict[Any, list[int]] = {}
    rank = 0
    for replica in range(replicas):
        for stage in range(pp):
            for requests in range(dp):
                for context in range(cp):
                    for head in range(heads):
                        by_heads.setdefault((replica, stage, requests, context), []).append(rank)
                        by_context.setdefault((replica, stage, requests, head), []).append(rank)
                        by_requests.setdefault((replica, stage, context, head), []).append(rank)
                        rank += 1
    return tuple(sorted(map(tuple, d.values())) for d in (by_heads, by_context, by_requests))


@cache
def expert_groups(replicas: int, pp: int, tp: int, ep: int) -> tuple[Any, ...]:
    """(moe ep, moe tp), by SGLang's own ranges of initialize_model_parallel."""
    moe_tp, by_expert, inside = tp // ep, [], []
    for i in range(replicas * pp):
        for j in range(moe_tp):
            by_expert.append(tuple(range(i * tp + j, (i + 1) * tp + j, moe_tp)))
        for j in range(ep):
            inside.append(tuple(range(i * tp + j * moe_tp, i * tp + (j + 1) * moe_tp)))
    return sorted(by_expert), sorted(inside)


@cache
def whole_groups(replicas: int, pp: int, tp: int) -> tuple[Any, ...]:
    """(tp, pp, dp)"""
    of_layer: dict[Any, list[int]] = {}
    of_stages: dict[Any, list[int]] = {}
    of_replicas: dict[Any, list[int]] = {}
    for replica in range(replicas):
        for stage in range(pp):
            for rank in range(tp):
                number = (replica * pp + stage) * tp + rank
                of_layer.setdefault((replica, stage), []).append(number)
                of_stages.setdefault((replica, rank), []).append(number)
                of_replicas.setdefault((stage, rank), []).append(number)
    return tuple(sorted(map(tuple, d.values())) for d in (of_layer, of_stages, of_replicas))


@cache
def in_a_row(ranks: int, size: int) -> list[tuple[int, ...]]:
    found: list[list[int]] = []
    for rank in range(ranks):
        if rank % size == 0:
            found.append([])
        found[-1].append(rank)
    return [tuple(group) for group in found]


def expected(sizes: dict[str, Any]) -> dict[str, Any]:
    tp, pp, attention = sizes["tp"], sizes["pp"], sizes["attention"] and sizes["dp"] > 1
    replicas, groups = (1, sizes["dp"]) if attention else (sizes["dp"], 1)
    ranks, heads = replicas * pp * tp, tp // (groups * sizes["cp"])
    names = "attention_tp", "attention_cp", "attention_dp", "moe_ep", "moe_tp", "tp", "pp", "dp"
    found = (
        *attention_groups(replicas, pp, groups, sizes["cp"], heads),
        *expert_groups(replicas, pp, tp, sizes["ep"]),
        *whole_groups(replicas, pp, tp),
    )
    return dict(zip(names, found, strict=True)) | {
        "dense_tp": in_a_row(ranks, sizes["dense"] or tp),
        "lm_head": in_a_row(ranks, heads if attention and sizes["head"] else tp),
        "nodes": in_a_row(ranks, ranks // sizes["nodes"]),
    }


def made(**sizes: Any) -> ProcessGroups:
    return process_groups(Parallelism(Flags(**sizes)))


def test_legal_combinations_of_64_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallelism, "ranks_along", cache(parallelism.ranks_along))
    monkeypatch.setattr(parallelism, "neighbors", cache(parallelism.neighbors))
    count = 0
    for sizes in legal():
        groups, count = made(**sizes), count + 1
        for kind, wanted in expected(sizes).items():
            assert sorted(getattr(groups, kind)) == wanted, (kind, sizes)
    assert count > 10_000


def test_the_groups_of_one_rank() -> None:
    assert made(tp=8, dp=4, attention=True, ep=4).find(5) == {
        "tp": tuple(range(8)),
        "pp": (5,),
        "dp": (5,),
        "attention_tp": (4, 5),
        "attention_cp": (5,),
        "attention_dp": (1, 3, 5, 7),
        "moe_ep": (1, 3, 5, 7),
        "moe_tp": (4, 5),
        "dense_tp": tuple(range(8)),
        "lm_head": tuple(range(8)),
        "nodes": tuple(range(8)),
    }


OWN = {
    "tp": {"tp_size": 8},
    "ep": {"tp_size": 8, "ep_size": 4},
    "stages": {"tp_size": 4, "ep_size": 2, "pp_size": 2},
    "replicas": {"tp_size": 2, "pp_size": 2, "dp_size": 2},
    "dp attention": {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True, "ep_size": 4},
    "stages of engines": {
        "tp_size": 4, "dp_size": 2, "enable_dp_attention": True, "pp_size": 2,
        "moe_dense_tp_size": 1,
    },
    "all-to-all": {
        "tp_size": 4, "dp_size": 2, "enable_dp_attention": True, "moe_a2a_backend": "deepep",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_a_worker_shares_layers_with_whom_the_table_says(name: str) -> None:
    """What `vivace check` prints, and what ranks do; replicas do not know of each other."""
    options = from_arguments(**OWN[name])
    sizes = requested_sizes(options)
    groups = process_groups(sizes)
    config: Any = SimpleNamespace(
        parallel=options.parallel, experts=options.experts, environment={},
        facts=SimpleNamespace(layers=8),
    )  # fmt: skip
    ranks = sizes.tp * sizes.pp
    for rank in range(ranks):
        layout, mine = divide_layers(config, AbsentRank(rank, ranks)), groups.find(rank)
        for kind, found in {
            "attention_tp": layout.attention,
            "attention_dp": layout.peers,
            "lm_head": layout.vocabulary,
            "dense_tp": layout.dense,
            "tp": layout.experts,
            "moe_ep": layout.moe_ep,
            "moe_tp": layout.moe_tp,
        }.items():
            assert (found.rank, found.size) == (mine[kind].index(rank), len(mine[kind])), kind


def test_engines_of_sglang_share_the_head_unless_they_are_told_not_to() -> None:
    def beside(engine: str, *flags: str) -> str:
        role = {
            "kind": "mixed",
            "flags": {"tp-size": 8, "dp-size": 4, "enable-dp-attention": True}
            | dict.fromkeys(flags, True),
        }
        tree = {"name": "tests", "engine": engine, "roles": {"server": role}}
        loaded = LoadedDeployment(parse_deployment(tree, "made"), (), "made.yaml")
        (lines,) = group_tables(build_case(loaded, Overrides()))
        (line,) = [line for line in lines if "lm head" in line]
        return line.partition("lm head")[0].strip()

    assert beside("sglang") == "tp, moe tp, dense tp,"
    assert beside("vivace") == beside("sglang", "enable-dp-lm-head") == "attention tp,"


def test_an_all_to_all_gives_every_rank_whole_experts() -> None:
    assert made(tp=8, backend="deepep") == made(tp=8, ep=8)


@pytest.mark.parametrize(
    "sizes, values",
    [
        ({"tp": 6, "nodes": 4}, ["6", "4"]),
        ({"tp": 2, "dp": 2, "nodes": 2}, ["enable-dp-attention"]),
        ({"tp": 8, "dp": 3, "attention": True}, ["8", "dp 3"]),
        ({"tp": 8, "dp": 2, "cp": 8, "attention": True}, ["dp 2 x cp 8"]),
        ({"tp": 8, "ep": 3}, ["8", "ep 3"]),
        ({"tp": 8, "dense": 2}, ["moe-dense-tp-size", "got 2"]),
        ({"tp": 8, "ep": 3, "dense": 0}, ["ep 3", "got 0"]),
    ],
)
def test_what_is_not_legal(sizes: dict[str, Any], values: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        made(**sizes)
    assert all(value in str(raised.value) for value in values)


def test_ranks_are_short_to_read() -> None:
    assert ranks_text((0, 1, 2, 3)) == "0-3"
    assert ranks_text((0, 4, 8)) == "0,4,8"
    assert ranks_text(tuple(range(1, 64, 4))) == "1-61 by 4"
    lines = list(table(made(tp=64, dp=32, attention=True, ep=16, nodes=4)))
    assert any("attention tp" in line and "62-63" in line and "..." in line for line in lines)
    assert all(len(line) < 100 for line in lines)
    assert len(list(table(made(tp=8, ep=8)))) == 1, "of one rank each there is no line"
