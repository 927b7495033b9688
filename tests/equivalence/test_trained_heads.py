"""`vivace train draft`: what it trains is what is served, and what it says of it is so."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_head_toys import (
    EPS,
    HEAD,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    THETA,
    ReferenceHead,
    write_eagle3,
)
from engine_under_test import Setting, build_engine
from safetensors.torch import load_file, save_file
from served_toy import write_byte_tokenizer
from tokenizers import Tokenizer
from toy_models import make

from vivace import cli
from vivace.launch import transformers_process
from vivace.platforms.cpu.facts import has_kernels
from vivace.protocol.messages import Request, SamplingParams
from vivace.train.draft import find_chats
from vivace.train.head import HeadPasses, HeadSizes
from vivace.train.progress import TrainingProgress
from vivace.train.prompts import (
    cut_text,
    hold_out,
    make_chats,
    needed_sequences,
    read_chats,
    read_lines,
)
from vivace.train.state_files import StateFiles

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
AFTER = [0, 1, 2]
PLAIN = Setting(batch=4, chunk=64, radix="on", depth=1, page=16)
SMALL = "--cpu-threads 1 --dtype float32 --sequence-length 96 --draft-vocab-size 250".split()
SHORT = [*SMALL, *"--tokens 2400 --epochs 2".split()]


@dataclass(frozen=True)
class Trained:
    folder: Path

    def train(self, kind: str, output: Path, *flags: str) -> int:
        words = ["--model-path", str(self.folder / kind), "--output", str(output), *flags]
        if not {"--prompts", "--text"} & {*flags}:
            words += ["--prompts", str(self.folder / "prompts.txt")]
        return cli.main(["train", "draft", *words])


def make_prompts(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices("abcdefghij ", k=12)) for _ in range(count)]


def make_regular(folder: Path) -> None:
    """Of the layers of a random model little comes through, so what follows can be learned."""
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight *= 0.1
        elif name == "lm_head.weight":
            weight *= 2.0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    for kind in ("Llama", "Qwen3"):
        make(kind, folder / kind, **SHAPE)
        write_byte_tokenizer(folder / kind)
        make_regular(folder / kind)
    (folder / "prompts.txt").write_text("\n".join(make_prompts(60, 1)))
    return Trained(folder)


def test_passes_are_what_drafting_computes(tmp_path: Path) -> None:
    """The drafts behind a text, pass by pass, beside the paper's definition token by token."""
    model = make("Llama", tmp_path / "model", **SHAPE)
    weights = write_eagle3(tmp_path / "head", AFTER)
    reference, steps = ReferenceHead(model, weights, AFTER), 4
    known = torch.randint(3, 250, (1, 12), generator=torch.Generator().manual_seed(1))
    drafts = reference.drafts(known[0].tolist(), steps)
    ids = torch.cat((known, torch.tensor([drafts])), dim=1)
    sizes = HeadSizes(
        hidden=HIDDEN,
        inner=INNER,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD,
        features=3,
        norm_eps=EPS,
    )
    with torch.inference_mode():
        found = model(input_ids=known, use_cache=False, output_hidden_states=True).hidden_states
        features = torch.cat([found[layer + 1] for layer in AFTER], dim=-1)[:, :-1]
        angles = torch.outer(torch.arange(32.0), THETA ** (-torch.arange(0, HEAD, 2) / HEAD))
        passes = HeadPasses(sizes, weights, torch.cat((angles.cos(), angles.sin()), -1))
        embedded = model.get_input_embeddings()(ids)
        said = [
            int(passes.logits(hidden[0, -1]).argmax())
            for hidden in passes.unroll(features, embedded, steps)
        ]
    assert [one + int(weights["d2t"][one]) for one in said] == drafts


def fresh_requests(model: Path) -> list[Request]:
    """Prompts that no head was trained with"""
    encode = Tokenizer.from_str((model / "tokenizer.json").read_text("utf-8")).encode
    sampling = SamplingParams(max_new_tokens=40, temperature=0.0)
    texts = (f"user: {text}\nassistant:" for text in make_prompts(4, 2))
    return [Request(key=0, rid=text, tokens=encode(text).ids, sampling=sampling) for text in texts]


def held_out_requests(head: Path) -> list[Request]:
    """Those that the head was measured with, answered as far as they were"""
    plan = json.loads((head / "training" / "plan.json").read_text())
    files = StateFiles(head / "training", plan["tokens"], 4 * HIDDEN)
    return [
        Request(
            key=0,
            rid=str(one.prompt),
            tokens=files.tokens(one)[: one.answer].tolist(),
            sampling=SamplingParams(max_new_tokens=one.count - one.answer, temperature=0.0),
        )
        for one in files.sequences
        if one.held_out
    ]


def answer(
    model: Path, requests: list[Request], head: Path | None = None
) -> tuple[dict[str, list[int]], float | None]:
    """(tokens, the share of drafts that were right)"""
    flags = {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(head),
        "speculative_num_steps": 3,
        "speculative_fixed_width": True,
    }
    engine = build_engine(model, PLAIN, **(flags if head else {}))
    found = engine.run(requests)
    assert not engine.audit()
    return {rid: one.tokens for rid, one in found.items()}, engine.accept_rate()


def test_a_trained_head_is_served(
    toy: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--tokens 5000 --epochs 10 --batch 8 --learning-rate 3e-3 --keep-states".split()
    assert toy.train("Llama", tmp_path / "head", *SMALL, *flags) == 0
    assert "--speculative-draft-model-path" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "head").iterdir()} == {
        "config.json",
        "model.safetensors",
        "training.json",
        "training",
    }
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["draft_vocab_size"] == 250
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": AFTER}
    measured = json.loads((tmp_path / "head" / "training.json").read_text())["measured"]
    first, last = measured[0], measured[-1]
    assert last["loss"] < first["loss"] and last["rates"][0] > first["rates"][0] + 0.2
    model, head = toy.folder / "Llama", tmp_path / "head"
    requests = held_out_requests(head)
    plain, _ = answer(model, requests)
    drafted, rate = answer(model, requests, head)
    assert drafted == plain
    assert rate == pytest.approx((last["length"] - 1) / 3, abs=0.08)
    assert rate is not None and rate > 0.2


@pytest.mark.skipif(not has_kernels(), reason="torch's products depend on what runs beside them")
def test_what_was_interrupted_goes_on_to_the_same_head(
    toy: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While it collects, and while it trains."""
    update, told = TrainingProgress.update, {"Collecting": 0, "Training": 0}

    def watched(self: TrainingProgress, stage: str, fraction: float, text: str = "") -> None:
        if stage in told:
            told[stage] += 1
            self.interrupted |= told[stage] == {"Collecting": 130, "Training": 4}[stage]
        update(self, stage, fraction, text)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert toy.train("Llama", whole, *SHORT) == 0
    monkeypatch.setattr(TrainingProgress, "update", watched)
    assert toy.train("Llama", parts, *SHORT) == 130
    assert not (parts / "model.safetensors").exists()
    assert toy.train("Llama", parts, *SHORT) == 130
    assert (parts / "model.safetensors").exists()
    other = shutil.copytree(parts, tmp_path / "other")
    assert toy.train("Llama", parts, *SHORT) == 0
    assert not (parts / "training").exists()
    assert "interrupted\n" in capsys.readouterr().err
    assert toy.train("Llama", other, *SHORT, "--steps", "2", "--learning-rate", "0.5") == 0
    asked = "--learning-rate 0.5 (until now 0.001), --steps 2 (until now 3)"
    assert f"interrupted, {asked}\n" in capsys.readouterr().err
    assert told["Collecting"] > 130
    expected, found = (load_file(one / "model.safetensors") for one in (whole, parts))
    assert {*expected} == {*found}
    assert all(torch.equal(expected[name], found[name]) for name in expected)


class StepClock:
    """A second passes whenever somebody asks."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 1.0
        return self._seconds


def test_when_the_time_is_over_the_head_learns_from_what_there_is(
    toy: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on with that, where it was interrupted."""
    update, index = TrainingProgress.update, tmp_path / "head" / "training" / "sequences.jsonl"

    def interrupted(self: TrainingProgress, stage: str, fraction: float, text: str = "") -> None:
        self.interrupted |= stage == "Training"
        update(self, stage, fraction, text)

    monkeypatch.setattr("vivace.train.draft.time", StepClock())
    monkeypatch.setattr(TrainingProgress, "update", interrupted)
    flags = "--max-minutes 30 --epochs 1 --rows 16 --keep-states --sequence-length 500".split()
    assert toy.train("Llama", tmp_path / "head", *SMALL, *flags) == 130
    before = index.read_text()
    monkeypatch.setattr(TrainingProgress, "update", update)
    assert toy.train("Llama", tmp_path / "head", *SMALL, *flags) == 0
    assert index.read_text() == before
    found = [json.loads(line) for line in before.splitlines()]
    assert len(found) > 4
    assert all(one["answer"] + 2 <= one["count"] < 500 for one in found)


def test_texts_and_given_answers_are_learned_as_they_are(toy: Trained, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the cat sat on the mat. " * 60)
    flags = ["--text", str(tmp_path / "book.txt"), "--keep-states", "--draft-vocab-size", "11"]
    assert toy.train("Qwen3", tmp_path / "of text", *SHORT, *flags) == 0
    lines = (tmp_path / "of text" / "training" / "sequences.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["count"] for line in lines) == 24 * 60
    head = load_file(tmp_path / "of text" / "model.safetensors")
    encode = Tokenizer.from_str((toy.folder / "Qwen3" / "tokenizer.json").read_text("utf-8")).encode
    said = (head["d2t"] + torch.arange(11)).tolist()
    assert said == sorted({*encode("the catsonm.").ids})
    assert head["t2d"].nonzero().squeeze(1).tolist() == said
    chats = [
        {
            "messages": [
                {"role": "user", "content": text},
                {"role": "assistant", "content": "cat " * 9},
            ]
        }
        for text in make_prompts(12, 3)
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    flags = ["--prompts", str(tmp_path / "chats.jsonl"), "--answers", "given"]
    assert toy.train("Qwen3", tmp_path / "of chats", *SHORT, *flags) == 0
    model = toy.folder / "Qwen3"
    requests = fresh_requests(model)
    plain, _ = answer(model, requests)
    assert answer(model, requests, tmp_path / "of chats")[0] == plain


def test_as_many_tokens_as_a_refusal_asks_for_are_enough(toy: Trained, tmp_path: Path) -> None:
    assert toy.train("Llama", tmp_path / "head", *SMALL, *"--tokens 480 --epochs 1".split()) == 0
    for batch in range(1, 100):
        least = needed_sequences(batch)
        learned = [
            sum(not one.held_out for one in hold_out([[1]] * count, answered=True, seed=0))
            for count in (least - 1, least)
        ]
        assert learned[0] < batch <= learned[1]


REFUSED: dict[str, tuple[list[str], str]] = {
    "no text": (["--text", "empty.txt"], "no text"),
    "a missing file": (["--text", "nowhere.txt"], "No such file"),
    "no UTF-8": (["--text", "latin.txt"], "UTF-8"),
    "too many prompts": (["--prompts", "huge.jsonl"], "64 MiB"),
    "little text": (["--text", "short.txt"], "--batch"),
    "no JSON": (["--prompts", "wrong.jsonl"], "line 1"),
    "no prompt": (["--prompts", "other.jsonl"], "line 1"),
    "no answers": (["--prompts", "chats.jsonl", "--answers", "given"], "line 1"),
    "two sources": (["--prompts", "short.txt", "--text", "short.txt"], "not allowed"),
    "another output": (["--output", "."], "new folder"),
    "an output in a file": (["--output", "short.txt"], "short.txt"),
    "a long sequence": (["--sequence-length", "513"], "--sequence-length 513"),
    "a large vocabulary": (["--draft-vocab-size", "9999"], "above the model's vocabulary"),
    "few tokens": (["--tokens", "479"], "480"),
    "drafts": (["--speculative-algorithm", "NGRAM"], "--speculative-algorithm"),
    "ranks": (["--tp-size", "2"], "--tp-size"),
    "engines": (["--dp-size", "2"], "one engine"),
    "another epoch": (["--epochs", "0"], "below 1"),
    "more rows than an engine has": (["--rows", "65537"], "--rows"),
    "a seed that torch does not take": (["--seed", str(1 << 63)], "--seed"),
    "given answers of texts": (["--text", "short.txt", "--answers", "given"], "messages"),
    "no number": (["--learning-rate", "nan"], "not a number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused_first(
    toy: Trained,
    tmp_path: Path,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "empty.txt": b" \n",
        "latin.txt": b"caf\xe9",
        "short.txt": b"two words",
        "wrong.jsonl": b"{",
        "other.jsonl": b'{"text": 3}',
        "chats.jsonl": b'{"prompt": "a question"}',
        "huge.jsonl": b"",
    }
    for name, content in files.items():
        Path(name).write_bytes(content)
    os.truncate("huge.jsonl", (64 << 20) + 1)
    flags, said = REFUSED[case]
    assert run_refused(toy, Path("head"), *flags) == 2
    assert said in capsys.readouterr().err
    assert not Path("head").exists()


def run_refused(toy: Trained, output: Path, *flags: str) -> int:
    try:
        return toy.train("Llama", output, *SMALL, *flags)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def test_other_flags_do_not_go_on_with_what_was_begun(
    toy: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "head"
    assert toy.train("Llama", head, *SHORT, "--keep-states", "--epochs", "1") == 0
    assert toy.train("Llama", head, *SHORT, "--seed", "1") == 2
    assert "new folder" in capsys.readouterr().err


def test_what_others_have_in_a_folder_stays(
    toy: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder `training` of somebody else, a model, a link, and names beside what is ours."""
    for name in ("project", "model", "linked", "more"):
        (tmp_path / name).mkdir()
    (tmp_path / "project" / "training").mkdir()
    (tmp_path / "project" / "training" / "thesis.txt").write_text("precious")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "linked" / "training").symlink_to(tmp_path / "project" / "training")
    (tmp_path / "more" / "training").mkdir()
    (tmp_path / "more" / "notes").write_text("mine")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for name in ("project", "model", "linked", "more"):
        assert toy.train("Llama", tmp_path / name, *SHORT) == 2
        assert "is there already" in capsys.readouterr().err
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_a_folder_is_of_one_training(
    toy: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "head"
    (head / "training").mkdir(parents=True)
    other = os.open(head / "training" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert toy.train("Llama", head, *SHORT) == 2
    assert "another training" in capsys.readouterr().err
    os.close(other)
    assert toy.train("Llama", head, *SHORT, "--epochs", "1") == 0
    assert not (head / "training").exists()


def test_what_a_disk_does_is_said(
    toy: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = tmp_path / "head"
    assert toy.train("Llama", head, *SHORT, "--keep-states", "--epochs", "1") == 0
    (head / "training" / "checkpoint.safetensors").write_bytes(b"\xff" * 500)
    assert toy.train("Llama", head, *SHORT) == 2
    assert "damaged" in capsys.readouterr().err
    (head / "training" / "checkpoint.safetensors").unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vivace.train.folder.save_file", full)
    assert toy.train("Llama", head, *SHORT, "--epochs", "1") == 2
    assert "No space left" in capsys.readouterr().err


def test_an_index_is_read_up_to_what_cannot_be_true(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, 100, 4)
    for prompt in range(3):
        files.add([1] * 10, torch.zeros(10, 4), prompt=prompt, answer=0, held_out=False)
    index = tmp_path / "sequences.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    for third in (b'{"first":-5,"count":10,"prompt":2,"answer":0}\n', lines[2][:20], lines[1]):
        index.write_bytes(lines[0] + lines[1] + third)
        again = StateFiles(tmp_path, 100, 4)
        assert again.count == 20
        again.add([1] * 10, torch.zeros(10, 4), prompt=2, answer=0, held_out=False)
        assert [one.first for one in StateFiles(tmp_path, 100, 4).sequences] == [0, 10, 20]


def test_lines_end_where_files_say(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('\n{"prompt": "one\u2028line"}\r\n"two\x85"\n')
    lines = read_lines(file)
    assert [*lines] == [2, 3]
    assert [chat[0]["content"] for chat in read_chats(file, lines, "generated")] == [
        "one\u2028line",
        "two\x85",
    ]


def test_no_more_prompts_are_read_than_are_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(map(str, range(1000))))
    asked = {"prompts": file, "answers": "generated", "tokens": 200, "batch": 4}
    found, again, others = (
        find_chats(argparse.Namespace(**asked, seed=seed)) for seed in (0, 0, 1)
    )
    assert len(found) == 15 and found == again != others
    assert "15 of 1,000" in capsys.readouterr().err
    assert len(find_chats(argparse.Namespace(**asked | {"tokens": 20_000}, seed=0))) == 1000


def test_no_more_of_a_text_becomes_tokens_than_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    class Letters:
        def encode(self, text: str) -> list[int]:
            encoded.append(text)
            return [*map(ord, text)]

    monkeypatch.setattr("vivace.train.prompts.PART", 100)
    text = "".join(chr(1000 + place) for place in range(1000))
    letters: Any = Letters()
    found = cut_text(text, letters, 64, 150, 1)
    assert len(encoded) == 2 and all(one in text for one in encoded)
    assert [len(one) for one in found] == [64, 36, 64, 36]
    assert sum(map(len, cut_text(text, letters, 64, 1 << 40, 1))) == 1000


def test_there_are_no_more_prompts_than_there_are() -> None:
    found = [chat[0]["content"] for chat in make_chats(1 << 40, 1)]
    assert 7000 < len({*found}) == len(found)


def test_a_full_disk_is_noticed_first(
    toy: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    assert toy.train("Llama", tmp_path / "head", *SHORT) == 2
    assert "--tokens" in capsys.readouterr().err and not (tmp_path / "head").exists()


@pytest.mark.parametrize("kind", ["Gemma2", "--model-impl"])
def test_models_without_taps_are_refused(
    toy: Trained,
    tmp_path: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = list[str]()
    if kind.startswith("--"):
        flags, kind = [kind, "transformers"], "Llama"
        monkeypatch.setattr(transformers_process, "facts_by_transformers", pytest.fail)
    else:
        make(kind, toy.folder / kind, **SHAPE)
        write_byte_tokenizer(toy.folder / kind)
    assert toy.train(kind, tmp_path / "head", *SHORT, *flags) == 2
    assert "heads do not draft" in capsys.readouterr().err


@pytest.mark.slow
def test_the_embedded_model_gets_a_head_of_its_own_prompts(tmp_path: Path) -> None:
    """Blocks of a GGUF file, with activations in int8."""
    flags = "--tokens 3000 --sequence-length 64 --epochs 1 --draft-vocab-size 500".split()
    assert cli.main(["train", "draft", "--output", str(tmp_path / "head"), *flags]) == 0
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 14, 26]
