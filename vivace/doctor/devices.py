"""Probes of accelerators: drivers, toolkits, and whether their versions go together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vivace.doctor.diagnosis import Diagnosis, ProbeOptions
from vivace.doctor.system import System

CANN_FILES = (
    "/usr/local/Ascend/ascend-toolkit/latest/version.cfg",
    "/usr/local/Ascend/ascend-toolkit/latest/compiler/version.info",
    "/usr/local/Ascend/cann/version.cfg",
)
DRIVER_FILE = "/usr/local/Ascend/driver/version.info"
VERSION = re.compile(r"(\d+\.\d+(?:\.\w+)*)")
TORCH_NPU_OF_CANN = {
    "9.1": ("2.12.0", "2.11.0", "2.10.0.post4", "2.9.0.post6", "2.7.1.post8"),
    "9.0": ("2.9.0.post2", "2.8.0.post4", "2.7.1.post4"),
    "8.5": ("2.9.0", "2.8.0.post2", "2.7.1.post2"),
}
"""CANN -> the releases of torch_npu made for it (COMPATIBILITY of Ascend/pytorch)"""


def ascend(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    present = system.find("/dev/davinci[0-9]*")
    driver = find_version(system.read(DRIVER_FILE))
    cann = next((found for file in CANN_FILES if (found := find_version(system.read(file)))), None)
    npu = system.version("torch_npu")
    if not present and driver is None and cann is None and npu is None:
        yield Diagnosis(name="ascend", state="ok", found="no Ascend device, and nothing for one")
        return
    yield Diagnosis(
        name="ascend-devices",
        state="ok" if present else "error",
        found=f"{len(present)} devices" if present else "no /dev/davinci*",
        why="" if present else "the driver is not loaded, or the container was not given them",
        mend="" if present else "npu-smi info; docker run --device /dev/davinci0 ..",
    )
    yield installed_version(
        "ascend-driver", driver, "install the driver and firmware of the machine"
    )
    yield installed_version("cann", cann, "install CANN, or source its set_env.sh")
    yield installed_version("torch-npu", npu, "pip install torch_npu in the version of torch")
    yield from version_pairs(system.version("torch"), npu, cann)


def installed_version(name: str, version: str | None, mend: str) -> Diagnosis:
    if version is not None:
        return Diagnosis(name=name, state="ok", found=version)
    return Diagnosis(name=name, state="error", found="not found", mend=mend)


def find_version(text: str | None) -> str | None:
    found = VERSION.search(text or "")
    return found.group(1) if found else None


def version_pairs(torch: str | None, npu: str | None, cann: str | None) -> Iterator[Diagnosis]:
    """torch with torch_npu, torch_npu with CANN."""
    if npu is None or torch is None:
        return
    base = re.split(r"\.post|rc|\+", npu)[0]
    if torch.partition("+")[0] != base:
        yield Diagnosis(
            name="torch-pairing",
            state="error",
            found=f"torch {torch} with torch_npu {npu}",
            why="torch_npu is built for one release of torch and does not load into another",
            mend=f"pip install torch=={base}",
        )
    else:
        yield Diagnosis(name="torch-pairing", state="ok", found=f"torch {torch}, torch_npu {npu}")
    series = ".".join((cann or "").split(".")[:2])
    if series not in TORCH_NPU_OF_CANN:
        return
    fits = npu.partition("+")[0] in TORCH_NPU_OF_CANN[series]
    yield Diagnosis(
        name="cann-pairing",
        state="ok" if fits else "warning",
        found=f"CANN {cann} with torch_npu {npu}",
        why=""
        if fits
        else f"CANN {series} was released with {', '.join(TORCH_NPU_OF_CANN[series])}",
        mend="" if fits else f"pip install torch_npu=={TORCH_NPU_OF_CANN[series][0]}",
    )


def cuda(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    driver = find_version(system.read("/proc/driver/nvidia/version"))
    if driver is None:
        yield Diagnosis(name="cuda", state="ok", found="no NVIDIA driver")
        return
    words = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = system.run(words)
    devices = "; ".join(answer.splitlines()) if answer else "nvidia-smi does not answer"
    yield Diagnosis(
        name="cuda",
        state="ok" if answer else "error",
        found=f"driver {driver}: {devices}",
        why="" if answer else "the driver and its library may be of different versions",
        mend="" if answer else "reboot, or reload the nvidia modules",
    )


def is_present(system: System) -> bool:
    """Whether this machine has such devices, or what is installed for them."""
    files = (DRIVER_FILE, *CANN_FILES, "/proc/driver/nvidia/version")
    return bool(system.find("/dev/davinci[0-9]*")) or any(map(system.read, files))


PROBES = (ascend, cuda)
