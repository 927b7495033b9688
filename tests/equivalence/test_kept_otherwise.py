"""Layers that keep latents or states instead of keys and values: the same tokens, whatever is
switched on, as `test_same_tokens` has it for attention."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
import torch
from cached_toys import CONTEXT, VOCABULARY, CachedToy
from engine_under_test import Answer, Engine, Setting, build_config, toy_requests, write_toy_llama
from pairwise import pairwise
from test_same_tokens import answer_tokens, asked, warm

from vivace.platforms.cache import own_windows
from vivace.platforms.cpu.facts import has_kernels
from vivace.platforms.platform import Platform, PlatformSettings, detect, load_platform
from vivace.protocol.messages import CacheGroup
from vivace.worker.build import assemble
from vivace.worker.captures import Captures
from vivace.worker.sizing import PoolSize
from vivace.worker.worker import Worker

MODELS = {
    "latent": ("latent", "latent"),
    "recurrent": ("recurrent", "recurrent"),
    "hybrid": ("recurrent", "attention", "recurrent", "latent", "window"),
}
SETTINGS = {
    "batch": [1, 7, 20],
    "chunk": [-1, 1, 17, 64],
    "radix": ["off", "cold", "warm", "partly evicted"],
    "depth": [1, 2],
    "page": [1, 16],
    "mixed": [False, True],
    "stall": [0.0, 0.001, 50.0],
    "retraction": [False, True],
    "weights": [*MODELS],
    "state_interval": [16, 48],
    "windows": ["own", "tight"],
}
ROWS = pairwise(SETTINGS, seed=50)
"""with the seed of 200 whose rows take the fewest steps"""
COUNT = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Any model: the configuration is made of its files."""
    return write_toy_llama(tmp_path_factory.mktemp("kept") / "toy")


def other_groups(kinds: tuple[str, ...], setting: Setting, pages: int) -> tuple[CacheGroup, ...]:
    groups = []
    if "window" in kinds:
        row = CacheGroup(pages=0, reach=23).row_pages(64, setting.page)
        count = row if setting.windows == "tight" else min(pages, setting.batch * row + 200)
        groups.append(CacheGroup(pages=count, reach=23))
    if "recurrent" in kinds:
        states = 2 if setting.windows == "tight" else setting.batch + 40
        groups.append(CacheGroup(pages=states, reach=1, state=True))
    return tuple(groups)


def toy_worker(kinds: tuple[str, ...], setting: Setting, tokens: int) -> Worker:
    torch.set_num_threads(1)
    platform = load_platform(detect("cpu"), PlatformSettings(threads=1, deterministic=True))
    return assemble_toy(kinds, setting, tokens, platform)


def assemble_toy(
    kinds: tuple[str, ...],
    setting: Setting,
    tokens: int,
    platform: Platform,
    kv_dtype: torch.dtype = torch.float32,
    captures: Captures = Captures(),
) -> Worker:
    model, pages = CachedToy(platform.ops, kinds), tokens // setting.page
    size = PoolSize(
        pages=pages,
        rows=setting.batch,
        context=CONTEXT,
        cache_share=pages,
        others=other_groups(kinds, setting, pages),
    )
    assert len(own_windows(model.attention_layers, CONTEXT)) == ("window" in kinds)
    return assemble(
        model,
        model.attention_layers,
        platform,
        size,
        page_size=setting.page,
        dtype=torch.float32,
        vocabulary=VOCABULARY,
        kv_dtype=kv_dtype,
        captures=captures,
    )


def build_engine(folder: Path, setting: Setting) -> Engine:
    config = build_config(folder, setting)
    tokens = config.memory.max_total_tokens
    assert tokens is not None
    return Engine(toy_worker(MODELS[setting.weights], setting, tokens), config, setting)


@cache
def plain_answers(folder: Path, weights: str) -> dict[str, Answer]:
    plain = Setting(
        batch=1, chunk=-1, radix="off", depth=1, page=1, operations="torch", weights=weights
    )
    return build_engine(folder, plain).run(toy_requests(COUNT, stream=False))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_same_tokens_of_layers_that_keep_something_else(
    folder: Path, row: dict[str, object]
) -> None:
    setting = Setting(**row, operations="torch")  # type: ignore[arg-type]
    engine = build_engine(folder, setting)
    requests = asked(setting, COUNT)
    warm(engine, setting, requests)
    answers = engine.run(requests, arrivals=random.Random(1))
    plain = plain_answers(folder, setting.weights)
    assert answer_tokens(answers) == {rid: plain[rid].tokens for rid in answers}
    assert engine.audit() == []
    assert engine.held_tokens() == 0


def test_every_layer_decides_tokens(folder: Path) -> None:
    """Else the array would compare nothing: each model has answers of its own, and prompts that
    differ in their first token only do not go on alike."""
    answers = [answer_tokens(plain_answers(folder, name)) for name in MODELS]
    assert all(one != other for one in answers for other in answers if one is not other)


@pytest.mark.skipif(not has_kernels(), reason="no native kernels")
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("kinds", [("latent", "latent"), ("latent", "attention", "window")])
def test_latents_by_kernels_give_the_same_tokens_captured_and_batched(
    folder: Path, kinds: tuple[str, ...], kv_dtype: torch.dtype
) -> None:
    plain = Setting(batch=1, chunk=-1, radix="off", depth=1, page=16, windows="own")
    busy = Setting(
        batch=9, chunk=17, radix="warm", depth=2, page=16, windows="tight", mixed=True,
        retraction=True,
    )  # fmt: skip
    answers = []
    for setting, threads, captures in ((plain, 1, Captures()), (busy, 2, Captures((9,)))):
        facts = PlatformSettings(threads=threads, kernels=True)
        platform = load_platform(detect("cpu"), facts)
        config = build_config(folder, setting)
        tokens = config.memory.max_total_tokens
        assert tokens is not None
        worker = assemble_toy(kinds, setting, tokens, platform, kv_dtype, captures)
        engine = Engine(worker, config, setting)
        requests = toy_requests(COUNT, stream=False)
        warm(engine, setting, requests)
        answers.append(answer_tokens(engine.run(requests, arrivals=random.Random(1))))
        assert engine.audit() == []
    assert answers[0] == answers[1]
