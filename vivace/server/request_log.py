"""`--log-requests`: one line when a request comes, one when it is answered."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from vivace.errors import CannotStart
from vivace.files import open_own_file
from vivace.frontend.request_output import RequestOutput
from vivace.observability.log import LineWriter, LogSwitches
from vivace.protocol.messages import Request

log = logging.getLogger("vivace.requests")
server_log = logging.getLogger("vivace.server")

LEVELS = range(4)
FORMATS = ("text", "json")
FILE_NAME = "requests.log"
MAX_FILE_BYTES = 1 << 30
"""Bytes of a requests.log, about; then it becomes requests.log.1, and the one before is removed."""
NAMES = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
    "conversation_id",
    "routing_key",
    "external_trace_header",
)
"""Fields of requests by which clients find their lines again, and wishes that change no token;
nothing else reads them."""
EXCERPT = 2048
"""Characters (or ids) of input and output shown at level 2."""


def add_targets(targets: Sequence[str]) -> None:
    """Where request lines go: "stdout" (the server's log), and directories (requests.log in each).

    Raises CannotStart when a directory cannot be written.
    """
    log.propagate = not targets or "stdout" in targets
    for target in targets:
        if target == "stdout":
            continue
        try:
            Path(target).mkdir(parents=True, exist_ok=True)
            handler = LineFile(Path(target) / FILE_NAME)
        except OSError as error:
            raise CannotStart(f"--log-requests-target {target}: {error}") from None
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)


class LineFile(logging.Handler):
    """Appends to a file that other frontends append to as well. When that fails the server's log
    says so once, and again when it works."""

    def __init__(self, path: Path) -> None:
        """OSError when it cannot be opened."""
        super().__init__()
        self._path = path
        self._reported = False
        self._lines = self._open()

    def emit(self, record: logging.LogRecord) -> None:
        if os.fstat(self._lines.descriptor).st_size >= MAX_FILE_BYTES:
            self._begin_another()
        self._lines.write(self.format(record) + "\n")

    def close(self) -> None:
        self._lines.close()
        super().close()

    def _open(self) -> LineWriter:
        path = self._path
        return LineWriter(
            open_own_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666),
            troubled=lambda reason: server_log.error("%s: %s; its lines are lost", path, reason),
            recovered=lambda lost: server_log.warning("%s works again; %d lines lost", path, lost),
        )

    def _begin_another(self) -> None:
        """Rename the file unless another frontend has; where that fails, go on with it."""
        try:
            full = self._lines.descriptor
            fcntl.flock(full, fcntl.LOCK_EX)  # until it is closed
            if os.path.samestat(os.fstat(full), self._path.stat()):
                self._path.rename(f"{self._path}.1")
            lines = self._open()
        except OSError as error:
            self._report("%s has %d MiB and cannot be renamed: %s", error.strerror or error)
            return
        self._lines.close()
        self._lines = lines
        self._report(
            "%s has %d MiB and is now %s, in place of an older one", f"{self._path.name}.1"
        )

    def _report(self, text: str, last: object) -> None:
        if not self._reported:
            self._reported = True
            server_log.warning(text, self._path, MAX_FILE_BYTES >> 20, last)


class RequestLog:
    """Level 0: ids and counts; 1: and sampling settings; 2: and the start of the text; 3: all.
    `memory` is `LogSwitches`'."""

    def __init__(
        self, *, enabled: bool, level: int, form: str, memory: memoryview | None = None
    ) -> None:
        self.switches = LogSwitches((int(enabled), level, FORMATS.index(form)), memory)

    @property
    def level(self) -> int:
        return self.switches.level

    @property
    def form(self) -> str:
        return FORMATS[self.switches.form]

    def change(self, enabled: bool | None, level: int | None, form: str | None) -> None:
        """For all frontends; None leaves it as it is."""
        self.switches.change(enabled, level, None if form is None else FORMATS.index(form))

    def log_received(
        self, endpoint: str, requests: list[Request], params: object, text: str | None = None
    ) -> None:
        """Log what was asked; `text` is the prompt when it came as text. Call it when the switches
        say `enabled`."""
        names = {name: getattr(params, name, None) for name in NAMES}
        for request in requests:
            facts: dict[str, Any] = {
                "rid": request.rid,
                "endpoint": endpoint,
                "prompt_tokens": len(request.tokens),
                "stream": request.stream,
                **{name: self._excerpt(value) for name, value in names.items() if value},
            }
            if self.level >= 1:
                facts["sampling_params"] = msgspec.to_builtins(request.sampling)
            if self.level >= 2:
                facts["input"] = self._excerpt(request.tokens if text is None else text)
            self._write("Receive", "request.received", facts)

    def log_finished(self, request: Request, output: RequestOutput, seconds: float) -> None:
        """Log what was answered; `output` is the whole answer, or the last output of a stream."""
        if not self.switches.enabled:
            return
        facts: dict[str, Any] = {
            "rid": request.rid,
            "finish_reason": output.finish.type if output.finish else None,
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": output.completion_tokens,
            "cached_tokens": output.cached_tokens,
            "e2e_latency": round(seconds, 6),
        }
        if self.level >= 2 and not request.stream:
            facts["output"] = self._excerpt(output.text)
        self._write("Finish", "request.finished", facts)

    def _excerpt(self, value: Any) -> Any:
        """Of text, ids, or an object, which becomes text where it is long."""
        if isinstance(value, dict):
            written = msgspec.json.encode(value).decode()
            return value if self.level >= 3 or len(written) <= EXCERPT else written[:EXCERPT]
        return value if self.level >= 3 or len(value) <= EXCERPT else value[:EXCERPT]

    def _write(self, word: str, name: str, facts: dict[str, Any]) -> None:
        if self.form == "json":
            line = msgspec.json.encode({"event": name, **facts}).decode()
        else:
            line = f"{word}: " + ", ".join(f"{key}={value!r}" for key, value in facts.items())
        log.info("%s", line)
