"""Commands of a script -> those that are started, with what its comparisons say of the machine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from vivace.deploy.shell.state import Launch


def reachable(launches: Sequence[Launch]) -> list[Launch]:
    """Without what comes only after a server has ended, where the same line is also reached
    otherwise (as a router at the end of a script that every node runs). A line that comes after
    itself on a machine with a name stays: the machine is listed twice."""
    free = {(launch.file, launch.line) for launch in launches if not launch.behind}
    asked = {(launch.line, launch.assumptions) for launch in launches if not launch.behind}
    return [
        rejoin(each)
        for each in launches
        if not each.behind
        or (each.file, each.line) not in free
        or (each.assumptions and (each.line, each.assumptions) in asked)
    ]


def rejoin(launch: Launch) -> Launch:
    """With `your first ip` as one word: a placeholder that is not quoted falls into words, which
    the address in its place would not."""
    words = list(launch.words)
    for assumption in launch.assumptions:
        parts = assumption.value.split()
        if len(parts) < 2:
            continue
        for at in range(len(words) - len(parts), -1, -1):
            if words[at : at + len(parts)] == parts:
                words[at : at + len(parts)] = [assumption.value]
    return msgspec.structs.replace(launch, words=tuple(words))


def apply_assumptions(launch: Launch) -> Launch:
    """With the address that the script compared a machine's own with, in place of what asks for
    it: `--dist-init-addr $MY_IP:5000` differs from node to node."""
    words, environment = list(launch.words), dict(launch.environment)
    for each in launch.assumptions:
        asked = f"<{each.origin}>"
        words = [word.replace(asked, each.value) for word in words]
        environment = {name: text.replace(asked, each.value) for name, text in environment.items()}
    return msgspec.structs.replace(launch, words=tuple(words), environment=environment)
