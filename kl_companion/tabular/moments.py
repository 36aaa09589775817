"""Exact moments of estimators: bias, covariance and mean squared error, with no sample drawn.

A loss that sees the policy only through the log-probs of sampled tokens has, for each sequence, the
gradient sum_t c_t s_t: a coefficient c_t = d loss / d logp_t times the score s_t of the token. The rows
of different prefixes are different parameters, so the scores of one sequence are orthogonal and every
moment is a sum over sequences and tokens: no gradient is ever formed per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from kl_companion.checks import check_choice
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.estimators.vocabulary import f_divergence
from kl_companion.rollout import Rollout
from kl_companion.tabular.worlds import NEVER, Problem

Placement = Literal["loss", "reward"]
Baseline = Literal["mean", "leave_one_out"]
Terms = Callable[[Rollout], torch.Tensor]
EstimatorLike = str | Estimator | Terms
PLACEMENTS: tuple[Placement, ...] = ("loss", "reward")
BASELINES: tuple[Baseline, ...] = ("mean", "leave_one_out")


class Moments(NamedTuple):
    """Exact moments of the mean of n estimates; [worlds] in front for a stack, [sizes] behind for several n.

    Attributes:
        value: Expected value.
        value_bias: Expected value minus the target divergence.
        value_variance: Variance of the value.
        gradient: Expected gradient, [rows, vocab].
        gradient_bias: Norm of the expected gradient minus that of the target divergence.
        gradient_variance: Trace of the covariance of the gradient.
    """

    value: float | torch.Tensor
    value_bias: float | torch.Tensor
    value_variance: float | torch.Tensor
    gradient: torch.Tensor
    gradient_bias: float | torch.Tensor
    gradient_variance: float | torch.Tensor

    @property
    def value_mse(self) -> float | torch.Tensor:
        """E (estimate - target)^2."""
        return self.value_bias**2 + self.value_variance

    @property
    def gradient_mse(self) -> float | torch.Tensor:
        """E |estimate - gradient of the target|^2, summed over parameters."""
        return self.gradient_bias**2 + self.gradient_variance

    @property
    def gradient_rmse(self) -> float | torch.Tensor:
        """Root of `gradient_mse` (tang2025pitfalls, appendix C)."""
        return self.gradient_mse**0.5


class Draws(NamedTuple):
    """What one draw, and a pair of draws, say about any number of them; [worlds] in front for a stack.

    Attributes:
        value, value_variance: Of one draw.
        gradient: Expected gradient of one draw, [rows, vocab]; with a baseline, of the leave-one-out form.
        single: Variance (trace) of the gradient of one draw; without a baseline.
        single_of_pair, pair: Variance of E[h(1, 2) | 1] and of h(1, 2), the symmetric kernel that pairs
            of draws are averaged with; with a baseline.
        baseline: None, ``"mean"`` or ``"leave_one_out"``.
        target_value, target_gradient: Of the divergence that bias is measured against.
    """

    value: torch.Tensor
    value_variance: torch.Tensor
    gradient: torch.Tensor
    single: torch.Tensor
    single_of_pair: torch.Tensor
    pair: torch.Tensor
    baseline: Baseline | None
    target_value: torch.Tensor
    target_gradient: torch.Tensor

    def at(self, n: int | torch.Tensor) -> Moments:
        """Moments of the mean of n draws.

        Args:
            n: A number, or several, [sizes], which become the last axis of every moment (the first
                behind the worlds of ``gradient``).

        Raises:
            ValueError: n below 1, or below 2 with a baseline.
        """
        size = torch.as_tensor(n, dtype=torch.float64)
        least = 1 if self.baseline is None else 2
        if size.min() < least:
            raise ValueError(f"n is {n}, expected at least {least} with baseline={self.baseline!r}")

        def spread(x: torch.Tensor) -> torch.Tensor:
            return x.unsqueeze(-1) if size.ndim else x

        # the batch mean is (1 - 1/n) times leave-one-out, sample by sample
        factor = 1 - 1 / size if self.baseline == "mean" else torch.ones_like(size)
        if self.baseline is None:
            variance = spread(self.single) / size
        else:  # Hoeffding's variance of a U-statistic of order two
            pairs = 4 * (size - 2) * spread(self.single_of_pair) + 2 * spread(self.pair)
            variance = factor**2 * pairs / (size * (size - 1))
        gradient, target = self.gradient, self.target_gradient
        if self.baseline == "mean" and size.ndim:
            gradient, target = factor[:, None, None] * gradient.unsqueeze(-3), target.unsqueeze(-3)
        elif self.baseline == "mean":
            gradient = factor * gradient
        bias = (gradient - target).norm(dim=(-2, -1))
        if size.ndim and self.baseline != "mean":  # the same for every size
            gradient = gradient.unsqueeze(-3).expand(*bias.shape, len(size), *gradient.shape[-2:])
            bias = bias.unsqueeze(-1)
        return Moments(
            spread(self.value).expand(variance.shape),
            spread(self.value - self.target_value).expand(variance.shape),
            spread(self.value_variance) / size,
            gradient,
            bias.expand(variance.shape),
            variance,
        )


class World(NamedTuple):
    """An enumerated problem ready for moments: [..., count] and [..., count, length] tensors."""

    problem: Problem
    probability: torch.Tensor  # of being sampled, [..., count]
    logp: torch.Tensor  # of every token under the policy, [..., count, length]
    policy: torch.Tensor  # [..., rows, vocab]
    norm: torch.Tensor  # squared norm of the score of every token, [..., count, length]

    def gradient(self, coefficient: torch.Tensor, probability: torch.Tensor | None = None) -> torch.Tensor:
        """E[sum_t c_t s_t] for coefficients [..., count, length]; [..., rows, vocab]."""
        p = self.probability if probability is None else probability
        weight = (p.unsqueeze(-1) * coefficient * self.problem.completion_mask).flatten(-2)
        rows, vocab = self.policy.shape[-2:]
        index = (self.problem.rows * vocab + self.problem.sequences).flatten()
        chosen = weight.new_zeros(*weight.shape[:-1], rows * vocab).index_add(-1, index, weight)
        chosen = chosen.unflatten(-1, (rows, vocab))
        return chosen - chosen.sum(-1, keepdim=True) * self.policy

    def square(self, coefficient: torch.Tensor) -> torch.Tensor:
        """|sum_t c_t s_t|^2 of every sequence, [..., count]."""
        return (coefficient**2 * self.norm).sum(-1)

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        """E[x] of [..., count] values."""
        return (self.probability * x).sum(-1)


def world(problem: Problem, logits: torch.Tensor | None = None) -> World:
    """Probabilities and scores of every sequence of a problem, at ``logits`` or at its own policy."""
    theta = (problem.logits if logits is None else logits).detach()
    logp, policy = problem.token_logp(theta), theta.softmax(-1)
    collision = policy.square().sum(-1)[..., problem.rows]
    norm = (1 - 2 * logp.exp() + collision) * problem.completion_mask
    return World(problem, problem.probabilities(theta), logp, policy, norm)


def coefficients(
    estimator: EstimatorLike, at: World, placement: Placement
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value of every sequence, [..., count], and d loss / d logp of its tokens, [..., count, length]."""
    check_choice("placement", placement, PLACEMENTS)
    leaf = at.logp.clone().requires_grad_()
    ref_logp = at.problem.token_logp(at.problem.ref_logits)
    if isinstance(estimator, str | Estimator):
        entry = get_estimator(estimator)
        if entry.inputs != "sampled":
            raise ValueError(
                f"got {entry.name!r}, which reads next-token distributions, expected a sampled estimator"
            )
        x = entry.fn(leaf.sum(-1), ref_logp.sum(-1))
    else:
        x = _terms(estimator, at, leaf, ref_logp)
    possible = at.probability > 0
    values = x.detach().where(possible, 0.0)
    if placement == "reward":
        return values, values.unsqueeze(-1) * at.problem.completion_mask
    (c,) = torch.autograd.grad(x.sum(), leaf)
    return values, c.where(possible.unsqueeze(-1), 0.0)


def _terms(terms: Terms, at: World, leaf: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """One term per sequence of a rollout that holds every sequence once; it has no logits."""
    p = at.problem
    length, copies = leaf.shape[-1], leaf.numel() // max(p.sequences.numel(), 1)
    behavior = at.logp if p.behavior_logits is None else p.token_logp(p.behavior_logits).clamp(min=NEVER)
    rollout = Rollout(
        p.sequences.repeat(copies, 1),
        p.completion_mask.repeat(copies, 1),
        leaf.reshape(-1, length),
        ref_logp.reshape(-1, length),
        behavior.reshape(-1, length),
        p.rewards.flatten(),
    )
    x = terms(rollout)
    if not isinstance(x, torch.Tensor) or x.shape != rollout.logp.shape[:1]:
        got = f"shape {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(
            f"the estimator returned {got}, expected one term per sequence [{len(rollout.logp)}]"
        )
    if not x.requires_grad:
        x = x + 0 * leaf.reshape(-1, length).sum(-1)
    return x.reshape(leaf.shape[:-1])


def _target(target: Divergence, at: World) -> tuple[torch.Tensor, torch.Tensor]:
    """The divergence of whole sequences from policy to reference and its gradient, exact."""
    problem, ref_logp = at.problem, at.problem.token_logp(at.problem.ref_logits).sum(-1)
    if target.name == "reverse_kl":  # the common one in closed form, E[k1] and E[k1 s]: no graph is built
        policy, k1 = at.logp.sum(-1).exp(), at.logp.sum(-1) - ref_logp
        return (policy * k1).sum(-1), at.gradient(k1.unsqueeze(-1).expand_as(at.logp), policy)
    theta = problem.logits.detach().clone().requires_grad_()
    exact = f_divergence(target, problem.token_logp(theta).sum(-1), ref_logp)
    (gradient,) = torch.autograd.grad(exact.sum(), theta)
    return exact.detach(), gradient


def draw_statistics(
    estimator: EstimatorLike,
    problem: Problem,
    *,
    placement: Placement = "loss",
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
    against = target or (get_estimator(estimator).target if named else "reverse_kl")  # type: ignore[arg-type]
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
    exact, exact_gradient = _target(get_divergence(against), at)
    if baseline is None:
        single = (at.mean(at.square(c)) - size).clamp(min=0.0)
        return Draws(mean, variance, gradient, single, nothing, nothing, None, exact, exact_gradient)
    expected, once, pair = _pairs(at, x, rho)
    return Draws(mean, variance, expected, nothing, once, pair, baseline, exact, exact_gradient)


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
    column = x.unsqueeze(-1)

    def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sum((-2, -1))

    score, cost, cost2 = (at.gradient(ones * column**k) for k in (0, 1, 2))
    square = at.square(ones)
    s0, s1, s2 = (at.mean(square * x**k) for k in (0, 1, 2))
    m1, m2 = at.mean(x), at.mean(x**2)
    grid = m1[..., None, None]
    kernel = cost - grid * score
    once = (s2 - 2 * m1 * s1 + m1**2 * s0) + 2 * (dot(kernel, cost) - dot(cost2 - grid * cost, score))
    once = (once + dot(cost, cost) - 2 * m1 * dot(cost, score) + m2 * dot(score, score)) / 4
    pair = (s2 - 2 * m1 * s1 + m2 * s0) / 2 + dot(cost, cost) - dot(cost2, score)
    size = dot(kernel, kernel)
    return kernel, (once - size).clamp(min=0.0), (pair - size).clamp(min=0.0)


def exact_moments(
    estimator: EstimatorLike,
    problem: Problem,
    n: int = 1,
    *,
    placement: Placement = "loss",
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
            mass where the policy has some while terms are weighted.

    Source: tang2025pitfalls, section 3 and appendix C.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    moments = draw_statistics(
        estimator, problem, placement=placement, baseline=baseline, weighted=weighted, target=target
    ).at(n)
    if problem.logits.ndim > 2:
        return moments
    return moments._replace(
        **{k: x.item() for k, x in moments._asdict().items() if isinstance(x, torch.Tensor) and x.ndim == 0}
    )


def exact_field(
    estimator: EstimatorLike,
    problem: Problem,
    *,
    logits: torch.Tensor | None = None,
    placement: Placement = "loss",
) -> torch.Tensor:
    """Expected gradient of one draw, [..., rows, vocab], at ``logits`` or at the problem's own policy.

    The same numbers as `expected_gradient`, without a call per sequence; arguments as `exact_moments`.
    """
    at = world(problem, logits)
    return at.gradient(coefficients(estimator, at, placement)[1])


def sample_gradients(at: World, coefficient: torch.Tensor) -> torch.Tensor:
    """sum_t c_t s_t of every sequence, [..., count, rows, vocab], from coefficients [..., count, length]."""
    c = coefficient * at.problem.completion_mask
    rows, vocab = at.policy.shape[-2:]
    index = (at.problem.rows * vocab + at.problem.sequences).expand_as(c)
    chosen = c.new_zeros(*c.shape[:-1], rows * vocab).scatter_add(-1, index, c).unflatten(-1, (rows, vocab))
    return chosen - chosen.sum(-1, keepdim=True) * at.policy.unsqueeze(-3)


def exact_covariance(
    estimator: EstimatorLike, problem: Problem, *, placement: Placement = "loss"
) -> torch.Tensor:
    """Covariance matrix of the gradient of one draw, [..., rows * vocab, rows * vocab]; see `exact_moments`.

    u' C u is the variance in the direction u (wang2025choosing, section 6.3).
    """
    at = world(problem)
    flat = sample_gradients(at, coefficients(estimator, at, placement)[1]).flatten(-2)
    mean = (at.probability.unsqueeze(-1) * flat).sum(-2, keepdim=True)
    apart = flat - mean
    return apart.mT @ (at.probability.unsqueeze(-1) * apart)
