"""A toy Llama behind the real server, in processes of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

START_SECONDS = 60


@dataclass(frozen=True)
class ToyServer:
    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=30) as answer:
            return json.load(answer)["internal_states"][0]

    def settled_state(self) -> dict[str, Any]:
        """The state once idle, at most 20 s later."""
        state = self.state()
        for _ in range(100):
            if not state["running"] and not state["waiting"]:
                break
            time.sleep(0.2)
            state = self.state()
        return state


def write_toy_llama(folder: Path, layers: int = 2, hidden: int = 64) -> Path:
    """A random Llama with a byte tokenizer and a chat template, as a checkpoint directory."""
    toy_llama(layers, hidden).save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def toy_llama(layers: int = 2, hidden: int = 64) -> Any:
    """The random Llama, as transformers has it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=256,
        eos_token_id=257,
    )
    return LlamaForCausalLM(config)


def write_byte_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve_toy(folder: Path, flags: list[str]) -> Iterator[ToyServer]:
    """Start `python -m vivace.launch_server` on a toy checkpoint, wait until ready, stop it."""
    model, log, port = write_toy_llama(folder / "model"), folder / "server.log", free_port()
    command = [sys.executable, "-m", "vivace.launch_server", "--model-path", str(model)]
    command += ["--port", str(port), "--dtype", "float32"]
    command += ["--cpu-threads", "1", *flags]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    toy = ToyServer(f"http://127.0.0.1:{port}", log, process)
    try:
        wait_until_ready(toy)
        yield toy
    finally:
        process.terminate()
        process.wait(30)


def wait_until_ready(toy: ToyServer) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and toy.process.poll() is None:
        try:
            with urllib.request.urlopen(f"{toy.url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the toy server did not become ready:\n{toy.log.read_text()[-4000:]}")
