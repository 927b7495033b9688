"""The paths of other APIs."""

from __future__ import annotations

from vivace.protocol.tasks import Embed, Generate
from vivace.server.apis import anthropic, input_items, ollama, ollama_models, responses, vertex
from vivace.server.apis import anthropic_schema as messages
from vivace.server.apis import ollama_schema as local
from vivace.server.apis import responses_schema as items
from vivace.server.apis.anthropic import anthropic_error
from vivace.server.apis.ollama import ollama_error
from vivace.server.openai import chat
from vivace.server.openai import schema as openai
from vivace.server.route import ACTS, SMALL, USER, Route, get, post

ANTHROPIC = (
    post(
        "/v1/messages",
        anthropic.messages,
        "Anthropic's Messages",
        messages.MessagesRequest,
        messages.MessageAnswer,
        messages.MessageEvent,
        task=Generate,
        errors=anthropic_error,
    ),
    post(
        "/v1/messages/count_tokens",
        anthropic.count_tokens,
        "Tokens of a conversation of Anthropic's Messages",
        messages.CountTokensRequest,
        messages.TokenCount,
        errors=anthropic_error,
    ),
)

OLLAMA = (
    post(
        "/api/chat",
        ollama.chat,
        "Ollama's chat, with lines of JSON unless stream is false",
        local.OllamaChatRequest,
        local.OllamaChatAnswer,
        task=Generate,
        errors=ollama_error,
    ),
    post(
        "/api/generate",
        ollama.generate,
        "Ollama's completions, with lines of JSON unless stream is false",
        local.OllamaGenerateRequest,
        local.OllamaGenerateAnswer,
        task=Generate,
        errors=ollama_error,
    ),
    post(
        "/api/embed",
        ollama_models.embed,
        "Ollama's embeddings",
        local.OllamaEmbedRequest,
        local.OllamaEmbedAnswer,
        task=Embed,
        errors=ollama_error,
    ),
    post(
        "/api/embeddings",
        ollama_models.embeddings,
        "Older form of /api/embed, of one text",
        local.OllamaEmbeddingsRequest,
        local.OllamaEmbeddingsAnswer,
        task=Embed,
        errors=ollama_error,
    ),
    post(
        "/api/show",
        ollama_models.show,
        "The served model, by its name",
        local.OllamaShowRequest,
        local.OllamaShowAnswer,
        errors=ollama_error,
    ),
    get(
        "/api/tags",
        USER,
        ollama_models.tags,
        "The served model",
        local.OllamaModelList,
        errors=ollama_error,
    ),
    get(
        "/api/ps",
        USER,
        ollama_models.running,
        "The loaded model",
        local.OllamaModelList,
        errors=ollama_error,
    ),
    get(
        "/api/version",
        USER,
        ollama_models.version,
        "The version",
        local.OllamaVersion,
        errors=ollama_error,
    ),
)

STORED = "/v1/responses/{response_id}"
RESPONSES = (
    post(
        "/v1/responses",
        responses.create,
        "OpenAI's Responses",
        items.ResponsesRequest,
        items.ResponseObject,
        items.ResponseEvent,
        task=Generate,
    ),
    post(
        "/v1/responses/input_tokens",
        responses.count_input,
        "How many tokens such a body has as a prompt",
        items.ResponsesRequest,
        items.InputTokens,
    ),
    get(
        f"{STORED}/input_items",
        USER,
        input_items.list_input,
        "What a stored response was asked with",
        input_items.InputItemList,
    ),
    get(STORED, USER, responses.show, "A stored response", items.ResponseObject),
    Route(
        methods=("DELETE",),
        path=STORED,
        auth=USER,
        effect=ACTS,
        body_limit=SMALL,
        handler=responses.delete,
        summary="Forget a stored response",
        answers=items.DeletedResponse,
    ),
    Route(
        methods=("POST",),
        path=f"{STORED}/cancel",
        auth=USER,
        effect=ACTS,
        body_limit=SMALL,
        handler=responses.cancel,
        summary="End a response that is made in the background",
        answers=items.ResponseObject,
    ),
)

CLOUD = (
    post(
        "/invocations",
        chat.chat_completions,
        "SageMaker's name of /v1/chat/completions",
        openai.ChatRequest,
        openai.ChatAnswer,
        openai.ChatChunk,
        task=Generate,
    ),
    post(
        "/vertex_generate",
        vertex.vertex_generate,
        "/generate as Vertex AI asks for it",
        vertex.VertexRequest,
        vertex.VertexAnswer,
        task=Generate,
    ),
)

API_ROUTES = CLOUD + ANTHROPIC + OLLAMA + RESPONSES
