"""TRL: the KL term of GRPO, RLOO's penalty, the distillation losses, and the moving reference.

Everything is TRL's own. `GRPOTrainer._compute_loss` and `RLOOTrainer._compute_loss` are called on a
stand-in for the trainer: an object with the attributes that they read, whose forward pass returns the
rollout's log-probs. Advantages are zero in GRPO, so that the KL term is all of the loss.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import Place, find, import_from
from kl_companion.frameworks.settings import Framework, Remedy, Setting
from kl_companion.rollout import Rollout, masked

VERSIONS = ("1.16.0",)
_GRPO = Place("trl/trainer/grpo_trainer.py", "GRPOTrainer._compute_loss")
_RLOO = Place("trl/trainer/rloo_trainer.py", "RLOOTrainer._generate_and_score_completions")
_GKD = Place("trl/experimental/gkd/gkd_trainer.py", "GKDTrainer.generalized_jsd_loss")
_IW_OPD = "trl/experimental/iw_opd/iw_opd_trainer.py"
_CHUNKED = Place("trl/trainer/distillation_trainer.py", "_chunked_divergence_loss")
_LOSS_TYPES = {
    "dapo": "dapo: sum / tokens of the generation batch",
    "grpo": "grpo: mean over sequences of token means",
    "dr_grpo": "dr_grpo: sum / (sequences x max_completion_length)",
    "bnpo": "bnpo: sum / tokens of the local batch (here of one sequence)",
}


@cache
def _from(module: str, name: str) -> Any:
    return getattr(import_from(find("trl", VERSIONS), f"trl.{module}"), name)


def _trainer(rollout: Rollout, **attributes: Any) -> SimpleNamespace:
    """What the loss functions read of a trainer: one process, no clipping metrics kept, no extras."""
    entropy = torch.zeros_like(rollout.sampled_from)
    same = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, gather_for_metrics=lambda x: x
    )
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (rollout.logp, entropy, None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _entropy_bonus_enabled=False,
        accelerator=same,
        aux_loss_enabled=False,
        model=SimpleNamespace(training=True),
        epsilon_low=0.2,
        epsilon_high=0.2,
        **attributes,
    )


def _inputs(rollout: Rollout, **more: Any) -> dict[str, Any]:
    nothing = rollout.tokens[:, :0]
    return {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": rollout.tokens,
        "completion_mask": rollout.completion_mask,
        **more,
    }


def grpo(
    rollout: Rollout,
    *,
    use_bias_correction_kl: bool = True,
    importance_sampling_level: str = "token",
    loss_type: str = "dapo",
) -> torch.Tensor:
    """`GRPOTrainer._compute_loss` with beta = 1 and advantages of zero."""
    count, length = rollout.tokens.shape
    trainer = _trainer(
        rollout,
        args=SimpleNamespace(
            use_bias_correction_kl=use_bias_correction_kl, delta=None, steps_per_generation=1
        ),
        beta=1.0,
        importance_sampling_level=importance_sampling_level,
        loss_type=loss_type,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=length,
    )
    inputs = _inputs(
        rollout,
        advantages=torch.zeros(count, dtype=rollout.logp.dtype),
        ref_per_token_logps=rollout.ref_logp,
        old_per_token_logps=rollout.sampled_from,
        num_items_in_batch=torch.tensor(float(count), dtype=rollout.logp.dtype),
    )
    loss: torch.Tensor = _from("trainer.grpo_trainer", "GRPOTrainer")._compute_loss(trainer, None, inputs)
    return loss


def rloo(rollout: Rollout) -> torch.Tensor:
    """`RLOOTrainer._compute_loss`; the advantage is minus the KL of each sequence, a baseline left out."""
    mask = rollout.completion_mask
    penalty = masked(rollout.sampled_from - rollout.ref_logp, mask).sum(-1)
    inputs = _inputs(
        rollout, advantages=-penalty.detach(), old_logps=masked(rollout.sampled_from, mask).sum(-1)
    )
    trainer_class = _from("trainer.rloo_trainer", "RLOOTrainer")
    loss: torch.Tensor = trainer_class._compute_loss(_trainer(rollout), None, inputs)
    return loss


def _labels(rollout: Rollout) -> torch.Tensor:
    return rollout.tokens.masked_fill(~rollout.completion_mask.bool(), -100)


def gkd(rollout: Rollout, *, beta: float) -> torch.Tensor:
    """`GKDTrainer.generalized_jsd_loss` with the teacher in the place of the reference."""
    trainer_class = _from("experimental.gkd.gkd_trainer", "GKDTrainer")
    loss: torch.Tensor = trainer_class.generalized_jsd_loss(
        rollout.logits,
        rollout.ref_logits,
        _labels(rollout),
        beta=beta,
        num_items_in_batch=len(rollout.tokens),
    )
    return loss


def iw_opd_jsd(rollout: Rollout, *, beta: float, top_k: int, add_tail: bool) -> torch.Tensor:
    """`IWOPDTrainer.generalized_jsd_loss`: heads of k tokens, with a bucket for the tail or without."""
    trainer_class = _from("experimental.iw_opd.iw_opd_trainer", "IWOPDTrainer")
    loss: torch.Tensor = trainer_class.generalized_jsd_loss(
        rollout.logits,
        rollout.ref_logits,
        _labels(rollout),
        beta=beta,
        top_k=top_k,
        add_tail=add_tail,
        num_items_in_batch=len(rollout.tokens),
    )
    return loss


def iw_opd(rollout: Rollout, *, gamma: float) -> torch.Tensor:
    """`IWOPDTrainer._compute_iw_opd_loss`: the teacher's log-ratio as a detached advantage."""
    trainer_class = _from("experimental.iw_opd.iw_opd_trainer", "IWOPDTrainer")
    trainer = _trainer(rollout, temperature=1.0, iw_opd_gamma=gamma, iw_opd_epsilon=1e-8)
    loss: torch.Tensor = trainer_class._compute_iw_opd_loss(
        trainer,
        rollout.logits,
        rollout.tokens,
        _labels(rollout),
        rollout.ref_logp,
        rollout.sampled_from,
        num_items_in_batch=len(rollout.tokens),
    )
    return loss


def chunked(rollout: Rollout, *, beta: float) -> torch.Tensor:
    """`_chunked_divergence_loss`, with logits as hidden states and the identity as output layer."""
    assert rollout.logits is not None
    head = torch.eye(rollout.logits.shape[-1], dtype=rollout.logits.dtype)
    found = _from("trainer.distillation_trainer", "_chunked_divergence_loss")(
        rollout.logits,
        rollout.ref_logits,
        head,
        head,
        rollout.completion_mask,
        beta,
        num_items_in_batch=len(rollout.tokens),
    )
    loss: torch.Tensor = found[0]
    return loss


def anchor_decay(ref_model_mixup_alpha: float) -> float:
    """The EMA decay of TRL's ``sync_ref_model``: anchor <- alpha x policy + (1 - alpha) x anchor.

    The anchor moves every ``ref_model_sync_steps`` optimizer steps, which is the ``period`` of
    `kl_companion.follow_anchor`. TRL's defaults, alpha = 0.6 and 512 steps, are a decay of 0.4.

    Raises:
        ValueError: alpha outside [0, 1].
    """
    if not 0 <= ref_model_mixup_alpha <= 1:
        raise ValueError(f"ref_model_mixup_alpha is {ref_model_mixup_alpha}, expected a number from 0 to 1")
    return 1 - ref_model_mixup_alpha


def _grpo(corrected: bool, level: str, loss_type: str) -> Setting:
    parts = ["trl.grpo"]
    parts += [] if corrected else ["uncorrected"]
    parts += [] if level == "token" else ["sequence_ratio"]
    parts += [] if loss_type == "dapo" else [loss_type]
    return Setting(
        name="_".join(parts),
        option=f"GRPOConfig(beta=..., use_bias_correction_kl={corrected}, "
        f'importance_sampling_level="{level}", loss_type="{loss_type}")',
        loss=partial(
            grpo,
            use_bias_correction_kl=corrected,
            importance_sampling_level=level,
            loss_type=loss_type,
        ),
        place=_GRPO,
        placement="loss",
        level="token",
        aggregation=_LOSS_TYPES[loss_type],
        default="of GRPOTrainer once beta > 0 (beta is 0 by default)" if len(parts) == 1 else "",
    )


def _exact(name: str, option: str, loss: Any, place: Place, default: str = "", note: str = "") -> Setting:
    return Setting(
        name=f"trl.{name}",
        option=option,
        loss=loss,
        place=place,
        placement="loss",
        level="token",
        aggregation="sum / tokens of the batch",
        default=default,
        note=note,
        sampled=False,
    )


_DIRECTIONS = {"forward": 0.0, "jensen_shannon": 0.5, "reverse": 1.0}
_SUPPORT = {"forward": "teacher's", "jensen_shannon": "student's and teacher's", "reverse": "student's"}


def _iw_opd_jsd(direction: str, top_k: int, add_tail: bool) -> Setting:
    beta = _DIRECTIONS[direction]
    tail = "tail" if add_tail else "no_tail"
    return _exact(
        f"iw_opd_{direction}_top_{top_k}_{tail}",
        f'IWOPDConfig(distillation_objective="jsd", beta={beta}, loss_top_k={top_k}, '
        f"loss_add_tail={add_tail})",
        partial(iw_opd_jsd, beta=beta, top_k=top_k, add_tail=add_tail),
        Place(_IW_OPD, "IWOPDTrainer.generalized_jsd_loss"),
        note=f"Head: the {_SUPPORT[direction]} likeliest. Audited with a vocabulary of three tokens.",
    )


_SETTINGS = (
    *(
        _grpo(corrected, level, loss_type)
        for corrected in (True, False)
        for level in ("token", "sequence")
        for loss_type in _LOSS_TYPES
    ),
    Setting(
        name="trl.rloo",
        option="RLOOConfig(beta=0.05)",
        loss=rloo,
        place=_RLOO,
        placement="reward",
        level="sequence",
        aggregation="sum over the sequence",
        default="of RLOOTrainer (beta is 0.05 by default)",
        note="The KL is that of the policy that sampled; the sequence's ratio is clipped (0.2) off-policy.",
    ),
    *(
        _exact(
            f"gkd_{direction}",
            f"GKDConfig(beta={beta})",
            partial(gkd, beta=beta),
            _GKD,
            default="of GKDTrainer" if beta == 0.5 else "",
        )
        for direction, beta in _DIRECTIONS.items()
    ),
    *(
        _exact(
            f"distillation_{direction}",
            f"DistillationConfig(beta={beta})",
            partial(chunked, beta=beta),
            _CHUNKED,
            default="of DistillationTrainer" if beta == 1 else "",
        )
        for direction, beta in _DIRECTIONS.items()
    ),
    Setting(
        name="trl.iw_opd",
        option='IWOPDConfig(distillation_objective="iw_opd", iw_opd_gamma=0.5)',
        loss=partial(iw_opd, gamma=0.5),
        place=Place(_IW_OPD, "IWOPDTrainer._compute_iw_opd_loss"),
        placement="reward",
        level="token",
        aggregation="sum / tokens of the batch",
        default="of IWOPDTrainer",
        note="Early tokens weigh more, up to 1 + gamma times.",
    ),
    Setting(
        name="trl.iw_opd_unweighted",
        option='IWOPDConfig(distillation_objective="iw_opd", iw_opd_gamma=0.0)',
        loss=partial(iw_opd, gamma=0.0),
        place=Place(_IW_OPD, "IWOPDTrainer._compute_iw_opd_loss"),
        placement="reward",
        level="token",
        aggregation="sum / tokens of the batch",
    ),
    _iw_opd_jsd("reverse", 0, True),
    *(_iw_opd_jsd(direction, 1, True) for direction in _DIRECTIONS),
    *(_iw_opd_jsd(direction, 2, False) for direction in ("forward", "reverse")),
)

FRAMEWORK = Framework(
    name="trl",
    title="TRL",
    distribution="trl",
    versions=VERSIONS,
    settings=_SETTINGS,
    remedy=Remedy(
        sequence="trl.rloo",
        token="trl.grpo",
        words="GRPOTrainer itself has no KL in the reward; RLOOTrainer has, on-policy.",
    ),
)
