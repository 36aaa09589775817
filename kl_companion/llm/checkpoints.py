"""Checkpoints of a run: one file of tensors with the rest as JSON in its header, written whole or not at all.

A run folder contains the newest checkpoint only. A resumed run gives the numbers of an undisturbed one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kl_companion.files import write_atomically
from kl_companion.llm.optional import llm_extra

FILE = "checkpoint.safetensors"


class Checkpoint(NamedTuple):
    """A checkpoint as it was saved.

    Attributes:
        tensors: Parameters, optimizer moments and the state of the random generator, by name.
        state: What JSON holds: the number of finished steps, the settings, and the records so far.
    """

    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]
) -> None:
    """Write a checkpoint in place of the earlier one, which stays where that ends in an OSError."""
    for left in Path(folder).glob(f".{FILE}.*.part"):  # by a run that was killed
        left.unlink()
    # copies: the format refuses tensors that share memory
    copies = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
    header = {"state": json.dumps(state, sort_keys=True)}
    write_atomically(Path(folder) / FILE, llm_extra("safetensors.torch").save(copies, header))


def load_checkpoint(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Checkpoint | None:
    """Return the checkpoint of a run folder; None where there is none."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    tensors = llm_extra("safetensors.torch").load_file(path, device=str(device))
    with llm_extra("safetensors").safe_open(path, "pt") as file:
        return Checkpoint(tensors, json.loads(file.metadata()["state"]))


def check_same_run(checkpoint: Checkpoint, run: Mapping[str, Any], folder: str | os.PathLike[str]) -> None:
    """Raise ValueError when a checkpoint belongs to another run; only the number of steps may differ."""
    saved = checkpoint.state["run"]
    for name in sorted({*saved, *run} - {"steps"}):
        if saved.get(name) != run.get(name):
            raise ValueError(
                f"{folder} holds a checkpoint with {name}={saved.get(name)!r}, this run has "
                f"{run.get(name)!r}; choose another folder, or resume=False to begin anew"
            )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{i}.{name}": torch.as_tensor(x) for i, of in state.items() for name, x in of.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put what `optimizer_tensors` returned back into a new optimizer of the same parameters."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, x in tensors.items():
        if key.startswith("optimizer."):
            _, i, name = key.split(".", 2)
            state.setdefault(int(i), {})[name] = x
    optimizer.load_state_dict({**whole, "state": state})
