"""The folder of a head: what EAGLE3's published checkpoints have, and beside it, while it is
trained, what training goes on from."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vivace.errors import CannotStart
from vivace.files import check_folder, write_own_file
from vivace.train.head import Parameters
from vivace.train.objective import DraftVocabulary
from vivace.train.state_files import INDEX, STATES

CONFIG, WEIGHTS, REPORT = "config.json", "model.safetensors", "training.json"
OWN = "training"
"""the folder of what training goes on from"""
PLAN, CHECKPOINT, LOCK = "plan.json", "checkpoint.safetensors", "lock"
PART = ".part"
"""behind the name of a file that is not whole yet"""
FLAGS = {
    "model": "model",
    "prompts": "--prompts, --text or --answers",
    "tokens": "--tokens",
    "sequence_length": "--sequence-length",
    "draft_vocab_size": "--draft-vocab-size",
    "seed": "--seed",
}
"""of what must be the same when training goes on"""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""what AdamW keeps of a tensor"""
SAVED = torch.bfloat16
READABLE = 0o644


class HeadFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.training = path / OWN

    @property
    def trained(self) -> bool:
        """There is something of the head to go on from."""
        return (self.training / CHECKPOINT).exists()

    def check(self, plan: Mapping[str, Any]) -> None:
        """Whether training with this plan may begin or go on here: nothing that it did not make
        itself is written over or deleted. Raises CannotStart."""
        try:
            check_folder(self.path, new=True)
            there = list_names(self.path)
            own = list_names(self.training) if not self.training.is_symlink() else {"a link"}
        except OSError as error:
            raise CannotStart(f"--output {self.path}: {error.strerror}") from None
        before = read_json(self.training / PLAN) if PLAN in own else {}
        begun = own <= {LOCK} or before.keys() >= plan.keys()
        strange = foreign_names(there, (OWN, CONFIG, WEIGHTS, REPORT))
        strange += [
            f"{OWN}/{name}" for name in foreign_names(own, (PLAN, CHECKPOINT, LOCK, *STATES))
        ]
        if there and (OWN not in there or not begun or strange):
            raise CannotStart(
                f"--output {self.path}: {min(strange or there)} is there already; give a new folder"
            )
        others = [FLAGS[name] for name, value in plan.items() if before.get(name) != value]
        if INDEX in own and before and others:
            raise CannotStart(
                f"--output {self.path}: training was begun there with another "
                f"{', '.join(others)}; give the same, or a new folder"
            )

    @contextmanager
    def claim(self, plan: Mapping[str, Any]) -> Iterator[None]:
        """Begin or go on; meanwhile nobody else does. Raises OSError, CannotStart."""
        self.training.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(self.training / LOCK, flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write(self.training / PLAN, plan)
            yield
        except BlockingIOError:
            raise CannotStart(
                f"--output {self.path}: another training runs there; wait for it, or give a new "
                "folder"
            ) from None
        finally:
            os.close(lock)

    def write_head(
        self,
        config: Mapping[str, Any],
        parameters: Parameters,
        vocabulary: DraftVocabulary,
        report: Mapping[str, Any],
    ) -> None:
        tensors = {name: tensor.detach().to(SAVED) for name, tensor in parameters.items()}
        ids = vocabulary.ids
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = vocabulary.places >= 0
        replace_tensors(self.path / WEIGHTS, tensors, {"format": "pt"})
        self._write(self.path / CONFIG, config)
        self._write(self.path / REPORT, report)

    def save(
        self,
        parameters: Parameters,
        optimizer: torch.optim.Optimizer,
        vocabulary: DraftVocabulary,
        progress: Mapping[str, Any],
    ) -> None:
        """To go on from here."""
        tensors = {name: tensor.detach() for name, tensor in parameters.items()}
        for name, tensor in parameters.items():
            kept = optimizer.state.get(tensor, {})
            tensors |= {f"{moment}.{name}": kept[moment] for moment in MOMENTS if moment in kept}
        tensors["draft_ids"] = vocabulary.ids
        replace_tensors(self.training / CHECKPOINT, tensors, {"progress": json.dumps(progress)})

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """(what `save` kept, its progress); None: nothing yet."""
        file = self.training / CHECKPOINT
        if not self.trained:
            return None
        try:
            with safe_open(file, "pt") as opened:
                progress = json.loads(opened.metadata()["progress"])
            return load_file(file), progress
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CannotStart(
                f"{file}: it is damaged ({error}); delete it, and the head is trained again from "
                "the same hidden states"
            ) from None

    def finish(self, *, keep_states: bool) -> None:
        """Training is over: the next one in this folder is another one."""
        for name in (CHECKPOINT, LOCK) if keep_states else (CHECKPOINT, LOCK, PLAN, *STATES):
            (self.training / name).unlink(missing_ok=True)
        if not keep_states:
            self.training.rmdir()

    def _write(self, path: Path, values: Mapping[str, Any]) -> None:
        part = path.with_name(f"{path.name}{PART}")
        write_own_file(part, json.dumps(values, indent=2) + "\n")
        part.replace(path)


def restore(
    saved: Mapping[str, Tensor], parameters: Parameters, optimizer: torch.optim.Optimizer
) -> None:
    for name, tensor in parameters.items():
        kept = {m: saved[f"{m}.{name}"] for m in MOMENTS if f"{m}.{name}" in saved}
        with torch.no_grad():
            tensor.copy_(saved[name])
        if kept:
            optimizer.state[tensor] = kept


def replace_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """The old file is there until the new one is whole."""
    part = path.with_name(f"{path.name}{PART}")
    save_file({name: t.contiguous() for name, t in tensors.items()}, part, metadata)
    part.chmod(READABLE)  # safetensors makes it its owner's alone
    part.replace(path)


def list_names(folder: Path) -> set[str]:
    """Empty where it is missing. Raises OSError."""
    try:
        return {entry.name for entry in os.scandir(folder)}
    except FileNotFoundError:
        return set()


def foreign_names(there: Iterable[str], own: Collection[str]) -> list[str]:
    """Those of `there` that are none of `own`, whole or not."""
    return [name for name in there if name.removesuffix(PART) not in own]


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CannotStart(f"{path}: {error}; delete the folder, and train again") from None
    return found if isinstance(found, dict) else {}
