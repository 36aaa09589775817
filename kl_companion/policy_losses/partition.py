"""log Z of the target, estimated from the samples of a group."""

from __future__ import annotations

from typing import Literal

import torch

from kl_companion.checks import check_choice, check_scalar, refuse_nan
from kl_companion.host_reads import any_wrong, reads_once
from kl_companion.rollout import Rollout, masked

PartitionName = Literal[
    "importance", "lower_bound", "value", "importance_others", "lower_bound_others", "value_others"
]
Partition = PartitionName | float | torch.Tensor
PARTITIONS: tuple[PartitionName, ...] = (
    "importance",
    "lower_bound",
    "value",
    "importance_others",
    "lower_bound_others",
    "value_others",
)


@reads_once
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
    rewards = scaled_rewards(rollout, beta)
    if not isinstance(how, str):
        given = torch.as_tensor(how, dtype=rewards.dtype, device=rewards.device).detach()
        if given.shape not in (rewards.shape, torch.Size([])) or any_wrong(~given.isfinite()):
            raise ValueError(
                f"partition has shape {list(given.shape)} and the values {given.tolist()}, expected a finite "
                f"log Z: a number or {list(rewards.shape)}"
            )
        return given.expand_as(rewards)
    check_choice("partition", how, PARTITIONS)
    name, others = how.removesuffix("_others"), how.endswith("_others")
    over = rollout.sampled_from if name == "importance" else rollout.logp.detach()
    log_ratio = total(over - rollout.ref_logp.detach(), rollout)
    x = rewards if name == "value" else rewards - log_ratio
    group = rollout.group_index
    used = group.unsqueeze(0) == group.unsqueeze(1)
    if others:
        used = used & ~torch.eye(len(group), dtype=torch.bool, device=used.device)
    size = used.sum(-1).to(x.dtype)
    if any_wrong(size < 1):
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


def total(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """The sum of [batch, seq] over the tokens that count, [batch]."""
    return masked(x, rollout.completion_mask).sum(-1)


def scaled_rewards(rollout: Rollout, beta: float) -> torch.Tensor:
    """R / beta of every sequence, [batch], detached; rewards and beta are checked here."""
    check_scalar("beta", beta, positive=True)  # rewards are divided by it
    if rollout.rewards is None:
        raise ValueError("the rollout holds no rewards, expected one per sequence [batch]")
    rewards = rollout.rewards.detach().to(rollout.logp.dtype)
    if any_wrong(~rewards.isfinite()):
        raise ValueError(f"rewards are {rewards.tolist()}, expected finite numbers")
    scaled = rewards / beta
    if any_wrong(~scaled.isfinite()):
        where = int((~scaled.isfinite()).nonzero()[0])
        raise ValueError(
            f"the reward {rewards[where].item():g} of sequence {where} divided by beta={beta} is beyond "
            f"{scaled.dtype}, expected a larger beta or a wider dtype"
        )
    return scaled
