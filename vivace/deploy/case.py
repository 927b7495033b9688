"""What rules look at: a deployment, its hardware, its model and its load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from vivace.deploy.catalogue.hardware import Device
from vivace.deploy.catalogue.models import DescribedModel, names_release
from vivace.deploy.from_script.flags import Remark
from vivace.deploy.from_script.programs import default_port
from vivace.deploy.from_script.roles import StartedServer, TargetPort
from vivace.deploy.locations import Sources
from vivace.deploy.schema.deployment import Benchmark, Deployment, Targets, Workload, longest
from vivace.deploy.schema.nodes import expand_nodes
from vivace.deploy.server_plan import ServerPlan, UnknownValue, unknown
from vivace.deploy.startup import StartFacts
from vivace.deploy.target import Target
from vivace.models.architecture import Architecture

BACKENDS = ("attention_backend", "moe_a2a_backend", "disaggregation_transfer_backend")


ASCEND = ("ASCEND_", "SGLANG_NPU_", "PYTORCH_NPU_", "HCCL_BUFFSIZE", "TASK_QUEUE_ENABLE")
"""beginnings of variables that only Ascend's software reads"""


class BenchmarkCommand(msgspec.Struct, frozen=True):
    """A benchmark and the values of its flags."""

    benchmark: Benchmark

    def value(self, name: str) -> Any:
        return self.benchmark.flags.get(name)

    def number(self, *names: str) -> float | None:
        """The first of these flags that holds a positive number."""
        for name in names:
            value = self.value(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return value
        return None

    def integer(self, *names: str) -> int | None:
        found = self.number(*names)
        return None if found is None else int(found)

    @property
    def load(self) -> RequestLoad:
        return RequestLoad(
            input=self.integer("random-input-len", "random-input"),
            output=self.integer("random-output-len", "random-output"),
            concurrency=self.integer("max-concurrency", "-max-concurrency"),
            requests=self.integer("num-prompts", "num-prompt"),
        )


class RequestLoad(msgspec.Struct, frozen=True):
    """Longest input and output in tokens, and concurrent requests."""

    input: int | None = None
    output: int | None = None
    concurrency: int | None = None
    requests: int | None = None


def names_ascend(server: ServerPlan) -> bool:
    """Whether a backend, a form of weights or a variable is named that only Ascend has."""
    named = any("ascend" in str(server.given.get(name, ("", ""))[1]) for name in BACKENDS)
    modelslim = server.given.get("quantization", ("", ""))[1] == "modelslim"
    return named or modelslim or any(name.startswith(ASCEND) for name in server.environment)


class Case(msgspec.Struct, frozen=True, dict=True):
    """One deployment, read for rules."""

    deployment: Deployment
    file: str
    target: Target
    device: Device | None = None
    model: Architecture | None = None
    described: DescribedModel | None = None
    """the same model"""
    model_guessed: bool = False
    """whether it is not named, but taken from a path that resembles its name"""
    remarks: Sequence[Remark] = ()
    sources: Sources = Sources()
    launches: tuple[StartedServer, ...] = ()
    """processes as scripts start them; empty for a deployment file"""
    target_ports: tuple[TargetPort, ...] = ()
    shared: frozenset[str] = frozenset()
    """networks in which something else runs too"""

    @cached_property
    def all(self) -> tuple[ServerPlan, ...]:
        return tuple(
            ServerPlan(
                name,
                role,
                {**self.deployment.environment, **role.environment},
                tuple(expand_nodes(self.deployment, role)),
                self.target.engine == "vivace",
            )
            for name, role in self.deployment.roles.items()
        )

    @cached_property
    def processes(self) -> tuple[StartedServer, ...]:
        """Every process, before what is alike is seen as one role."""
        return self.launches or tuple(
            StartedServer(
                place=self.sources.role_place(server.name),
                kind=server.role.kind,
                program=server.role.program,
                flags=node.flags,
                environment=node.environment,
                host=node.host,
                instance=f"{server.name} {node.instance}",
            )
            for server in self.all
            for node in server.nodes
        )

    def together(self, host: str) -> bool:
        """Whether scripts start all servers of a host at once: by ssh, or in the background."""
        found = [each for each in self.launches if each.host == host]
        return bool(found) and all(each.script for each in found)

    def of(self, *kinds: str) -> tuple[ServerPlan, ...]:
        return tuple(server for server in self.all if server.kind in kinds)

    def ports(self, *kinds: str) -> set[int]:
        """On which the first nodes of these kinds answer requests. Raises UnknownValue."""
        first = [
            (node.flags.get("port") or default_port(each.role.program))
            for each in self.of(*kinds)
            for node in each.nodes
            if node.rank == 0
        ]
        if any(map(unknown, first)):
            raise UnknownValue("--port")
        return {port for port in first if isinstance(port, int) and port}

    @cached_property
    def servers(self) -> tuple[ServerPlan, ...]:
        return tuple(server for server in self.all if server.kind != "router")

    @cached_property
    def benchmarks(self) -> tuple[BenchmarkCommand, ...]:
        return tuple(BenchmarkCommand(each) for each in self.deployment.benchmarks)

    @cached_property
    def platform(self) -> str:
        """npu, cuda, hip or cpu: from the hardware, else from --device or a backend that only one
        of them has; empty if nothing says so."""
        if self.device is not None:
            return self.device.platform
        named = {str(server.given.get("device", ("", ""))[1]) for server in self.servers}
        stated = next((name for name in ("npu", "cuda", "cpu") if name in named), "")
        return stated or ("npu" if any(map(names_ascend, self.servers)) else "")

    @cached_property
    def start_facts(self) -> StartFacts:
        generation = "" if self.device is None else self.device.generation
        return StartFacts(self.platform, generation, self.model)

    @property
    def later_release(self) -> bool:
        """Whether the model is one of the catalogue, and its name a release with a date."""
        stated = self.deployment.model
        return stated.config is None and names_release(stated.name or stated.path or "")

    @property
    def known_model(self) -> Architecture:
        """Raises UnknownValue."""
        if self.model is None:
            raise UnknownValue("the model")
        return self.model

    @property
    def known_device(self) -> Device:
        """Raises UnknownValue."""
        if self.device is None:
            raise UnknownValue("the hardware")
        return self.device

    @property
    def devices_per_node(self) -> int | None:
        """As the deployment says, else as the catalogue does."""
        hardware, device = self.deployment.hardware, self.device
        if hardware is None or device is None:
            return None
        return (hardware.cards_per_node or device.cards_per_node) * device.devices_per_card

    @property
    def cards(self) -> int | None:
        hardware = self.deployment.hardware
        return None if hardware is None else hardware.cards

    @property
    def variables(self) -> Iterator[tuple[str, str, str]]:
        """(role, name, value)"""
        for server in self.all:
            for name, value in server.environment.items():
                yield server.name, name, value

    @property
    def targets(self) -> Targets:
        return self.deployment.targets or Targets()

    @property
    def workload(self) -> Workload:
        return self.deployment.workload or Workload()

    @cached_property
    def load(self) -> RequestLoad:
        """From the workload; what it does not say, from the first benchmark command."""
        measured = next((each.load for each in self.benchmarks), RequestLoad())
        stated = self.deployment.workload
        if stated is None:
            return measured
        return RequestLoad(
            longest(stated.input) or measured.input,
            longest(stated.output) or measured.output,
            stated.concurrency or measured.concurrency,
            stated.requests or measured.requests,
        )

    def lacks(self, need: str) -> bool:
        """Whether something a rule needs is not known."""
        known = {
            "model": self.model is not None,
            "device": self.device is not None,
            "cards": self.cards is not None and self.device is not None,
            "load": self.load.input is not None and self.load.output is not None,
        }
        return not known[need]
