"""A model loaded in this process answers."""

from __future__ import annotations

import contextlib
from typing import Any

from rich.console import Console

from vivace.chat.backend import NO_LIMIT, Answering, ChatError, Message, Settings, TextChunk
from vivace.checkpoint.source import EMBEDDED_NAME

NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
"""settings that the engine calls otherwise"""


class LocalBackend:
    """Loading shows its stages on `console`, if that is a terminal."""

    def __init__(self, model_path: str | None, console: Console) -> None:
        name = model_path or "the embedded model"
        with console.status(f"Loading {name}: Python modules") as status:
            from vivace.api import Engine

            def show(stage: str, fraction: float) -> None:
                part = f" {fraction:.0%}" if 0 < fraction < 1 else ""
                status.update(f"Loading {name}: {stage}{part}")

            self._engine = Engine(
                model_path, on_progress=show, needs_chat_template=True, stream_output=True
            )

    def describe(self) -> str:
        source = self._engine.config.source
        name = EMBEDDED_NAME if source.embedded else source.path.name
        return f"{name} in this process"

    def answer(self, messages: list[Message], settings: Settings) -> Answering:
        from vivace import BadRequest, EngineUnavailable

        sampling: dict[str, Any] = {NAMES.get(name, name): settings[name] for name in settings}
        if sampling.get("max_new_tokens") == NO_LIMIT:
            sampling["max_new_tokens"] = None
        try:
            found: Any = self._engine.chat(messages, sampling, stream=True)
            with contextlib.closing(found):
                for event in found:
                    meta = event["meta_info"]
                    ended = (meta["finish_reason"] or {}).get("type")
                    yield TextChunk(
                        text=event["text"],
                        tokens=meta["completion_tokens"],
                        cut=ended == "length",
                    )
        except (BadRequest, EngineUnavailable) as error:
            raise ChatError(str(error)) from error
