"""Responses that are kept, in one process and for several."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from vivace.protocol.listening_socket import listen, new_socket
from vivace.server.response_link import ResponseClient, ResponseServer, join_responses
from vivace.server.response_store import MAX_RUNNING, OVERHEAD, ResponseStore, StoredResponse
from vivace.server.responses import HTTPError
from vivace.server.store_messages import (
    Append,
    Begin,
    Find,
    Follow,
    Get,
    Put,
    Remove,
    StopResponse,
    UseApprovals,
    WaitStop,
)

APP = web.Application()
PUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 3000)), max_size=40)
RUNNING = StoredResponse(b"begun", background=True, running=True)


async def refusal(work: Awaitable[Any]) -> int:
    """The status of what is refused; 0 where it is not."""
    try:
        await work
    except HTTPError as error:
        return error.status
    return 0


@given(PUTS, st.integers(1, 8), st.integers(OVERHEAD, 9 * OVERHEAD))
def test_a_store_stays_within_its_limits(
    puts: list[tuple[int, int, int]], entries: int, size: int
) -> None:
    async def fill() -> None:
        store = ResponseStore(entries, size)
        for client, number, length in puts:
            entry = StoredResponse(b"x" * length)
            assert await store.put(client, str(number), entry) == (entry.size <= size)
            assert len(store) <= entries and store.size <= size
        kept: dict[tuple[int, str], int] = {}
        for client, number, _ in puts:
            try:
                kept[client, str(number)] = (await store.get(client, str(number))).size
            except HTTPError as error:
                assert error.status == 404
        assert len(kept) == len(store) and sum(kept.values()) == store.size

    asyncio.run(fill())


def test_room_is_made_by_who_has_most() -> None:
    async def fill() -> list[int]:
        store = ResponseStore(4)
        await store.put(1, "kept", StoredResponse(b"x"))
        for number in range(20):
            await store.put(2, str(number), StoredResponse(b"x"))
        assert (await store.get(1, "kept")).body == b"x"
        return [number for number in range(20) if not await refusal(store.get(2, str(number)))]

    assert asyncio.run(fill()) == [17, 18, 19]


def test_a_conversation_is_kept_once_however_many_turns_it_has() -> None:
    async def talk(turns: int) -> tuple[int, ResponseStore]:
        store, said = ResponseStore(), list[bytes]()
        for turn in range(turns):
            said += [b"%d" % turn + b"x" * 1000, b"%d" % turn + b"y" * 1000]
            copies = tuple(bytes(bytearray(one)) for one in said)  # as they are decoded
            await store.put(1, str(turn), StoredResponse(b"{}", copies))
        assert (await store.get(1, str(turns - 1))).messages == tuple(said)
        return store.size, store

    async def fill() -> None:
        few, _ = await talk(10)
        many, store = await talk(40)
        assert many < 5 * few  # 4 times as many turns
        last = (await store.get(1, "39")).messages
        for turn in range(39):
            before = await store.get(1, str(turn))
            assert all(map(operator.is_, before.messages, last))
            await store.remove(1, str(turn))
        alone = await store.get(1, "39")
        assert alone.messages == last and store.size == alone.size
        await store.remove(1, "39")
        assert store.size == 0

    asyncio.run(fill())


@pytest.mark.parametrize(("length", "places"), [(4, 4), (99, 0)])
def test_what_runs_in_the_background_has_limits_too(length: int, places: int) -> None:
    async def fill() -> int:
        store = ResponseStore(max_bytes=20 * OVERHEAD)
        entry = StoredResponse(b"x" * length * OVERHEAD, background=True, running=True)
        for number in range(MAX_RUNNING):
            if status := await refusal(store.begin(1, str(number), entry)):
                assert status == 503
                return number
        return MAX_RUNNING

    assert asyncio.run(fill()) == places


def test_who_waits_for_what_cannot_be_begun_again_hears_of_it() -> None:
    async def wait() -> None:
        store = ResponseStore(max_bytes=20 * OVERHEAD)
        await store.begin(1, "a", RUNNING)
        waiting = asyncio.create_task(store.wait_stop(1, "a"))
        await asyncio.sleep(0)
        large = StoredResponse(b"x" * 99 * OVERHEAD, background=True, running=True)
        assert await refusal(store.begin(1, "a", large)) == 503
        await asyncio.wait_for(waiting, 20)

    asyncio.run(wait())


@given(st.lists(st.integers(1, 4), max_size=MAX_RUNNING * 2))
def test_who_has_less_in_the_background_finds_a_place(asked: list[int]) -> None:
    """Whatever others have begun: a client's first one always, and more as long as it leaves others
    as much as it has itself."""

    async def fill() -> None:
        store = ResponseStore(shared=True)
        had = dict.fromkeys(range(1, 6), 0)
        for number, client in enumerate([1] * MAX_RUNNING + asked):
            free = MAX_RUNNING - sum(had.values())
            refused = await refusal(store.begin(client, str(number), RUNNING)) != 0
            assert refused == (had[client] >= free)
            had[client] += not refused
        assert await refusal(store.begin(5, "first", RUNNING)) == 0

    asyncio.run(fill())


STEPS = st.lists(st.integers(1, 40), max_size=20)


@given(STEPS, st.integers(2, 30))
def test_events_are_handed_out_in_order_or_refused(steps: list[int], room: int) -> None:
    """Each once, by its number, as long as there is room for it; other clients' entries stay."""

    async def talk() -> None:
        store = ResponseStore(max_bytes=(room + 2) * OVERHEAD)
        await store.put(8, "other", StoredResponse(b""))
        await store.begin(7, "a", RUNNING, streamed=True)
        sent: list[bytes] = []
        for count in steps:
            events = [b"%d" % number for number in range(len(sent), len(sent) + count)]
            await store.append(7, "a", len(sent), events)
            sent += events
            assert store.size <= (room + 2) * OVERHEAD
        await store.put(7, "a", StoredResponse(b"whole", background=True))
        found, number = await read_from_oldest(store, len(sent))
        assert found == sent[number:]
        assert (await store.get(8, "other")).body == b""

    asyncio.run(talk())


async def read_from_oldest(store: ResponseStore, most: int) -> tuple[list[bytes], int]:
    """All events that are there, and the number of the first."""
    first = 0
    while first < most and await refusal(store.follow(7, "a", first)):
        first += 1
    found: list[bytes] = []
    while (news := await store.follow(7, "a", first + len(found))).body is None:
        assert news.following == first + len(found) + len(news.events)
        found += news.events
    found += news.events
    assert (news.body, news.following) == (b"whole", most)
    return found, first


# -- of several processes --------------------------------------------------------------------------

Store = ResponseStore | ResponseClient


@contextlib.asynccontextmanager
async def linked() -> AsyncIterator[tuple[ResponseStore, ResponseServer, ResponseClient]]:
    """The store of the first place, and what another place has of it."""
    made = listen(new_socket())
    store, server = join_responses(ResponseStore(), made.listening, 0)
    _, client = join_responses(ResponseStore(), made.file, 1)
    assert isinstance(store, ResponseStore) and isinstance(server, ResponseServer)
    assert isinstance(client, ResponseClient)
    await server.open(APP)
    try:
        async with asyncio.timeout(20):
            yield store, server, client
    finally:
        await client.close(APP)
        await server.close(APP)
        os.close(made.listening)
        os.close(made.file)


def test_what_one_process_keeps_another_one_finds() -> None:
    async def talk() -> None:
        async with linked() as (here, _, there):
            for keeper, asker, identity in ((here, there, "a"), (there, here, "b")):
                entry = StoredResponse(
                    b"{}" * (1 << 20), (b"hi", b""), (f"msg_{identity}",), frozenset({"s"})
                )
                assert await keeper.ask(Put(7, identity, entry)) is True
                assert await asker.ask(Get(7, identity)) == entry
                found = await asker.ask(Find(7, [f"msg_{identity}", "msg_other"]))
                assert found.places == {f"msg_{identity}": identity}
                assert found.bodies == {identity: entry.body}
                assert (await asker.ask(Find(8, [f"msg_{identity}"]))).places == {}
                assert await refusal(asker.ask(Get(8, identity))) == 404
                await asker.ask(Remove(7, identity))
                assert await refusal(keeper.ask(Get(7, identity))) == 404
            await here.ask(UseApprovals(7, ["one", "two"]))
            assert await refusal(there.ask(UseApprovals(7, ["three", "one"]))) == 400
            assert await refusal(there.ask(UseApprovals(8, ["one"]))) == 0

    asyncio.run(talk())


async def make_until_stopped(store: Store, identity: str) -> None:
    await store.ask(WaitStop(7, identity))
    await store.ask(Put(7, identity, StoredResponse(b"stopped", background=True)))


@pytest.mark.parametrize("way", ["stop", "remove"])
def test_what_one_process_makes_another_one_ends(way: str) -> None:
    async def talk() -> None:
        async with linked() as (here, _, there):
            for maker, asker in ((here, there), (there, here)):
                await maker.ask(Begin(7, "a", RUNNING, b"lost"))
                making = asyncio.create_task(make_until_stopped(maker, "a"))
                assert (await asker.ask(Get(7, "a"))).running
                if way == "stop":
                    assert (await asker.ask(StopResponse(7, "a"))).body == b"stopped"
                    assert await asker.ask(StopResponse(7, "a")) == await maker.ask(Get(7, "a"))
                else:
                    await asker.ask(Remove(7, "a"))
                    assert await refusal(maker.ask(Get(7, "a"))) == 404
                await making

    asyncio.run(talk())


def test_what_a_process_made_that_has_ended_is_lost() -> None:
    async def talk() -> None:
        async with linked() as (here, _, there):
            await there.ask(Begin(7, "a", RUNNING, b"lost"))
            await there.ask(Begin(7, "b", RUNNING, b"lost"))
            await there.ask(Put(7, "b", StoredResponse(b"whole", background=True)))
            stopping = asyncio.create_task(here.ask(StopResponse(7, "a")))
            await there.close(APP)
            assert (await stopping).body == b"lost"
            assert (await here.ask(Get(7, "b"))).body == b"whole"

    asyncio.run(talk())


def test_what_was_begun_again_or_refused_does_not_end_with_a_connection() -> None:
    async def talk() -> None:
        async with linked() as (here, _, there):
            await there.ask(Begin(7, "a", RUNNING, b"lost"))
            await here.ask(Begin(7, "a", RUNNING, b"lost"))
            for number in range(MAX_RUNNING - 1):
                await here.ask(Begin(7, f"{number}", RUNNING, b"lost"))
            assert await refusal(there.ask(Begin(7, "b", RUNNING, b"lost"))) == 503
            await here.ask(Put(7, "0", StoredResponse(b"whole", background=True)))
            await here.ask(Begin(7, "b", RUNNING, b"lost"))
            await there.close(APP)
            await asyncio.sleep(0.05)
            for name in "ab":
                assert (await here.ask(Get(7, name))).running

    asyncio.run(talk())


def test_events_of_another_process_can_be_read() -> None:
    async def talk() -> None:
        async with linked() as (here, _, there):
            for maker, reader, name in ((here, there, "a"), (there, here, "b")):
                await maker.ask(Begin(7, name, RUNNING, streamed=True))
                reading = asyncio.create_task(reader.ask(Follow(7, name, 0)))
                await asyncio.sleep(0)
                await maker.ask(Append(7, name, 0, [b"one", b"two"]))
                news = await reading
                assert (list(news.events), news.following, news.body) == ([b"one", b"two"], 2, None)
                await maker.ask(Append(7, name, 9, [b"late"]))  # nobody knows what was before
                assert await refusal(reader.ask(Follow(7, name, 2))) == 400
                assert list((await reader.ask(Follow(7, name, 9))).events) == [b"late"]
                reading = asyncio.create_task(reader.ask(Follow(7, name, 10)))
                await asyncio.sleep(0)
                await maker.ask(Put(7, name, StoredResponse(b"whole", background=True)))
                news = await reading
                assert (news.body, news.following) == (b"whole", 10)

    asyncio.run(talk())


def test_who_waits_no_more_is_forgotten() -> None:
    async def talk() -> None:
        async with linked() as (_, _, there):
            await there.ask(Begin(7, "a", RUNNING, streamed=True))
            tasks = len(asyncio.all_tasks())
            for _ in range(3):
                reading = asyncio.create_task(there.ask(Follow(7, "a", 0)))
                await until(lambda: len(asyncio.all_tasks()) == tasks + 2)
                reading.cancel()
                await until(lambda: len(asyncio.all_tasks()) == tasks)

    asyncio.run(talk())


def test_another_process_may_come_to_keep_them() -> None:
    """What is made elsewhere meanwhile is made on, and can be ended there."""

    async def talk() -> None:
        async with linked() as (_, server, there):
            await there.ask(Put(7, "old", StoredResponse(b"old")))
            await there.ask(Begin(7, "a", RUNNING, b"lost"))
            making = asyncio.create_task(make_until_stopped(there, "a"))
            await server.close(APP)
            asked = asyncio.create_task(refusal(there.ask(Get(7, "old"))))  # waits for who comes
            successor = ResponseStore()
            following = ResponseServer(successor, server.descriptor)
            await following.open(APP)
            try:
                assert await asked == 404
                await until(lambda: len(successor) == 1)
                assert (await successor.ask(StopResponse(7, "a"))).body == b"stopped"
                await making
            finally:
                await there.close(APP)
                await following.close(APP)

    asyncio.run(talk())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
