"""Megatron-LM: its GRPO loss and its distillation of cached heads; a formula.

Neither is in the package of the registry, which is Megatron Core. The loss of GRPO adds k3 without a ratio to
the sampler. A head of the teacher's k likeliest tokens gets one token more for the rest in the one place that
calls it; the function itself leaves that out by default.
"""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

_RL = "megatron/rl/rl_utils.py"
_HEAD = SourceLocation("megatron/training/distillation/cached_logits_loss.py", "topk_kl_div")
_LEAST = 1e-8  # of the rest, whose logarithm is taken
_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-4, unbiased=False, clip=(0.01, 0.01), aggregate="sum"),
    SourceLocation(_RL, "calculate_grpo_advantages"),
)


def head(k: int, ghost: bool, rollout: Rollout) -> torch.Tensor:
    """`topk_kl_div` of the teacher's k likeliest tokens, and of one for the rest or not; [batch, seq]."""
    found = rollout.ref_logp_all.topk(k, dim=-1)
    teacher, student = found.values, rollout.logp_all.gather(-1, found.indices)
    if ghost:
        rests = ((1 - x.exp().sum(-1, keepdim=True)).clamp(min=_LEAST).log() for x in (teacher, student))
        teacher, student = (torch.cat(pair, -1) for pair in zip((teacher, student), rests, strict=True))
    return (teacher.exp() * (teacher - student)).sum(-1)


def _distilled(ghost: bool) -> Setting:
    called = "LossFuncCallable, --logits-save-top-k 1 --logits-load-dir ..."
    return in_loss(
        "megatron.top_1_ghost" if ghost else "megatron.top_1_no_tail",
        called if ghost else "topk_kl_div(add_ghost_token=False), which nothing calls",
        partial(head, 1, ghost),
        _HEAD,
        default="of distillation from cached log-probs" if ghost else "of the function alone",
        note="Audited with k = 1 of a vocabulary of three tokens.",
        sampled=False,
    )


_k3: Terms = partial(estimate, "k3")

FRAMEWORK = Framework(
    name="megatron",
    title="Megatron-LM",
    distribution="",
    versions=("commit d98e8a64d (2026-08-22)",),
    settings=(
        in_loss(
            "megatron.grpo",
            "--grpo-kl-beta 0.001",
            _k3,
            SourceLocation(_RL, "calculate_grpo_loss"),
            default="of its GRPO (the shipped model configurations set 0.0 or 0.01)",
            algorithms=(_GRPO,),
            beta=0.001,
        ),
        *(_distilled(ghost) for ghost in (True, False)),
    ),
    remedy=Remedy(
        sequence=None,
        token=None,
        words="The one option is k3 in the loss, which has the gradient of the forward KL.",
    ),
)
