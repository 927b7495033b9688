"""Captured decode steps in a worker: when they are replayed, and that nobody can tell by a bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prompt_parts import collect_rows
from toy_model import VOCABULARY, Driver, ToyModel, skip_unbuilt, toy_worker

from vivace.platforms.errors import CaptureError
from vivace.platforms.platform import StepShape
from vivace.protocol.messages import LogprobOptions
from vivace.worker.captures import Captures
from vivace.worker.drafters.scripted import ScriptedDrafter

ROWS = 6
NEW = 20


@pytest.fixture(autouse=True)
def built():
    skip_unbuilt("captured")


def answers(*, chunk=20, **worker):
    """Rows of every kind that come one step apart: (tokens, log-probabilities of both kinds)."""
    driver = Driver(toy_worker(rows=ROWS, tokens=1600, **worker)[0])
    random = np.random.default_rng(8)
    prompts = [random.integers(0, VOCABULARY, length).tolist() for length in (9, 1, 33, 18, 70, 5)]
    logprobs = {row: ([], []) for row in range(ROWS)}
    captured = []
    for step in range(60):
        if step < ROWS:
            kind = {"temperature": 0.9, "seed": step} if step % 2 else {}
            wanted = LogprobOptions(start=0, top=3)
            driver.join(step, prompts[step], logprobs=wanted, **kind)
        rows = [row for row in driver.sequences if len(drawn_tokens(driver, row)) < NEW + row]
        result = driver.step({row: driver.advance(row, chunk) for row in rows})
        captured.append(result.captured)
        for index, row in enumerate(rows):
            logprobs[row][0].extend(result.prompt_logprobs.get(index, []))
            logprobs[row][1].extend(result.logprobs.get(index, []))
    scored = {
        row: (collect_rows(prompts[row], LogprobOptions(start=0, top=3), parts), drawn)
        for row, (parts, drawn) in logprobs.items()
    }
    return [drawn_tokens(driver, row) for row in range(ROWS)], scored, captured


def drawn_tokens(driver, row):
    sequence = driver.sequences[row]
    return sequence["tokens"][sequence["prompt"] :]


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
    ],
)
@pytest.mark.parametrize(
    "captures", [Captures((ROWS,)), Captures((1, 2, 5)), Captures((2, 4), exact=True)]
)
def test_captured_equals_eager_bit_for_bit(dtype, kv_dtype, captures):
    kind = {"dtype": dtype, "kv_dtype": kv_dtype}
    tokens, logprobs, captured = answers(operations="eager", **kind)
    assert not any(captured)
    found, scored, replayed = answers(operations="captured", captures=captures, **kind)
    assert any(replayed) and not all(replayed)
    assert found == tokens and scored == logprobs


def test_short_chunks_are_replayed_bit_for_bit():
    """Beside decoding rows, too: each token is a row of the decode step."""
    tokens, logprobs, _ = answers(operations="eager")
    found, scored, replayed = answers(operations="captured", chunk=3)
    assert replayed[:2] == [True, True], "chunks of three tokens and one row that decodes"
    assert found == tokens and scored == logprobs


def test_any_number_of_threads():
    tokens, logprobs, _ = answers(operations="eager", threads=1)
    for operations in ("eager", "captured"):
        found, scored, _ = answers(operations=operations, threads=3)
        assert found == tokens and scored == logprobs


def decoding(count, **worker):
    driver = Driver(toy_worker(rows=ROWS, **worker)[0])
    for row in range(count):
        driver.join(row, [3, 4 + row])
    assert not driver.step(dict.fromkeys(range(count), 2)).captured, "a prompt is no decode step"
    return driver


@pytest.mark.parametrize(
    ("captures", "replayed"),
    [
        (Captures((6,)), [1, 2, 3, 4, 5, 6]),
        (Captures((1, 4)), [1, 2, 3, 4]),
        (Captures((4, 1, 4), exact=True), [1, 4]),
        (Captures(), []),
    ],
)
def test_which_steps_are_replayed(captures, replayed):
    driver = decoding(6, operations="captured", captures=captures)
    for count in range(1, 7):
        result = driver.step(dict.fromkeys(range(count), 1))
        assert result.captured is (count in replayed), count
    for length, tokens in ((2, 4), (3, 5), (6, 8)):
        driver.leave(5)
        driver.join(5, [1] * length)
        short = driver.step({0: 1, 1: 1, 5: length})
        wanted = tokens in replayed and not captures.exact
        assert short.captured is wanted, "as many tokens as rows of a decode step"


@pytest.mark.parametrize("operations", ["torch", "eager"])
def test_eager_steps_are_not_called_captured(operations):
    driver = decoding(2, operations=operations)
    assert not driver.step({0: 1, 1: 1}).captured


def test_what_cannot_be_captured_ends_the_start(monkeypatch):
    forward = ToyModel.forward
    monkeypatch.setattr(ToyModel, "forward", lambda self, step: forward(self, step) * 2)
    with pytest.raises(CaptureError, match=r"aten\.mul.*--disable-cuda-graph"):
        toy_worker(operations="captured")
    driver = Driver(toy_worker(operations="eager")[0])
    driver.join(0, [1, 2])
    assert len(driver.generate(0, 3)) == 3


def test_progress_is_told():
    told = []
    toy_worker(
        operations="captured",
        captures=Captures((1, 2, 4, 8)),
        report=lambda stage, fraction: told.append((stage, fraction)),
    )
    assert {stage for stage, _ in told} == {"Capturing decode steps"}
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions) and fractions[0] == 0.0 and fractions[-1] == 1.0
    assert len(fractions) >= 4


class FixedGraph:
    """As graphs of CUDA and NPUs: a replay computes every row that was captured."""

    computes_all_rows = True
    nbytes = 0

    def __init__(self, run, result):
        self._run, self._result = run, result

    def replay(self, step, shape):
        self._result.copy_(self._run())


class FixedRecorder:
    most_tokens_per_row = 8
    nbytes = 0

    def __init__(self, kernels, ranks):
        pass

    def capture(self, run, shape):
        result = run().clone()
        return FixedGraph(run, result), result


@pytest.fixture
def fixed_rows(monkeypatch):
    monkeypatch.setattr("vivace.platforms.cpu.platform.CpuGraphs", FixedRecorder)


def test_rows_of_a_fixed_capture_equal_eager_ones(fixed_rows):
    tokens, logprobs, _ = answers(operations="eager")
    found, scored, replayed = answers(operations="captured", captures=Captures((2, ROWS)))
    assert any(replayed)
    assert found == tokens and scored == logprobs


def test_rows_that_pad_a_capture_lie_in_the_empty_page():
    """Whatever a step before had there: each of their tokens, and all pages that they see."""
    worker, _ = toy_worker(
        page_size=2, rows=4, drafter=ScriptedDrafter(4, lambda known, n: [0] * n)
    )
    driver, inputs = Driver(worker), worker._inputs
    for row in range(4):
        driver.join(row, [3 + row, 10 + row, 20 + row])
    driver.step(dict.fromkeys(range(4), 3))
    driver.step(dict.fromkeys(range(4), 5))
    shape = StepShape(4, 5)
    inputs.pad(1, shape)
    step = inputs.decode_step(shape, worker._attention)
    (pages,), empty = step.groups, worker._kv.empty_pages[0]
    assert (pages.slot_mapping[5:] // 2 == empty).all() and (
        pages.slot_mapping[:5] // 2 < empty
    ).all()
    assert (pages.page_table[1:4, :3] == empty).all() and (pages.page_table[0, :3] < empty).all()
    assert step.context_lens[1:].tolist() == [5] * 3
    assert step.query_starts.tolist() == [0, 5, 10, 15, 20]


def test_a_row_that_left_writes_into_no_page_that_is_somebody_elses(fixed_rows):
    """Its pages belong to a new prompt while a fixed capture still computes its row."""

    def drive(operations):
        driver = Driver(toy_worker(rows=4, tokens=800, operations=operations)[0])
        for row in range(4):
            driver.join(row, [3 + row, 10 + row, 20 + row])
        driver.step(dict.fromkeys(range(4), 3))
        for _ in range(4):
            driver.step(dict.fromkeys(range(4), 1))
        pages = driver.leave(3)["pages"]
        driver.free = driver.free[len(pages) :]
        driver.join(3, [(7 * place) % VOCABULARY for place in range(30)], pages=pages[:1])
        driver.step({3: 20})
        for _ in range(3):  # rows 0 to 2 decode beside a fourth that nobody asked for
            driver.step(dict.fromkeys(range(3), 1))
        driver.step({3: 10})
        for _ in range(8):
            driver.step(dict.fromkeys(range(4), 1))
        return [drawn_tokens(driver, row) for row in range(4)]

    assert drive("captured") == drive("eager")


@pytest.mark.parametrize("page_size", [16, 1])
def test_steps_that_verify_drafts_are_replays_of_their_own_shape(fixed_rows, page_size):
    """Captures are for rows and tokens per row; with drafts a decode step has more than one."""

    def drive(operations, **worker):
        sizes = {"rows": 5, "tokens": 1600, "page_size": page_size}
        driver = Driver(toy_worker(operations=operations, **sizes, **worker)[0])
        drafts = worker["drafter"].width if worker else 0
        for row in range(4):
            driver.join(row, [3 + row, 10 + row, 20 + row])
        driver.step(dict.fromkeys(range(4), 3))
        replayed = []
        for rows in [4, 3, 4, 1, 2] * 8:
            result = driver.step(dict.fromkeys(range(rows), 1 + drafts))
            replayed.append(result.captured)
        return [drawn_tokens(driver, row)[:8] for row in range(4)], replayed

    wanted, _ = drive("eager")
    drafter = ScriptedDrafter(2, lambda known, count: [known[-1], 7][:count])
    tokens, replayed = drive("captured", drafter=drafter)
    assert tokens == wanted
    assert all(replayed)


def test_drafts_of_many_rows_are_replayed_whatever_their_widths():
    """More tokens than rows; each is a row of the capture."""

    def drive(operations, widths):
        drafter = ScriptedDrafter(7, lambda known, count: [known[-1], 7, *[9] * count][:count])
        captures = Captures((32,)) if operations == "captured" else Captures()
        worker, _ = toy_worker(
            operations=operations, rows=4, tokens=1600, drafter=drafter, captures=captures
        )
        driver = Driver(worker)
        for row in range(4):
            driver.join(row, [3 + row, 10 + row, 20 + row])
        driver.step(dict.fromkeys(range(4), 3))
        replayed = [
            driver.step({row: 1 + width for row, width in enumerate(step)}).captured
            for step in widths
        ]
        return [drawn_tokens(driver, row)[:8] for row in range(4)], replayed

    wanted, _ = drive("eager", [(0, 0, 0, 0)] * 8)
    tokens, replayed = drive("captured", [(7, 7, 7, 7), (0, 5, 7, 2), (6, 6, 1, 0)] * 3)
    assert tokens == wanted
    assert all(replayed)
