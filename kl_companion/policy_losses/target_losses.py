"""Policy-gradient losses as KL estimators: the reference is replaced by the policy that is wanted.

KL-regularized reward is largest at target(y) = ref(y) exp(R(y) / beta) / Z. A sampled estimator that is
given log target in place of ``ref_logp`` is therefore a loss with rewards in it. Nothing is typed again:
`target_loss` calls the registered estimators.

Whole sequences are the actions, l = log pi(y) - log ref(y), and rewards are divided by beta. So a gradient
of `target_loss` is that of KL(policy || target) = KL(policy || ref) - E[R] / beta + log Z, or of another
divergence from the target; times beta it has the scale of E[R] - beta KL. Only log Z is unknown, and how
a group of samples stands in for it (`log_partition`) decides what is descended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch

from kl_companion.checks import check_choice, refuse_nan
from kl_companion.divergences import Divergence, T, W, get_divergence, make_divergence
from kl_companion.estimators.registry import Estimator, sampled_estimator
from kl_companion.estimators.sampled import Form, kf_plus_plus
from kl_companion.host_reads import any_wrong, reads_once
from kl_companion.policy_losses.clip_mask import ppo_mask
from kl_companion.policy_losses.partition import Partition, log_partition, scaled_rewards, total
from kl_companion.rollout import Centering, Rollout, center, importance_ratio, per_token
from kl_companion.rollout.centering import numbered, sizes

Direction = Literal["policy_target", "target_policy"]
Weight = Literal["sequence"]
SequenceEstimator = str | Estimator | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DIRECTIONS: tuple[Direction, ...] = ("policy_target", "target_policy")


def _sampled(estimator: SequenceEstimator) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return sampled_estimator(estimator, why="the target is known for whole sequences only").fn


def _weighted_mean(
    x: torch.Tensor, rollout: Rollout, importance: Weight | None, mask: tuple[float, float] | None
) -> torch.Tensor:
    """Mean of [batch], each times sg(pi / mu) of its sequence and times the mask, where they are wanted."""
    if importance is not None:
        check_choice("importance", importance, ("sequence",))
    if importance is None and mask is None:
        return refuse_nan("the loss", x.mean(), term=x)
    rho = importance_ratio(rollout, scope="sequence")[:, 0].detach()
    if mask is not None:
        if not isinstance(mask, (tuple, list)) or len(mask) != 2:
            raise ValueError(f"mask is {mask}, expected (eps_low, eps_high)")
        # the sign is that of the rewards, so beta is of no account
        advantages = center(scaled_rewards(rollout, 1.0), rollout.group_index, "mean")
        x = x * ppo_mask(advantages, rho, *mask)
    return refuse_nan("the loss", (x if importance is None else x * rho).mean(), term=x)


@reads_once
def target_loss(
    rollout: Rollout,
    estimator: SequenceEstimator = "k4",
    *,
    beta: float = 1.0,
    partition: Partition = "importance",
    importance: Weight | None = None,
    mask: tuple[float, float] | None = None,
) -> torch.Tensor:
    """A sampled KL estimator between policy and target, as a loss with rewards in it; a scalar.

    Args:
        rollout: The samples, with rewards.
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``; it is given the
            log-probs of whole sequences, and those of the target as ``ref_logp``.
        beta: Divides the rewards; the loss is not multiplied by it.
        partition: What stands for log Z, see `log_partition`.
        importance: ``"sequence"`` multiplies each term by sg(pi / mu) of its sequence.
        mask: (eps_low, eps_high) of `ppo_mask`, with rewards minus their mean in the group as advantages and
            the ratio of the sequence; with or without ``importance``.

    Returns:
        The mean over sequences.

    Raises:
        ValueError: unknown names, an estimator of next-token distributions, errors of `log_partition`,
            `ppo_mask` and `importance_ratio`.

    Source: emapg2026, appendix J.
    """
    fn = _sampled(estimator)
    logp, ref_logp = total(rollout.logp, rollout), total(rollout.ref_logp, rollout).detach()
    target_logp = ref_logp + scaled_rewards(rollout, beta) - log_partition(rollout, partition, beta=beta)
    return _weighted_mean(fn(logp, target_logp), rollout, importance, mask)


def apa_loss(rollout: Rollout, *, beta: float = 1.0, partition: Partition = "value") -> torch.Tensor:
    """(l - (R - V) / beta)^2 / 2, the mean over sequences, with V the mean reward of the group; a scalar.

    It is `target_loss` with K2, half included. Papers that print (beta l - (R - V))^2 mean 2 beta^2 times
    this number. The group's value stands for log Z, so that in expectation over groups of N the gradient is
    grad KL - (1 - 1/N) grad E[R] / beta.

    Raises:
        ValueError: as `target_loss`.

    Source: emapg2026, eq (148).
    """
    return target_loss(rollout, "k2", beta=beta, partition=partition)


@reads_once
def rwr_loss(rollout: Rollout, *, beta: float = 1.0) -> torch.Tensor:
    """- sum over the group of sg(softmax(R / beta - m)) log pi(y), the mean over prompts; a scalar.

    m = log mu(y) - log ref(y) with mu the policy that sampled. The weights of a group sum to one, those of
    K5 to its size N: this sum is the mean of N times softmax. Groups being equally large, its gradient
    is that of ``target_loss(rollout, "k5", partition="importance")`` minus the mean score of the batch, the
    baseline that K5's log r adds and whose expectation is zero. Off-policy it is that of K5 with
    ``importance="sequence"``, minus the mean of pi / mu times the score: no further weight is wanted.

    Raises:
        ValueError: no rewards or rewards that are not finite, or a beta that is not positive.

    Source: emapg2026, eq (149).
    """
    rewards = scaled_rewards(rollout, beta)
    log_ratio = total(rollout.sampled_from - rollout.ref_logp.detach(), rollout)
    group = numbered(rollout.group_index)
    # log softmax = x - log mean exp - log N
    log_size = sizes(group).to(rewards.dtype).log()
    log_weight = rewards - log_ratio - log_partition(rollout, "importance", beta=beta) - log_size
    loss = -(log_weight.exp() * total(rollout.logp, rollout)).sum()
    return refuse_nan("the loss", loss / (group.max() + 1), **{"the log of a weight": log_weight})


@reads_once
def reinforce_loss(
    rollout: Rollout,
    *,
    beta: float = 1.0,
    penalty: str | Estimator | Callable[..., torch.Tensor] = "k1",
    centering: Centering = "mean",
    importance: Weight | None = None,
    mask: tuple[float, float] | None = None,
) -> torch.Tensor:
    """REINFORCE with the KL inside the reward: -sg(center(R - beta penalty)) log pi, a mean; a scalar.

    What PPO and GRPO do when the penalty is subtracted from the reward. The scale is that of rewards: beta
    times the gradient of `target_loss`.

    Args:
        rollout: The samples, with rewards.
        beta: Coefficient of the penalty.
        penalty: The estimate whose detached *value* is charged, summed over the tokens of a sequence; K1 for
            a gradient of the reverse KL.
        centering: Baseline of the group, see `center`. ``"mean"`` counts the sequence itself, which
            multiplies the expected gradient by 1 - 1/N.
        importance: As in `target_loss`.
        mask: As in `target_loss`; its advantages are those of the rewards without the penalty.

    Raises:
        ValueError: as `target_loss` and `center`.

    Source: emapg2026, eq (147); tang2025pitfalls, section 4.2.
    """
    rewards = scaled_rewards(rollout, beta) * beta
    _sampled(penalty)
    cost = total(per_token(penalty, rollout).detach(), rollout)
    if any_wrong(~(charged := rewards - beta * cost).isfinite()):
        where = int((~charged.isfinite()).nonzero()[0])
        raise ValueError(
            f"the reward of sequence {where} minus its penalty, {beta} times {cost[where].item():g}, is "
            f"beyond {charged.dtype}, expected a policy nearer to the reference, or a smaller beta"
        )
    advantages = center(charged, rollout.group_index, centering)
    return _weighted_mean(-advantages * total(rollout.logp, rollout), rollout, importance, mask)


@cache
def _exchanged(divergence: Divergence) -> Divergence:
    """The divergence whose arguments are exchanged: D_g(P || Q) = D_f(Q || P), g(t) = t f(1/t)."""
    given = divergence.as_given
    slope = None if divergence.smooth else given.psi.subs(W, 1 / T)
    return make_divergence(
        f"{divergence.name}, exchanged", given.dual, source=divergence.source, derivative=slope
    )


def f_policy_loss(
    rollout: Rollout,
    divergence: str | Divergence,
    direction: Direction = "policy_target",
    *,
    beta: float = 1.0,
    partition: Partition = "importance",
    form: Form = "bregman",
    importance: Weight | None = None,
    mask: tuple[float, float] | None = None,
) -> torch.Tensor:
    """`target_loss` for any f, with w = target / policy; a scalar.

    Args:
        rollout: The samples, with rewards.
        divergence: A registered name or a `Divergence`.
        direction: ``"policy_target"`` is D_f(policy || target), gradient weight phi_f(w) = f'(1/w);
            ``"target_policy"`` is D_f(target || policy), weight psi_f(w) = f(w) - w f'(w). Both are 0 at
            w = 1 (``form="generic"`` leaves the weight of f as it was registered).
        beta: As in `target_loss`.
        partition: As in `target_loss`.
        form: As in `kf_plus_plus`.
        importance: As in `target_loss`.
        mask: As in `target_loss`.

    Raises:
        ValueError: unknown names, and as `target_loss`.

    Source: emapg2026, eqs (153)-(162).
    """
    check_choice("direction", direction, DIRECTIONS)
    d = get_divergence(divergence)
    fn = kf_plus_plus(d if direction == "policy_target" else _exchanged(d), form)
    return target_loss(rollout, fn, beta=beta, partition=partition, importance=importance, mask=mask)
