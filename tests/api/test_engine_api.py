"""The offline API over the real engine with the oracle for a model: every token is known."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

import vivace
from vivace.api import Engine
from vivace.engine.executor import InProcessExecutor
from vivace.engine.loop import Loop
from vivace.engine.oracle import OracleWorker, oracle_answer
from vivace.engine.scheduler import Scheduler
from vivace.engine.settings import EngineSettings
from vivace.frontend.engine_status import EngineView
from vivace.frontend.errors import BadRequest, EngineUnavailable
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import ServedModel
from vivace.frontend.tokenizer import Tokenizer
from vivace.frontend.tokenizer_core import byte_alphabet
from vivace.frontend.validation import OTHER_NAMES, SAMPLING_FIELDS
from vivace.offline.driver import Driver
from vivace.offline.prompts import GenerateOptions
from vivace.offline.rank_watch import RankWatch
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import Capacity, Ready

VOCABULARY = 256
CONTEXT = 200


def tokenizer() -> Tokenizer:
    core = Core(models.BPE(vocab=byte_alphabet(), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return Tokenizer(core)


class Parts:
    """What `vivace.offline.build` would have put together."""

    def __init__(self, *, disjoint: bool = False, step_seconds: float = 0.0) -> None:
        sizes: dict[str, int] = {"page_size": 4, "rows": 8, "context": CONTEXT}
        capacity = Capacity(pages=400, vocabulary=VOCABULARY, **sizes)  # type: ignore[arg-type]
        self.config = SimpleNamespace(
            runtime=SimpleNamespace(stream_output=disjoint),
            http=SimpleNamespace(tool_call_parser=None, reasoning_parser=None),
            environment={},
        )
        mailbox = LocalMailbox()
        served = ServedModel(name="toy", context=CONTEXT, vocabulary=VOCABULARY)
        self.frontend = Frontend(served, tokenizer(), [EngineView(mailbox.post)])
        self.worker = OracleWorker(capacity, VOCABULARY, step_seconds=step_seconds)
        scheduler = Scheduler(EngineSettings(rows=8), capacity, time.monotonic)
        executor = InProcessExecutor(self.worker)
        loop = Loop(scheduler, executor, mailbox, depth=2, clock=time.monotonic)
        self.frontend.feed(Ready(epoch=0, capacity=capacity))
        self.driver = Driver(loop, mailbox, self.frontend, RankWatch((), 0))

    def engine(self, monkeypatch: pytest.MonkeyPatch) -> Engine:
        monkeypatch.setattr("vivace.api.resolve_arguments", lambda flags: self.config)
        parts = self.frontend, self.driver
        monkeypatch.setattr("vivace.api.start", lambda *asked: parts)
        monkeypatch.setattr("vivace.config.serialize.public", lambda config: {"page_size": 4})
        return Engine()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with Parts().engine(monkeypatch) as engine:
        yield engine


def expected(prompt: str, seed: int, count: int) -> list[int]:
    return oracle_answer(seed, len(prompt), count, VOCABULARY)


def params(seed: int = 5, count: int = 12, **more: Any) -> dict[str, Any]:
    return {"sampling_seed": seed, "max_new_tokens": count, **more}


def test_one_prompt(engine: Engine) -> None:
    answer: Any = engine.generate("hello", params(), rid="mine")
    tokens = expected("hello", 5, 12)
    assert answer["output_ids"] == tokens
    assert answer["text"] == tokenizer().decode(tokens)
    meta = answer["meta_info"]
    assert meta["id"] == "mine" and meta["finish_reason"] == {"type": "length", "length": 12}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 12)
    assert meta["e2e_latency"] > 0 and "index" not in answer


def test_batch_and_n(engine: Engine) -> None:
    answers: Any = engine.generate(["ab", "cde"], [params(1, n=2), params(2, 3)], rid=["x", "y"])
    assert [a["output_ids"] for a in answers] == [
        expected("ab", 1, 12),
        expected("ab", 2, 12),
        expected("cde", 2, 3),
    ]
    assert [a["meta_info"]["id"] for a in answers] == ["x-0", "x-1", "y"]
    one: Any = engine.generate(input_ids=[[1, 2]], sampling_params=params())
    assert isinstance(one, list) and one[0]["output_ids"] == oracle_answer(5, 2, 12, VOCABULARY)


def test_streams_grow(engine: Engine) -> None:
    events: Any = list(engine.generate(["ab", "cd"], params(), stream=True))  # type: ignore[arg-type]
    for index, prompt in enumerate(("ab", "cd")):
        mine = [event for event in events if event["index"] == index]
        assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(mine))
        assert len(mine) > 3 and mine[-1]["output_ids"] == expected(prompt, 5, 12)
        assert all(event["meta_info"]["finish_reason"] is None for event in mine[:-1])


def test_disjoint_streams_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Parts(disjoint=True).engine(monkeypatch)
    events: Any = list(engine.generate("ab", params(), stream=True))  # type: ignore[arg-type]
    assert [t for e in events for t in e["output_ids"]] == expected("ab", 5, 12)
    assert "".join(e["text"] for e in events) == tokenizer().decode(expected("ab", 5, 12))


def test_leaving_a_stream_frees_everything(engine: Engine) -> None:
    stream: Any = engine.generate("ab", params(count=150), stream=True)
    next(stream)
    stream.close()
    info = engine.get_server_info()
    state = info["internal_states"][0]
    assert (state["running"], state["waiting"], state["used_tokens"]) == (0, 0, 0)
    assert info["audit"] == [] and info["page_size"] == 4
    assert engine.flush_cache() is True


def test_async_calls_share_steps(engine: Engine) -> None:
    async def scenario() -> None:
        async def streamed(prompt: str) -> Any:
            last = None
            async for event in await engine.async_generate(prompt, params(), stream=True):  # type: ignore[union-attr]
                last = event
            return last

        calls = [engine.async_generate(f"p{i}", params(i)) for i in range(6)]
        answers: Any = await asyncio.gather(*calls, streamed("stream"))
        for i, answer in enumerate(answers[:6]):
            assert answer["output_ids"] == expected(f"p{i}", i, 12)
        assert answers[6]["output_ids"] == expected("stream", 5, 12)

    asyncio.run(scenario())
    asyncio.run(scenario())


def test_threads_may_share_an_engine(engine: Engine) -> None:
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        found[seed] = engine.generate("same", params(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {seed: a["output_ids"] for seed, a in found.items()} == {
        seed: expected("same", seed, 12) for seed in range(4)
    }


def test_log_probabilities(engine: Engine) -> None:
    answer: Any = engine.generate(
        "abc",
        params(count=2),
        return_logprob=True,
        logprob_start_len=0,
        return_text_in_logprobs=True,
    )
    meta = answer["meta_info"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == list(b"abc")
    assert meta["input_token_logprobs"][0][0] is None
    assert [entry[1] for entry in meta["output_token_logprobs"]] == expected("abc", 5, 2)
    assert meta["input_token_logprobs"][1][2] == "b"


def test_keys_and_salts_part_the_prefix_cache(engine: Engine) -> None:
    def cached(**keys: Any) -> int:
        answer: Any = engine.generate("a prompt of several pages", params(count=2), **keys)
        return answer["meta_info"]["cached_tokens"]

    assert cached() == 0 and cached() > 0
    assert cached(extra_key="mine") == 0 and cached(extra_key="mine") > 0
    assert cached(cache_salt="mine") == 0 and cached(cache_salt="mine") > 0
    assert cached(extra_key="mine", cache_salt="yours") == 0
    answers: Any = engine.generate(["one long prompt", "one long prompt"], extra_key=["x", "y"])
    assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [0, 0]


def test_the_async_form_takes_the_same_arguments(engine: Engine) -> None:
    async def scenario() -> None:
        asked: dict[str, Any] = {"rid": "mine", "extra_key": "k", "priority": 3}
        await engine.async_generate("a longer prompt", params(), **asked)
        answer: Any = await engine.async_generate("a longer prompt", params(), **asked)
        assert answer["meta_info"]["id"] == "mine" and answer["meta_info"]["cached_tokens"] > 0
        with pytest.raises(BadRequest, match=r"extra_key.* int"):
            await engine.async_generate("a", extra_key=5)  # type: ignore[arg-type]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (8, "must be dict, list or None, not int"),
        ("x", "must be dict, list or None, not str"),
        ([8], "must be dict, not int"),
        ({"temperature": []}, "not a list"),
        ({"stop": {"a": 1}}, "a string or a list of strings, not a dict"),
        ({"logit_bias": []}, "must be a dict, not a list"),
        ({"n": {}}, "not a dict"),
    ],
)
def test_what_is_no_setting_is_told_in_pythons_words(
    engine: Engine, settings: Any, reason: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        engine.generate("a", settings)
    told = str(refused.value)
    assert told.startswith("sampling_params") and told.endswith(reason)


def test_arguments_that_ask_for_nothing_are_taken(engine: Engine) -> None:
    nothing: dict[str, Any] = {
        "routed_dp_rank": 0, "image_data": None, "return_hidden_states": False,
        "require_reasoning": False, "routed_experts_start_len": 0,
    }  # fmt: skip
    answer: Any = engine.generate("a", params(), **nothing)
    assert answer["output_ids"] == expected("a", 5, 12)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [5]}, "prompt[0]"),
        ({"prompt": ""}, "prompt"),
        ({"input_ids": [999]}, "input_ids"),
        ({"prompt": "a", "image_data": "x"}, "image_data"),
        ({"prompt": "a", "require_reasoning": True}, "require_reasoning"),
        ({"prompt": "a", "session_id": "s"}, "session_id"),
        ({"prompt": "a", "cache_salt": 7}, "cache_salt"),
        ({"prompt": ["a", "b"], "extra_key": ["x"]}, "extra_key"),
        ({"prompt": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"prompt": [[1, 2]]}, "prompt[0]"),
        ({"prompt": ["a", "b"], "sampling_params": [{}, {"top_p": 2}]}, "sampling_params[1].top_p"),
        ({"prompt": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"prompt": "a", "rid": "x" * 600}, "rid"),
        ({"prompt": "a" * 300}, "prompt"),
        ({"prompt": "a", "sampling_params": {"top_p": 2}}, "sampling_params.top_p"),
    ],
)
def test_bad_calls(engine: Engine, call: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        engine.generate(**call)
    assert caught.value.field == field
    with pytest.raises(BadRequest, match="embedding"):
        engine.encode("a")


GENERATING = ("generate", "async_generate", "chat", "async_chat")
METHODS = sorted(
    name
    for name in vars(Engine)
    if not name.startswith("_") and callable(getattr(Engine, name)) and "encode" not in name
)


def refusal(engine: Engine, method: str, **keywords: Any) -> str:
    with pytest.raises(TypeError) as caught:
        answer = getattr(engine, method)(**keywords)
        if asyncio.iscoroutine(answer):
            asyncio.run(answer)
    assert str(caught.value).startswith(f"{method}() has no argument {next(iter(keywords))!r}")
    return str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_a_keyword_of_nobody(engine: Engine, method: str) -> None:
    keywords = list(signature(getattr(Engine, method)).parameters)[1:]
    assert (keywords[0] if keywords else "none") in refusal(engine, method, zzz=1)


@pytest.mark.parametrize("method", GENERATING)
@pytest.mark.parametrize("name", sorted({*OTHER_NAMES, *SAMPLING_FIELDS} - {"response_format"}))
def test_settings_of_sampling_beside_the_dict(engine: Engine, method: str, name: str) -> None:
    wanted = {OTHER_NAMES.get(name, name): 3}
    assert refusal(engine, method, **{name: 3}).endswith(f"; write sampling_params={wanted}")


def test_all_settings_are_shown_at_once(engine: Engine) -> None:
    told = refusal(engine, "generate", temperature=0, max_tokens=2, zzz=1)
    assert told.endswith("; write sampling_params={'temperature': 0, 'max_new_tokens': 2}")
    advice = told.rsplit("sampling_params=", 1)[1]
    answer: Any = engine.generate("a", literal_eval(advice))
    assert answer["meta_info"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("method", "name", "told"),
    [
        ("generate", "prompts", "write prompt=3"),
        ("generate", "prompt_token_ids", "write input_ids=3"),
        ("generate", "messages", "chat() has one that is called 'messages'"),
        ("generate", "strem", "did you mean stream?"),
        ("generate", "tempersture", "did you mean temperature? It belongs into the dict"),
        ("chat", "prompt", "generate() has one that is called 'prompt'"),
        ("score", "labels", "write label_token_ids=3"),
        ("abort_request", "request_id", "write rid=3"),
        ("shutdown", "force", "it takes none"),
    ],
)
def test_arguments_by_other_names(engine: Engine, method: str, name: str, told: str) -> None:
    assert told in refusal(engine, method, **{name: 3})


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_settings_by_other_names_in_the_dict(engine: Engine, name: str) -> None:
    with pytest.raises(BadRequest, match=OTHER_NAMES[name]):
        engine.generate("a", {name: 3})


def test_methods_stay_what_they_were() -> None:
    assert asyncio.iscoroutinefunction(Engine.async_chat)
    assert not asyncio.iscoroutinefunction(Engine.generate)
    assert list(signature(Engine.generate).parameters)[-1] == "options"


def interrupted(parts: Parts) -> None:
    """Ctrl-C within the third step from here: a clock's would come before the call or behind it,
    on a busy machine, and end the process that tests."""
    run, steps = parts.worker.run, itertools.count(1)

    def third_interrupts(plan: Any) -> Any:
        if next(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return run(plan)

    parts.worker.run = third_interrupts  # type: ignore[method-assign]


def test_interrupt_ends_the_call_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    engine = parts.engine(monkeypatch)
    interrupted(parts)
    with pytest.raises(KeyboardInterrupt):
        engine.generate("abc", params(count=150))
    answer: Any = engine.generate("abc", params(count=2))
    assert answer["output_ids"] == expected("abc", 5, 2)


def test_an_interrupt_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    engine = parts.engine(monkeypatch)
    interrupted(parts)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer: Any = engine.generate("abc", params(count=20))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert answer["output_ids"] == expected("abc", 5, 20)


def test_dead_engines_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    engine = parts.engine(monkeypatch)

    def burst(plan: object) -> object:
        raise MemoryError("x-17")

    parts.worker.run = burst  # type: ignore[method-assign, assignment]
    with pytest.raises(Exception, match="x-17"):
        engine.generate("abc", params())
    with pytest.raises(EngineUnavailable, match="x-17"):
        engine.generate("abc", params())


def test_after_shutdown_everything_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Parts().engine(monkeypatch)
    begun: Any = closed.generate("abc", params(count=150), stream=True)
    next(begun)
    unstarted: Any = closed.generate("abc", params(), stream=True)
    closed.shutdown()
    closed.shutdown()
    messages = [{"role": "user", "content": "hi"}]
    calls: list[Callable[[], Any]] = [
        lambda: closed.generate("abc", params()),
        lambda: asyncio.run(closed.async_generate("abc", params())),
        lambda: closed.chat(messages),
        lambda: asyncio.run(closed.async_chat(messages)),
        lambda: closed.score("a", "b", [1]),
        lambda: list(begun),
        lambda: list(unstarted),
        closed.flush_cache,
        closed.get_server_info,
    ]
    for call in calls:
        with pytest.raises(EngineUnavailable, match="shut") as caught:
            call()
        assert "server" not in str(caught.value)
    closed.abort_request(abort_all=True)


def test_a_fork_is_told_that_the_engine_is_not_its_own(engine: Engine) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate("abc", params()),
        lambda: asyncio.run(engine.async_generate("abc", params())),
        lambda: engine.chat([{"role": "user", "content": "hi"}]),
        engine.get_server_info,
        engine.shutdown,
    ]
    with engine._driver._lock._lock:  # of a thread that steps, and that a fork has lost
        raised = [in_a_fork(call) for call in calls]
    assert raised == ["EngineUnavailable"] * 4 + ["nothing"]
    answer: Any = engine.generate("abc", params())
    assert answer["output_ids"] == expected("abc", 5, 12)


def in_a_fork(call: Callable[[], Any]) -> str:
    """The name of what `call` raises in a fork of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        said = "nothing"
        try:
            call()
        except BaseException as error:
            said = type(error).__name__
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return said.read()


def test_the_step_under_way_ends_before_an_engine_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(step_seconds=0.05)
    parts.engine(monkeypatch)
    inside, freed = threading.Event(), threading.Event()
    run, order = parts.worker.run, []

    def slow(plan: Any) -> Any:
        inside.set()
        freed.wait(0.3)
        result = run(plan)
        order.append("step")
        return result

    parts.worker.run = slow  # type: ignore[method-assign]
    engine = parts.engine(monkeypatch)
    thread = threading.Thread(target=lambda: suppressed(engine.generate, "abc", params(count=50)))
    thread.start()
    inside.wait(10)
    # what a finalizer calls when the program ends
    parts.driver._lock.end(EngineUnavailable("the program ends"))
    order.append("freed")
    freed.set()
    thread.join()
    assert order[-1] == "freed" and "step" in order
    with pytest.raises(EngineUnavailable, match="program"):
        engine.generate("abc", params())


def test_a_signal_handler_may_shut_down_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    engine, run = parts.engine(monkeypatch), parts.worker.run
    raised: list[str] = []

    def handler(*_: object) -> None:
        try:
            engine.generate("abc", params())
        except EngineUnavailable as error:
            raised.append(str(error))
        engine.shutdown()

    def interrupted(plan: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return run(plan)

    parts.worker.run = interrupted  # type: ignore[method-assign]
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(EngineUnavailable, match="shut"):
            engine.generate("abc", params())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert raised == ["a signal handler cannot use the engine within a step"]


def suppressed(call: Callable[..., Any], *arguments: Any) -> None:
    with contextlib.suppress(EngineUnavailable):
        call(*arguments)


LOOP: list[Any] = []
LOOP.append(LOOP)
ODD_VALUES: list[Any] = [
    "\ud800",
    LOOP,
    range(3),
    object(),
    b"x",
    [[]],
    [None],
    10**400,
    float("nan"),
]


@pytest.mark.parametrize("value", ODD_VALUES, ids=[str(place) for place in range(len(ODD_VALUES))])
def test_no_argument_breaks_out_of_the_documented_errors(engine: Engine, value: Any) -> None:
    options = [*GenerateOptions.__annotations__, "image_data", "lora_path", "return_hidden_states"]
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate(value, params()),
        lambda: engine.generate(input_ids=value),
        lambda: engine.generate("abc", value),
        lambda: engine.chat(value),
        lambda: engine.chat([value]),
        lambda: engine.chat([{"role": "user", "content": "x"}], value),
        lambda: engine.score(value, ["a"], [1]),
        lambda: engine.score("a", value, [1]),
        lambda: engine.score("a", ["a"], value),
        *(partial(engine.generate, "abc", params(count=1), **{name: value}) for name in options),
        *(partial(engine.generate, "abc", {name: value}) for name in ("stop", "n", "top_p")),
    ]
    for call in calls:
        with contextlib.suppress(BadRequest):
            call()
    answer: Any = engine.generate("abc", params())
    assert answer["output_ids"] == expected("abc", 5, 12)


def test_the_limit_in_effect_is_told(engine: Engine) -> None:
    answer: Any = engine.generate("abc", params(count=10**9))
    assert answer["meta_info"]["max_new_tokens"] == CONTEXT - 3
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": CONTEXT - 3}
    events: Any = list(engine.generate("abc", params(count=4), stream=True))  # type: ignore[arg-type]
    assert events[-1]["meta_info"]["max_new_tokens"] == 4


def test_what_is_not_there_has_its_own_exception(engine: Engine) -> None:
    with pytest.raises(vivace.NotSupported):
        engine.score("a", "b", [1], query_embed_overrides=[1])
    with pytest.raises(BadRequest, match="messages"):
        engine.chat([{"role": "user", "content": "hi"}])


def test_the_exceptions_are_found_where_the_engine_is() -> None:
    for name in vivace.__all__:
        assert name in dir(vivace) and getattr(vivace, name) is not None
    shown = {name for name in dir(vivace) if not name.startswith("__")}
    assert shown == {*vivace.__all__} - {"__version__"}
    assert vivace.BadRequest is BadRequest and vivace.EngineUnavailable is EngineUnavailable
    assert issubclass(vivace.NotSupported, BadRequest)
    assert issubclass(vivace.ConfigError, vivace.CannotStart)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = vivace.Nothing


def test_what_only_a_server_uses_is_told_in_one_line() -> None:
    from vivace.offline.build import idle_here

    (notice,) = idle_here(
        {"port": 1, "api_key": "secret", "strict_model_name": True, "watchdog_timeout": 3.0}, 1
    )
    told = notice.partition(": ")[2].split(", ")
    assert sorted(told) == ["api_key", "port", "strict_model_name", "watchdog_timeout"]
    assert "secret" not in notice
    assert not idle_here({"watchdog_timeout": 3.0}, 2)
    assert not idle_here({"port": 30000, "context_length": 9, "watchdog_timeout": None}, 1)
