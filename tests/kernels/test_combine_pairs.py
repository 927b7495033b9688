"""Pairs of tokens and experts that several ranks have: over shared memory and by the slow twin."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from descriptors import rank_memories
from every_isa import FLOATS, needs_kernels
from torch import Tensor

from vivace.layers.sums import SumTree
from vivace.platforms.cpu import shared_group
from vivace.platforms.cpu.native import Arena, Kernels
from vivace.platforms.cpu.shared_group import SharedMemoryGroup
from vivace.platforms.ops.moe import moe_combine, moe_routes
from vivace.platforms.partial_sums import SharedPairs, combine_gathered, spread_pairs

pytestmark = needs_kernels
EXPERTS, TOP, WIDE = 12, 3, 21


class Mixture:
    """What ranks have of `rows` tokens: `ep` times `inside` of them."""

    def __init__(self, rows: int, ep: int, inside: int) -> None:
        torch.manual_seed(rows + 10 * ep + inside)
        self.size, self.inside, self.each = ep * inside, inside, EXPERTS // ep
        self.chosen = torch.stack([torch.randperm(EXPERTS)[:TOP] for _ in range(rows)])
        self.weights = torch.rand(rows, TOP)
        tree = SumTree(24, 24, 0, inside)
        self.sums, self.merges = tree.sums, torch.tensor(tree.merges)
        self.parts = []
        for rank in range(self.size):
            first = rank // inside * self.each
            routes = moe_routes(self.chosen - first, self.each)
            x = torch.randn(rows * TOP, WIDE * self.sums[rank % inside])
            pairs = SharedPairs(self.chosen - first, first, self.each, self.sums, self.merges)
            self.parts.append((x, routes, pairs))

    def combine(self, group: SharedMemoryGroup, weighed: bool, own: slice | None = None) -> Tensor:
        x, routes, pairs = self.parts[group.rank]
        return group.combine_pairs(x, self.weights if weighed else None, routes.places, pairs, own)

    def twin(self, weighed: bool, own: slice | None = None) -> Tensor:
        parts = [spread_pairs(x, routes.places) for x, routes, _ in self.parts]
        return combine_gathered(parts, self.weights if weighed else None, self.parts[0][2], own)


def make_groups(size: int, isa: str | None = None) -> list[SharedMemoryGroup]:
    return [
        SharedMemoryGroup(Kernels(1 + rank % 2, isa=isa), memory, rank, size)
        for rank, memory in enumerate(rank_memories(size))
    ]


LAYOUTS = [(1, 2), (2, 1), (4, 1), (2, 3), (3, 2), (1, 8)]


@pytest.mark.parametrize("isa", FLOATS)
@pytest.mark.parametrize(("ep", "inside"), LAYOUTS)
def test_every_rank_gets_what_the_twin_makes(ep: int, inside: int, isa: str) -> None:
    groups = make_groups(ep * inside, isa)
    for rows in (1, 9):
        mixture = Mixture(rows, ep, inside)
        for weighed in (True, False):
            for own in (None, slice(rows // 3, rows)):
                with ThreadPoolExecutor(len(groups)) as pool:
                    run = [pool.submit(mixture.combine, one, weighed, own) for one in groups]
                    found = [one.result(60) for one in run]
                assert all(torch.equal(one, found[0]) for one in found)
                torch.testing.assert_close(found[0], mixture.twin(weighed, own))


def test_long_prompts_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run_all(make_groups(4), Mixture(40, 2, 2))
    monkeypatch.setattr(shared_group, "SLOT_BYTES", 4 * TOP * WIDE * 7)
    assert torch.equal(run_all(make_groups(4), Mixture(40, 2, 2)), wanted)


def run_all(groups: list[SharedMemoryGroup], mixture: Mixture) -> Tensor:
    with ThreadPoolExecutor(len(groups)) as pool:
        return next(iter(pool.map(lambda one: mixture.combine(one, True), groups)))


def test_one_rank_and_several_have_the_same_bits() -> None:
    """An expert's numbers are the same wherever it is; the order is the token's."""
    rows = 6
    chosen = torch.stack([torch.randperm(EXPERTS)[:TOP] for _ in range(rows)])
    results, weights = torch.randn(rows, EXPERTS, WIDE), torch.rand(rows, TOP)
    found = []
    for size in (2, 4):
        each = EXPERTS // size

        def run(one: SharedMemoryGroup, each: int = each) -> Tensor:
            placed = chosen - one.rank * each
            routes = moe_routes(placed, each)
            x = torch.zeros(rows * TOP, WIDE)
            here = routes.places >= 0
            x[routes.places[here]] = results.gather(1, chosen.unsqueeze(-1).expand(-1, -1, WIDE))[
                here
            ]
            pairs = SharedPairs(placed, one.rank * each, each, (1,), torch.zeros(1).long())
            return one.combine_pairs(x, weights, routes.places, pairs)

        with ThreadPoolExecutor(size) as pool:
            found += list(pool.map(run, make_groups(size)))
    assert all(torch.equal(one, found[0]) for one in found)
    routes = moe_routes(chosen, EXPERTS)
    x = torch.zeros(rows * TOP, WIDE)
    x[routes.places] = results.gather(1, chosen.unsqueeze(-1).expand(-1, -1, WIDE))
    torch.testing.assert_close(moe_combine(x, weights, routes), found[0])


def test_a_captured_sum_of_pairs_serves_fewer_rows() -> None:
    mixture, groups = Mixture(6, 2, 1), make_groups(2)
    wanted = run_all(groups, mixture)

    def run(one: SharedMemoryGroup) -> list[Tensor]:
        kernels = one._kernels
        with kernels.capture(Arena()) as graph:
            out = mixture.combine(one, True)
        results = []
        for rows in (6, 2):
            out.fill_(0)
            graph.run(rows)
            results.append(out[:rows].clone())
        return results

    with ThreadPoolExecutor(2) as pool:
        for six, two in pool.map(run, groups):
            assert torch.equal(six, wanted) and torch.equal(two, wanted[:2])


def test_widths_that_do_not_fit_are_refused() -> None:
    (group, _), mixture = make_groups(2), Mixture(3, 1, 2)
    x, routes, pairs = mixture.parts[0]
    for wrong in ((x[:, :-1].double(), None), (x, mixture.weights[:2])):
        with pytest.raises(ValueError, match="pairs"):
            group.combine_pairs(wrong[0], wrong[1], routes.places, pairs)


def test_trees_that_a_stack_has_no_room_for_are_refused() -> None:
    (group, _), mixture = make_groups(2), Mixture(3, 1, 2)
    x, routes, pairs = mixture.parts[0]
    sums = (1, 17)
    for merges in ([0] * 17 + [17], [2] + [0] * 17, [0] * 18):
        wrong = replace(pairs, sums=sums, merges=torch.tensor(merges))
        with pytest.raises(ValueError, match="sums"):
            group.combine_pairs(x, mixture.weights, routes.places, wrong)
