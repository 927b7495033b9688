"""The corpus that a configuration names, for the drafters of all ranks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vivace.config.drafts import CORPUS, corpus_path
from vivace.errors import CannotStart
from vivace.protocol.workers import AddCorpus

if TYPE_CHECKING:
    from vivace.config.config import Config
    from vivace.engine.executor import Executor
    from vivace.models.loading import ReportProgress

CHECKED = 64 << 20
"""characters: to read so many takes less than a second"""


log = logging.getLogger("vivace.engine")


def check_corpus(config: Config) -> None:
    """Before anything is loaded: whether there are texts, as far as `CHECKED` characters tell it.
    Raises CannotStart."""
    from vivace.frontend.corpora import CorpusError, read_documents

    if (path := corpus_path(config)) is None:
        return
    read = 0
    try:
        for document in read_documents(path):
            read += len(document)
            if read > CHECKED:
                break
    except (OSError, CorpusError) as error:
        raise CannotStart(f"{CORPUS}: {error}") from None
    if not read:
        raise CannotStart(f"{CORPUS} {path}: there is no text in it; name another file")


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
        raise CannotStart(f"{CORPUS}{refused}")
    if refused:
        log.error("%s%s; this engine has no drafts from it", CORPUS, refused)


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
