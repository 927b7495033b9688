"""The embedded model, end to end: serve, ask, shut down."""

from __future__ import annotations

from pathlib import Path

from running_server import RunningServer

FLAGS = ("--tokenizer-worker-num", "2", "--cpu-threads", "1", "--max-total-tokens", "4096")
"""One thread, so that a busy machine does not make the two wait for each other."""
CAPTURE = "Capturing decode steps"
"""the native kernels' own stage"""
STAGES = ["Loading PyTorch", "Loading weights", "Sizing the KV pool", CAPTURE, "Warming up"]
QUESTION = [{"role": "user", "content": "What is gravity?"}]


def test_the_embedded_model_answers(tmp_path: Path) -> None:
    with RunningServer(*FLAGS, log=tmp_path / "log") as server:
        server.wait_listening()
        while server.call("GET", "/ready")[0] != 200:
            assert server.process.poll() is None
        assert "ready to roll" in server.text(), "who asks is not told before the log"
        (model,) = server.json("/v1/models")["data"]
        ask = {"model": model["id"], "messages": QUESTION, "max_tokens": 16, "temperature": 0}
        answer = server.json("/v1/chat/completions", ask)
        text = answer["choices"][0]["message"]["content"]
        assert text.startswith("Gravity is")
        chunks = list(server.stream("/v1/chat/completions", ask))
        parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]]
        assert text.startswith("".join(parts)) and "Gravity" in "".join(parts)
        native = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 4}}
        assert server.json("/generate", native)["meta_info"]["completion_tokens"] == 4
        summary = server.text()
        assert "of weights" in summary and "curl http://127.0.0.1" in summary
        told = server.json("/server_info")["internal_states"][0]["instructions"]
        assert told.startswith(("native kernels, ", "torch, ")) and told in summary
        said = [line.partition("] ")[2] for line in summary.splitlines()]
        stages = [stage for stage in STAGES if stage != CAPTURE or told.startswith("native")]
        assert [line for line in said if line in STAGES] == stages, "each once, in order"
        assert "\x1b" not in summary and "after the start of this process" in summary
        server.signal()
        assert server.wait(20) == 0
