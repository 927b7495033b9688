"""The corpus that a configuration names, for the drafters of all ranks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vivace.config.drafts import corpus_path
from vivace.errors import CannotStart
from vivace.protocol.workers import AddCorpus

if TYPE_CHECKING:
    from vivace.config.config import Config
    from vivace.engine.executor import Executor
    from vivace.models.loading import ReportProgress

FLAG = "--speculative-ngram-external-corpus-path"


log = logging.getLogger("vivace.engine")


def add_corpus(
    config: Config, executor: Executor, report: ReportProgress, *, again: bool = False
) -> None:
    """The engine reads the file and tells its ranks, which so have the same, wherever they are.
    `again`: it follows one that has died, and goes on without a file that has changed since. Raises
    CannotStart."""
    path = corpus_path(config)
    if path is None:
        return
    report("Reading the corpus", 0.0)
    refused = tell_corpus(config, executor, path)
    if refused and not again:
        raise CannotStart(f"{FLAG}{refused}")
    if refused:
        log.error("%s%s; this engine has no drafts from it", FLAG, refused)


def tell_corpus(config: Config, executor: Executor, path: str) -> str:
    """Why not; empty: all have it."""
    from vivace.frontend.corpora import CorpusError, encode_documents, read_documents
    from vivace.frontend.tokenizer import load_encoder

    most = config.speculative.speculative_ngram_external_corpus_max_tokens
    try:
        tokens = encode_documents(read_documents(path), load_encoder(config.source), most)
    except (OSError, CorpusError) as error:
        return f": {error}"
    states = executor.control(AddCorpus(name=path, tokens=tokens))
    return next((f" {path}: {state.refused}" for state in states if state.refused), "")
