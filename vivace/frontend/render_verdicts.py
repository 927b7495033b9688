"""What a rendering that did not come about means for who asked for it."""

from __future__ import annotations

from vivace.frontend.errors import BadRequest
from vivace.frontend.render_process import ProcessEnded
from vivace.frontend.template_messages import Answer, Refused, RenderLimits

FIELD = "messages"
MOST_ATTEMPTS = 3


class OverLimit(BadRequest):
    """The template took more than it may: of time, of memory, of characters."""


def refusal(answer: Answer) -> BadRequest:
    """Of a message that the process refused."""
    if not isinstance(answer, Refused):
        raise TypeError(f"{type(answer).__name__} is no answer to a rendering")
    kind = OverLimit if answer.over_limit else BadRequest
    return kind(FIELD, f"the chat template {answer.reason}")


def problem_of(ended: ProcessEnded, attempt: int, limits: RenderLimits) -> BadRequest | None:
    """Of the message at which a process ended, the `attempt`-th; None: try it again.

    A process also ends of its own accord, or because somebody killed it.
    """
    if ended.too_slow:
        seconds = f"{limits.cpu_seconds:g} s"
        return OverLimit(FIELD, f"the chat template takes longer than the limit of {seconds}")
    if attempt < MOST_ATTEMPTS:
        return None
    return OverLimit(FIELD, "the process that renders the chat template dies of them")


def stalled(limits: RenderLimits) -> BadRequest:
    return BadRequest(
        FIELD,
        f"the chat template got no processor time for {limits.wall_seconds:g} s",
        503,
        retry_after=5,
    )


def no_process(error: OSError) -> BadRequest:
    reason = f"no process can be started for the chat template: {error}"
    return BadRequest(FIELD, reason, 503, retry_after=5)


def too_many() -> BadRequest:
    reason = "too many conversations wait for the chat template"
    return BadRequest(FIELD, reason, 503, retry_after=1)
