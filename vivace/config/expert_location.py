"""--init-expert-location: where experts are at the start, from a file or from the flag itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from vivace.config.config import Slices
from vivace.config.errors import ConfigError
from vivace.config.expert_balance import ExpertDevices, place_experts
from vivace.config.parallelism import requested_sizes
from vivace.errors import cause
from vivace.files import read_file
from vivace.models.expert_facts import ExpertFacts
from vivace.models.facts import ModelFacts

FLAG = "--init-expert-location"
TRIVIAL = "trivial"
PLACED, COUNTED = "physical_to_logical_map", "logical_count"
MOST_BYTES = 1 << 28
MOST_COUNT = 1 << 53
CODE = (".pt", ".pth", ".pkl", ".pickle")
Rows = list[list[int]]
Placement = tuple[tuple[int, ...], ...]


def find_experts(facts: ModelFacts) -> ExpertFacts | None:
    return facts.decoder.experts if facts.decoder is not None else None


def read_locations(slices: Slices, experts: ExpertFacts) -> Placement | None:
    """The expert of each slot, of every layer; None: in turn. Raises ConfigError."""
    given = slices.experts.init_expert_location
    if given == TRIVIAL:
        return None
    found, place = read_object(given)
    if PLACED in found:
        rows = read_rows(found[PLACED], f"{place}: {PLACED}", len(experts.layers))
        return check_slots(rows, slices, experts, f"{place}: {PLACED}")
    if COUNTED in found:
        counts = read_counts(found[COUNTED], f"{place}: {COUNTED}", experts)
        return balance(counts, slices, experts)
    names = ", ".join(found) or "nothing"
    raise ConfigError(f"{place}: expected {PLACED} or {COUNTED}, found {names[:80]}")


def read_object(given: str) -> tuple[dict[str, Any], str]:
    """(what the JSON has, where it stands)"""
    if given.endswith(CODE):
        raise ConfigError(
            f"{FLAG} {given}: such files can run code when they are opened, so they never are; "
            "save what they hold as .json"
        )
    place, text = FLAG, given
    if given.endswith(".json"):
        place = f"{FLAG} {given}"
        try:
            text = read_file(Path(given), MOST_BYTES).decode()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{FLAG}: {cause(error)}") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = "" if place != FLAG else f" {given[:40]!r} is no JSON, trivial, or a name of .json"
        raise ConfigError(f"{place}:{shown} ({cause(error)})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: expected an object with {PLACED} or {COUNTED}")
    return cast("dict[str, Any]", value), place


def read_rows(value: Any, place: str, layers: int) -> Rows:
    """A list of numbers for each layer."""
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    if len(rows) != layers or not all(isinstance(row, list) for row in rows):
        raise ConfigError(f"{place}: expected a list for each of {layers} layers")
    for layer, row in enumerate(rows):
        for number in cast("list[Any]", row):
            if type(number) is not int or not 0 <= number <= MOST_COUNT:
                raise ConfigError(f"{place}: layer {layer} has {json.dumps(number)[:40]}")
    return cast("Rows", rows)


def check_slots(rows: Rows, slices: Slices, experts: ExpertFacts, place: str) -> Placement:
    """Every expert of a layer is somewhere."""
    slots = experts.count + slices.experts.ep_num_redundant_experts
    for layer, row in enumerate(rows):
        if not experts.layers[layer]:
            continue
        if len(row) != slots:
            raise ConfigError(
                f"{place}: layer {layer} has {len(row)} slots; {experts.count} experts and "
                f"--ep-num-redundant-experts {slices.experts.ep_num_redundant_experts} are {slots}"
            )
        if max(row) >= experts.count:
            raise ConfigError(f"{place}: layer {layer} has expert {max(row)} of {experts.count}")
        if missing := set(range(experts.count)) - set(row):
            raise ConfigError(f"{place}: layer {layer} has no slot for expert {min(missing)}")
    return tuple(map(tuple, rows))


def read_counts(value: Any, place: str, experts: ExpertFacts) -> Rows:
    """Tokens of each expert of every layer; also as a list of such tables, of several steps."""
    steps: list[Any] = [value]
    if isinstance(value, list) and nested(cast("list[Any]", value)):
        steps = cast("list[Any]", value)
    tables = [read_rows(one, place, len(experts.layers)) for one in steps]
    for table in tables:
        for layer, row in enumerate(table):
            if len(row) != experts.count:
                raise ConfigError(
                    f"{place}: layer {layer} has {len(row)} counts of {experts.count} experts"
                )
    return [
        [sum(column) for column in zip(*(table[layer] for table in tables), strict=True)]
        for layer in range(len(experts.layers))
    ]


def nested(value: list[Any]) -> bool:
    """Three levels deep"""
    first = cast("list[Any]", value[0]) if value and isinstance(value[0], list) else []
    return bool(first) and isinstance(first[0], list)


def balance(counts: Rows, slices: Slices, experts: ExpertFacts) -> Placement:
    room = expert_devices(slices, experts)
    return tuple(place_experts(row, room, slices.experts.eplb_algorithm) for row in counts)


def expert_devices(slices: Slices, experts: ExpertFacts) -> ExpertDevices:
    return ExpertDevices(
        slots=experts.count + slices.experts.ep_num_redundant_experts,
        devices=requested_sizes(slices).ep,
        nodes=slices.parallel.nnodes,
        groups=experts.choice.groups,
    )
