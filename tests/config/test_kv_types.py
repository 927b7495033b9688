"""--kv-cache-dtype with the kernels and without them."""

from __future__ import annotations

import dataclasses

import config_kit
import pytest

from vivace.config.config import Config
from vivace.config.errors import ConfigError
from vivace.config.parsing import parse
from vivace.config.resolution import resolve

KERNELS = dataclasses.replace(
    config_kit.PLATFORM,
    features=frozenset({"kernels"}),
    dtypes=("float32", "bfloat16", "float16"),
)


def resolved(text: str) -> Config:
    return resolve(parse(text.split(), {}), config_kit.SOURCE, config_kit.facts(), KERNELS)


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        ("--dtype float32", "float32"),
        ("--dtype bfloat16", "bfloat16"),
        ("--dtype float16", "float32"),
        ("--dtype float32 --kv-cache-dtype bf16", "bfloat16"),
        ("--dtype float32 --kv-cache-dtype int8", "int8"),
        ("--dtype bfloat16 --kv-cache-dtype float32", "float32"),
        ("--dtype float16 --disable-cpu-kernels", "float16"),
        ("--dtype float32 --kv-cache-dtype float32 --disable-cpu-kernels", "float32"),
    ],
)
def test_what_keys_and_values_are_kept_in(argv: str, kept: str) -> None:
    assert resolved(argv).memory.kv_cache_dtype == kept


@pytest.mark.parametrize("kept", ["bfloat16", "int8"])
def test_without_kernels_keys_and_values_follow_the_type_of_the_model(kept: str) -> None:
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype {kept}.*--dtype.* float32"):
        resolved(f"--dtype float32 --disable-cpu-kernels --kv-cache-dtype {kept}")
