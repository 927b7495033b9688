"""Who has to give up its row and pages when they run out, or when somebody matters more."""

from __future__ import annotations

from vivace.engine.sequence import Sequence


def retraction_order(running: list[Sequence]) -> list[Sequence]:
    """Whom to retract first when pages run out.

    The least important, then who has generated least (least work is repeated), then the longest
    prompt (most pages come free), then the latest.
    """
    return sorted(
        running,
        key=lambda sequence: (
            sequence.importance,
            sequence.generated,
            -sequence.prompt,
            -sequence.ticket,
        ),
    )


def less_important(head: Sequence, running: list[Sequence], threshold: int) -> list[Sequence]:
    """Running sequences that `head` may displace, the first to go first."""
    displaced = [s for s in running if head.importance - s.importance > threshold]
    return retraction_order(displaced)
