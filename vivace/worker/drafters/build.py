"""Which drafter a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vivace.platforms.ngrams import NgramSettings
from vivace.platforms.platform import Platform
from vivace.worker.drafter import NO_DRAFTS, Drafter
from vivace.worker.drafters.ngram import NgramDrafter

if TYPE_CHECKING:
    from vivace.config.config import Config


def is_fixed(config: Config) -> bool:
    """What drafts cost does not matter: there are none, or all that flags allow."""
    return not config.draft_width or config.speculative.speculative_fixed_width


def build_drafter(config: Config, platform: Platform) -> Drafter:
    if not config.draft_width:
        return NO_DRAFTS
    return NgramDrafter(platform.ngram_index(ngram_settings(config)), config.draft_width)


def ngram_settings(config: Config) -> NgramSettings:
    asked = config.speculative
    return NgramSettings(
        width=config.draft_width,
        shortest=asked.speculative_ngram_min_match_window_size,
        longest=asked.speculative_ngram_max_match_window_size,
        depth=asked.speculative_ngram_branch_length,
        capacity=asked.speculative_ngram_capacity,
        by_frequency=asked.speculative_ngram_match_type == "PROB",
    )
