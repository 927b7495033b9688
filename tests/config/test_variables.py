"""Environment variables: honored, told or refused, never ignored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vivace
from vivace.config.environment import read_environment, switched_on
from vivace.config.errors import ConfigError
from vivace.config.option import Support
from vivace.config.variables import QUIET, VARIABLES

IDLE = [name for name, known in VARIABLES.items() if known.state.kind is not Support.WORKS]
OF_TESTS = {"VIVACE_SLOW_TESTS", "VIVACE_NODE_MODULES"}


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_has_the_effect_it_says(name: str) -> None:
    known = VARIABLES[name]
    if known.state.kind is Support.WORKS:
        value = "/1" if known.kind == "path" else "1"
        assert read_environment({name: f" {value} "}) == ({name: value}, [])
    elif known.state.kind is Support.NOT_AVAILABLE:
        with pytest.raises(ConfigError, match=f"{name}=7"):
            read_environment({name: "7"})
    else:
        honored, notices = read_environment({name: "7"})
        assert honored == {} and (name in QUIET or known.state.why in notices[0])


@pytest.mark.parametrize(
    "name", [n for n, v in VARIABLES.items() if v.state.kind is not Support.WORKS]
)
def test_values_that_ask_for_nothing_are_not_worth_a_line(name: str) -> None:
    for value in {"", "0", "False", VARIABLES[name].default}:
        assert read_environment({name: value}) == ({}, [])


@pytest.mark.parametrize(
    "name", ["SGLANG_REQ_WAITING_TIMEOUT", "SGLANG_RETRACT_DECODE_STEPS", "SGLANG_TEST_RETRACT"]
)
def test_values_of_the_wrong_kind_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_environment({name: "soon"})


@pytest.mark.parametrize("value", ["-1", "1.5", "nan"])
def test_numbers_beyond_their_limits_are_refused(value: str) -> None:
    name = "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR"
    with pytest.raises(ConfigError, match=name):
        read_environment({name: value})
    assert read_environment({name: "0"}) == ({name: "0"}, [])


@pytest.mark.parametrize("value", ["predict", "/a?b", "/{x}", "/a b", "/é"])
def test_paths_are_plain(value: str) -> None:
    with pytest.raises(ConfigError, match="AIP_PREDICT_ROUTE"):
        read_environment({"AIP_PREDICT_ROUTE": value})
    assert read_environment({"AIP_PREDICT_ROUTE": ""})[1] == []


def test_own_prefix_stands_for_sglangs_and_wins() -> None:
    own = {"VIVACE_REQ_WAITING_TIMEOUT": "3", "SGLANG_REQ_WAITING_TIMEOUT": "9"}
    assert read_environment(own) == ({"SGLANG_REQ_WAITING_TIMEOUT": "3"}, [])


@pytest.mark.parametrize("name", ["SGLANG_TEST_RETRCT", "VIVACE_TEST_FUALT", "SGL_NOTHING"])
def test_unknown_names_are_told_and_others_left_alone(name: str) -> None:
    honored, (notice,) = read_environment({name: "1", "HOME": "/root", "LANG": "C"})
    assert honored == {} and name in notice
    assert name == "SGL_NOTHING" or "did you mean" in notice


def test_secrets_of_others_are_not_repeated() -> None:
    assert read_environment({"HF_TOKEN": "hf_sesame"}) == ({}, [])


@pytest.mark.parametrize(("text", "on"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_switches(text: str, on: bool) -> None:
    environment, _ = read_environment({"SGLANG_TEST_RETRACT": text})
    assert switched_on(environment, "SGLANG_TEST_RETRACT") is on


def test_what_works_is_read_by_somebody() -> None:
    files = [
        path for path in Path(vivace.__file__).parent.rglob("*.py") if path.name != "variables.py"
    ]
    text = "\n".join(path.read_text() for path in files)
    working = [n for n, v in VARIABLES.items() if v.state.kind is Support.WORKS]
    assert {n for n in working if not re.search(rf"\b{n}\b", text)} == OF_TESTS
