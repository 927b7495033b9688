"""The folder of a head: what EAGLE3's published checkpoints have, and beside it, while it is
trained, what training goes on from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vivace.errors import CannotStart
from vivace.files import check_folder, write_own_file
from vivace.train.head import Parameters
from vivace.train.objective import DraftVocabulary

CONFIG, WEIGHTS, REPORT = "config.json", "model.safetensors", "training.json"
OWN = "training"
"""the folder of what training goes on from"""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""what AdamW keeps of a tensor"""
SAVED = torch.bfloat16
READABLE = 0o644


class HeadFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.training = path / OWN

    def check(self, plan: Mapping[str, Any]) -> None:
        """Whether training with this plan may begin or go on here. Raises CannotStart."""
        try:
            check_folder(self.path, new=True)
            there = {entry.name for entry in os.scandir(self.path)} if self.path.exists() else set()
        except OSError as error:
            raise CannotStart(f"--output {self.path}: {error.strerror}") from None
        if there and OWN not in there:
            raise CannotStart(
                f"--output {self.path}: {min(there)} is there already; give a new folder"
            )
        before = read_json(self.training / "plan.json")
        for name, value in plan.items():
            if before and before.get(name) != value:
                raise CannotStart(
                    f"--output {self.path}: training was begun there with {name} "
                    f"{before.get(name)!r}, not {value!r}; give the same, or a new folder"
                )

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Raises OSError."""
        self.training.mkdir(parents=True, exist_ok=True)
        self._write(self.training / "plan.json", plan)

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
        replace_tensors(
            self.training / "checkpoint.safetensors", tensors, {"progress": json.dumps(progress)}
        )

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """(what `save` kept, its progress); None: nothing yet."""
        file = self.training / "checkpoint.safetensors"
        if not file.exists():
            return None
        from safetensors import safe_open

        with safe_open(file, "pt") as opened:
            progress = json.loads(opened.metadata()["progress"])
        return load_file(file), progress

    def finish(self, *, keep_states: bool) -> None:
        """Training is over: the next one in this folder is another one."""
        if keep_states:
            (self.training / "checkpoint.safetensors").unlink(missing_ok=True)
        else:
            shutil.rmtree(self.training)

    def _write(self, path: Path, values: Mapping[str, Any]) -> None:
        part = path.with_name(f"{path.name}.part")
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
    part = path.with_name(f"{path.name}.part")
    save_file({name: t.contiguous() for name, t in tensors.items()}, part, metadata)
    part.chmod(READABLE)  # safetensors makes it its owner's alone
    part.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CannotStart(f"{path}: {error}; delete the folder, and train again") from None
    return found if isinstance(found, dict) else {}
