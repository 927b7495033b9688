"""How vectors are pooled, as sentence-transformers' files say it; every value is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vivace.checkpoint.errors import SourceError
from vivace.checkpoint.pooling import PoolerConfig, read_modules, read_pooling
from vivace.checkpoint.source import ModelSource

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOL = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
LAST = {"word_embedding_dimension": 8, "pooling_mode_lasttoken": True, "include_prompt": True}


def write(folder: Path, modules: Any, config: Any) -> Path:
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (LAST, "last"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}, "cls"),
        ({"pooling_mode": "lasttoken", "word_embedding_dimension": 8}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_what_the_files_say(tmp_path: Path, config: Any, mode: str) -> None:
    folder = write(tmp_path, [TRANSFORMER, POOL, NORMALIZE], config)
    assert read_modules(folder, 8) == PoolerConfig(mode=mode, normalize=True)
    folder = write(tmp_path, [TRANSFORMER, POOL], config)
    assert read_modules(folder, 8) == PoolerConfig(mode=mode, normalize=False)


def test_without_files_the_last_token_normalized(tmp_path: Path) -> None:
    assert read_modules(tmp_path, 8) == PoolerConfig(mode="last", normalize=True)
    assert read_pooling(gguf(tmp_path), 8) == PoolerConfig()


def test_a_file_that_is_none_is_not_a_missing_one(tmp_path: Path) -> None:
    """A link of the hub's cache whose file was never fetched; a folder."""
    file = tmp_path / "modules.json"
    file.symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(SourceError, match=r"modules\.json"):
        read_modules(tmp_path, 8)
    file.unlink()
    file.mkdir()
    with pytest.raises(SourceError, match=r"modules\.json"):
        read_modules(tmp_path, 8)


def gguf(folder: Path, **config: Any) -> ModelSource:
    path = folder / "model.gguf"
    spelling = {"pooling_type": "qwen3.pooling_type"}
    return ModelSource(
        path=path, format="gguf", files=(), config=config, tokenizer_path=path, spelling=spelling
    )


@pytest.mark.parametrize(("kind", "mode"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_what_a_gguf_file_says(tmp_path: Path, kind: int, mode: str) -> None:
    assert read_pooling(gguf(tmp_path, pooling_type=kind), 8) == PoolerConfig(mode=mode)
    for other in (0, 4, 9, "mean", -1):
        with pytest.raises(SourceError, match=r"qwen3\.pooling_type"):
            read_pooling(gguf(tmp_path, pooling_type=other), 8)


def named(folder: Path, **config: Any) -> ModelSource:
    source = ModelSource(
        path=folder, format="safetensors", files=(), config=config, tokenizer_path=folder
    )
    write(folder, [TRANSFORMER, POOL, NORMALIZE], LAST)
    return source


def test_sizes_to_which_vectors_may_be_cut(tmp_path: Path) -> None:
    assert read_pooling(named(tmp_path), 8).dimensions is None
    assert read_pooling(named(tmp_path, is_matryoshka=True), 8).dimensions is None
    assert read_pooling(named(tmp_path, is_matryoshka=False), 8).dimensions == ()
    assert read_pooling(named(tmp_path, matryoshka_dimensions=[2, 8]), 8).dimensions == (2, 8)
    for wrong in ([], [9], [0], ["2"], 4, [2.5]):
        with pytest.raises(SourceError, match="matryoshka_dimensions"):
            read_pooling(named(tmp_path, matryoshka_dimensions=wrong), 8)


MODULES = [TRANSFORMER, POOL, NORMALIZE]
DENSE = {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}


@pytest.mark.parametrize(
    ("modules", "config", "named"),
    [
        ({}, LAST, "modules.json"),
        ([], LAST, "modules.json"),
        ([TRANSFORMER], LAST, "Transformer"),
        ([*MODULES, DENSE], LAST, "Dense"),
        ([POOL, TRANSFORMER], LAST, "path"),
        ([TRANSFORMER, 5], LAST, "modules.json"),
        ([TRANSFORMER, {**POOL, "type": 5}], LAST, "type"),
        ([TRANSFORMER, {**POOL, "path": "../other"}], LAST, "path"),
        ([TRANSFORMER, {**POOL, "path": "/etc"}], LAST, "path"),
        ([TRANSFORMER, {**POOL, "path": ".."}], LAST, "path"),
        ([TRANSFORMER, {**POOL, "path": None}], LAST, "path"),
        ([{**TRANSFORMER, "path": "0_Transformer"}, POOL], LAST, "path"),
        ([TRANSFORMER, {**POOL, "path": "2_Pooling"}], LAST, "2_Pooling"),
        (MODULES, [], "config.json"),
        (MODULES, {}, "pooling_mode"),
        (MODULES, {**LAST, "pooling_mode_mean_tokens": True}, "pooling_mode"),
        (MODULES, {**LAST, "pooling_mode_lasttoken": "yes"}, "pooling_mode_lasttoken"),
        (MODULES, {**LAST, "pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        (MODULES, {**LAST, "word_embedding_dimension": 9}, "word_embedding_dimension"),
        (MODULES, {**LAST, "include_prompt": 1}, "include_prompt"),
        (MODULES, {"pooling_mode": "max"}, "pooling_mode"),
    ],
)
def test_what_nothing_here_does_is_refused(
    tmp_path: Path, modules: Any, config: Any, named: str
) -> None:
    with pytest.raises(SourceError) as caught:
        read_modules(write(tmp_path, modules, config), 8)
    assert named in str(caught.value) and str(tmp_path) in str(caught.value)
