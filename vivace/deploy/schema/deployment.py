"""The structs of deployment.yaml. Flags and variables keep the names their programs know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

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
Count = Annotated[int, Meta(ge=1, le=65536)]
Tokens = Annotated[int, Meta(ge=1, le=1 << 26)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class DeploymentError(CannotStart):
    """The file is not a deployment; the text names the file, the key and the remedy."""


class Struct(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Unknown keys are errors; values equal to their default are not written."""


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
    """`device`: one of `vivace deploy hardware`; `cards` of all nodes together; `cards_per_node`
    where it is not the catalogue's."""

    device: str
    cards: Count | None = None
    cards_per_node: Count | None = None


class Difference(Struct):
    """What differs on one node from its role."""

    flags: Flags = {}
    environment: Environment = {}


class Role(Struct):
    """Servers of one kind.

    `nodes`: of one instance; `hosts`: an address for each node, instance after instance;
    `each`: one difference for each node, in the same order. In flags and environment `{host}`
    stands for the node's own address, `{first}` for that of its instance's first node, `{node}`
    for its rank in the instance and `{instance}` for the instance's number.
    """

    kind: Kind
    program: str = "sglang.launch_server"
    instances: Count = 1
    nodes: Count = 1
    hosts: list[str] = []
    flags: Flags = {}
    environment: Environment = {}
    each: list[Difference] = []


class Benchmark(Struct):
    """A load generator's command, with all of its environment: it runs anywhere."""

    program: str = "sglang.bench_serving"
    flags: Flags = {}
    environment: Environment = {}


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


def longest(lengths: int | Lengths | None) -> int | None:
    """The most tokens that prompts or answers have."""
    return lengths.high if isinstance(lengths, Lengths) else lengths


def json_schema() -> dict[str, Any]:
    """The JSON Schema of deployment.yaml for editors, draft 2020-12."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "Vivace deployment", **msgspec.json.schema(Deployment)}
