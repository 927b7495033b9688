"""Nobody's flood makes others wait: clients take turns, and whoever has much to do comes later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.frontend.errors import BadRequest
from vivace.frontend.fairness import BASE, CURRENT_CLIENT, FairQueue, QueueFull
from vivace.frontend.tokenizer_pool import FairExecutor, TokenizerPool


def make_queue(most: int = 1000, own: int = 1000, room: int = 1 << 30) -> FairQueue[str]:
    return FairQueue(most, own, room, 16 << 10, lambda item: None)


def order(queue: FairQueue[str]) -> list[str]:
    found: list[str] = []
    while (turn := queue.next()) is not None:
        found.append(turn.item)
    assert not queue.count and not queue.size
    return found


def test_a_flood_of_one_client_delays_another_by_one_piece_at_most() -> None:
    queue = make_queue()
    for number in range(500):
        queue.add(1, 60_000, f"flood {number}")
    queue.next()
    queue.add(2, 600, "chat")
    assert order(queue)[0] == "chat"


def test_many_connections_with_much_do_not_delay_one_with_little() -> None:
    queue = make_queue()
    for number in range(500):
        queue.add(-number - 1, 60_000, f"flood {number}")
    queue.next()
    queue.add(-1000, 600, "chat")
    assert order(queue)[0] == "chat"


def test_equal_clients_alternate_and_small_comes_before_large() -> None:
    queue = make_queue()
    for number in range(4):
        queue.add(1, 100, f"a{number}")
    for number in range(4):
        queue.add(2, 100, f"b{number}")
    assert [item[0] for item in order(queue)] in (list("abababab"), list("babababa"))
    queue.add(1, 60_000, "large")
    queue.add(1, 60, "small")
    assert order(queue) == ["small", "large"]


def test_little_work_does_not_keep_much_work_waiting_for_ever() -> None:
    queue = make_queue()
    queue.add(1, 60_000, "large")
    for number in range(4 * 60_000 // BASE):
        queue.add(2 + number, 10, "small")
        turn = queue.next()
        assert turn is not None
        if turn.item == "large":
            return
    pytest.fail("the large one never came")


def test_work_that_took_long_is_paid_for() -> None:
    queue = make_queue()
    for _ in range(10):
        queue.add(1, 100, "slow")
    queue.next()
    queue.charge(1, 1 << 20)
    queue.add(2, 60_000, "long")
    assert order(queue)[0] == "long"


def test_whoever_fills_the_queue_makes_room_for_others() -> None:
    refused: list[str] = []
    queue: FairQueue[str] = FairQueue(8, 6, 1 << 20, 1000, refused.append)
    for number in range(6):
        queue.add(1, 100, f"a{number}")
    with pytest.raises(QueueFull):
        queue.add(1, 100, "a6")  # its own bound
    queue.add(2, 100, "b")
    queue.add(3, 100, "c")
    queue.add(4, 100, "d")  # all is full
    assert refused == ["a5"] and queue.count == 8
    with pytest.raises(QueueFull):
        queue.add(5, 2 << 20, "no room")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 70_000), st.booleans())))
def test_nothing_is_lost_whatever_is_asked(asked: list[tuple[int, int, bool]]) -> None:
    refused: list[int] = []
    queue: FairQueue[int] = FairQueue(10, 5, 300_000, 1000, refused.append)
    came: list[int] = []
    full: list[int] = []
    for number, (client, size, takes) in enumerate(asked):
        try:
            queue.add(client, size, number)
        except QueueFull:
            full.append(number)
        assert queue.count <= 10 and queue.size <= 300_000
        if takes and (turn := queue.next()) is not None:
            came.append(turn.item)
    while (turn := queue.next()) is not None:
        came.append(turn.item)
    assert sorted(came + refused + full) == list(range(len(asked)))


# -- the tokenizer's threads ---------------------------------------------------------------------


class Held:
    """A tokenizer that waits to be let go, once, and notes what it is given."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.texts: list[str] = []

    def encode(self, text: str, special: bool = True) -> list[int]:
        self.texts.append(text)
        self.begun.set()
        assert self.go.wait(20)
        return [len(text)]


class Model:
    context = 1 << 20
    allow_auto_truncate = False


async def asked_by(client: int, ask: Callable[[], Any]) -> Any:
    CURRENT_CLIENT.set(client)
    return await ask()


@pytest.mark.parametrize("size", [60_000, 100_000])
@pytest.mark.parametrize("keys", [True, False])
def test_a_chat_beside_a_flood_of_texts_is_the_next(size: int, keys: bool) -> None:
    """A hundred long texts in the one queue of all made a chat wait for 17 s."""

    async def main() -> None:
        pool, tokenizer = TokenizerPool(1), Held()
        served: Any = Model()

        def ask(client: int, text: str) -> asyncio.Task[Any]:
            encode = pool.encode(tokenizer, text, True, served)  # type: ignore[arg-type]
            return asyncio.create_task(asked_by(client, lambda: encode))

        flood = [ask(1 if keys else -number - 1, "7" * size) for number in range(50)]
        await asyncio.to_thread(tokenizer.begun.wait, 20)
        chat = ask(2 if keys else -99, "x" * 600)
        left = ask(3, "y" * 600)
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        tokenizer.go.set()
        assert await chat == [600]
        await asyncio.gather(*flood)
        assert "x" in tokenizer.texts[1] + tokenizer.texts[2]
        assert not any("y" in text for text in tokenizer.texts)
        pool.close()

    asyncio.run(main())


def test_a_client_with_too_much_is_told_to_come_back() -> None:
    async def main() -> None:
        pool, tokenizer = TokenizerPool(1), Held()
        executor = FairExecutor(pool._pool, 1, max_entries=20, max_per_client=5, max_size=1 << 20)

        def ask(client: int) -> asyncio.Task[Any]:
            work = executor.run(1000, tokenizer.encode, "a" * 1000)
            return asyncio.create_task(asked_by(client, lambda: work))

        tasks = [ask(1) for _ in range(10)]
        await asyncio.sleep(0.01)
        other = ask(2)
        tokenizer.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BadRequest)]
        assert len(refused) == 4 and await other == [1000]
        assert all(error.status == 503 and error.retry_after for error in refused)
        assert executor._free == 1
        pool.close()

    asyncio.run(main())
