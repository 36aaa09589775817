"""Exact divergences, log-probs and entropies from hidden states: the logits are never materialized.

logits = hidden @ weight.T + bias, then a soft cap if the model has one, then the temperature. The logits of
some tokens and some entries of the vocabulary live for a moment, in float32 at least, are replaced by their
gradient, and leave behind gradients of hidden states, weight and bias. ``memory`` says how many bytes of them
may live at once: with ``"fast"`` (320 MB, on a GPU 1.3 GB) those of a token are kept until its gradient is
made, ``"frugal"`` (8 MB, on a GPU 128) makes them a second time where it must. The weight gradient comes on
top, and in bfloat16 its float32 sum where the tokens are more than a budget takes at once.

The gradients are made in the forward pass where ``weights=`` tells the loss's weights up front, and where
weight and bias are frozen (then a vector per token is kept); else the backward pass makes the logits again.
The teacher gets no gradient. Second derivatives are refused.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from kl_companion.checks import check_floating, check_shape, check_temperature
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.sampled import Form
from kl_companion.estimators.top_k import TopK
from kl_companion.kernels.autograd import first_order_only, take_made
from kl_companion.kernels.blocks import plain
from kl_companion.kernels.compiling import Backend, compiles
from kl_companion.kernels.fused import (
    check_possible,
    check_tokens,
    check_weights,
    estimate_from,
    head_and_token,
)
from kl_companion.kernels.in_graph_linear import in_parts
from kl_companion.kernels.linear_tasks import Distances, LogProbs
from kl_companion.kernels.linear_walks import Projection, TilePlan, narrow, plan_tiles, walk_chunks
from kl_companion.kernels.walks import How

Memory = Literal["fast", "frugal"] | int


def linear_f_divergence(
    divergence: str | Divergence,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    *,
    ref_hidden: torch.Tensor | None = None,
    ref_weight: torch.Tensor | None = None,
    ref_logits: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    ref_bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    ref_soft_cap: float | None = None,
    weights: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
) -> torch.Tensor:
    """D_f(policy || reference) of every token from the hidden states of the policy, exact.

    Args:
        divergence: A registered name or a `Divergence`.
        hidden: Hidden states of the policy, [..., features].
        weight: Its output layer, [vocab, features], of the dtype of ``hidden`` (autocast converts both).
        ref_hidden: Hidden states of the reference, [..., its own features]; with ``ref_weight``.
        ref_weight: Its output layer, [vocab, its own features].
        ref_logits: The logits of the reference instead, [..., vocab], -inf where masked.
        bias: [vocab], or None; -inf masks a token.
        ref_bias: The same of the reference.
        temperature: Both rows of logits are divided by it, after the soft cap.
        soft_cap: c of c tanh(logits / c), or None.
        ref_soft_cap: The same of the reference.
        weights: [...], by which the loss multiplies the result, known up front: the gradient is made in the
            forward pass, and backward checks that the loss is a multiple of (weights * result).sum().
        memory: "fast", "frugal" or bytes; see the module's text.
        backend: As in `fused_f_divergence`.

    Returns:
        [...], float32 (float64 for float64), differentiable once in hidden, weight and bias.

    Raises:
        ValueError: shapes or dtypes that do not fit, not exactly one of ref_hidden (with ref_weight) and
            ref_logits, a teacher that requires a gradient, and as `fused_f_divergence`.
        RuntimeError: in a second derivative.

    Source: emapg2026, eq (109).
    """
    d = get_divergence(divergence)
    policy = _projection("", hidden, weight, bias)
    lead = hidden.shape[:-1]
    how = _how(policy, temperature, soft_cap, backend)._replace(ref_cap=_cap(ref_soft_cap, "ref_soft_cap"))
    teacher = _teacher(policy, lead, ref_hidden, ref_weight, ref_bias, ref_logits)
    weights = check_weights(weights, lead, "hidden [..., features] without its last axis")
    plan = plan_tiles(lead.numel(), memory, policy.weight, 2 if isinstance(teacher, Projection) else 1)
    task = Distances(d, teacher, how, lead)
    (value,) = _apply(policy, task, None if weights is None else (weights.reshape(-1),), plan)
    return value.view(lead)


def linear_kl(hidden: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:
    """KL(policy || reference) of every token from hidden states; as `linear_f_divergence`."""
    return linear_f_divergence("reverse_kl", hidden, weight, **options)


def linear_forward_kl(hidden: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:
    """KL(reference || policy) of every token from hidden states; as `linear_f_divergence`."""
    return linear_f_divergence("forward_kl", hidden, weight, **options)


def linear_logp(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    weights: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
) -> torch.Tensor:
    """Log-probs of tokens [...] or [..., k] from hidden states; see `fused_logp` and `linear_f_divergence`.

    Returns:
        Of the shape of ``tokens``, float32 (float64 for float64).

    Raises:
        ValueError: as these two.
    """
    weights = check_weights(weights, tokens.shape, "tokens") if isinstance(tokens, torch.Tensor) else weights
    logp, _ = _log_probs(
        hidden, weight, tokens, bias, temperature, soft_cap, memory, backend, loss_weights=weights
    )
    return check_possible(logp)


def linear_logp_and_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of tokens and entropies [...] in nats, from hidden states, both differentiable once.

    Raises:
        ValueError: as `linear_logp`.
    """
    logp, entropy = _log_probs(
        hidden, weight, tokens, bias, temperature, soft_cap, memory, backend, with_entropy=True
    )
    return check_possible(logp), entropy.view(hidden.shape[:-1])


def linear_top_k_f_divergence(
    divergence: str | Divergence,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    indices: torch.Tensor,
    ref_logp_head: torch.Tensor,
    ref_logp: torch.Tensor,
    *,
    form: Form = "bregman",
    tail_weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
) -> torch.Tensor:
    """`fused_top_k_f_divergence` from hidden states: exact on a given head, sampled outside it, [...].

    Raises:
        ValueError: as `fused_top_k_f_divergence` and `linear_logp`.
    """
    choices = TopK(get_divergence(divergence), indices=indices, form=form)
    policy = _projection("", hidden, weight, bias)
    shape = torch.Size([*hidden.shape[:-1], len(policy.weight)])
    both = head_and_token(indices, tokens, ref_logp_head, ref_logp, shape)
    logp, _ = _log_probs(hidden, weight, both, bias, temperature, soft_cap, memory, backend)
    return estimate_from(choices, logp, both, ref_logp_head, ref_logp, tail_weight)


def _log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    bias: torch.Tensor | None,
    temperature: float,
    soft_cap: float | None,
    memory: Memory,
    backend: Backend,
    *,
    loss_weights: torch.Tensor | None = None,
    with_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    policy = _projection("", hidden, weight, bias)
    lead = hidden.shape[:-1]
    index = check_tokens("tokens", tokens, torch.Size([*lead, len(policy.weight)]))
    task = LogProbs(index, _how(policy, temperature, soft_cap, backend), lead, with_entropy)
    plan = plan_tiles(lead.numel(), memory, policy.weight, 1)
    given = None if loss_weights is None else (loss_weights.reshape(index.shape),)
    logp, *entropy = _apply(policy, task, given, plan)
    return logp.view(tokens.shape), entropy[0] if entropy else logp


def _teacher(
    policy: Projection,
    lead: torch.Size,
    hidden: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    logits: torch.Tensor | None,
) -> Projection | torch.Tensor:
    """Checked: hidden states and output layer, or logits [rows, vocab]."""
    vocab = len(policy.weight)
    if logits is None and hidden is not None and weight is not None:
        _check_frozen(ref_hidden=hidden, ref_weight=weight, ref_bias=bias)
        found = _projection("ref_", hidden, weight, bias)
        check_shape("ref_hidden", hidden[..., 0], lead, "hidden [..., features] without its last axis")
        check_shape("ref_weight", weight[:, 0], (vocab,), "weight [vocab, ...], its first axis")
        return found
    if logits is not None and hidden is None and weight is None and bias is None:
        _check_frozen(ref_logits=logits)
        check_floating("ref_logits", logits)
        check_shape("ref_logits", logits, (*lead, vocab), "hidden [..., features] @ weight.T")
        return logits.reshape(-1, vocab)
    parts = {"ref_hidden": hidden, "ref_weight": weight, "ref_bias": bias, "ref_logits": logits}
    given = ", ".join(name for name, part in parts.items() if part is not None)
    raise ValueError(
        f"the teacher is given by {given or 'nothing'}, expected exactly one of ref_hidden with ref_weight "
        "(and ref_bias or not) and ref_logits"
    )


def _how(policy: Projection, temperature: float, soft_cap: float | None, backend: Backend) -> How:
    entries = len(policy.hidden) * len(policy.weight)
    compiled = compiles(backend, entries, policy.weight.device)
    return How(check_temperature(temperature), _cap(soft_cap, "soft_cap"), None, compiled)


def _cap(soft_cap: float | None, name: str) -> float | None:
    single = torch.finfo(torch.float32)
    if soft_cap is not None and not single.tiny <= soft_cap <= single.max:
        raise ValueError(f"{name} is {soft_cap!r}, expected a positive number that float32 holds, or None")
    return None if soft_cap is None else float(soft_cap)


def _projection(
    prefix: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> Projection:
    """Checked, two-dimensional, and in the dtype of autocast where that is on."""
    check_floating(f"{prefix}hidden", hidden)
    check_floating(f"{prefix}weight", weight)
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"{prefix}weight has shape {list(weight.shape)}, expected [vocab, features]")
    if hidden.ndim == 0 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{prefix}hidden has shape {list(hidden.shape)}, expected [..., {weight.shape[1]}] like "
            f"{prefix}weight [vocab, features]"
        )
    if bias is not None:
        check_floating(f"{prefix}bias", bias)
        check_shape(f"{prefix}bias", bias, weight.shape[:1], f"{prefix}weight [vocab, ...], its first axis")
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if hidden.dtype != weight.dtype:
        raise ValueError(
            f"{prefix}hidden is {hidden.dtype} and {prefix}weight {weight.dtype}, expected one dtype"
        )
    return Projection(hidden.reshape(-1, hidden.shape[-1]), weight, bias)


def _check_frozen(**tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, expected a frozen teacher: pass {name}.detach()")


def _apply(
    policy: Projection,
    task: Distances | LogProbs,
    loss_weights: tuple[torch.Tensor, ...] | None,
    plan: TilePlan,
) -> Any:
    if torch.compiler.is_compiling():
        return in_parts(policy, task, plan)
    return _Linear.apply(*policy, task, loss_weights, plan, torch.is_grad_enabled())


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        task: Distances | LogProbs,
        loss_weights: tuple[torch.Tensor, ...] | None,
        plan: TilePlan,
        recording: bool,
    ) -> tuple[torch.Tensor, ...]:
        policy, results = Projection(hidden, weight, bias), task.results(weight)
        wanted = tuple(recording and needed for needed in ctx.needs_input_grad[:3])
        ctx.task, ctx.plan, ctx.made, ctx.per_row, ctx.dtype = task, plan, None, None, hidden.dtype
        ctx.loss_weights = None if loss_weights is None else loss_weights[0]
        scales = loss_weights
        if loss_weights is None and wanted == (True, False, False) and task.by_row:
            ctx.per_row = scales = tuple(map(torch.ones_like, results))
        kept = task.room(results)
        with plain(hidden.device):
            made = walk_chunks(policy, task, plan, kept, results=results, loss_weights=scales, wanted=wanted)
        if loss_weights is not None:
            ctx.made = narrow(made, policy)
        elif ctx.per_row is not None:
            ctx.per_row = made.hidden
        else:
            ctx.save_for_backward(hidden, weight, bias, kept)
        return results

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[Any, ...]:
        nothing = (None,) * 4
        if ctx.loss_weights is not None:
            made = take_made(ctx, incoming[0])
            return (*first_order_only(made), *nothing)
        if ctx.per_row is not None:
            with torch.no_grad():
                by = incoming[0].reshape(-1, 1)
                # a token whose loss weight is zero has gradient zero, also where 0 times infinity is NaN
                made = ((ctx.per_row * by).where(by != 0, 0.0).to(ctx.dtype), None, None)
            return (*first_order_only(made), *nothing)
        *given, kept = ctx.saved_tensors
        policy = Projection(*given)
        with plain(kept.device):
            wanted = ctx.needs_input_grad[:3]
            made = walk_chunks(policy, ctx.task, ctx.plan, kept, loss_weights=incoming, wanted=wanted)
        made = narrow(made, policy)
        return (*first_order_only(made, *incoming, *given[:2]), *nothing)
