"""Exact moments of estimators: bias, covariance and mean squared error, with no sample drawn."""

from __future__ import annotations

import torch

from kl_companion.checks import check_choice, refuse_nan
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.estimators.vocabulary import f_divergence
from kl_companion.tabular.draws import BASELINES, Baseline, Draws, Moments
from kl_companion.tabular.scores import (
    EstimatorLike,
    SinglePlacement,
    World,
    coefficients,
    sample_gradients,
    world,
)
from kl_companion.tabular.worlds import Problem


def _target(target: Divergence, at: World) -> tuple[torch.Tensor, torch.Tensor]:
    """The divergence of whole sequences from policy to reference and its gradient, exact."""
    problem, ref_logp = at.problem, at.problem.token_logp(at.problem.ref_logits).sum(-1)
    if target.name == "reverse_kl":  # the common one in closed form, E[k1] and E[k1 s]: no graph is built
        policy = at.logp.sum(-1).exp()
        k1 = (at.logp.sum(-1) - ref_logp).where(policy > 0, 0.0)
        return (policy * k1).sum(-1), at.gradient(k1.unsqueeze(-1).expand_as(at.logp), policy)
    theta = problem.logits.detach().clone().requires_grad_()
    exact = f_divergence(target, problem.token_logp(theta).sum(-1), ref_logp)
    (gradient,) = torch.autograd.grad(exact.sum(), theta)
    return exact.detach(), gradient


def draw_statistics(
    estimator: EstimatorLike,
    problem: Problem,
    *,
    placement: SinglePlacement = "loss",
    baseline: Baseline | None = None,
    weighted: bool = False,
    target: str | Divergence | None = None,
) -> Draws:
    """Everything that the moments of n draws are made of, exact; arguments and errors as `exact_moments`.

    Returns:
        `Draws`, whose ``at(n)`` costs next to nothing for any number of sizes.
    """
    if baseline is not None:
        check_choice("baseline", baseline, BASELINES)
    if placement != "reward" and (baseline is not None or weighted):
        raise ValueError(
            f"placement={placement!r} got baseline={baseline!r}, weighted={weighted}: expected 'reward', "
            "where a detached cost multiplies the score"
        )
    named = isinstance(estimator, str | Estimator)
    if target is None:
        target = get_estimator(estimator).target if named else "reverse_kl"  # type: ignore[arg-type]
    at = world(problem)
    x, c = coefficients(estimator, at, placement)
    mask = problem.completion_mask.expand_as(c)
    rho = _sequence_ratio(at).unsqueeze(-1) * mask if weighted else mask
    c = c * rho if placement == "reward" else c
    mean = at.mean(x)
    variance = at.mean((x - mean.unsqueeze(-1)) ** 2)
    gradient = at.gradient(c)
    size = gradient.square().sum((-2, -1))
    nothing = torch.zeros_like(mean)
    exact, exact_gradient = _target(get_divergence(target), at)
    if baseline is None:
        single = (at.mean(at.square(c)) - size).clamp(min=0.0)
        return Draws(
            mean, variance, gradient, single, nothing, nothing, None, exact, exact_gradient
        ).checked()
    expected, once, pair = _pairs(at, x, rho)
    return Draws(mean, variance, expected, nothing, once, pair, baseline, exact, exact_gradient).checked()


def _sequence_ratio(at: World) -> torch.Tensor:
    """pi/mu of whole sequences, 0 for those that are never sampled; [..., count]."""
    policy = at.logp.sum(-1).exp()
    lost = (policy * (at.probability == 0)).sum(-1).max().item()
    if lost > 0:
        raise ValueError(
            f"the behavior policy never samples sequences of probability {lost:.3g} under the policy, "
            "expected mass wherever the policy has some: no weight makes up for what is never sampled"
        )
    return (policy / at.probability).where(at.probability > 0, 0.0)


def _pairs(at: World, x: torch.Tensor, ones: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Leave-one-out as a U-statistic of order two: expected kernel, and two variances of the kernel.

    The kernel is h = ((x1 - x2) T1 + (x2 - x1) T2) / 2 with T the (weighted) score of a sequence; the
    variances are those of its expectation given one draw, and of itself.
    """
    # only differences of costs count: centered ones keep the digits, and lose the terms in E[x]
    x = x - at.mean(x).unsqueeze(-1)
    score, cost, cost2 = (at.gradient(ones * x.unsqueeze(-1) ** k) for k in (0, 1, 2))
    square = at.square(ones)
    s0, s2, m2 = at.mean(square), at.mean(square * x**2), at.mean(x**2)

    def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sum((-2, -1))

    size, cross = dot(cost, cost), dot(cost2, score)
    once = (s2 + 3 * size - 2 * cross + m2 * dot(score, score)) / 4
    pair = (s2 + m2 * s0) / 2 + size - cross
    return cost, (once - size).clamp(min=0.0), (pair - size).clamp(min=0.0)


def exact_moments(
    estimator: EstimatorLike,
    problem: Problem,
    n: int = 1,
    *,
    placement: SinglePlacement = "loss",
    baseline: Baseline | None = None,
    weighted: bool = False,
    target: str | Divergence | None = None,
) -> Moments:
    """Bias and variance of value and gradient of an estimator, by enumeration.

    Args:
        estimator: A sampled estimator (a registered name or an `Estimator`), applied to the log-probs of
            whole sequences; or a function of a `Rollout` that returns one term per sequence, [batch],
            and sees the policy through ``logp`` only (see `kl_companion.losses.kl_terms`).
        problem: A world, or a stack of worlds.
        n: Independent draws averaged.
        placement: ``"loss"`` differentiates the terms; ``"reward"`` multiplies their detached value by the
            score of the sequence.
        baseline: Subtract from each cost the ``"mean"`` of the n costs, or the mean of the others
            (``"leave_one_out"``); in the reward only. Exact over pairs of draws.
        weighted: Multiply the score by pi/mu of the sequence; in the reward only.
        target: The divergence, of whole sequences, that bias is measured against; the estimator's own
            target by default, reverse KL for a function.

    Returns:
        `Moments`: numbers for one world, tensors [worlds] for a stack.

    Raises:
        ValueError: unknown name or choice, an estimator of whole distributions, terms of another shape, n
            below 1 (below 2 with a baseline), choices that do not go together, or a behavior policy without
            mass where the policy has some while terms are weighted, or moments beyond float64.

    Source: tang2025pitfalls, section 3 and appendix C.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    moments = draw_statistics(
        estimator, problem, placement=placement, baseline=baseline, weighted=weighted, target=target
    ).at(n)
    if problem.logits.ndim > 2:
        return moments
    numbers = {k: x.item() for k, x in moments._asdict().items() if k != "gradient"}
    return Moments(gradient=moments.gradient, **numbers)


def exact_field(
    estimator: EstimatorLike,
    problem: Problem,
    *,
    logits: torch.Tensor | None = None,
    placement: SinglePlacement = "loss",
) -> torch.Tensor:
    """Expected gradient of one draw, [..., rows, vocab], at ``logits`` or at the problem's own policy.

    The same numbers as `expected_gradient`, without a call per sequence; arguments as `exact_moments`.
    """
    at = world(problem, logits)
    c = coefficients(estimator, at, placement)[1]
    return refuse_nan("the expected gradient", at.gradient(c), coefficient=c)


def exact_covariance(
    estimator: EstimatorLike, problem: Problem, *, placement: SinglePlacement = "loss"
) -> torch.Tensor:
    """Covariance matrix of the gradient of one draw, [..., rows * vocab, rows * vocab]; see `exact_moments`.

    u' C u is the variance in the direction u (wang2025choosing, section 6.3).
    """
    at = world(problem)
    flat = sample_gradients(at, coefficients(estimator, at, placement)[1]).flatten(-2)
    mean = (at.probability.unsqueeze(-1) * flat).sum(-2, keepdim=True)
    apart = flat - mean
    covariance = apart.mT @ (at.probability.unsqueeze(-1) * apart)
    return refuse_nan("the covariance", covariance, gradient=flat)
