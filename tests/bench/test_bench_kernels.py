"""`vivace bench kernels` on few bytes: shapes, arithmetic and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_models import make

from vivace.bench import kernels
from vivace.platforms.cpu import measure
from vivace.platforms.cpu.native import LIBRARY

needs_kernels = pytest.mark.skipif(not LIBRARY.is_file(), reason="the kernels were not built")


@needs_kernels
def test_every_shape_format_and_row_count_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "BEYOND_CACHES", 1 << 20)
    monkeypatch.setattr(measure, "LONGEST", 1e7)
    file = tmp_path / "kernels.json"
    words = "--formats q4_1 q6_k --rows 1 5 --repetitions 1 --threads 2 --output-file"
    assert kernels.main([*words.split(), str(file)]) == 0
    written = json.loads(file.read_text())
    # 576 inputs are no multiple of q6_k's 256; the down projection's 1,536 are.
    found = [(one["inputs"], one["outputs"], one["kind"], one["rows"]) for one in written["linear"]]
    shapes = [(576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152)]
    assert found == [
        (inputs, outputs, kind, rows)
        for inputs, outputs in shapes
        for kind in (("q4_1", "q6_k") if inputs == 1536 else ("q4_1",))
        for rows in (1, 5)
    ]
    assert all(one["nbytes"] == 576 * 960 * 20 // 32 for one in written["linear"][:2])
    assert written["limits"]["bytes_per_second"] > 0 and written["limits"]["flops"] > 0
    assert "GFLOP/s" in capsys.readouterr().out


LATENT = {
    "num_hidden_layers": 2, "num_key_value_heads": 6, "head_dim": 16, "kv_lora_rank": 64,
    "q_lora_rank": 56, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
HEADS = [(96, 64 + 16 + 56), (56, 6 * 40), (6 * 40, 96)]
ALL = [(96, 64 + 16), (96, 6 * 40), (6 * 40, 96)]
"""without a rank of queries"""
ONLY = [(96, 6), (96, 64), (32, 96), (96, 128), (64, 96)]
EXPERT = [(96, 6), (96, 160), (80, 96), (96, 64), (32, 96), (96, 128), (64, 96)]
MIXTURE = {
    "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings", "shapes"),
    [
        ("DeepseekV3", LATENT, [*HEADS, *EXPERT]),
        ("DeepseekV3", LATENT | {"q_lora_rank": None, "first_k_dense_replace": 0}, [*ALL, *ONLY]),
        ("Qwen3Moe", MIXTURE, [(96, 160), (96, 96), (96, 8), (48, 96)]),
    ],
)
def test_shapes_are_those_of_the_model(
    kind: str, settings: dict[str, Any], shapes: list[tuple[int, int]], tmp_path: Path
) -> None:
    """96 numbers of a token, 6 heads, dense layers of 80, a vocabulary of 112."""
    make(kind, tmp_path, vocab_size=112, **settings)
    assert kernels.matrix_shapes(kernels.open_facts(str(tmp_path))) == [*shapes, (96, 112)]


def test_figures_follow_from_the_time() -> None:
    one = measure.LinearTime(100, 200, "f32", 3, 1e-3, 80_000)
    assert one.bytes_per_second == pytest.approx(8e7) and one.flops == pytest.approx(1.2e8)


@needs_kernels
def test_an_unknown_format_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.main(["--formats", "q3_k"]) == 2
    assert "q3_k" in capsys.readouterr().err
