"""Forward and backward pass of a task on the rows that count, without autograd."""

from __future__ import annotations

import torch

from kl_companion.kernels.linear_tasks import Distances, LogProbs
from kl_companion.kernels.linear_walks import Gradients, Projection, Results, TilePlan, walk_chunks

Task = Distances | LogProbs
Wanted = tuple[bool, ...]


def numbers_of(inside: torch.Tensor | None) -> torch.Tensor | None:
    """The numbers of rows ``inside`` [rows], None for all of them; one read of the device."""
    if inside is None or inside.is_meta:
        return None
    rows = inside.nonzero().squeeze(-1)
    return None if len(rows) == len(inside) else rows


def spread(x: torch.Tensor, rows: torch.Tensor | None, count: int) -> torch.Tensor:
    """Rows of x as rows ``rows`` of ``count``, with zeros elsewhere."""
    return x if rows is None else x.new_zeros(count, *x.shape[1:]).index_copy_(0, rows, x)


def forward_pass(
    policy: Projection,
    task: Task,
    plan: TilePlan,
    rows: torch.Tensor | None,
    *,
    loss_weights: Results | None = None,
    wanted: Wanted = (False, False, False),
) -> tuple[Results, torch.Tensor, Gradients]:
    """Return results of all rows (0 where a row does not count), numbers for backward, and gradients.

    Args:
        policy: Hidden states [rows, features] and their output layer.
        task: What is computed.
        plan: The tiles.
        rows: Numbers of the rows that count; None for all. The others are not read.
        loss_weights: Like the results: the weights of the gradients that are made at once.
        wanted: Which gradients are: by hidden states, weight, bias.
    """
    results = task.results(policy.weight)
    kept = task.room(results)
    if rows is None:
        made = walk_chunks(
            policy, task, plan, kept, results=results, loss_weights=loss_weights, wanted=wanted
        )
        return results, kept, made
    some, part, weights = _pick(policy, task, loss_weights, rows)
    found = part.results(policy.weight)
    numbers = part.room(found)
    made = walk_chunks(some, part, plan, numbers, results=found, loss_weights=weights, wanted=wanted)
    for result, of_rows in zip(results, found, strict=True):
        result.index_copy_(0, rows, of_rows)
    kept.index_copy_(1, rows, numbers)
    return results, kept, _spread(made, rows, len(policy.hidden))


def backward_pass(
    policy: Projection,
    task: Task,
    plan: TilePlan,
    kept: torch.Tensor,
    rows: torch.Tensor | None,
    incoming: Results,
    wanted: Wanted,
) -> Gradients:
    """Return the gradients; arguments as `forward_pass`, with its numbers and the weights of the results.

    On a processor rows whose weights are 0 are not read either.
    """
    if kept.device.type == "cpu":
        counted = torch.zeros(len(policy.hidden), dtype=torch.bool)
        for weight in incoming if len(counted) else ():
            counted |= (weight != 0).view(len(weight), -1).any(-1)
        if rows is not None:
            counted &= torch.zeros_like(counted).index_fill_(0, rows, value=True)
        rows = numbers_of(counted)
    if rows is None:
        return walk_chunks(policy, task, plan, kept, loss_weights=incoming, wanted=wanted)
    some, part, weights = _pick(policy, task, incoming, rows)
    made = walk_chunks(some, part, plan, kept.index_select(1, rows), loss_weights=weights, wanted=wanted)
    return _spread(made, rows, len(policy.hidden))


def _pick(
    policy: Projection, task: Task, weights: Results | None, rows: torch.Tensor
) -> tuple[Projection, Task, Results | None]:
    some = policy._replace(hidden=policy.hidden.index_select(0, rows))
    return some, task.of(rows), None if weights is None else tuple(w.index_select(0, rows) for w in weights)


def _spread(made: Gradients, rows: torch.Tensor, count: int) -> Gradients:
    return made if made.hidden is None else made._replace(hidden=spread(made.hidden, rows, count))
