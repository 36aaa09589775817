"""Autograd functions whose gradients are written by hand, for logits that exist in memory.

Values come from one walk over blocks of rows (`kl_companion.kernels.walks`), gradients from a second
in backward, or from the same walk where the weights of the loss are known. What is saved in between is the
inputs and a few numbers per row.
"""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.divergences import Divergence, swapped
from kl_companion.kernels.blocks import exact_dtype, new_like, plain
from kl_companion.kernels.walks import (
    How,
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


def may_look(x: torch.Tensor) -> bool:
    """Whether its numbers may be looked at: on a GPU that would wait for all that was asked of it before."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def common_factor(weights: torch.Tensor, incoming: torch.Tensor) -> float | torch.Tensor:
    """The s with incoming = s weights; on a GPU a tensor, of which nobody has checked that there is one.

    Raises:
        ValueError: there is none, so that the gradient made with these weights is another loss's.
    """
    got, given = incoming.double(), weights.double()
    square = given.square().sum()
    if not may_look(weights):
        return ((got * given).sum() / square).nan_to_num(0.0)
    factor = ((got * given).sum() / square).item() if square > 0 else 0.0
    apart = (got - factor * given).abs()
    loosest = max(_TOLERANCE.get(t.dtype, _TOLERANCE_OF_NARROW) for t in (weights, incoming))
    if apart.numel() and not apart.max() <= loosest * got.abs().max():
        at = apart.argmax()
        raise ValueError(
            f"the loss multiplies the result by {got.flatten()[at].item():.6g} where weights= gave "
            f"{given.flatten()[at].item():.6g} (times {factor:.6g}, the factor of the others): expected a "
            "multiple of (weights * result).sum(), the loss whose gradient the forward pass made"
        )
    return factor


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
    if ctx.loss_weights is not None:
        factor = common_factor(ctx.loss_weights, incoming)
        whole = isinstance(factor, float) and factor == 1
        return tuple(g if g is None or whole else g.mul_(factor) for g in made)
    with torch.no_grad():
        return tuple(None if g is None else scale_rows(g, incoming.reshape(-1)) for g in made)


def gradient_by_reference(
    d: Divergence,
    x: torch.Tensor,
    y: torch.Tensor,
    scale: torch.Tensor,
    how: How,
) -> torch.Tensor:
    """The gradient by the reference: that of the same divergence with its arguments exchanged."""
    gradient = new_like(y)
    d, value = swapped(d), torch.empty(scale.numel(), dtype=exact_dtype(x, y), device=x.device)
    how = how._replace(cap=how.ref_cap, ref_cap=how.cap)
    kept = room_for_kept(d, value)
    walk_divergence(d, y, x, kept, value=value, loss_weight=scale, gradient=gradient, how=how)
    return gradient


class DivergenceOfLogits(torch.autograd.Function):
    """D_f of rows of raw logits; see `kl_companion.kernels.fused.fused_f_divergence`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        y: torch.Tensor,
        loss_weights: torch.Tensor | None,
        d: Divergence,
        how: How,
        inplace: bool,
        recording: bool,
    ) -> torch.Tensor:
        """[...], and with loss_weights the gradients, kept in ctx."""
        lead = x.shape[:-1]
        ctx.d, ctx.how, ctx.inplace, ctx.loss_weights, ctx.made = d, how, inplace, loss_weights, None
        value = torch.zeros(lead.numel(), dtype=exact_dtype(x, y), device=x.device)
        kept = room_for_kept(d, value)
        by_x, by_y = (recording and needed for needed in ctx.needs_input_grad[:2])
        if not may_look(x):
            loss_weights = ctx.loss_weights = None  # their check would wait for the device
        ctx.ahead = loss_weights is not None or (inplace and by_x and may_look(x) and _may_wait(x))
        scale = made = ref_made = None
        with plain(x.device):
            if ctx.ahead:
                # without loss_weights the factor of each row comes with the backward pass: here it is 1
                scale = torch.ones_like(value) if loss_weights is None else loss_weights.reshape(-1)
                ref_made = gradient_by_reference(d, x, y, scale, how) if by_y else None
                made = None if not by_x else x.detach() if inplace else new_like(x)
                ctx.made = (made, ref_made)
            walk_divergence(d, x, y, kept, value=value, loss_weight=scale, gradient=made, how=how)
        if not ctx.ahead:
            ctx.save_for_backward(x, y, kept)
        return value.view(lead)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[Any, ...]:
        """Gradients by the logits of policy and reference."""
        nothing = (None,) * 5
        if ctx.ahead:
            return (*first_order_only(take_made(ctx, incoming)), *nothing)
        x, y, kept = ctx.saved_tensors
        by_x, by_y, *_ = ctx.needs_input_grad
        made = ref_made = None
        with plain(x.device):
            scale = incoming.reshape(-1)
            if by_y:  # before x is overwritten
                ref_made = gradient_by_reference(ctx.d, x, y, scale, ctx.how)
            if by_x:
                made = x.detach() if ctx.inplace else new_like(x)
                walk_divergence(ctx.d, x, y, kept, loss_weight=scale, gradient=made, how=ctx.how)
        return (*first_order_only((made, ref_made), incoming, x, y), *nothing)


class TokensOfLogits(torch.autograd.Function):
    """Log-probs of tokens, and entropies if wanted; see `kl_companion.kernels.fused.fused_logp`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        tokens: torch.Tensor,
        loss_weights: torch.Tensor | None,
        with_entropy: bool,
        how: How,
        inplace: bool,
        recording: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[rows, k] and [rows] or None; with loss_weights the gradient too, kept in ctx."""
        ctx.how, ctx.inplace, ctx.loss_weights, ctx.made = how, inplace, loss_weights, None
        logp = torch.zeros(tokens.shape, dtype=exact_dtype(x), device=x.device)
        entropy, kept = torch.zeros_like(logp[:, 0]) if with_entropy else None, room_for_tokens(logp)
        by_x = recording and ctx.needs_input_grad[0]
        by_row = not with_entropy and tokens.shape[1] == 1
        if not may_look(x):
            loss_weights = ctx.loss_weights = None
        ctx.ahead = loss_weights is not None or (inplace and by_x and by_row and may_look(x) and _may_wait(x))
        scale = made = None
        with plain(x.device):
            if ctx.ahead and by_x:
                scale = torch.ones_like(logp) if loss_weights is None else loss_weights
                made = x.detach() if inplace else new_like(x)
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
            )
        if not ctx.ahead:
            ctx.save_for_backward(x, tokens, kept)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor, of_entropy: torch.Tensor | None = None) -> tuple[Any, ...]:
        """Gradient by the logits."""
        nothing = (None,) * 6
        if ctx.ahead:
            return (*first_order_only(take_made(ctx, incoming)), *nothing)
        x, tokens, kept = ctx.saved_tensors
        with plain(x.device):
            made = x.detach() if ctx.inplace else new_like(x)
            walk_tokens(
                x,
                tokens,
                kept,
                loss_weight=incoming,
                of_entropy=of_entropy,
                gradient=made,
                how=ctx.how,
            )
        sources = (incoming, x) if of_entropy is None else (incoming, of_entropy, x)
        return (*first_order_only((made,), *sources), *nothing)
