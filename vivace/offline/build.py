"""From the offline API's keyword arguments to an engine in this process; ranks behind its first
one (`tp_size`, `pp_size`) are processes of their own."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Any

from vivace.config.child_process import ADOPTION
from vivace.config.parallelism import requested_sizes
from vivace.config.tensor_parallel import one_engine
from vivace.engine.executor import ExecutorDied
from vivace.errors import CannotStart
from vivace.frontend.engine_status import EngineView
from vivace.frontend.frontend import Frontend
from vivace.frontend.served_model import served_model
from vivace.frontend.tokenizer import configured_tokenizer
from vivace.launch.configure import configure
from vivace.launch.preflight import check_frontend
from vivace.launch.summary import decisions
from vivace.observability import log as log_lines
from vivace.offline.driver import Driver
from vivace.offline.rank_watch import RankWatch
from vivace.protocol.channel import LocalMailbox
from vivace.protocol.messages import Ready

if TYPE_CHECKING:
    from vivace.checkpoint.weights import ReportProgress
    from vivace.config.config import Config
log = logging.getLogger(__name__)

SERVERS = frozenset({
    "tokenizer_worker_num", "use_ray", "soft_watchdog_timeout",
    "log_level_http",
    "log_requests", "log_requests_level", "log_requests_format", "log_requests_target",
    "crash_dump_folder", "enable_metrics", "bucket_time_to_first_token",
    "bucket_inter_token_latency", "bucket_e2e_request_latency", "gc_warning_threshold_secs",
})  # fmt: skip
"""options of the server's processes, besides those of HTTP"""
PARSERS = frozenset({"tool_call_parser", "reasoning_parser"})
"""options of HTTP that `chat` obeys, too"""
WATCHED = "watchdog_timeout"
"""the option of who looks on at ranks"""


def resolve_arguments(arguments: dict[str, Any]) -> Config:
    """Keyword arguments named like the flags -> what will run. ConfigError, SourceError.

    What the server shows at its start is logged here: decisions at level info, notices as
    warnings. A program that has not set up logging gets the server's lines, at `log_level`.
    """
    from vivace.config.parsing import from_arguments

    options = from_arguments(**arguments)
    one_engine(options, "vivace.Engine")
    notices = (*options.notices, *idle_here(arguments, requested_sizes(options).engine_ranks))
    config = configure(dataclasses.replace(options, notices=notices))
    if not logging.getLogger().handlers:
        log_lines.setup(config.logging.log_level)
    for decision in decisions(config, config.rewrites):
        log.info("%s", decision)
    for notice in config.notices:
        log.warning("%s", notice)
    return config


def idle_here(arguments: dict[str, Any], ranks: int) -> list[str]:
    """A notice about the arguments that only a server, or an engine of several ranks, makes use
    of."""
    from vivace.config.config import all_options

    names = SERVERS | ({WATCHED} if ranks == 1 else set())
    servers = [
        option
        for option in all_options()
        if (option.slice_name == "http" or option.name in names) and option.name not in PARSERS
    ]
    idle = [
        name
        for option in servers
        for name in {option.name, *(flag[2:].replace("-", "_") for flag in option.flags)}
        if arguments.get(name) not in (None, option.default)
    ]
    return [f"no effect offline, where there is no server: {', '.join(idle)}"] if idle else []


def report(stage: str, fraction: float) -> None:
    log.debug("%s: %.0f %%", stage, 100 * fraction)


class ProgramReport:
    """What the program gave as `on_progress`; `error`: what that has raised."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self.error: Exception | None = None

    def __call__(self, stage: str, fraction: float) -> None:
        try:
            self._report(stage, fraction)
        except Exception as error:
            self.error = error
            raise


def start(
    config: Config, report: ReportProgress = report, needs_chat_template: bool = False
) -> tuple[Frontend, Driver]:
    """Load everything; afterwards the frontend is ready and `Driver.step` makes it go.

    `report` is told the stage and how much of it is done, from 0 to 1. Raises CannotStart.
    """
    from vivace.launch.engine import engine_parts

    check_frontend(config)
    tokenizer = configured_tokenizer(config)
    if needs_chat_template and (tokenizer is None or tokenizer.chat is None):
        raise CannotStart(
            f"{config.source.path}: the model has no chat template: it continues texts, and is not "
            "made for chatting; give one that is"
        )
    mailbox = LocalMailbox()
    frontend = Frontend(served_model(config, tokenizer), tokenizer, [EngineView(mailbox.post)])
    begin = time.monotonic()
    told = ProgramReport(report)
    try:
        with ADOPTION.as_before():
            loop, capacity = engine_parts(config, mailbox, told)
    except CannotStart:
        if told.error is not None:
            raise told.error from None
        raise
    except ExecutorDied as error:
        raise told.error or CannotStart(str(error)) from error
    watch = RankWatch(loop.local_ranks, config.runtime.watchdog_timeout)
    for decision in decisions(config, capacity.rewrites):
        log.info("%s", decision)
    frontend.feed(Ready(epoch=0, capacity=capacity))
    log.info("engine ready after %.1f s", time.monotonic() - begin)
    return frontend, Driver(loop, mailbox, frontend, watch)
