"""Every model test runs twice: on torch's operations, and on the native kernels as captured
deployments use them (float32 activations, blocks as they are stored)."""

from __future__ import annotations

import paged_model
import pytest

from vivace.platforms.cpu.native import Kernels, NoKernels
from vivace.platforms.cpu.platform import NativePlatform
from vivace.platforms.platform import detect


@pytest.fixture(scope="session")
def native_platform():
    try:
        return NativePlatform(detect("cpu"), Kernels(2))
    except NoKernels as error:
        return str(error)


@pytest.fixture(autouse=True, params=["torch", "kernels"])
def operations(request, native_platform, monkeypatch):
    if request.param == "torch":
        return
    if isinstance(native_platform, str):
        pytest.skip(native_platform)
    monkeypatch.setattr(paged_model, "PLATFORM", native_platform)
