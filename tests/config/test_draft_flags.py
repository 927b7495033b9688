"""Flags of speculative decoding."""

from __future__ import annotations

import pytest

from vivace.config.errors import ConfigError
from vivace.config.parsing import from_arguments
from vivace.engine.settings import engine_settings
from vivace.launch.configure import configure
from vivace.protocol.messages import Capacity

CAPACITY = Capacity(pages=100, page_size=4, rows=32, context=128, vocabulary=50)


@pytest.mark.parametrize(("asked", "width"), [({}, 11), ({"speculative_num_draft_tokens": 5}, 4)])
@pytest.mark.parametrize("fixed", [False, True])
def test_the_engine_gets_the_width(asked: dict[str, int], width: int, fixed: bool) -> None:
    config = configure(
        from_arguments(speculative_algorithm="NGRAM", speculative_fixed_width=fixed, **asked)
    )
    settings = engine_settings(config, CAPACITY)
    assert (settings.num_speculative_tokens, settings.fixed_draft_width) == (width, fixed)
    told = [each for each in config.rewrites if each.field == "speculative_num_draft_tokens"]
    assert bool(told) == (not asked)


def test_without_an_algorithm_there_are_no_drafts_and_flags_of_them_say_so() -> None:
    config = configure(from_arguments(speculative_num_draft_tokens=5))
    assert config.draft_width == 0
    assert any("--speculative-num-draft-tokens has no effect" in each for each in config.notices)


@pytest.mark.parametrize("tokens", [1, 65])
def test_widths_have_limits(tokens: int) -> None:
    with pytest.raises(ConfigError, match="speculative"):
        configure(
            from_arguments(speculative_algorithm="NGRAM", speculative_num_draft_tokens=tokens)
        )
