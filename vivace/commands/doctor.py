"""The command: runs every probe, prints the worst first, and with --fix applies what is safe."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec

from vivace.arguments import ArgumentParser, named_path
from vivace.config.process_environment import process_environment
from vivace.doctor import devices, linux, network, serving, storage
from vivace.doctor.diagnosis import STATES, Diagnosis, Probe, ProbeOptions
from vivace.doctor.system import System
from vivace.errors import CannotStart, exit_code
from vivace.files import check_folder
from vivace.terminal import make_console, print_wrapped, wrap_line

CLUSTER_PROBES: tuple[Probe, ...] = (
    *devices.PROBES,
    *linux.PROBES,
    *network.PROBES,
    *storage.PROBES,
)
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
MAX_SHORT_LIST = 8
"""findings: so many are shown whatever they say"""
FOUND_ERRORS = 1


def main(words: Sequence[str]) -> int:
    """0: nothing worse than a warning; 1: errors; 2: bad use.

    A laptop is asked what a server needs there; a node with devices, or one that a deployment is
    for, also what a cluster needs."""
    chosen = parser().parse_args(list(words))
    return exit_code("vivace doctor", lambda: run_probes(chosen))


def run_probes(chosen: argparse.Namespace) -> int:
    if chosen.measure:
        from vivace.doctor.measure import measure

        return measure()
    system = System(environment=process_environment())
    options = probe_options(chosen)
    probes = probes_for(system, chosen)
    found = diagnose(system, options, probes)
    if chosen.fix:
        lines = apply_fixes(system, found)
        print_wrapped("\n".join(lines) or "nothing to fix")
        found = diagnose(system, options, probes)
    if chosen.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        show(found, everything=chosen.all)
    return FOUND_ERRORS if any(each.state == "error" for each in found) else 0


def parser() -> argparse.ArgumentParser:
    arguments = ArgumentParser(
        prog="vivace doctor",
        description="Check that this machine is ready to serve, and how to fix it.",
    )
    arguments.add_argument(
        "deployment",
        nargs="?",
        type=named_path,
        metavar="DEPLOYMENT",
        help="a deployment file: look at its ports and interfaces too",
    )
    arguments.add_argument(
        "--platform",
        choices=PLATFORMS,
        default="auto",
        help="what it is to serve on: cuda and npu look at the node's settings too, as auto does "
        "where there are such devices",
    )
    arguments.add_argument(
        "--port", type=int, action="append", default=[], help="one that must be free (30000)"
    )
    arguments.add_argument("--models", default="", metavar="FOLDER", help="where the weights lie")
    arguments.add_argument("--fix", action="store_true", help="apply what is safe while things run")
    arguments.add_argument("--all", action="store_true", help="show what is ok too")
    arguments.add_argument("--json", action="store_true", help="a list of objects, for programs")
    arguments.add_argument(
        "--measure", action="store_true", help="measure this CPU and put it into the catalogue"
    )
    return arguments


def probe_options(chosen: argparse.Namespace) -> ProbeOptions:
    ports, interfaces = list(chosen.port), list[str]()
    wrong = [port for port in ports if not 0 < port < 65536]
    if wrong:
        raise CannotStart(f"--port {wrong[0]}: ports are 1 to 65535")
    if chosen.models:
        check_folder(chosen.models)
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
    is_node = chosen.platform in ("cuda", "npu") or chosen.deployment is not None
    if is_node or (chosen.platform == "auto" and devices.is_present(system)):
        return (*serving.PROBES, *CLUSTER_PROBES)
    return serving.PROBES


def diagnose(system: System, options: ProbeOptions, probes: Iterable[Probe]) -> list[Diagnosis]:
    """Worst first, else in the order of the probes."""
    found = [diagnosis for probe in probes for diagnosis in probe(system, options)]
    return sorted(found, key=lambda diagnosis: STATES.index(diagnosis.state))


def apply_fixes(system: System, found: Iterable[Diagnosis]) -> list[str]:
    """One line for each file that was written, or could not be."""
    lines: list[str] = []
    for diagnosis in found:
        for file, content in diagnosis.writes:
            try:
                system.write(file, content)
                lines.append(f"{diagnosis.name}: {content} written to {file}")
            except OSError as error:
                lines.append(f"{diagnosis.name}: {file}: {error.strerror} (root is needed)")
    return lines


def show(found: Sequence[Diagnosis], *, everything: bool) -> None:
    """Findings that are ok only where all fit on a screen, or with --all."""
    from rich.text import Text

    out = make_console(sys.stdout)
    everything = everything or len(found) <= MAX_SHORT_LIST
    for each in found:
        if each.state == "ok" and not everything:
            continue
        text = Text.assemble((f"{each.name}: ", "bold"), each.found)
        text.append(f"\n{each.why}" if each.why else "")
        lines = text.wrap(out, out.width - INDENT)
        for line in lines:
            line.rstrip()
        for state, line in zip_longest((each.state,), lines, fillvalue=""):
            out.print(Text(f"{state:{INDENT}}", style=COLORS[each.state]) + line)
        if each.mend:
            margin = " " * INDENT
            for line in wrap_line(f"{margin}-> {each.mend}", out.width, f"{margin}   "):
                out.print(Text(line, style="green"), soft_wrap=True)
    tail = "" if everything else " (--all shows all)"
    out.print(count_text(found) + tail)


def count_text(found: Sequence[Diagnosis]) -> str:
    """Notes, and what a probe could not tell, are no problems, and not ok either."""
    counts = {state: sum(each.state == state for each in found) for state in STATES}
    problems, notes = counts["error"] + counts["warning"], counts["note"]
    parts = [f"{problems} {'problem' if problems == 1 else 'problems'}"]
    parts += [f"{notes} {'note' if notes == 1 else 'notes'}"] if notes else []
    parts += [f"{counts['unknown']} unknown"] if counts["unknown"] else []
    return ", ".join([*parts, f"{counts['ok']} ok"])
