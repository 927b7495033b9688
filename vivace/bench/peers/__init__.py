"""`vivace bench peers`: this server and others on the same host, under the same load."""

from __future__ import annotations


def main(argv: list[str]) -> int:
    from vivace.bench.peers.command import main as run

    return run(argv)
