"""Which drafter a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.drafters.ngram import NgramDrafter

if TYPE_CHECKING:
    from vivace.config.config import Config


def is_fixed(config: Config) -> bool:
    """What drafts cost does not matter: there are none, or all that flags allow."""
    return not config.draft_width or config.speculative.speculative_fixed_width


def build_drafter(config: Config) -> Drafter:
    if not config.draft_width:
        return NO_DRAFTS
    return NgramDrafter(config.draft_width)
