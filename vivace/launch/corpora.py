"""The corpus that a configuration names, for the drafters of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vivace.config.drafts import corpus_path
from vivace.errors import CannotStart
from vivace.protocol.workers import AddCorpus

if TYPE_CHECKING:
    from vivace.config.config import Config
    from vivace.engine.executor import Executor
    from vivace.models.loading import ReportProgress

FLAG = "--speculative-ngram-external-corpus-path"


def add_corpus(config: Config, executor: Executor, report: ReportProgress) -> None:
    """The engine reads the file and tells its ranks, which so have the same, wherever they are.
    Raises CannotStart."""
    path = corpus_path(config)
    if path is None:
        return
    from vivace.frontend.corpora import CorpusError, encode_documents, read_documents
    from vivace.frontend.tokenizer import load_encoder

    report("Reading the corpus", 0.0)
    most = config.speculative.speculative_ngram_external_corpus_max_tokens
    try:
        tokens = encode_documents(read_documents(path), load_encoder(config.source), most)
    except (OSError, CorpusError) as error:
        raise CannotStart(f"{FLAG}: {error}") from None
    for state in executor.control(AddCorpus(name=path, tokens=tokens)):
        if state.refused:
            raise CannotStart(f"{FLAG} {path}: {state.refused}")
