"""Worker tests run on torch's operations and on the native kernels, eager and captured."""

from __future__ import annotations

import pytest
import toy_model


@pytest.fixture(scope="module", params=toy_model.ALL_OPERATIONS)
def operations(request):
    toy_model.skip_unbuilt(request.param)
    before, toy_model.OPERATIONS = toy_model.OPERATIONS, request.param
    yield request.param
    toy_model.OPERATIONS = before
