"""Runs the requests of one streamed answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aiohttp import web

from vivace.frontend.request_output import RequestOutput
from vivace.protocol.request import Request
from vivace.server.collect import refusal_of, start
from vivace.server.context import Context
from vivace.server.pace import Work
from vivace.server.request_log import RequestLog
from vivace.server.sse import Encode, EventStream, StreamLimits


async def stream(
    context: Context,
    http: web.Request,
    requests: list[Request],
    encoders: Sequence[Encode],
    *,
    epilogue: Callable[[], bytes] = bytes,
    quiet: bool = False,
) -> web.StreamResponse:
    """Answer with events, `encoders[i]` for `requests[i]`; a client that leaves cancels them all.

    Until the first piece the answer can still become an error with its own status.
    """
    settings = context.settings
    limits = StreamLimits(
        settings.stream_high_water, settings.stream_hold_limit, settings.stream_stall
    )
    events = EventStream(limits, epilogue, context.pace)
    try:
        outlets = [
            events.outlet(encode if quiet else logged(context, request, encode))
            for request, encode in zip(requests, encoders, strict=True)
        ]
        await context.pace.run(start(context.frontend, requests, outlets))
        refusal = refusal_of((await events.first()).finish)
        if refusal is not None:
            raise refusal
        response = await events.run(http, {})
    except BaseException:
        context.frontend.cancel([request.key for request in requests])
        raise
    if events.failed:
        context.frontend.cancel([request.key for request in requests])
    return response


def logged(context: Context, request: Request, encode: Encode) -> Encode:
    """The encoder, with a line in the request log at the end; itself when nobody logs."""
    return Logged(context.request_log, request, encode) if context.request_log.enabled else encode


class Logged:
    """An encoder that logs the end of its sequence."""

    def __init__(self, request_log: RequestLog, request: Request, encode: Encode) -> None:
        self.quick = encode.quick
        self._log = request_log
        self._request = request
        self._encode = encode

    def __call__(self, piece: RequestOutput) -> bytes:
        self._look_at(piece)
        return self._encode(piece)

    def parts(self, piece: RequestOutput) -> Work[list[bytes]] | None:
        work = self._encode.parts(piece)
        if work is not None:
            self._look_at(piece)
        return work

    def _look_at(self, piece: RequestOutput) -> None:
        if piece.finish is not None:
            self._log.finished(self._request, piece, time.monotonic() - self._request.arrival)
