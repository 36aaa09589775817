"""Exact divergences, log-probs and entropies of whole vocabularies from raw logits, in next to no memory.

The functions of `kl_companion.estimators.vocabulary` say what is computed; these compute it where logits
[tokens, 151936] fill the memory. They take raw logits (any offset, -inf for masked tokens) in any floating
dtype, normalize them, work in float32 (float64 for float64) on blocks of rows that stay in the cache, and
save per-token numbers only.

``backend`` is "auto", "compiled" or "eager": loops that PyTorch's compiler makes for a CPU and Triton kernels
for a GPU, or one operation after the other (as float64 on a GPU). "auto" compiles where a compiler is found
and the logits have at least 2^20 entries; what was compiled is kept on disk. Triton passes over memory of the
size of the logits five times for the two KLs, seven for other divergences, three for log-probs.

What is not finite is returned for its row, as torch does. ``validate=True`` refuses it by name and place, and
ids, masks and weights that are out of range; for that a GPU has to finish its work. Nothing else reads values
on a GPU, where ``weights`` change nothing, since the backward pass makes the gradient.

Three modes:

* safe, the default: nothing of the caller's changes, the gradient is a new tensor made in backward;
* ``inplace=True``: the call uses the logits up, because their memory takes the gradient: only for logits that
  nothing else reads afterwards. In float32 and float64 it is made in the forward pass already, and multiplied
  row by row in backward. A leaf that requires grad, or a view of one, is refused. Where no gradient is
  recorded (``torch.no_grad``, logits that require none) nothing is overwritten;
* ``weights=``: the weights by which the loss multiplies the result per token, known up front: the gradient
  is made in the forward pass, while a row is in the cache anyway. The loss must then be a multiple of
  ``(weights * result).sum()``, which the backward pass checks. In float16 (where small entries would be zero
  without the loss's scale) and with ``validate`` the backward pass makes the gradient.

Second derivatives are refused: use `kl_companion.estimators.vocabulary` for them. Transforms of `torch.func`
(vmap, grad) run plain torch, which keeps log-probs of whole rows.
"""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.checks import check_shape
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.sampled import Form
from kl_companion.estimators.top_k import TopK
from kl_companion.kernels import in_graph, transforms
from kl_companion.kernels.arguments import (
    check_device,
    check_logits,
    check_overwritable,
    check_tokens,
    how_of,
    rows_that_count,
)
from kl_companion.kernels.autograd import DivergenceOfLogits, TokensOfLogits
from kl_companion.kernels.careful import first_bad, place, refusal, refuse_tokens
from kl_companion.kernels.compiling import Backend
from kl_companion.kernels.heads import check_head, estimate_from
from kl_companion.kernels.logit_transform import LogitTransform

_LEAD = "logits [..., vocab] without its last axis"


def fused_f_divergence(
    divergence: str | Divergence,
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    ref_temperature: float | None = None,
    logit_scale: float = 1.0,
    ref_logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute D_f(policy || reference) of every row of raw logits, exact, with its exact gradient.

    Args:
        divergence: A registered name or a `Divergence`.
        logits: Raw logits of the policy, [..., vocab], any floating dtype; -inf masks a token.
        ref_logits: Raw logits of the reference, the same shape, any floating dtype.
        temperature: The logits of both are divided by it.
        ref_temperature: The reference's own temperature; None for that of the policy.
        logit_scale: The policy's logits are multiplied by it first, as Cohere's models do.
        ref_logit_scale: The reference's logits are multiplied by it first.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        weights: [...], the weights of the loss where they are known; rows of weight 0 do not count.
        inplace: Let the gradient take the memory of ``logits``; see the module's text.
        backend: "auto", "compiled" or "eager"; see the module's text.
        validate: Refuse NaN, +inf, rows without a token and infinite divergences, which are returned else.

    Returns:
        [...], float32 (float64 where one of the two is), differentiable in both arguments, once.

    Raises:
        ValueError: shapes or devices differ, a DTensor, a temperature or scale that is not positive, logits
            that cannot be overwritten; with ``validate`` also values (the place is named); in backward,
            another loss than ``weights`` announced.
        RuntimeError: in a second derivative.

    Source: emapg2026, eq (109).
    """
    d = get_divergence(divergence)
    check_logits("logits", logits)
    check_logits("ref_logits", ref_logits)
    check_shape("ref_logits", ref_logits, logits.shape, "logits [..., vocab]")
    check_device("ref_logits", ref_logits, logits, "logits")
    how = how_of(
        logits,
        logits.numel(),
        backend,
        temperature=temperature,
        ref_temperature=ref_temperature,
        logit_scale=logit_scale,
        ref_logit_scale=ref_logit_scale,
    )
    rows = rows_that_count(mask, weights, logits, logits.shape[:-1], _LEAD, validate=validate)
    if transforms.transformed():
        return transforms.divergence(d, logits, ref_logits, how, rows.inside)
    check_overwritable(logits, inplace)
    if torch.compiler.is_compiling():
        value, _ = in_graph.divergence(logits, ref_logits, rows.inside, d.name, how.numbers())
        return value.view(logits.shape[:-1])
    # logits to be validated are not overwritten in the forward pass
    options = (d, how, inplace, torch.is_grad_enabled(), not validate)
    value = DivergenceOfLogits.apply(logits, ref_logits, rows, *options)
    at = first_bad(value) if validate else None
    if at is not None:
        row = {"logits": logits[tuple(at)], "ref_logits": ref_logits[tuple(at)]}
        raise refusal(d, row, at, value.dtype)
    return value


def fused_kl(
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    ref_temperature: float | None = None,
    logit_scale: float = 1.0,
    ref_logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute KL(policy || reference) of every row of raw logits, exact, with its exact gradient.

    Args:
        logits: Raw logits of the policy, [..., vocab], any floating dtype; -inf masks a token.
        ref_logits: Raw logits of the reference, the same shape, any floating dtype.
        temperature: The logits of both are divided by it.
        ref_temperature: The reference's own temperature; None for that of the policy.
        logit_scale: The policy's logits are multiplied by it first, as Cohere's models do.
        ref_logit_scale: The reference's logits are multiplied by it first.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        weights: [...], the weights of the loss where they are known; rows of weight 0 do not count.
        inplace: Let the gradient take the memory of ``logits``; see the module's text.
        backend: "auto", "compiled" or "eager"; see the module's text.
        validate: Refuse NaN, +inf, rows without a token and infinite divergences, which are returned else.

    Returns:
        [...], float32 (float64 where one of the two is), differentiable in both arguments, once.

    Raises:
        ValueError, RuntimeError: as `fused_f_divergence`.
    """
    return fused_f_divergence(
        "reverse_kl",
        logits,
        ref_logits,
        temperature=temperature,
        ref_temperature=ref_temperature,
        logit_scale=logit_scale,
        ref_logit_scale=ref_logit_scale,
        mask=mask,
        weights=weights,
        inplace=inplace,
        backend=backend,
        validate=validate,
    )


def fused_forward_kl(
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    ref_temperature: float | None = None,
    logit_scale: float = 1.0,
    ref_logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute KL(reference || policy) of every row of raw logits, exact, with its exact gradient.

    Args:
        logits: Raw logits of the policy, [..., vocab], any floating dtype; -inf masks a token.
        ref_logits: Raw logits of the reference, the same shape, any floating dtype.
        temperature: The logits of both are divided by it.
        ref_temperature: The reference's own temperature; None for that of the policy.
        logit_scale: The policy's logits are multiplied by it first, as Cohere's models do.
        ref_logit_scale: The reference's logits are multiplied by it first.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        weights: [...], the weights of the loss where they are known; rows of weight 0 do not count.
        inplace: Let the gradient take the memory of ``logits``; see the module's text.
        backend: "auto", "compiled" or "eager"; see the module's text.
        validate: Refuse NaN, +inf, rows without a token and infinite divergences, which are returned else.

    Returns:
        [...], float32 (float64 where one of the two is), differentiable in both arguments, once.

    Raises:
        ValueError, RuntimeError: as `fused_f_divergence`.
    """
    return fused_f_divergence(
        "forward_kl",
        logits,
        ref_logits,
        temperature=temperature,
        ref_temperature=ref_temperature,
        logit_scale=logit_scale,
        ref_logit_scale=ref_logit_scale,
        mask=mask,
        weights=weights,
        inplace=inplace,
        backend=backend,
        validate=validate,
    )


def fused_logp(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute log-probs of given tokens from raw logits: of the sampled one, or of several per row.

    Args:
        logits: Raw logits, [..., vocab], -inf where masked.
        tokens: int64 ids, [...] or [..., k].
        temperature: The logits are divided by it.
        logit_scale: The logits are multiplied by it first.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        weights: The weights of the loss where they are known, like ``tokens``; rows of 0 do not count.
        inplace: Let the gradient take the memory of ``logits``; see the module's text.
        backend: "auto", "compiled" or "eager"; see the module's text.
        validate: Refuse NaN, +inf, a row without a token, a masked token and ids outside the vocabulary. By
            default they come out per row: a masked token has log-prob -inf.

    Returns:
        Of the shape of ``tokens``, float32 (float64 for float64 logits), differentiable once.

    Raises:
        ValueError: tokens of another shape or dtype, and as `fused_f_divergence`; with ``validate`` also ids
            outside the vocabulary and a masked token.
    """
    how = _transform(logits, backend, temperature, logit_scale)
    return _log_probs(logits, tokens, mask, weights, how, inplace=inplace, validate=validate)[0]


def fused_logp_and_entropy(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probs of given tokens and the entropy of every row, in one pass.

    Args:
        logits: Raw logits, [..., vocab], -inf where masked.
        tokens: int64 ids, [...] or [..., k].
        temperature: The logits are divided by it.
        logit_scale: The logits are multiplied by it first.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        inplace: Let the gradient take the memory of ``logits``; see the module's text.
        backend: "auto", "compiled" or "eager"; see the module's text.
        validate: As in `fused_logp`.

    Returns:
        Log-probs of the shape of ``tokens`` and entropies [...] in nats, both differentiable once.

    Raises:
        ValueError: as `fused_logp`.
    """
    how = _transform(logits, backend, temperature, logit_scale)
    logp, entropy = _log_probs(
        logits, tokens, mask, None, how, inplace=inplace, validate=validate, with_entropy=True
    )
    return logp, entropy.view(logits.shape[:-1])


def fused_top_k_f_divergence(
    divergence: str | Divergence,
    logits: torch.Tensor,
    tokens: torch.Tensor,
    indices: torch.Tensor,
    ref_logp_head: torch.Tensor,
    ref_logp: torch.Tensor,
    *,
    form: Form = "bregman",
    tail_weight: torch.Tensor | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    mask: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
    validate: bool = False,
) -> torch.Tensor:
    """Compute D_f(policy || reference), exact on a given head and sampled outside it, from raw logits.

    What a teacher has to ship is k + 1 log-probs per token; the reference's [..., vocab] is not needed.

    Args:
        divergence: A registered name or a `Divergence`.
        logits: Raw logits of the policy, [..., vocab].
        tokens: The sampled token of every row, [...] int64.
        indices: The head, [..., k] int64, no token twice in a row.
        ref_logp_head: Log-probs of the reference there, [..., k], normalized over the vocabulary, or -inf.
        ref_logp: Of the sampled token, [...].
        form: As in `kl_companion.estimators.top_k_f_divergence`.
        tail_weight: As there, [...].
        temperature: The policy's logits are divided by it; the reference's log-probs stay.
        logit_scale: The policy's logits are multiplied by it first.
        mask: [...], True or 1 in rows that count. The others are not read: value 0, gradient 0.
        inplace: See the module's text.
        backend: See the module's text.
        validate: Refuse ids twice in a row or outside the vocabulary, reference log-probs that are NaN or
            above 0, a head whose mass is above 1, a negative tail_weight, and results that are not finite.

    Returns:
        [...], as `kl_companion.estimators.top_k_f_divergence` on the whole distributions.

    Raises:
        ValueError: shapes or dtypes that do not agree, and as `fused_logp`.

    Source: emapg2026, algorithms 1 and 2, corrected.
    """
    choices = TopK(get_divergence(divergence), indices=indices, form=form)
    check_logits("logits", logits)
    rows = rows_that_count(mask, None, logits, logits.shape[:-1], _LEAD, validate=validate)
    shipped = check_head(
        indices, tokens, ref_logp_head, ref_logp, tail_weight, logits.shape, rows, validate=validate
    )
    how = _transform(logits, backend, temperature, logit_scale)
    logp, _ = _log_probs(logits, shipped[0], mask, None, how, inplace=inplace)
    return estimate_from(choices, logp, *shipped, rows, validate=validate)


def _transform(logits: torch.Tensor, backend: Backend, temperature: float, scale: float) -> LogitTransform:
    check_logits("logits", logits)
    return how_of(logits, logits.numel(), backend, temperature=temperature, logit_scale=scale)


def _log_probs(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    mask: torch.Tensor | None,
    weights: torch.Tensor | None,
    how: LogitTransform,
    *,
    inplace: bool,
    validate: bool = False,
    with_entropy: bool = False,
) -> tuple[torch.Tensor, Any]:
    """Log-probs of the shape of ``tokens``, and entropies [rows] if wanted, of checked logits."""
    check_tokens("tokens", tokens, logits.shape)
    lead = logits.shape[:-1]
    ids = tokens.shape if weights is not None else None
    rows = rows_that_count(mask, weights, logits, lead, _LEAD, ids=ids, validate=validate)
    index = check_tokens("tokens", tokens, logits.shape, rows, validate=validate)
    check_device("tokens", tokens, logits, "logits")
    if transforms.transformed():
        logp, entropy = transforms.log_probs(logits, index, how, rows.inside)
        return logp.view(tokens.shape), entropy
    check_overwritable(logits, inplace)
    if torch.compiler.is_compiling():
        logp, entropy, _ = in_graph.log_probs(logits, index, rows.inside, with_entropy, how.numbers())
        return logp.view(tokens.shape), entropy
    options = (with_entropy, how, inplace, torch.is_grad_enabled(), not validate)
    logp, entropy = TokensOfLogits.apply(logits, index, rows.shaped(*index.shape), *options)
    if validate:
        refuse_tokens(logp, tokens.shape, lead, lambda row: logits[tuple(place(row, lead))])
    return logp.view(tokens.shape), entropy
