"""ms-swift: the KL of GRPO in the loss, that of RLOO and REINFORCE++ in the reward, and its distillation.

The package imports transformers and more; its functions are cut out of the installed files (see
`installed`). The trainer's loss is called on a stand-in whose forward pass returns the rollout's log-probs.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from types import SimpleNamespace

import torch

from kl_companion.auditing.exact import CastsAsDoubles
from kl_companion.auditing.updates.advantages import Advantage
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.installed import Distribution, SourceLocation, load, loaded_from
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout, masked

VERSIONS = ("4.6.0",)
_TRAINER = "swift/rlhf_trainers/grpo_trainer.py"
_LOSS = SourceLocation(_TRAINER, "GRPOTrainer._compute_loss_and_metrics")
_REWARD = SourceLocation(_TRAINER, "GRPOTrainer._compute_advantages")
_ADVANTAGES = SourceLocation("swift/rl_core/advantage.py", "compute_advantages")
_GKD = "swift/rlhf_trainers/gkd_loss.py"
_LOSS_TYPES = {
    "grpo": "grpo: mean over sequences of token means",
    "bnpo": "bnpo: sum / tokens of the micro-batch",
    "dr_grpo": "dr_grpo: sum / (sequences x max_completion_length)",
    "dapo": "dapo: sum / tokens of the accumulation window",
}


@loaded_from("ms-swift", VERSIONS)
def functions(swift: Distribution) -> SimpleNamespace:
    """ms-swift's own functions, out of the installed files; `Unavailable` without them."""
    metrics = {"nanmin": torch.min, "nanmax": torch.max}
    loss = load(swift, _TRAINER, "WINDOW_NORMALIZED_LOSS_TYPES", _LOSS.function, given=metrics)
    named = ("compute_advantages", "compute_teacher_logratio", "expand_advantage_to_per_token")
    advantages = load(swift, _ADVANTAGES.file, *named)
    primitives = ("default_log_softmax", "default_kl_div", "default_gather", "jsd_loss", "_align_vocab")
    gkd = load(swift, _GKD, *primitives, "extract_active", "gkd_loss", given={"Enum": Enum})
    return SimpleNamespace(**loss, **advantages, **gkd)


def trainer_loss(rollout: Rollout, advantages: torch.Tensor, loss_type: str, beta: float) -> torch.Tensor:
    """`GRPOTrainer._compute_loss_and_metrics` of one process; the KL is in the loss if beta is not 0.

    Args:
        rollout: The samples.
        advantages: Of every token, [batch, seq].
        loss_type: How tokens are aggregated.
        beta: The coefficient of the KL in the loss.
    """
    count, length = rollout.tokens.shape
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (rollout.logp, None),
        _undo_gradient_accumulation_scaling=lambda loss: loss,
        _has_teacher=False,
        accelerator=SimpleNamespace(num_processes=1, gather_for_metrics=lambda x: x),
        args=SimpleNamespace(delta=None),
        beta=beta,
        chord_sft_iterator=None,
        compute_entropy=False,
        disable_rollout_importance_sampling=False,
        epsilon_high=0.2,
        epsilon_low=0.2,
        importance_sampling_level="token",
        kl_in_reward=False,
        log_rollout_offpolicy_metrics=False,
        loss_type=loss_type,
        max_completion_length=length,
        model=SimpleNamespace(training=True),
        off_policy_sequence_mask_delta=None,
        overlong_filter=False,
        rollout_importance_sampling_mode=None,
        sdar_loss_coef=0.0,
    )
    batch = SimpleNamespace(
        advantages=advantages,
        completion_mask=rollout.completion_mask,
        num_items_in_batch=float(count),
        old_per_token_logps=rollout.sampled_from,
        ref_per_token_logps=rollout.ref_logp,
        rollout_per_token_logps=None,
        teacher_per_token_logps=None,
        truncated_mask=torch.zeros(count, dtype=torch.bool),
    )
    loss: torch.Tensor = functions()._compute_loss_and_metrics(trainer, None, {}, batch)[0]
    return loss


def in_loss(loss_type: str, rollout: Rollout) -> torch.Tensor:
    """The KL of GRPO's loss alone."""
    return trainer_loss(rollout, torch.zeros_like(rollout.sampled_from), loss_type, 1.0)


def policy(loss_type: str, rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """The clipped policy loss alone."""
    return trainer_loss(rollout, advantages, loss_type, 0.0)


def in_reward(loss_type: str, rollout: Rollout) -> torch.Tensor:
    """The policy loss of minus the sum of an answer's log-ratios, a baseline left out."""
    mask = rollout.completion_mask
    penalty = masked(rollout.sampled_from - rollout.ref_logp, mask).sum(-1)
    each = functions().expand_advantage_to_per_token(-penalty, mask)
    return policy(loss_type, rollout, each)


def opd(loss_type: str, rollout: Rollout) -> torch.Tensor:
    """The policy loss of the teacher's signal on every token, with the reference in the teacher's place."""
    nothing = torch.zeros(len(rollout.tokens), dtype=rollout.sampled_from.dtype)
    each = functions().expand_advantage_to_per_token(
        nothing, rollout.completion_mask, rollout.ref_logp, rollout.sampled_from, 1.0
    )
    return policy(loss_type, rollout, each)


class _Teacher(SimpleNamespace):
    """`TeacherOutput`: logits, or a head of log-probs and its tokens."""

    def validate(self) -> None:
        """Nothing to look at."""

    def select(self, mask: torch.Tensor) -> _Teacher:
        """The positions of the mask."""
        return _Teacher(**{k: v[mask] if isinstance(v, torch.Tensor) else v for k, v in vars(self).items()})


def gkd(beta: float, k: int | None, rollout: Rollout) -> torch.Tensor:
    """`gkd_loss`, with the teacher in the place of the reference; a scalar.

    The trainer divides it by the number of tokens of the micro-batch, which is a constant there and not to
    one sequence: here by the number of sequences.
    """
    labels = rollout.tokens.masked_fill(~rollout.completion_mask.bool(), -100)
    if k is None:
        teacher = _Teacher(full_logits=rollout.ref_logits, is_topk_mode=False, labels=labels)
    else:
        assert rollout.ref_logits is not None
        head = rollout.ref_logits.topk(k, dim=-1)
        teacher = _Teacher(
            topk_logprobs=head.values, topk_indices=head.indices, is_topk_mode=True, labels=labels
        )
    total: torch.Tensor = functions().gkd_loss(rollout.logits, teacher, labels, beta, 1.0)[0]
    return total / len(labels)


def by(estimator: str, scale: str, returns: torch.Tensor) -> torch.Tensor:
    """`compute_advantages`, each row the answers to one prompt, or a batch of them; [groups, n]."""

    def one(group: torch.Tensor) -> torch.Tensor:
        with CastsAsDoubles():
            found: torch.Tensor = functions().compute_advantages(
                group.unsqueeze(1), torch.ones_like(group[:1]), len(group), estimator, scale
            )[0]
        return found

    return torch.stack([one(group) for group in returns])


def _algorithm(name: str, estimator: str, how: Advantage, scale: str, loss_type: str) -> Algorithm:
    return Algorithm(
        name,
        Recipe(how, eps=1e-4, normalize=partial(by, estimator, scale)),
        _ADVANTAGES,
        when="" if estimator in ("grpo", "rloo") else f"--advantage_estimator {estimator}",
        instead="" if how == "leave_one_out" else "--scale_rewards none",
        policy=partial(policy, loss_type),
    )


_GRPO = _algorithm("GRPO", "grpo", "group_std", "group", "grpo")
_IN_REWARD = (
    _algorithm("RLOO", "rloo", "leave_one_out", "none", "dapo"),
    _algorithm("REINFORCE++", "reinforce_plus_plus", "batch_std", "batch", "dapo"),
)


def _grpo(loss_type: str) -> Setting:
    shipped = loss_type == "grpo"
    return Setting(
        name="ms_swift.grpo" + ("" if shipped else f"_{loss_type}"),
        option=f"--rlhf_type grpo --beta 0.04 --loss_type {loss_type}",
        loss=partial(in_loss, loss_type),
        place=_LOSS,
        placement="loss",
        level="token",
        aggregation=_LOSS_TYPES[loss_type],
        default="of --rlhf_type grpo (beta is 0.04 where none is given)" if shipped else "",
        note="The log-ratio is clamped to +-20 and the term to +-10, without a ratio to the sampler.",
        algorithms=(_GRPO,),
        beta=0.04 if shipped else None,
    )


def _in_reward(loss_type: str) -> Setting:
    shipped = loss_type == "grpo"
    return Setting(
        name="ms_swift.kl_in_reward" + ("" if shipped else f"_{loss_type}"),
        option=f"--advantage_estimator rloo --kl_in_reward true --beta 0.04 --loss_type {loss_type}",
        loss=partial(in_reward, loss_type),
        place=_REWARD,
        placement="reward",
        level="sequence",
        aggregation=f"sum over the sequence, then the policy loss by {_LOSS_TYPES[loss_type]}",
        default="of the estimators rloo and reinforce_plus_plus (beta is 0.04 where none is given)"
        if shipped
        else "",
        note="The KL is that of the policy that sampled; the ratio is clipped (0.2) off-policy.",
        algorithms=() if shipped else _IN_REWARD,
        beta=None if shipped else 0.04,
    )


def _gkd(name: str, beta: float, k: int | None = None) -> Setting:
    head = "" if k is None else f" --gkd_logits_topk {k}"
    return Setting(
        name=f"ms_swift.gkd_{name}" + ("" if k is None else f"_top_{k}"),
        option=f"--rlhf_type gkd --beta {beta}{head}",
        loss=partial(gkd, beta, k),
        place=SourceLocation(_GKD, "gkd_loss"),
        placement="loss",
        level="token",
        aggregation="sum / tokens of the micro-batch",
        default="of --rlhf_type gkd (half of its answers are the student's own, lmbda 0.5)"
        if beta == 0.5 and k is None
        else "",
        note="" if k is None else "Both policies are renormalized over the teacher's k likeliest tokens.",
        sampled=False,
    )


def _opd(loss_type: str) -> Setting:
    return Setting(
        name=f"ms_swift.opd_{loss_type}",
        option=f"--rlhf_type grpo with a teacher, --teacher_kl_coef 1.0 --loss_type {loss_type}",
        loss=partial(opd, loss_type),
        place=SourceLocation(_ADVANTAGES.file, "expand_advantage_to_per_token"),
        placement="reward",
        level="token",
        aggregation=_LOSS_TYPES[loss_type],
        default="with a teacher model (teacher_kl_coef is 1.0)" if loss_type == "grpo" else "",
        note="Added to the advantage after it is normalized.",
    )


FRAMEWORK = Framework(
    name="ms_swift",
    title="ms-swift",
    distribution="ms-swift",
    versions=VERSIONS,
    settings=(
        *(_grpo(loss_type) for loss_type in _LOSS_TYPES),
        *(_in_reward(loss_type) for loss_type in ("grpo", "dapo")),
        *(_opd(loss_type) for loss_type in ("grpo", "dapo")),
        _gkd("jensen_shannon", 0.5),
        _gkd("forward", 0.0),
        _gkd("reverse", 1.0),
        _gkd("forward", 0.0, 2),
        _gkd("reverse", 1.0, 2),
    ),
    remedy=Remedy(
        sequence="ms_swift.kl_in_reward_dapo",
        token="ms_swift.opd_dapo",
        words="The token-level one is by distillation, with the reference as the teacher.",
    ),
)
