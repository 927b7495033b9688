"""Large bodies: what is refused before it is decoded, and that pieces make what the whole makes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_kit import Running, ask, running_server
from worst_bodies import malformed_bodies

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import DISCARDED, Work, discard, run_now
from vivace.requests import json_scan, limits, long_texts
from vivace.requests.limits import PROMPTS
from vivace.requests.prompts import read_arguments
from vivace.requests.schema import GenerateRequest
from vivace.server import body as bodies
from vivace.server import http
from vivace.server.body import Body, BodyReader
from vivace.server.context import UNCOUNTED, BodyBudget
from vivace.server.openai.schema import ChatRequest, CompletionRequest
from vivace.server.responses import HTTPError
from vivace.server.routes import ROUTES
from vivace.server.schema import TokenizeRequest
from vivace.server.settings import ServerSettings

TOKENIZE = (
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
KINDS = (GenerateRequest, TokenizeRequest, ChatRequest, CompletionRequest)

words = st.text(max_size=40) | st.sampled_from(['"', "\\", '\\"]}', "],[", "é✓", "\n", "😀" * 9])
ids = st.lists(st.integers(0, 999), max_size=40)
rows = st.lists(ids, max_size=12)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(words, inner, max_size=4),
    max_leaves=30,
)
calls = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": words}, optional={"arguments": st.dictionaries(words, anything) | words}
        )
    },
    optional={"id": words, "unknown": anything},
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.just("user")},
        optional={
            "content": words | st.lists(st.just({"type": "text", "text": "a,b"}), max_size=9),
            "tool_calls": st.lists(calls, max_size=5),
        },
    ),
    max_size=20,
)
BODIES: dict[Any, st.SearchStrategy[dict[str, Any]]] = {
    GenerateRequest: st.fixed_dictionaries(
        {},
        optional={
            "text": words | st.lists(words, max_size=30),
            "input_ids": ids | rows,
            "token_ids_logprob": ids | st.lists(ids | st.none(), max_size=9),
            "kv_hints": anything,
            "unknown": anything,
            "stream": st.booleans(),
        },
    ),
    CompletionRequest: st.fixed_dictionaries({"prompt": words | ids | rows | st.lists(words)}),
    ChatRequest: st.fixed_dictionaries(
        {"messages": messages}, optional={"stop_token_ids": ids, "x": anything}
    ),
}


@settings(max_examples=25, deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_pieces_make_what_the_whole_makes(kind: Any, data: st.DataObject) -> None:
    """With windows of a few bytes and pieces of a few values, whatever the body holds."""
    body = data.draw(BODIES[kind])
    text = json.dumps(body, ensure_ascii=data.draw(st.booleans()), indent=data.draw(INDENTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "WINDOW", data.draw(st.integers(1, 40)))
        patch.setattr(json_scan, "PIECE", data.draw(st.integers(1, 60)))
        patch.setattr(json_scan, "PIECE_VALUES", data.draw(st.integers(1, 8)))
        patch.setattr(json_scan, "PART_BYTES", data.draw(st.sampled_from([0, 1 << 20])))
        patch.setattr(json_scan, "SHORT", data.draw(st.integers(0, 9)))
        patch.setattr(long_texts, "WINDOW", data.draw(st.integers(1, 40)))
        found = read_in_pieces(kind, text.encode())
    assert found == plain(msgspec.json.decode(text.encode(), type=kind))


INDENTS = st.sampled_from([None, 0, 3])


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=12), st.integers(0, 10**6), st.integers(1, 9))
def test_damaged_bodies_are_refused_in_pieces_too(junk: bytes, place: int, window: int) -> None:
    """A body is refused in pieces if it is refused whole, and otherwise means the same."""
    good = b'{"input_ids": [1, 2, 30, 4, 5], "text": ["a", "b,", "c\\"]"], "stream": true}'
    place %= len(good)
    body = good[:place] + junk + good[place + len(junk) // 2 :]
    try:
        expected: Any = plain(msgspec.json.decode(body, type=GenerateRequest))
        body.decode()
    except (ValueError, RecursionError):
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "WINDOW", window)
        patch.setattr(json_scan, "PIECE", 1)
        patch.setattr(json_scan, "PART_BYTES", 0)
        patch.setattr(json_scan, "SHORT", 1)
        try:
            found: Any = read_in_pieces(GenerateRequest, body)
        except BadRequest:
            found = None
    assert found == expected


@settings(max_examples=60, deadline=None)
@given(words, st.integers(0, 70), st.binary(max_size=6))
def test_deep_nesting_is_seen_whatever_the_strings_hold(text: str, depth: int, tail: bytes) -> None:
    """A bracket inside of a string does not count, and one outside does."""
    inner = json.dumps(text + "[" * 80).encode()
    body = b"[" * depth + inner + b"]" * depth
    assert bodies.is_shallow(body) is (depth <= limits.DEPTH)
    bodies.is_shallow(body[: depth + 40] + tail)  # whatever is cut, it ends


def test_long_lists_are_freed_in_slices_unless_somebody_has_them() -> None:
    class Counted:
        alive = 0

        def __init__(self) -> None:
            Counted.alive += 1

        def __del__(self) -> None:
            Counted.alive -= 1

    kept = [Counted() for _ in range(5000)]
    rows = [[Counted() for _ in range(900)] for _ in range(20)]
    mixed: list[Any] = [each for row in range(20) for each in ([Counted() for _ in range(900)], 5)]
    held = [[[Counted() for _ in range(20_000)], kept, rows], mixed]
    del rows, mixed
    before = Counted.alive
    for _ in discard(held):
        assert before - Counted.alive <= DISCARDED
        before = Counted.alive
    assert held == [] and len(kept) == Counted.alive == 5000


@pytest.mark.parametrize("wrong", [[], ["x"]])
def test_nothing_of_a_long_list_is_left(server: Running, wrong: list[Any]) -> None:
    """Each would be freed at once when it goes out of scope, in the middle of the event loop."""
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:

        def watched(lists: list[Any]) -> Work[None]:
            seen.append((len(lists[0]), sys.getrefcount(lists[0])))
            yield from discard(lists)
            assert lists == []

        patch.setattr(http, "discard", watched)
        body = {"tokens": [1] * 100_000 + wrong}
        assert ask(server, "/detokenize", body).status == (400 if wrong else 200)
    ((count, references),) = seen
    assert count > 90_000 and references == 2, "nobody else has it any more"


def test_small_bodies_that_are_malformed_cost_no_time() -> None:
    """An unclosed string took time with the square of its length: half a minute for 64 KiB."""
    reading: Any = BodyReader(GenerateRequest)
    for name, body in malformed_bodies(bodies.SMALL):
        assert len(body) <= bodies.SMALL
        took = []
        for _ in range(3):
            began = time.process_time()
            with pytest.raises(BadRequest):
                asyncio.run(reading.read(Counting, Body(body)))
            took.append(time.process_time() - began)
            if took[-1] < 0.1:
                break
        assert min(took) < 0.25, name


MALFORMED = {
    "strings": b'""',
    "strings and spaces": b'"" ',
    "keys without values": b'"":',
    "closing brackets": b"]",
    "closing and opening": b"][",
}


@pytest.mark.parametrize("unit", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_json_is_refused_where_it_begins(unit: bytes) -> None:
    """Not after 16 MiB of it: nothing counted strings without commas between them."""
    body = b'{"text":"a","unknown":' + unit * (4_000_000 // len(unit)) + b"}"
    work = json_scan.Scan(body, {}).run()
    with pytest.raises(BadRequest) as refused:
        for turn, _ in enumerate(work):
            assert turn < 3000
    assert refused.value.field in ("body", "unknown")


@pytest.mark.parametrize("tail", [b'"', b'"}}', b"", b'","a":["'])
def test_what_is_never_closed_is_not_decoded(tail: bytes) -> None:
    body = b'{"text":"' + b"\\n" * 100_000 + tail
    with pytest.raises(BadRequest, match=r"closed|opened"):
        run_now(json_scan.Scan(body, {}).run())


class Watched:
    """A decoder; `seen` gets the length of all it is given."""

    def __init__(self, decoder: Any, seen: list[int]) -> None:
        self._decode = decoder.decode
        self._seen = seen

    def decode(self, data: bytes) -> Any:
        self._seen.append(len(data))
        return self._decode(data)


@pytest.mark.parametrize(
    ("more", "times"),
    [(b"", 1), (b',"unknown":1', 2), (b',"top_p":"x"', 1), (b',"stop":' + b"[1]" * 2, 1)],
)
def test_a_text_is_decoded_no_more_often_than_it_must(more: bytes, times: int) -> None:
    """Of the text of a body everything else waits for a decoder."""
    reading: Any = BodyReader(ChatRequest)
    seen: list[int] = []
    for name in ("_strict", "_lenient"):
        setattr(reading, name, Watched(getattr(reading, name), seen))
    turn = b'{"role":"user","content":"%b"}' % (b"\\n" * 50_000)
    body = b'{"messages":[%b]%b}' % (turn, more)
    with contextlib.suppress(BadRequest):
        run_now(reading._large(Counting, body, []))
    assert len(seen) == times


ESCAPES = b"\\u4e2d" * 2_000_000
LARGE = {
    "one text": b'{"text":"%b"}' % ESCAPES,
    "a text in a list": b'{"text":["a","%b"]}' % ESCAPES,
    "a text nobody knows": b'{"text":"a","unknown":[{"x":"%b"}]}' % ESCAPES,
    "many short texts": b'{"text":"a","kv_hints":[[%b]]}'
    % b",".join([b'"%b"' % ESCAPES[:1200]] * 9_000),
    "a row of ids": b'{"input_ids":[[1],[%b],[2,3]]}' % b",".join([b"4711"] * 1_000_000),
    "ids": b'{"input_ids":[%b]}' % b",".join([b"4711"] * 1_000_000),
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
def test_no_decoder_gets_more_than_it_can_do_in_a_turn(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once begun it does not stop: 16 MiB of escapes took 40 ms, and a row of ids as long."""
    seen: list[int] = []
    reading: Any = BodyReader(GenerateRequest)
    for name in ("_strict", "_lenient"):
        setattr(reading, name, Watched(getattr(reading, name), seen))
    reading._entries = {name: Watched(decoder, seen) for name, decoder in reading._entries.items()}
    monkeypatch.setattr(bodies, "_IDS", Watched(bodies._IDS, seen))
    monkeypatch.setattr(long_texts, "decode", Watched(msgspec.json.Decoder(str), seen).decode)
    found = plain(run_now(reading._large(Counting, body, [])))
    expected = plain(msgspec.json.decode(body, type=GenerateRequest))
    assert found == expected
    assert max(seen) <= json_scan.PART_BYTES and sum(seen) > len(body) // 2


def test_what_cannot_be_taken_out_has_a_limit() -> None:
    names = b",".join(b'"%06d%b":1' % (number, b"k" * 200) for number in range(6_000))
    for body, field in (
        (b'{"text":"a","kv_hints":{%b}}' % names, "body"),
        (b'{"text":["a",1%b]}' % (b"0" * (2 << 20)), "text[1]"),
        (b'{"text":"a",%b"stream":true}' % (b" " * (2 << 20)), "body"),
    ):
        with pytest.raises(BadRequest, match="bytes") as refused:
            read_in_pieces(GenerateRequest, body)
        assert refused.value.field == field


def test_arguments_of_tools_are_decoded_like_bodies() -> None:
    """They are JSON in a text of the body."""
    value = {"path": "a.txt", "content": "中\n" * 500_000, "more": ["x" * 100, {"y": None}]}
    found: list[Any] = []

    def reading() -> Any:
        found.append((yield from read_arguments(json.dumps(value), "messages[0]")))

    assert sum(1 for _ in reading()) > 20 and found[0][0] == value


def read_in_pieces(kind: Any, body: bytes) -> Any:
    reading: Any = BodyReader(kind)
    return plain(run_now(reading._large(Counting, body, [])))


def plain(asked: Any) -> dict[str, Any]:
    return msgspec.to_builtins(asked)


class Counting:
    """As much of a Context as decoding needs."""

    class http_metrics:
        @staticmethod
        def note(kind: str) -> None: ...


def numbers(count: int) -> str:
    return "[" + ",".join(["7"] * count) + "]"


def listed(entry: str, count: int) -> str:
    return "[" + ",".join([entry] * count) + "]"


CALL = '{"function":{"name":"f"}}'
TOO_MUCH = [
    ("/tokenize", '{"prompt":' + listed('"a"', 400_000) + "}", "prompt", PROMPTS),
    ("/tokenize", '{"prompt":' + listed('"a"', PROMPTS + 1) + "}", "prompt", PROMPTS),
    ("/tokenize", '{"messages":' + listed('{"role":"user"}', 9_000) + "}", "messages", 8192),
    ("/detokenize", '{"tokens":' + listed("[1]", 100_000) + "}", "tokens", PROMPTS),
    ("/detokenize", '{"tokens":' + listed("[1]", PROMPTS + 1) + "}", "tokens", PROMPTS),
    ("/detokenize", '{"tokens":' + numbers(1_048_577) + "}", "tokens", 1_048_576),
    ("/generate", '{"input_ids":' + numbers(1_048_577) + "}", "input_ids", 1_048_576),
    ("/generate", '{"input_ids":' + listed("[]", 200_000) + "}", "input_ids", PROMPTS),
    ("/generate", '{"text":"a","rid":' + listed('"r"', PROMPTS + 1) + "}", "rid", PROMPTS),
    ("/generate", '{"text":"a","kv_hints":' + listed("[]", 140_000) + "}", "body", 65_536),
    ("/generate", '{"text":"a","kv_hints":{"x":' + listed("0", 70_000) + "}}", "kv_hints", 16_384),
    ("/generate", '{"text":"a","what":' + listed("{}", 70_000) + "}", "what", 16_384),
    ("/generate", '{"text":"a","what":' + "[" * 65 + "]" * 65 + "}", "body", 64),
    (
        "/v1/chat/completions",
        '{"messages":[{"role":"assistant","tool_calls":' + listed(CALL, 600) + "}]}",
        "messages[0].tool_calls",
        512,
    ),
    (
        "/v1/chat/completions",
        '{"messages":[{"role":"assistant","tool_calls":' + listed(CALL, 99_000) + "}]}",
        "messages",
        16_384,
    ),
    (
        "/v1/chat/completions",
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"function": {"name": "f", "arguments": '{"a":' + listed("[]", 90_000)}}
                        ],
                    },
                ]
            }
        ),
        "messages[1].tool_calls[0].function.arguments",
        16_384,
    ),
    ("/v1/completions", '{"prompt":' + listed("[1]", 5_000) + "}", "prompt", PROMPTS),
]


@pytest.fixture(scope="module")
def server() -> Any:
    with running_server() as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body", "field", "limit"), TOO_MUCH, ids=[f"{p} {f}" for p, _, f, _ in TOO_MUCH]
)
def test_too_much_is_refused_with_field_and_limit(
    server: Running, path: str, body: str, field: str, limit: int
) -> None:
    answer = ask(server, path, body.encode())
    assert (answer.status, answer.json["param"]) == (400, field), answer.text
    assert str(limit) in answer.json["message"]


LONG = 4096
CHAT = [{"role": "user", "content": f'turn {i}: "quoted", ' + "x" * 480} for i in range(2000)]
LEGAL: list[tuple[Any, dict[str, Any]]] = [
    (ChatRequest, {"messages": CHAT}),
    (
        ChatRequest,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "y" * 40}] * 2048}]},
    ),
    (CompletionRequest, {"prompt": list(range(131_072))}),
    (CompletionRequest, {"prompt": [[7] * LONG] * 1024}),
    (GenerateRequest, {"text": ["x" * 500] * 1024, "sampling_params": [{"n": 1}] * 1024}),
    (GenerateRequest, {"input_ids": [[7] * LONG] * 1024, "rid": [str(i) for i in range(1024)]}),
    (GenerateRequest, {"text": "z" * 3_000_000}),
]


@pytest.mark.parametrize(("kind", "body"), LEGAL)
def test_what_clients_really_send_is_read(kind: Any, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    assert len(data) > bodies.SMALL
    found = read_in_pieces(kind, data)
    for name, value in body.items():
        assert found[name] == value


def test_every_list_of_every_body_has_a_limit() -> None:
    """By its annotation, so that it is refused while it is decoded."""
    seen: set[Any] = set()

    def walk(hint: Any, where: str, limited: bool = False) -> None:
        if get_origin(hint) in (list, dict):
            assert limited, f"{where}: no limit; use a type of vivace.requests.limits"
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            if hint not in seen:
                seen.add(hint)
                for name, inner in get_type_hints(hint, include_extras=True).items():
                    walk(inner, f"{hint.__name__}.{name}")
            return
        meta = getattr(hint, "__metadata__", ())
        if meta:
            walk(hint.__origin__, where, any(one.max_length for one in meta))
        else:
            for inner in get_args(hint):
                walk(inner, where)

    for route in ROUTES:
        if route.accepts is not None:
            walk(route.accepts, route.path)
    assert len(seen) > 6


def test_bytes_that_are_no_utf8_are_refused_in_unknown_fields_too(server: Running) -> None:
    for size in (1, 100_000):
        body = b'{"prompt": "a", "unknown": "%b\xff"}' % (b"x" * size)
        answer = ask(server, "/tokenize", body)
        assert (answer.status, answer.json["param"]) == (400, "body"), answer.text


# -- the budget of bodies ------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_bodies_share_a_budget_and_give_it_back() -> None:
    budget = BodyBudget(1000 << 10, Clock())
    first, second = budget.share(pytest.fail), budget.share(pytest.fail)
    first.take(UNCOUNTED)
    first.take(900 << 10)
    second.take(UNCOUNTED)  # small bodies never wait for room
    with pytest.raises(HTTPError) as refused:
        second.take(200 << 10)
    assert refused.value.status == 503 and refused.value.retry_after
    second.release()
    first.release()
    third = budget.share(pytest.fail)
    third.take(UNCOUNTED + (1000 << 10))
    third.release()


def test_a_slow_body_gives_way() -> None:
    clock, gone = Clock(), []
    budget = BodyBudget(1000 << 10, clock)
    slow, quick = budget.share(lambda: gone.append("slow")), budget.share(pytest.fail)
    slow.take(UNCOUNTED + (600 << 10))
    clock.now = 30.0
    quick.take(UNCOUNTED + (300 << 10))
    quick.take(300 << 10)
    assert gone == ["slow"]
    assert slow.held == 0


@pytest.mark.parametrize("trickle", [0.0, 0.4, 1.9])
def test_a_body_that_comes_to_a_halt_gives_way_however_fast_it_began(trickle: float) -> None:
    """Its average from the beginning stays high for a minute; what counts is what comes now."""
    clock, gone = Clock(), []
    budget = BodyBudget(32 << 20, clock)
    share = budget.share(lambda: gone.append(clock.now))
    steady = budget.share(pytest.fail)
    for _ in range(16):
        clock.now += 0.01
        share.take(1 << 20)
    while clock.now < 8.0:  # then a byte now and then, or none
        clock.now += trickle or 1.0
        steady.take(int((trickle or 1.0) * (512 << 10)))
        if trickle:
            share.take(1)
    budget.share(pytest.fail).take(16 << 20)
    assert len(gone) == 1
    assert share.held == 0 and steady.held


def test_unfinished_bodies_are_bounded_over_connections_and_free_the_room() -> None:
    size = 1 << 20
    options = ServerSettings(body_limit=size, bodies_limit=2 * size, body_timeout=1.0)
    head = TOKENIZE % size
    with running_server(options) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        for connection in held:
            connection.settimeout(10)
            connection.sendall(head + b" " * (size - 10))
        statuses = sorted(connection.recv(4096)[9:12] for connection in held)
        assert statuses == [b"408", b"408", b"503", b"503"]
        assert ask(server, "/tokenize", {"prompt": "a"}).status == 200
        assert ask(server, "/tokenize", {"prompt": "a", "x": "y" * (size - 99)}).status == 200
        for connection in held:
            connection.close()


# -- connections ---------------------------------------------------------------------------------


def test_the_head_of_a_later_request_has_the_deadline_of_the_first() -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        running_server(ServerSettings(header_timeout=0.4, keepalive_timeout=60.0)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
    ):
        for pause in (0.0, 0.8, 0.0):  # to rest between requests is allowed
            time.sleep(pause)
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(request[:-10])
        assert connection.recv(4096) == b""  # and not a timeout


def test_tokenizing_stops_when_the_client_has_left() -> None:
    with running_server() as server:
        calls: list[str] = []
        tokenizer: Any = server.frontend.tokenizer
        encode = tokenizer.encode

        def slow(text: str, special: bool = True) -> list[int]:
            calls.append(text)
            time.sleep(0.01)
            return encode(text, special)

        tokenizer.encode = slow
        body = json.dumps({"prompt": ["x" * 400] * 1024}).encode()
        head = TOKENIZE % len(body)
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + body)
            server.until(lambda: len(calls) > 3)
        time.sleep(1.0)
        after = len(calls)
        time.sleep(0.5)
        assert len(calls) == after < 1024


def test_a_text_far_over_the_context_is_not_tokenized_whole(server: Running) -> None:
    from vivace.frontend import tokenizer_pool

    tokenizer: Any = server.frontend.tokenizer
    sizes: list[int] = []
    encode = tokenizer.encode

    def noting(text: str, special: bool = True) -> list[int]:
        sizes.append(len(text))
        return encode(text, special)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "encode", noting)
        patch.setattr(tokenizer_pool, "MAX_TOKEN_CHARACTERS", 1 << 20)
        answer = ask(server, "/generate", {"text": "7" * 900_000})
    assert answer.status == 400 and answer.json["param"] == "text"
    assert sum(sizes) <= 2 * tokenizer_pool.LONG_CHARACTERS


def test_a_body_is_taken_once() -> None:
    body = Body(b"{}")
    assert body.take() == b"{}"
    assert body.take() == b""


def test_the_limits_leave_room_for_each_other() -> None:
    assert limits.PARTS * 3 <= limits.PART_VALUES <= limits.VALUES
    assert limits.MESSAGES * 4 <= limits.VALUES
