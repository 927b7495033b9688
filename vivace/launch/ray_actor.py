"""The actor that Ray starts for a node: it runs `vivace serve` there, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from vivace.config.child_process import (
    STOPPING,
    child_environment,
    die_with,
    no_process,
    python_module,
)

LAST_LINES = 3


class NodeActor:
    """On the machine, and with the devices, that Ray gave it. Everything that comes and goes is
    plain data."""

    def run(
        self, words: list[str], environment: dict[str, str], directory: str
    ) -> tuple[int, list[str]]:
        """`vivace serve WORDS` to its end: exit code (as subprocess has it), and what it said
        last. `environment` is added to this process's; `directory` is where it runs, if that is
        on this machine, too."""
        command = [*python_module("vivace.launch.ray_actor"), str(os.getpid())]
        try:
            process = subprocess.Popen(
                [*command, *words],
                env={**child_environment(), **environment},
                cwd=directory if Path(directory).is_dir() else None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="backslashreplace",
            )
        except OSError as error:
            raise no_process("a node", error) from error
        said: deque[str] = deque(maxlen=LAST_LINES)
        assert process.stdout is not None
        for line in process.stdout:  # Ray has them in its logs, and shows them at the first node
            print(line, end="", flush=True)
            said.append(line.strip())
        return process.wait(), list(said)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Become `vivace serve`, which ends when the actor does."""
    parent, *words = sys.argv[1:] if argv is None else argv
    die_with(int(parent))  # the kernel remembers
    for number in STOPPING:  # Ray has handlers of its own, and holds some back
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    command = [*python_module("vivace"), "serve", *words]
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
