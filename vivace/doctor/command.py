"""The command: asks every probe, prints worst first, mends what is safe when told to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from vivace.config.process_environment import process_environment
from vivace.doctor import devices, kernel, network, serving, storage
from vivace.doctor.diagnosis import STATES, Diagnosis, Probe, ProbeOptions
from vivace.doctor.system import System
from vivace.errors import CANNOT_START, CannotStart
from vivace.terminal import console_of, print_wrapped, wrapped

NODE: tuple[Probe, ...] = (*devices.PROBES, *kernel.PROBES, *network.PROBES, *storage.PROBES)
"""of a node of a cluster, after those of any machine"""
PLATFORMS = ("auto", "cpu", "cuda", "npu")
COLORS = {
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "unknown": "dim",
    "ok": "green",
}
INDENT = 9
"""columns of the states"""
SCREEN = 8
"""findings: so many are shown whatever they say"""
FOUND_ERRORS = 1


def main(words: Sequence[str]) -> int:
    """0: nothing worse than a warning; 1: errors; 2: bad use.

    A laptop is asked what a server needs there; a node with devices, or one that a deployment is
    for, also what a cluster needs."""
    chosen = parser().parse_args(list(words))
    try:
        if chosen.measure:
            from vivace.doctor.measure import measure

            return measure()
        system = System(environment=process_environment())
        options = probe_options(chosen)
        probes = probes_for(system, chosen)
    except CannotStart as error:
        print_wrapped(f"vivace doctor: {error}")
        return CANNOT_START
    found = diagnose(system, options, probes)
    if chosen.fix:
        told = mended(system, found)
        print_wrapped("\n".join(told) or "nothing to mend that is safe to")
        found = diagnose(system, options, probes)
    if chosen.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        show(found, everything=chosen.all)
    return FOUND_ERRORS if any(each.state == "error" for each in found) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="vivace doctor", description="Is this machine set up to serve? What mends it?"
    )
    made.add_argument(
        "deployment",
        nargs="?",
        type=Path,
        metavar="DEPLOYMENT",
        help="a deployment file: look at its ports and interfaces too",
    )
    made.add_argument(
        "--platform",
        choices=PLATFORMS,
        default="auto",
        help="what it is to serve on: cuda and npu look at the node's settings too, as auto does "
        "where there are such devices",
    )
    made.add_argument(
        "--port", type=int, action="append", default=[], help="one that must be free (30000)"
    )
    made.add_argument("--models", default="", metavar="FOLDER", help="where the weights lie")
    made.add_argument("--fix", action="store_true", help="apply what is safe while things run")
    made.add_argument("--all", action="store_true", help="show what is in order too")
    made.add_argument("--json", action="store_true", help="a list of objects, for programs")
    made.add_argument(
        "--measure", action="store_true", help="measure this CPU and put it into the catalogue"
    )
    return made


def probe_options(chosen: argparse.Namespace) -> ProbeOptions:
    ports, interfaces = list(chosen.port), list[str]()
    wrong = [port for port in ports if not 0 < port < 65536]
    if wrong:
        raise CannotStart(f"--port {wrong[0]}: ports are 1 to 65535")
    if chosen.deployment is not None:
        from vivace.deploy.load_case import Overrides, build_case, open_files

        for server in build_case(open_files([chosen.deployment]), Overrides()).all:
            ports.append(server.number("port") or 30000)
            interfaces.append(server.variable("HCCL_SOCKET_IFNAME"))
    return ProbeOptions(
        ports=tuple(dict.fromkeys(ports)) or (30000,),
        interfaces=tuple(dict.fromkeys(name for name in interfaces if name and "<" not in name)),
        models=chosen.models,
    )


def probes_for(system: System, chosen: argparse.Namespace) -> tuple[Probe, ...]:
    of_a_node = chosen.platform in ("cuda", "npu") or chosen.deployment is not None
    if of_a_node or (chosen.platform == "auto" and devices.present(system)):
        return (*serving.PROBES, *NODE)
    return serving.PROBES


def diagnose(system: System, options: ProbeOptions, probes: Iterable[Probe]) -> list[Diagnosis]:
    """Worst first, else in the order of the probes."""
    found = [diagnosis for probe in probes for diagnosis in probe(system, options)]
    return sorted(found, key=lambda diagnosis: STATES.index(diagnosis.state))


def mended(system: System, found: Iterable[Diagnosis]) -> list[str]:
    """One line for each file that was written, or could not be."""
    told: list[str] = []
    for diagnosis in found:
        for file, content in diagnosis.writes:
            try:
                system.write(file, content)
                told.append(f"{diagnosis.name}: {content} written to {file}")
            except OSError as error:
                told.append(f"{diagnosis.name}: {file}: {error.strerror} (root is needed)")
    return told


def show(found: Sequence[Diagnosis], *, everything: bool) -> None:
    """What is in order only where all of it fits on a screen, or when it is asked for."""
    from rich.text import Text

    out = console_of(sys.stdout)
    everything = everything or len(found) <= SCREEN
    for each in found:
        if each.state == "ok" and not everything:
            continue
        said = Text.assemble((f"{each.name}: ", "bold"), each.found)
        said.append(f"\n{each.why}" if each.why else "")
        lines = said.wrap(out, out.width - INDENT)
        for line in lines:
            line.rstrip()
        for state, line in zip_longest((each.state,), lines, fillvalue=""):
            out.print(Text(f"{state:{INDENT}}", style=COLORS[each.state]) + line)
        if each.mend:
            margin = " " * INDENT
            for line in wrapped(f"{margin}-> {each.mend}", out.width, f"{margin}   "):
                out.print(Text(line, style="green"), soft_wrap=True)
    fine = sum(each.state == "ok" for each in found)
    tail = "" if everything else " (--all shows all)"
    out.print(f"{len(found) - fine} problems, {fine} ok{tail}")
