"""Data sets: exact lengths, deterministic by seed, and clear refusals."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.bench import datasets
from vivace.bench.datasets.consecutive_ids import ConsecutiveIds
from vivace.bench.datasets.random_tokens import RandomPrompts, repeat
from vivace.bench.datasets.shared_prefix import SharedPrefix
from vivace.bench.datasets.sharegpt import whole_items
from vivace.bench.errors import BenchError
from vivace.bench.flags import parse
from vivace.bench.tokenizer import PromptMaker, SplitCodec, ordinary_ids
from vivace.bench.workload import lengths_between
from vivace.errors import CannotStart


class WordCodec:
    """Ids are words; two letters "a b" in a row merge into one id, as BPE would."""

    name = "words"
    vocabulary = 400
    special = 7
    """Ids below this decode to nothing."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> list[int]:
        ids = [self._id(word) for word in text.split(" ")[1:]]
        merged: list[int] = []
        for token in ids:
            if merged and merged[-1] == 20 and token == 21:
                merged[-1] = 22
            else:
                merged.append(token)
        return merged

    def _id(self, word: str) -> int:
        number = 0
        for letter in word:
            number = number * 26 + ord(letter) - ord("a")
        return number

    def _word(self, token: int) -> str:
        letters = ""
        while token:
            token, digit = divmod(token, 26)
            letters = chr(ord("a") + digit) + letters
        return letters or "a"

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [
            "".join(f" {self._word(token)}" for token in row if token >= self.special)
            for row in rows
        ]

    def chat(self, messages: list[dict[str, Any]]) -> str:
        return "".join(f" chat{message['content']}" for message in messages)


CODECS = st.sampled_from([WordCodec(), SplitCodec()])


@settings(max_examples=60, deadline=None)
@given(
    codec=CODECS,
    count=st.integers(1, 12),
    length=st.integers(1, 80),
    ratio=st.floats(0, 1),
    seed=st.integers(0, 9),
    as_ids=st.booleans(),
)
def test_random_prompts_have_the_lengths_they_claim(
    codec: Any, count: int, length: int, ratio: float, seed: int, as_ids: bool
) -> None:
    dataset = RandomPrompts(
        count=count, input_len=length, output_len=length, ratio=ratio, seed=seed, as_ids=as_ids
    )
    queries = dataset.queries(codec)
    lowest = max(int(length * ratio), 1)
    assert len(queries) == count
    for query in queries:
        ids = query.prompt if as_ids else codec.encode([query.prompt])[0]
        assert len(ids) == query.input_len
        assert lowest <= query.input_len <= length
        assert lowest <= query.output_len <= length
    assert queries == dataset.queries(codec)


@settings(deadline=None)
@given(st.integers(1, 500), st.floats(0, 1), st.integers(0, 3))
def test_lengths_stay_in_range(length: int, ratio: float, seed: int) -> None:
    import random

    found = lengths_between(random.Random(seed), length, ratio, 50)
    assert max(int(length * ratio), 1) <= min(found)
    assert max(found) <= length
    if ratio == 1:
        assert set(found) == {length}


def test_special_ids_are_never_drawn() -> None:
    codec = WordCodec()
    ordinary = ordinary_ids(codec)
    assert min(ordinary) >= codec.special
    assert set(PromptMaker(codec, 3).ids(2000)) <= set(ordinary)


def test_other_seeds_give_other_prompts() -> None:
    def prompts(seed: int) -> list[Any]:
        dataset = RandomPrompts(
            count=3, input_len=40, output_len=1, ratio=1.0, seed=seed, as_ids=True
        )
        return [query.prompt for query in dataset.queries(SplitCodec())]

    assert prompts(1) != prompts(2)


def test_random_prompts_share_no_prefix() -> None:
    dataset = RandomPrompts(count=20, input_len=16, output_len=1, ratio=1.0, seed=1, as_ids=True)
    starts = {tuple(query.prompt[:4]) for query in dataset.queries(SplitCodec())}
    assert len(starts) == 20


def test_consecutive_ids_are_consecutive() -> None:
    dataset = ConsecutiveIds(count=5, input_len=9, output_len=2, ratio=1.0, seed=4, as_ids=True)
    ordinary = ordinary_ids(SplitCodec())
    for query in dataset.queries(SplitCodec()):
        places = [ordinary.index(token) for token in query.prompt]
        steps = {(b - a) % len(ordinary) for a, b in itertools.pairwise(places)}
        assert steps == {1}


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, 5),
    per_group=st.integers(1, 5),
    as_ids=st.booleans(),
    ordered=st.booleans(),
    zipf=st.sampled_from([None, 0.5, 2.0]),
    seed=st.integers(0, 3),
)
def test_groups_share_their_prefix(
    groups: int, per_group: int, as_ids: bool, ordered: bool, zipf: float | None, seed: int
) -> None:
    codec = WordCodec()
    dataset = SharedPrefix(
        groups=groups,
        per_group=per_group,
        system_len=30,
        question_len=6,
        output_len=4,
        zipf_alpha=zipf,
        ordered=ordered,
        routing_key=True,
        seed=seed,
        as_ids=as_ids,
    )
    queries = dataset.queries(codec)
    assert len(queries) == groups * per_group
    assert queries == dataset.queries(codec)
    by_group: dict[str | None, set[Any]] = {}
    for query in queries:
        ids = query.prompt if as_ids else codec.encode([query.prompt])[0]
        assert len(ids) == query.input_len
        by_group.setdefault(query.routing_key, set()).add(tuple(ids[:29]))
    assert all(len(prefixes) == 1 for prefixes in by_group.values())
    if zipf is None:
        assert set(Counter(q.routing_key for q in queries).values()) == {per_group}
    if ordered:
        keys = [query.routing_key for query in queries]
        assert len([1 for a, b in itertools.pairwise(keys) if a != b]) == len(by_group) - 1


def test_turns_become_followups() -> None:
    dataset = SharedPrefix(
        groups=2, per_group=2, system_len=5, question_len=3, output_len=2, turns=3
    )
    queries = dataset.queries(WordCodec())
    assert all(len(query.followups) == 2 for query in queries)
    with pytest.raises(BenchError, match="tokenize-prompt"):
        SharedPrefix(
            groups=1,
            per_group=1,
            system_len=5,
            question_len=3,
            output_len=2,
            turns=2,
            as_ids=True,
        ).queries(WordCodec())


def conversation(*texts: str) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": text} for text in texts]}


SHAREGPT = [
    conversation("hello there", "general answer"),
    conversation("x", "too short a prompt"),
    conversation("no answer"),
    conversation("a question of some length", "ok", "more", "turns"),
    conversation("long " * 50, "answer"),
]


def loaded(flags: str, file: Path) -> list[Any]:
    args = parse([*flags.split(), "--dataset-path", str(file)])
    return datasets.load(args, SplitCodec())


def test_sharegpt_takes_first_turns_within_limits(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(SHAREGPT))
    queries = loaded("--sharegpt-context-len 100", file)
    found = {(query.prompt, query.output_len) for query in queries}
    assert found == {("hello there", 14), ("a question of some length", 2)}
    assert all(query.input_len == len(query.prompt) for query in queries)
    fixed = loaded("--sharegpt-output-len 9 --num-prompts 2 --prompt-suffix !!", file)
    assert [query.output_len for query in fixed] == [9, 9]
    assert all(query.prompt.endswith("!!") for query in fixed)


def test_a_truncated_file_gives_what_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(SHAREGPT)[:-30])
    assert len(loaded("", file)) == 2
    assert "stops in the middle; 4 whole entries" in capsys.readouterr().err


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(), st.integers())), st.integers(0, 400))
def test_whole_items_are_a_prefix(items: list[Any], cut: int) -> None:
    text = json.dumps(items)
    found = whole_items(text[: max(len(text) - cut, 0)])
    assert found == items[: len(found)]
    assert cut > 1 or found == items


def test_random_from_a_sharegpt_file_has_exact_lengths(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(SHAREGPT))
    flags = "--dataset-name random --num-prompts 6 --random-input-len 64 --random-range-ratio 1"
    for extra in ("", " --tokenize-prompt"):
        queries = loaded(flags + extra, file)
        assert [query.input_len for query in queries] == [64] * 6
        assert [len(query.prompt) for query in queries] == [64] * 6


def test_repeated() -> None:
    assert repeat([1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert repeat([1, 2, 3], 2) == [1, 2]


def test_custom_lines(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    lines = [
        conversation("question", "answer"),
        {"prompt": "text", "output_len": 5, "timestamp": 1500},
        {"prompt": [65, 66, 67], "timestamp": 0},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    queries = loaded("--dataset-name custom", file)
    assert [(q.prompt, q.input_len, q.output_len) for q in queries] == [
        ("question", 8, 6),
        ("text", 4, 5),
        ([65, 66, 67], 3, 256),
    ]
    with pytest.raises(BenchError, match=r"c.jsonl:1 needs `timestamp`"):
        loaded("--dataset-name custom --use-trace-timestamps", file)


def test_openai_lines(tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 7, "tools": [1]}
    file.write_text(json.dumps(body | {"model": "x", "stream": False}))
    chat = loaded("--dataset-name openai --backend sglang-oai-chat", file)[0]
    assert (chat.prompt, chat.output_len, chat.extra) == (body["messages"], 7, {"tools": [1]})
    native = loaded("--dataset-name openai", file)[0]
    assert (native.prompt, native.input_len, native.extra) == ("<user>hi", 8, {})


def test_generated_prompts_can_be_wrapped() -> None:
    flags = "--dataset-name random --num-prompts 2 --random-input-len 5 --random-range-ratio 1"
    plain = datasets.load(parse(flags.split()), SplitCodec())
    args = parse([*flags.split(), "--apply-chat-template", "--prompt-suffix", "?"])
    wrapped = datasets.load(args, SplitCodec())
    assert wrapped[0].prompt == f"<user>{plain[0].prompt}?"
    assert wrapped[0].input_len == 5 + len("<user>?")


@pytest.mark.parametrize(
    ("flags", "content", "message"),
    [
        ("--dataset-name sharegpt", None, "needs --dataset-path"),
        ("--dataset-name custom", None, "needs --dataset-path"),
        ("--dataset-name custom", "{broken", ":1 is not JSON"),
        ("--dataset-name custom", "[1]", ":1 must be a JSON object"),
        ("--dataset-name custom", "{}", ":1 needs `conversations`"),
        ("--dataset-name openai", "{}", ":1 needs `messages`"),
        ("--dataset-name sharegpt", "{}", "must hold a JSON array"),
        ("--dataset-name sharegpt", "[]", "no conversation with two turns"),
        ("--dataset-name random --random-input-len 0", "", "at least 1 token"),
    ],
)
def test_refusals_say_where(tmp_path: Path, flags: str, content: str | None, message: str) -> None:
    file = tmp_path / "data.json"
    file.write_text(content or "")
    words = [*flags.split(), *(["--dataset-path", str(file)] if content else [])]
    with pytest.raises((BenchError, CannotStart), match=message):
        datasets.load(parse(words), SplitCodec())
