"""`vivace bench kernels` on few bytes: shapes, arithmetic and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def test_figures_follow_from_the_time() -> None:
    one = measure.LinearTime(100, 200, "f32", 3, 1e-3, 80_000)
    assert one.bytes_per_second == pytest.approx(8e7) and one.flops == pytest.approx(1.2e8)


@needs_kernels
def test_an_unknown_format_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.main(["--formats", "q3_k"]) == 2
    assert "q3_k" in capsys.readouterr().err
