"""32 ranks on whatever cores there are: a server starts, answers with the tokens of one process,
and says what a rank costs (`pytest -s`). Slow: set VIVACE_SLOW_TESTS=1."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_server import RunningServer, wait_ended
from seeded_streams import FLAGS, body, last_event
from toy_models import make

pytestmark = [
    pytest.mark.skipif(not os.environ.get("VIVACE_SLOW_TESTS"), reason="set VIVACE_SLOW_TESTS=1"),
    pytest.mark.timeout(900),
]
LAYOUT = ("--tp-size", "32", "--dp-size", "4", "--enable-dp-attention", "--ep-size", "32")
STREAMS = 8
MOST_BYTES = 200 << 20
"""of a rank: its own pages, and its share of those that others have too"""
LATENT = {
    "vocab_size": 320, "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 24,
    "intermediate_size": 128, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 24, "n_routed_experts": 32, "num_experts_per_tok": 4, "n_group": 4,
    "topk_group": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
}  # fmt: skip


def stream_tokens(server: RunningServer, seed: int) -> list[int]:
    prompt = [5 + seed + i % 40 for i in range(3 + 7 * seed)]
    return last_event(server, body(seed, 24, prompt))["output_ids"]


def all_streams(server: RunningServer) -> dict[int, list[int]]:
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = [pool.submit(stream_tokens, server, seed) for seed in range(STREAMS)]
        return {seed: answer.result(300) for seed, answer in enumerate(answers)}


def proportional_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) << 10


def test_32_ranks_of_a_mixture_with_latents(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    make("DeepseekV3", folder, **LATENT)
    model = ("--model-path", str(folder), *FLAGS)
    with RunningServer(*model, log=tmp_path / "alone") as server:
        wanted = all_streams(server.wait_ready())
    begun = time.monotonic()
    with RunningServer(*model, *LAYOUT, log=tmp_path / "log") as server:
        server.wait_for("The server is fired up and ready to roll!", 600.0)
        seconds, workers = time.monotonic() - begun, server.workers()
        assert len(workers) == 32
        assert all_streams(server) == wanted
        sizes = sorted(proportional_bytes(pid) for pid in workers)
        print(
            f"\n32 ranks: ready after {seconds:.1f} s; proportional memory of a rank "
            f"{sizes[16] >> 20} MiB (median), {sizes[-1] >> 20} MiB (most)"
        )
        assert sizes[-1] < MOST_BYTES
        states = server.json("/server_info")["internal_states"]
        assert [state["audit"] for state in states] == [[]] * 4
    wait_ended(workers)
