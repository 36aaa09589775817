"""Exact divergences, log-probs and entropies from hidden states: the logits are never materialized.

logits = scale (hidden @ weight.T + bias), then a soft cap if the model has one, then the temperature. The
logits of some tokens and some entries of the vocabulary live for a moment, in float32 at least, are replaced
by their gradient, and leave behind gradients of hidden states, weight and bias. ``memory`` is the number of
bytes of them that may live at once: with ``"fast"`` (320 MB, on a GPU 1.3 GB) those of a token are kept until
its gradient is made, ``"frugal"`` (8 MB, on a GPU 128) makes them a second time where it must. The weight
gradient comes on top, and in bfloat16 its float32 sum where the tokens are more than a budget takes at once.

The gradients are made in the forward pass where ``weights=`` tells the loss's weights up front, and where
weight and bias are frozen (then a vector per token is kept); else, and in float16 and with ``validate=True``,
the backward pass makes the logits again. On every device it checks that the loss has the announced weights,
for which it reads one number. ``mask`` and ``weights`` cost a GPU one read in the forward pass: which rows
count. The teacher gets no gradient. Second derivatives are refused.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.sampled import Form
from kl_companion.estimators.top_k import TopK
from kl_companion.kernels.arguments import check_device, check_tokens, how_of, rows_that_count
from kl_companion.kernels.careful import first_bad, place, refusal, refuse_tokens
from kl_companion.kernels.compiling import Backend
from kl_companion.kernels.heads import check_head, estimate_from
from kl_companion.kernels.linear_arguments import projection, teacher_of
from kl_companion.kernels.linear_autograd import apply, logits_of
from kl_companion.kernels.linear_tasks import Distances, LogProbs
from kl_companion.kernels.linear_walks import Projection, plan_tiles

Memory = Literal["fast", "frugal"] | int
_LEAD = "hidden [..., features] without its last axis"


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
    ref_temperature: float | None = None,
    logit_scale: float = 1.0,
    ref_logit_scale: float = 1.0,
    soft_cap: float | None = None,
    ref_soft_cap: float | None = None,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute D_f(policy || reference) of every token from the hidden states of the policy, exact.

    Args:
        divergence: A registered name or a `Divergence`.
        hidden: Hidden states of the policy, [..., features].
        weight: Its output layer, [vocab, features], of the dtype of ``hidden`` (autocast converts both).
        ref_hidden: Hidden states of the reference, [..., its own features]; with ``ref_weight``.
        ref_weight: Its output layer, [vocab, its own features].
        ref_logits: The logits of the reference instead, [..., vocab], -inf where masked.
        bias: [vocab], or None; -inf masks a token.
        ref_bias: The same of the reference.
        temperature: Both rows of logits are divided by it, after scale and soft cap.
        ref_temperature: The reference's own temperature; None for that of the policy.
        logit_scale: The policy's logits are multiplied by it first, as Cohere's models do.
        ref_logit_scale: The same of the reference.
        soft_cap: c of c tanh(logits / c), or None.
        ref_soft_cap: The same of the reference.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        weights: [...], by which the loss multiplies the result, known up front: the gradient is made in the
            forward pass, and backward checks that the loss is a multiple of (weights * result).sum(). Rows of
            weight 0 do not count.
        memory: "fast", "frugal" or bytes; see the module's text.
        backend: As in `fused_f_divergence`.
        validate: Refuse NaN, +inf, rows without a token and infinite divergences, which are returned else.

    Returns:
        [...], float32 (float64 for float64), differentiable once in hidden, weight and bias.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit, not exactly one of ref_hidden (with ref_weight)
            and ref_logits, a teacher that requires a gradient, and as `fused_f_divergence`.
        RuntimeError: in a second derivative.

    Source: emapg2026, eq (109).
    """
    d = get_divergence(divergence)
    policy = projection("", hidden, weight, bias)
    lead = hidden.shape[:-1]
    how = how_of(
        policy.weight,
        lead.numel() * len(policy.weight),
        backend,
        temperature=temperature,
        ref_temperature=ref_temperature,
        logit_scale=logit_scale,
        ref_logit_scale=ref_logit_scale,
        soft_cap=soft_cap,
        ref_soft_cap=ref_soft_cap,
    )
    teacher = teacher_of(policy, lead, ref_hidden, ref_weight, ref_bias, ref_logits)
    rows = rows_that_count(mask, weights, policy.weight, lead, _LEAD, validate=validate)
    plan = plan_tiles(lead.numel(), memory, policy.weight, 2 if isinstance(teacher, Projection) else 1)
    task = Distances(d, teacher, how, lead.numel())
    (value,) = apply(policy, task, rows.shaped(lead.numel()), plan, early=not validate)
    at = first_bad(value) if validate else None
    if at is not None:
        raise refusal(d, logits_of(at[0], policy, task, plan), place(at[0], lead), value.dtype)
    return value.view(lead)


def linear_kl(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    *,
    ref_hidden: torch.Tensor | None = None,
    ref_weight: torch.Tensor | None = None,
    ref_logits: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    ref_bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    ref_temperature: float | None = None,
    logit_scale: float = 1.0,
    ref_logit_scale: float = 1.0,
    soft_cap: float | None = None,
    ref_soft_cap: float | None = None,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute KL(policy || reference) of every token from the hidden states of the policy, exact.

    Args:
        hidden: Hidden states of the policy, [..., features].
        weight: Its output layer, [vocab, features], of the dtype of ``hidden`` (autocast converts both).
        ref_hidden: Hidden states of the reference, [..., its own features]; with ``ref_weight``.
        ref_weight: Its output layer, [vocab, its own features].
        ref_logits: The logits of the reference instead, [..., vocab], -inf where masked.
        bias: [vocab], or None; -inf masks a token.
        ref_bias: The same of the reference.
        temperature: Both rows of logits are divided by it, after scale and soft cap.
        ref_temperature: The reference's own temperature; None for that of the policy.
        logit_scale: The policy's logits are multiplied by it first, as Cohere's models do.
        ref_logit_scale: The same of the reference.
        soft_cap: c of c tanh(logits / c), or None.
        ref_soft_cap: The same of the reference.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        weights: [...], by which the loss multiplies the result, known up front: the gradient is made in the
            forward pass, and backward checks that the loss is a multiple of (weights * result).sum(). Rows of
            weight 0 do not count.
        memory: "fast", "frugal" or bytes; see the module's text.
        backend: As in `fused_f_divergence`.
        validate: Refuse NaN, +inf, rows without a token and infinite divergences, which are returned else.

    Returns:
        [...], float32 (float64 for float64), differentiable once in hidden, weight and bias.

    Raises:
        ValueError, RuntimeError: as `linear_f_divergence`.
    """
    return linear_f_divergence(
        "reverse_kl",
        hidden,
        weight,
        ref_hidden=ref_hidden,
        ref_weight=ref_weight,
        ref_logits=ref_logits,
        bias=bias,
        ref_bias=ref_bias,
        temperature=temperature,
        ref_temperature=ref_temperature,
        logit_scale=logit_scale,
        ref_logit_scale=ref_logit_scale,
        soft_cap=soft_cap,
        ref_soft_cap=ref_soft_cap,
        mask=mask,
        weights=weights,
        memory=memory,
        backend=backend,
        validate=validate,
    )


def linear_forward_kl(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    *,
    ref_hidden: torch.Tensor | None = None,
    ref_weight: torch.Tensor | None = None,
    ref_logits: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    ref_bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    ref_temperature: float | None = None,
    logit_scale: float = 1.0,
    ref_logit_scale: float = 1.0,
    soft_cap: float | None = None,
    ref_soft_cap: float | None = None,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute KL(reference || policy) of every token from the hidden states of the policy, exact.

    Args:
        hidden: Hidden states of the policy, [..., features].
        weight: Its output layer, [vocab, features], of the dtype of ``hidden`` (autocast converts both).
        ref_hidden: Hidden states of the reference, [..., its own features]; with ``ref_weight``.
        ref_weight: Its output layer, [vocab, its own features].
        ref_logits: The logits of the reference instead, [..., vocab], -inf where masked.
        bias: [vocab], or None; -inf masks a token.
        ref_bias: The same of the reference.
        temperature: Both rows of logits are divided by it, after scale and soft cap.
        ref_temperature: The reference's own temperature; None for that of the policy.
        logit_scale: The policy's logits are multiplied by it first, as Cohere's models do.
        ref_logit_scale: The same of the reference.
        soft_cap: c of c tanh(logits / c), or None.
        ref_soft_cap: The same of the reference.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        weights: [...], by which the loss multiplies the result, known up front: the gradient is made in the
            forward pass, and backward checks that the loss is a multiple of (weights * result).sum(). Rows of
            weight 0 do not count.
        memory: "fast", "frugal" or bytes; see the module's text.
        backend: As in `fused_f_divergence`.
        validate: Refuse NaN, +inf, rows without a token and infinite divergences, which are returned else.

    Returns:
        [...], float32 (float64 for float64), differentiable once in hidden, weight and bias.

    Raises:
        ValueError, RuntimeError: as `linear_f_divergence`.
    """
    return linear_f_divergence(
        "forward_kl",
        hidden,
        weight,
        ref_hidden=ref_hidden,
        ref_weight=ref_weight,
        ref_logits=ref_logits,
        bias=bias,
        ref_bias=ref_bias,
        temperature=temperature,
        ref_temperature=ref_temperature,
        logit_scale=logit_scale,
        ref_logit_scale=ref_logit_scale,
        soft_cap=soft_cap,
        ref_soft_cap=ref_soft_cap,
        mask=mask,
        weights=weights,
        memory=memory,
        backend=backend,
        validate=validate,
    )


def linear_logp(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    soft_cap: float | None = None,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute log-probs of tokens [...] or [..., k] from hidden states.

    Arguments as in `fused_logp` and `linear_f_divergence`.

    Returns:
        Of the shape of ``tokens``, float32 (float64 for float64).

    Raises:
        ValueError: as these two.
    """
    policy = projection("", hidden, weight, bias)
    options = _Options(temperature, logit_scale, soft_cap, memory, backend, validate)
    logp, _ = _log_probs(policy, hidden.shape[:-1], tokens, mask, weights, options)
    return logp


def linear_logp_and_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    soft_cap: float | None = None,
    mask: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probs of tokens and entropies [...] in nats, from hidden states, both differentiable once.

    Raises:
        ValueError: as `linear_logp`.
    """
    policy, lead = projection("", hidden, weight, bias), hidden.shape[:-1]
    options = _Options(temperature, logit_scale, soft_cap, memory, backend, validate)
    logp, entropy = _log_probs(policy, lead, tokens, mask, None, options, with_entropy=True)
    return logp, entropy.view(lead)


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
    logit_scale: float = 1.0,
    soft_cap: float | None = None,
    mask: torch.Tensor | None = None,
    memory: Memory = "fast",
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute D_f, exact on a given head and sampled outside it, [...]; see `fused_top_k_f_divergence`.

    Raises:
        ValueError: as `fused_top_k_f_divergence` and `linear_logp`.
    """
    choices = TopK(get_divergence(divergence), indices=indices, form=form)
    policy, lead = projection("", hidden, weight, bias), hidden.shape[:-1]
    shape = torch.Size([*lead, len(policy.weight)])
    rows = rows_that_count(mask, None, policy.weight, lead, _LEAD, validate=validate)
    shipped = check_head(
        indices, tokens, ref_logp_head, ref_logp, tail_weight, shape, rows, validate=validate
    )
    options = _Options(temperature, logit_scale, soft_cap, memory, backend, validate=False)
    logp, _ = _log_probs(policy, lead, shipped[0], mask, None, options)
    return estimate_from(choices, logp, *shipped, rows, validate=validate)


class _Options(NamedTuple):
    temperature: float
    logit_scale: float
    soft_cap: float | None
    memory: Memory
    backend: Backend
    validate: bool


def _log_probs(
    policy: Projection,
    lead: torch.Size,
    tokens: torch.Tensor,
    mask: torch.Tensor | None,
    weights: torch.Tensor | None,
    options: _Options,
    *,
    with_entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape, validate = torch.Size([*lead, len(policy.weight)]), options.validate
    check_tokens("tokens", tokens, shape)
    check_device("tokens", tokens, policy.weight, "weight")
    ids = tokens.shape if weights is not None else None
    rows = rows_that_count(mask, weights, policy.weight, lead, _LEAD, ids=ids, validate=validate)
    index = check_tokens("tokens", tokens, shape, rows, validate=validate)
    how = how_of(
        policy.weight,
        shape.numel(),
        options.backend,
        temperature=options.temperature,
        logit_scale=options.logit_scale,
        soft_cap=options.soft_cap,
    )
    task = LogProbs(index, how, with_entropy)
    plan = plan_tiles(lead.numel(), options.memory, policy.weight, 1)
    logp, *entropy = apply(policy, task, rows.shaped(*index.shape), plan, early=not validate)
    if validate:
        refuse_tokens(logp, tokens.shape, lead, lambda row: logits_of(row, policy, task, plan)["logits"])
    return logp.view(tokens.shape), entropy[0] if entropy else logp
