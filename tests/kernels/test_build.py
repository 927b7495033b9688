"""The kernel library as it is built: conformance in C++ on every instruction set, and the hook."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from every_isa import opened

from vivace.errors import CannotStart
from vivace.platforms.cpu.library import LIBRARY, NoKernels, StaleKernels, load_library
from vivace.platforms.cpu.native import Kernels

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "vivace" / "platforms" / "cpu" / "kernels"
CHECKED_ISAS = (
    "avx512bf16",
    "avx512vnni",
    "avx512vnni-emulated",
    "avx512",
    "avx2",
    "portable",
    "neondot",
)
NOT_OF_THIS_CPU = 77
SLOW_STEP = 3600
"""seconds; the checked build took 20 minutes of two cores that a dozen processes shared"""


def run(command: list[str | Path], seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=seconds
    )


@pytest.fixture(scope="module")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conformance program, linked with the library that the package would load."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler")
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} was not built")
    program = tmp_path_factory.mktemp("conformance") / "conformance"
    sources = [*sorted((SOURCES / "tests").glob("*.cpp")), SOURCES / "pool.cpp", LIBRARY]
    options = ["-std=c++17", "-O1", "-pthread", f"-Wl,-rpath,{LIBRARY.parent}"]
    done = run([compiler, *options, *sources, "-o", program], 240)
    assert done.returncode == 0, done.stderr
    return program


def test_every_operation_has_a_case_in_c() -> None:
    """Products of one type of weights share a case, which puts their names together; those of
    limits.inc measure the machine."""
    files = [file for file in SOURCES.glob("*.inc") if file.name != "limits.inc"]
    operation = re.compile(r'\{"(\w+)", sizeof')
    names = {name for file in files for name in operation.findall(file.read_text())}
    cases = "".join(file.read_text() for file in (SOURCES / "tests").glob("*.cpp"))
    assert "rms_norm" in names
    missing = {name for name in names if f'"{name}"' not in cases}
    assert missing <= {"linear_bf16"}


@pytest.mark.parametrize(
    "isa",
    [*CHECKED_ISAS, "neon"],
)
def test_operations_agree_with_double_precision(conformance: Path, isa: str) -> None:
    done = run([conformance, isa], 120)
    if done.returncode == NOT_OF_THIS_CPU:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def test_pool_under_stress(conformance: Path) -> None:
    done = run([conformance, "pool", "10000"], 120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ngrams_agree_with_loops(conformance: Path) -> None:
    done = run([conformance, "ngrams"], 120)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the library with a copy of the sources beside it."""
    if not LIBRARY.is_file():
        pytest.skip(f"{LIBRARY} was not built")
    shutil.copytree(SOURCES, tmp_path / SOURCES.name)
    return Path(shutil.copy(LIBRARY, tmp_path))


def exchange(folder: Path) -> None:
    one, other = folder / "linear.inc", folder / "moe.inc"
    texts = one.read_bytes(), other.read_bytes()
    other.write_bytes(texts[0])
    one.write_bytes(texts[1])


CHANGES: dict[str, Callable[[Path], object]] = {
    "a kernel says something else": lambda folder: append(folder / "elementwise.inc", "//"),
    "what decides the layout of a call": lambda folder: append(folder / "op.h", "//"),
    "how it is compiled": lambda folder: append(folder / "CMakeLists.txt", "#"),
    "a new file": lambda folder: (folder / "more.inc").touch(),
    "a file less": lambda folder: (folder / "moe.inc").unlink(),
    "another name": lambda folder: (folder / "moe.inc").rename(folder / "experts.inc"),
    "the contents of two files": exchange,
    "not to be read": lambda folder: (
        (folder / "simd.h").unlink(),
        (folder / "simd.h").symlink_to("nowhere"),
    ),
}


def append(file: Path, text: str) -> None:
    """The file's times stay."""
    times = file.stat()
    file.write_text(file.read_text() + text)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES)
def test_a_library_of_other_sources_is_not_loaded(installed: Path, change: str) -> None:
    load_library(installed)
    CHANGES[change](installed.parent / SOURCES.name)
    with pytest.raises(StaleKernels, match=r"sources .*make kernels") as caught:
        load_library(installed)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, CannotStart), "a start ends in one line, without a traceback"
    assert not isinstance(caught.value, NoKernels), "or tests without kernels would skip themselves"


def test_times_and_other_files_beside_the_sources_change_nothing(installed: Path) -> None:
    folder = installed.parent / SOURCES.name
    for file in folder.glob("*.inc"):
        os.utime(file)
    (folder / "tests" / "new.cpp").touch()
    (folder / "notes.txt").touch()
    load_library(installed)
    shutil.rmtree(folder)
    load_library(installed)  # a wheel


@pytest.mark.slow
@pytest.mark.timeout(4 * SLOW_STEP)
def test_aarch64_under_qemu() -> None:
    if not shutil.which("aarch64-linux-gnu-g++") or not shutil.which("cmake"):
        pytest.skip("needs g++-aarch64-linux-gnu and cmake")
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if not qemu:
        pytest.skip("needs qemu-user or qemu-user-static")
    build = ROOT / "build" / "kernels-aarch64"
    toolchain = SOURCES / "tests" / "aarch64.cmake"
    emulated = [qemu, "-L", "/usr/aarch64-linux-gnu", build / "tests" / "conformance"]
    for command in (
        ["cmake", "-S", SOURCES, "-B", build, "--toolchain", toolchain, "-DVV_TESTS=ON"],
        ["cmake", "--build", build, "--parallel", "2"],
        [*emulated, "neon"],
        [*emulated, "neondot"],
        [*emulated, "ngrams"],
    ):
        done = run(command, SLOW_STEP)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """The library and the program with every access checked, for the instruction sets here."""
    if not shutil.which("cmake") or not (os.environ.get("CXX") or shutil.which("c++")):
        pytest.skip("needs cmake and a C++ compiler")
    build = ROOT / "build" / "kernels-sanitized"
    options = ["-DVV_TESTS=ON", "-DVV_REQUIRED=ON", "-DVV_SANITIZE=ON"]
    usable = ";".join(isa.replace("-", "_") for isa in checked_isas())
    for command in (
        ["cmake", "-S", SOURCES, "-B", build, *options, f"-DVV_ISAS={usable}"],
        ["cmake", "--build", build, "--parallel", "2"],
    ):
        done = run(command, SLOW_STEP)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


def checked_isas() -> list[str]:
    """The instruction sets that this CPU runs, those for tests included; an addition to one needs
    the one below it."""
    return [isa for isa in CHECKED_ISAS if isinstance(opened(1, isa), Kernels)]


@pytest.mark.slow
@pytest.mark.timeout(4 * SLOW_STEP)
@pytest.mark.parametrize("isa", checked_isas())
def test_no_access_goes_astray(sanitized: Path, isa: str) -> None:
    """AddressSanitizer and UBSan end the program at the first finding."""
    done = run([sanitized / "tests" / "conformance", isa], SLOW_STEP)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(4 * SLOW_STEP)
def test_no_access_goes_astray_from_python(sanitized: Path, tmp_path: Path) -> None:
    """The tests of this folder, their odd shapes and strides, on the checked library."""
    compiler = os.environ.get("CXX") or "c++"
    runtime = run([compiler, "-print-file-name=libasan.so"], 60).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip(f"{compiler} has no libasan.so that Python could load first")
    # torch's exceptions: the runtime looks for what throws them when it is loaded itself
    throws = run([compiler, "-print-file-name=libstdc++.so"], 60).stdout.strip()
    leave_out = shutil.ignore_patterns("_kernels.so", "kernels", "__pycache__")
    shutil.copytree(ROOT / "vivace", tmp_path / "vivace", ignore=leave_out)
    shutil.copy(
        sanitized / "_kernels.so", tmp_path / "vivace" / LIBRARY.relative_to(ROOT / "vivace")
    )
    environment = {
        **os.environ,
        "LD_PRELOAD": f"{runtime}:{throws}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(tmp_path),
        "PYTHONSAFEPATH": "1",
    }
    names = "linear int8_activations int8 mlp moe ops sampling attention".split()
    tests = [Path(__file__).with_name(f"test_native_{name}.py") for name in names]
    mismatches = Path(__file__).with_name("test_mismatches.py")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests, mismatches]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=2 * SLOW_STEP,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Messages:
    """Stands for the build's own output."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, text: str) -> None:
        self.warnings.append(text)


def kernel_build(hook: ModuleType, root: Path, messages: Messages) -> Any:
    return hook.KernelBuild(str(root), {}, None, None, str(root), "wheel", messages)


def tools(folder: Path, *names: str) -> str:
    """A PATH that has only these programs, all of which fail."""
    folder.mkdir()
    for name in names:
        program = folder / name
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    return str(folder)


def test_without_a_compiler_the_wheel_is_pure(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", tools(tmp_path / "bin", "cmake"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("VIVACE_BUILD_KERNELS", raising=False)
    messages = Messages()
    build = kernel_build(hook, tmp_path, messages)
    wheel: dict[str, Any] = {"force_include": {}, "pure_python": True}
    build.initialize("standard", wheel)
    assert wheel == {"force_include": {}, "pure_python": True}
    assert build.dependencies() == []
    assert len(messages.warnings) == 1


@pytest.mark.parametrize(
    ("present", "fetched"),
    [
        (("c++",), ["cmake>=3.20", "ninja>=1.11"]),
        (("c++", "cmake"), ["ninja>=1.11"]),
        (("g++", "make"), ["cmake>=3.20"]),
        (("clang++", "cmake", "ninja"), []),
    ],
)
def test_only_missing_tools_are_fetched(
    hook: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    present: tuple[str, ...],
    fetched: list[str],
) -> None:
    monkeypatch.setenv("PATH", tools(tmp_path / "bin", *present))
    monkeypatch.delenv("VIVACE_BUILD_KERNELS", raising=False)
    assert kernel_build(hook, tmp_path, Messages()).dependencies() == fetched


def test_a_failed_compilation_says_what_to_do(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", tools(tmp_path / "bin", "c++", "cmake", "make"))
    build = kernel_build(hook, tmp_path, Messages())
    with pytest.raises(RuntimeError, match="VIVACE_BUILD_KERNELS=0"):
        build.initialize("standard", {"force_include": {}})


def test_a_missing_library_is_explained(tmp_path: Path) -> None:
    with pytest.raises(NoKernels, match=r"_kernels\.so "):
        Kernels(1, library=tmp_path / "_kernels.so")
