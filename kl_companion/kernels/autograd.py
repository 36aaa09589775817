"""Autograd functions whose gradients are written by hand, for logits that exist in memory.

Values come from one walk over blocks of rows (`kl_companion.kernels.walks`), gradients from a second
in backward, or from the same walk where the weights of the loss are known. What is saved in between is the
inputs and a few numbers per row.
"""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.divergences import Divergence, swapped
from kl_companion.kernels.arguments import RowSelection
from kl_companion.kernels.blocks import exact_dtype, new_like, plain
from kl_companion.kernels.logit_transform import LogitTransform
from kl_companion.kernels.walks import (
    room_for_kept,
    room_for_tokens,
    scale_rows,
    walk_divergence,
    walk_tokens,
)

_REFUSAL = (
    "the fused functions have no second derivatives, their gradients are written by hand: take f_divergence, "
    "exact_kl or log_softmax of the logits where you need one"
)
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
_TOLERANCE_OF_NARROW = 2e-2  # narrower dtypes round the weights themselves
_CANCELED = 1e-3


def may_look(x: torch.Tensor) -> bool:
    """Whether its numbers may be looked at: on a GPU that would wait for all that was asked of it before."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def common_factor(weights: torch.Tensor, incoming: torch.Tensor, mask: torch.Tensor | None = None) -> float:
    """The s with incoming = s weights, in rows of the ``mask`` [rows] bool; one read of the device.

    Raises:
        ValueError: there is none, so that the gradient made with these weights is another loss's.
    """
    got, given = incoming.double(), weights.double()
    if mask is not None:
        rows = mask.view(-1, *[1] * (got.ndim - 1)) if len(got) == len(mask) else mask.view(got.shape)
        got, given = got.where(rows, 0.0), given.where(rows, 0.0)
    if not got.numel():
        return 0.0
    factor = ((got * given).sum() / given.square().sum()).nan_to_num(0.0)
    difference = (got - factor * given).abs()
    loosest = max(_TOLERANCE.get(t.dtype, _TOLERANCE_OF_NARROW) for t in (weights, incoming))
    # each weight is rounded by itself; what cancels is rounded like the largest
    allowed = loosest * (got.abs() + _CANCELED * got.abs().max())
    excess = (difference - allowed).flatten().nan_to_num(torch.inf)
    at = excess.argmax()
    number, worst, actual, announced = torch.stack(
        [factor, excess[at], got.flatten()[at], given.flatten()[at]]
    ).tolist()
    if worst > 0:
        raise ValueError(
            f"the loss multiplies the result by {actual:.6g} where weights= gave {announced:.6g} (times "
            f"{number:.6g}, the factor of the others): expected a multiple of (weights * result).sum(), the "
            "loss whose gradient the forward pass made"
        )
    return float(number)


def rows_of_backward(rows: RowSelection, x: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor | None:
    """Check a loss whose weights were announced, and return the rows [rows] whose gradient is not zero.

    On a GPU, where nothing is read, any loss has its own gradient.
    """
    if rows.weights is None or may_look(x):
        if rows.weights is not None:
            common_factor(rows.weights, incoming, rows.mask)
        return rows.inside
    if rows.inside is None:
        return None
    used = rows.inside | (incoming.reshape(len(rows.inside), -1) != 0).any(-1)
    return used if rows.mask is None else used & rows.mask


class Refuse(torch.autograd.Function):
    """Identity whose derivative is refused, because a gradient written by hand has none."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        """The gradient as it is; ``sources`` are what it depends on."""
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> None:
        """Raise RuntimeError."""
        raise RuntimeError(_REFUSAL)


def first_order_only(
    gradients: tuple[torch.Tensor | None, ...], *sources: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """Gradients as a backward pass returns them: refusing a derivative where one is prepared.

    Raises:
        RuntimeError: one is prepared (create_graph) and no sources are at hand that it could be refused by.
    """
    if not torch.is_grad_enabled():
        return gradients
    if not sources:
        raise RuntimeError(_REFUSAL)
    return tuple(None if g is None else Refuse.apply(g, *sources) for g in gradients)


def _may_wait(x: torch.Tensor) -> bool:
    """Whether a gradient may be made before its rows are multiplied: half precision would round it twice."""
    return x.dtype in (torch.float32, torch.float64)


def scalable(*dtypes: torch.dtype) -> bool:
    """Whether gradients may be made before the scale of the loss is known: float16 would lose small ones."""
    return torch.float16 not in dtypes


def keep(ctx: Any, *tensors: torch.Tensor | None) -> None:
    """Save tensors for backward, those of inference mode too, which autograd refuses to save."""
    inference = [t if t is not None and t.is_inference() else None for t in tensors]
    ctx.of_inference = inference
    ctx.save_for_backward(*(t if i is None else None for t, i in zip(tensors, inference, strict=True)))


def kept_by(ctx: Any) -> list[torch.Tensor | None]:
    """Return the tensors that `keep` saved."""
    pairs = zip(ctx.saved_tensors, ctx.of_inference, strict=True)
    return [saved if inference is None else inference for saved, inference in pairs]


def overwritten(x: torch.Tensor) -> torch.Tensor:
    """The memory of logits that the gradient takes; autograd notices later reads of what it saved there."""
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)
    return x.detach()


def take_made(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients that the forward pass made, as the loss wants them; they are handed out once.

    Raises:
        ValueError: a loss with other weights than those it was announced with.
        RuntimeError: a second backward pass.
    """
    made, ctx.made = ctx.made, None
    if made is None:
        raise RuntimeError(
            "with weights= or inplace=True the gradient is made once, in the forward pass, and an earlier "
            "backward pass has taken it: run the forward pass again, or leave both out"
        )
    if ctx.rows.weights is not None:
        factor = common_factor(ctx.rows.weights, incoming, ctx.rows.mask)
        return tuple(g if g is None or factor == 1 else g.mul_(factor) for g in made)
    by = incoming.reshape(-1)
    with torch.no_grad():
        by = by if ctx.rows.mask is None else by.where(ctx.rows.mask, 0.0)
        return tuple(None if g is None else scale_rows(g, by) for g in made)


def gradient_by_reference(
    d: Divergence,
    x: torch.Tensor,
    y: torch.Tensor,
    scale: torch.Tensor,
    how: LogitTransform,
    inside: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient by the reference: that of the same divergence with its arguments exchanged."""
    gradient = new_like(y)
    if x.device.type == "cpu":  # a row that does not count is not read
        inside = scale != 0 if inside is None else inside & (scale != 0)
    d, value = swapped(d), torch.zeros(scale.numel(), dtype=exact_dtype(x, y), device=x.device)
    kept, how = room_for_kept(d, value), how.exchanged()
    walk_divergence(d, y, x, kept, value=value, loss_weight=scale, gradient=gradient, how=how, inside=inside)
    return gradient


class DivergenceOfLogits(torch.autograd.Function):
    """D_f of rows of raw logits; see `kl_companion.kernels.fused.fused_f_divergence`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        y: torch.Tensor,
        rows: RowSelection,
        d: Divergence,
        how: LogitTransform,
        inplace: bool,
        recording: bool,
        early: bool = True,
    ) -> torch.Tensor:
        """[...], and with loss_weights the gradients, kept in ctx."""
        lead = x.shape[:-1]
        ctx.d, ctx.how, ctx.inplace, ctx.rows, ctx.made = d, how, inplace, rows, None
        value = torch.zeros(lead.numel(), dtype=exact_dtype(x, y), device=x.device)
        kept = room_for_kept(d, value)
        by_x, by_y = (recording and needed for needed in ctx.needs_input_grad[:2])
        trained = [t.dtype for t, by in ((x, by_x), (y, by_y)) if by]
        # on a GPU the check of the weights would wait for the device
        loss_weights = rows.weights if early and may_look(x) and scalable(*trained) else None
        at_once = early and inplace and by_x and rows.weights is None and may_look(x) and _may_wait(x)
        ctx.ahead = loss_weights is not None or at_once
        inside = rows.inside if may_look(x) else rows.mask
        scale = made = ref_made = None
        with plain(x.device):
            if ctx.ahead:
                # without loss_weights the factor of each row comes with the backward pass: here it is 1
                scale = torch.ones_like(value) if loss_weights is None else loss_weights.reshape(-1)
                ref_made = gradient_by_reference(d, x, y, scale, how, inside) if by_y else None
                made = None if not by_x else overwritten(x) if inplace else new_like(x)
                ctx.made = (made, ref_made)
            walk_divergence(
                d, x, y, kept, value=value, loss_weight=scale, gradient=made, how=how, inside=inside
            )
        if inside is not rows.inside and rows.inside is not None:
            value.masked_fill_(~rows.inside, 0.0)
        if not ctx.ahead:
            keep(ctx, x, y, kept)
        return value.view(lead)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[Any, ...]:
        """Gradients by the logits of policy and reference."""
        nothing = (None,) * 6
        if ctx.ahead:
            return (*first_order_only(take_made(ctx, incoming)), *nothing)
        x, y, kept = kept_by(ctx)
        assert x is not None
        assert y is not None
        assert kept is not None
        by_x, by_y, *_ = ctx.needs_input_grad
        made = ref_made = None
        with plain(x.device):
            scale, inside = incoming.reshape(-1), rows_of_backward(ctx.rows, x, incoming)
            if by_y:  # before x is overwritten
                ref_made = gradient_by_reference(ctx.d, x, y, scale, ctx.how, inside)
            if by_x:
                made = overwritten(x) if ctx.inplace else new_like(x)
                walk_divergence(
                    ctx.d, x, y, kept, loss_weight=scale, gradient=made, how=ctx.how, inside=inside
                )
        return (*first_order_only((made, ref_made), incoming, x, y), *nothing)


class TokensOfLogits(torch.autograd.Function):
    """Log-probs of tokens, and entropies if wanted; see `kl_companion.kernels.fused.fused_logp`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        tokens: torch.Tensor,
        rows: RowSelection,
        with_entropy: bool,
        how: LogitTransform,
        inplace: bool,
        recording: bool,
        early: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[rows, k] and [rows] or None; with loss_weights the gradient too, kept in ctx."""
        ctx.how, ctx.inplace, ctx.rows, ctx.made = how, inplace, rows, None
        logp = torch.zeros(tokens.shape, dtype=exact_dtype(x), device=x.device)
        entropy, kept = torch.zeros_like(logp[:, 0]) if with_entropy else None, room_for_tokens(logp)
        by_x = recording and ctx.needs_input_grad[0]
        by_row = not with_entropy and tokens.shape[1] == 1
        loss_weights = rows.weights if early and may_look(x) and scalable(x.dtype) else None
        at_once = early and inplace and by_x and by_row and may_look(x) and _may_wait(x)
        at_once = at_once and rows.weights is None
        ctx.ahead = loss_weights is not None or at_once
        inside = rows.inside if may_look(x) else rows.mask
        scale = made = None
        with plain(x.device):
            if ctx.ahead and by_x:
                scale = torch.ones_like(logp) if loss_weights is None else loss_weights
                made = overwritten(x) if inplace else new_like(x)
                ctx.made = (made,)
            walk_tokens(
                x,
                tokens,
                kept,
                logp=logp,
                entropy=entropy,
                loss_weight=scale,
                gradient=made,
                how=how,
                inside=inside,
            )
        if inside is not rows.inside and rows.inside is not None:
            logp.masked_fill_(~rows.inside.unsqueeze(-1), 0.0)
        if not ctx.ahead:
            keep(ctx, x, tokens, kept)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor, of_entropy: torch.Tensor | None = None) -> tuple[Any, ...]:
        """Gradient by the logits."""
        nothing = (None,) * 7
        if ctx.ahead:
            return (*first_order_only(take_made(ctx, incoming)), *nothing)
        x, tokens, kept = kept_by(ctx)
        assert x is not None
        assert tokens is not None
        assert kept is not None
        with plain(x.device):
            inside = rows_of_backward(ctx.rows, x, incoming)
            made = overwritten(x) if ctx.inplace else new_like(x)
            walk_tokens(
                x,
                tokens,
                kept,
                loss_weight=incoming,
                of_entropy=of_entropy,
                gradient=made,
                how=ctx.how,
                inside=inside,
            )
        sources = (incoming, x) if of_entropy is None else (incoming, of_entropy, x)
        return (*first_order_only((made,), *sources), *nothing)
