"""Builds the native CPU kernels while a wheel or an editable install is made (docs/kernels.md).

Without a C++ compiler the package is built without them, and runs on torch's own operations.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "vivace/platforms/cpu/kernels"
LIBRARY = "vivace/platforms/cpu/_kernels.so"
COMPILERS = ("c++", "g++", "clang++", "icpx")
SWITCH = "VIVACE_BUILD_KERNELS"
"""0: leave them out; 1: fail where they cannot be built; unset: build if there is a compiler"""


class KernelBuild(BuildHookInterface):
    def dependencies(self) -> list[str]:
        """What the build downloads: only tools that the machine lacks, and only if of use."""
        if not kernels_wanted():
            return []
        cmake = [] if shutil.which("cmake") else ["cmake>=3.20"]
        return cmake if any(map(shutil.which, ("make", "ninja"))) else [*cmake, "ninja>=1.11"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not kernels_wanted():
            self.app.display_warning("vivace is built without its native CPU kernels")
            return
        root = Path(self.root)
        if version == "editable":
            compile_kernels(root, root / "build" / "kernels", in_place=True)
            return
        build = root / "build" / "kernels-wheel"
        compile_kernels(root, build, in_place=False)
        build_data["force_include"][str(build / "_kernels.so")] = LIBRARY
        # the library is loaded by path and knows nothing of Python: any Python 3 of this platform
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False


def kernels_wanted() -> bool:
    switch = os.environ.get(SWITCH, "")
    if switch in ("0", "1"):
        return switch == "1"
    return bool(os.environ.get("CXX")) or any(map(shutil.which, COMPILERS))


def compile_kernels(root: Path, build: Path, *, in_place: bool) -> None:
    """Leave `_kernels.so` in `build`, or beside native.py. Raises RuntimeError if it fails."""
    configure = ["cmake", "-S", str(root / SOURCES), "-B", str(build)]
    configure += [f"-DVV_IN_PLACE={'ON' if in_place else 'OFF'}", "-DVV_REQUIRED=ON"]
    if not shutil.which("make"):
        configure += ["-G", "Ninja"]
    if build.is_dir() and not run(configure):
        shutil.rmtree(build)  # made by another CMake, or at another place
    if not run(configure) or not run(["cmake", "--build", str(build)]):
        raise RuntimeError(
            f"the native CPU kernels did not compile (the compiler's messages are above; pip "
            f"shows them with -v). Install vivace without them by setting {SWITCH}=0"
        )


def run(command: list[str]) -> bool:
    jobs = str(max(2, min(8, os.cpu_count() or 2)))
    environment = {"CMAKE_BUILD_PARALLEL_LEVEL": jobs, **os.environ}
    return subprocess.run(command, env=environment, check=False).returncode == 0
