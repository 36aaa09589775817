"""Exact divergences, log-probs and entropies of whole vocabularies from raw logits, in next to no memory.

The functions of `kl_companion.estimators.vocabulary` say what is computed; these compute it where logits
[tokens, 151936] fill the memory. They take raw logits (any offset, -inf for masked tokens) in any floating
dtype, work in float32 (float64 for float64) on blocks of rows that stay in the cache, and save per-token
numbers only.

``backend`` is "auto", "compiled" or "eager": the same functions, made into one loop each by PyTorch's
compiler, or run one operation after the other. "auto" compiles where a compiler is found (C++ for a CPU,
Triton for a GPU) and the logits have at least 2^20 entries; a kernel is compiled once for its dtypes, for all
sizes, and kept on disk. On a GPU nothing waits for the device: what is not finite is returned instead of
refused, ids and weights are not checked, and ``weights`` change nothing, since the backward pass makes the
gradient.

Three modes:

* safe, the default: nothing of the caller's changes, the gradient is a new tensor made in backward;
* ``inplace=True``: the call uses the logits up, because their memory takes the gradient: only for logits that
  nothing else reads afterwards. In float32 and float64 it is made in the forward pass already, and multiplied
  row by row in backward;
* ``weights=``: the weights by which the loss multiplies the result per token, known up front: the gradient
  is made in the forward pass, while a row is in the cache anyway. The loss must then be a multiple of
  ``(weights * result).sum()``, which the backward pass checks.

Second derivatives are refused: use `kl_companion.estimators.vocabulary` for them.
"""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.checks import check_floating, check_log_probabilities, check_shape, check_temperature
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.sampled import Form
from kl_companion.estimators.top_k import TopK, checked_head
from kl_companion.kernels import in_graph
from kl_companion.kernels.autograd import DivergenceOfLogits, TokensOfLogits, may_look
from kl_companion.kernels.compiling import Backend, compiles
from kl_companion.kernels.walks import How


def fused_f_divergence(
    divergence: str | Divergence,
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """D_f(policy || reference) of every row of raw logits, exact, with its exact gradient.

    Args:
        divergence: A registered name or a `Divergence`.
        logits: Raw logits of the policy, [..., vocab]; float64, float32, bfloat16 or float16. A token that is
            -inf in both is masked and counts nothing.
        ref_logits: Raw logits of the reference, the same shape; any of these dtypes.
        temperature: Both rows are divided by it first.
        weights: [...], by which the loss multiplies the result; see the module's text.
        inplace: Let the gradient take the memory of ``logits``; see the module's text.
        backend: "auto", "compiled" or "eager"; see the module's text.

    Returns:
        [...], float32 (float64 where one of the two is), differentiable in both arguments, once.

    Raises:
        ValueError: shapes differ, an empty vocabulary, NaN, +inf, a row without a token, an infinite
            divergence (the place is named), a temperature that is not positive; in backward, another loss
            than ``weights`` announced.
        RuntimeError: in a second derivative.

    Source: emapg2026, eq (109).
    """
    d = get_divergence(divergence)
    _check_logits("logits", logits)
    _check_logits("ref_logits", ref_logits)
    check_shape("ref_logits", ref_logits, logits.shape, "logits [..., vocab]")
    how = _how(temperature, backend, logits)
    weights = check_weights(weights, logits.shape[:-1], "logits [..., vocab] without its last axis")
    _check_overwritable(logits, inplace)
    if torch.compiler.is_compiling():
        value, _ = in_graph.divergence(logits, ref_logits, d.name, how.temperature, how.compiled)
        return value.view(logits.shape[:-1])
    recording = torch.is_grad_enabled()
    return DivergenceOfLogits.apply(logits, ref_logits, weights, d, how, inplace, recording)


def fused_kl(
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """KL(policy || reference) of every row of raw logits: [..., vocab] -> [...]. As `fused_f_divergence`."""
    return fused_f_divergence(
        "reverse_kl",
        logits,
        ref_logits,
        temperature=temperature,
        weights=weights,
        inplace=inplace,
        backend=backend,
    )


def fused_forward_kl(
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    *,
    temperature: float = 1.0,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """KL(reference || policy) of every row of raw logits: [..., vocab] -> [...]. As `fused_f_divergence`."""
    return fused_f_divergence(
        "forward_kl",
        logits,
        ref_logits,
        temperature=temperature,
        weights=weights,
        inplace=inplace,
        backend=backend,
    )


def fused_logp(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float = 1.0,
    weights: torch.Tensor | None = None,
    inplace: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Log-probs of given tokens from raw logits: of the sampled one, or of several per row.

    Args:
        logits: Raw logits, [..., vocab], -inf where masked.
        tokens: int64 ids, [...] or [..., k].
        temperature: The logits are divided by it first.
        weights: Of the shape of ``tokens``, by which the loss multiplies the result; see the module's text.
        inplace: Let the gradient take the memory of ``logits``; see the module's text.
        backend: "auto", "compiled" or "eager"; see the module's text.

    Returns:
        Of the shape of ``tokens``, float32 (float64 for float64 logits), differentiable once.

    Raises:
        ValueError: tokens of another shape or dtype or outside the vocabulary, a masked token, and as
            `fused_f_divergence`.
    """
    _check_logits("logits", logits)
    index = check_tokens("tokens", tokens, logits.shape)
    weights = check_weights(weights, tokens.shape, "tokens")
    weights = None if weights is None else weights.reshape(index.shape)
    _check_overwritable(logits, inplace)
    logp, _ = _log_probs(logits, index, weights, False, _how(temperature, backend, logits), inplace)
    return check_possible(logp.view(tokens.shape))


def fused_logp_and_entropy(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float = 1.0,
    inplace: bool = False,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of given tokens and the entropy of every row, in one pass; arguments as `fused_logp`.

    Returns:
        Log-probs of the shape of ``tokens`` and entropies [...] in nats, both differentiable once.

    Raises:
        ValueError: as `fused_logp`.
    """
    _check_logits("logits", logits)
    index = check_tokens("tokens", tokens, logits.shape)
    how = _how(temperature, backend, logits)
    _check_overwritable(logits, inplace)
    logp, entropy = _log_probs(logits, index, None, True, how, inplace)
    return check_possible(logp.view(tokens.shape)), entropy.view(logits.shape[:-1])


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
    inplace: bool = False,
    backend: Backend = "auto",
) -> torch.Tensor:
    """D_f(policy || reference), exact on a given head and sampled outside it, from the policy's raw logits.

    What a teacher has to ship is k + 1 log-probs per token; the reference's [..., vocab] is not needed.

    Args:
        divergence: A registered name or a `Divergence`.
        logits: Raw logits of the policy, [..., vocab].
        tokens: The sampled token of every row, [...] int64.
        indices: The head, [..., k] int64, no token twice in a row.
        ref_logp_head: Log-probs of the reference on the head, [..., k]; -inf where it has no probability.
        ref_logp: Of the sampled token, [...].
        form: As in `kl_companion.estimators.top_k_f_divergence`.
        tail_weight: As there, [...].
        temperature: The policy's logits are divided by it first; the reference's log-probs stay.
        inplace: See the module's text.
        backend: See the module's text.

    Returns:
        [...], as `kl_companion.estimators.top_k_f_divergence` on the whole distributions.

    Raises:
        ValueError: as `kl_companion.estimators.top_k_f_divergence` and `fused_logp`.

    Source: emapg2026, algorithms 1 and 2, corrected.
    """
    choices = TopK(get_divergence(divergence), indices=indices, form=form)
    _check_logits("logits", logits)
    both = head_and_token(indices, tokens, ref_logp_head, ref_logp, logits.shape)
    index = check_tokens("tokens", both, logits.shape)
    how = _how(temperature, backend, logits)
    _check_overwritable(logits, inplace)
    logp, _ = _log_probs(logits, index, None, False, how, inplace)
    return estimate_from(choices, logp.view(both.shape), both, ref_logp_head, ref_logp, tail_weight)


def _log_probs(
    logits: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor | None,
    with_entropy: bool,
    how: How,
    inplace: bool,
) -> tuple[torch.Tensor, Any]:
    if torch.compiler.is_compiling():
        return in_graph.log_probs(logits, index, how.temperature, with_entropy, how.compiled)[:2]
    recording = torch.is_grad_enabled()
    return TokensOfLogits.apply(logits, index, weights, with_entropy, how, inplace, recording)


def _how(temperature: float, backend: Backend, logits: torch.Tensor) -> How:
    return How(check_temperature(temperature), compiled=compiles(backend, logits.numel(), logits.device))


def head_and_token(
    indices: torch.Tensor,
    tokens: torch.Tensor,
    ref_logp_head: torch.Tensor,
    ref_logp: torch.Tensor,
    logits: torch.Size,
) -> torch.Tensor:
    """Given head and sampled token side by side, [..., k + 1], for logits of a shape [..., vocab].

    Raises:
        ValueError: ids or log-probs of another shape, ids twice in a row or outside the vocabulary.
    """
    index = checked_head(indices, logits[:-1], logits[-1])
    if not isinstance(tokens, torch.Tensor) or tokens.shape != logits[:-1]:
        got = list(tokens.shape) if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise ValueError(f"tokens has shape {got}, expected {list(logits[:-1])} like logits [..., vocab]")
    check_shape("ref_logp_head", ref_logp_head, index.shape, "indices [..., k]")
    check_shape("ref_logp", ref_logp, tokens.shape, "tokens [...]")
    check_log_probabilities("ref_logp_head", ref_logp_head, ~ref_logp_head.isneginf())
    return torch.cat([index, tokens.unsqueeze(-1)], -1)


def estimate_from(
    choices: TopK,
    logp: torch.Tensor,
    both: torch.Tensor,
    ref_logp_head: torch.Tensor,
    ref_logp: torch.Tensor,
    tail_weight: torch.Tensor | None,
) -> torch.Tensor:
    """Head plus tail, [...], from the policy's log-probs [..., k + 1] of what `head_and_token` gave."""
    outside = (both[..., :-1] != both[..., -1:]).all(-1)
    head = choices.head_of(logp[..., :-1], ref_logp_head.to(logp.dtype))
    return choices.estimate(head, logp[..., -1], ref_logp.to(logp.dtype), outside, tail_weight)


def _check_logits(name: str, x: torch.Tensor) -> None:
    check_floating(name, x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} has shape {list(x.shape)}, expected [..., vocab] with vocab of at least 1")


def _check_overwritable(logits: torch.Tensor, inplace: bool) -> None:
    if (
        inplace
        and logits.numel()
        and any(size > 1 and step == 0 for size, step in zip(logits.shape, logits.stride(), strict=True))
    ):
        raise ValueError(
            "inplace=True got expanded logits, several of whose entries share one place in memory: expected "
            "a place per entry for the gradient (call .contiguous() first, or leave inplace out)"
        )


def check_weights(weights: torch.Tensor | None, shape: torch.Size, like: str) -> torch.Tensor | None:
    """Weights without their gradient; ValueError for another shape, dtype or a number that is not finite."""
    if weights is None:
        return None
    check_floating("weights", weights)
    check_shape("weights", weights, shape, like)
    if may_look(weights) and not weights.isfinite().all():
        raise ValueError("weights holds NaN or infinity, expected finite numbers")
    return weights.detach()


def check_possible(logp: torch.Tensor) -> torch.Tensor:
    """Log-probs of given tokens; ValueError where one is masked, so that its log-prob is infinite."""
    if not may_look(logp):
        return logp
    masked = logp.detach().isneginf()
    if masked.any():
        raise ValueError(
            f"the token at {masked.nonzero()[0].tolist()} of tokens is masked (-inf), expected a token that "
            "the policy can draw"
        )
    return logp


def check_tokens(name: str, tokens: torch.Tensor, logits: torch.Size) -> torch.Tensor:
    """Ids as [rows, k] for logits [..., vocab]; ValueError for another shape or dtype or an unknown id."""
    lead, vocab = logits[:-1], logits[-1]
    if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.int64:
        got = tokens.dtype if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise ValueError(f"{name} is {got}, expected int64 ids")
    if tokens.shape != lead and (tokens.ndim == 0 or tokens.shape[:-1] != lead):
        raise ValueError(
            f"{name} has shape {list(tokens.shape)}, expected {list(lead)} or {[*lead, 'k']} "
            "like logits [..., vocab]"
        )
    if may_look(tokens) and tokens.numel() and (tokens.min() < 0 or tokens.max() >= vocab):
        bad = tokens.min() if tokens.min() < 0 else tokens.max()
        raise ValueError(f"{name} holds the id {bad.item()}, expected 0 to {vocab - 1}")
    count = 1 if tokens.shape == lead else tokens.shape[-1]
    if count == 0:
        raise ValueError(f"{name} has shape {list(tokens.shape)}, expected at least one id per row")
    return tokens.reshape(lead.numel(), count)
