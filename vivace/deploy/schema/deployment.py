"""The structs of deployment.yaml. Flags and variables keep the names their programs know."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from vivace.config.json_schema import clean_descriptions
from vivace.errors import CannotStart

Scalar = bool | int | float | str | None
FlagValue = Scalar | list[Scalar | list[Scalar]]
"""a switch is `true`; a flag of several words is a list; one that is repeated, each time with
several words (a router's --prefill) is a list of lists"""
Flags = dict[str, FlagValue]
"""by name without the two leading dashes; a name that begins with a dash is kept as typed"""
Environment = dict[str, str]

Kind = Literal["mixed", "prefill", "decode", "encoder", "router"]
KINDS: tuple[Kind, ...] = ("mixed", "prefill", "decode", "encoder", "router")
DEVICES = (
    "one of `vivace deploy hardware`, which this machine's CPUs join with `vivace doctor "
    "--measure`; else leave `hardware` out"
)
Count = Annotated[int, Meta(ge=1, le=65536)]
Tokens = Annotated[int, Meta(ge=1, le=1 << 26)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


ROLE_NAME = re.compile(r"\w[\w.-]{0,62}")
"""a role's: files, services and comments of scripts bear it"""
MAX_ROLES = 256
MAX_SERVERS = 4096
"""on all nodes: each is written out and judged"""
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class DeploymentError(CannotStart):
    """The file is not a deployment; the text names the file, the key and the remedy."""


class Struct(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Unknown keys are errors; values equal to their default are not written."""


def refuse_names(names: Iterable[str], allowed: re.Pattern[str], what: str) -> None:
    """Raises ValueError for a name that is none where it would be written."""
    wrong = next((name for name in names if not allowed.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(f"{wrong[:80]!r} is no name of {what}")


def refuse_variables(names: Iterable[str]) -> None:
    refuse_names(names, VARIABLE_NAME, "a variable: letters, digits and _")


class Model(Struct):
    """`path`: what --model-path says; `name`: one of `vivace deploy models`, for its facts;
    `config`: a config.json to read them from instead; `quantization`: of the weights, as
    bf16, w8a8, w4a8; `draft`: a draft model's name."""

    path: str | None = None
    name: str | None = None
    config: str | None = None
    quantization: str | None = None
    draft: str | None = None


class Hardware(Struct):
    """`device`: of what `cards` are counted, of all nodes together; `cards_per_node` where it is
    not the catalogue's."""

    device: Annotated[str, Meta(description=DEVICES)]
    cards: Count | None = None
    cards_per_node: Count | None = None


class Difference(Struct):
    """What differs on one node from its role."""

    flags: Flags = {}
    environment: Environment = {}

    def __post_init__(self) -> None:
        refuse_variables(self.environment)


class Role(Struct):
    """Servers of one kind.

    `nodes`: of one instance; `hosts`: an address for each node, instance after instance;
    `each`: one difference for each node, in the same order; with the flag use-ray both may name
    the first nodes only. In flags and environment `{host}` stands for the node's own address,
    `{first}` for that of its instance's first node, `{node}` for its rank in the instance and
    `{instance}` for the instance's number.
    """

    kind: Kind
    program: str = "sglang.launch_server"
    instances: Count = 1
    nodes: Count = 1
    hosts: list[str] = []
    flags: Flags = {}
    environment: Environment = {}
    each: list[Difference] = []

    def __post_init__(self) -> None:
        refuse_variables(self.environment)


class Benchmark(Struct):
    """A load generator's command, with all of its environment: it runs anywhere."""

    program: str = "sglang.bench_serving"
    flags: Flags = {}
    environment: Environment = {}

    def __post_init__(self) -> None:
        refuse_variables(self.environment)


class Lengths(Struct):
    """Prompt or answer lengths in tokens, uniform between `low` and `high`."""

    low: Tokens
    high: Tokens

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


class Workload(Struct):
    """The load the deployment is for. `rate` in requests per second; `prefix_share`: the part of
    a prompt that others have in common with it."""

    input: Tokens | Lengths | None = None
    output: Tokens | Lengths | None = None
    concurrency: Count | None = None
    rate: Positive | None = None
    requests: Count | None = None
    prefix_share: Share = 0.0


class Targets(Struct):
    """What must be reached, in milliseconds: time to the first token, time per further token."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None


class Deployment(Struct):
    """One deployment. `engine`: sglang, sglang==0.5.10 or vivace; `include`: a file whose values
    hold where this one says nothing; `prepare`: lines of shell each node runs before it starts
    something (comments of people, not run by Vivace)."""

    name: str = ""
    include: str | None = None
    engine: str = "sglang"
    model: Model = msgspec.field(default_factory=Model)
    hardware: Hardware | None = None
    prepare: list[str] = []
    unset: list[str] = []
    environment: Environment = {}
    roles: dict[str, Role] = {}
    benchmarks: list[Benchmark] = []
    workload: Workload | None = None
    targets: Targets | None = None

    def __post_init__(self) -> None:
        refuse_variables([*self.environment, *self.unset])
        if len(self.roles) > MAX_ROLES:
            raise ValueError(f"{len(self.roles)} roles: at most {MAX_ROLES} are read")
        if self.servers > MAX_SERVERS:
            raise ValueError(f"{self.servers} servers: at most {MAX_SERVERS} are read")
        what = "a role: up to 63 letters, digits and any of . _ - behind the first"
        refuse_names(self.roles, ROLE_NAME, what)

    @property
    def servers(self) -> int:
        return sum(role.instances * role.nodes for role in self.roles.values())


def longest(lengths: int | Lengths | None) -> int | None:
    """The most tokens that prompts or answers have."""
    return lengths.high if isinstance(lengths, Lengths) else lengths


def json_schema() -> dict[str, Any]:
    """The JSON Schema of deployment.yaml for editors, draft 2020-12."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = clean_descriptions(msgspec.json.schema(Deployment))
    return {"$schema": dialect, "title": "Vivace deployment", **schema}
