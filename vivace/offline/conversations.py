"""Messages of `Engine.chat` -> token ids, by the rules of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vivace.frontend.chat_template import How
from vivace.frontend.errors import BadRequest
from vivace.frontend.frontend import Frontend
from vivace.server.chat_prompt import turns
from vivace.server.fields import validation_error
from vivace.server.pace import whole
from vivace.server.schema import Message


def read_conversations(frontend: Frontend, messages: Any, how: How) -> list[int] | list[list[int]]:
    """Token ids of one conversation, or of each of a list of them. Raises BadRequest."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages", "must be a list of messages, or a list of such lists")
    if all(isinstance(entry, list) for entry in messages):
        return [tokens_of(frontend, entry, how) for entry in messages]
    return tokens_of(frontend, messages, how)


def tokens_of(frontend: Frontend, messages: Sequence[Any], how: How) -> list[int]:
    tokenizer = frontend.tokenizer
    if tokenizer is None:
        raise BadRequest("messages", "skip_tokenizer_init is set; give input_ids to generate")
    if tokenizer.chat is None:
        reason = "the model has no chat template; use generate, or the flag chat_template"
        raise BadRequest("messages", reason)
    if not messages:
        raise BadRequest("messages", "must not be empty")
    try:
        typed = msgspec.convert(list(messages), list[Message])
    except msgspec.ValidationError as error:
        problem = validation_error(str(error))
        raise BadRequest(f"messages{problem.field}", problem.reason) from None
    text = tokenizer.chat.render(whole(turns(typed)), **how)
    return tokenizer.encode(text, add_special_tokens=False)
