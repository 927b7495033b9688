"""The library of native kernels as a file: found, loaded, checked. No torch."""

from __future__ import annotations

import ctypes
import platform
from hashlib import sha256
from pathlib import Path

from vivace.errors import CannotStart
from vivace.platforms.cpu.facts import KERNELS as LIBRARY

IS_CHECKOUT = (LIBRARY.parents[3] / "Makefile").is_file()
REINSTALL = (
    "pip install --force-reinstall --no-deps SOURCES, vivace's checkout or sdist, or a wheel named "
    f"*linux*_{platform.machine()}.whl, which needs no compiler (*-py3-none-any.whl has no kernels)"
)
BUILD_COMMAND = "make kernels" if IS_CHECKOUT else REINSTALL
"""what builds the kernels; no wheel has a Makefile or sources"""


class NoKernels(CannotStart):
    """The native kernels cannot be used here; the text says why."""


class StaleKernels(CannotStart):
    """The native kernels were built from other sources; the text says what to do."""

    def __init__(self, evidence: str) -> None:
        super().__init__(f"the kernels were built from other sources ({evidence}): {BUILD_COMMAND}")


def load_library(path: Path = LIBRARY) -> ctypes.CDLL:
    """Raises NoKernels, StaleKernels."""
    if not path.is_file():
        raise NoKernels(
            f"{path} was not built (no C++ compiler when vivace was installed, or a wheel for any "
            "machine); torch's own operations are used, which are slower"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernels(f"{path} cannot be loaded: {error}") from None
    check_sources(library, path)
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    for name, result, arguments in (
        ("vv_open", pointer, (ctypes.c_char_p, word, word, word)),
        ("vv_close", None, (pointer,)),
        ("vv_isa", ctypes.c_char_p, (pointer,)),
        ("vv_isa_below", ctypes.c_char_p, (pointer,)),
        ("vv_find", word, (pointer, ctypes.c_char_p)),
        ("vv_words", word, (pointer, word)),
        ("vv_address", pointer, (pointer, word)),
        ("vv_run", None, (pointer, ctypes.c_char_p, word, ctypes.c_char_p)),
        ("vv_graph_new", pointer, ()),
        ("vv_graph_free", None, (pointer,)),
        ("vv_graph_add", None, (pointer, pointer, word, ctypes.c_char_p)),
        ("vv_graph_calls", word, (pointer,)),
        ("vv_graph_bytes", word, (pointer,)),
        ("vv_graph_replay", None, (pointer, pointer, word)),
    ):
        function = getattr(library, name, None)
        if function is None:
            raise NoKernels(
                f"{path} has no {name}: it is no build of this version; reinstall vivace"
            )
        function.restype, function.argtypes = result, arguments
    return library


def check_sources(library: ctypes.CDLL, path: Path) -> None:
    """Raises StaleKernels where the sources lie beside the library (a wheel has none) and are not
    those that it was built from: their contents are compared, not their times."""
    folder = path.with_name("kernels")
    if not (folder / "CMakeLists.txt").is_file():
        return
    built_from = getattr(library, "vv_sources", None)
    if built_from is None:
        raise StaleKernels(f"{path} does not say from which")
    built_from.restype = ctypes.c_char_p
    try:
        digest = sources_digest(folder)
    except OSError as error:
        raise StaleKernels(f"{error.filename} cannot be read: {error.strerror}") from None
    if built_from().decode() != digest:
        raise StaleKernels(f"{path} is not of the files in {folder}")


def sources_digest(folder: Path) -> str:
    """SHA-256 of what is compiled and how, as CMakeLists.txt computes it. Raises OSError."""
    compiled = (file for kind in ("cpp", "inc", "h") for file in folder.glob(f"*.{kind}"))
    files = [folder / "CMakeLists.txt", *compiled]
    lines = sorted(f"{sha256(file.read_bytes()).hexdigest()} {file.name}" for file in files)
    return sha256("\n".join(lines).encode()).hexdigest()


def best_isa() -> str:
    """The best instruction set that the library has and this CPU runs. Raises NoKernels,
    StaleKernels."""
    library = load_library()
    context = library.vv_open(None, 1, 0, 0)
    try:
        return library.vv_isa(context).decode()
    finally:
        library.vv_close(context)
