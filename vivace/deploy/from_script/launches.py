"""Commands of a script -> those that are started, with what its comparisons say of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from vivace.deploy.from_script.router_workers import started_by
from vivace.deploy.shell.placeholders import join_placeholders, mark_placeholders
from vivace.deploy.shell.state import Launch

MAX_WORDS = 4096
"""of a command with the lines behind it"""


def commands(launches: Sequence[Launch]) -> list[Launch]:
    """What is started, each as a command of its own."""
    found = list(map(apply_assumptions, reachable(launches)))
    cut = {(each.file, each.line): each for each in found if each.words[0].startswith("--")}
    return [made for each in found for made in started_by(rejoined(each, cut))]


def rejoined(launch: Launch, cut: Mapping[tuple[str, int], Launch]) -> Launch:
    """With the lines behind it that a lost backslash cut off: what follows from that is not told
    beside it."""
    words, end = list(launch.words), launch.end
    while not words[0].startswith("--") and (more := cut.get((launch.file, end + 1))):
        words, end = [*words, *more.words][:MAX_WORDS], more.end
    return msgspec.structs.replace(launch, words=tuple(words), end=end)


def reachable(launches: Sequence[Launch]) -> list[Launch]:
    """Without what comes only after a server has ended, where the same line is also reached
    otherwise (as a router at the end of a script that every node runs). A line that only machines
    with a name reach stays: one of them is listed twice."""
    free: dict[tuple[str, int], list[Launch]] = {}
    for launch in launches:
        if not launch.behind:
            free.setdefault((launch.file, launch.line), []).append(launch)
    return [
        each
        for each in launches
        if not each.behind or listed_twice(each, free.get((each.file, each.line), []))
    ]


def listed_twice(launch: Launch, free: Sequence[Launch]) -> bool:
    """Whether a launch that comes after a server has another reason than that its line is reached
    in any case. A line may come after itself where a machine is asked in two ways who it is."""
    named = [each.assumptions for each in free]
    if launch.behind == launch.line and free:
        return bool(launch.assumptions) and launch.assumptions in named
    return all(named)


def apply_assumptions(launch: Launch) -> Launch:
    """With the address that the script compared a machine's own with, in place of what asks for
    it: `--dist-init-addr $MY_IP:5000` differs from node to node."""
    words, environment = list(launch.words), dict(launch.environment)
    for each in launch.assumptions:
        placeholder = f"<{each.origin}>"
        words = [word.replace(placeholder, each.value) for word in words]
        environment = {
            name: text.replace(placeholder, each.value) for name, text in environment.items()
        }
    words = [mark_placeholders(word) for word in join_placeholders(words)]
    environment = {name: mark_placeholders(text) for name, text in environment.items()}
    return msgspec.structs.replace(launch, words=tuple(words), environment=environment)


def find_host(launch: Launch) -> str | None:
    """The machine that `ssh` or the script's comparisons select for this launch."""
    if launch.placement.host:
        return None if "<" in launch.placement.host else launch.placement.host
    host = mark_placeholders(launch.machine)
    return None if not host or host[:2].lower() == "<x" else host
