"""prime-rl: a formula, because it is not on the registry. Its RL loss has no KL to a reference.

Distillation charges the teacher's log-ratio with the ratio to the inference policy, whose gradient is kept;
tokens whose probability has fallen by more than 0.2 since they were sampled are dropped.
"""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.frameworks.formulas import in_loss, ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy
from kl_companion.rollout import Rollout

_FALLEN, _TAU = 0.2, 1e-3
_FILE = "src/prime_rl/trainer/rl/loss.py"


def reference_kl(rollout: Rollout, *, kl_tau: float = _TAU) -> torch.Tensor:
    """`ref_kl_loss_fn`: rho sg(log pi - log ref), and kl_tau times the squared log-ratio to the sampler."""
    sampler = rollout.sampled_from
    kept = rollout.logp.detach().exp() - sampler.exp() >= -_FALLEN
    cost = (rollout.logp - rollout.ref_logp).detach() * ratio(rollout)
    return torch.where(kept, cost, 0.0) + kl_tau * (rollout.logp - sampler) ** 2


FRAMEWORK = Framework(
    name="prime_rl",
    title="prime-rl",
    distribution="",
    versions=("commit 559b44772 (2026-08-21, v0.8.1.dev67)",),
    settings=(
        in_loss(
            "prime_rl.reference_kl",
            "ref_kl_loss_fn, kl_tau=1e-3 (on-policy distillation)",
            reference_kl,
            SourceLocation(_FILE, "ref_kl_loss_fn"),
            default="of on-policy distillation",
            note="Off-policy, the dropped tokens and the term with kl_tau take part.",
        ),
        in_loss(
            "prime_rl.reference_kl_without_tau",
            "ref_kl_loss_fn, kl_tau=0",
            partial(reference_kl, kl_tau=0.0),
            SourceLocation(_FILE, "ref_kl_loss_fn"),
            note="Off-policy, the dropped tokens take part.",
        ),
    ),
    remedy=Remedy(
        sequence=None,
        token="prime_rl.reference_kl",
        words="The RL loss itself has no KL to a reference.",
    ),
    without="Its loss of RL has no KL to a reference; that of distillation has no rewards.",
)
