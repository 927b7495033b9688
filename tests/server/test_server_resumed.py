"""`resumed` of /generate: an answer goes on behind the tokens that its client has."""

from __future__ import annotations

from typing import Any

import pytest
from server_kit import EOS, ask, running_server

SAMPLING = {"max_new_tokens": 8, "temperature": 0}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"resumed": [97, EOS, 98]}, "resumed"),
        ({"sampling_params": {**SAMPLING, "stop_token_ids": [97]}}, "resumed"),
        ({"return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"sampling_params": {**SAMPLING, "n": 2}}, "resumed"),
        ({"sampling_params": {**SAMPLING, "temperature": 1}}, "resumed"),
        ({"sampling_params": {**SAMPLING, "max_new_tokens": 2}}, "resumed"),
        (
            {"resumed": [97, EOS, 98], "sampling_params": {**SAMPLING, "min_new_tokens": 3}},
            "resumed",
        ),
        ({"resumed": [97, EOS], "sampling_params": {**SAMPLING, "min_new_tokens": 2}}, "resumed"),
        ({"resumed": [-1]}, "resumed"),
        ({"text": ["abc", "abd"]}, "resumed"),
    ],
)
def test_what_cannot_go_on(changes: dict[str, Any], field: str) -> None:
    body = {"text": "abc", "sampling_params": SAMPLING, "resumed": [97, 98, 99], **changes}
    with running_server() as server:
        answer = ask(server, "/generate", body)
        assert (answer.status, answer.json["param"]) == (400, field), answer.json
        assert not server.engine.requests


def test_what_goes_on() -> None:
    with running_server() as server:
        for changes in (
            {"return_logprob": True},
            {"resumed": [97, EOS, 98], "sampling_params": {**SAMPLING, "ignore_eos": True}},
        ):
            body = {"text": "abc", "sampling_params": SAMPLING, "resumed": [97, 98], **changes}
            assert ask(server, "/generate", body).status == 200
            assert server.engine.requests[-1].resumed == body["resumed"]


@pytest.mark.parametrize(
    ("resumed", "sampling"),
    [([97, EOS], {"min_new_tokens": 1}), ([EOS], {"min_new_tokens": 3, "regex": "a|"})],
)
def test_an_answer_that_has_ended_has_no_more(resumed: list[int], sampling: Any) -> None:
    """A grammar may have nothing else to say before `min_new_tokens`."""
    with running_server() as server:
        body = {"text": "abc", "sampling_params": {**SAMPLING, **sampling}, "resumed": resumed}
        answer = ask(server, "/generate", body)
        assert answer.json["meta_info"]["finish_reason"]["type"] == "stop"
        assert not server.engine.requests
