"""Exact moments of one next-token estimate, at any vocabulary: every token is summed over, none is drawn.

The gradient is with respect to the logits of the row, so the score of token y is e_y - P and everything
that is needed of it is |s_y|^2 = 1 - 2 P_y + |P|^2. No [vocab, vocab] array is formed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_companion.checks import check_distribution, check_shape
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.estimators.top_k import TopK
from kl_companion.estimators.vocabulary import sum_of_entries
from kl_companion.tabular.draws import Draws, Moments


def token_statistics(
    estimator: str | Estimator,
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    *,
    behavior_logp_all: torch.Tensor | None = None,
    weighted: bool = True,
    clip: tuple[float, float] | None = None,
    target: str | Divergence | None = None,
) -> Draws:
    """Everything that the moments of n draws of a token are made of, exact; see `token_moments`.

    Returns:
        `Draws` with leading axes [...] and gradients [..., 1, vocab] in the logits of each row. Its
        ``at(n)`` costs next to nothing for any number of sizes.
    """
    entry = get_estimator(estimator)
    check_shape("ref_logp_all", ref_logp_all, logp_all.shape, "logp_all [..., vocab]")
    logp, ref_logp = logp_all.detach(), ref_logp_all.detach()
    mu = logp if behavior_logp_all is None else behavior_logp_all.detach()
    check_shape("behavior_logp_all", mu, logp.shape, "logp_all [..., vocab]")
    for name, x in (("logp_all", logp), ("ref_logp_all", ref_logp), ("behavior_logp_all", mu)):
        check_distribution(name, x)
    if clip is not None and not 0 <= clip[0] <= clip[1]:
        raise ValueError(f"clip is {clip}, expected (lowest, highest) with 0 <= lowest <= highest")
    if clip is not None and not weighted:
        raise ValueError(f"clip={clip} got weighted=False, expected a weight to clip")
    policy, chance = logp.exp(), mu.exp()
    value, gradient = _exact_part(entry, logp, ref_logp, mu)
    x, c = _sampled_part(entry, logp, ref_logp, mu)
    rho = (logp - mu).exp().where(chance > 0, 0.0) if weighted else torch.ones_like(chance)
    rho = rho if clip is None else rho.clamp(*clip)
    x, c = x * rho, c * rho
    weight = chance * c
    mean = weight - policy * weight.sum(-1, keepdim=True)
    norm = 1 - 2 * policy + policy.square().sum(-1, keepdim=True)
    single = (weight * c * norm).sum(-1) - mean.square().sum(-1)
    expected = (chance * x).sum(-1)
    spread = (chance * (x - expected.unsqueeze(-1)) ** 2).sum(-1)
    d = get_divergence(entry.target if target is None else target)
    exact, slope = _with_gradient(lambda p, q: sum_of_entries(d, p, q), logp, ref_logp)
    nothing = torch.zeros_like(expected)
    return Draws(
        value + expected,
        spread,
        (gradient + mean).unsqueeze(-2),
        single.clamp(min=0.0),
        nothing,
        nothing,
        None,
        exact,
        slope.unsqueeze(-2),
    )


def token_moments(
    estimator: str | Estimator,
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    n: int = 1,
    *,
    behavior_logp_all: torch.Tensor | None = None,
    weighted: bool = True,
    clip: tuple[float, float] | None = None,
    target: str | Divergence | None = None,
) -> Moments:
    """Bias and variance of value and gradient of an estimate of next tokens, exact, row by row.

    Args:
        estimator: Any registered estimator or `Estimator`: sampled, exact or top-k.
        logp_all: Normalized log-probs of the policy, [..., vocab]; any vocabulary.
        ref_logp_all: Of the reference, the same shape.
        n: Independent tokens averaged, drawn at the same row.
        behavior_logp_all: Of the policy that samples, the same shape; None means the policy itself.
        weighted: Multiply what is sampled by pi/mu of the token (off-policy only). What is summed
            exactly, a head or a whole row, is never weighted.
        clip: (lowest, highest) pi/mu.
        target: The divergence that bias is measured against; the estimator's own target by default.

    Returns:
        `Moments` of tensors [...], with ``gradient`` [..., 1, vocab], by the logits of each row.

    Raises:
        ValueError: unknown name, shapes that differ, rows that are not normalized, a clip out of order or
            without a weight, n below 1, or an infinite divergence or estimate.

    Source: emapg2026, appendix G.2 (which estimates these by simulation).
    """
    return token_statistics(
        estimator,
        logp_all,
        ref_logp_all,
        behavior_logp_all=behavior_logp_all,
        weighted=weighted,
        clip=clip,
        target=target,
    ).at(n)


def _with_gradient(
    fn: Callable[..., torch.Tensor], logp: torch.Tensor, ref_logp: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A function of whole rows and its gradient by their logits: [...] and [..., vocab]."""
    theta = logp.clone().requires_grad_()
    with torch.enable_grad():
        out = fn(theta.log_softmax(-1), ref_logp)
        (gradient,) = torch.autograd.grad(out.sum(), theta)
    return out.detach(), gradient


def _exact_part(
    entry: Estimator, logp: torch.Tensor, ref_logp: torch.Tensor, mu: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What no draw decides: the whole divergence, the head, or nothing; value [...] and gradient."""
    if entry.inputs == "sampled":
        return logp.new_zeros(logp.shape[:-1]), torch.zeros_like(logp)
    if entry.inputs == "vocab":
        return _with_gradient(entry.fn, logp, ref_logp)
    choices = _choices(entry)
    index = choices.head_indices(logp, ref_logp, mu)
    return _with_gradient(lambda p, q: choices.head(p, q, index), logp, ref_logp)


def _sampled_part(
    entry: Estimator, logp: torch.Tensor, ref_logp: torch.Tensor, mu: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and d value/d logp of the sampled part at every token, [..., vocab]; 0 where never sampled."""
    nothing = torch.zeros_like(logp)
    if entry.inputs == "vocab" or (entry.inputs == "top_k" and not _choices(entry).tail):
        return nothing, nothing
    drawn = mu.exp() > 0
    if entry.inputs == "top_k":
        choices = _choices(entry)
        drawn = drawn.scatter(-1, choices.head_indices(logp, ref_logp, mu), False)
    infinite = drawn & (logp.isneginf() | ref_logp.isneginf())
    if infinite.any():
        raise ValueError(
            f"{entry.name} is infinite at {infinite.nonzero()[0].tolist()}: the sampled token has no "
            "probability under the policy or under the reference"
        )
    fn = entry.fn if entry.inputs == "sampled" else _choices(entry).sampled
    leaf = logp.where(drawn, 0.0).requires_grad_()
    with torch.enable_grad():
        x = fn(leaf, ref_logp.where(drawn, 0.0))
        (c,) = torch.autograd.grad(x.sum(), leaf)
    return x.detach().where(drawn, 0.0), c.where(drawn, 0.0)


def _choices(entry: Estimator) -> TopK:
    if not isinstance(entry.fn, TopK):
        raise ValueError(f"{entry.name!r} is no `TopK`, expected one from inputs='top_k'")
    return entry.fn
