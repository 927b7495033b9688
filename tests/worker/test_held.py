"""The bytes a model holds: every tensor once, wherever it lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vivace.layers.module import Module
from vivace.platforms.ops.stored import Int8Rows
from vivace.worker.tensor_memory import tensor_bytes


@dataclass(frozen=True)
class Pair:
    first: torch.Tensor
    others: list[torch.Tensor]


def test_shared_memory_counts_once_and_functions_are_leaves() -> None:
    table = torch.zeros(100, dtype=torch.float32)
    node, child = Module(), Module()
    node.table, node.child, node.act = table, child, torch.relu  # pyright: ignore
    child.again, child.parent = table[:10], node  # pyright: ignore
    child.pair = Pair(torch.zeros(3, dtype=torch.int8), [table.view(4, 25)])  # pyright: ignore
    assert tensor_bytes(node) == 403


def test_of_a_segment_counts_what_is_used() -> None:
    """Ranges that overlap, touch, lie apart or are empty; a strided view reaches from its first
    number to its last."""
    segment = torch.zeros(1000, dtype=torch.uint8)
    assert tensor_bytes([segment[10:30], segment[20:40], segment[40:50]]) == 40
    assert tensor_bytes([segment[0:10], segment[500:510], segment[3:3]]) == 20
    assert tensor_bytes([segment.view(10, 100)[:, 7]]) == 901
    assert tensor_bytes([segment[0:10].clone(), segment[0:10]]) == 20


def test_parameters_and_packed_rows_count() -> None:
    assert tensor_bytes([nn.Linear(4, 2)]) == 4 * (8 + 2)
    rows = Int8Rows(torch.zeros(2, 8, dtype=torch.int8), torch.zeros(2, 1), int8_activations=True)
    assert tensor_bytes({"a": rows}) == 16 + 8
