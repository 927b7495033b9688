"""What an engine may ask its workers beside plans, and what comes of it."""

from __future__ import annotations

import msgspec

NO_TEXTS = "drafts come from no texts here: start with --speculative-algorithm NGRAM"


class GetWorkerState(msgspec.Struct, frozen=True, tag="get_worker_state"):
    """Answered by every rank with its `WorkerState`."""


class MoveExperts(msgspec.Struct, frozen=True, tag="move_experts"):
    """Have experts where `placed` says: of each of some layers the expert of every slot. Every rank
    moves, or, where one cannot (`WorkerState.refused`), none."""

    layers: list[int]
    placed: list[list[int]]


class AddCorpus(msgspec.Struct, frozen=True, tag="add_corpus"):
    """Propose drafts from a text, too; refused where nothing proposes from texts, and where it has
    unknown ids or is too long (`WorkerState.refused`). `tokens`: int32, -1 between documents."""

    name: str
    tokens: bytes


class RemoveCorpus(msgspec.Struct, frozen=True, tag="remove_corpus"):
    """Propose from it no more; refused where it is not there."""

    name: str


class CorpusRemoved(msgspec.Struct, frozen=True, tag="corpus_removed"):
    """To the frontend that added it, whoever has removed it: the next engine is not told of it."""

    name: str


WorkerCommand = GetWorkerState | MoveExperts | AddCorpus | RemoveCorpus
"""What an executor may be asked between steps; more kinds come with what they are of."""


class WorkerState(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="worker_state"
):
    """A worker, as it is."""

    rank: int = 0
    pid: int = 0
    """of its process"""
    threads: int = 0
    weight_bytes: int = 0
    """of this rank"""
    kv_bytes: int = 0
    draft_bytes: int = 0
    """of texts that drafts come from"""
    corpora: dict[str, int] = {}
    """those that were added, with their tokens"""
    refused: str = ""
    """why the command was not carried out"""
