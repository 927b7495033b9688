"""The paths of other APIs."""

from __future__ import annotations

from vivace.protocol.tasks import Generate
from vivace.server.apis import anthropic
from vivace.server.apis import anthropic_schema as messages
from vivace.server.route import post

ANTHROPIC = (
    post(
        "/v1/messages",
        anthropic.messages,
        "Anthropic's Messages",
        messages.MessagesRequest,
        messages.MessageAnswer,
        messages.MessageEvent,
        task=Generate,
        errors=anthropic.anthropic_error,
    ),
    post(
        "/v1/messages/count_tokens",
        anthropic.count_tokens,
        "Tokens of a conversation of Anthropic's Messages",
        messages.CountTokensRequest,
        messages.TokenCount,
        errors=anthropic.anthropic_error,
    ),
)

API_ROUTES = ANTHROPIC
