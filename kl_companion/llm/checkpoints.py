"""Checkpoints of a run: tensors as safetensors, the rest as JSON, each checkpoint moved into place whole.

A run folder holds the newest checkpoint, `step-000050`, say. Whatever interrupts the writing of the next one,
the folder still holds a whole checkpoint; a resumed run goes on from it and gives the numbers of an
undisturbed one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kl_companion.llm.optional import llm_extra

TENSORS, STATE = "tensors.safetensors", "state.json"


class Checkpoint(NamedTuple):
    """A checkpoint as it was saved.

    Attributes:
        step: Steps that were finished.
        tensors: Parameters, optimizer moments and the state of the random generator, by name.
        state: What JSON holds: the settings, and the records so far.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: str | os.PathLike[str], step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]
) -> Path:
    """Write a checkpoint and remove the older ones; its folder.

    Raises:
        OSError: it could not be written; the message names the checkpoint that is kept.
    """
    safetensors = llm_extra("safetensors.torch")
    run = Path(folder)
    target, part = run / f"step-{step:06d}", run / f"part-{os.getpid()}"
    older = steps_in(run)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        # copies: the format refuses tensors that share memory
        copies = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
        safetensors.save_file(copies, part / TENSORS)
        (part / STATE).write_text(json.dumps(state, sort_keys=True), encoding="utf-8")
        _remove(target)
        os.replace(part, target)
    except Exception as error:
        shutil.rmtree(part, ignore_errors=True)
        kept = f"{run / f'step-{older[-1]:06d}'} is kept" if older else "there is no earlier one"
        raise OSError(
            f"the checkpoint of step {step} could not be written to {run} ({error}); {kept}"
        ) from error
    tidy(run, step)
    return target


def tidy(folder: str | os.PathLike[str], step: int) -> None:
    """Remove all checkpoints but that of a step, and what a run that was killed has left half-way."""
    for other in steps_in(folder):
        if other != step:
            _remove(Path(folder) / f"step-{other:06d}")
    for left in Path(folder).glob("part-*"):
        shutil.rmtree(left, ignore_errors=True)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint: it is whole, or no longer there under its name."""
    if checkpoint.is_dir():
        part = checkpoint.with_name(f"part-{checkpoint.name}")
        os.replace(checkpoint, part)
        shutil.rmtree(part, ignore_errors=True)


def steps_in(folder: str | os.PathLike[str]) -> list[int]:
    """The steps whose checkpoints stand in a run folder, in order."""
    found = (path.name.removeprefix("step-") for path in Path(folder).glob("step-*"))
    return sorted(int(step) for step in found if step.isdigit())


def load_checkpoint(
    folder: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Checkpoint | None:
    """The newest checkpoint of a run folder; None where there is none."""
    steps = steps_in(folder)
    if not steps:
        return None
    path = Path(folder) / f"step-{steps[-1]:06d}"
    tensors = llm_extra("safetensors.torch").load_file(path / TENSORS, device=str(device))
    return Checkpoint(steps[-1], tensors, json.loads((path / STATE).read_text(encoding="utf-8")))


def check_same_run(checkpoint: Checkpoint, run: Mapping[str, Any], folder: str | os.PathLike[str]) -> None:
    """ValueError when a checkpoint belongs to another run; only the number of steps may differ."""
    saved = checkpoint.state["run"]
    for name in sorted({*saved, *run} - {"steps"}):
        if saved.get(name) != run.get(name):
            raise ValueError(
                f"{folder} holds a checkpoint with {name}={saved.get(name)!r}, this run has "
                f"{run.get(name)!r}; choose another folder, or resume=False to begin anew"
            )


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{i}.{name}": torch.as_tensor(x) for i, of in state.items() for name, x in of.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put what `optimizer_tensors` gave back into a new optimizer of the same parameters."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, x in tensors.items():
        if key.startswith("optimizer."):
            _, i, name = key.split(".", 2)
            state.setdefault(int(i), {})[name] = x
    optimizer.load_state_dict({**whole, "state": state})
