"""Training with several processes: the same loop, with averaged gradients or sharded weights.

Every process runs `kl_companion.llm.training.train` on prompts and samples of its own. There are two ways:

* **Data parallel.** Every process holds the whole model. `average_gradients`, given to ``train`` as
  ``gradients=``, replaces each gradient by its mean over the processes before it is clipped, so the
  parameters stay equal and a step is one step on all processes' batches.
* **Sharded.** `Sharded` spreads the weights, their gradients and the optimizer's moments over the processes
  (``torch.distributed.fsdp.fully_shard``); a layer's weights are put together where they are needed and
  dropped again, and gradients are averaged on the way back. It is the same computation, for models that one
  device cannot hold. Both ways give the same parameters, up to rounding.

A group of processes is started by `accelerate` or `torchrun`; `kl_companion.llm.recipe` has the commands, for
one machine and for several. A process that fails before a step is averaged leaves the others waiting: the
launcher notices that it is gone and ends them.

The batch of a step is the union of the processes' batches, which have the same number of sequences, so the
mean of the gradients is the gradient of the mean. A mean over tokens (``how="token_mean"``) divides by the
tokens of all processes: give ``train`` `mean_over_processes`, or `Sharded.mean`, as ``mean=``. With
``baseline="batch"`` a completion is compared with the others of the same process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import distributed

from kl_companion.llm.models import LanguageModel
from kl_companion.llm.optional import llm_extra
from kl_companion.llm.settings import Settings
from kl_companion.llm.training import Record

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


# -- data parallel -------------------------------------------------------------------------------------------


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


# -- sharded -------------------------------------------------------------------------------------------------


class Sharded:
    """Models whose weights are spread over the processes, and what keeps these in step.

    A forward pass of a sharded model needs all processes at once, while each samples completions of its own
    lengths. So before each pass the processes tell each other what they are about to do. Those that are done
    with sampling take part in the others' remaining steps, on a token of no meaning, until all are done.

    Args:
        *lms: The models, whole and the same in every process; their weights are replaced by shards, on the
            process's device. A policy and its reference belong into one call.

    Raises:
        RuntimeError: there is no group of processes.
        ValueError: one model given twice, or sharded before.
    """

    def __init__(self, *lms: LanguageModel, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        if not distributed.is_initialized():
            raise RuntimeError("sharding needs a group of processes: start them with accelerate or torchrun")
        mesh = init_device_mesh(device.type, (world_size(),))
        self.device, self.models = device, [lm.model for lm in lms]
        self.busy = False
        if len({id(model) for model in self.models}) < len(self.models):
            raise ValueError("the same model is given twice, expected a copy as the reference")
        for model in self.models:
            _shard(model, mesh)
        for number, model in enumerate(self.models):
            model.register_forward_pre_hook(self._before(number), prepend=True, with_kwargs=True)

    def _before(self, number: int) -> Any:
        def hook(model: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if not self.busy:
                self._meet(number if options.get("use_cache") else None)

        return hook

    def wait(self) -> None:
        """Take part in what the others still sample, until no process does: at the end of the training."""
        self._meet(None)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of a tensor over the processes, once all of them have sampled."""
        self._meet(None)
        return mean_over_processes(x)

    def _meet(self, sampling: int | None) -> None:
        """Return when it is this process's turn: to sample with that model, or to go on together (None)."""
        while True:
            plans = torch.zeros(len(self.models), device=self.device)
            if sampling is not None:
                plans[sampling] = 1
            distributed.all_reduce(plans)
            sampled = plans.nonzero().flatten().tolist()
            if not sampled or sampled[0] == sampling:
                return
            with self._busy(), torch.no_grad():
                token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
                self.models[sampled[0]](token, use_cache=False, logits_to_keep=1)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def whole(self, lm: LanguageModel) -> LanguageModel | None:
        """The model put together again in the memory of process 0's host, to be saved; None in the others.

        All processes must call it.
        """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(lm.model, options=options)
        if rank() != 0:
            return None
        with torch.device("meta"):
            model = llm_extra("transformers").AutoModelForCausalLM.from_config(lm.model.config)
        model.load_state_dict(state, strict=False, assign=True)
        model.tie_weights()
        return LanguageModel(model.eval(), lm.tokenizer)


def _shard(model: Any, mesh: Any) -> None:
    """`fully_shard` on every block that the model says must stay together, then on what is left."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if isinstance(model, FSDPModule):
        raise ValueError("the model is sharded already")
    blocks = set(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
