"""Config crosses processes unchanged; secrets cross, and show nowhere."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import msgspec
import pytest
from config_kit import resolved, settled
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.config.config import Options, all_options, option_value, with_values
from vivace.config.errors import ConfigError
from vivace.config.option import Option
from vivace.config.parsing import from_arguments
from vivace.config.secret import Secret
from vivace.config.serialize import decode, encode, public
from vivace.config.values import parse_value
from vivace.frontend.served_model import served_model

KEY = "sk-sesame"
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
PLAIN = {"bool": st.booleans(), "int": st.integers(-5, 1 << 40), "str": TEXT}
PLAIN |= {"float": st.floats(-1e6, 1e6), "json": st.dictionaries(TEXT, st.integers(0, 9))}


def values_for(option: Option) -> st.SearchStrategy[Any]:
    if option.secret:
        return st.builds(Secret, TEXT)
    if option.choices:
        return st.sampled_from(option.choices).map(lambda text: parse_value(option, text))
    kind = option.shape.removeprefix("list of ")
    single = PLAIN[kind]
    return st.lists(single, max_size=3).map(tuple) if kind != option.shape else single


SETTABLE = {option.name: values_for(option) for option in all_options()}


@settings(deadline=None, max_examples=60)
@given(st.fixed_dictionaries({}, optional=SETTABLE))
def test_any_options_survive_the_pipe(values: dict[str, Any]) -> None:
    asked = with_values(Options(), values)
    parts = {part: getattr(asked, part) for part in {o.slice_name for o in all_options()}}
    config = replace(resolved("--random-seed", "1"), **parts)
    assert decode(encode(config)) == config


def test_whatever_a_model_s_files_hold_crosses() -> None:
    """NaN, numbers of any length and halves of characters, where nobody reads them."""
    config = resolved("--random-seed", "1")
    odd = {"\ud800": "\udfff", "n": [1e400, 10**3000, {"x": -(10**30)}], "not": float("nan")}
    odd_too = replace(config, source=replace(config.source, config=odd, generation_config=odd))
    again = decode(encode(odd_too))
    assert repr(again.source) == repr(odd_too.source)
    assert replace(again, source=config.source) == config


ODD_TEXT = st.text(st.characters(codec="utf-8") | st.integers(0xD800, 0xDFFF).map(chr), max_size=20)


@given(ODD_TEXT, st.dictionaries(ODD_TEXT, st.lists(ODD_TEXT)))
def test_every_answer_can_hold_what_the_configuration_says(
    text: str, values: dict[str, Any]
) -> None:
    """Names of files that are no UTF-8, a locale of another encoding, halves in JSON."""
    asked = with_values(Options(), {"model_path": text, "json_model_override_args": values})
    config = replace(resolved("--random-seed", "1"), model=asked.model)
    served = served_model(config, None)
    told = msgspec.json.decode(msgspec.json.encode([public(config), served.name, served.path]))
    if text.isascii():
        assert told[0]["model_path"] == text


@pytest.mark.parametrize(
    ("given", "shown"),
    [("Möd", "Möd"), ("M\udcc3\udcb6d", "Möd"), ("M\udcf6d", "M\ufffdd"), ("\ud800", "?")],
)
def test_bytes_of_a_path_are_read_as_utf_8(given: str, shown: str) -> None:
    asked = with_values(Options(), {"model_path": given})
    assert served_model(replace(resolved(), model=asked.model), None).path == shown


def test_secrets_cross_and_stay_hidden() -> None:
    config = resolved("--api-key", KEY, "--admin-api-key", KEY + "2")
    again = decode(encode(config))
    assert again.http.api_key is not None and again.http.api_key.reveal() == KEY
    shown = (repr(config), str(again.http), f"{config.http.api_key}", json.dumps(public(config)))
    assert not any("sesame" in text for text in shown)


def test_nothing_encodes_a_secret_by_accident() -> None:
    for encoder in (json.dumps, msgspec.json.encode):
        with pytest.raises(TypeError):
            encoder(Secret(KEY))
    assert KEY not in repr(asdict(resolved("--api-key", KEY)))


def test_public_has_every_flag_but_secrets() -> None:
    config = resolved("--api-key", KEY)
    shown = public(config)
    for option in all_options():
        if option.secret:
            assert option.name not in shown or shown[option.name] == "***"
        else:
            assert shown[option.name] == option_value(config, option)


def test_keyword_arguments_are_typed_like_flags() -> None:
    options = from_arguments(
        tp=1,
        model="/m",
        api_key=KEY,
        json_model_override_args='{"a": 1}',
        mem_fraction_static=0.5,
        max_total_tokens=None,
    )
    assert options.model.model_path == "/m" and options.parallel.tp_size == 1
    assert options.http.api_key == Secret(KEY)
    assert options.model.json_model_override_args == {"a": 1}
    for wrong in ({"port": [1]}, {"port": True}, {"enable_deepep_moe": True}, {"grpc_port": 1}):
        with pytest.raises(ConfigError):
            from_arguments(**wrong)


def test_keyword_arguments_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")
    config = settled(from_arguments(context_length=1024))
    assert (config.model.context_length, config.facts.context) == (1024, 1024)
