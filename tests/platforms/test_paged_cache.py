"""The KV memory's bytes: what a token takes, page copies and scrubbing, in every type."""

from __future__ import annotations

import pytest
import torch

from vivace.platforms.attention import AttentionLayer, LatentLayer, RecurrentLayer
from vivace.platforms.cache import bytes_per_token
from vivace.platforms.ops.cache import dequantize_kv, quantize_kv, store_kv
from vivace.platforms.ops.paged_cache import PagedCache, keep_apart, keep_together
from vivace.protocol.step import Copy

LAYERS = [
    AttentionLayer(index=i, heads=4, kv_heads=2, head_dim=size, scale=1.0)
    for i, size in enumerate((32, 48))
]
TYPES = [torch.float32, torch.bfloat16, torch.int8]


def filled(dtype: torch.dtype) -> tuple[PagedCache, list[torch.Tensor]]:
    """Three pages of four tokens; [12, 2, kv_heads, head_dim] of each layer."""
    memory = PagedCache(LAYERS, [3], 4, dtype, torch.device("cpu"))
    numbers = [torch.randn(12, 2, 2, layer.head_dim) for layer in LAYERS]
    for layer, x in zip(memory.layers.values(), numbers, strict=True):
        store_kv(x[:, 0], x[:, 1], layer[:, :, 0], layer[:, :, 1], torch.arange(12))
    return memory, numbers


@pytest.mark.parametrize(
    ("dtype", "token"),
    [(torch.float32, 4 * 320), (torch.bfloat16, 2 * 320), (torch.int8, 320 + 8 * 4)],
)
def test_a_token_takes_its_numbers_and_their_scales(dtype, token):
    assert bytes_per_token(LAYERS, dtype) == token
    assert PagedCache(LAYERS, [3], 4, dtype, torch.device("cpu")).nbytes == (3 + 1) * 4 * token


@pytest.mark.parametrize("dtype", TYPES)
def test_a_copied_page_reads_as_its_source(dtype):
    memory, numbers = filled(dtype)
    memory.copy([Copy(source=0, target=2), Copy(source=2, target=1)])
    for layer, x in zip(memory.layers.values(), numbers, strict=True):
        read = dequantize_kv(layer, x.shape[-1])
        for page, source in ((0, 0), (2, 0), (1, 2)):
            wanted = dequantize_kv(quantize_kv(x[4 * source : 4 * source + 4], dtype), x.shape[-1])
            assert torch.equal(read[page], wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_scrubbed_token_is_zero_and_its_neighbors_stay(dtype):
    memory, numbers = filled(dtype)
    numbers[0][5, 1, 0, 3] = torch.nan
    x = numbers[0]
    layer = memory.layers[0]
    store_kv(x[:, 0], x[:, 1], layer[:, :, 0], layer[:, :, 1], torch.arange(12))
    assert not dequantize_kv(layer, 32).isfinite().all()
    memory.zero_slots(torch.tensor([5]))
    read = dequantize_kv(layer, 32).flatten(0, 1)[:12]
    assert not read[5].any()
    others = [i for i in range(12) if i != 5]
    assert torch.equal(read[others], dequantize_kv(quantize_kv(x[others], dtype), 32))


@pytest.mark.parametrize("slots", [[-1], [-5], [12], [5, 16], [0, 2**62], [-(2**62)]])
def test_nothing_is_scrubbed_where_a_slot_is_not_of_the_pool(slots):
    memory, _ = filled(torch.float32)
    before, versions = [layer.clone() for layer in memory.layers.values()], memory.versions.copy()
    with pytest.raises(ValueError, match=" 12"):
        memory.zero_slots(torch.tensor(slots))
    assert all(map(torch.equal, memory.layers.values(), before))
    assert (memory.versions == versions).all()
    memory.zero_slots(torch.tensor([], dtype=torch.int64))


@pytest.mark.parametrize("dtype", TYPES)
def test_vacated_pages_are_finite_and_the_others_stay(dtype):
    memory, _ = filled(dtype)
    before = [layer.clone() for layer in memory.layers.values()]
    versions = memory.versions.copy()
    memory.vacate([1])
    for layer, old, numbers in zip(memory.layers.values(), before, LAYERS, strict=True):
        assert torch.equal(layer[0], old[0])
        assert dequantize_kv(layer, numbers.head_dim).isfinite().all()
    assert memory.versions[0] == versions[0] and (memory.versions[1:] > versions[1:]).all()


def test_memory_of_vacated_pages_goes_back():
    memory = PagedCache(LAYERS, [1024], 16, torch.float32, torch.device("cpu"))
    for layer in memory.layers.values():
        layer.fill_(1)
    memory.vacate([100])
    for layer in memory.layers.values():
        assert layer[:100].min() == 1
        if memory.lazy:  # zeros are what the system gives for memory it took
            assert not layer[101:1023].any()
        assert layer[1024].min() == 1


MIXED = [
    LAYERS[0],
    LatentLayer(index=1, heads=2, latent_dim=8, rope_dim=4, scale=1.0),
    RecurrentLayer(index=2, key_heads=1, value_heads=2, key_dim=3, value_dim=5, kernel=3),
    AttentionLayer(index=3, heads=4, kv_heads=2, head_dim=16, scale=1.0, window=9),
]


@pytest.mark.parametrize("dtype", TYPES)
def test_both_layouts_keep_the_same(dtype):
    """Whatever is done to pages and slots; only where the numbers lie differs."""
    random = torch.Generator().manual_seed(1)
    memories = [
        PagedCache(MIXED, [6, 4, 3], 4, dtype, torch.device("cpu"), [9], slots=8, layout=layout)
        for layout in (keep_together, keep_apart)
    ]
    assert memories[0].layers and not memories[1].layers
    assert memories[0].nbytes == memories[1].nbytes
    for layer in MIXED:
        for parts in zip(*(memory.parts(layer.index) for memory in memories), strict=True):
            numbers = torch.randint(-99, 99, parts[0].shape, generator=random)
            for part in parts:
                part.copy_(numbers)
    for memory in memories:
        memory.copy([Copy(0, 2), Copy(2, 5), Copy(3, 0, 1), Copy(1, 2, 2)])
        memory.copy_slots(2, torch.tensor([7, 0]), torch.tensor([1, 5]))
        memory.zero_slots(torch.tensor([3, 9, 21]))
        memory.zero_slots(torch.tensor([15, 2]), 1)
        memory.vacate([5, 3, 2])
    for layer in MIXED:
        for one, other in zip(*(memory.parts(layer.index) for memory in memories), strict=True):
            assert torch.equal(one, other)
    for group, pages in enumerate((6, 4, 3)):
        views = [memory.page_views(group) for memory in memories]
        assert {len(view) for views_of in views for view in views_of} == {pages}
        assert len({sum(view.nbytes for view in views_of) for views_of in views}) == 1
