"""`vivace check` says of flags of drafts what the server says, not what SGLang does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from served_toy import write_toy_llama

from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.deploy.load_case import Overrides, build_case, open_command
from vivace.deploy.rules.judge import Finding, judge
from vivace.errors import CannotStart
from vivace.launch.configure import configure

NGRAM = "--speculative-algorithm NGRAM"
DRAFT = "--speculative-algorithm STANDALONE --speculative-draft-model-path"
TREE = "--speculative-eagle-topk 4 --speculative-num-steps 2"
TAKEN = [
    f"{DRAFT} {{toy}} --speculative-num-draft-tokens 4",
    f"{DRAFT} {{toy}} --speculative-eagle-topk 1",
    f"{DRAFT} {{toy}} --speculative-eagle-topk 2 --page-size 16",
    f"{NGRAM} --pp-size 2",
    f"{NGRAM} --tp-size 2 --dp-size 2 --enable-dp-attention",
    f"{NGRAM} --cuda-graph-max-bs 100",
    f"{NGRAM} --cuda-graph-max-bs 8",
    "--pp-size 2 --enable-mixed-chunk",
]
REFUSED = [
    f"{DRAFT} {{toy}} --pp-size 2",
    f"{NGRAM} --is-embedding",
    f"{NGRAM} --speculative-ngram-min-match-window-size 13",
    f"{NGRAM} --speculative-ngram-external-corpus-path nofile --skip-tokenizer-init",
    f"{NGRAM} --speculative-accept-threshold-acc 0.5 --enable-deterministic-inference",
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path {toy}",
    "--speculative-algorithm NEXTN --speculative-token-map hot.pt",
]
IDLE = [
    f"{NGRAM} --speculative-num-steps 5 --speculative-token-map nofile",
    f"{DRAFT} {{toy}} --speculative-ngram-capacity 5",
    "--speculative-num-steps 5",
    f"{NGRAM} --speculative-ngram-external-corpus-path {{toy}}/config.json "
    "--speculative-ngram-external-sam-budget 0",
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


def findings(words: list[str]) -> list[Finding]:
    command = open_command(["vivace", "serve", *words])
    return list(judge(build_case(command, Overrides())).findings)


def worst(words: list[str]) -> list[Finding]:
    return [each for each in findings(words) if each.severity in ("error", "warning")]


@pytest.mark.parametrize("line", TAKEN)
def test_what_serves_is_no_error(line: str, toy: Path) -> None:
    words = [
        "--model-path",
        str(toy),
        "--device",
        "cpu",
        *(word.format(toy=toy) for word in line.split()),
    ]
    configure(parse(words, {}))
    assert worst(words) == []
    assert not any("48" in each.text for each in findings(words))


@pytest.mark.parametrize("line", REFUSED)
def test_what_does_not_start_is_one(line: str, toy: Path) -> None:
    words = ["--model-path", str(toy), *(word.format(toy=toy) for word in line.split())]
    with pytest.raises(CannotStart):
        configure(parse(words, {}))
    elsewhere = [word.replace(str(toy), "org/model") for word in words]
    for typed in (words, elsewhere):
        assert [each.severity for each in findings(typed)].count("error") == 1


def test_what_is_not_served_is_no_choice() -> None:
    (found,) = worst(["--speculative-algorithm", "DRAGON"])
    assert "NGRAM" in found.text and "DFLASH" not in found.text


def test_a_refusal_is_about_the_flag_that_names_the_draft(toy: Path, tmp_path: Path) -> None:
    words = ["--model-path", str(toy), *DRAFT.split(), str(tmp_path)]
    (found,) = worst(words)
    assert found.flag == "--speculative-draft-model-path"


@pytest.mark.parametrize("named", ["/nowhere/draft", "./nowhere", "org/draft"])
def test_a_draft_lies_where_its_model_does(named: str, toy: Path) -> None:
    """What the hub may have is not looked for."""
    words = ["--model-path", str(toy), *DRAFT.split(), named]
    with pytest.raises(CannotStart, match="speculative-draft-model-path"):
        configure(parse(words, {}))
    found = [(each.flag, named in each.text) for each in worst(words)]
    assert found == [("--speculative-draft-model-path", True)] * (not named.startswith("org"))
    assert worst(["--model-path", "org/model", *words[2:]]) == []
    assert [(each.flag, named in each.text) for each in worst(words[2:])] == found  # the embedded


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
def test_a_model_without_layers_for_drafts_is_told_wherever_it_lies(algorithm: str) -> None:
    words = ["--model-path", "meta-llama/Llama-3.1-8B-Instruct", "--device", "cpu"]
    (found,) = worst([*words, "--speculative-algorithm", algorithm])
    assert "llama-3.1-8b has no layers for drafts" in found.text
    words[1] = "zai-org/GLM-4.5"
    assert worst([*words, "--speculative-algorithm", algorithm]) == []


def test_a_head_in_the_place_of_the_model_is_called_one(toy: Path, tmp_path: Path) -> None:
    described = json.loads((toy / "config.json").read_text())
    head = described | {"architectures": ["LlamaForCausalLMEagle3"]}
    (tmp_path / "config.json").write_text(json.dumps(head))
    words = ["--model-path", str(tmp_path), "--load-format", "dummy"]
    with pytest.raises(CannotStart, match="head"):
        configure(parse(words, {}))
    (found,) = worst(words)
    assert "--speculative-draft-model-path" in found.text


@pytest.mark.parametrize("line", [NGRAM, f"{DRAFT} {{toy}}", f"{DRAFT} {{toy}} {TREE}", ""])
def test_as_many_tokens_are_counted_as_the_server_verifies(line: str, toy: Path) -> None:
    words = ["--model-path", str(toy), *(word.format(toy=toy) for word in line.split())]
    (server,) = build_case(open_command(["vivace", "serve", *words]), Overrides()).servers
    assert server.draft_tokens == 1 + configure(parse(words, {})).draft_width


@pytest.mark.parametrize("line", IDLE)
def test_flags_without_effect_are_notes(line: str, toy: Path) -> None:
    words = ["--model-path", str(toy), *(word.format(toy=toy) for word in line.split())]
    started = [each for each in configure(parse(words, {})).notices if "no effect" in each]
    told = {each.text: each.flag for each in findings(words) if each.severity == "note"}
    assert len(started) == 1 and started[0].startswith(told[started[0]])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--speculative-adaptive", "leave it out"),
        ("--speculative-config {}", "--speculative-algorithm"),
        ("--draft-max 16", "llama.cpp"),
        ("--speculative-draft x", "--speculative-draft-model-path"),
        ("--speculative-algorithm eagle3", "EAGLE3"),
    ],
)
def test_flags_of_others_are_named_as_the_start_does(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(line.split(), {})
    found = worst(line.split())
    assert words in str(caught.value) and any(words in each.text for each in found)


def test_the_beginning_of_a_flag_is_one() -> None:
    words = ["--speculative-algo", "NGRAM", "--mem-fraction", "0.5", "--device", "cpu"]
    parse(words, {})
    assert worst(words) == []
