"""Every causal language model of the installed transformers: equal tokens, or refused before
loading. Wrong tokens, a refusal after loading and any other exception fail.

`python tests/kit/every_architecture.py --write` writes what docs/models.md says.
"""

from __future__ import annotations

import pytest
import transformers
from every_architecture import known, tried

from vivace.models import transformers_support as table


@pytest.fixture(autouse=True)
def operations() -> None:
    """Once: transformers brings its own operations."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", known())
def test_equal_tokens_or_refused(model_type: str) -> None:
    found = tried(model_type)
    written = table.read_support()
    if written.transformers == transformers.__version__:
        assert found in written.models
