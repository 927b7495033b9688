"""The one table of routes: what exists, who may call it, how large its body may be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from vivace.protocol.tasks import Embed, Generate, Task
from vivace.requests.embeddings import EncodeRequest
from vivace.requests.schema import GenerateRequest
from vivace.server import (
    admin,
    corpora,
    encode,
    generate,
    health,
    metrics,
    model_info,
    schema,
    tokens,
)
from vivace.server.access import Access, Effect
from vivace.server.body import Body
from vivace.server.context import Context
from vivace.server.openai import chat, completions, embeddings
from vivace.server.openai import schema as openai

Handler = Callable[[Context, web.Request, Body], Awaitable[web.StreamResponse]]

NO_BODY = 0
SMALL = 64 << 10
FULL = -1
"""The server-wide body limit."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT"})

PUBLIC, USER, ADMIN = Access.PUBLIC, Access.USER, Access.ADMIN
READS, ACTS = Effect.READS, Effect.ACTS


@dataclass(frozen=True, kw_only=True)
class Route:
    """`body_limit` in bytes; 0 = no body is taken, FULL = `ServerSettings.body_limit`.

    `accepts` and `answers` are the structs the OpenAPI document shows; None = no or any body.
    """

    methods: tuple[str, ...]
    path: str
    auth: Access
    effect: Effect
    body_limit: int
    handler: Handler
    summary: str
    accepts: Any = None
    answers: Any = None
    streams: Any = None
    """Struct of each event when `stream` is true."""
    task: type[Task] | None = None
    """Is answered by the engine: waits for one that starts, and is refused where the engine does
    something else."""


def get(
    path: str,
    auth: Access,
    handler: Handler,
    summary: str,
    answers: Any = None,
    *,
    effect: Effect = READS,
) -> Route:
    return Route(
        methods=("GET",),
        path=path,
        auth=auth,
        effect=effect,
        body_limit=NO_BODY,
        handler=handler,
        summary=summary,
        answers=answers,
    )


def post(
    path: str,
    handler: Handler,
    summary: str,
    accepts: Any,
    answers: Any,
    streams: Any = None,
    *,
    methods: tuple[str, ...] = ("POST",),
    task: type[Task] | None = None,
) -> Route:
    return Route(
        methods=methods,
        path=path,
        auth=USER,
        effect=ACTS,
        body_limit=FULL,
        handler=handler,
        summary=summary,
        accepts=accepts,
        answers=answers,
        streams=streams,
        task=task,
    )


HEALTH = (
    get("/health", PUBLIC, health.health, "200 while requests are taken, else 503"),
    get(
        "/health_generate",
        PUBLIC,
        health.health_generate,
        "200 once a token was generated",
        effect=ACTS,
    ),
    get("/ready", PUBLIC, health.health, "200 when start-up has finished"),
    get("/ping", USER, health.health, "SageMaker's health check"),
    Route(
        methods=("GET", "HEAD"),
        path="/",
        auth=USER,
        effect=READS,
        body_limit=NO_BODY,
        handler=health.root,
        summary="A line of text",
    ),
    get("/openapi.json", USER, health.openapi, "This document"),
    get("/metrics", USER, metrics.metrics, "Prometheus text (with --enable-metrics)"),
)

FACTS = (
    get("/model_info", USER, model_info.model_info, "Facts about the model"),
    get("/get_model_info", USER, model_info.model_info, "Old name of /model_info"),
    get("/server_info", USER, model_info.server_info, "Settings, sizes and state of the engine"),
    get("/get_server_info", USER, model_info.server_info, "Old name of /server_info"),
    get("/v1/loads", USER, metrics.loads, "Load of each data-parallel rank"),
    get("/v1/models", USER, model_info.list_models, "The served models", openai.ModelList),
    get("/v1/models/{model:.+}", USER, model_info.show_model, "One model", openai.ModelCard),
)

GENERATION = (
    post(
        "/generate",
        generate.generate,
        "Generate from text or token ids, single or in batches",
        GenerateRequest,
        schema.GenerateAnswer,
        schema.GenerateAnswer,
        methods=("POST", "PUT"),
        task=Generate,
    ),
    post(
        "/v1/completions",
        completions.completions,
        "OpenAI text completions",
        openai.CompletionRequest,
        openai.CompletionAnswer,
        openai.CompletionAnswer,
        task=Generate,
    ),
    post(
        "/v1/chat/completions",
        chat.chat_completions,
        "OpenAI chat completions",
        openai.ChatRequest,
        openai.ChatAnswer,
        openai.ChatChunk,
        task=Generate,
    ),
)

EMBEDDINGS = (
    post(
        "/encode",
        encode.encode,
        "Vectors of texts or token ids, single or in batches",
        EncodeRequest,
        encode.EncodeAnswer,
        methods=("POST", "PUT"),
        task=Embed,
    ),
    post(
        "/v1/embeddings",
        embeddings.embeddings,
        "OpenAI embeddings",
        embeddings.EmbeddingRequest,
        embeddings.EmbeddingAnswer,
        task=Embed,
    ),
)

TEXT = tuple(
    post(prefix + path, handler, summary, accepts, answers)
    for path, handler, summary, accepts, answers in (
        (
            "/tokenize",
            tokens.tokenize,
            "Token ids of a prompt or a conversation",
            schema.TokenizeRequest,
            schema.TokenizeResponse,
        ),
        (
            "/detokenize",
            tokens.detokenize,
            "Text of token ids",
            schema.DetokenizeRequest,
            schema.DetokenizeResponse,
        ),
    )
    for prefix in ("", "/v1")
)


def control(
    path: str,
    methods: tuple[str, ...],
    handler: Handler,
    summary: str,
    accepts: Any = None,
    body_limit: int = SMALL,
) -> Route:
    return Route(
        methods=methods,
        path=path,
        auth=ADMIN,
        effect=ACTS,
        body_limit=body_limit,
        handler=handler,
        summary=summary,
        accepts=accepts,
    )


CONTROL = (
    control(
        "/flush_cache",
        ("GET", "POST"),
        admin.flush_cache,
        "Drop the prefix cache of an idle engine",
    ),
    control(
        "/start_expert_distribution_record",
        ("GET", "POST"),
        admin.start_expert_record,
        "Begin to record where tokens go among experts",
    ),
    control(
        "/stop_expert_distribution_record",
        ("GET", "POST"),
        admin.stop_expert_record,
        "End that record",
    ),
    control(
        "/dump_expert_distribution_record",
        ("GET", "POST"),
        admin.dump_expert_record,
        "Write that record to a file of JSON",
    ),
    control(
        "/abort_request",
        ("POST",),
        admin.abort_request,
        "Abort requests by id prefix, or all",
        schema.AbortRequest,
    ),
    control(
        "/add_external_corpus",
        ("POST",),
        corpora.add_external_corpus,
        "Propose drafts from a text",
        schema.AddExternalCorpus,
        FULL,
    ),
    control(
        "/remove_external_corpus",
        ("POST",),
        corpora.remove_external_corpus,
        "Propose drafts from a text no more",
        schema.RemoveExternalCorpus,
    ),
    get(
        "/list_external_corpora",
        ADMIN,
        corpora.list_external_corpora,
        "Texts that drafts may come from, and their tokens",
    ),
    control(
        "/configure_logging",
        ("GET", "POST"),
        admin.configure_logging,
        "Change what is logged of requests",
        schema.ConfigureLogging,
    ),
)

ROUTES: tuple[Route, ...] = (*HEALTH, *FACTS, *GENERATION, *EMBEDDINGS, *TEXT, *CONTROL)


def check_routes(routes: Iterable[Route]) -> None:
    """ValueError for an entry that does not say who may call it and how much it may send."""
    seen: set[tuple[str, str]] = set()
    for route in routes:
        where = f"route {route.path!r}"
        if not route.path.startswith("/"):
            raise ValueError(f"{where}: the path must start with /")
        if not route.methods or not METHODS.issuperset(route.methods):
            raise ValueError(f"{where}: methods must be some of {sorted(METHODS)}")
        if not isinstance(route.auth, Access):
            raise ValueError(f"{where}: auth must be one of {[str(kind) for kind in Access]}")
        if not isinstance(route.effect, Effect):
            raise ValueError(f"{where}: effect must be one of {[str(kind) for kind in Effect]}")
        if type(route.body_limit) is not int or route.body_limit < FULL:
            raise ValueError(f"{where}: body_limit must be bytes, 0 or FULL")
        if not callable(route.handler):
            raise ValueError(f"{where}: has no handler")
        for method in route.methods:
            if (method, route.path) in seen:
                raise ValueError(f"{where}: {method} is there twice")
            seen.add((method, route.path))
