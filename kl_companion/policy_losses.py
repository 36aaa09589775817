"""Policy-gradient losses that are KL estimators: the same functions, aimed at the policy that is wanted.

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
from typing import Literal, NamedTuple

import torch

from kl_companion.checks import check_choice, check_floating, check_no_nan, check_scalar, refuse_nan
from kl_companion.divergences import Divergence, T, W, get_divergence, make_divergence
from kl_companion.estimators.registry import Estimator, sampled_estimator
from kl_companion.estimators.sampled import Form, kf_plus_plus
from kl_companion.rollout import Centering, Rollout, center, importance_ratio, masked, per_token

PartitionName = Literal[
    "importance", "lower_bound", "value", "importance_others", "lower_bound_others", "value_others"
]
Partition = PartitionName | float | torch.Tensor
Direction = Literal["policy_target", "target_policy"]
Weight = Literal["sequence"]
SequenceEstimator = str | Estimator | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PARTITIONS: tuple[PartitionName, ...] = (
    "importance",
    "lower_bound",
    "value",
    "importance_others",
    "lower_bound_others",
    "value_others",
)
DIRECTIONS: tuple[Direction, ...] = ("policy_target", "target_policy")


class Decomposition(NamedTuple):
    """A gradient as a combination of named fields.

    Attributes:
        coefficients: The least-squares coefficient of each field.
        residual: Norm of what is left, divided by the norm of the gradient; 0 where the gradient is 0.
    """

    coefficients: dict[str, float]
    residual: float


def _total(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    return masked(x, rollout.completion_mask).sum(-1)


def _scaled_rewards(rollout: Rollout, beta: float) -> torch.Tensor:
    """R / beta of every sequence, [batch], detached; rewards and beta are checked here."""
    check_scalar("beta", beta, positive=True)  # rewards are divided by it
    if rollout.rewards is None:
        raise ValueError("the rollout holds no rewards, expected one per sequence [batch]")
    rewards = rollout.rewards.detach().to(rollout.logp.dtype)
    if not rewards.isfinite().all():
        raise ValueError(f"rewards are {rewards.tolist()}, expected finite numbers")
    scaled = rewards / beta
    if not scaled.isfinite().all():
        where = int((~scaled.isfinite()).nonzero()[0])
        raise ValueError(
            f"the reward {rewards[where].item():g} of sequence {where} divided by beta={beta} is beyond "
            f"{scaled.dtype}, expected a larger beta or a wider dtype"
        )
    return scaled


def _sampled(estimator: SequenceEstimator) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return sampled_estimator(estimator, why="the target is known for whole sequences only").fn


def log_partition(rollout: Rollout, how: Partition, *, beta: float = 1.0) -> torch.Tensor:
    """log Z of the target of every sequence's prompt, Z = E_ref[exp(R / beta)]; [batch], detached.

    Args:
        rollout: The samples; sequences of one ``prompt_index`` are a group.
        how: A number or a tensor [batch], which is taken as it is; or

            * ``"importance"``: log mean exp(R / beta - m) over the group, m = log mu(y) - log ref(y) with mu
              the policy that sampled. The mean is unbiased for Z at every group size, its logarithm is not.
            * ``"lower_bound"``: mean of R / beta - l. On-policy Jensen's inequality puts it below the former.
              Off-policy l stays that of the policy: no bound then, but exact wherever the policy is the
              target, whoever sampled.
            * ``"value"``: mean of R / beta alone, the group's value: no bound, and no KL in it.
            * the same with ``_others``: the sequence itself is left out, so that its score and its log Z are
              independent.

            Memory grows with the square of the batch.
        beta: Divides the rewards.

    Raises:
        ValueError: unknown ``how``, a tensor of another shape or not finite, a beta that is not positive, no
            rewards or rewards that are not finite, or a group of one for ``_others``.

    Source: emapg2026, eqs (143)-(145).
    """
    rewards = _scaled_rewards(rollout, beta)
    if not isinstance(how, str):
        given = torch.as_tensor(how, dtype=rewards.dtype, device=rewards.device).detach()
        if given.shape not in (rewards.shape, torch.Size([])) or not given.isfinite().all():
            raise ValueError(
                f"partition has shape {list(given.shape)} and the values {given.tolist()}, expected a finite "
                f"log Z: a number or {list(rewards.shape)}"
            )
        return given.expand_as(rewards)
    check_choice("partition", how, PARTITIONS)
    name, others = how.removesuffix("_others"), how.endswith("_others")
    over = rollout.sampled_from if name == "importance" else rollout.logp.detach()
    log_ratio = _total(over - rollout.ref_logp.detach(), rollout)
    x = rewards if name == "value" else rewards - log_ratio
    group = rollout.group_index
    used = group.unsqueeze(0) == group.unsqueeze(1)
    if others:
        used = used & ~torch.eye(len(group), dtype=torch.bool, device=used.device)
    size = used.sum(-1).to(x.dtype)
    if size.min() < 1:
        alone = group[size < 1][0].item()
        raise ValueError(
            f"prompt {alone} has one sequence, expected at least two: nothing is left to estimate log Z from "
            f"(partition={how!r})"
        )
    if name == "importance":
        found = x.expand(used.shape).masked_fill(~used, -torch.inf).logsumexp(-1) - size.log()
    else:
        found = x.expand(used.shape).masked_fill(~used, 0.0).sum(-1) / size
    return refuse_nan("log Z", found, **{"R / beta minus the log-ratio": x})


def ppo_mask(advantages: torch.Tensor, ratio: torch.Tensor, eps_low: float, eps_high: float) -> torch.Tensor:
    """1 where PPO's clip lets a gradient pass, else 0; the shape and dtype of ``ratio``, detached.

    0 where the advantage is positive and the ratio above 1 + eps_high, or the advantage is negative and the
    ratio below 1 - eps_low. Where the advantage is 0 the mask is 1 at any ratio: the clip would not matter
    there, but another loss under this mask is not clipped.

    Args:
        advantages: Of the shape of ``ratio``.
        ratio: pi / mu, of a sequence or of a token.
        eps_low: How far below 1 is free.
        eps_high: How far above 1 is free.

    Raises:
        ValueError: shapes that differ, NaN, or an eps that is negative or not finite.

    Source: emapg2026, appendices A and J.4.
    """
    check_floating("ratio", ratio)
    if advantages.shape != ratio.shape:
        raise ValueError(
            f"advantages has shape {list(advantages.shape)}, expected {list(ratio.shape)} like ratio"
        )
    for name, eps in (("eps_low", eps_low), ("eps_high", eps_high)):
        check_scalar(name, eps, least=0.0)
    check_no_nan("advantages", advantages)
    check_no_nan("ratio", ratio)
    stopped = ((advantages > 0) & (ratio > 1 + eps_high)) | ((advantages < 0) & (ratio < 1 - eps_low))
    return (~stopped).to(ratio.dtype)


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
        if not isinstance(mask, tuple | list) or len(mask) != 2:
            raise ValueError(f"mask is {mask}, expected (eps_low, eps_high)")
        # the sign is that of the rewards, so beta is of no account
        advantages = center(_scaled_rewards(rollout, 1.0), rollout.group_index, "mean")
        x = x * ppo_mask(advantages, rho, *mask)
    return refuse_nan("the loss", (x if importance is None else x * rho).mean(), term=x)


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
    logp, ref_logp = _total(rollout.logp, rollout), _total(rollout.ref_logp, rollout).detach()
    target_logp = ref_logp + _scaled_rewards(rollout, beta) - log_partition(rollout, partition, beta=beta)
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
    rewards = _scaled_rewards(rollout, beta)
    log_ratio = _total(rollout.sampled_from - rollout.ref_logp.detach(), rollout)
    _, group, size = rollout.group_index.unique(return_inverse=True, return_counts=True)
    # log softmax = x - log mean exp - log N
    log_size = size.to(rewards.dtype).log()[group]
    log_weight = rewards - log_ratio - log_partition(rollout, "importance", beta=beta) - log_size
    loss = -(log_weight.exp() * _total(rollout.logp, rollout)).sum()
    return refuse_nan("the loss", loss / len(size), **{"the log of a weight": log_weight})


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
    rewards = _scaled_rewards(rollout, beta) * beta
    _sampled(penalty)
    cost = _total(per_token(penalty, rollout).detach(), rollout)
    if not (charged := rewards - beta * cost).isfinite().all():
        where = int((~charged.isfinite()).nonzero()[0])
        raise ValueError(
            f"the reward of sequence {where} minus its penalty, {beta} times {cost[where].item():g}, is "
            f"beyond {charged.dtype}, expected a policy nearer to the reference, or a smaller beta"
        )
    advantages = center(charged, rollout.group_index, centering)
    return _weighted_mean(-advantages * _total(rollout.logp, rollout), rollout, importance, mask)


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


def decompose(gradient: torch.Tensor, **basis: torch.Tensor) -> Decomposition:
    """The gradient as a combination of named fields, by least squares in float64.

    A bandit with three answers has two directions, which any two fields explain: stack the gradients of
    several worlds, and the fields likewise, so that one set of coefficients has to fit them all.

    Args:
        gradient: Any shape; stacked worlds count as one gradient.
        basis: The fields by name, of the same shape.

    Raises:
        ValueError: no field, shapes that differ, or fields that depend on one another (a field of zeros
            too), whose coefficients would not be unique.
    """
    if not basis:
        raise ValueError("got no field, expected at least one to decompose the gradient on")
    for name, x in basis.items():
        if x.shape != gradient.shape:
            raise ValueError(
                f"{name} has shape {list(x.shape)}, expected {list(gradient.shape)} like gradient"
            )
    target = gradient.detach().double().flatten()
    columns = torch.stack([x.detach().double().flatten() for x in basis.values()], 1)
    norms = columns.norm(dim=0)
    unit = columns / norms.where(norms > 0, 1.0)
    if torch.linalg.matrix_rank(unit, tol=1e-9) < len(basis):
        raise ValueError(
            f"the fields {', '.join(basis)} depend on one another, expected independent ones: their "
            "coefficients would not be unique"
        )
    solution = torch.linalg.lstsq(unit, target.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
    size = target.norm().item()
    residual = 0.0 if size == 0 else (unit @ solution - target).norm().item() / size
    return Decomposition(dict(zip(basis, (solution / norms).tolist(), strict=True)), residual)
