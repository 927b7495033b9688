"""`vivace deploy import`: launch scripts as people have them -> one deployment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from vivace.deploy.files import FileTooLarge, PathName, name_of, read
from vivace.deploy.from_script.flags import Remark, flags_of
from vivace.deploy.from_script.isolated import read_isolated
from vivace.deploy.from_script.programs import Invocation, invocation
from vivace.deploy.from_script.roles import (
    StartedServer,
    kind_of,
    roles_of,
    shared_environment,
    value_of,
    without,
)
from vivace.deploy.quoting import quoted
from vivace.deploy.schema.deployment import Benchmark, Deployment, Model, Role
from vivace.deploy.shell.reader import MAX_BYTES, ScriptError
from vivace.deploy.shell.state import Launch

REPORTING = ("echo", "printf", "[", "[[", "test", "true", "false", ":")
HOST_SOURCES = ("hostname", "ip ", "ifconfig", "HOSTNAME", "POD_IP", "HOST_IP")


class Imported(msgspec.Struct):
    deployment: Deployment
    remarks: list[Remark] = []


def import_files(paths: Sequence[PathName]) -> Imported:
    """Read scripts. Nothing is executed. Raises ScriptError naming the file."""
    contents: list[tuple[str, str]] = []
    for path in paths:
        try:
            contents.append((name_of(path), read(path, MAX_BYTES).decode("utf-8", "replace")))
        except OSError as error:
            raise ScriptError(f"{path}: {error.strerror or error}") from None
        except FileTooLarge as error:
            raise ScriptError(f"{path}: {error}") from None
    return import_scripts(contents)


def import_scripts(contents: Sequence[tuple[str, str]]) -> Imported:
    """(name, content) of each script -> a deployment and remarks."""
    found = Imported(Deployment())
    servers: list[StartedServer] = []
    benchmarks: list[tuple[Benchmark, Launch]] = []
    prepare: list[str] = []
    unset: list[str] = []
    for name, content in contents:
        try:
            reading = read_isolated(content)
        except ScriptError as error:
            raise ScriptError(f"{name}: {error}") from None
        found.remarks += [
            Remark("not-understood", "", note.text, name, note.line) for note in reading.notes
        ]
        for launch in reachable(reading.launches):
            called = invocation(launch.words)
            if called is None:
                prepare.append(line_of(launch.words))
                continue
            unset += launch.unset
            if called.part == "benchmark":
                benchmarks.append((build_benchmark(called, launch, name, found), launch))
            else:
                servers.append(build_server(called, launch, name, found))
    if not servers and not benchmarks:
        raise ScriptError("no server, router or benchmark command was found in what was read")
    found.deployment = build_deployment(servers, [each for each, _ in unique(benchmarks)])
    found.deployment.prepare = list(dict.fromkeys(line for line in prepare if line))
    found.deployment.unset = sorted(set(unset))
    return found


def line_of(words: Sequence[str]) -> str:
    """A line of preparation; empty for commands that only print or test."""
    if words[0] in REPORTING:
        return ""
    return " ".join(quoted(word) for word in words)


def reachable(launches: Sequence[Launch]) -> list[Launch]:
    """Without what comes only after a server has ended, where the same line is also reached
    otherwise (as a router at the end of a script that every node runs)."""
    free = {launch.line for launch in launches if not launch.behind}
    return [rejoined(each) for each in launches if not each.behind or each.line not in free]


def rejoined(launch: Launch) -> Launch:
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


def build_server(called: Invocation, launch: Launch, name: str, found: Imported) -> StartedServer:
    read = flags_of(called.words, called.part)
    add_remarks(read.remarks, launch, name, found)
    return StartedServer(
        place=(name, launch.line),
        kind="router" if called.part == "router" else kind_of(read.flags),
        program=called.program,
        flags=read.flags,
        environment=launch.environment,
        host=host_of(launch),
    )


def build_benchmark(called: Invocation, launch: Launch, name: str, found: Imported) -> Benchmark:
    read = flags_of(called.words, called.part)
    add_remarks(read.remarks, launch, name, found)
    return Benchmark(program=called.program, flags=read.flags, environment=launch.environment)


def unique(benchmarks: list[tuple[Benchmark, Launch]]) -> list[tuple[Benchmark, Launch]]:
    """One for each line: a script that continues after its servers reaches it in several states."""
    return list({launch.line: (each, launch) for each, launch in reversed(benchmarks)}.values())[
        ::-1
    ]


def add_remarks(remarks: Sequence[Remark], launch: Launch, name: str, found: Imported) -> None:
    for remark in remarks:
        placed = msgspec.structs.replace(remark, file=name, line=launch.line)
        if placed not in found.remarks:
            found.remarks.append(placed)


def host_of(launch: Launch) -> str | None:
    """The machine that the script's comparisons select for this launch."""
    for assumption in launch.assumptions:
        if any(word in assumption.origin for word in HOST_SOURCES):
            return assumption.value
    return None


def build_deployment(servers: list[StartedServer], benchmarks: list[Benchmark]) -> Deployment:
    roles = roles_of(servers)
    shared = shared_environment(role.environment for role in roles.values())
    for role in roles.values():
        role.environment = without(role.environment, shared)
    return Deployment(
        model=Model(path=model_path(roles)),
        environment=shared,
        roles=roles,
        benchmarks=benchmarks,
    )


def model_path(roles: dict[str, Role]) -> str | None:
    for role in roles.values():
        path = value_of(role.flags, "model-path") if role.kind != "router" else None
        if isinstance(path, str):
            return path
    return None


def import_command(words: Sequence[str]) -> Imported:
    """One command line, as typed after `--`. Raises ScriptError."""
    environment: dict[str, str] = {}
    rest = list(words)
    while rest and "=" in rest[0] and rest[0].partition("=")[0].isidentifier():
        name, _, value = rest.pop(0).partition("=")
        environment[name] = value
    launch = Launch(tuple(rest), environment, line=0)
    called = invocation(launch.words)
    if called is None:
        raise ScriptError(f"{shlex.join(words)[:200]!r} starts no server, router or benchmark")
    found = Imported(Deployment())
    if called.part == "benchmark":
        found.deployment = build_deployment([], [build_benchmark(called, launch, "command", found)])
    else:
        found.deployment = build_deployment([build_server(called, launch, "command", found)], [])
    return found
