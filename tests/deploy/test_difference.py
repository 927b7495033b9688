"""What changes for a deployment between two releases of SGLang."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deployments import LEAVE_OUT, case, mixed, separated

from vivace.commands.check import main
from vivace.config.releases.tables import releases
from vivace.deploy import difference, startup
from vivace.deploy.catalogue.models import find_model, known_architecture
from vivace.deploy.condition_text import condition_text
from vivace.deploy.difference import changes
from vivace.deploy.startup import (
    Arguments,
    Condition,
    Possible,
    ReleasedRewrite,
    StartFacts,
    rewrite_table,
    rewrites_at,
    rewritten,
)

SCRIPT = ["python", "-m", "sglang.launch_server", "--model-path", "m"]


def kinds(flags: dict[str, Any], old: str, new: str, **made: Any) -> dict[str, tuple[str, str]]:
    """flag -> (kind, what to do) of its first change, without new defaults"""
    found = reversed(changes(case(mixed(flags=flags, **made)), old, new))
    return {each.flag: (each.kind, each.remedy) for each in found if each.kind != "default"}


@pytest.mark.parametrize(
    ("flag", "value", "old", "new", "kind", "remedy"),
    [
        ("torchao-config", "int8wo", "0.5.10", "0.5.23", "removed", "remove it"),
        ("nsa-prefill-backend", "fa3", "0.5.10", "0.5.23", "renamed", "--dsa-prefill-backend"),
        ("nsa-prefill-backend", "fa3", "0.5.10", "0.5.16", "deprecated", "--dsa-prefill-backend"),
        ("cuda-graph-max-bs", 8, "0.5.10", "0.5.23", "ambiguous", "--cuda-graph-max-bs-decode"),
        ("kv-cache-dtype", "fp4_e2m1", "0.5.10", "0.5.23", "value", "use a value"),
        ("load-balance-method", "decode_round_robin", "0.5.7", "0.5.8", "value", "use a value"),
        ("enable-mfu-metrics", True, "0.5.8", "0.5.10", "new", ""),
        ("enable-dp-attention", True, "0.5.10", "0.5.23", "deprecated", "--attn-dp-size"),
        ("context-length", "64k", "0.5.10", "0.5.8", "value", "use a value"),
        ("speculative-algorithm", "NEXTN", "0.5.10", "0.5.10", None, ""),
    ],
)
def test_a_flag_that_changes_is_told(
    flag: str, value: Any, old: str, new: str, kind: str | None, remedy: str
) -> None:
    found = kinds({flag: value}, old, new).get(f"--{flag}")
    assert (found and found[0]) == kind
    assert remedy in (found[1] if found else "")


def test_variables_that_are_no_longer_read_are_told() -> None:
    found = kinds({}, "0.5.10", "0.5.23", environment={"SGLANG_NPU_FUSED_MOE_MODE": "2"})
    assert found["SGLANG_NPU_FUSED_MOE_MODE"][0] == "variable"
    assert "SGLANG_NPU_FUSED_MOE_MODE" not in kinds(
        {}, "0.5.10", "0.5.13", environment={"SGLANG_NPU_FUSED_MOE_MODE": "2"}
    )


def test_new_defaults_are_told_for_what_is_not_set() -> None:
    def texts(**flags: Any) -> str:
        found = changes(case(mixed(flags=flags)), "0.5.7", "0.5.10")
        return "\n".join(each.text for each in found if each.kind == "default")

    assert "--load-balance-method: round_robin before, auto now" in texts()
    assert "--load-balance-method" not in texts(**{"load-balance-method": "round_robin"})


def test_a_number_without_a_default_is_computed() -> None:
    """No number is called unset: each release chooses those itself."""
    found = [
        each
        for old, new in zip(releases(), releases()[1:], strict=False)
        for each in changes(case(mixed()), old, new)
        if each.kind == "default"
    ]
    (ratio,) = [each for each in found if each.flag == "--hicache-ratio"]
    assert ratio.text == "--hicache-ratio: 2.0 before, computed at start now"
    assert ratio.remedy == "set it to keep 2.0"
    for each in found:
        assert not re.search(r": [\d.]+ before, unset", each.text), each


@pytest.mark.parametrize("release", releases())
def test_nothing_changes_from_a_release_to_itself(release: str) -> None:
    for made in (mixed(), separated()):
        assert changes(case(made), release, release) == []


@pytest.mark.parametrize(
    ("flags", "platform", "name", "becomes"),
    [
        ({"speculative-algorithm": "NEXTN"}, "npu", "speculative_algorithm", "EAGLE"),
        ({"speculative-algorithm": "NEXTN"}, "npu", "max_running_requests", "48"),
        ({"device": "npu"}, "npu", "page_size", "128"),
        ({"device": "npu", "page-size": 64}, "npu", "page_size", None),
        ({"moe-a2a-backend": "deepep"}, "npu", "ep_size", "tp_size"),
        (
            {"enable-dp-attention": True},
            "npu",
            "chunked_prefill_size",
            "chunked_prefill_size // dp",
        ),
        ({"disaggregation-mode": "decode"}, "npu", "disable_radix_cache", "True"),
        ({"disaggregation-mode": "prefill"}, "npu", "disable_radix_cache", None),
        ({"enable-symm-mem": True}, "", "enable_symm_mem", None),
    ],
)
def test_what_is_changed_at_start_up_is_known(
    flags: dict[str, Any], platform: str, name: str, becomes: str | None
) -> None:
    found = [
        key for changed, key in rewritten(flags, "0.5.10", StartFacts(platform)) if changed == name
    ]
    assert [key for key in found if becomes and key.startswith(becomes)] or becomes is None
    assert becomes is not None or not found


def test_the_command_shows_them_and_fails_if_the_start_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--diff", "0.5.10", "sglang==0.5.23"]
    assert main([*words, "--", *SCRIPT, "--cuda-graph-bs", "4", "--enable-dp-attention"]) == 1
    shown = capsys.readouterr().out
    assert "--cuda-graph-bs-decode" in shown and "newly deprecated:" in shown
    assert main([*words, "--", *SCRIPT]) == 0
    capsys.readouterr()
    assert main(["--json", *words, "--", *SCRIPT, "--torchao-config", "x"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["from"], found["to"], found["schema"]) == ("0.5.10", "0.5.23", 1)
    assert [each["flag"] for each in found["changes"] if each["breaks"]] == ["--torchao-config"]
    assert main(["--diff", "0.5.10", "9.9", "--", *SCRIPT]) == 2
    assert "9.9" in capsys.readouterr().err


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.19"])
def test_what_newer_releases_declare_is_known(release: str) -> None:
    flags = {
        "moe-a2a-backend": "deepep",
        "tp-size": 16,
        "dp-size": 4,
        "enable-dp-attention": True,
        "chunked-prefill-size": 16384,
        "pp-size": 2,
    }
    cuda = StartFacts("cuda")
    found = rewritten(flags, release, cuda)
    assert {("ep_size", "tp_size"), ("disable_overlap_schedule", "True")} <= set(found)
    assert ("chunked_prefill_size", "chunked_prefill_size // dp_size") in found
    assert not [key for key in rewritten({"tp-size": 16}, release, cuda) if key[0] == "ep_size"]


def test_what_the_model_decides_needs_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--diff", "0.5.9", "0.5.23", "--json", "--", *SCRIPT]
    main([*words, "--page-size", "128", "--log-level", "debug"])
    found = json.loads(capsys.readouterr().out)
    assert found["unknown"] == ["--page-size"]
    known = [*words, "--page-size", "128", "--log-level", "debug"]
    main(["--model", "qwen3-32b", *known])
    found = json.loads(capsys.readouterr().out)
    assert found["unknown"] == []
    assert not [each for each in found["changes"] if each["flag"] == "--page-size"]


@pytest.mark.parametrize(
    ("model", "page", "told"),
    [
        ("deepseek-v4-flash", 128, "256"),
        ("deepseek-v4-flash", 256, None),
        ("llama-3-8b", 128, None),
    ],
)
def test_what_releases_register_for_a_model_is_told(
    model: str, page: int, told: str | None
) -> None:
    around = {"hardware": {"device": "h200", "cards": 8}, "model": {"name": model}}
    made = mixed(flags={"page-size": page, "attention-backend": LEAVE_OUT}, **around)
    made["roles"]["mixed"]["flags"].pop("device", None)
    found = changes(case(made), "0.5.10", "0.5.23")
    texts = [each.text for each in found if each.flag == "--page-size"]
    assert (bool(texts) and texts[0].endswith(f"becomes {told}")) == (told is not None)


def test_what_nothing_decides_is_told_with_the_source_of_the_condition() -> None:
    around = {"hardware": {"device": "mi300x", "cards": 8}, "model": {"name": "deepseek-v3.2"}}
    made = mixed(flags={"page-size": 128, "attention-backend": LEAVE_OUT}, **around)
    made["roles"]["mixed"]["flags"].pop("device", None)
    found = changes(case(made), "0.5.9", "0.5.23")
    texts = [each.text for each in found if (each.kind, each.flag) == ("perhaps", "--page-size")]
    assert any("aiter_can_use_preshuffle_paged_mqa()" in text for text in texts)


@pytest.mark.parametrize(
    ("release", "platform", "model", "flags", "name", "becomes"),
    [
        ("0.5.20", "npu", "qwen3-32b", {}, "page_size", "128"),
        ("0.5.23", "npu", "deepseek-v4-flash", {}, "attention_backend", "dsv4"),
        ("0.5.10", "cuda", "deepseek-v3.2", {"page-size": 128}, "page_size", "64"),
        ("0.5.16", "cuda", "llama-4-scout", {}, "attention_backend", "fa3"),
        ("0.5.23", "cuda", "qwen3-32b", {}, "page_size", "1"),
    ],
)
def test_the_most_special_of_several_values_is_told(
    release: str, platform: str, model: str, flags: dict[str, Any], name: str, becomes: str
) -> None:
    known = find_model(model)
    assert known is not None
    facts = StartFacts(platform, "sm90" if platform == "cuda" else "", known_architecture(known))
    assert [key for changed, key in rewritten(flags, release, facts) if changed == name] == [
        becomes
    ]


ORDER = """
import sys
from vivace.commands.check import main
for words in sys.argv[1].split("|"):
    main(words.split())
"""


def test_reports_do_not_depend_on_the_order_of_sets() -> None:
    flags = "--page-size 128 --chunked-prefill-size 32768 --attention-backend ascend --dp-size 2"
    script = f"-- {' '.join(SCRIPT)} {flags} --speculative-draft-model-path d --disable-radix-cache"
    pair = str(Path(__file__).parent / "scripts" / "separated.sh")
    runs = [f"--diff 0.5.9 0.5.23 {script}", f"--diff 0.5.9 0.5.23 {pair}", f"--notes {pair}"]
    reports = [
        subprocess.run(
            [sys.executable, "-c", ORDER, "|".join(runs)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert reports[0] and set(reports) == {reports[0]}


def test_an_argument_that_only_start_up_sets_is_no_given_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0.5.10 makes no_buffer of a default; what may then change it is no news of a typed flag."""
    unknown = next(at for at, each in enumerate(rewrite_table().conditions) if each[0] == "?")
    name = "mamba_scheduler_strategy"
    rows = (*rewrites_at("0.5.10"), ReleasedRewrite(name, "lazy", "", (unknown,), ()))
    assert name in {row.name for row in Arguments({}, "0.5.10", StartFacts()).aliases}
    monkeypatch.setattr(startup, "rewrites_at", lambda release: rows if release == "0.5.10" else ())
    found = changes(case(mixed()), "0.5.9", "0.5.10")
    assert [each.kind for each in found if each.flag == "--mamba-scheduler-strategy"] == [
        "rewritten"
    ]


@pytest.mark.parametrize(
    ("distinct", "more"),
    [(1, ""), (2, ""), (3, ", or 1 other reason"), (4, ", or 2 other reasons")],
)
def test_two_reasons_are_named_and_the_rest_counted(
    monkeypatch: pytest.MonkeyPatch, distinct: int, more: str
) -> None:
    """Those with the fewest conditions, each once, however long their text is."""
    row = ReleasedRewrite("page_size", 64, "", (), ())
    one, two, three, four = (
        Possible(row, (["?", "only_one_condition_though_a_long_name"],)),
        Possible(row, (["?", "a"], ["?", "b"])),
        Possible(row, (["?", "a"], ["?", "b"], ["?", "c"])),
        Possible(row, (["?", "a"], ["?", "b"], ["?", "d"], ["?", "e"])),
    )
    found = [four, three, two, one][4 - distinct :]
    monkeypatch.setattr(
        difference, "unknown_changes", lambda *facts: [("--page-size", "64", [*found, one])]
    )
    made = mixed(flags={"page-size": 128}, model={"name": "qwen3-32b"})
    texts = [each.text for each in changes(case(made), "0.5.10", "0.5.10")]
    second = ", or `a` and `b`" if distinct > 1 else ""
    why = f"`only_one_condition_though_a_long_name`{second}{more}"
    assert texts == [f"--page-size 128 may become 64, because {why}"]


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (["not", ["true", "disable_radix_cache"]], "--disable-radix-cache is off"),
        (["not", ["none", "max_total_tokens"]], "--max-total-tokens is set"),
        (["none", "max_total_tokens"], "--max-total-tokens is unset"),
        (["not", ["=", "page_size", 1]], "--page-size is not 1"),
        (["not", ["in", "page_size", [1, None]]], "--page-size is not one of 1, unset"),
        (["not", ["platform", "cuda"]], "not on cuda"),
        (["not", ["or", ["?", "a"], ["?", "b is c"]]], "not (`a` or `b is c`)"),
        (["not", ["?", "b is c"]], "not `b is c`"),
        (["arch", ["A", "B", "C"]], "the model is A, B, C"),
        (["arch", ["A", "B", "C", "D"]], "the model is A, B, C or 1 other"),
        (["not", ["arch", list("ABCDE")]], "the model is not A, B, C or 2 others"),
    ],
)
def test_conditions_are_plain_english(condition: Condition, text: str) -> None:
    assert condition_text(condition, difference.argument_flags("0.5.23")) == text


def test_the_last_lines_say_what_the_model_would_decide() -> None:
    script = " ".join([*SCRIPT, "--page-size", "128"])
    unknown = difference.not_known(case({"script": script}), "0.5.9", "0.5.23")
    assert unknown.startswith("not known: what 0.5.23 ") and unknown.endswith("--page-size")
    guessed = case(mixed(model={"path": "/models/qwen3-32b-tuned"}))
    assert guessed.model_guessed
    line = difference.not_known(guessed, "0.5.9", "0.5.23")
    assert line.startswith("the model is taken for ") and "--model" in line
    told = case(mixed(model={"name": "qwen3-32b"}))
    assert difference.not_known(told, "0.5.9", "0.5.23") == ""
