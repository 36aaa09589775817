"""The autograd function of a task from hidden states, whose gradients are written by hand."""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.kernels import transforms
from kl_companion.kernels.arguments import RowSelection
from kl_companion.kernels.autograd import common_factor, first_order_only, keep, kept_by, scalable, take_made
from kl_companion.kernels.blocks import exact_dtype, plain
from kl_companion.kernels.in_graph_linear import in_parts
from kl_companion.kernels.linear_passes import backward_pass, forward_pass, numbers_of
from kl_companion.kernels.linear_tasks import Distances, LogProbs
from kl_companion.kernels.linear_walks import Chunk, LogitRows, Projection, TilePlan, narrow


def apply(
    policy: Projection, task: Distances | LogProbs, rows: RowSelection, plan: TilePlan, *, early: bool
) -> Any:
    """Return the results of a task, differentiable in hidden states, weight and bias.

    Args:
        policy: Hidden states [rows, features] and their output layer.
        task: What is computed.
        rows: Which count, and the weights of the loss like the first result, or None.
        plan: The tiles.
        early: Whether the forward pass may make gradients.
    """
    if transforms.transformed():
        return _transformed(policy, task, rows)
    if torch.compiler.is_compiling():
        return in_parts(policy, task, rows.inside, plan)
    return _Linear.apply(*policy, task, rows, plan, torch.is_grad_enabled(), early)


def _transformed(
    policy: Projection, task: Distances | LogProbs, rows: RowSelection
) -> tuple[torch.Tensor, ...]:
    x = _logits(policy)
    if isinstance(task, LogProbs):
        logp, entropy = transforms.log_probs(x, task.tokens, task.how, rows.inside)
        return (logp, entropy) if task.with_entropy else (logp,)
    y = task.teacher.logits if isinstance(task.teacher, LogitRows) else _logits(task.teacher)
    return (transforms.divergence(task.d, x, y, task.how, rows.inside),)


def _logits(layer: Projection) -> torch.Tensor:
    wide = exact_dtype(layer.weight)
    x = layer.hidden.to(wide) @ layer.weight.to(wide).T
    return x if layer.bias is None else x + layer.bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        task: Distances | LogProbs,
        rows: RowSelection,
        plan: TilePlan,
        recording: bool,
        early: bool,
    ) -> tuple[torch.Tensor, ...]:
        policy, numbers = Projection(hidden, weight, bias), numbers_of(rows.inside)
        wanted = tuple(recording and needed for needed in ctx.needs_input_grad[:3])
        trained = [x.dtype for x, by in zip(policy, wanted, strict=True) if by and x is not None]
        ctx.task, ctx.plan, ctx.rows, ctx.numbers, ctx.dtype = task, plan, rows, numbers, hidden.dtype
        ctx.made = ctx.per_row = None
        scales: tuple[torch.Tensor, ...] | None = None
        ctx.ahead = rows.weights is not None and early and scalable(*trained)
        by_row = not ctx.ahead and wanted == (True, False, False) and task.by_row
        if rows.weights is not None and ctx.ahead:
            scales = (rows.weights,)
        elif by_row:
            scales = tuple(torch.ones_like(result) for result in task.results(weight))
        with plain(hidden.device):
            results, kept, made = forward_pass(
                policy, task, plan, numbers, loss_weights=scales, wanted=wanted
            )
        if ctx.ahead:
            ctx.made = narrow(made, policy)
        elif by_row:
            ctx.per_row = made.hidden
        else:
            keep(ctx, hidden, weight, bias, kept)
        return results

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[Any, ...]:
        nothing = (None,) * 5
        if ctx.ahead:
            return (*first_order_only(take_made(ctx, incoming[0])), *nothing)
        if ctx.rows.weights is not None:
            common_factor(ctx.rows.weights, incoming[0], ctx.rows.mask)
        if ctx.per_row is not None:
            with torch.no_grad():
                by = incoming[0].reshape(-1, 1)
                if ctx.rows.mask is not None:
                    by = by.where(ctx.rows.mask.unsqueeze(-1), 0.0)
                # a token whose loss weight is zero has gradient zero, also where 0 times infinity is NaN
                made = ((ctx.per_row * by).where(by != 0, 0.0).to(ctx.dtype), None, None)
            return (*first_order_only(made), *nothing)
        hidden, weight, bias, kept = kept_by(ctx)
        assert hidden is not None
        assert weight is not None
        assert kept is not None
        policy, wanted = Projection(hidden, weight, bias), ctx.needs_input_grad[:3]
        with plain(kept.device):
            gradients = backward_pass(policy, ctx.task, ctx.plan, kept, ctx.numbers, incoming, wanted)
        narrowed = narrow(gradients, policy)
        return (*first_order_only(narrowed, *incoming, hidden, weight), *nothing)


def logits_of(
    row: int, policy: Projection, task: Distances | LogProbs, plan: TilePlan
) -> dict[str, torch.Tensor]:
    """Return the logits [vocab] of one row, of the policy and of the teacher where there is one."""
    with plain(policy.weight.device):
        chunk = Chunk(policy, task.teacher, slice(row, row + 1), plan._replace(rows=1, keep=False))
        x, y = chunk.row(0)
    return {"logits": x[0]} if y is None else {"logits": x[0], "ref_logits": y[0]}
