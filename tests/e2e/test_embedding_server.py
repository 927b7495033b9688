"""A real server of embeddings, whose engine dies meanwhile."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from embedding_toys import END, reference_embedding, write_embedding_toy
from running_server import RunningServer


def test_vectors_are_the_same_though_the_engine_dies(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = write_embedding_toy(folder, "mean")
    texts = [f"{number} {'sea and sky ' * 9}" for number in range(120)]
    flags = ("--model-path", str(folder), "--is-embedding", "--dtype", "float32")
    flags = (*flags, "--cpu-threads", "1", "--chunked-prefill-size", "16")
    flags = (*flags, "--tool-server", "nobody=http://127.0.0.1:9/mcp")  # which is idle, so not met
    with RunningServer(*flags, log=tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        server.wait_ready()
        assert "the mean of all tokens, normalized" in server.text()
        assert "--tool-server has no effect where no text is generated" in server.text()
        first, sent = server.children()["engine"], {"input": texts}
        asked = pool.submit(server.json, "/v1/embeddings", sent)
        deadline = time.monotonic() + 20
        while not server.json("/server_info")["internal_states"][0]["running"]:
            assert not asked.done() and time.monotonic() < deadline, server.text()
        os.kill(first, signal.SIGKILL)
        answer: dict[str, Any] = asked.result(60)
        assert "The engine died: killed by SIGKILL" in server.text()
        assert server.children()["engine"] != first
    for text, entry in zip(texts, answer["data"], strict=True):
        expected = reference_embedding(model, [*text.encode(), END], "mean")
        np.testing.assert_allclose(entry["embedding"], expected, rtol=3e-4, atol=3e-5)
