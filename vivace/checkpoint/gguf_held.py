"""What a GGUF file holds for each tensor of a model: one of its own, a part of one, or two."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vivace.checkpoint.gguf_file import TensorEntry
from vivace.checkpoint.gguf_types import GGMLQuantizationType
from vivace.checkpoint.weights import CheckpointError

ONE_ROW = ".ffn_gate_inp_shexp.weight"
"""stored as a vector"""
KEYS, VALUES, BOTH = ".k_b_proj.weight", ".v_b_proj.weight", ".kv_b_proj.weight"


@dataclass(frozen=True)
class HeldTensor:
    """A tensor of the file, or what one expert has of it. `shape`, `nbytes`: of that."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    nbytes: int
    expert: int | None = None
    parts: tuple[HeldTensor, HeldTensor] | None = None
    """[heads, latent, of a key] and [heads, of a value, latent], which make keys and values of
    latents, where the file has them apart"""


def hold(name: str, entry: TensorEntry, place: str, most: int) -> dict[str, HeldTensor]:
    """The tensor, or with {} in its `name` those of all experts, at most so many. Raises
    CheckpointError, also for braces in the file's own name."""
    if "{" in entry.name:
        raise CheckpointError(f"{place}: {entry.name[:80]!r} is no name of a tensor")
    shape = entry.shape
    if entry.name.endswith(ONE_ROW) and len(shape) == 1:
        shape = (1, *shape)
    one = HeldTensor(entry.name, entry.type, shape, entry.nbytes)
    if "{}" not in name:
        return {name: one}
    if len(shape) != (2 if name.endswith(".bias") else 3):
        raise CheckpointError(f"{place}: {entry.name} is no tensor of experts' matrices")
    count = shape[0]
    if count > most:
        raise CheckpointError(
            f"{place}: {entry.name} has {count} experts; with those before it these are too many "
            "for a model: fetch the file again"
        )
    return {
        name.replace("{}", str(expert)): replace(
            one, shape=shape[1:], nbytes=entry.nbytes // count, expert=expert
        )
        for expert in range(count)
    }


def join_latents(held: dict[str, HeldTensor], place: str) -> dict[str, HeldTensor]:
    """With `kv_b_proj` [heads * (of a key + of a value), latent] for what the file has apart; files
    that have all three mean the same thing twice. Raises CheckpointError."""
    found = dict(held)
    for stem in [name.removesuffix(KEYS) for name in held if name.endswith(KEYS)]:
        keys, values = found.pop(stem + KEYS), found.pop(stem + VALUES, None)
        if stem + BOTH not in found:
            found[stem + BOTH] = join(keys, values, place)
    return found


def join(keys: HeldTensor, values: HeldTensor | None, place: str) -> HeldTensor:
    shapes = [keys.shape, () if values is None else values.shape]
    match shapes:
        case [(heads, latent, nope), (others, value, same)] if (heads, latent) == (others, same):
            assert values is not None
            shape, nbytes = (heads * (nope + value), latent), keys.nbytes + values.nbytes
            return replace(keys, shape=shape, nbytes=nbytes, parts=(keys, values))
    raise CheckpointError(
        f"{place}: {keys.name} {list(shapes[0])} and the attn_v_b beside it {list(shapes[1])} are "
        "no matrices of heads that share a latent; fetch the file again, or one with attn_kv_b"
    )


def heads_of_rows(entry: HeldTensor, rows: slice) -> slice:
    """The heads that have these rows of what was joined."""
    assert entry.parts is not None
    each = entry.shape[0] // entry.parts[0].shape[0]
    first, end, _ = rows.indices(entry.shape[0])
    if first % each or end % each:
        raise ValueError(f"{entry.name}: rows {first} to {end} are no whole heads of {each}")
    return slice(first // each, end // each)
