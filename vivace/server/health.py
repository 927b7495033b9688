"""Is the server alive, ready, and does the engine produce tokens?"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from vivace.protocol.messages import SamplingParams
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
    """200 when the engine produced a token lately or does so now, 503 after the health timeout."""
    context.require_started()
    await context.probe.check(context.frontend.last_token_time, lambda: probe_engine(context))
    return web.Response()


async def probe_engine(context: Context) -> None:
    """Returns once any token has come, whose ever it is; HTTPError when none does."""
    began, timeout = time.monotonic(), context.settings.health_timeout
    request = context.frontend.request(
        [probe_token(context)],
        SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
        rid=new_id("HEALTH_CHECK"),
        log_metrics=False,
        arrival=began,
    )
    own = asyncio.create_task(complete(context, [request], quiet=True))
    try:
        async with asyncio.timeout(timeout):
            while not own.done() and context.frontend.last_token_time < began:
                if context.frontend.stall:
                    raise TimeoutError
                await asyncio.wait([own], timeout=_LOOK)
            if own.done():
                await own
    except TimeoutError:
        reason = context.frontend.stall or f"the engine produced no token within {timeout:g} s"
        raise HTTPError(503, reason) from None
    except HTTPError as http_error:
        if http_error.status != 503:
            raise
        context.require_ready()  # a full queue is an answer of a living engine
    finally:
        own.cancel()


def probe_token(context: Context) -> int:
    """Any id of the vocabulary that is not an end of text, if there is one."""
    ends = set(context.served.eos_ids)
    return next((token for token in range(len(ends) + 1) if token not in ends), 0)


async def root(_context: Context, _request: web.Request, _body: Body) -> web.Response:
    """A line for people (and Ollama clients) who look."""
    return text_response(BANNER)


async def openapi(context: Context, _request: web.Request, _body: Body) -> web.Response:
    """The OpenAPI document of this server."""
    return web.Response(body=context.document, content_type="application/json")
