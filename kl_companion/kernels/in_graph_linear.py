"""The kernels from hidden states as operators of a compiled graph; see `kl_companion.kernels.in_graph`.

An operator takes tensors and numbers only, so a task is handed over in parts and put together inside.
"""
# no `from __future__ import annotations`: the operators' schemas are read from them

from typing import Any

import torch

from kl_companion.divergences import get_divergence
from kl_companion.kernels.linear_tasks import ChunkTask, Distances, LogProbs, Results
from kl_companion.kernels.linear_walks import Projection, narrow, walk_chunks
from kl_companion.kernels.walks import How


def _task(
    weight: torch.Tensor,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    name: str,
    temperature: float,
    caps: list[float],
    compiled: bool,
    rows: int,
    count: int,
) -> ChunkTask:
    lead = torch.Size([count])
    cap, ref_cap = (given if given > 0 else None for given in caps)
    how = How(temperature, cap, ref_cap, compiled)
    if tokens is not None:
        return LogProbs(tokens, how, lead, name == "entropy")
    given = Projection(*teacher, *[None][len(teacher) - 2 :]) if len(teacher) > 1 else teacher[0]
    return Distances(get_divergence(name), given, how, lead, rows)


@torch.library.custom_op("kl_companion::from_hidden", mutates_args=())
def from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    name: str,
    temperature: float,
    caps: list[float],
    compiled: bool,
    rows: int,
) -> list[torch.Tensor]:
    """The results of a task: divergences [rows], or log-probs [rows, k] and entropies."""
    task = _task(weight, teacher, tokens, name, temperature, caps, compiled, rows, len(hidden))
    results = task.results(weight)
    walk_chunks(Projection(hidden, weight, bias), rows, task.run(results, None), (False, False, False))
    return list(results)


@from_hidden.register_fake
def _(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    name: str,
    temperature: float,
    caps: list[float],
    compiled: bool,
    rows: int,
) -> list[torch.Tensor]:
    task = _task(weight, teacher, tokens, name, temperature, caps, compiled, rows, len(hidden))
    return list(task.results(weight))


@torch.library.custom_op("kl_companion::from_hidden_gradient", mutates_args=())
def from_hidden_gradient(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    name: str,
    temperature: float,
    caps: list[float],
    compiled: bool,
    rows: int,
    incoming: list[torch.Tensor],
    wanted: list[bool],
) -> list[torch.Tensor]:
    """Gradients by hidden states, weight and bias; empty where one is not wanted."""
    task = _task(weight, teacher, tokens, name, temperature, caps, compiled, rows, len(hidden))
    policy = Projection(hidden, weight, bias)
    run = task.run(task.results(weight), tuple(incoming))
    made = narrow(walk_chunks(policy, rows, run, (wanted[0], wanted[1], wanted[2])), policy)
    return [hidden.new_empty(0) if g is None else g for g in made]


@from_hidden_gradient.register_fake
def _(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    name: str,
    temperature: float,
    caps: list[float],
    compiled: bool,
    rows: int,
    incoming: list[torch.Tensor],
    wanted: list[bool],
) -> list[torch.Tensor]:
    parts = zip((hidden, weight, bias), wanted, strict=True)
    return [torch.empty_like(x) if x is not None and wants else hidden.new_empty(0) for x, wants in parts]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    hidden, weight, bias, teacher, tokens, *ctx.options = inputs
    ctx.teachers = len(teacher)
    ctx.save_for_backward(hidden, weight, bias, tokens, *teacher)


def _backward(ctx: Any, incoming: Any) -> tuple[Any, ...]:
    hidden, weight, bias, tokens, *teacher = ctx.saved_tensors
    wanted = [bool(needed) for needed in ctx.needs_input_grad[:3]]
    made = from_hidden_gradient(
        hidden, weight, bias, teacher, tokens, *ctx.options, [g.contiguous() for g in incoming], wanted
    )
    gradients = [g if wants else None for g, wants in zip(made, wanted, strict=True)]
    return (*gradients, [None] * ctx.teachers, None, *[None] * len(ctx.options))


from_hidden.register_autograd(_backward, setup_context=_keep)


def in_parts(policy: Projection, task: ChunkTask, rows: int) -> Results:
    """The results of a task by the operator."""
    how = task.how
    rest = how.temperature, [how.cap or 0.0, how.ref_cap or 0.0], how.compiled, rows
    if isinstance(task, LogProbs):
        name = "entropy" if task.with_entropy else "log-prob"
        return tuple(from_hidden(*policy, [], task.tokens, name, *rest))
    given = task.teacher
    teacher = [given] if isinstance(given, torch.Tensor) else [part for part in given if part is not None]
    return tuple(from_hidden(*policy, teacher, None, task.d.name, *rest))
