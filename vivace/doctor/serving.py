"""Probes of what every server needs: Python, torch, the kernels, memory, a model, a port."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from vivace.config.environment import hub_cache
from vivace.doctor.diagnosis import Diagnosis, ProbeOptions
from vivace.doctor.system import System
from vivace.errors import CannotStart
from vivace.hub.cached import EMBEDDED_TITLE, cached_models
from vivace.hub.listing import HubError
from vivace.platforms.cpu import facts
from vivace.platforms.cpu.library import BUILD_COMMAND, StaleKernels

GIB = 1 << 30
OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 12)
TESTED_TORCH = (((2, 7), (2, 7)), ((2, 13), (2, 15)))
"""first and last minor releases of each range that Vivace is tested with (docs/compatibility.md)"""
INSTALL_TORCH = "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
PROCESS_BYTES = 600 << 20
"""bytes of all processes besides weights and KV; measured at rest: half of that"""
MAX_MODELS_SHOWN = 3


def python(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    version = tuple(int(part) for part in platform.python_version_tuple()[:2])
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        yield Diagnosis(name="python", state="ok", found=found)
        return
    tested = " and ".join(f"{major}.{minor}" for major, minor in (OLDEST_PYTHON, NEWEST_PYTHON))
    yield Diagnosis(
        name="python",
        state="note",
        found=found,
        why=f"Vivace is tested with {tested}",
        mend="python3.12 -m venv .venv",
    )


def torch(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    """The release; which platform's extension it goes with is asked where there is a device."""
    version = system.version("torch")
    if version is None:
        why = "the engine computes with it"
        yield Diagnosis(
            name="torch", state="error", found="not installed", why=why, mend=INSTALL_TORCH
        )
        return
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    tested = " and ".join(range_text(*each) for each in TESTED_TORCH)
    if number < TESTED_TORCH[0][0]:
        yield Diagnosis(
            name="torch",
            state="error",
            found=version,
            why=f"it is too old: Vivace is tested with {tested}",
            mend=INSTALL_TORCH,
        )
    elif not any(first <= number <= last for first, last in TESTED_TORCH):
        why = f"Vivace is not tested with it, but with {tested}"
        yield Diagnosis(name="torch", state="note", found=version, why=why)
    else:
        yield Diagnosis(name="torch", state="ok", found=f"{version} (tested: {tested})")


def range_text(first: tuple[int, ...], last: tuple[int, ...]) -> str:
    """`2.13 to 2.15`"""
    return " to ".join(f"{major}.{minor}" for major, minor in dict.fromkeys((first, last)))


def kernels(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    """Which instruction set computes, or why torch's operations do."""
    cpu = f"{facts.model_name(system.root)}, {facts.cores(system.root)} cores"
    try:
        isa = system.isa()
    except StaleKernels as error:
        found = f"of other sources: no server starts ({cpu})"
        yield Diagnosis(
            name="kernels", state="error", found=found, why=str(error), mend=BUILD_COMMAND
        )
    except CannotStart as error:
        yield Diagnosis(
            name="kernels",
            state="warning",
            found=f"none ({cpu})",
            why=str(error),
            mend=f"apt install g++ cmake make, then {BUILD_COMMAND}",
        )
    else:
        yield Diagnosis(name="kernels", state="ok", found=f"built; {isa} runs ({cpu})")


def memory(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    total, available = facts.memory(system.root)
    model = system.embedded_model()
    need = PROCESS_BYTES + (model.stat().st_size if model is not None else 0)
    found = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free"
    wanted = f"the embedded model takes {need / GIB:.1f} GiB and what its KV cache may hold"
    if available >= need:
        yield Diagnosis(name="memory", state="ok", found=f"{found}; {wanted}")
    else:
        mend = "end other programs, or raise the container's limit"
        yield Diagnosis(name="memory", state="error", found=found, why=wanted, mend=mend)


def models(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    embedded = system.embedded_model()
    try:
        cached = cached_models(hub_cache(None, system.environment))
    except HubError as error:
        yield Diagnosis(
            name="models",
            state="warning",
            found=str(error),
            why="models are found there by name",
            mend="HF_HUB_CACHE=FOLDER, one that this user can read",
        )
        return
    pulled = [model.repo_id for model in cached if not model.problem]
    unusable = len(cached) - len(pulled)
    shown = ", ".join(pulled[:MAX_MODELS_SHOWN]) or "none"
    more = f" and {len(pulled) - MAX_MODELS_SHOWN} more" if len(pulled) > MAX_MODELS_SHOWN else ""
    own = EMBEDDED_TITLE if embedded is not None else "none embedded"
    found = f"{own}; pulled: {shown}{more}"
    others = f"; {unusable} that cannot be served (`vivace list` says why)" if unusable else ""
    if embedded is not None or pulled:
        yield Diagnosis(name="models", state="ok", found=found + others)
    else:
        yield Diagnosis(
            name="models",
            state="warning",
            found=f"none on this machine{others}",
            why="`vivace serve` without --model-path serves the embedded one",
            mend="vivace pull",
        )


def port(system: System, options: ProbeOptions) -> Iterator[Diagnosis]:
    """A server of ours that runs is nothing to mend."""
    taken = [number for number in options.ports if system.listens(number)]
    ours = [number for number in taken if system.is_vivace(number)]
    owners = {number: system.port_owner(number) for number in taken}
    others = {number: by for number, by in owners.items() if number not in ours}
    if others:
        listed = ", ".join(f"{n} taken" + (f" by {by}" if by else "") for n, by in others.items())
        who = f"stop who has it: ss -ltnp 'sport = :{next(iter(others))}'"
        yield Diagnosis(
            name="ports",
            state="error",
            found=listed,
            why="a server stops with `port is in use`",
            mend="vivace serve --port NUMBER, or " + ("stop it" if all(others.values()) else who),
        )
    for number in ours:
        by = f", {owners[number]}" if owners[number] else ""
        yield Diagnosis(
            name="ports",
            state="note",
            found=f"{number}: a Vivace server answers there{by}",
            why="another one needs another port",
            mend="vivace serve --port NUMBER",
        )
    if not taken:
        yield Diagnosis(
            name="ports", state="ok", found=f"{', '.join(map(str, options.ports))} free"
        )


PROBES = (python, torch, kernels, memory, models, port)
