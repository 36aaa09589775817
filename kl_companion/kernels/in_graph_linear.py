"""The kernels from hidden states as operators of a compiled graph; see `kl_companion.kernels.in_graph`.

An operator takes tensors and numbers only, so a task is handed over in parts and put together inside.
"""
# no `from __future__ import annotations`: the operators' schemas are read from them

from typing import Any, List  # noqa: UP035

import torch

from kl_companion.divergences import get_divergence
from kl_companion.kernels.blocks import exact_dtype
from kl_companion.kernels.in_graph import how_inside, room_in_float64
from kl_companion.kernels.linear_passes import backward_pass, forward_pass, numbers_of
from kl_companion.kernels.linear_tasks import Distances, LogProbs
from kl_companion.kernels.linear_walks import LogitRows, Projection, Results, TilePlan, narrow, plan_tiles

# schemas are made from these annotations, and torch 2.6 reads no list[float]
Floats = List[float]  # noqa: UP006
Tensors = List[torch.Tensor]  # noqa: UP006
Flags = List[bool]  # noqa: UP006


def _task(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    teacher: Tensors,
    tokens: torch.Tensor | None,
    name: str,
    how: Floats,
) -> Distances | LogProbs:
    options = how_inside(how, len(hidden) * len(weight), weight.device)
    if tokens is not None:
        return LogProbs(tokens, options, name == "entropy")
    given = Projection(*teacher, *[None][len(teacher) - 2 :]) if len(teacher) > 1 else LogitRows(teacher[0])
    return Distances(get_divergence(name), given, options, len(hidden))


def _tiles(hidden: torch.Tensor, weight: torch.Tensor, memory: int, task: Distances | LogProbs) -> TilePlan:
    return plan_tiles(len(hidden), memory, weight, 2 if isinstance(task.teacher, Projection) else 1)


@torch.library.custom_op("kl_companion::from_hidden", mutates_args=())
def from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: Tensors,
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: Floats,
    memory: int,
) -> Tensors:
    """The results of a task: divergences [rows], or log-probs [rows, k] and entropies; and what is kept."""
    task = _task(hidden, weight, teacher, tokens, name, how)
    policy, tiles = Projection(hidden, weight, bias), _tiles(hidden, weight, memory, task)
    results, kept, _ = forward_pass(policy, task, tiles, numbers_of(inside))
    return [*results, kept.double()]


@from_hidden.register_fake
def _(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: Tensors,
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: Floats,
    memory: int,
) -> Tensors:
    rows = hidden.shape[0]
    if tokens is None:
        given = teacher if len(teacher) == 1 else []
        value = torch.zeros(rows, dtype=exact_dtype(weight, *given), device=weight.device)
        return [value, room_in_float64(name, value)]
    logp = torch.zeros(tokens.shape, dtype=exact_dtype(weight), device=weight.device)
    kept = logp.new_zeros(3 + tokens.shape[1], rows, dtype=torch.float64)
    return [logp, *([torch.zeros_like(logp[:, 0])] if name == "entropy" else []), kept]


@torch.library.custom_op("kl_companion::from_hidden_gradient", mutates_args=())
def from_hidden_gradient(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: Tensors,
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: Floats,
    memory: int,
    kept: torch.Tensor,
    incoming: Tensors,
    wanted: Flags,
) -> Tensors:
    """Gradients by hidden states, weight and bias; empty where one is not wanted."""
    task = _task(hidden, weight, teacher, tokens, name, how)
    policy, tiles = Projection(hidden, weight, bias), _tiles(hidden, weight, memory, task)
    kept = kept.to(task.room(task.results(weight)).dtype)
    made = backward_pass(policy, task, tiles, kept, numbers_of(inside), tuple(incoming), tuple(wanted))
    return [hidden.new_empty(0) if g is None else g for g in narrow(made, policy)]


@from_hidden_gradient.register_fake
def _(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: Tensors,
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: Floats,
    memory: int,
    kept: torch.Tensor,
    incoming: Tensors,
    wanted: Flags,
) -> Tensors:
    parts = zip((hidden, weight, bias), wanted, strict=True)
    return [torch.empty_like(x) if x is not None and wants else hidden.new_empty(0) for x, wants in parts]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    hidden, weight, bias, teacher, tokens, inside, *ctx.options = inputs
    ctx.teachers = len(teacher)
    ctx.save_for_backward(hidden, weight, bias, tokens, inside, output[-1], *teacher)


def _backward(ctx: Any, incoming: Any) -> tuple[Any, ...]:
    hidden, weight, bias, tokens, inside, kept, *teacher = ctx.saved_tensors
    wanted = [bool(needed) for needed in ctx.needs_input_grad[:3]]
    made = from_hidden_gradient(
        hidden,
        weight,
        bias,
        teacher,
        tokens,
        inside,
        *ctx.options,
        kept,
        [g.contiguous() for g in incoming[:-1]],
        wanted,
    )
    gradients = [g if wants else None for g, wants in zip(made, wanted, strict=True)]
    return (*gradients, [None] * ctx.teachers, None, None, *[None] * len(ctx.options))


from_hidden.register_autograd(_backward, setup_context=_keep)


def in_parts(
    policy: Projection, task: Distances | LogProbs, inside: torch.Tensor | None, plan: TilePlan
) -> Results:
    """Return the results of a task by the operator, which makes the plan that `plan_tiles` has left open."""
    rest = inside, task.how.numbers(), plan.width
    if isinstance(task, LogProbs):
        name = "entropy" if task.with_entropy else "log-prob"
        return tuple(from_hidden(*policy, [], task.tokens, rest[0], name, *rest[1:])[:-1])
    given = task.teacher
    parts = [given.logits] if isinstance(given, LogitRows) else [part for part in given if part is not None]
    return tuple(from_hidden(*policy, parts, None, rest[0], task.d.name, *rest[1:])[:-1])
