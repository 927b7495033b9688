"""A long stream of a model with windows: the KV of layers with a window stays as short as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_under_test import Engine, Setting, build_engine, skip_unbuilt
from toy_models import make

from vivace.protocol.messages import Request, SamplingParams

WINDOW, PAGE, CHUNK, CONTEXT = 64, 16, 2048, 20_500
OUTPUT = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 with one full layer after every five with a window, as published."""
    folder = tmp_path_factory.mktemp("long")
    make(
        "Gemma3Text",
        folder,
        num_hidden_layers=6,
        max_position_embeddings=CONTEXT,
        sliding_window=WINDOW,
        head_dim=16,
    )
    return folder


def run(model: Path, windows: str) -> tuple[Engine, list[int], int]:
    """(engine, tokens, most pages the stream had of the window pool between two steps)"""
    setting = Setting(batch=2, chunk=CHUNK, radix="cold", depth=1, page=PAGE, windows=windows)
    engine = build_engine(model, setting, tokens=2 * CONTEXT)
    prompt = [3 + (7 * place + place // 90) % 90 for place in range(20_000)]
    request = Request(
        key=0,
        rid="long",
        tokens=prompt,
        sampling=SamplingParams(max_new_tokens=OUTPUT, temperature=0.0, ignore_eos=True),
    )
    most = 0

    def look() -> None:
        nonlocal most
        if engine.decoding():
            most = max(most, engine.most_window_pages())

    return engine, engine.run([request], after_step=look)["long"].tokens, most


def test_the_kv_of_a_long_stream_shrinks_as_computed(model: Path) -> None:
    skip_unbuilt("captured")
    together, wanted, _ = run(model, "one pool")
    engine, tokens, most = run(model, "own")
    assert tokens == wanted and len(tokens) == OUTPUT
    # a window, the page it begins in, and the page that the next tokens go to
    assert most <= WINDOW // PAGE + 2
    # 20,040 tokens: one layer of six keeps them all, five keep their pool
    (pool,) = engine.window_pages()
    pages = 2 * CONTEXT // PAGE
    assert engine.kv_bytes() / together.kv_bytes() == pytest.approx(
        (pages + 5 * pool) / (6 * pages), rel=0.01
    )
    assert engine.kv_bytes() < 0.3 * together.kv_bytes()
