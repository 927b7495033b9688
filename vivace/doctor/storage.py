"""Probes of disk and shared memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from vivace.doctor.diagnosis import Diagnosis, ProbeOptions
from vivace.doctor.system import System

GIB = 1 << 30
MIN_FREE = 5 * GIB
"""of a disk that logs and caches are written to"""
MIN_SHARED_MEMORY = 16 * GIB
"""of /dev/shm, which the published configurations give a container"""
SAMPLE_BYTES = 64 << 20
"""bytes written and read again"""
SLOW_BYTES_PER_SECOND = 200 << 20
"""bytes a second: a model of 100 GB takes more than eight minutes"""


def disk_space(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    for folder in dict.fromkeys((tempfile.gettempdir(), options.models or tempfile.gettempdir())):
        if not Path(folder).is_dir():
            yield Diagnosis(name="disk-space", state="error", found=f"{folder} is no folder")
            continue
        free = shutil.disk_usage(folder).free
        found = f"{free / GIB:.1f} GiB free in {folder}"
        if free >= MIN_FREE:
            yield Diagnosis(name="disk-space", state="ok", found=found)
        else:
            why = "logs, crash dumps and caches stop a server when the disk is full"
            yield Diagnosis(
                name="disk-space", state="warning", found=found, why=why, mend=f"du -xsh {folder}/*"
            )


def disk_speed(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    """Of the weights' folder where one is named and can be written to, else of /tmp."""
    folder = options.models if options.models and os.access(options.models, os.W_OK) else None
    try:
        rate = read_rate(folder)
    except OSError as error:
        yield Diagnosis(name="disk-speed", state="unknown", found=str(error))
        return
    found = f"{rate / (1 << 20):.0f} MiB/s read in {folder or tempfile.gettempdir()}"
    if rate >= SLOW_BYTES_PER_SECOND:
        yield Diagnosis(name="disk-speed", state="ok", found=found)
    else:
        why = "loading weights takes as long as reading them"
        yield Diagnosis(name="disk-speed", state="note", found=found, why=why)


def read_rate(folder: str | None) -> float:
    """Bytes a second of a file that was dropped from the page cache, where the system lets us."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="vivace-doctor-") as file:
        block = os.urandom(1 << 20)
        for _ in range(SAMPLE_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began = time.perf_counter()
        while file.read(1 << 20):
            pass
        return SAMPLE_BYTES / (time.perf_counter() - began)


def shared_memory(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    folder = system.root / "dev/shm"
    if not folder.is_dir():
        yield Diagnosis(
            name="shared-memory",
            state="error",
            found="/dev/shm is missing",
            why="processes of one server share buffers there",
            mend="mount -t tmpfs -o size=16g tmpfs /dev/shm",
        )
        return
    size = shutil.disk_usage(folder).total
    if size >= MIN_SHARED_MEMORY:
        yield Diagnosis(name="shared-memory", state="ok", found=f"{size / GIB:.1f} GiB")
        return
    yield Diagnosis(
        name="shared-memory",
        state="note" if size >= GIB else "warning",
        found=f"{size / GIB:.1f} GiB, the published configurations give 16",
        why="a container has 64 MiB unless it is told otherwise: several devices need more",
        mend="docker run --shm-size 16g, or mount -o remount,size=16g /dev/shm",
    )


PROBES = (disk_space, disk_speed, shared_memory)
