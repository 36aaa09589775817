"""The kernels from hidden states as operators of a compiled graph; see `kl_companion.kernels.in_graph`.

An operator takes tensors and numbers only, so a task is handed over in parts and put together inside.
"""
# no `from __future__ import annotations`: the operators' schemas are read from them

from typing import Any

import torch

from kl_companion.divergences import get_divergence
from kl_companion.kernels.linear_passes import backward_pass, forward_pass, numbers_of
from kl_companion.kernels.linear_tasks import Distances, LogProbs
from kl_companion.kernels.linear_walks import LogitRows, Projection, Results, TilePlan, narrow
from kl_companion.kernels.walks import How


def _task(
    weight: torch.Tensor,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    name: str,
    how: list[float],
    count: int,
) -> Distances | LogProbs:
    options = How.of_numbers(how)
    if tokens is not None:
        return LogProbs(tokens, options, name == "entropy")
    given = Projection(*teacher, *[None][len(teacher) - 2 :]) if len(teacher) > 1 else LogitRows(teacher[0])
    return Distances(get_divergence(name), given, options, count)


@torch.library.custom_op("kl_companion::from_hidden", mutates_args=())
def from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: list[float],
    plan: list[int],
) -> list[torch.Tensor]:
    """The results of a task: divergences [rows], or log-probs [rows, k] and entropies; and what is kept."""
    task = _task(weight, teacher, tokens, name, how, len(hidden))
    policy, tiles = Projection(hidden, weight, bias), TilePlan(plan[0], plan[1], bool(plan[2]))
    results, kept, _ = forward_pass(policy, task, tiles, numbers_of(inside))
    return [*results, kept]


@from_hidden.register_fake
def _(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: list[float],
    plan: list[int],
) -> list[torch.Tensor]:
    task = _task(weight, teacher, tokens, name, how, len(hidden))
    results = task.results(weight)
    return [*results, task.room(results)]


@torch.library.custom_op("kl_companion::from_hidden_gradient", mutates_args=())
def from_hidden_gradient(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: list[float],
    plan: list[int],
    kept: torch.Tensor,
    incoming: list[torch.Tensor],
    wanted: list[bool],
) -> list[torch.Tensor]:
    """Gradients by hidden states, weight and bias; empty where one is not wanted."""
    task = _task(weight, teacher, tokens, name, how, len(hidden))
    policy = Projection(hidden, weight, bias)
    tiles = TilePlan(plan[0], plan[1], bool(plan[2]))
    made = backward_pass(policy, task, tiles, kept, numbers_of(inside), tuple(incoming), tuple(wanted))
    return [hidden.new_empty(0) if g is None else g for g in narrow(made, policy)]


@from_hidden_gradient.register_fake
def _(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    teacher: list[torch.Tensor],
    tokens: torch.Tensor | None,
    inside: torch.Tensor | None,
    name: str,
    how: list[float],
    plan: list[int],
    kept: torch.Tensor,
    incoming: list[torch.Tensor],
    wanted: list[bool],
) -> list[torch.Tensor]:
    parts = zip((hidden, weight, bias), wanted, strict=True)
    return [torch.empty_like(x) if x is not None and wants else hidden.new_empty(0) for x, wants in parts]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
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
    """The results of a task by the operator."""
    rest = inside, task.how.numbers(), list(map(int, plan))
    if isinstance(task, LogProbs):
        name = "entropy" if task.with_entropy else "log-prob"
        return tuple(from_hidden(*policy, [], task.tokens, rest[0], name, *rest[1:])[:-1])
    given = task.teacher
    parts = [given.logits] if isinstance(given, LogitRows) else [part for part in given if part is not None]
    return tuple(from_hidden(*policy, parts, None, rest[0], task.d.name, *rest[1:])[:-1])
