"""What a release of SGLang makes of a server's arguments at start-up (releases/rewrites.json).

What certainly happens is told apart from what may: conditions are about arguments that were given,
the platform, the model, and defaults that nothing else changes; others are kept as the source has
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from vivace.config.releases.tables import FOLDER, flags_at, holds, releases, row_at
from vivace.deploy.schema.deployment import Flags
from vivace.models.architecture import Architecture
from vivace.models.attention_shapes import CompressedAttention, LatentAttention

UNKNOWN = object()
TOLD = frozenset(
    """ep_size enable_dp_attention chunked_prefill_size schedule_conservativeness page_size
    attention_backend max_running_requests enable_mixed_chunk disable_overlap_schedule
    disable_radix_cache disable_cuda_graph ep_dispatch_algorithm disable_shared_experts_fusion
    schedule_policy enable_symm_mem hicache_mem_layout""".split()
)
"""arguments that rules of their own are about (rules/rewrites.py)"""
PLATFORMS = ("npu", "cuda", "cpu", "hip", "xpu", "hpu", "musa", "mps")
Condition = list[Any]
ALIASES = {"DeepseekV32ForCausalLM": ("DeepseekV3ForCausalLM", "0.5.11")}
"""architecture of config.json -> what SGLang's loader of configurations makes of it, up to when"""
PATHS = frozenset({"model_path", "tokenizer_path"})
"""arguments that start-up replaces by where it found or downloaded them"""


class ReleasedRewrite(msgspec.Struct, frozen=True, array_like=True):
    """`name` becomes `value`, or what `formula` computes ("? " before what is more than arithmetic
    of arguments), if all conditions hold: `places` in `RewriteTable.conditions`."""

    name: str
    value: Any
    formula: str
    places: tuple[int, ...]
    held: tuple[int, ...]

    @property
    def conditions(self) -> list[Condition]:
        return [rewrite_table().conditions[place] for place in self.places]

    @property
    def becomes(self) -> str:
        return self.formula or str(self.value)

    @property
    def computed(self) -> bool:
        """Whether it is known what it becomes."""
        return not self.formula.startswith("?")


class RewriteTable(msgspec.Struct, frozen=True):
    """Conditions are described in tools/condition_algebra.py."""

    releases: tuple[str, ...]
    conditions: tuple[Condition, ...]
    rewrites: tuple[ReleasedRewrite, ...]


class StartFacts(msgspec.Struct, frozen=True):
    """What is known beside the arguments. `platform`: npu, cuda ... or empty; `generation` of its
    devices, sm90 for one."""

    platform: str = ""
    generation: str = ""
    model: Architecture | None = None

    def on(self, name: str) -> bool | None:
        """Whether a server runs on a platform or a generation of it; None if that is not known."""
        if name in PLATFORMS or self.platform not in ("cuda", ""):
            return name == self.platform if self.platform in PLATFORMS else None
        return name == self.generation if self.generation else None

    def of_model(self, word: str, value: Any) -> bool | None:
        """What a condition asks of the model; None if that is not known."""
        if self.model is None:
            return None
        name, attention = self.model.name, self.model.attention
        if word == "arch":
            return name in value if name else None
        if word == "arch has":
            return value in name if name else None
        latent = isinstance(attention, LatentAttention)
        if value == "sparse":
            return latent and attention.index_heads > 0
        return None if isinstance(attention, CompressedAttention) else latent


class Possible(msgspec.Struct, frozen=True):
    """A rewrite that may happen, and what nothing here decides of its conditions."""

    row: ReleasedRewrite
    undecided: tuple[Condition, ...]

    @property
    def by_model(self) -> bool:
        """Whether it depends on the model."""
        return any(map(asks_for_model, self.undecided))


@cache
def rewrite_table() -> RewriteTable:
    with open(os.path.join(FOLDER, "rewrites.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=RewriteTable)


@cache
def rewrites_at(release: str) -> tuple[ReleasedRewrite, ...]:
    at = releases().index(release)
    return tuple(row for row in rewrite_table().rewrites if holds(row.held, at))


class Arguments:
    """A server's arguments as a release knows them, by the names it has for them inside."""

    def __init__(self, flags: Flags, release: str, facts: StartFacts) -> None:
        self.release, self.facts = release, loaded_by(release, facts)
        self.given: dict[str, Any] = {}
        for flag, value in flags.items():
            row = row_at("--" + flag, release)
            if row is not None and value is not None and value is not False:
                self.given[row.name] = value
        self.defaults = {
            row.name: row.default for row in reversed(flags_at(release).values()) if not row.state
        }
        self.rows: dict[str, list[ReleasedRewrite]] = {}
        for row in rewrites_at(release):
            self.rows.setdefault(row.name, []).append(row)
        self.changed: dict[str, bool] = {}
        aliases = [row for row in rewrites_at(release) if is_alias(row) and self.applies(row)]
        self.aliases = aliases
        self.given |= {row.name: row.value for row in aliases}
        self.changed.clear()

    def rewrites(self) -> Iterator[ReleasedRewrite]:
        """Those that certainly apply and change something. Values that are only another name for
        one come first: the other conditions ask for the new name."""
        yield from self.aliases
        for name, rows in self.rows.items():
            found = [row for row in rows if self.applies(row)]
            # Of several values, what is most special: not the default for what is still unset.
            most = max(map(weight, found), default=0)
            for row in found:
                changes = row.formula or self.own(name) != row.value
                if row.computed and changes and (row.formula or weight(row) == most):
                    yield row

    def possible(self) -> Iterator[Possible]:
        """Of given arguments: what may happen to them."""
        for name in [each for each in self.given if each not in PATHS]:
            for row in self.rows.get(name, ()):
                found = self.undecided(row)
                changes = row.formula or self.own(name) != row.value
                if found is not False and changes and (found is not True or not row.computed):
                    yield Possible(row, tuple(found) if isinstance(found, list) else ())

    def undecided(self, row: ReleasedRewrite) -> list[Condition] | bool:
        """What of its conditions nothing here decides; or whether they hold."""
        found = self.left(["and", *row.conditions], row.name)
        if isinstance(found, bool):
            return found
        return found[1:] if found[0] == "and" else [found]

    def applies(self, row: ReleasedRewrite) -> bool:
        return self.undecided(row) is True

    def own(self, name: str) -> Any:
        return self.given.get(name, self.defaults.get(name))

    def value(self, name: str, target: str) -> Any:
        if name in self.given:
            return self.given[name]
        if name == "device" and self.facts.platform:
            return "cuda" if self.facts.platform == "hip" else self.facts.platform
        known = name in self.defaults and (name == target or not self.may_change(name))
        return self.defaults[name] if known else UNKNOWN

    def may_change(self, name: str) -> bool:
        """Whether something may be made of an argument that is not given."""
        if name not in self.changed:
            self.changed[name] = True  # for what asks for itself on the way
            self.changed[name] = any(
                self.undecided(row) is not False for row in self.rows.get(name, ())
            )
        return self.changed[name]

    def left(self, condition: Condition, target: str) -> Condition | bool:
        """A condition without what is decided; whether it holds, if all is."""
        word, *parts = condition
        if word in ("and", "or"):
            found = [self.left(each, target) for each in parts]
            decisive = word == "or"
            if decisive in found:
                return decisive
            rest = [each for each in found if not isinstance(each, bool)]
            return [word, *rest] if rest[1:] else rest[0] if rest else not decisive
        if word == "not":
            inner = self.left(parts[0], target)
            return not inner if isinstance(inner, bool) else ["not", inner]
        if word == "platform":
            known = self.facts.on(parts[0])
        elif word in ABOUT_MODEL:
            known = self.facts.of_model(word, parts[0])
        else:
            value = UNKNOWN if word == "?" else self.value(parts[0], target)
            known = None if value is UNKNOWN else compare(word, value, parts[1:])
        return condition if known is None else known


ABOUT_MODEL = ("arch", "arch has", "model")


def weight(row: ReleasedRewrite) -> int:
    """How special a rewrite is: what a model needs, then what a platform or arguments ask."""
    words = [condition[0] for condition in row.conditions]
    return sum(3 if word in ABOUT_MODEL else word not in ("not", "or") for word in words)


def loaded_by(release: str, facts: StartFacts) -> StartFacts:
    """With the model's architecture as a release loads it."""
    alias, last = ALIASES.get(facts.model.name if facts.model else "", ("", ""))
    if facts.model is None or not alias or releases().index(release) > releases().index(last):
        return facts
    model = msgspec.structs.replace(facts.model, name=alias)
    return msgspec.structs.replace(facts, model=model)


def asks_for_model(condition: Condition) -> bool:
    word, *parts = condition
    return word in ABOUT_MODEL or (word in ("and", "or", "not") and any(map(asks_for_model, parts)))


def compare(word: str, value: Any, others: list[Any]) -> bool | None:
    if word == "true":
        return bool(value)
    if word == "none":
        return value is None
    if word == "in":
        return value in others[0]
    if word == "=":
        return value == others[0]
    if not isinstance(value, int | float) or not isinstance(others[0], int | float):
        return None
    return {
        ">": value > others[0],
        "<": value < others[0],
        ">=": value >= others[0],
        "<=": value <= others[0],
    }[word]


def is_alias(row: ReleasedRewrite) -> bool:
    return not row.formula and all(
        each[:2] == ["=", row.name] for each in row.conditions
    ) and bool(row.conditions)  # fmt: skip


Key = tuple[str, str]
"""(argument, what it becomes)"""


def rewritten(flags: Flags, release: str, facts: StartFacts) -> Mapping[Key, ReleasedRewrite]:
    """Everything that certainly changes."""
    found = Arguments(flags, release, facts).rewrites()
    return {(row.name, row.becomes): row for row in found}


def possible(flags: Flags, release: str, facts: StartFacts) -> Mapping[Key, list[Possible]]:
    """What may happen to the given arguments."""
    found: dict[Key, list[Possible]] = {}
    for each in Arguments(flags, release, facts).possible():
        found.setdefault((each.row.name, each.row.becomes), []).append(each)
    return found
