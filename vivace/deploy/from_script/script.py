"""`vivace deploy import`: launch scripts as people have them -> one deployment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from vivace.config.releases.tables import releases
from vivace.deploy.files import read_beside
from vivace.deploy.from_script.config_file import with_config
from vivace.deploy.from_script.container import Container, in_container
from vivace.deploy.from_script.flags import Remark, parse_flags
from vivace.deploy.from_script.formats import read_containers
from vivace.deploy.from_script.isolated import read_isolated
from vivace.deploy.from_script.launches import commands, find_host
from vivace.deploy.from_script.programs import VLLM, Invocation, invocation, other_engine
from vivace.deploy.from_script.roles import (
    LoadedDeployment,
    RoleGroups,
    StartedServer,
    TargetPort,
    build_roles,
    flag_value,
    model_name,
    server_kind,
    shared_environment,
    without,
)
from vivace.deploy.from_script.undefined import missing_model, undefined_variables
from vivace.deploy.locations import COMMAND, Location, Sources
from vivace.deploy.quoting import quote
from vivace.deploy.schema.deployment import Benchmark, Deployment, Flags, Model, Role
from vivace.deploy.shell.interpreter import Follow
from vivace.deploy.shell.reader import MAX_BYTES, ScriptError, no_file
from vivace.deploy.shell.state import Launch
from vivace.errors import nearest
from vivace.files import FileTooLarge, PathName, read_file

PREPARING = frozenset(
    """sysctl source . ulimit modprobe cpupower swapoff npu-smi nvidia-smi hccn_tool echo
    printf""".split()
)
"""commands that prepare a node for servers"""
REPORTING = frozenset("printf [ [[ test true false : sleep wait".split())
MENTIONING = frozenset(
    """pkill kill killall pgrep ps grep egrep echo printf watch tail cat ls rm cp mv which pip pip3
    curl wget git sed awk chmod tee docker""".split()
)
"""programs whose arguments may name a server that they do not start"""
STARTS = (
    "sglang.launch_server",
    "sglang_router",
    "launch_server.py",
    "vivace serve",
    "sglang serve",
)
REPEATING = frozenset("parallel xargs pdsh pssh clush dsh ansible".split())
"""programs that run a command many times, or for each line of a list"""
MAX_WRAPPER = 64
"""words of a wrapper and its options"""
MAX_SHOWN = 120  # characters of a line that was not understood, where nothing was
PLAIN_LINE = re.compile(r"[\w\s./*=:|>-]+")


class NothingStarted(ScriptError):
    """What was read starts no server, router or benchmark. `overlooked`: lines that may start one
    in a way that is not understood, or one of another engine."""

    def __init__(self, remarks: Sequence[Remark]) -> None:
        others = [each for each in remarks if each.rule == "other-engine"]
        telling = others or [each for each in remarks if each.rule != "left-out"]
        self.overlooked = tuple(map(show, telling[:5]))
        left = [each for each in remarks if each.rule == "left-out"]
        what = "no server, router or benchmark command was found in what was read"
        super().__init__(
            show(others[0]) if others else "; ".join([what, *map(show, [*telling, *left][:5])])
        )


def show(remark: Remark) -> str:
    return f"{remark.file}:{remark.line}: {remark.text[:MAX_SHOWN]}"


class DeploymentBuilder(msgspec.Struct):
    """What scripts start and do, before it becomes a deployment."""

    servers: list[StartedServer] = []
    benchmarks: dict[Location, Benchmark] = {}
    prepare: list[str] = []
    unset: list[str] = []
    remarks: list[Remark] = []
    texts: dict[str, str] = {}
    target_ports: list[TargetPort] = []
    shared: set[str] = set()
    """networks in which something else runs too"""
    releases: list[str] = []
    """of SGLang, that images name"""

    def remark(self, rule: str, flag: str, text: str, place: Location) -> None:
        self.place_remark(Remark(rule, flag, text), place)

    def place_remark(self, remark: Remark, place: Location) -> None:
        made = remark
        if not made.line:
            made = msgspec.structs.replace(made, file=place.file, line=place.line, end=place.end)
        if made not in self.remarks:
            self.remarks.append(made)


def import_files(
    paths: Sequence[PathName], given: Mapping[str, bytes] = MappingProxyType({})
) -> LoadedDeployment:
    """Read scripts; `given`: what was read before, by path. Nothing is executed. Raises ScriptError
    naming the file."""
    found = DeploymentBuilder()
    for path in map(str, paths):
        try:
            raw = given[path] if path in given else read_file(path, MAX_BYTES)
            if b"\0" in raw:
                raise ScriptError(
                    f"{path}: no text: line {raw[: raw.index(0)].count(10) + 1} has a NUL"
                )
            content = raw.decode("utf-8-sig", "replace")
        except OSError as error:
            raise ScriptError(f"{path}: {error.strerror or error}") from None
        except FileTooLarge as error:
            raise ScriptError(f"{path}: {error}") from None

        def follow(name: str, script: str = path) -> tuple[str, str] | None:
            return read_beside(script, name, MAX_BYTES)

        collect_text(path, content, found, follow)
    return finish_import(found, ", ".join(map(str, paths)))


def import_scripts(contents: Sequence[tuple[str, str]]) -> LoadedDeployment:
    """(name, content) of each script -> a deployment and remarks."""
    found = DeploymentBuilder()
    for name, content in contents:
        collect_text(name, content, found)
    return finish_import(found, ", ".join(name for name, _ in contents))


def collect_text(
    name: str, content: str, found: DeploymentBuilder, follow: Follow = no_file
) -> None:
    """A script, or manifests with the commands of containers. Raises ScriptError."""
    containers = read_containers(name, content, follow)
    if containers is None:
        collect(name, content, found, follow)
        return
    for each in containers:
        collect(name, each.script, found, follow if each.local else no_file, within=each)
        found.texts |= each.files
        for remark in each.remarks:
            found.place_remark(remark, each.place)
        found.target_ports += each.target_ports
        if not each.alone:
            found.shared.add(each.network)
        if each.release in releases():
            found.releases.append(each.release)
        elif each.release:
            text = f"the image is of SGLang {each.release}, which is not known"
            text += nearest(each.release, releases(), 0.75)
            found.remark("unknown-release", "image", text, each.place)
    found.texts[name] = content


def collect(
    name: str,
    content: str,
    found: DeploymentBuilder,
    follow: Follow = no_file,
    within: Container | None = None,
) -> None:
    """What one script, or a container, starts. Raises ScriptError naming it."""
    try:
        reading = read_isolated(content, follow)
    except ScriptError as error:
        raise ScriptError(f"{name}: {error}") from None
    found.texts |= {name: content, **reading.files}
    for note in reading.notes:
        place = within.place if within else Location(note.file or name, note.line)
        found.remark("not-understood", "", note.text, place)
    for launch in commands(reading.launches):
        place = Location(launch.file or name, launch.line, launch.end)
        if within is not None:
            place = place if launch.file else within.place
            host = launch.placement.host or within.host
            placement = msgspec.structs.replace(
                launch.placement, contained=within.contained, host=host
            )
            launch = msgspec.structs.replace(
                launch, placement=placement, round=within.pod, behind=0
            )
        called = invocation(launch.words) or wrapped_invocation(launch.words)
        if called is None:
            whole = within is not None and within.script.endswith(shlex.join(launch.words) + "\n")
            if other_command(launch, place, found, whole) and within is not None:
                found.shared.add(within.network)
            continue
        found.unset += launch.unset
        if called.part == "benchmark":
            found.benchmarks.setdefault(place, build_benchmark(called, launch, place, found))
        else:
            machine = name if within is None else within.machine
            called, unread = with_config(called, follow, found.texts)
            if unread:
                found.remark("not-understood", "--config", unread, place)
            server = build_server(called, launch, place, machine, found)
            if within is not None:
                server = in_container(within, server, called.program)
            found.servers.append(server)
            for remark in undefined_variables(server, called.words, reading.variables):
                found.place_remark(remark, server.place)


def finish_import(found: DeploymentBuilder, file: str) -> LoadedDeployment:
    """Raises NothingStarted; ScriptError for more than one deployment may have."""
    if not found.servers and not found.benchmarks:
        raise NothingStarted(found.remarks)
    groups = build_roles(found.servers)
    for server, condition in groups.chosen:
        text = f"what runs depends on {condition or 'the machine'}: read as if it were true"
        found.remark("not-understood", "", text, server.place)
    try:
        deployment = build_deployment(groups, list(found.benchmarks.values()))
    except ValueError as error:
        remedy = "; check parts of it alone" if len(groups.roles) > 1 else ""
        raise ScriptError(f"{file}: {error}{remedy}") from None
    if deployment.engine == "sglang" and len(set(found.releases)) == 1:
        deployment.engine = f"sglang=={found.releases[0]}"
    started = tuple(each for members in groups.started.values() for each in members)
    if deployment.model.path is None and len(models := server_models(groups.roles)) > 1:
        text = f"servers of several models ({', '.join(models)}): what needs one is not checked"
        found.remark("not-understood", "--model-path", text, started[0].place)
    deployment.prepare = list(dict.fromkeys(filter(None, found.prepare)))
    deployment.unset = sorted(set(found.unset))
    places = {
        role: tuple(each.place for each in members) for role, members in groups.started.items()
    }
    if found.benchmarks:
        places["benchmark"] = tuple(found.benchmarks)
    sources = Sources(found.texts, places)
    remarks, ports = tuple(found.remarks), tuple(found.target_ports)
    return LoadedDeployment(
        deployment, remarks, file, sources, started, ports, frozenset(found.shared)
    )


def wrapped_invocation(words: Sequence[str]) -> Invocation | None:
    """Of a program that nobody here knows and that is given a server's command to run."""
    if words[0].rsplit("/", 1)[-1] in MENTIONING | REPEATING:
        return None
    found = (invocation(words[at:]) for at in range(1, min(len(words), MAX_WRAPPER)))
    return next((each for each in found if each is not None), None)


def other_command(launch: Launch, place: Location, found: DeploymentBuilder, whole: bool) -> bool:
    """A line of preparation, a server started in a way that is not understood, or nothing of a
    deployment's. Whether it may listen on a port. `whole`: it is all that a container is given."""
    line, program = " ".join(launch.words), launch.words[0].rsplit("/", 1)[-1]
    if whole and launch.words[0].startswith("-"):
        text = f"what runs is the image's own program, which is not known: {line[:80]}"
        found.remark("not-understood", "", text, place)
    elif launch.words[0].startswith("--"):
        text = f"{line[:80]!r} is a command of its own: the line above lacks its backslash"
        found.remark("broken-line", launch.words[0], text, place)
    elif engine := other_engine(launch.words):
        text = f"a server of {engine}: only those of SGLang, Vivace and vLLM are read"
        found.remark("other-engine", "", text, place)
    elif any(word in line for word in STARTS) and program not in MENTIONING:
        text = f"a server started in a way that is not understood: {line[:200]}"
        found.remark("not-understood", "", text, place)
    elif program in PREPARING:
        found.prepare.append(preparation_line(launch.words))
        return False
    elif program not in REPORTING:
        found.remark("left-out", "", f"not a part of the deployment: {line[:120]}", place)
    return program not in REPORTING


def preparation_line(words: Sequence[str]) -> str:
    """A line of preparation; empty for what only prints."""
    if words[0] in ("echo", "printf"):
        line = " ".join(words)
        settings = any(word.startswith(("/sys/", "/proc/")) for word in words)
        return line if settings and PLAIN_LINE.fullmatch(line) else ""
    return " ".join(quote(word) for word in words)


def build_server(
    called: Invocation, launch: Launch, place: Location, script: str, found: DeploymentBuilder
) -> StartedServer:
    written = called
    if called.program in VLLM:
        called = from_vllm(called, launch, place, found)
    read = parse_flags(called.words, called.part)
    for remark in (*read.remarks, *missing_model(written, read.flags, launch_text(place, found))):
        found.place_remark(remark, place)
    return StartedServer(
        place=place,
        kind="router" if called.part == "router" else server_kind(read.flags),
        program=called.program,
        flags=read.flags,
        environment=launch.environment,
        host=find_host(launch),
        round=launch.round,
        script="" if launch.behind or "<" in launch.placement.host else script,
        paths=launch.paths,
        stops=launch.stops,
        tasks=launch.placement.tasks,
        contained=launch.placement.contained,
        published=launch.placement.published,
        conditions=tuple(each.origin for each in launch.assumptions),
        again=next_flags(launch),
    )


def launch_text(place: Location, found: DeploymentBuilder) -> str:
    lines = found.texts.get(place.file, "").splitlines()
    return "\n".join(lines[max(0, place.line - 1) : place.end])


def next_flags(launch: Launch) -> Flags:
    """In the next round of its loop."""
    called = invocation(launch.again)
    return {} if called is None else parse_flags(called.words, called.part).flags


def from_vllm(
    called: Invocation, launch: Launch, place: Location, found: DeploymentBuilder
) -> Invocation:
    """The same server as SGLang's, with a remark about every word that has none there."""
    from vivace.deploy.from_script.vllm import DEFAULTS, SERVER, translate

    made = translate(called.words, list(launch.environment))
    mapped = ", ".join(f"{theirs} is {ours}" for theirs, ours in made.mapped)
    text = "a server of vLLM, read as one of SGLang with the same meaning"
    found.remark("from-vllm", "", f"{text}: {mapped}" if mapped else text, place)
    for flag, why in made.left:
        found.remark("not-translated", flag, f"{flag} of vLLM is not translated: {why}", place)
    own = [word for pair in DEFAULTS.items() if pair[0] not in made.words for word in pair]
    return Invocation("server", SERVER, (*made.words, *own))


def build_benchmark(
    called: Invocation, launch: Launch, place: Location, found: DeploymentBuilder
) -> Benchmark:
    read = parse_flags(called.words, called.part)
    for remark in read.remarks:
        found.place_remark(remark, place)
    return Benchmark(program=called.program, flags=read.flags, environment=launch.environment)


def build_deployment(groups: RoleGroups, benchmarks: list[Benchmark]) -> Deployment:
    roles = groups.roles
    shared = shared_environment(role.environment for role in roles.values())
    for role in roles.values():
        role.environment = without(role.environment, shared)
    ours = [role.program.startswith("vivace") for role in roles.values() if role.kind != "router"]
    return Deployment(
        engine="vivace" if ours and all(ours) else "sglang",
        model=Model(path=model_path(roles)),
        environment=shared,
        roles=roles,
        benchmarks=benchmarks,
    )


def model_path(roles: Mapping[str, Role]) -> str | None:
    """What every server loads; None where they load several models."""
    paths = server_models(roles)
    return paths[0] if len(set(map(model_name, paths))) == 1 else None


def server_models(roles: Mapping[str, Role]) -> list[str]:
    """The model paths of servers, in their order; an unknown one only where all are."""
    servers = [role for role in roles.values() if role.kind != "router"]
    paths = dict.fromkeys(flag_value(role.flags, "model-path") for role in servers)
    found = [path for path in paths if isinstance(path, str)]
    return [path for path in found if "<" not in path] or found[:1]


def import_command(words: Sequence[str]) -> LoadedDeployment:
    """One command line, as typed after `--`. Raises ScriptError."""
    found, rest, assigned = DeploymentBuilder(), list(words), dict[str, str]()
    while rest and "=" in rest[0] and rest[0].partition("=")[0].isidentifier():
        name, _, value = rest.pop(0).partition("=")
        assigned[name] = shlex.quote(value)
    assignments = [f"{name}={value}" for name, value in assigned.items()]
    collect(COMMAND, " ".join([*assignments, shlex.join(rest)]), found)
    if not found.servers and not found.benchmarks:
        said = f"{shlex.join(words)[:200]!r} starts no server, router or benchmark"
        raise ScriptError(f"{said}; begin it with `vivace serve` or sglang.launch_server")
    return finish_import(found, COMMAND)
