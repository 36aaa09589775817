"""Worlds small enough to enumerate: bandits and trees of prefixes, with exact expectations.

Every prefix has its own row of logits, so the policy is a table. Because all sequences are listed,
the expected value and the expected gradient of any loss are sums, not averages of samples. All of it
is float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.estimators.registry import get_estimator
from kl_companion.rollout import Rollout

Loss = Callable[[Rollout], torch.Tensor]
MAX_EVALUATIONS = 100_000


class Problem(NamedTuple):
    """An enumerated world.

    Attributes:
        logits: Policy, [rows, vocab] float64; one row per prefix.
        ref_logits: Reference, [rows, vocab].
        behavior_logits: Sampling policy, [rows, vocab]; None means on-policy.
        sequences: Every sequence, [count, length] int64, padded with 0 after end-of-sequence.
        completion_mask: [count, length].
        rows: The prefix row that scores each token, [count, length] int64.
        rewards: [count].
    """

    logits: torch.Tensor
    ref_logits: torch.Tensor
    behavior_logits: torch.Tensor | None
    sequences: torch.Tensor
    completion_mask: torch.Tensor
    rows: torch.Tensor
    rewards: torch.Tensor

    def rollout(self, logits: torch.Tensor, which: torch.Tensor | None = None) -> Rollout:
        """The sequences ``which`` (all by default) as a batch, scored by the policy ``logits``."""
        which = torch.arange(len(self.sequences)) if which is None else which
        rows = self.rows[which]
        behavior = logits.detach() if self.behavior_logits is None else self.behavior_logits
        return Rollout.from_logits(
            self.sequences[which],
            self.completion_mask[which],
            logits[rows],
            self.ref_logits[rows],
            behavior_logits=behavior[rows],
            rewards=self.rewards[which],
        )

    def probabilities(self, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Probability that each sequence is *sampled*, [count], detached."""
        full = self.rollout(self.logits if logits is None else logits)
        return (full.sampled_from * self.completion_mask).sum(-1).exp()


def bandit(vocab: int = 100, *, seed: int = 0, scale: float = 1.0, off_policy: bool = False) -> Problem:
    """One token. Logits of the reference are unit Gaussian; the policy adds ``scale`` times another.

    Rewards are unit Gaussian; off-policy, the sampling policy adds a third Gaussian to the policy.

    Raises:
        ValueError: fewer than two tokens, or a negative scale.

    Source: tang2025pitfalls, appendix C.
    """
    if vocab < 2:
        raise ValueError(f"vocab is {vocab}, expected at least 2")
    if not scale >= 0:
        raise ValueError(f"scale is {scale}, expected 0 or more")
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(vocab, generator=generator, dtype=torch.float64)

    reference, shift, rewards, other = normal(), normal(), normal(), normal()
    policy = (reference + scale * shift).unsqueeze(0)
    return Problem(
        policy,
        reference.unsqueeze(0),
        policy + scale * other if off_policy else None,
        torch.arange(vocab).unsqueeze(-1),
        torch.ones(vocab, 1, dtype=torch.float64),
        torch.zeros(vocab, 1, dtype=torch.long),
        rewards,
    )


def prefix_tree(
    vocab: int = 3,
    length: int = 2,
    *,
    seed: int = 0,
    eos: bool = False,
    off_policy: bool = False,
    scale: float = 1.0,
) -> Problem:
    """All sequences of up to ``length`` tokens; with ``eos``, token 0 ends a sequence early.

    Logits differ between policy and reference by ``scale`` times numbers in [-1, 1], so that no
    log-ratio of a token is larger than ``2 * scale``. Off-policy, the sampling policy differs from the policy
    by half of that.

    Raises:
        ValueError: fewer than two tokens, a length below 1, a negative scale, or more sequences than
            can be enumerated.
    """
    if vocab < 2 or length < 1 or not scale >= 0:
        raise ValueError(
            f"vocab={vocab}, length={length}, scale={scale}: expected vocab of at least 2, "
            "length of at least 1, scale of 0 or more"
        )
    if vocab**length > MAX_EVALUATIONS:
        raise ValueError(f"{vocab}^{length} sequences, expected at most {MAX_EVALUATIONS} to enumerate")
    prefixes = [
        p for n in range(length) for p in itertools.product(range(vocab), repeat=n) if not (eos and 0 in p)
    ]
    row_of = {p: i for i, p in enumerate(prefixes)}
    ends = [_cut(s) if eos else s for s in itertools.product(range(vocab), repeat=length)]
    sequences = sorted(set(ends))
    tokens = torch.zeros(len(sequences), length, dtype=torch.long)
    rows, mask = torch.zeros_like(tokens), torch.zeros(len(sequences), length, dtype=torch.float64)
    for i, s in enumerate(sequences):
        for t, token in enumerate(s):
            tokens[i, t], rows[i, t], mask[i, t] = token, row_of[s[:t]], 1.0
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return 2 * torch.rand(len(prefixes), vocab, generator=generator, dtype=torch.float64) - 1

    reference = torch.randn(len(prefixes), vocab, generator=generator, dtype=torch.float64)
    policy = reference + scale * uniform()
    behavior = policy + scale / 2 * uniform()
    rewards = torch.randn(len(sequences), generator=generator, dtype=torch.float64)
    return Problem(policy, reference, behavior if off_policy else None, tokens, mask, rows, rewards)


def _cut(sequence: tuple[int, ...]) -> tuple[int, ...]:
    return sequence[: sequence.index(0) + 1] if 0 in sequence else sequence


class Expectation(NamedTuple):
    """Exact expectations of a loss.

    Attributes:
        value: Expected loss.
        magnitude: Expected absolute loss.
        gradient: Expected gradient with respect to the policy's logits, [rows, vocab].
    """

    value: float
    magnitude: float
    gradient: torch.Tensor


def _checked(loss_fn: Loss, rollout: Rollout) -> torch.Tensor:
    loss = loss_fn(rollout)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        got = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"the loss returned {got}, expected a scalar tensor")
    if loss.isnan():
        raise ValueError("the loss is NaN on an enumerated batch, expected a number")
    return loss.reshape(())


def _enumerate(
    loss_fn: Loss, problem: Problem, logits: torch.Tensor, group_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probability and loss of every group of sequences that can be sampled, [groups] each."""
    count = len(problem.sequences)
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}, expected at least 1")
    if count**group_size > MAX_EVALUATIONS:
        raise ValueError(
            f"{count} sequences in groups of {group_size} are {count**group_size} evaluations, "
            f"expected at most {MAX_EVALUATIONS}: take a smaller problem or group"
        )
    probability = problem.probabilities(logits)
    weights, losses = [], []
    for group in itertools.product(range(count), repeat=group_size):
        which = torch.tensor(group)
        weight = probability[which].prod()
        if weight > 0:
            weights.append(weight)
            losses.append(_checked(loss_fn, problem.rollout(logits, which)))
    return torch.stack(weights), torch.stack(losses)


def expectation(
    loss_fn: Loss, problem: Problem, *, logits: torch.Tensor | None = None, group_size: int = 1
) -> Expectation:
    """Expected value, magnitude and gradient of a loss, in one enumeration.

    The probabilities are weights without gradient: the gradient is what back-propagating sampled
    losses gives on average.

    Args:
        loss_fn: A function of a `Rollout` of ``group_size`` sequences that returns a scalar.
        problem: The world.
        logits: The policy, [rows, vocab]; the problem's own by default.
        group_size: Sequences per batch; more than one for losses that couple a group.

    Raises:
        ValueError: not a scalar, NaN, no gradient, or more than 1e5 evaluations.
    """
    theta = (problem.logits if logits is None else logits).detach().clone().requires_grad_()
    weights, losses = _enumerate(loss_fn, problem, theta, group_size)
    total = (weights * losses).sum()
    if not total.requires_grad:
        raise ValueError(
            "the loss has no gradient with respect to the policy, expected a function of logp that is "
            "not detached"
        )
    (gradient,) = torch.autograd.grad(total, theta, allow_unused=True)
    magnitude = (weights * losses.detach().abs()).sum().item()
    return Expectation(total.item(), magnitude, torch.zeros_like(theta) if gradient is None else gradient)


def expected_value(
    loss_fn: Loss, problem: Problem, *, logits: torch.Tensor | None = None, group_size: int = 1
) -> float:
    """E[loss] over groups of independently sampled sequences; arguments and errors as `expectation`.

    A loss without gradient is welcome here.
    """
    with torch.no_grad():
        theta = problem.logits if logits is None else logits
        weights, losses = _enumerate(loss_fn, problem, theta, group_size)
        return (weights * losses).sum().item()


def expected_gradient(
    loss_fn: Loss, problem: Problem, *, logits: torch.Tensor | None = None, group_size: int = 1
) -> torch.Tensor:
    """E[gradient of the loss], [rows, vocab]; arguments and errors as `expectation`."""
    return expectation(loss_fn, problem, logits=logits, group_size=group_size).gradient


class Moments(NamedTuple):
    """Exact moments of the mean of n independent estimates.

    Attributes:
        value: Expected value.
        value_variance: Variance of the value.
        gradient: Expected gradient, [rows, vocab].
        gradient_variance: Trace of the covariance of the gradient.
    """

    value: float
    value_variance: float
    gradient: torch.Tensor
    gradient_variance: float


def exact_moments(estimator: str, problem: Problem, n: int = 1, *, placement: str = "loss") -> Moments:
    """Mean and variance of value and gradient of an estimator of whole sequences, by enumeration.

    Args:
        estimator: Name of a sampled estimator, applied to the log-probs of whole sequences.
        problem: An on-policy world.
        n: Independent samples averaged; variances are those of one sample divided by n.
        placement: ``"loss"`` differentiates the estimate; ``"reward"`` multiplies its detached value by
            the score.

    Raises:
        ValueError: unknown name, an estimator of whole distributions, an off-policy problem, n below 1.
    """
    entry = get_estimator(estimator)
    if (
        entry.inputs != "sampled"
        or problem.behavior_logits is not None
        or n < 1
        or placement not in ("loss", "reward")
    ):
        raise ValueError(
            f"got {entry.name!r} ({entry.inputs}), off_policy={problem.behavior_logits is not None}, n={n}, "
            f"placement={placement!r}: expected a sampled estimator, an on-policy problem, n of at least 1, "
            "placement 'loss' or 'reward'"
        )
    theta = problem.logits.detach().clone().requires_grad_()
    full = problem.rollout(theta)
    logp = (full.logp * full.completion_mask).sum(-1)
    ref_logp = (full.ref_logp * full.completion_mask).sum(-1)
    x = entry.fn(logp, ref_logp)
    values = x.detach()
    surrogate = x if placement == "loss" else values * logp
    rows = [torch.autograd.grad(s, theta, retain_graph=True)[0] for s in surrogate]
    gradients = torch.stack(rows)
    p = problem.probabilities()
    mean, mean_gradient = (p * values).sum(), (p[:, None, None] * gradients).sum(0)
    variance = (p * (values - mean) ** 2).sum()
    spread = (p * ((gradients - mean_gradient) ** 2).sum((-1, -2))).sum()
    return Moments(mean.item(), variance.item() / n, mean_gradient, spread.item() / n)


def descend(
    loss_fn: Loss, problem: Problem, *, steps: int, lr: float, group_size: int = 1
) -> list[torch.Tensor]:
    """Follow the exact expected gradient; the policy's logits before, and after each step.

    Raises:
        ValueError: steps below 1, a step size that is not positive, or logits that stop being finite.
    """
    if steps < 1 or not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"steps={steps}, lr={lr}: expected at least one step and a positive step size")
    path = [problem.logits.detach().clone()]
    for step in range(steps):
        following = path[-1] - lr * expected_gradient(
            loss_fn, problem, logits=path[-1], group_size=group_size
        )
        if not following.isfinite().all():
            raise ValueError(f"the policy's logits are not finite after step {step + 1}: lower lr={lr}")
        path.append(following)
    return path
