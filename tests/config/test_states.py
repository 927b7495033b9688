"""What the states of options promise is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from config_kit import resolved, settled

import vivace
from vivace.config.config import Options, all_options, with_values
from vivace.config.errors import ConfigError
from vivace.config.option import FlagState, Option, Support, declared_options, not_available, option

PACKAGE = Path(vivace.__file__).parent
DECIDED_HERE = (
    "all_to_all.py",
    "keys.py", "rules.py", "checks.py", "ranges.py", "resolution.py", "parallelism.py",
    "expert_location.py", "pipeline_parallel.py", "exposure.py", "sharded_state.py", "drafts.py",
    "draft_models.py", "draft_heads.py", "token_map.py", "tool_servers.py",
)  # fmt: skip


def other_value(of: Option) -> Any:
    """A value that asks for something."""
    if of.shape == "bool":
        return not of.default
    if of.choices:
        wanted = [c for c in of.choices if c not in (of.default, *map(str, of.trivial))]
        return int(wanted[-1]) if of.shape == "int" else wanted[-1]
    samples: dict[str, Any] = {"int": 7, "float": 0.3, "json": {"a": 1}, "str": "/x"}
    value = samples[of.shape.removeprefix("list of ")]
    return (value,) if of.shape.startswith("list of ") else value


REFUSED = [o for o in all_options() if o.states["cpu"].kind is Support.NOT_AVAILABLE]
IDLE = [o for o in all_options() if o.states["cpu"].kind is Support.NO_EFFECT]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda o: o.name)
def test_not_available_stops_with_reason_and_remedy(refused: Option) -> None:
    with pytest.raises(ConfigError) as caught:
        settled(with_values(Options(), {refused.name: other_value(refused)}))
    state, text = refused.states["cpu"], str(caught.value)
    assert text.startswith(refused.flag) and state.why in text and state.instead in text


@pytest.mark.parametrize("idle", IDLE, ids=lambda o: o.name)
def test_no_effect_is_one_notice(idle: Option) -> None:
    notices = settled(with_values(Options(), {idle.name: other_value(idle)})).notices
    assert [n for n in notices if idle.flag in n and idle.states["cpu"].why in n] == list(notices)


def test_defaults_say_nothing() -> None:
    assert resolved().notices == ()


@pytest.mark.parametrize("trivial", [o for o in all_options() if o.trivial], ids=lambda o: o.name)
def test_values_that_ask_for_nothing_pass(trivial: Option) -> None:
    for value in trivial.trivial:
        assert settled(with_values(Options(), {trivial.name: value})).notices == ()


def test_what_works_is_read_by_somebody() -> None:
    outside = "\n".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "config"
    )
    inside = "\n".join((PACKAGE / "config" / name).read_text() for name in DECIDED_HERE)
    read = set(re.findall(r"\.(\w+)", outside + inside))
    read.update(re.findall(r"(?:has|number|positive)\(\"(\w+)\"\)", outside + inside))
    working = {o.name for o in all_options() if o.states["cpu"].kind is Support.WORKS}
    assert working and not working - read


def test_states_are_data_of_each_option() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Mine:
        speed: int = option(
            1, "How fast.", cuda=FlagState(Support.WORKS), npu=not_available("no", "wait")
        )

    (speed,) = declared_options(Mine)
    assert [speed.state(p, 2).kind for p in ("cpu", "cuda", "npu")] == [
        Support.WORKS,
        Support.WORKS,
        Support.NOT_AVAILABLE,
    ]
