"""Every flag parses, wrong ones get the nearest name, files and arguments mean the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from config_kit import resolved, resolved_arguments
from sglang_spellings import SPELLINGS

from vivace.arguments import ArgumentParser
from vivace.config.config import all_options, option_value
from vivace.config.errors import ConfigError, as_typed
from vivace.config.known_flags import ELSEWHERE, LATER, WITHOUT
from vivace.config.option import Option
from vivace.config.parsing import from_arguments, parse
from vivace.config.sglang import RETIRED
from vivace.config.values import parse_value
from vivace.errors import CannotStart
from vivace.launch.configure import configure

BY_FLAG = {flag: option for option in all_options() for flag in option.flags}


def sample(option: Option) -> list[str]:
    """A value the flag takes, as tokens."""
    if option.shape == "bool":
        return []
    if option.choices:
        return [option.choices[-1]]
    return [{"json": '{"a": 1}', "int": "3", "float": "0.5"}.get(option.shape.split()[-1], "3")]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_parses(spelling: str) -> None:
    flag = f"--{spelling}"
    if flag == "--config":
        return
    if flag in RETIRED:
        value = ["x"] if RETIRED[flag].today == ("--otlp-traces-endpoint",) else []
        assert parse([flag, *value], {}).rewrites
        return
    option = BY_FLAG[flag]
    options = parse([flag, *sample(option)], {})
    assert option_value(options, option) != option.default or option.choices


def test_choices_that_stop_the_start_are_not_offered() -> None:
    for option in all_options():
        if option.choices and option.shape == "str":
            with pytest.raises(ConfigError, match="nonsense") as raised:
                parse_value(option, "nonsense")
            named = str(raised.value).partition("one of ")[2].partition("; did")[0].split(", ")
            assert named and not any(map(option.is_refused, named)), option.flag


def test_of_several_names_the_given_one_is_told(tmp_path: Path) -> None:
    """In what stops a start and in what it shows; the last one, of a file's and the command's."""
    file = tmp_path / "flags.yaml"
    file.write_text("tp: 7\n")
    for options, name in (
        (parse(["--tp", "7"], {}), "--tp"),
        (parse(["--tp", "7", "--tp-size=7"], {}), "--tp-size"),
        (parse(["--config", str(file)], {}), "--tp"),
        (parse(["--config", str(file), "--tensor-parallel-size", "7"], {}), "--tensor"),
        (from_arguments(tp_size=7), "--tp-size"),
    ):
        with pytest.raises(ConfigError, match=f"^{name}") as raised:
            configure(options)
        assert "devices" in str(raised.value)
    for read, name in (
        (lambda: parse(["--tp", "x"], {}), "--tp:"),
        (lambda: from_arguments(tp_size="x"), "--tp-size:"),
        (lambda: configure(parse(["--model", "/none", "--tp", "2"], {})), "--model /none"),
    ):
        with pytest.raises(CannotStart, match=f"^{name}"):
            read()
    assert as_typed("--pp-size 2; --pp", parse(["--pp", "2"], {}).names) == "--pp 2; --pp"
    notices = resolved("--pp", "2").notices
    assert any(line.startswith("--pp 2:") for line in notices)


def test_the_list_is_the_size_of_the_promise() -> None:
    assert len(set(SPELLINGS)) > 340


def test_no_two_options_share_a_name_or_spelling() -> None:
    flags = [flag for option in all_options() for flag in option.flags]
    names = [option.name for option in all_options()]
    assert len(set(flags)) == len(flags)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--schedule-pollicy", "lpm"], ["--schedule-pollicy", "--schedule-policy"]),
        (["--tensor-paralel-size", "1"], ["--tensor-parallel-size"]),
        (["--schedule-policy", "lpn"], ["--schedule-policy", "did you mean lpm"]),
        (["--port", "many"], ["--port", "whole number"]),
        (["--mem-fraction-static", "nan"], ["--mem-fraction-static", "'nan'"]),
        (["--port"], ["--port"]),
        (["stray"], ["stray"]),
        (["--json-model-override-args", "{"], ["--json-model-override-args"]),
        (["--speculative-algorithm", "eagle3"], ["did you mean EAGLE3?"]),
        (["--speculative-draft", "x"], ["--speculative-draft-model-path or", "write it out"]),
    ],
)
def test_wrong_flags_are_explained(argv: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv, {})
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("words", [["--mem-fraction", "0.5"], ["--mem-fraction=0.5"]])
def test_the_beginning_of_one_flag_is_read_as_it(words: list[str]) -> None:
    """As SGLang's argparse does, and published launches rely on."""
    options = parse(words, {})
    assert options.memory.mem_fraction_static == 0.5
    (notice,) = options.notices
    assert "--mem-fraction is read as --mem-fraction-static" in notice


def underscored(flags: Iterable[str]) -> list[tuple[str, str]]:
    """(flag, as it is typed), also with underscores, which vLLM takes too."""
    flags = list(flags)
    spelled = [(flag, "--" + flag[2:].replace("-", "_")) for flag in flags if flag[:2] == "--"]
    return [(flag, flag) for flag in flags] + [each for each in spelled if each[0] != each[1]]


@pytest.mark.parametrize(("flag", "typed"), underscored(ELSEWHERE))
def test_flags_of_other_tools_name_ours(flag: str, typed: str) -> None:
    tool, ours = ELSEWHERE[flag]
    known = {name for option in all_options() for name in option.flags}
    assert flag not in known and ours in known
    with pytest.raises(ConfigError, match=f"{typed} .* {tool}; .* {ours}"):
        parse([typed, "4096"], {})


@pytest.mark.parametrize("flag", LATER)
def test_flags_of_later_releases_say_why_they_are_not_there(flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([flag, "1"], {})
    assert f"{flag} is a flag of SGLang 0." in str(caught.value)
    assert str(caught.value).endswith(f"; leave it out: {LATER[flag]}")


@pytest.mark.parametrize(("flag", "typed"), underscored(WITHOUT))
def test_flags_of_other_tools_without_a_counterpart_say_why(flag: str, typed: str) -> None:
    assert flag not in {name for option in all_options() for name in option.flags}
    tool, reason = WITHOUT[flag]
    with pytest.raises(ConfigError) as caught:
        parse([typed], {})
    assert str(caught.value) == f"{typed} is a flag of {tool}; leave it out: {reason}"


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "LLAMA_API_KEY"])
def test_keys_of_other_tools_are_not_believed_in(name: str) -> None:
    (notice,) = parse([], {name: "secret"}).notices
    assert name in notice and "VIVACE_API_KEY" in notice and "secret" not in notice


def test_last_of_two_wins_and_is_told() -> None:
    options = parse(["--tp", "2", "--tp-size", "1"], {})
    assert options.parallel.tp_size == 1
    assert any("2 times" in notice for notice in options.notices)


def test_retired_spellings_are_explained() -> None:
    options = parse(["--enable-deepep-moe"], {})
    assert options.experts.moe_a2a_backend == "deepep"
    (told,) = options.rewrites
    assert (told.field, told.after) == ("enable_deepep_moe", "--moe-a2a-backend deepep")
    assert told.reason


def test_file_gives_defaults_and_typed_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        "port: 31000\nschedule-policy: lpm\nenable_metrics: true\nlog-requests: false\n"
        "json-model-override-args: {num_hidden_layers: 1}\nbucket-time-to-first-token: [0.1, 1]\n"
    )
    options = parse(["--config", str(file), "--port", "32000"], {})
    assert options.http.port == 32000
    assert options.schedule.schedule_policy == "lpm"
    assert options.logging.enable_metrics and not options.logging.log_requests
    assert options.model.json_model_override_args == {"num_hidden_layers": 1}
    assert options.logging.bucket_time_to_first_token == (0.1, 1.0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot: 1\n", "--port"),
        ("- a\n", "mapping"),
        ("a: [\n", "--config"),
        ("!!python/object/apply:os.system ['true']\n", "--config"),
        ("enable-metrics: maybe\n", "--enable-metrics"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse([f"--config={file}"], {})
    assert word in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        parse(["--config", str(tmp_path / "none.yaml")], {})


def test_keyword_arguments_are_the_flags() -> None:
    config = resolved_arguments(page_size=4, tp_size=1, disable_radix_cache=True, random_seed=3)
    typed = resolved("--page-size", "4", "--disable-radix-cache", "--random-seed", "3")
    assert config == typed
    with pytest.raises(ConfigError, match="mean page_size"):
        from_arguments(page_sise=4)
    with pytest.raises(ConfigError, match="disable-radix-cache"):
        from_arguments(disable_radix_cache="perhaps")


NUMBERS = {
    "int": (
        ["7", "-1", "+7", "007", " 7"],
        ["\u0667", "\uff17", "1_000", "7.0", "1e3", "0x7", "", "\u00b2"],
    ),
    "float": (
        ["7", "-1", "0.9", ".5", "5.", "1e-3", "1E+3"],
        ["\u0667", "\uff10.9", "1_0.5", "nan", "inf", "1e999", "", "0x7p1"],
    ),
}
"""(spellings of a number, what is none)"""


@pytest.mark.parametrize(
    "option",
    [one for one in all_options() if one.shape in NUMBERS and not one.choices],
    ids=lambda one: one.flag,
)
def test_numbers_are_written_in_ascii_digits(option: Option) -> None:
    numbers, others = NUMBERS[option.shape]
    for text in numbers:
        assert parse_value(option, text) == float(text)
    for text in others:
        with pytest.raises(ConfigError, match=f"^{option.flag}: "):
            parse_value(option, text)
    assert option_value(parse([f"{option.flag}={numbers[-1]}"], {}), option) == float(numbers[-1])
    with pytest.raises(ConfigError, match=f"^{option.flag}: "):
        parse([f"{option.flag}={others[0]}"], {})


@pytest.mark.parametrize("kind", [int, float])
def test_numbers_of_other_commands_too(kind: type, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser("x")
    parser.add_argument("--number", type=kind)
    numbers, others = NUMBERS[kind.__name__]
    for text in numbers:
        assert parser.parse_args([f"--number={text}"]).number == float(text)
    for text in others:
        with pytest.raises(SystemExit):
            parser.parse_args([f"--number={text}"])
        assert "--number" in capsys.readouterr().err


def test_a_required_flag_that_is_misspelled_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser("x")
    parser.add_argument("--output", required=True)
    with pytest.raises(SystemExit):
        parser.parse_args(["--outptu", "a"])
    assert "unknown flag --outptu; did you mean --output?" in capsys.readouterr().err
