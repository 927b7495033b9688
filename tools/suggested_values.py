"""Writes the comparison of suggested and published values into docs/deployments.md.

`python tools/suggested_values.py`: each configuration of tests/deploy/published loses every
value that `vivace check --suggest` can set, and what it suggests then is put beside what was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from vivace.deploy.case import Case
from vivace.deploy.load_case import LoadedDeployment, Overrides, build_case, open_files
from vivace.deploy.schema.deployment import Deployment, Role
from vivace.deploy.server_plan import DISPATCH, ServerPlan
from vivace.deploy.suggest import suggest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "deployments.md"
PUBLISHED = ROOT / "tests" / "deploy" / "published"
BEGIN, END = "<!-- suggested values: begin -->\n", "<!-- suggested values: end -->\n"
FLAGS = ("mem-fraction-static", "max-running-requests", "cuda-graph-bs", "cuda-graph-max-bs",
         "chunked-prefill-size", "max-prefill-tokens")  # fmt: skip
VARIABLES = ("HCCL_BUFFSIZE", DISPATCH)
CLOSE = 0.05
"""how far a share may be from the published one"""


class Compared(msgspec.Struct, frozen=True):
    """A role: its load, and (suggested, published) values; None: not set."""

    name: str
    role: str
    concurrency: int | None
    share: tuple[float | None, float | None]
    running: tuple[int | None, int | None]
    dispatch: tuple[int | None, int | None]
    buffer: tuple[int | None, int | None]
    decodes: bool
    needed: int | None
    """dispatch tokens of the published flags"""

    @property
    def close(self) -> bool:
        suggested, published = self.share
        return suggested is not None and published is not None and (
            abs(suggested - published) <= CLOSE + 1e-9
        )  # fmt: skip

    @property
    def covers(self) -> bool:
        return (self.running[0] or 0) >= (self.concurrency or 0)


def stripped(deployment: Deployment) -> Deployment:
    """Without everything that can be suggested."""

    def without(role: Role) -> Role:
        flags = {name: value for name, value in role.flags.items() if name not in FLAGS}
        return replace(role, flags=flags, environment=kept(role.environment))

    def kept(variables: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name not in VARIABLES}

    roles = {name: without(role) for name, role in deployment.roles.items()}
    return replace(deployment, roles=roles, environment=kept(deployment.environment))


def compared() -> Iterator[Compared]:
    for file in sorted(PUBLISHED.glob("*.yaml")):
        loaded = open_files([file])
        before = build_case(loaded, Overrides())
        bare = LoadedDeployment(stripped(loaded.deployment), (), str(file))
        after = build_case(bare, Overrides())
        for server in before.servers:
            yield comparison(file.stem, before, server, suggested(after, server.name))


def suggested(case: Case, role: str) -> dict[str, float]:
    return {
        each.name: float(each.value)
        for each in suggest(case)
        if each.role == role and not isinstance(each.value, list)
    }


def comparison(name: str, case: Case, server: ServerPlan, values: dict[str, float]) -> Compared:
    def count(key: str) -> int | None:
        return int(values[key]) if key in values else None

    share = server.value("mem_fraction_static")
    concurrency = case.load.concurrency
    return Compared(
        name=name,
        role=server.name,
        concurrency=None if concurrency is None else -(-concurrency // server.role.instances),
        share=(values.get("mem-fraction-static"), share),
        running=(count("max-running-requests"), server.running),
        dispatch=(count(DISPATCH), server.int_variable(DISPATCH)),
        buffer=(count("HCCL_BUFFSIZE"), server.int_variable("HCCL_BUFFSIZE")),
        decodes=server.decodes,
        needed=server.dispatch_tokens if server.decodes and server.expert_mode else None,
    )


def table(rows: list[Compared]) -> str:
    def pair(values: tuple[float | None, float | None]) -> str:
        return " / ".join("-" if value is None else f"{value:g}" for value in values)

    head = [
        "configuration, role",
        "load",
        "mem-fraction",
        "max-running",
        "dispatch",
        "HCCL_BUFFSIZE",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        far = "" if row.close else " far"
        cells = [f"{row.name}, {row.role}", str(row.concurrency), pair(row.share) + far]
        cells += [pair(row.running), pair(row.dispatch), pair(row.buffer)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def summary(rows: list[Compared]) -> str:
    decoding = [row for row in rows if row.decodes]
    stated = [row for row in decoding if row.dispatch[1] is not None]
    tight = [row for row in stated if row.dispatch[1] == row.needed]
    exact = [row for row in tight if row.dispatch[0] == row.dispatch[1]]
    return (
        f"Suggested / published values ({len(rows)} roles, a load per instance). Within {CLOSE} of "
        f"the published memory share: {sum(row.close for row in rows)}. Limits that cover the "
        f"load: {sum(row.covers for row in decoding)} of {len(decoding)} that decode. Of "
        f"{len(stated)} published dispatch limits {len(tight)} are what the published flags send, "
        f"and {len(exact)} of those are suggested.\n"
    )


def section() -> str:
    rows = list(compared())
    return f"{summary(rows)}\n{table(rows)}"


def with_section(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{section()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_section(PAGE.read_text()))
