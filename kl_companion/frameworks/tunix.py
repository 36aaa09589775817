"""Tunix: the KL of GRPO's loss, that of PPO's reward, and the distillation of logits.

Its functions are written in JAX, which is not installed: what runs is the installed text with PyTorch's
operations in the place of JAX's (see `jax_numpy` and `tunix_functions`). PPO's reward stands among lines of
the learner that need a cluster: its KL is Tunix's, the returns are written here.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.jax_numpy import array
from kl_companion.frameworks.tunix_functions import (
    functions,
    policy_loss,
)
from kl_companion.rollout import Rollout

__all__ = ["grpo", "logits", "ppo"]

_MEAN, _SCALE = "sequence-mean-token-mean", "sequence-mean-token-scale"


def grpo(
    rollout: Rollout, *, kind: str = "kl", mode: str = _MEAN, clamp: float | None = None
) -> torch.Tensor:
    """`grpo_loss_fn` with beta = 1 and advantages of zero."""
    nothing = torch.zeros_like(rollout.sampled_from)
    return policy_loss(
        "grpo_loss_fn",
        rollout,
        nothing,
        beta=1.0,
        kl_loss_mode=kind,
        loss_agg_mode=mode,
        kl_clamp_value=clamp,
    )


def ppo(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """`compute_kl_divergence` of the policy that sampled, charged to the tokens before it and to its own."""
    sampler, reference = array(rollout.sampled_from), array(rollout.ref_logp)
    kl = functions().compute_kl_divergence(sampler, reference, method=kind, clamp_value=None)
    return charged(kl.as_subclass(torch.Tensor), rollout, ahead=True)


def logits(rollout: Rollout, *, temperature: float, k: int = 0) -> torch.Tensor:
    """`LogitStrategy.compute_loss` with alpha = 1; the teacher is the reference.

    It takes the mean over all positions, padding included: behind an answer both are handed the same logits.
    """
    assert rollout.logits is not None
    assert rollout.ref_logits is not None
    inside = rollout.completion_mask.unsqueeze(-1)
    student, teacher = (array(x * inside) for x in (rollout.logits, rollout.ref_logits))
    strategy = SimpleNamespace(temperature=temperature, distill_top_k=k, alpha=1.0)
    loss: torch.Tensor
    loss, _ = functions().logit_loss(strategy, student, teacher, torch.zeros_like(teacher))
    return loss.as_subclass(torch.Tensor)
