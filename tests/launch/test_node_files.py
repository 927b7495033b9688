"""A node does not go on with other weights than those it has begun with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from served_toy import write_toy_llama

from vivace.config.parsing import from_arguments
from vivace.errors import CannotStart
from vivace.launch import node
from vivace.launch.configure import configure


@pytest.mark.parametrize("changed", [False, True])
def test_who_joins_again_has_the_same_files(
    changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(
        from_arguments(model_path=str(write_toy_llama(tmp_path)), skip_tokenizer_init=True)
    )
    lives: list[int | None] = [None, 0]

    class Life:
        def __init__(self, *given: Any) -> None: ...

        def run(self) -> int | None:
            if changed:
                weights = tmp_path / "model.safetensors"
                weights.write_bytes(weights.read_bytes()[:-1] + b"x")
            return lives.pop(0)

    monkeypatch.setattr(node, "NodeLife", Life)
    monkeypatch.setattr(node, "join_engines", lambda config: [])
    monkeypatch.setattr(node, "answer_probes", lambda config, serves: None)
    if not changed:
        assert node.follow_engines(config) == 0
        return
    with pytest.raises(CannotStart, match="changed"):
        node.follow_engines(config)
    assert lives == [0]
