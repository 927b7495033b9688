"""Is the server alive, ready, and does the engine produce tokens?"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from vivace.frontend.errors import BadRequest
from vivace.protocol.messages import SamplingParams
from vivace.protocol.tasks import Generate
from vivace.requests.prompts import new_id
from vivace.server.body import Body
from vivace.server.collect import complete
from vivace.server.context import Context
from vivace.server.responses import HTTPError, text_response

BANNER = "Vivace is running. It speaks the OpenAI and SGLang APIs: see /openapi.json\n"
_LOOK = 0.02
"""seconds between two looks whether anybody's token came"""


async def health(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """200 once the start is complete, while new requests are taken and the engine gets on with its
    work, else 503. Never runs a forward pass."""
    context.require_started()
    return web.Response()


async def health_generate(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """200 when the engine produced a token lately or gets on with its work now, 503 when it does
    not for the health timeout."""
    context.require_started()
    await context.probe.check(context.frontend.last_token_time, lambda: probe_engine(context))
    return web.Response()


async def probe_engine(context: Context) -> None:
    """Returns once any token has come, whose ever it is, or the engine has run a whole step (of a
    long prompt, perhaps: no token comes of that for long); HTTPError when neither happens."""
    frontend, timeout = context.frontend, context.settings.health_timeout
    began, step = time.monotonic(), frontend.engine.steps()
    own = asyncio.create_task(ask_for_token(context, began))
    try:
        async with asyncio.timeout(timeout):
            while not (
                own.done()
                or frontend.last_token_time >= began
                or frontend.engine.steps() > step + 1
            ):
                if frontend.engine.stall:
                    raise TimeoutError
                await asyncio.wait([own], timeout=_LOOK)
            if own.done():
                await own
    except TimeoutError:
        stall = frontend.engine.stall
        if not stall and frontend.engine.computes():
            return  # a single step takes longer than that
        reason = stall or f"the engine produced no token within {timeout:g} s"
        raise HTTPError(503, reason) from None
    finally:
        own.cancel()


async def ask_for_token(context: Context, arrival: float) -> None:
    """Returns when the engine has answered a request for a token, or a vector where it makes those;
    be it that its queue is full."""
    generates = isinstance(context.served.task, Generate)
    try:
        request = context.frontend.request(
            [probe_token(context)],
            SamplingParams(max_new_tokens=int(generates), temperature=0.0, ignore_eos=True),
            rid=new_id("HEALTH_CHECK"),
            log_metrics=False,
            arrival=arrival,
            task=context.served.task,
        )
        await complete(context, [request], quiet=True)
    except HTTPError as http_error:
        if http_error.status != 503:
            raise
        context.require_ready()
    except BadRequest as error:
        if error.status != 503:
            raise
        context.require_ready()
        await asyncio.Future()  # too many live here: what they hear of the engine must do


def probe_token(context: Context) -> int:
    """Any id of the vocabulary that is not an end of text, if there is one."""
    ends = set(context.served.eos_ids)
    return next((token for token in range(len(ends) + 1) if token not in ends), 0)


async def root(_context: Context, _request: web.Request, _body: Body) -> web.Response:
    """A line for people (and Ollama clients) who look."""
    return text_response(BANNER)


async def openapi(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """The OpenAPI document of this server."""
    body = await asyncio.to_thread(context.document)
    return web.Response(body=body, content_type="application/json")
