"""What the 404 to an unknown path says: which path of this server may be meant.

Clients of other servers ask for what those have, and base URLs lose or repeat their `/v1`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from aiohttp import web

from vivace.server.access import Access
from vivace.server.context import Context
from vivace.server.responses import HTTPError

SAME: dict[str, str] = {
    # llama.cpp
    "/completion": "/v1/completions",
    "/props": "/server_info",
    "/slots": "/server_info",
    "/apply-template": "/tokenize",
    "/embedding": "/v1/embeddings",
    "/pooling": "/encode",
    # Text Generation Inference
    "/generate_stream": "/generate",
    "/info": "/model_info",
    # SGLang, vLLM, FastAPI
    "/get_load": "/v1/loads",
    "/load": "/v1/loads",
    "/version": "/server_info",
    "/docs": "/openapi.json",
    "/redoc": "/openapi.json",
}
"""a path of another server -> the one that does the same here, with a body of its own"""
PULL = "models are fetched and removed by the commands `vivace pull` and `vivace rm`"
ELSEWHERE = {
    **dict.fromkeys(("/api/pull", "/api/create", "/api/delete", "/api/push"), PULL),
    "/generate_from_file": "SGLang has it no longer either; send the prompts to /generate",
}
"""paths that will not come, and what does the same"""
NOT_YET = frozenset(
    """
    /v1/moderations /v1/files /v1/batches /infill
    /load_lora_adapter /unload_lora_adapter /v1/load_lora_adapter /v1/unload_lora_adapter
    /open_session /close_session
    /start_profile /stop_profile /pause_generation /continue_generation
    /update_weights_from_disk /update_weights_from_tensor /update_weights_from_distributed
    /release_memory_occupation /resume_memory_occupation /set_internal_state
    """.split()
)
"""paths of SGLang, OpenAI and others without a counterpart here"""
NO_SOUND = "no model family with sound is served"
NO_PICTURES = "no model family that makes or reads pictures is served"
MISSING: dict[str, str] = {
    **dict.fromkeys(
        (
            *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
            *("/v1/realtime", "/v1/realtime/sessions"),
        ),
        NO_SOUND,
    ),
    **dict.fromkeys(
        ("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"), NO_PICTURES
    ),
    "/v1/responses/compact": "nothing is summed up; truncation: auto leaves out the oldest turns",
    "/v1/conversations": "use previous_response_id of /v1/responses",
}
"""paths without a counterpart here, and why"""
STORED = "/v1/chat/completions"
"""where OpenAI lists stored completions; below it, one by its id"""
MAX_SHOWN = 200
MAX_COMPARED = 64
SIMILAR = 0.8


def describe_unknown_path(path: str, served: Iterable[str]) -> str:
    """The message of a 404. `served`: the paths there are."""
    begin = f"Not found: {path[:MAX_SHOWN]}"
    plain = "/" + "/".join(part for part in path[:MAX_SHOWN].lower().split("/") if part)
    if plain in NOT_YET:
        return f"{begin} is not supported yet. GET /openapi.json lists what is here"
    if plain in MISSING:
        return (
            f"{begin} is not supported yet: {MISSING[plain]}. GET /openapi.json lists what is here"
        )
    if plain in ELSEWHERE:
        return f"{begin}; {ELSEWHERE[plain]}"
    if is_stored_completion(path):
        return f"{begin}; this server stores no completions"
    meant = SAME.get(plain) or _similar(
        plain, [one for one in served if one != "/" and "{" not in one]
    )
    hint = f"; did you mean {meant}?" if meant else "."
    return f"{begin}{hint} GET /openapi.json lists what is here"


def is_stored_completion(path: str) -> bool:
    """Whether OpenAI's clients read, change or remove stored completions there."""
    return path == STORED or path.startswith(f"{STORED}/")


def _similar(plain: str, served: list[str]) -> str | None:
    """A path that begins otherwise (`/v1` lost or twice, a prefix), or is misspelled."""
    ends = [one for one in served if one.endswith(plain) or plain.endswith(one)]
    if ends and plain != "/":
        return min(ends, key=lambda one: abs(len(one) - len(plain)))
    if len(plain) > MAX_COMPARED:
        return None
    return next(iter(difflib.get_close_matches(plain, served, 1, SIMILAR)), None)


def _meant_path(request: web.Request) -> str | None:
    """What looks like a path whose last part is an id may be another one, misspelled, that takes
    the method."""
    resources = request.app.router.resources()
    fixed = [
        one.canonical
        for one in resources
        if "{" not in one.canonical and request.method in {route.method for route in one}
    ]
    path, depth = request.path[:MAX_COMPARED], request.path.count("/")
    near = [one for one in fixed if one.count("/") == depth]
    is_one = any(one.canonical == request.path for one in resources)
    return None if is_one else next(iter(difflib.get_close_matches(path, near, 1, SIMILAR)), None)


async def without_slash(request: web.Request) -> web.Response | None:
    """Where a path with a slash too many is meant to go, as FastAPI does it. Only to paths that
    there are; and `//name/` would send browsers to another server."""
    path, query = request.rel_url.raw_path, request.rel_url.raw_query_string
    shorter = path[:-1]
    if path.startswith("//") or not path.endswith("/") or not shorter:
        return None
    found = await request.app.router.resolve(request.clone(rel_url=shorter))
    if found.http_exception is not None:
        return None
    location = f"{shorter}?{query}" if query else shorter
    return web.Response(status=307, headers={"Location": location})


def aiohttp_error(context: Context, request: web.Request, error: web.HTTPException) -> HTTPError:
    """aiohttp's own refusals; who has no key does not learn which paths exist."""
    try:
        context.keys.check(request, Access.USER)
    except HTTPError as http_error:
        return http_error
    path = request.path[:200]
    stored = request.method == "GET" and is_stored_completion(request.path)
    known = stored or (request.method == "POST" and request.path in MISSING)
    if isinstance(error, web.HTTPMethodNotAllowed) and not known:
        if meant := _meant_path(request):
            return HTTPError(404, describe_unknown_path(request.path, [meant]))
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"Method {error.method} not allowed on {path} (allowed: {allowed})"
        return HTTPError(405, message, headers={"Allow": allowed})
    if error.status == 404 or known:
        paths = (found.canonical for found in request.app.router.resources())
        return HTTPError(404, describe_unknown_path(request.path, paths))
    return HTTPError(error.status, error.text or error.reason)
