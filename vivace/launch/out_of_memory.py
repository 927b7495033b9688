"""What to change when a process found no memory, by what it was doing then."""

from __future__ import annotations

from vivace.config.config import Config
from vivace.supervisor.child import OutOfMemory

GIB = 1 << 30
SIZING = "Sizing the KV pool"
CAPTURING = "Capturing decode steps"
FREE = "free memory (or raise the container's limit)"


def memory_advice(config: Config, lack: OutOfMemory) -> str:
    """A sentence for the log."""
    if lack.role == "frontend":
        return f"{FREE}; requests with large bodies and many log-probabilities take the most here"
    if lack.serving:
        return f"KV pages take memory when they are first used: {_pool(config)}; {_steps(config)}"
    if lack.stage == SIZING:
        return f"for the KV pool {_pool(config)}"
    if lack.stage == CAPTURING:
        return f"for the buffers of a step {_steps(config)}"
    return f"{_weights(config)}: {FREE}, or choose a smaller model or a smaller quantization"


def _weights(config: Config) -> str:
    size = 0
    for path in config.source.files:
        try:
            size += path.stat().st_size
        except OSError:
            continue
    free = f"{_gib(config.platform.available_bytes)} were free before the start"
    return f"{free}, the model's files take {_gib(size)}" if size else free


def _pool(config: Config) -> str:
    fraction, tokens = config.memory.mem_fraction_static, config.memory.max_total_tokens
    return f"lower {_flag('mem-fraction-static', fraction)} or {_flag('max-total-tokens', tokens)}"


def _steps(config: Config) -> str:
    chunk, rows = config.schedule.chunked_prefill_size, config.schedule.max_running_requests
    return f"lower {_flag('chunked-prefill-size', chunk)} or {_flag('max-running-requests', rows)}"


def _flag(name: str, value: float | None) -> str:
    return f"--{name}" if value is None else f"--{name} (now {value:g})"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
