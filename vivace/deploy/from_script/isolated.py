"""The parser is C: a child process reads the script, and only data comes back."""

from __future__ import annotations

import os
import resource
import sys
from typing import NoReturn

import msgspec

from vivace.deploy.shell.interpreter import Follow
from vivace.deploy.shell.reader import Reading, ScriptError, no_file, read_script
from vivace.files import read_file

MAX_SECONDS = 4
"""of CPU time"""
MAX_MEMORY = 1 << 30
"""bytes of address space beyond what this process has"""
CHUNK = 1 << 16


def read_isolated(content: str, follow: Follow = no_file) -> Reading:
    """`read_script` in a child. Raises ScriptError, also for a parser that crashes or goes on and
    on. The caller must have one thread."""
    reading_end, writing_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading_end)
        answer(content, follow, writing_end)
    os.close(writing_end)
    raw = b"".join(iter(lambda: os.read(reading_end, CHUNK), b""))
    os.close(reading_end)
    _, status = os.waitpid(child, 0)
    if not raw or os.waitstatus_to_exitcode(status) != 0:
        raise ScriptError("the shell parser could not read it (it crashed or took too long)")
    result = msgspec.msgpack.decode(raw, type=Reading | str)
    if isinstance(result, str):
        raise ScriptError(result)
    return result


def answer(content: str, follow: Follow, to: int) -> NoReturn:
    """In the child: set limits, read, answer, and exit without exit handlers."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit_memory()
        try:
            result: Reading | str = read_script(content, follow)
        except ScriptError as error:
            result = str(error)
        raw = msgspec.msgpack.encode(result)
        while raw:
            raw = raw[os.write(to, raw) :]
        code = 0
    finally:
        os._exit(code)


def limit_memory() -> None:
    mapped = int(read_file("/proc/self/statm", CHUNK).split()[0]) * resource.getpagesize()
    limit, hard = mapped + MAX_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
