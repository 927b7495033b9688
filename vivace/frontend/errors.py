"""What a client did wrong, and files that cannot be used; the server and the offline API both
understand them."""

from __future__ import annotations

from vivace.errors import CannotStart

CONTEXT_EXCEEDED = "context_length_exceeded"
"""OpenAI's code for a prompt that is too long"""


class BadRequest(Exception):
    """A request that cannot be served. `field` names the input, `reason` says what to change.

    `status` is the HTTP status (400 unless said otherwise); `code` OpenAI's word for the reason, if
    it has one; `retry_after` is in seconds, for 503.
    """

    def __init__(
        self,
        field: str,
        reason: str,
        status: int = 400,
        *,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason
        self.status = status
        self.code = code
        self.retry_after = retry_after

    def of_field(self, field: str, reason: str | None = None) -> BadRequest:
        """The same refusal for callers who know the input by another name."""
        words = self.reason if reason is None else reason
        return BadRequest(field, words, self.status, code=self.code, retry_after=self.retry_after)


class NotSupported(BadRequest):
    """What was asked for is not supported yet, whatever its arguments are."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason, 501)


class EngineUnavailable(Exception):
    """The engine cannot answer: it is dead, was shut down, restarts or is too busy."""


class OverLimit(BadRequest):
    """The template took more than it may: of time, of memory, of characters."""


class TokenizerError(CannotStart):
    """A tokenizer that cannot be used; the text says which file, why, and what to do."""


class ChatTemplateError(CannotStart):
    """A template of the operator that cannot be used; raised at start-up."""
