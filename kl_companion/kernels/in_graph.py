"""The exact kernels as operators of a compiled graph, for callers under ``torch.compile``.

Their walks decide by what they find in a block, which a tracer cannot follow; as operators they are opaque to
it and break no graph. Inside a graph every function runs in its safe mode: ``weights`` and ``inplace`` change
speed and memory elsewhere, never the result. Divergences are known here by their registered names.
"""
# no `from __future__ import annotations`: the operators' schemas are read from them

from typing import Any

import torch

from kl_companion.divergences import get_divergence
from kl_companion.kernels.autograd import gradient_by_reference
from kl_companion.kernels.block_walks import walk_divergence, walk_tokens
from kl_companion.kernels.blocks import exact_dtype


def _room(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """A number per row of logits, in the dtype that is worked in."""
    dtype = exact_dtype(x)
    for other in others:
        dtype = torch.promote_types(dtype, exact_dtype(other))
    return torch.zeros(x.shape[:-1].numel(), dtype=dtype, device=x.device)


def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("kl_companion::divergence", mutates_args=())
def divergence(
    x: torch.Tensor, y: torch.Tensor, name: str, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """D_f of raw logits [rows..., vocab] and what its gradient needs, [rows] both."""
    value, excess = _room(x, y), _room(x, y)
    walk_divergence(get_divergence(name), x, y, excess, value=value, temperature=temperature)
    return value, excess


@divergence.register_fake
def _(x: torch.Tensor, y: torch.Tensor, name: str, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    return _room(x, y), _room(x, y)


@torch.library.custom_op("kl_companion::divergence_gradient", mutates_args=())
def divergence_gradient(
    x: torch.Tensor,
    y: torch.Tensor,
    excess: torch.Tensor,
    incoming: torch.Tensor,
    name: str,
    temperature: float,
    by_reference: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients by the logits of policy and reference; the second is empty where it is not wanted."""
    d, gradient = get_divergence(name), _like(x)
    walk_divergence(d, x, y, excess, loss_weight=incoming, gradient=gradient, temperature=temperature)
    if not by_reference:
        return gradient, y.new_empty(0)
    return gradient, gradient_by_reference(d, x, y, incoming, temperature, excess.dtype)


@divergence_gradient.register_fake
def _(
    x: torch.Tensor,
    y: torch.Tensor,
    excess: torch.Tensor,
    incoming: torch.Tensor,
    name: str,
    temperature: float,
    by_reference: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _like(x), _like(y) if by_reference else y.new_empty(0)


def _keep_divergence(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, y, ctx.name, ctx.temperature = inputs
    ctx.save_for_backward(x, y, output[1])


def _divergence_backward(ctx: Any, incoming: torch.Tensor, of_excess: torch.Tensor) -> tuple[Any, ...]:
    x, y, excess = ctx.saved_tensors
    by_reference = ctx.needs_input_grad[1]
    made, other = divergence_gradient(
        x, y, excess, incoming.contiguous(), ctx.name, ctx.temperature, by_reference
    )
    return made, other if by_reference else None, None, None


divergence.register_autograd(_divergence_backward, setup_context=_keep_divergence)


@torch.library.custom_op("kl_companion::log_probs", mutates_args=())
def log_probs(
    x: torch.Tensor, tokens: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of tokens [rows, k], and entropies [rows] (zeros where they are not wanted)."""
    entropy = _room(x)
    logp = entropy.new_zeros(tokens.shape)
    walk_tokens(x, tokens, logp=logp, entropy=entropy if with_entropy else None, temperature=temperature)
    return logp, entropy


@log_probs.register_fake
def _(
    x: torch.Tensor, tokens: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    entropy = _room(x)
    return entropy.new_zeros(tokens.shape), entropy


@torch.library.custom_op("kl_companion::log_probs_gradient", mutates_args=())
def log_probs_gradient(
    x: torch.Tensor,
    tokens: torch.Tensor,
    of_logp: torch.Tensor,
    of_entropy: torch.Tensor,
    temperature: float,
    with_entropy: bool,
) -> torch.Tensor:
    """Gradient by the logits, [rows..., vocab]."""
    gradient = _like(x)
    bend = of_entropy if with_entropy else None
    walk_tokens(x, tokens, loss_weight=of_logp, of_entropy=bend, gradient=gradient, temperature=temperature)
    return gradient


@log_probs_gradient.register_fake
def _(
    x: torch.Tensor,
    tokens: torch.Tensor,
    of_logp: torch.Tensor,
    of_entropy: torch.Tensor,
    temperature: float,
    with_entropy: bool,
) -> torch.Tensor:
    return _like(x)


def _keep_tokens(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, tokens, ctx.temperature, ctx.with_entropy = inputs
    ctx.save_for_backward(x, tokens)


def _tokens_backward(ctx: Any, of_logp: torch.Tensor, of_entropy: torch.Tensor) -> tuple[Any, ...]:
    x, tokens = ctx.saved_tensors
    made = log_probs_gradient(x, tokens, of_logp, of_entropy, ctx.temperature, ctx.with_entropy)
    return made, None, None, None


log_probs.register_autograd(_tokens_backward, setup_context=_keep_tokens)
