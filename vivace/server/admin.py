"""Endpoints that change the server: admin key, if one is set."""

from __future__ import annotations

from typing import Any, Literal

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.protocol.messages import FlushCache, RecordExperts
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.request_log import FORMATS, LEVELS
from vivace.server.responses import HTTPError, json_response, text_response
from vivace.server.schema import AbortRequest, ConfigureLogging

ABORT = BodyReader(AbortRequest)
LOGGING = BodyReader(ConfigureLogging)


async def flush_cache(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """Drop the prefix cache; 400 while requests run or wait."""
    replies = await context.command(FlushCache())
    for reply in replies:
        if reply is not None and not reply.ok:
            raise HTTPError(400, f"Flush cache failed: {reply.message}")
    return text_response(
        "Cache flushed.\nPlease check backend logs for more details. "
        "(When there are running or waiting requests, the operation will not be performed.)\n"
    )


async def start_expert_record(context: Context, _request: web.Request, _body: Body) -> web.Response:
    return await record_experts(context, "start", "Start recording expert distribution.\n")


async def stop_expert_record(context: Context, _request: web.Request, _body: Body) -> web.Response:
    return await record_experts(context, "stop", "Stop recording expert distribution.\n")


async def dump_expert_record(context: Context, _request: web.Request, _body: Body) -> web.Response:
    return await record_experts(context, "dump", "Dump expert distribution record.\n")


async def record_experts(
    context: Context, action: Literal["start", "stop", "dump"], done: str
) -> web.Response:
    """Of every engine that keeps records; 400 where nobody counts, 500 where a file cannot be."""
    replies = await context.command(RecordExperts(action))
    for reply in replies:
        if reply is not None and not reply.ok:
            raise HTTPError(reply.status, f"expert distribution: {reply.message}")
    names = [reply.message for reply in replies if reply is not None and reply.message]
    return text_response(done + "".join(f"{name}\n" for name in names if action == "dump"))


async def abort_request(context: Context, _request: web.Request, body: Body) -> web.Response:
    """Abort requests by id prefix, or all; 200 whether or not any was found."""
    params = await ABORT.read(context, body)
    prefix = "" if params.abort_all else params.rid
    if prefix is None or (not prefix and not params.abort_all):
        raise BadRequest("rid", "give a request id (prefix), or abort_all: true")
    context.frontend.abort(prefix)
    return web.Response()


async def configure_logging(context: Context, _request: web.Request, body: Body) -> web.Response:
    """Change what --log-requests logs, in all frontends."""
    params = await LOGGING.read(context, body, b"{}")
    refuse_paths(params)
    if params.log_requests_level is not None and params.log_requests_level not in LEVELS:
        raise BadRequest("log_requests_level", "must be 0, 1, 2 or 3")
    if params.log_requests_format is not None and params.log_requests_format not in FORMATS:
        raise BadRequest("log_requests_format", f"must be one of {', '.join(FORMATS)}")
    log = context.request_log
    log.change(params.log_requests, params.log_requests_level, params.log_requests_format)
    answer: dict[str, Any] = {
        "log_requests": log.switches.enabled,
        "log_requests_level": log.level,
        "log_requests_format": log.form,
    }
    return json_response(answer)


NO_FOLDERS = "folders and targets are set by start-up flags only, never by a request"


def refuse_paths(params: ConfigureLogging) -> None:
    for field in (
        "log_requests_target",
        "dump_requests_folder",
        "dump_requests_threshold",
        "crash_dump_folder",
    ):
        if getattr(params, field):
            raise BadRequest(field, NO_FOLDERS)
