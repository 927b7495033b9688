"""Devices a deployment can name, with sources; data in hardware.json."""

from __future__ import annotations

from functools import cache

import msgspec

from vivace.deploy.files import below, packaged_path
from vivace.files import read_file

GIB = 1 << 30
LARGEST = 1 << 20
"""bytes of a file"""
MEASURED = "vivace/hardware.json"
"""below the user's cache folder: what `vivace doctor --measure` found on this machine"""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of accelerator; rates and memory are those of one device (of A3: of one die).

    `memory_gib` and, of it, `context_gib` taken by driver and runtime; bandwidths in GB/s, one
    way; rates dense, in tera-operations per second.
    """

    name: str
    title: str
    platform: str
    memory_gib: float
    bandwidth_gbs: float
    bf16_tflops: float
    fp16_tflops: float
    int8_tops: float
    sources: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    devices_per_card: int = 1
    cards_per_node: int = 8
    context_gib: float = 0.0
    scale_up: str = ""
    scale_up_gbs: float = 0.0
    scale_up_reach: str = "node"
    pair_gbs: float = 0.0
    """between the two dies of a card"""
    generation: str = ""
    """of a CUDA device: sm90 has compute capability 9.0"""
    scale_out: str = ""
    scale_out_gbs: float = 0.0

    @property
    def usable_bytes(self) -> int:
        """Bytes that one device leaves to an engine."""
        return int((self.memory_gib - self.context_gib) * GIB)


@cache
def devices() -> tuple[Device, ...]:
    """The catalogue that comes with the package."""
    return msgspec.json.decode(
        read_file(packaged_path("catalogue/hardware.json"), LARGEST), type=tuple[Device, ...]
    )


def measured_devices(cache_folder: str) -> tuple[Device, ...]:
    """The device measured on this machine; empty without a valid file."""
    try:
        return (
            msgspec.json.decode(read_file(below(cache_folder, MEASURED), LARGEST), type=Device),
        )
    except (OSError, ValueError):
        return ()


def find_device(name: str, also: tuple[Device, ...] = ()) -> Device | None:
    """By name, title or alias, in any case."""
    wanted = " ".join(name.lower().split())
    for device in (*also, *devices()):
        if wanted in (device.name, device.title.lower(), *device.aliases):
            return device
    return None
