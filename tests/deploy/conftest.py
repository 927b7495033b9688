"""Scripts are read in the tests' own process, which is large: to fork it for each costs more than
to read them. What is about the child process keeps it."""

from __future__ import annotations

import pytest

from vivace.deploy.from_script import script
from vivace.deploy.shell.reader import read_script

OF_THE_CHILD = ("test_import", "test_check")


@pytest.fixture(autouse=True)
def read_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__.rpartition(".")[2] not in OF_THE_CHILD:
        monkeypatch.setattr(script, "read_isolated", read_script)
