"""Training with several processes, data parallel: the same loop, with averaged gradients.

Every process runs `kl_companion.llm.training.train` on prompts and samples of its own, with the whole model.
`average_gradients`, given to ``train`` as ``gradients=``, replaces each gradient by its mean over the
processes before it is clipped, so the parameters stay equal and a step is one step on all processes' batches.
A group of processes is started by `accelerate` or `torchrun`; `kl_companion.llm.recipe` has the commands. A
process that fails leaves the others waiting: the launcher notices that it is gone and ends them.

The batch of a step is the union of the processes' batches, which have the same number of sequences, so the
mean of the gradients is the gradient of the mean. A mean over tokens (``how="token_mean"``) divides by the
tokens of all processes: give ``train`` `mean_over_processes` as ``mean=``. With ``baseline="batch"`` a
completion is compared with the others of the same process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import distributed

from kl_companion.llm.history import Record
from kl_companion.llm.optional import llm_extra
from kl_companion.llm.settings import Settings

SEED_STRIDE = 1_000_000  # neighboring seeds are neighboring runs: the processes of one keep clear of them


def rank() -> int:
    """The number of this process in its group, 0 without a group."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size() -> int:
    """The number of processes in the group, 1 without a group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def join(device: str = "auto") -> torch.device:
    """Join the group of processes that a launcher started, if one did; the device of this process.

    Args:
        device: "cpu", or "auto" for this process's GPU where there is one.

    Raises:
        ImportError: the extra `llm` is not installed.
        RuntimeError: `accelerate launch` was asked for several processes and started one, which its option
            --cpu does where no MPI is.
    """
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    state = llm_extra("accelerate").PartialState(cpu=on_cpu)
    if state.num_processes == 1 and "ACCELERATE_USE_CPU" in os.environ and "MASTER_ADDR" in os.environ:
        raise RuntimeError(
            "accelerate launch was asked for several processes and started one, as it does with --cpu: "
            "use --multi_gpu in its place (it starts processes, GPUs or not), or torchrun --nproc-per-node 2"
        )
    return torch.device("cpu") if on_cpu else state.device


def own_seed(settings: Settings) -> Settings:
    """The settings with this process's seed: all draw different prompts and samples, process 0 as alone."""
    return replace(settings, seed=settings.seed + SEED_STRIDE * rank())


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace every gradient by its mean over the processes, in place; one that is missing counts as zero.

    To be given to `kl_companion.llm.training.train` as ``gradients``. Without a group it does nothing.
    """
    if world_size() == 1:
        return
    waiting = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        waiting.append((distributed.all_reduce(parameter.grad, async_op=True), parameter.grad))
    for work, gradient in waiting:
        work.wait()
        gradient /= world_size()


def mean_over_processes(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of a tensor over the processes, float32; every process must call this function.

    To be given to `kl_companion.llm.training.train` as ``mean``.
    """
    total = x.to(torch.float32, copy=True)
    if world_size() > 1:
        distributed.all_reduce(total)
    return total / world_size()


def average_records(records: Sequence[Record], device: torch.device) -> list[Record]:
    """The mean over the processes of what each recorded, key by key.

    Args:
        records: Of this process; those of the others have the same keys.
        device: Where the group sends tensors from.
    """
    if world_size() == 1 or not records:
        return [dict(record) for record in records]
    numbers = [float(value) for record in records for value in record.values()]
    dtype = torch.float32 if device.type == "mps" else torch.float64
    total = torch.tensor(numbers, dtype=dtype, device=device)
    distributed.all_reduce(total)
    means = iter((total / world_size()).tolist())
    return [{key: next(means) for key in record} for record in records]
