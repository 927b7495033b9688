"""The requests of one `generate` call and what has come of them."""

from __future__ import annotations

from collections import deque
from typing import Any

from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.frontend import Frontend
from vivace.frontend.native import NativeAnswer
from vivace.frontend.piece import Piece
from vivace.protocol.output import FINISH_ABORT, Finish
from vivace.protocol.request import Request


class Job:
    """Collects pieces in whatever thread turns the engine; read by the thread that asked."""

    def __init__(
        self, frontend: Frontend, requests: list[Request], answers: list[NativeAnswer]
    ) -> None:
        self._frontend = frontend
        self._requests = requests
        self._answers = answers
        self._news: deque[tuple[int, Piece]] = deque()
        self._open = len(requests)

    def start(self) -> None:
        try:
            for index, request in enumerate(self._requests):
                self._frontend.start(request, _Slot(self._news, index))
        except BaseException:
            self.cancel()
            raise

    @property
    def done(self) -> bool:
        """Every request has ended and its last piece was taken."""
        return not self._open

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def cancel(self) -> None:
        """Stop what still runs; harmless when nothing does."""
        self._frontend.cancel([request.key for request in self._requests])

    def take(self) -> None:
        """Add the news to the answers. Raises what a failed request failed of."""
        while self._news:
            index, piece = self._news.popleft()
            self._answers[index].add(piece)
            self._close(piece.finish)

    def take_event(self) -> dict[str, Any]:
        """The next streamed event; call only with `has_news`."""
        index, piece = self._news.popleft()
        event = self._answers[index].event(piece)
        self._close(piece.finish)
        return event

    def bodies(self) -> list[dict[str, Any]]:
        return [answer.body() for answer in self._answers]

    def _close(self, finish: Finish | None) -> None:
        if finish is None:
            return
        self._open -= 1
        if finish.type != FINISH_ABORT or finish.status is None:
            return
        message = finish.message or "the request was aborted"
        if finish.status < 500:
            raise BadRequest("", message, finish.status)
        raise EngineUnavailable(message)


class _Slot:
    """The sink of one request of a job."""

    def __init__(self, news: deque[tuple[int, Piece]], index: int) -> None:
        self._news = news
        self._index = index

    def push(self, piece: Piece) -> None:
        self._news.append((self._index, piece))
