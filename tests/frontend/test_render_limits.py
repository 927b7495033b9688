"""Chat templates are programs of strangers: whatever they do, they do it to their process only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2.filters
import jinja2.tests
import msgspec
import pytest
from descriptors import is_readable

from vivace.config.trial_process import frame
from vivace.frontend.chat_template import ChatTemplate, TemplateSet
from vivace.frontend.errors import BadRequest, ChatTemplateError, OverLimit
from vivace.frontend.fairness import CURRENT_CLIENT
from vivace.frontend.render_process import (
    LoadTemplates,
    ProgressWatch,
    RenderLimits,
    RenderProcess,
)
from vivace.frontend.renderer import Renderer
from vivace.frontend.template_process import environment

TIGHT = RenderLimits(cpu_seconds=0.3, memory=96 << 20, characters=1 << 20)
ATTACKS = {
    "empty loops": "{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "ljust": "{{ 'x'.ljust(2000000000) }}",
    "center": "{{ 'x'.center(2000000000) }}",
    "center filter": "{{ 'x' | center(2000000000) }}",
    "zfill": "{{ 'x'.zfill(2000000000) }}",
    "format method": "{{ '{:2000000000d}'.format(1) }}",
    "format filter": "{{ '%02000000000d' | format(1) }}",
    "percent": "{{ '%02000000000d' % 1 }}",
    "indent of tojson": "{{ [1] | tojson(indent=2000000000) }}",
    "indent filter": "{{ 'a\\nb' | indent(2000000000) }}",
    "doubling": "{% set n = namespace(s='xx') %}" + 40 * "{% set n.s = n.s ~ n.s %}",
    "repeat": "{{ 'x' * 999999999 }}",
    "powers": "{% set n = namespace(i=9) %}" + 40 * "{% set n.i = n.i * n.i %}",
    "power": "{{ (9 ** 64 ** 64 ** 64 ** 64) is even }}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "long answer": "{% for i in r %}{{ 'x' * 9999 }}{% endfor %}",
    "lists": "{% set n = namespace(l=[1]) %}" + 40 * "{% set n.l = n.l + n.l %}",
    "recursion": "{% macro f(n) %}{{ n and f(n - 1) ~ f(n - 1) }}{% endmacro %}{{ f(40) }}",
    "replace": "{{ ('x' * 99999) | replace('x', 'x' * 99999) }}",
    "sort": "{% for i in r %}{% set y = r | sort | unique | list %}{% endfor %}",
    "urls": "{{ ('a.b ' * 900000) | urlize | wordcount }}",
}  # fmt: skip
USER = {"role": "user", "content": "Hi"}
GO = {"role": "user", "content": "go"}
ECHO = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


def armed(attack: str) -> str:
    """A template that echoes, until the last message is "go"."""
    return (
        ECHO
        + "{% if messages[-1].content == 'go' %}{% set r = range(99999) %}"
        + attack
        + "{% endif %}"
    )


@contextlib.contextmanager
def chat(source: str, limits: RenderLimits = TIGHT) -> Iterator[ChatTemplate]:
    template = ChatTemplate(TemplateSet(sources={"default": source}), renderer=Renderer(limits))
    try:
        yield template
    finally:
        template.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_no_template_takes_more_than_its_limits(name: str) -> None:
    """At the start it is refused; in a request it costs that request, and the next is served."""
    refused = pytest.raises(ChatTemplateError, match=r"longer|memory|char")
    with refused, chat("{% set r = range(99999) %}" + ATTACKS[name]):
        pass
    try:
        with chat(armed(ATTACKS[name])) as one:
            with pytest.raises(OverLimit, match=r"limit|more") as caught:
                one.render([USER, GO])
            assert caught.value.status == 400
            assert one.render([USER]) == "<Hi>"
    except ChatTemplateError as error:  # what is constant is computed by the compiler
        assert "limit of" in str(error)


def renderer_pid(template: ChatTemplate) -> int:
    renderer = template._renderer
    process = renderer._process or (renderer._queue and renderer._queue._process)
    assert process
    return process.pid


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within so long; one that only waits to be reaped has."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


async def turns_of_the_loop(over: asyncio.Event) -> int:
    """How often the loop got round to us."""
    turns = 0
    while not over.is_set():
        await asyncio.sleep(0.001)
        turns += 1
    return turns


def test_the_loop_goes_on_and_those_who_wait_are_served() -> None:
    """Three renderings are killed; the loop does not feel it, and every other answer is right."""

    async def main(template: ChatTemplate) -> tuple[list[Any], int]:
        over = asyncio.Event()
        probe = asyncio.create_task(turns_of_the_loop(over))
        asks = [
            [USER, GO] if i in (0, 7, 20) else [{"role": "user", "content": f"{i} " * 50}]
            for i in range(40)
        ]
        answers = await asyncio.gather(
            *(template.render_async(messages) for messages in asks), return_exceptions=True
        )
        over.set()
        return answers, await probe

    limits = RenderLimits(cpu_seconds=1.0, memory=96 << 20)
    with chat(armed(ATTACKS["empty loops"]), limits) as template:
        answers, turns = asyncio.run(main(template))
    for i, answer in enumerate(answers):
        if i in (0, 7, 20):
            assert isinstance(answer, OverLimit), answer
        else:
            assert answer == f"<{i} >".replace(f"{i} ", f"{i} " * 50)
    assert turns > 200  # three seconds of processor time went by


def test_many_at_once_get_their_own_answers() -> None:
    async def main(template: ChatTemplate) -> None:
        sizes = [1, 10, 1000, 100_000, 700_000]
        talks = [[{"role": "user", "content": chr(97 + i % 26) * sizes[i % 5]}] for i in range(60)]
        tasks = [asyncio.create_task(template.render_async(talk)) for talk in talks]
        await asyncio.sleep(0)
        for task in tasks[::7]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for i, answer in enumerate(answers):
            if i % 7:
                assert answer == f"<{talks[i][0]['content']}>"
            else:
                assert isinstance(answer, asyncio.CancelledError)
        queue = template._renderer._queue
        assert (
            queue is not None
            and not queue._waiting.count
            and not queue._waiting.size
            and not queue._current
        )

    with chat(ECHO, RenderLimits()) as template:
        asyncio.run(main(template))
        asyncio.run(main(template))  # another loop finds another process
        assert template.render([USER]) == "<Hi>"


def test_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.frontend.renderer.MAX_WAITING", 4)

    async def main(template: ChatTemplate) -> list[Any]:
        return await asyncio.gather(
            *(template.render_async([USER]) for _ in range(20)), return_exceptions=True
        )

    with chat(ECHO) as template:
        answers = asyncio.run(main(template))
    refused = [answer for answer in answers if answer != "<Hi>"]
    assert len(refused) == 15 and all(error.status == 503 for error in refused)
    assert all(error.retry_after for error in refused)


@pytest.mark.parametrize("keys", [True, False])
def test_conversations_over_the_limit_do_not_starve_others(keys: bool) -> None:
    """Thirty of them cost a minute of processor time; a short one waits for two at most."""

    async def main(template: ChatTemplate) -> None:
        ended: list[str] = []

        async def one(client: int, name: str, messages: list[dict[str, str]]) -> None:
            CURRENT_CLIENT.set(client)
            with contextlib.suppress(OverLimit):
                await template.render_async(messages)
            ended.append(name)

        slow = [{"role": "user", "content": "x" * 30_000}, GO]
        tasks = [
            asyncio.create_task(one(1 if keys else -number - 1, "slow", slow))
            for number in range(30)
        ]
        await asyncio.sleep(0.05)
        await one(2 if keys else -99, "short", [{"role": "user", "content": "y" * 3000}])
        assert ended.index("short") <= 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with chat(armed(ATTACKS["empty loops"])) as template:
        asyncio.run(main(template))


def test_small_ones_do_not_wait_for_large_ones() -> None:
    async def main(template: ChatTemplate) -> list[str]:
        done: list[str] = []

        async def one(name: str, size: int) -> None:
            await template.render_async([{"role": "user", "content": "x" * size}])
            done.append(name)

        async with asyncio.TaskGroup() as group:
            for name, size in [("first", 1), ("large", 900_000), ("large", 900_000), ("small", 9)]:
                group.create_task(one(name, size))
        return done

    with chat(ECHO) as template:
        assert asyncio.run(main(template)) == ["first", "small", "large", "large"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_somebody_kills_is_replaced(number: int) -> None:
    with chat(ECHO) as template:
        for _ in range(2):
            os.kill(renderer_pid(template), number)
            assert template.render([USER]) == "<Hi>"

        async def main() -> None:
            for _ in range(2):
                assert await template.render_async([USER]) == "<Hi>"
                os.kill(renderer_pid(template), number)

        asyncio.run(main())


def test_a_process_that_gets_no_time_is_given_up() -> None:
    with chat(ECHO) as template:

        async def main() -> None:
            assert await template.render_async([USER]) == "<Hi>"
            queue = template._renderer._queue
            assert queue is not None
            queue._limits = RenderLimits(wall_seconds=0.2)
            os.kill(renderer_pid(template), signal.SIGSTOP)
            with pytest.raises(BadRequest, match="processor") as caught:
                await template.render_async([USER])
            assert caught.value.status == 503
            queue._limits = RenderLimits()
            assert await template.render_async([USER]) == "<Hi>"

        asyncio.run(main())


def test_a_process_that_is_stopped_is_replaced() -> None:
    """Every conversation waited a minute for it, and was refused then."""
    with chat(ECHO, RenderLimits(wall_seconds=300)) as template:
        os.kill(renderer_pid(template), signal.SIGSTOP)
        assert template.render([USER]) == "<Hi>"

        async def main() -> None:
            async with asyncio.timeout(60):
                assert await template.render_async([USER]) == "<Hi>"
                os.kill(renderer_pid(template), signal.SIGSTOP)
                asks = (template.render_async([USER]) for _ in range(5))
                assert await asyncio.gather(*asks) == ["<Hi>"] * 5

        asyncio.run(main())


class Clockwork:
    """A process whose processor time is told beforehand."""

    def __init__(self, times: list[int | None]) -> None:
        self._times = iter(times)

    def cpu_time(self) -> int | None:
        return next(self._times)


@pytest.mark.parametrize(
    ("times", "stopped"),
    [
        ([5] * 9, True),
        ([*range(9)], False),
        ([1, 1, 1, 1, 2, 2, 2, 2, 2], False),
        ([None] * 9, False),
    ],
)
def test_only_a_process_without_a_pulse_is_taken_for_stopped(
    times: list[int | None], stopped: bool
) -> None:
    pulse = ProgressWatch(Clockwork(times))  # type: ignore[arg-type]
    assert any(pulse.look() for _ in times[1:]) is stopped


def test_memory_comes_back() -> None:
    """A rendering that made its process large is that process's last."""
    hoard = armed("{% set n = namespace(l=[1]) %}" + 22 * "{% set n.l = n.l + n.l %}")
    with chat(hoard, RenderLimits()) as template:
        for _ in range(3):
            template.render([USER, GO])
        assert template.render([USER]) == "<Hi>"
        kilobytes = (
            Path(f"/proc/{renderer_pid(template)}/status").read_text().split("VmRSS:")[1].split()[0]
        )
        assert int(kilobytes) < 100_000


def test_the_process_is_small_and_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret in its environment, no file but its socket and its own size, 40 MB at most."""
    monkeypatch.setenv("VIVACE_API_KEY", "the-key")
    monkeypatch.setenv("HF_TOKEN", "the-token")
    with chat(ECHO, RenderLimits()) as template:
        process = Path(f"/proc/{renderer_pid(template)}")
        assert b"the-" not in (process / "environ").read_bytes()
        assert int((process / "status").read_text().split("VmRSS:")[1].split()[0]) < 40_000
        links = [str(link.readlink()) for link in (process / "fd").iterdir()]
        odd = [
            link
            for link in links
            if not link.startswith(("socket:", "/dev/null", f"/proc/{process.name}/statm"))
        ]
        assert len(odd) <= 1, odd  # standard error
        assert "Max open files            0  " in (process / "limits").read_text()


@pytest.mark.parametrize("ending", ["kill", "exit", "stop"])
def test_the_process_ends_with_its_frontend(ending: str) -> None:
    code = (
        "import sys, os, signal\n"
        "from vivace.frontend.chat_template import *\n"
        "chat = ChatTemplate(TemplateSet(sources={'default': 'x'}))\n"
        "print(chat._renderer._process.pid, flush=True)\n"
        "os.kill(chat._renderer._process.pid, signal.SIGSTOP) if sys.argv[1] == 'stop' else 0\n"
        "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] != 'exit' else None\n"
    )
    done = subprocess.run([sys.executable, "-c", code, ending], stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == (0 if ending == "exit" else -signal.SIGKILL)
    assert gone(int(done.stdout))


def test_ctrl_c_in_a_terminal_is_not_for_the_process() -> None:
    """It goes to everybody in the group, while modules are imported too: no traceback, no end."""
    code = (
        "import os, signal, time\n"
        "from vivace.frontend.chat_template import *\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "from vivace.frontend.render_process import RenderLimits, RenderProcess\n"
        "process = RenderProcess(RenderLimits())\n"
        "for _ in range(50): os.killpg(0, signal.SIGINT); time.sleep(0.01)\n"
        "assert process._process.poll() is None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        start_new_session=True,
        restore_signals=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_timer_kills_even_when_its_signal_is_ignored_by_our_parents() -> None:
    code = (
        "import signal\n"
        "signal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})\n"
        "from vivace.frontend.renderer import Renderer\n"
        "from vivace.frontend.render_process import RenderLimits\n"
        "renderer = Renderer(RenderLimits(cpu_seconds=0.2, wall_seconds=30))\n"
        "loops = 2 * '{% for i in range(99999) %}' + 2 * '{% endfor %}'\n"
        "renderer.load({'t': loops})\n"
        "try: renderer.render('t', {})\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    assert b"takes longer than the limit of 0.2 s" in done.stdout


def test_nothing_of_jinja_wants_a_file() -> None:
    """Every filter and test says the same where no file can be opened."""
    values = "['a b <c> http://x.y', 3, 2.5, [3, 1], {'k': 'v'}, none]"
    uses = [
        f"v | {name}" for name in sorted(jinja2.filters.FILTERS) if name not in ("random", "tojson")
    ]
    uses += [f"v is {name}" for name in sorted(jinja2.tests.TESTS) if name.isidentifier()]
    sandbox = environment()
    sources, expected = {}, {}
    for use in uses:
        source = "{% for v in " + values + " %}{{ " + use + " }};{% endfor %}"
        try:
            expected[use] = sandbox.from_string(source).render()
        except Exception:
            continue
        if " at 0x" in expected[use]:
            del expected[use]
            continue
        sources[use] = source
    assert len(sources) > 30
    renderer = Renderer()
    renderer.load(sources)
    for use, text in expected.items():
        assert renderer.render(use, {}) == text, use
    renderer.close()


def test_variables_of_requests_are_few_and_small() -> None:
    with chat("{{ messages[0].content }}{{ x }}{{ self_ }}") as template:
        assert template.render([USER], variables={"x": 10**30}) == f"Hi{10**30}"
        assert template.render([USER], variables={"self": 1, "caller": 2}) == "Hi"
        for variables in (
            {f"v{i}": 0 for i in range(65)},
            {"x": "y" * 70_000},
            {"x": [[]] * 40_000},
        ):
            with pytest.raises(BadRequest, match=r"\d") as caught:
                template.render([USER], variables=variables)
            assert caught.value.field == "chat_template_kwargs"


def test_closing_refuses_what_waits_and_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the loop still turns: one message is with the process, others wait behind it."""
    started: list[int] = []
    begin = RenderProcess.__init__

    def counted(process: RenderProcess, limits: RenderLimits) -> None:
        begin(process, limits)
        started.append(process.pid)

    async def main(template: ChatTemplate) -> list[str | BaseException]:
        tasks = [asyncio.create_task(template.render_async(talk)) for talk in ([USER, GO], [USER])]
        tasks.append(asyncio.create_task(template.render_async([USER])))
        tasks[-1].cancel()
        await asyncio.sleep(0.05)
        monkeypatch.setattr(RenderProcess, "__init__", counted)
        pid = renderer_pid(template)
        template.close()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert gone(pid) and started == []
        return answers

    slow = RenderLimits(cpu_seconds=60, wall_seconds=60)
    with chat(armed(ATTACKS["empty loops"]), slow) as template:
        first, second, cancelled = asyncio.run(main(template))
    assert isinstance(cancelled, asyncio.CancelledError)
    for answer in (first, second):
        assert isinstance(answer, BadRequest) and answer.status == 503


@pytest.mark.parametrize("moment", ["before its answer", "its answer unread"])
def test_it_ends_silently_when_its_frontend_dies(moment: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "vivace.frontend.template_process", str(os.getpid())],
            stdin=theirs.fileno(),
            stderr=subprocess.PIPE,
        )
        theirs.close()
        ours.sendall(
            frame(msgspec.json.encode(LoadTemplates(sources={"default": ECHO}, limits=TIGHT)))
        )
        if moment == "its answer unread":
            assert is_readable(ours.fileno(), 20)
    _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (0, b"")
