from __future__ import annotations

import math
from typing import Any

import pytest
from frontend_fakes import served
from hypothesis import given
from hypothesis import strategies as st

from vivace.frontend.engine_status import EngineView
from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import run_now
from vivace.frontend.frontend import Frontend
from vivace.frontend.validation import (
    CheckedSampling,
    build_logprobs,
    check_prompt,
    samples,
)
from vivace.protocol.messages import Capacity, LogprobOptions, Ready, SamplingParams
from vivace.requests.prompts import PromptInput, expand


def build(prompt: int = 10, **raw: Any) -> SamplingParams:
    return CheckedSampling(raw, served()).behind(prompt)


def test_defaults_are_sglangs() -> None:
    settings = CheckedSampling(None, served())
    sampling, n = settings.behind(10), settings.n
    assert n == 1
    assert sampling == SamplingParams(seed=sampling.seed)
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k) == (128, 1.0, 0)


def test_every_field_arrives() -> None:
    raw = {
        "max_new_tokens": 20,
        "min_new_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "frequency_penalty": -2,
        "presence_penalty": 2.0,
        "repetition_penalty": 1.1,
        "stop": ["a", "b", "a"],
        "stop_token_ids": [5, 6],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "logit_bias": {"7": 1, 8: -100.0},
        "sampling_seed": 42,
        "stream_interval": 3,
    }
    assert build(**raw) == SamplingParams(
        **{
            **{k: v for k, v in raw.items() if k != "sampling_seed"},
            "stop": ("a", "b"),
            "stop_token_ids": (5, 6),
            "logit_bias": {7: 1.0, 8: -100.0},
            "seed": 42,
        }
    )


BAD: list[tuple[str, Any]] = [
    *[("max_new_tokens", v) for v in (-1, 1.5, True, "five", 1 << 40, 10**400, [1])],
    *[("min_new_tokens", v) for v in (-1, 200, False)],
    *[("temperature", v) for v in (-0.1, math.nan, math.inf, True, "hot", 1e9, 10**400, {})],
    *[("top_p", v) for v in (0, -1, 1.01, math.nan, "x")],
    *[("top_k", v) for v in (0, -2, 1.5, True)],
    *[("min_p", v) for v in (-0.1, 1.1, math.nan)],
    *[("frequency_penalty", v) for v in (-2.1, 2.1, math.inf)],
    *[("presence_penalty", v) for v in (-2.1, 2.1)],
    *[("repetition_penalty", v) for v in (0, -1, 2.1)],
    *[("stop", v) for v in (5, [5], [""], "", ["x"] * 33, "x" * 513, {"a": 1})],
    *[("stop_token_ids", v) for v in (5, [-1], [263], [True], [1.5], [1] * 257, "ab")],
    *[("n", v) for v in (0, -1, 129, 1.5, True, 10**30)],
    *[("ignore_eos", v) for v in (2, "yes")],
    *[("logit_bias", v) for v in ([], {"x": 1}, {"263": 1}, {"-1": 1}, {"1": math.nan})],
    *[("logit_bias", v) for v in ({"1": True}, {"1": 1e30}, {"9" * 99: 1}, {"\u0663": 1})],
    *[("sampling_seed", v) for v in ("x", 1.5, True, 1 << 80)],
    *[("stream_interval", v) for v in (0, -1, 1.5)],
    *[(name, v) for name in ("regex", "ebnf") for v in (3, {"a": 1}, ["x"], True)],
    *[(name, v) for name in ("json_schema", "structural_tag") for v in (3, ["x"], {"a": {1}})],
    *[("regex", "a" * 20_000), ("ebnf", "a" * 70_000), ("json_schema", " " * 270_000)],
    *[("regex", "\ud800"), ("json_schema", "\ud800"), ("stop_regex", "x")],
    *[("beam_width", 2), ("watermark", {"key": 1}), ("custom_params", {"x": 1})],
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_values_name_their_field(field: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        build(**{field: value})
    assert caught.value.field == f"sampling_params.{field}"
    assert caught.value.status == 400
    assert len(caught.value.reason) < 200


def test_unknown_fields_get_the_nearest_name() -> None:
    with pytest.raises(BadRequest, match=r"'temperatur'.* 'temperature'"):
        build(temperatur=1)
    with pytest.raises(BadRequest, match="unknown"):
        CheckedSampling({5: 1}, served())  # type: ignore[dict-item]
    with pytest.raises(BadRequest, match="object"):
        CheckedSampling([1], served())  # type: ignore[arg-type]


def test_answers_are_cut_to_the_context() -> None:
    assert build(990, max_new_tokens=500).max_new_tokens == 10
    assert build(990, max_new_tokens=500, min_new_tokens=400).min_new_tokens == 10
    assert build(300, max_new_tokens=None).max_new_tokens == 700
    assert build(1000, max_new_tokens=0).max_new_tokens == 0
    for prompt, longest in ((1000, 1), (1001, 0)):
        with pytest.raises(BadRequest, match="1000") as caught:
            build(prompt, max_new_tokens=longest)
        assert caught.value.code == "context_length_exceeded"
    cut = CheckedSampling({}, served(allow_auto_truncate=True)).behind(5000)
    assert cut.max_new_tokens == 1


def test_greedy_and_whole_vocabulary() -> None:
    assert build(temperature=1e-7).temperature == 0.0
    assert build(temperature=0).temperature == 0.0
    assert build(top_k=-1).top_k == build(top_k=263).top_k == build(top_k=1 << 30).top_k == 0


def test_order_of_defaults() -> None:
    model = served(defaults={"temperature": 0.3, "max_new_tokens": 7})
    assert CheckedSampling({}, model).behind(1).temperature == 0.3
    assert CheckedSampling({"temperature": None}, model).behind(1).temperature == 0.3
    assert CheckedSampling({"temperature": 0.9}, model).behind(1).temperature == 0.9
    assert CheckedSampling({}, model).behind(1).max_new_tokens == 7


@pytest.mark.parametrize("defaults", [{"temperature": -1}, {"temprature": 1}, {"regex": "x"}])
def test_wrong_defaults_stop_the_start(defaults: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--preferred-sampling-params"):
        Frontend(served(defaults=defaults), None, [EngineView(lambda message: None)])


def test_seeds() -> None:
    model = served()
    drawn = [CheckedSampling({}, model).behind(1).seed for _ in range(50)]
    assert len(set(drawn)) == 50 and all(0 <= seed < 1 << 63 for seed in drawn)
    again = served()
    assert [CheckedSampling({}, again).behind(1).seed for _ in range(50)] == drawn
    assert build(sampling_seed=-1).seed == (1 << 63) - 1
    copies = samples(build(sampling_seed=(1 << 63) - 1), 3)
    assert [copy.seed for copy in copies] == [(1 << 63) - 1, 0, 1]


def test_logprob_options() -> None:
    def options(**raw: Any) -> LogprobOptions | None:
        return build_logprobs(served(), 10, **raw)

    assert options() is None
    assert options(return_logprob=True) == LogprobOptions()
    full = options(
        return_logprob=True, logprob_start_len=0, top_logprobs_num=5, token_ids_logprob=[1, 2]
    )
    assert full == LogprobOptions(start=0, top=5, token_ids=(1, 2))
    for field, value in [
        ("return_logprob", 2),
        ("logprob_start_len", 11),
        ("logprob_start_len", -2),
        ("top_logprobs_num", 129),
        ("top_logprobs_num", -1),
        ("token_ids_logprob", [263]),
        ("token_ids_logprob", [1] * 257),
    ]:
        with pytest.raises(BadRequest, match=field):
            options(**{"return_logprob": True, field: value})


def test_prompts() -> None:
    assert check_prompt([1, 2, 262], served()) == [1, 2, 262]
    spelled: list[Any] = check_prompt([1.0, "2", 262], served())
    assert spelled == [1, 2, 262] and {type(token) for token in spelled} == {int}
    bad: list[Any] = [[], None, "ab", [-1], [263], [True], [1.5], ["x"], [10**30], [1] * 1000]
    for tokens in bad:
        with pytest.raises(BadRequest) as caught:
            check_prompt(tokens, served())
        assert caught.value.field == "input_ids"
    assert len(check_prompt([1] * 5000, served(allow_auto_truncate=True), room=10)) == 990


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
NAMES = sorted({field for field, _ in BAD})


@given(raw=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_anything_else_is_refused_or_in_range(raw: dict[str, Any]) -> None:
    try:
        settings = CheckedSampling(raw, served())
        sampling, n = settings.behind(10), settings.n
    except BadRequest:
        return
    assert 1 <= n <= 128
    assert 0 <= sampling.min_new_tokens <= sampling.max_new_tokens <= 990
    assert math.isfinite(sampling.temperature) and 0 < sampling.top_p <= 1
    assert 0 <= sampling.seed < 1 << 63


def test_settings_of_many_prompts_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    check = CheckedSampling.__init__

    def counted(self: CheckedSampling, raw: object, *more: Any) -> None:
        checked.append(raw)
        check(self, raw, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckedSampling, "__init__", counted)
    frontend = Frontend(served(), None, [EngineView(lambda _: None)])
    capacity = Capacity(pages=64, page_size=16, rows=8, context=4096, vocabulary=100)
    frontend.feed(Ready(epoch=1, capacity=capacity))
    checked.clear()  # the server's defaults

    def built(settings: list[dict[str, Any]]) -> list[SamplingParams]:
        prompts = [PromptInput(tokens=[1] * n, sampling=each) for n, each in enumerate(settings, 1)]
        requests = run_now(expand(frontend, prompts, limit=999, stream=False, arrival=0.0))
        return [request.sampling for request in requests]

    same = {"temperature": 0.5, "max_new_tokens": None}
    found = built([same] * 50)
    assert checked == [same]
    room = frontend.served.context
    assert [each.max_new_tokens for each in found] == [room - n for n in range(1, 51)]
    assert len({each.seed for each in found}) == 50
    own = built([{"temperature": each / 10} for each in range(3)])
    assert [each.temperature for each in own] == [0.0, 0.1, 0.2] and len(checked) == 4
