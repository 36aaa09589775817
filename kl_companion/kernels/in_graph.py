"""The exact kernels as operators of a compiled graph, for callers under ``torch.compile``.

Their walks decide by what they find in a block, which a tracer cannot follow; as operators they are opaque to
it and break no graph. Inside a graph every function runs in its safe mode: ``weights`` and ``inplace`` change
speed and memory elsewhere, never the result. Divergences are known here by their registered names.

A tracer calls the functions registered as fakes. They do without SymPy, because mpmath refuses fake numbers,
and without `torch.Size.numel`, `len` and addresses of memory, which lengths that may change have not. What
depends on the size of the logits, such as the form of a kernel, is therefore decided inside the operators.
"""
# no `from __future__ import annotations`: the operators' schemas are read from them

import math
from typing import Any, List  # noqa: UP035

import torch

from kl_companion.divergences import get_divergence
from kl_companion.kernels.autograd import gradient_by_reference
from kl_companion.kernels.blocks import exact_dtype, new_like
from kl_companion.kernels.compiling import compiles
from kl_companion.kernels.logit_transform import LogitTransform
from kl_companion.kernels.row_numbers import KLNumbers, RatioNumbers
from kl_companion.kernels.walks import (
    REVERSE_KL,
    room_for_kept,
    room_for_tokens,
    rows_dtype,
    walk_divergence,
    walk_tokens,
)

# schemas are made from these annotations, and torch 2.6 reads no list[float]
Floats = List[float]  # noqa: UP006


def _room(*tensors: torch.Tensor) -> torch.Tensor:
    """Return zeros, one per row of logits."""
    x = tensors[0]
    return torch.zeros(math.prod(x.shape[:-1]), dtype=exact_dtype(*tensors), device=x.device)


def room_in_float64(name: str, value: torch.Tensor) -> torch.Tensor:
    """Return float64 zeros [numbers, rows] for what `room_for_kept` makes room for in the dtype worked in.

    A tracer cannot know that dtype: it is found by SymPy.
    """
    numbers = KLNumbers if name == REVERSE_KL else RatioNumbers
    return value.new_zeros(len(numbers._fields), value.shape[0], dtype=torch.float64)


def how_inside(numbers: Floats, entries: int, device: torch.device) -> LogitTransform:
    """Return what `LogitTransform.numbers` gave; an open form is chosen by the entries."""
    how = LogitTransform.of_numbers(numbers)
    return how._replace(compiled=compiles("auto", entries, device)) if how.compiled is None else how


@torch.library.custom_op("kl_companion::divergence", mutates_args=())
def divergence(
    x: torch.Tensor, y: torch.Tensor, inside: torch.Tensor | None, name: str, how: Floats
) -> tuple[torch.Tensor, torch.Tensor]:
    """D_f of raw logits [rows..., vocab], [rows], and what its gradient needs, [numbers, rows]."""
    value, d = _room(x, y), get_divergence(name)
    kept, options = room_for_kept(d, value), how_inside(how, x.numel(), x.device)
    walk_divergence(d, x, y, kept, value=value, how=options, inside=inside)
    return value, kept.double()


@divergence.register_fake
def _(
    x: torch.Tensor, y: torch.Tensor, inside: torch.Tensor | None, name: str, how: Floats
) -> tuple[torch.Tensor, torch.Tensor]:
    value = _room(x, y)
    return value, room_in_float64(name, value)


@torch.library.custom_op("kl_companion::divergence_gradient", mutates_args=())
def divergence_gradient(
    x: torch.Tensor,
    y: torch.Tensor,
    inside: torch.Tensor | None,
    kept: torch.Tensor,
    incoming: torch.Tensor,
    name: str,
    how: Floats,
    by_reference: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients by the logits of policy and reference; the second is empty where it is not wanted."""
    d, gradient, options = get_divergence(name), new_like(x), how_inside(how, x.numel(), x.device)
    kept = kept.to(rows_dtype(d, exact_dtype(x, y)))
    walk_divergence(d, x, y, kept, loss_weight=incoming, gradient=gradient, how=options, inside=inside)
    if not by_reference:
        return gradient, y.new_empty(0)
    return gradient, gradient_by_reference(d, x, y, incoming, options, inside)


@divergence_gradient.register_fake
def _(
    x: torch.Tensor,
    y: torch.Tensor,
    inside: torch.Tensor | None,
    kept: torch.Tensor,
    incoming: torch.Tensor,
    name: str,
    how: Floats,
    by_reference: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), y.new_empty(y.shape if by_reference else 0)


def _keep_divergence(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, y, inside, *ctx.options = inputs
    ctx.save_for_backward(x, y, inside, output[1])


def _divergence_backward(ctx: Any, incoming: torch.Tensor, of_kept: torch.Tensor) -> tuple[Any, ...]:
    by_reference = ctx.needs_input_grad[1]
    made, other = divergence_gradient(*ctx.saved_tensors, incoming.contiguous(), *ctx.options, by_reference)
    return made, other if by_reference else None, None, *[None] * len(ctx.options)


divergence.register_autograd(_divergence_backward, setup_context=_keep_divergence)


@torch.library.custom_op("kl_companion::log_probs", mutates_args=())
def log_probs(
    x: torch.Tensor, tokens: torch.Tensor, inside: torch.Tensor | None, with_entropy: bool, how: Floats
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs of tokens [rows, k], entropies [rows] (zeros where not wanted), what backward needs."""
    entropy = _room(x)
    logp = entropy.new_zeros(tokens.shape)
    kept, options = room_for_tokens(logp), how_inside(how, x.numel(), x.device)
    wanted_entropy = entropy if with_entropy else None
    walk_tokens(x, tokens, kept, logp=logp, entropy=wanted_entropy, how=options, inside=inside)
    return logp, entropy, kept


@log_probs.register_fake
def _(
    x: torch.Tensor, tokens: torch.Tensor, inside: torch.Tensor | None, with_entropy: bool, how: Floats
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    entropy = _room(x)
    logp = entropy.new_zeros(tokens.shape)
    return logp, entropy, room_for_tokens(logp)


@torch.library.custom_op("kl_companion::log_probs_gradient", mutates_args=())
def log_probs_gradient(
    x: torch.Tensor,
    tokens: torch.Tensor,
    inside: torch.Tensor | None,
    kept: torch.Tensor,
    of_logp: torch.Tensor,
    of_entropy: torch.Tensor,
    with_entropy: bool,
    how: Floats,
) -> torch.Tensor:
    """Gradient by the logits, [rows..., vocab]."""
    gradient = new_like(x)
    bend = of_entropy if with_entropy else None
    walk_tokens(
        x,
        tokens,
        kept,
        loss_weight=of_logp,
        of_entropy=bend,
        gradient=gradient,
        how=how_inside(how, x.numel(), x.device),
        inside=inside,
    )
    return gradient


@log_probs_gradient.register_fake
def _(
    x: torch.Tensor,
    tokens: torch.Tensor,
    inside: torch.Tensor | None,
    kept: torch.Tensor,
    of_logp: torch.Tensor,
    of_entropy: torch.Tensor,
    with_entropy: bool,
    how: Floats,
) -> torch.Tensor:
    return x.new_empty(x.shape)


def _keep_tokens(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, tokens, inside, *ctx.options = inputs
    ctx.save_for_backward(x, tokens, inside, output[2])


def _tokens_backward(
    ctx: Any, of_logp: torch.Tensor, of_entropy: torch.Tensor, of_kept: torch.Tensor
) -> tuple[Any, ...]:
    made = log_probs_gradient(*ctx.saved_tensors, of_logp, of_entropy, *ctx.options)
    return made, None, None, *[None] * len(ctx.options)


log_probs.register_autograd(_tokens_backward, setup_context=_keep_tokens)
