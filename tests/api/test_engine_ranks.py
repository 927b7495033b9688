"""An engine of several ranks inside of a program: the first one is the program's process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from served_toy import write_toy_llama

import vivace
from vivace.bench.one_batch import main as one_batch
from vivace.errors import CannotStart
from vivace.frontend.errors import EngineUnavailable
from vivace.platforms.cpu import platform as cpu

FLAGS: dict[str, Any] = {
    "cpu_threads": 2,
    "max_total_tokens": 512,
    "skip_tokenizer_init": True,
    "disable_cuda_graph": True,
}
PROMPTS = [[5, 6, 7, 8, 9], [11, 12]]
SAMPLING = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_llama(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def wanted(toy: Path) -> list[list[int]]:
    with vivace.Engine(toy, **FLAGS) as engine:
        return tokens(engine)


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    before = set(children())
    yield
    assert set(children()) <= before


def children() -> list[psutil.Process]:
    gc.collect()
    return psutil.Process().children(recursive=True)


def ranks(before: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in children() if one not in before]


def tokens(engine: Any) -> list[list[int]]:
    return [
        one["output_ids"] for one in engine.generate(input_ids=PROMPTS, sampling_params=SAMPLING)
    ]


def test_tokens_are_those_of_one_process(toy: Path, wanted: list[list[int]]) -> None:
    before = children()
    with vivace.Engine(toy, tp_size=2, pp_size=2, **FLAGS) as engine:
        assert tokens(engine) == wanted
        assert len(ranks(before)) == 3
        if not (fork := os.fork()):
            engine.shutdown()
            os._exit(0)
        assert os.waitpid(fork, 0)[1] == 0
        stream = engine.generate(input_ids=PROMPTS[0], sampling_params=SAMPLING, stream=True)
        assert list(stream)[-1]["output_ids"] == wanted[0]


def test_ranks_end_with_an_engine_that_nobody_has(toy: Path, wanted: list[list[int]]) -> None:
    """Of two that start at the same time each knows and ends its own."""
    before, engines = children(), list[Any]()

    def start() -> None:
        engines.append(vivace.Engine(toy, tp_size=2, **FLAGS))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    here = {one.pid for one in ranks(before)}
    first, second = ({one.pid for one in engine._driver._loop.local_ranks} for engine in engines)
    assert len(first) == len(second) == 1 and first | second == here
    assert [tokens(engine) for engine in engines] == [wanted, wanted]
    engines.pop()
    assert {one.pid for one in ranks(before)} == first
    engines.clear()
    assert not ranks(before)


def test_engines_without_kernels_come_and_go(toy: Path, wanted: list[list[int]]) -> None:
    """Several at once and one after another: none takes what torch has one of in a program."""
    flags = {**FLAGS, "tp_size": 2, "disable_cpu_kernels": True}
    with vivace.Engine(toy, **flags) as first:
        with vivace.Engine(toy, **flags) as second:
            assert tokens(second) == tokens(first) == wanted
        assert tokens(first) == wanted
    assert not torch.distributed.is_initialized()
    files = len(list(Path("/proc/self/fd").iterdir()))
    with vivace.Engine(toy, **flags) as third:
        assert tokens(third) == wanted
    del first, second, third
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


PROGRAM = """
import sys, time
import psutil, vivace
engine = vivace.Engine(sys.argv[1], tp_size=2, max_total_tokens=512, skip_tokenizer_init=True)
engine.generate(input_ids=[1, 2], sampling_params={"max_new_tokens": 2})
(rank,) = [one for one in psutil.Process().children() if "vivace.launch.child" in one.cmdline()]
print(rank.pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("ending", [pytest.param("itself", marks=pytest.mark.slow), "killed"])
def test_ranks_end_with_the_program(toy: Path, ending: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(toy)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        assert program.stdout is not None
        rank = psutil.Process(int(program.stdout.readline()))
        if ending == "killed":
            program.kill()
        _, errors = program.communicate("\n", timeout=60)
    assert program.returncode == (0 if ending == "itself" else -signal.SIGKILL), errors
    assert "Traceback" not in errors
    with suppress(psutil.NoSuchProcess):
        rank.wait(10)


def test_a_rank_that_dies_is_named_and_the_program_goes_on(
    toy: Path, wanted: list[list[int]]
) -> None:
    before = children()
    engine = vivace.Engine(toy, tp_size=2, **FLAGS)
    (rank,) = ranks(before)
    os.kill(rank.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="rank 1"):
            tokens(engine)
    driver = weakref.ref(engine._driver)
    del engine
    gc.collect()
    assert driver() is None
    with vivace.Engine(toy, tp_size=2, **FLAGS) as engine:
        assert tokens(engine) == wanted


def test_a_rank_that_is_stopped_is_named_and_ended(toy: Path) -> None:
    """Also one that nobody waits to end: a program that is closed is closed."""
    before = children()
    with vivace.Engine(toy, tp_size=2, watchdog_timeout=2, **FLAGS) as engine:
        (rank,) = ranks(before)
        rank.suspend()
        with pytest.raises(EngineUnavailable, match="stopped") as raised:
            tokens(engine)
        assert f"rank 1 (process {rank.pid})" in str(raised.value)


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        ("Loading weights", KeyboardInterrupt),
        pytest.param("Starting ranks", KeyboardInterrupt, marks=pytest.mark.slow),
        ("Starting ranks", ZeroDivisionError),
        pytest.param("Loading weights", ZeroDivisionError, marks=pytest.mark.slow),
    ],
)
def test_what_the_program_raises_in_a_start_is_its_own(
    toy: Path, stage: str, error: type[BaseException]
) -> None:
    def interrupt(told: str, fraction: float) -> None:
        if told == stage and (fraction or stage == "Loading weights"):
            raise error

    with pytest.raises(error):
        vivace.Engine(toy, tp_size=2, on_progress=interrupt, **FLAGS)


def test_shutdown_that_is_interrupted_ends_the_ranks(toy: Path) -> None:
    before = children()
    engine = vivace.Engine(toy, tp_size=2, pp_size=2, **FLAGS)
    ranks(before)[0].suspend()
    alarm = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    alarm.start()
    with pytest.raises(KeyboardInterrupt):
        engine.shutdown()
    assert not ranks(before)


def test_a_rank_that_dies_while_it_starts_is_named(toy: Path) -> None:
    before = children()
    killed: list[psutil.Process] = []

    def kill(stage: str, fraction: float) -> None:
        if stage == "Loading weights" and not killed:
            killed.extend(ranks(before))
            for rank in killed:
                rank.kill()

    with pytest.raises(CannotStart, match="rank 1"):
        vivace.Engine(toy, tp_size=2, on_progress=kill, **FLAGS)


def test_one_batch_is_computed_by_all_ranks(
    toy: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "keep_freed_blocks", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    words = "--max-total-tokens 512 --cpu-threads 2 --skip-tokenizer-init --correctness-test"
    command = ["--model-path", str(toy), *f"{words} --tp-size 2 --pp-size 2".split()]
    assert one_batch(command) == 0
    assert capfd.readouterr().out.count(": equal") == 3
