"""The one table of routes: what exists, who may call it, how large its body may be."""

from __future__ import annotations

from vivace.protocol.tasks import Embed, Generate, Task
from vivace.requests.embeddings import EncodeRequest
from vivace.requests.schema import GenerateRequest
from vivace.server import (
    admin,
    classify,
    corpora,
    encode,
    generate,
    health,
    metrics,
    model_info,
    parsers,
    rerank,
    schema,
    scores,
    tokens,
)
from vivace.server.apis import anthropic_models
from vivace.server.apis.routes import API_ROUTES
from vivace.server.openai import chat, completions, embeddings
from vivace.server.openai import schema as openai
from vivace.server.route import (
    ACTS,
    ADMIN,
    FULL,
    NO_BODY,
    PUBLIC,
    READS,
    USER,
    Route,
    control,
    get,
    post,
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
    get("/v1/models", USER, anthropic_models.list_models, "The served models", openai.ModelList),
    get("/v1/models/{model:.+}", USER, anthropic_models.show_model, "One model", openai.ModelCard),
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

CLASSES = (
    post(
        "/classify",
        classify.classify_native,
        "Numbers of a model's head for texts or token ids",
        EncodeRequest,
        encode.EncodeAnswer,
        methods=("POST", "PUT"),
        task=Embed,
    ),
    post(
        "/v1/classify",
        classify.classify,
        "Probabilities of labels",
        classify.ClassifyRequest,
        classify.ClassifyAnswer,
        task=Embed,
    ),
)

SCORES = tuple(
    post(prefix + path, handler, summary, accepts, answers, methods=("POST", "PUT"), task=task)
    for path, handler, summary, accepts, answers, task in (
        (
            "/score",
            scores.score,
            "Probabilities of tokens behind a query and each item",
            scores.ScoreRequest,
            scores.ScoreAnswer,
            Generate,
        ),
        (
            "/rerank",
            rerank.rerank,
            "Documents by how well they answer a query",
            rerank.RerankRequest,
            list[rerank.RerankResult],
            Task,
        ),
    )
    for prefix in ("", "/v1")
)
SCORES += (
    post(
        "/v2/rerank",
        rerank.rerank_v2,
        "The same as Cohere, Jina and vLLM answer",
        rerank.RerankRequest,
        rerank.RerankAnswer,
        task=Task,
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
PARSERS = (
    post(
        "/parse_function_call",
        parsers.parse_function_call,
        "Tool calls in the text of an answer",
        schema.ParseFunctionCallRequest,
        schema.ParseFunctionCallResponse,
    ),
    post(
        "/separate_reasoning",
        parsers.separate_reasoning,
        "The reasoning in the text of an answer, and the rest",
        schema.SeparateReasoningRequest,
        schema.SeparateReasoningResponse,
    ),
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

ROUTES: tuple[Route, ...] = (
    *HEALTH,
    *FACTS,
    *GENERATION,
    *EMBEDDINGS,
    *CLASSES,
    *SCORES,
    *TEXT,
    *PARSERS,
    *CONTROL,
    *API_ROUTES,
)
