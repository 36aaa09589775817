"""ms-swift: the KL of GRPO in the loss, that of RLOO and REINFORCE++ in the reward, and its distillation.

The package imports transformers and more; its functions are cut out of the installed files (see
`installed`). The trainer's loss is called on a stand-in whose forward pass returns the rollout's log-probs.
"""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

import torch

from kl_companion.auditing.reading.precision import CastsAsDoubles
from kl_companion.frameworks.installed import Distribution, SourceLocation, known, load, loaded_from
from kl_companion.rollout import Rollout, masked

__all__ = ["by", "gkd", "in_loss", "in_reward", "opd", "policy"]

_TRAINER = "swift/rlhf_trainers/grpo_trainer.py"
_LOSS = SourceLocation(_TRAINER, "GRPOTrainer._compute_loss_and_metrics")
_ADVANTAGES = SourceLocation("swift/rl_core/advantage.py", "compute_advantages")
_GKD = "swift/rlhf_trainers/gkd_loss.py"


@loaded_from(*known("ms_swift"))
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


def in_loss(rollout: Rollout, *, loss_type: str) -> torch.Tensor:
    """The KL of GRPO's loss alone."""
    return trainer_loss(rollout, torch.zeros_like(rollout.sampled_from), loss_type, 1.0)


def policy(rollout: Rollout, advantages: torch.Tensor, *, loss_type: str) -> torch.Tensor:
    """The clipped policy loss alone."""
    return trainer_loss(rollout, advantages, loss_type, 0.0)


def in_reward(rollout: Rollout, *, loss_type: str) -> torch.Tensor:
    """The policy loss of minus the sum of an answer's log-ratios, a baseline left out."""
    mask = rollout.completion_mask
    penalty = masked(rollout.sampled_from - rollout.ref_logp, mask).sum(-1)
    each = functions().expand_advantage_to_per_token(-penalty, mask)
    return policy(rollout, each, loss_type=loss_type)


def opd(rollout: Rollout, *, loss_type: str) -> torch.Tensor:
    """The policy loss of the teacher's signal on every token, with the reference in the teacher's place."""
    nothing = torch.zeros(len(rollout.tokens), dtype=rollout.sampled_from.dtype)
    each = functions().expand_advantage_to_per_token(
        nothing, rollout.completion_mask, rollout.ref_logp, rollout.sampled_from, 1.0
    )
    return policy(rollout, each, loss_type=loss_type)


class _Teacher(SimpleNamespace):
    """`TeacherOutput`: logits, or a head of log-probs and its tokens."""

    def validate(self) -> None:
        """Nothing to look at."""

    def select(self, mask: torch.Tensor) -> _Teacher:
        """The positions of the mask."""
        return _Teacher(**{k: v[mask] if isinstance(v, torch.Tensor) else v for k, v in vars(self).items()})


def gkd(rollout: Rollout, *, beta: float, k: int | None = None) -> torch.Tensor:
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


def by(returns: torch.Tensor, *, estimator: str, scale: str) -> torch.Tensor:
    """`compute_advantages`, each row the answers to one prompt, or a batch of them; [groups, n]."""

    def one(group: torch.Tensor) -> torch.Tensor:
        with CastsAsDoubles():
            found: torch.Tensor = functions().compute_advantages(
                group.unsqueeze(1), torch.ones_like(group[:1]), len(group), estimator, scale
            )[0]
        return found

    return torch.stack([one(group) for group in returns])
