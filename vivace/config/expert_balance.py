"""Which experts get copies, and where experts go, so that all devices compute as much: EPLB, as
DeepSeek-AI published it with DeepSeek-V3 (2025), in integers and floats of Python.

Loads are tokens that went to an expert in some time; a placement is the expert of each slot, slots
counting through the devices, and these through the nodes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ExpertDevices:
    """What experts are spread over. `groups`: of experts that a token's choice is limited to, which
    stay on one node where they go into the nodes (the hierarchical form)."""

    slots: int
    devices: int
    nodes: int = 1
    groups: int = 1


ALGORITHMS = ("auto", "deepseek", "deepseek_hierarchical")


def place_experts(
    loads: Sequence[float], room: ExpertDevices, algorithm: str = "auto"
) -> tuple[int, ...]:
    """Of one layer; [slots]. At least as many slots as experts, and as many on each device.

    Groups go to nodes, then copies to the busiest experts of a node, then copies to devices, each
    time the heaviest to the lightest that has room. Without groups and devices that go into the
    nodes, or with "deepseek", all of it as if there were one node.
    """
    even = room.groups % room.nodes == room.devices % room.nodes == 0
    groups, nodes = (room.groups, room.nodes) if algorithm != "deepseek" and even else (1, 1)
    size, devices = len(loads) // groups, room.devices // nodes
    sums = [sum(loads[group * size : (group + 1) * size]) for group in range(groups)]
    placed: list[int] = []
    for chosen in pack(sums, nodes):
        own = [group * size + at for group in chosen for at in range(size)]
        placed += place_on_node(own, loads, room.slots // nodes, devices)
    return tuple(placed)


def place_on_node(
    experts: Sequence[int], loads: Sequence[float], slots: int, devices: int
) -> list[int]:
    found = replicate([loads[expert] for expert in experts], slots)
    copies = Counter(found)
    packed = pack([loads[experts[at]] / copies[at] for at in found], devices)
    return [experts[found[slot]] for device in packed for slot in device]


def replicate(loads: Sequence[float], slots: int) -> list[int]:
    """What is in each slot: all of them, then one copy after the other of that whose copies have
    most to do, the first of equals."""
    found, copies = list(range(len(loads))), [1] * len(loads)
    waiting = [(-load, at) for at, load in enumerate(loads)]
    heapq.heapify(waiting)
    for _ in range(slots - len(loads)):
        _, at = heapq.heappop(waiting)
        found.append(at)
        copies[at] += 1
        heapq.heappush(waiting, (-loads[at] / copies[at], at))
    return found


def pack(loads: Sequence[float], packs: int) -> list[list[int]]:
    """Items to packs of as many each: the heaviest first, to the lightest pack with room."""
    room = len(loads) // packs
    found: list[list[int]] = [[] for _ in range(packs)]
    waiting: list[tuple[float, int]] = [(0.0, at) for at in range(packs)]
    for item in sorted(range(len(loads)), key=lambda at: (-loads[at], at)):
        weight, at = heapq.heappop(waiting)
        found[at].append(item)
        if len(found[at]) < room:
            heapq.heappush(waiting, (weight + loads[item], at))
    return found


def utilization(counts: Sequence[int], devices: int) -> float:
    """Mean over the greatest load of a device, 0 to 1; of what each slot got."""
    each = len(counts) // devices
    loads = [sum(counts[at * each : (at + 1) * each]) for at in range(devices)]
    return sum(loads) / (devices * max(loads)) if any(loads) else 1.0
