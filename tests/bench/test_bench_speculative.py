"""The benchmark of drafts with engines that make tokens up, and once with the embedded model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from served_toy import write_toy_llama

from vivace.bench.errors import BenchError
from vivace.bench.repeating_prompts import repeating_prompts
from vivace.bench.scripted_drafts import (
    ALWAYS_WRONG,
    SCRIPTED,
    draft_flags,
    measure_scripted,
    open_steps,
)
from vivace.bench.speculative import main, measure, parse
from vivace.bench.tokenizer import SplitCodec

FLAGS = "--rounds 3 --streams 4 --output-len 9 --random-input-len 5".split()


class ChattingCodec(SplitCodec):
    def chat(self, messages: list[dict[str, Any]]) -> str:
        return str(messages[0]["content"])


class DraftingEngine:
    """Draws `speed` tokens a second; token n of an answer is n, but for one that is `wrong`."""

    def __init__(self, arguments: dict[str, Any], wrong: bool = False) -> None:
        self.drafts = "speculative_algorithm" in arguments
        self.arguments, self.ended, self.keys = arguments, False, list[str]()
        self._wrong = wrong and self.drafts
        self.acceptance = os.environ.get(SCRIPTED)

    def generate(self, **kwargs: Any) -> list[dict[str, Any]]:
        self.keys.append(kwargs["extra_key"])
        count = kwargs["sampling_params"]["max_new_tokens"]
        meta = {"completion_tokens": count, "decode_throughput": 30.0 if self.drafts else 10.0}
        if self.drafts:
            meta["spec_accept_length"] = 3.0
        return [
            {"output_ids": [*range(count - 1), self._wrong], "meta_info": meta}
            for _ in kwargs["input_ids"]
        ]

    def get_server_info(self) -> dict[str, Any]:
        return {"internal_states": [{"instructions": "native kernels, avx2"}]}

    def shutdown(self) -> None:
        self.ended = True


def plenty(arguments: dict[str, Any]) -> int:
    return 1 << 20


def no_engine(arguments: dict[str, Any]) -> DraftingEngine:
    raise AssertionError("nothing is served")


@pytest.mark.parametrize("wrong", [False, True])
def test_ratios_of_each_set_of_prompts(
    wrong: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines: list[DraftingEngine] = []

    def make(arguments: dict[str, Any]) -> DraftingEngine:
        engines.append(DraftingEngine(arguments, wrong))
        return engines[-1]

    file = tmp_path / "figures.json"
    args, _ = parse([*FLAGS, "--output-file", str(file)])
    asked = {"cpu_threads": 1, "speculative_num_draft_tokens": 4}
    code = measure(args, asked, make, lambda path: ChattingCodec(), plenty)
    assert code == int(wrong)
    plain, drafting = engines
    assert plain.arguments == {"cpu_threads": 1}
    assert drafting.arguments == {"speculative_algorithm": "NGRAM", **asked}
    assert plain.ended and drafting.ended
    assert plain.keys == drafting.keys and len(set(plain.keys)) == 4
    found = {(one["name"], one["streams"]): one for one in json.loads(file.read_text())["prompts"]}
    assert set(found) == {(name, n) for name in ("repeating", "random") for n in (1, 4)}
    assert found["repeating", 1]["ratio"] == pytest.approx(3) and found["repeating", 1][
        "accept_length"
    ] == pytest.approx(3)
    assert all(len(one["ratios"]) == 3 and one["same"] is not wrong for one in found.values())
    assert ("DIFFER" in capsys.readouterr().out) == wrong


def test_the_embedded_model_draws_the_same_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of the repeating prompts, which are long."""
    first = "vivace.bench.speculative.repeating_prompts"
    monkeypatch.setattr(first, lambda codec: repeating_prompts(codec)[:1])
    words = "--rounds 1 --streams 2 --output-len 24 --random-input-len 16 --cpu-threads 1"
    assert main([*words.split()]) == 0
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if "a step" in line]) == 4


class CountedSteps:
    """One with 3 drafts takes 10 ms, one without 8."""

    def __init__(self) -> None:
        self.acceptance = os.environ.get(SCRIPTED)
        self.ended = False

    def time(self, prompt: list[int], steps: int, drafts: int) -> list[float]:
        assert drafts in (0, 3)
        return [0.01 if drafts else 0.008] * steps

    def close(self) -> None:
        self.ended = True


@pytest.mark.parametrize("wrong", [False, True])
def test_the_share_of_what_steps_allow(
    wrong: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SCRIPTED, raising=False)
    engines: list[DraftingEngine] = []
    steps: list[CountedSteps] = []

    def make(arguments: dict[str, Any]) -> DraftingEngine:
        engines.append(DraftingEngine(arguments, wrong))
        return engines[-1]

    def make_steps(arguments: dict[str, Any]) -> CountedSteps:
        assert arguments["speculative_num_draft_tokens"] == 4
        steps.append(CountedSteps())
        return steps[-1]

    file = tmp_path / "figures.json"
    words = "--scripted 0.6 --rounds 3 --output-len 9"
    args, _ = parse([*words.split(), "--output-file", str(file)])
    code = measure_scripted(
        args, {"cpu_threads": 1}, make, lambda path: ChattingCodec(), plenty, make_steps
    )
    assert code == int(wrong)
    assert [engine.acceptance for engine in engines] == [None, "0.6"]
    assert [one.acceptance for one in steps] == ["0"] and SCRIPTED not in os.environ
    assert all(one.ended for one in (*engines, *steps))
    assert engines[0].arguments == {"cpu_threads": 1}
    rounds = json.loads(file.read_text())["rounds"]
    assert len(rounds) == 3 and rounds[0]["expected"] == pytest.approx(2.176)
    allowed = 2.176 * 8 / 10
    assert f"may be {allowed:.2f}\nit is 3.00: {3 / allowed:.0%}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "context", "needed", "remedy"),
    [
        ("", 1320, 1323, "--output-len 6"),
        ("", 1300, 1323, "--context-length"),
        ("--streams 1", 1320, 1321, "--output-len 8"),
        ("--random-input-len 1400 --streams 1", 1400, 1409, "--random-input-len"),
        ("--scripted 0.5", 1320, 1325, "--output-len 4"),
    ],
)
def test_a_short_context_is_told_before_anything_is_served(
    words: str, context: int, needed: int, remedy: str
) -> None:
    """The longest chat has 1312 tokens; of many streams each has two in front of its own."""
    args, _ = parse([*"--output-len 9".split(), *words.split()])

    def run(context: int) -> int:
        given = args, {}, no_engine, lambda path: ChattingCodec(), lambda arguments: context
        return measure(*given) if args.scripted is None else measure_scripted(*given, open_steps)

    with pytest.raises(BenchError) as caught:
        run(context)
    assert f" {needed} tokens" in str(caught.value) and remedy in str(caught.value)
    with pytest.raises(AssertionError, match="served"):
        run(needed)


@pytest.mark.parametrize(
    "flags",
    [
        *("--rounds 0", "--streams x", "--output-len 1", "--scripted 1.1", "--width 4"),
        "--scripted 0.6 --streams 4",
        *("--random-input-len 1000000000000", "--seed 1_0", "--scripted 0.6 --width 64"),
    ],
)
def test_bad_flags_are_refused(flags: str) -> None:
    with pytest.raises(SystemExit):
        parse(flags.split())


def test_a_script_chooses_the_drafts() -> None:
    with pytest.raises(SystemExit):
        parse("--scripted 0.5 --speculative-algorithm NGRAM".split())


def test_steps_of_a_worker_take_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCRIPTED, ALWAYS_WRONG)
    flags = {"cpu_threads": 1, "max_total_tokens": 512, "context_length": 64}
    steps = open_steps({"model_path": str(write_toy_llama(tmp_path)), **flags, **draft_flags(3)})
    for drafts in (0, 3, 3):
        found = steps.time([5, 6, 7, 8, 9], 6, drafts)
        assert len(found) == 6 and min(found) > 0
    steps.close()
