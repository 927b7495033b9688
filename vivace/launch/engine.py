"""Put an engine together: worker -> executor -> settings -> scheduler -> loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vivace.config.parallelism import engine_rows, requested_sizes
from vivace.engine.executor import Executor, InProcessExecutor, StepWorker, first_stage
from vivace.engine.loop import Lockstep, Loop, Mailbox, ReportLoad
from vivace.engine.oracle import OracleWorker
from vivace.engine.oracle_drafts import OracleDrafts
from vivace.engine.scheduler import Scheduler
from vivace.engine.sequence import SequenceGate
from vivace.engine.settings import engine_settings
from vivace.errors import say
from vivace.launch.corpora import add_corpus
from vivace.launch.expert_settings import expert_distribution
from vivace.launch.faults import with_fault
from vivace.launch.grammars import grammar_compiler, grammar_processors
from vivace.launch.other_nodes import ONE_MACHINE, OtherNodes
from vivace.protocol.messages import Capacity, Request
from vivace.worker.sizing import Demand, size_pool

if TYPE_CHECKING:
    from vivace.checkpoint.weights import ReportProgress
    from vivace.config.config import Config
    from vivace.grammar.compiler import GrammarCompiler
    from vivace.launch.engine_place import EnginePlace
    from vivace.platforms.rendezvous import Rendezvous
    from vivace.sampling.processors import ProcessorFactory

ORACLE_BYTES = 4 << 30
"""of its made-up device: it bounds the book-keeping"""
ORACLE_TOKENS = 65536
ORACLE_ROWS = 256


def engine_parts(
    config: Config,
    mailbox: Mailbox,
    report: ReportProgress,
    *,
    epoch: int = 0,
    again: bool = False,
    wrap_runner: Callable[[StepWorker], StepWorker] | None = None,
    report_load: ReportLoad | None = None,
    owns_process: bool = False,
    share: int = 0,
    place: EnginePlace | None = None,
    others: OtherNodes = ONE_MACHINE,
    lockstep: Lockstep | None = None,
) -> tuple[Loop, Capacity]:
    """An engine ready to run. Loads weights and sizes the KV pool, so it takes a while.

    `again`: it follows one that has died; `wrap_runner` wraps what runs the steps, for somebody who
    looks on; `report_load` hears what the engine holds; `owns_process`: as in `PlatformSettings`;
    `share`: as in `build_worker`; `place`, `lockstep`: among engines that share layers; `others`:
    where ranks of it may be."""
    stages = StageTimes(report, time.monotonic)

    def wrap(runner: StepWorker) -> StepWorker:
        faulty = with_fault(runner, config.environment.get("VIVACE_TEST_FAULT", ""), epoch)
        return wrap_runner(faulty) if wrap_runner is not None else faulty

    grammars = grammar_compiler(config)
    executor = build_executor(
        *(config, stages, wrap, owns_process, share, place, others),
        again=again,
        processors=grammar_processors(config, grammars),
    )
    settings = engine_settings(config, executor.capacity)
    scheduler = Scheduler(
        *(settings, executor.capacity, time.monotonic, stages.seconds()),
        grammar_gate=open_gates(grammars, mailbox, at_once=owns_process),
    )
    loop = Loop(
        scheduler,
        executor,
        mailbox,
        depth=settings.depth,
        epoch=epoch,
        clock=time.monotonic,
        lockstep=lockstep,
        report_load=report_load,
        experts=expert_distribution(config, executor, first=place is None or place.index == 0),
    )
    return loop, executor.capacity


def open_gates(
    grammars: GrammarCompiler | None, mailbox: Mailbox, *, at_once: bool
) -> Callable[[Request], SequenceGate | None]:
    """What a request waits for before its grammar can be obeyed; the loop wakes when one is
    compiled. `at_once`: get ready for the first one now, beside the end of the start."""
    if grammars is None:
        return lambda request: None
    grammars.wake_with(mailbox.wake)
    if at_once:
        grammars.prepare()
    return grammars.gate


def build_executor(
    config: Config,
    report: ReportProgress,
    wrap: Callable[[StepWorker], StepWorker] = lambda runner: runner,
    owns_process: bool = False,
    share: int = 0,
    place: EnginePlace | None = None,
    others: OtherNodes = ONE_MACHINE,
    *,
    again: bool = False,
    processors: Sequence[ProcessorFactory] = (),
) -> Executor:
    """One worker in this process, or the first of several ranks; the arguments are those of
    `engine_parts`. `again`: it follows one that has died; `processors`: as in `build_worker`."""
    executor = start_executor(config, report, wrap, owns_process, share, place, others, processors)
    try:
        add_corpus(config, executor, report, again=again)
    except BaseException as error:
        executor.close(str(error) or say(error))
        raise
    return executor


def start_executor(
    config: Config,
    report: ReportProgress,
    wrap: Callable[[StepWorker], StepWorker],
    owns_process: bool,
    share: int,
    place: EnginePlace | None,
    others: OtherNodes,
    processors: Sequence[ProcessorFactory],
) -> Executor:
    sizes = requested_sizes(config)
    if (sizes.engine_ranks == 1 and place is None) or config.environment.get("VIVACE_EXECUTOR"):
        return InProcessExecutor(
            wrap(build_runner(config, report, owns_process, share, processors))
        )
    from vivace.launch.process_group import start_process_group

    def build(found: Rendezvous, told: ReportProgress) -> StepWorker:
        from vivace.worker.build import build_worker

        worker = build_worker(
            *(config, told, found),
            owns_process=owns_process,
            share=share,
            processors=processors,
        )
        return worker if sizes.pp == 1 else first_stage(worker)

    return start_process_group(config, build, wrap, report, place, others)


class StageTimes:
    """Passes progress on and notes how long each stage took, by names like loading_weights.

    The time before a report belongs to its stage, unless that only begins (fraction 0).
    """

    def __init__(self, report: ReportProgress, clock: Callable[[], float]) -> None:
        self._report = report
        self._clock = clock
        self._moment = clock()
        self._stage = "beginning"
        self._seconds: dict[str, float] = {}

    def __call__(self, stage: str, fraction: float) -> None:
        self._add(stage if fraction > 0 else self._stage)
        self._stage = stage
        self._report(stage, fraction)

    def seconds(self) -> dict[str, float]:
        """Of every stage up to now; their sum is the whole time."""
        self._add(self._stage)
        return self._seconds

    def _add(self, stage: str) -> None:
        name, now = stage.lower().replace(" ", "_"), self._clock()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._moment
        self._moment = now


def build_runner(
    config: Config,
    report: ReportProgress,
    owns_process: bool = False,
    share: int = 0,
    processors: Sequence[ProcessorFactory] = (),
) -> StepWorker:
    """The worker on its device, or (`VIVACE_EXECUTOR=oracle[:seconds per step]`) no model."""
    name, _, seconds = config.environment.get("VIVACE_EXECUTOR", "").partition(":")
    if name == "oracle":
        report("Preparing the oracle", 1.0)
        return oracle(config, float(seconds or 0.0))
    if name:
        raise ValueError(f"VIVACE_EXECUTOR={name!r} is unknown; unset it or choose oracle")
    report("Loading PyTorch", 0.0)
    from vivace.worker.build import build_worker

    return build_worker(
        config, report, owns_process=owns_process, share=share, processors=processors
    )


def oracle(config: Config, step_seconds: float) -> OracleWorker:
    """A worker whose tokens are a pure function of seed and position; sized like a small device."""
    page_size = config.memory.page_size or 1
    size = size_pool(
        Demand(
            free_bytes=ORACLE_BYTES,
            available_bytes=ORACLE_BYTES,
            weight_bytes=0,
            kv_bytes_per_token=1,
            page_size=page_size,
            context=config.facts.context,
            rows=engine_rows(config) or ORACLE_ROWS,
            max_total_tokens=config.memory.max_total_tokens
            or ORACLE_TOKENS // page_size * page_size,
        )
    )
    capacity = Capacity(
        pages=size.pages,
        page_size=page_size,
        rows=size.rows,
        context=size.context,
        vocabulary=config.facts.vocabulary,
        rewrites=size.rewrites,
    )
    vocabulary = config.facts.vocabulary
    draft = OracleDrafts(vocabulary) if config.draft_width else None
    return OracleWorker(capacity, vocabulary, step_seconds=step_seconds, draft=draft)
