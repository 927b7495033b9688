"""/add_, /remove_ and /list_external_corpora: texts that n-gram drafts may come from."""

from __future__ import annotations

import secrets
from array import array

from aiohttp import web

from vivace.frontend.corpora import BOUNDARY
from vivace.frontend.errors import BadRequest
from vivace.protocol.messages import GetState
from vivace.protocol.workers import NO_TEXTS, AddCorpus, RemoveCorpus
from vivace.requests.limits import IDS
from vivace.server.body import Body, BodyReader
from vivace.server.context import Context
from vivace.server.responses import HTTPError, json_response
from vivace.server.schema import AddExternalCorpus, RemoveExternalCorpus

CORPUS = BodyReader(AddExternalCorpus)
REMOVED = BodyReader(RemoveExternalCorpus)
MOST_ID = (1 << 31) - 1
NAME_CHARACTERS = 256
NO_TOKENS = "has no tokens"


async def add_external_corpus(context: Context, _request: web.Request, body: Body) -> web.Response:
    """Have it in every engine that runs; 400 where nothing proposes from texts, or it is too long.
    Ids are those of the corpus, or made up."""
    params = await CORPUS.read(context, body)
    if params.file_path is not None:
        raise BadRequest("file_path", "no path ever comes from a request; send documents")
    if (params.documents is None) == (params.token_chunks is None):
        field = "documents" if params.documents is None else "token_chunks"
        raise BadRequest(field, "give exactly one of documents and token_chunks")
    name = params.corpus_id or secrets.token_hex(8)
    if len(name) > NAME_CHARACTERS:
        raise BadRequest("corpus_id", f"has more than {NAME_CHARACTERS} characters")
    await refuse_early(context, name)
    if params.documents is not None:
        tokens = await encode_texts(context, params.documents)
    else:
        tokens = join_chunks(params.token_chunks or [])
    count = len(tokens) - tokens.count(BOUNDARY)
    if not count:
        raise BadRequest("documents" if params.token_chunks is None else "token_chunks", NO_TOKENS)
    for reply in await context.command(AddCorpus(name=name, tokens=tokens.tobytes())):
        if reply is not None and not reply.ok:
            raise HTTPError(400, f"the corpus was not added: {reply.message}")
    return json_response(
        {"success": True, "corpus_id": name, "message": "", "loaded_token_count": count}
    )


async def refuse_early(context: Context, name: str) -> None:
    """What engines would refuse, before a long text becomes tokens."""
    if not context.settings.takes_corpora:
        raise HTTPError(400, f"the corpus was not added: {NO_TEXTS}")
    for reply in await context.command(GetState()):
        workers = () if reply is None or reply.state is None else reply.state.workers
        if any(name in worker.corpora for worker in workers):
            raise BadRequest(
                "corpus_id",
                f"{name} was not added: it is there already; remove it first "
                "(/remove_external_corpus)",
            )


async def remove_external_corpus(
    context: Context, _request: web.Request, body: Body
) -> web.Response:
    """From every engine that runs; 400 where one has not got it."""
    params = await REMOVED.read(context, body)
    for reply in await context.command(RemoveCorpus(params.corpus_id)):
        if reply is not None and not reply.ok:
            raise HTTPError(400, f"the corpus was not removed: {reply.message}")
    return json_response({"success": True, "message": f"{params.corpus_id} was removed"})


async def list_external_corpora(
    context: Context, _request: web.Request, _body: Body
) -> web.Response:
    """Of the first engine that runs; all have the same. Of stages the last one has them."""
    state = next(iter((await context.engine_states()).values()))
    counts = next((worker.corpora for worker in state.workers if worker.corpora), {})
    return json_response({"success": True, "corpus_token_counts": counts, "message": ""})


async def encode_texts(context: Context, texts: list[str]) -> array[int]:
    context.tokenizer("documents")
    found = array("i")
    try:
        async for encoded in context.frontend.encode_all(texts, False, max_tokens=IDS):
            for ids in encoded:
                append(found, ids, "documents")
    except BadRequest as error:
        raise error.of_field("documents") from None
    return found


def join_chunks(chunks: list[list[int]]) -> array[int]:
    found = array("i")
    for number, ids in enumerate(chunks):
        if ids and not 0 <= min(ids) <= max(ids) <= MOST_ID:
            raise BadRequest("token_chunks", f"entry {number} has ids that no model has")
        append(found, ids, "token_chunks")
    return found


def append(found: array[int], ids: list[int], field: str) -> None:
    if len(found) + len(ids) >= IDS:
        raise BadRequest(field, f"more than {IDS} tokens; send several corpora")
    found.extend(ids)
    found.append(BOUNDARY)
