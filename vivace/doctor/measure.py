"""`vivace doctor --measure`: this CPU as an entry of the hardware catalogue."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from vivace.deploy.catalogue.hardware import GIB, MEASURED, Device
from vivace.deploy.load_case import cache_folder
from vivace.errors import CannotStart
from vivace.platforms.cpu import facts

REPETITIONS = 9
NAME = "cpu"


def measure() -> int:
    """Writes the entry and prints it. Raises CannotStart where there are no kernels to measure
    with."""
    device = measure_device()
    path = Path(cache_folder(), MEASURED)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(device), indent=2))
    print(
        f"{device.name}: {device.title}, {device.memory_gib:g} GiB, {device.bandwidth_gbs:g} GB/s, "
        f"{device.bf16_tflops:g} TFLOP/s\nwritten: {path}"
    )
    return 0


def measure_device() -> Device:
    from vivace.platforms.cpu.measure import measure_limits, open_kernels
    from vivace.platforms.cpu.native import NoKernels

    try:
        kernels = open_kernels(facts.cores())
    except NoKernels as error:
        raise CannotStart(f"--measure needs the native kernels: {error}") from None
    allowed = measure_limits(kernels, REPETITIONS)
    rate = round(allowed.flops / 1e12, 3)
    total, _ = facts.memory()
    return Device(
        name=NAME,
        title=facts.model_name(),
        platform="cpu",
        cards_per_node=1,
        memory_gib=round(total / GIB, 1),
        bandwidth_gbs=round(allowed.bytes_per_second / 1e9, 1),
        bf16_tflops=rate,
        fp16_tflops=rate,
        int8_tops=rate,
        sources=(
            f"vivace doctor --measure, {kernels.isa}, {kernels.threads} of {os.cpu_count()} cores: "
            "the rate is that of float32",
        ),
    )
