"""Value and gradient statistics of one sampled token: the core of `token_moments` and `logit_moments`.

The gradient is with respect to the logits of the row, so the score of token y is e_y - P and everything
that is needed of it is |s_y|^2 = 1 - 2 P_y + |P|^2. No [vocab, vocab] array is formed.

Language models are nearly sure of many tokens. The information of such a row is in 1 - P of its likeliest
token, which a difference from 1 would round away; so that one entry is always taken from all the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from kl_companion.checks import may_look
from kl_companion.divergences import Divergence, function_of_log, generator_of_log
from kl_companion.estimators.registry import Estimator
from kl_companion.estimators.top_k import TopK
from kl_companion.estimators.vocabulary import finite_sum_of_entries
from kl_companion.host_reads import any_wrong
from kl_companion.tabular.draws import Draws, SinglePlacement

_LONG = 2**14  # length of a row from which on memory traffic costs more than function calls
_MODERATE = 20.0  # log-ratios u up to which f and f' are computed at t = e^u directly


class Rows(NamedTuple):
    """Next-token distributions, [..., vocab]; those of the likeliest token are [..., 1].

    Attributes:
        logp, p: Log-probs and probabilities.
        top: The likeliest token.
        missing: 1 - p of it, the sum of all the others.
        others: Sum of p^2 over all the others, [..., 1].
        positive: Whether no probability is 0; False where that is not known, because nothing is read.
    """

    logp: torch.Tensor
    p: torch.Tensor
    top: torch.Tensor
    missing: torch.Tensor
    others: torch.Tensor
    positive: bool


def normalized(scores: torch.Tensor, dtype: torch.dtype, temperature: float = 1.0) -> Rows:
    """softmax(scores / temperature) of every row; ``missing`` is NaN where a row is no distribution."""
    logp = scores.to(dtype, copy=True)
    best = logp.max(-1, keepdim=True)
    logp.sub_(best.values)
    if temperature != 1:
        logp.div_(temperature)
    p = logp.exp()
    positive = may_look(p) and bool((p.amin(-1) > 0).all())
    p.scatter_(-1, best.indices, 0.0)
    rest = p.sum(-1, keepdim=True) + (best.values - best.values)  # NaN unless the largest is a number
    total = rest + 1
    others = _dot(p, p).unsqueeze(-1) / total.square()
    logp.sub_(rest.log1p())
    p.mul_(total.reciprocal()).scatter_(-1, best.indices, total.reciprocal())
    return Rows(logp, p, best.indices, rest / total, others, positive)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """sum(a b) over the last axis; of long rows as a matrix product, so that a b is never written down."""
    if a.shape[-1] < _LONG:
        return torch.linalg.vecdot(a, b)
    return (a.unsqueeze(-2) @ b.unsqueeze(-1)).squeeze((-2, -1))


def draws_of_rows(
    entry: Estimator,
    policy: Rows,
    reference: Rows,
    sampler: Rows,
    *,
    target: Divergence,
    placement: SinglePlacement = "loss",
    weighted: bool = True,
    clip: tuple[float, float] | None = None,
) -> Draws:
    """Everything that the moments of n draws are made of; arguments and errors as `token_moments`.

    Returns:
        `Draws` with leading axes [...] and gradients [..., 1, vocab].
    """
    plain = policy.positive and reference.positive and sampler.positive
    head = _head(entry, policy, reference, sampler)
    value, slope = _summed(entry, policy, reference, head)
    drawn = _drawn(entry, policy, reference, sampler, head, plain)
    if placement == "reward":  # the whole estimate is the cost of the token, and multiplies its score
        cost = value.unsqueeze(-1) if drawn is None else drawn[0] + value.unsqueeze(-1)
        drawn = (torch.zeros_like(policy.p) if drawn is None else drawn[0], cost.expand_as(policy.p))
        slope = None
    spread = single = torch.zeros_like(value)
    mean = None
    if drawn is not None:
        rho = _ratio(policy, sampler, weighted, clip)
        x, c = drawn if rho is None else (drawn[0] * rho, drawn[1] * rho)
        expected = _dot(sampler.p, x)
        x = x - expected.unsqueeze(-1)
        spread = _dot(sampler.p * x, x)
        value = value + expected
        mean = sampler.p * c
        square = _expected_square(mean * c, policy)
        mean = _by_logits(mean, policy)
        single = (square - _dot(mean, mean)).clamp(min=0.0)
    gradient = [g for g in (mean, None if slope is None else _by_logits(slope, policy)) if g is not None]
    exact, exact_slope = _divergence(target, policy, reference)
    return Draws(
        value,
        spread,
        sum(gradient[1:], gradient[0]).unsqueeze(-2),
        single,
        torch.zeros_like(value),
        torch.zeros_like(value),
        None,
        exact,
        _by_logits(exact_slope, policy).unsqueeze(-2),
    )


def _by_logits(slope: torch.Tensor, policy: Rows) -> torch.Tensor:
    """The gradient by the logits from that by the log-probs, u - P sum(u); in the memory of ``slope``."""
    at_top = slope.gather(-1, policy.top)
    rest = slope.scatter_(-1, policy.top, 0.0).sum(-1, keepdim=True)
    slope.addcmul_(policy.p, rest + at_top, value=-1)
    return slope.scatter_(-1, policy.top, at_top * policy.missing - (1 - policy.missing) * rest)


def _expected_square(weight: torch.Tensor, policy: Rows) -> torch.Tensor:
    """sum_y weight_y |s_y|^2, [...]; uses up ``weight``."""
    at_top = weight.gather(-1, policy.top)
    weight.scatter_(-1, policy.top, 0.0)
    size = 1 + (1 - policy.missing).square() + policy.others
    rest = weight.sum(-1, keepdim=True) * size - 2 * _dot(weight, policy.p).unsqueeze(-1)
    return (rest + at_top * (policy.missing.square() + policy.others)).squeeze(-1)


def _ratio(
    policy: Rows, sampler: Rows, weighted: bool, clip: tuple[float, float] | None
) -> torch.Tensor | float | None:
    """pi/mu of every token, clipped; a number where the policy samples itself, None for 1."""
    if not weighted:
        return None
    if sampler is policy:
        return None if clip is None else min(max(1.0, clip[0]), clip[1])
    rho = (policy.logp - sampler.logp).exp()
    if not sampler.positive:
        rho = rho.where(sampler.p > 0, 0.0)
    return rho if clip is None else rho.clamp(*clip)


@cache
def _slope_of_log(d: Divergence) -> Callable[[torch.Tensor], torch.Tensor]:
    return function_of_log(d.derivative)


def _divergence(d: Divergence, policy: Rows, reference: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """D_f of every row, [...], and its gradient by the log-probs, P f'(P/Q)."""
    u = policy.logp - reference.logp  # NaN or infinite where one is -inf: then `<` below is False
    if not u.numel() or (may_look(u) and max(abs(x) for x in torch.aminmax(u)) < _MODERATE):
        return _dot(reference.p, generator_of_log(d)(u)), policy.p * _slope_of_log(d)(u)
    return _with_slope(lambda p, q: finite_sum_of_entries(d, p, q), policy.logp, reference.logp)


def _with_slope(
    fn: Callable[..., torch.Tensor], logp: torch.Tensor, ref_logp: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A function of entries and its gradient by the log-probs of the policy; new tensors."""
    leaf = logp.detach().requires_grad_()
    with torch.enable_grad():
        out = fn(leaf, ref_logp)
        if not out.requires_grad:
            return out, torch.zeros_like(logp)
        (slope,) = torch.autograd.grad(out.sum(), leaf)
    return out.detach(), slope


def _head(entry: Estimator, policy: Rows, reference: Rows, sampler: Rows) -> torch.Tensor | None:
    """The tokens that a top-k estimator sums over, [..., k]; None for the others."""
    if entry.inputs != "top_k":
        return None
    return choices_of(entry).head_indices(policy.logp, reference.logp, sampler.logp)


def _summed(
    entry: Estimator, policy: Rows, reference: Rows, head: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What no draw decides: the whole divergence, the head, or nothing; value [...] and slope."""
    if entry.inputs == "sampled":
        return policy.p.new_zeros(policy.p.shape[:-1]), None
    if head is None:
        value, slope = _with_slope(entry.fn, policy.logp, reference.logp)
        return value, slope.clone()  # what autograd returns may be a view
    choices = choices_of(entry)
    parts = (x.gather(-1, head) for x in (policy.logp, reference.logp))
    value, slope = _with_slope(choices.head_of, *parts)
    return value, torch.zeros_like(policy.p).scatter_(-1, head, slope)


def _drawn(
    entry: Estimator, policy: Rows, reference: Rows, sampler: Rows, head: torch.Tensor | None, plain: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Value and d value / d logp of the sampled part at every token, 0 where never sampled; or None."""
    if entry.inputs == "vocab" or (entry.inputs == "top_k" and not choices_of(entry).tail):
        return None
    fn = entry.fn if entry.inputs == "sampled" else choices_of(entry).sampled
    if plain:
        x, c = _with_slope(fn, policy.logp, reference.logp)
        return (x, c) if head is None else (x.scatter(-1, head, 0.0), c.scatter(-1, head, 0.0))
    drawn = sampler.p > 0
    drawn = drawn if head is None else drawn.scatter(-1, head, False)
    infinite = drawn & (policy.logp.isneginf() | reference.logp.isneginf())
    if any_wrong(infinite):
        raise ValueError(
            f"{entry.name} is infinite at {infinite.nonzero()[0].tolist()}: the sampled token has no "
            "probability under the policy or under the reference, expected some under both"
        )
    x, c = _with_slope(fn, policy.logp.where(drawn, 0.0), reference.logp.where(drawn, 0.0))
    return x.where(drawn, 0.0), c.where(drawn, 0.0)


def choices_of(entry: Estimator) -> TopK:
    """The `TopK` of a top-k estimator; ValueError without one."""
    if not isinstance(entry.fn, TopK):
        raise ValueError(f"{entry.name!r} is no `TopK`, expected one from inputs='top_k'")
    return entry.fn
