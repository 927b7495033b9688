"""The library of native kernels as a file: found, loaded, checked. No torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

from vivace.errors import CannotStart
from vivace.platforms.cpu.facts import KERNELS as LIBRARY

SOURCES = LIBRARY.with_name("kernels")
"""beside the library in an editable install only"""
BUILD_AGAIN = "build them again: make kernels, or reinstall vivace"


class NoKernels(CannotStart):
    """The native kernels cannot be used here; the text says why."""


def load_library(path: Path = LIBRARY) -> ctypes.CDLL:
    """Raises NoKernels."""
    if not path.is_file():
        raise NoKernels(
            f"{path} was not built (no C++ compiler when vivace was installed); torch's own "
            "operations are used, which are slower. Install g++ and reinstall vivace"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoKernels(f"{path} cannot be loaded: {error}") from None
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    for name, result, arguments in (
        ("vv_open", pointer, (ctypes.c_char_p, word, word, word)),
        ("vv_close", None, (pointer,)),
        ("vv_isa", ctypes.c_char_p, (pointer,)),
        ("vv_isa_below", ctypes.c_char_p, (pointer,)),
        ("vv_find", word, (pointer, ctypes.c_char_p)),
        ("vv_words", word, (pointer, word)),
        ("vv_address", pointer, (pointer, word)),
        ("vv_run", None, (pointer, word, ctypes.c_char_p)),
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


def older_than_sources(library: Path = LIBRARY, sources: Path = SOURCES) -> bool:
    """Whether a source changed after the library was built, as make sees it."""
    compiled = (file for kind in ("cpp", "inc", "h") for file in sources.glob(f"*.{kind}"))
    built = library.stat().st_mtime_ns
    return any(file.stat().st_mtime_ns > built for file in compiled)


def best_isa() -> str:
    """The best instruction set that the library has and this CPU runs. Raises NoKernels."""
    library = load_library()
    context = library.vv_open(None, 1, 0, 0)
    try:
        return library.vv_isa(context).decode()
    finally:
        library.vv_close(context)
