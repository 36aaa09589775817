"""TRL's distillation losses, and the stand-in for a trainer that TRL's methods are called on."""

from __future__ import annotations

from collections import defaultdict
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import SourceLocation, find, import_from
from kl_companion.frameworks.records import Setting
from kl_companion.rollout import Rollout, aggregate

VERSIONS = ("1.16.0",)
_GKD = SourceLocation("trl/experimental/gkd/gkd_trainer.py", "GKDTrainer.generalized_jsd_loss")
_IW_OPD = "trl/experimental/iw_opd/iw_opd_trainer.py"
_CHUNKED = SourceLocation("trl/trainer/distillation_trainer.py", "_chunked_divergence_loss")
_SDPO, _SDFT = "trl/experimental/sdpo/loss_utils.py", "trl/experimental/sdft/loss_utils.py"
_PER_ANSWER = "mean over sequences of token means"


@cache
def from_trl(module: str, name: str) -> Any:
    """What TRL's module ``trl.<module>`` calls ``name``; `Unavailable` unless TRL is installed."""
    return getattr(import_from(find("trl", VERSIONS), f"trl.{module}"), name)


def trainer_stand_in(rollout: Rollout, **attributes: Any) -> SimpleNamespace:
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


def _labels(rollout: Rollout) -> torch.Tensor:
    return rollout.tokens.masked_fill(~rollout.completion_mask.bool(), -100)


def gkd(rollout: Rollout, *, beta: float) -> torch.Tensor:
    """`GKDTrainer.generalized_jsd_loss` with the teacher in the place of the reference."""
    trainer_class = from_trl("experimental.gkd.gkd_trainer", "GKDTrainer")
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
    trainer_class = from_trl("experimental.iw_opd.iw_opd_trainer", "IWOPDTrainer")
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
    trainer_class = from_trl("experimental.iw_opd.iw_opd_trainer", "IWOPDTrainer")
    trainer = trainer_stand_in(rollout, temperature=1.0, iw_opd_gamma=gamma, iw_opd_epsilon=1e-8)
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
    found = from_trl("trainer.distillation_trainer", "_chunked_divergence_loss")(
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


def self_distillation(rollout: Rollout, *, function: str, **options: Any) -> torch.Tensor:
    """SDPO's and SDFT's terms per token, as their trainers weight and average them.

    The two trainers have the same file of functions. Off-policy the terms are multiplied by the ratio to the
    policy that sampled, detached and at most 2 (``distillation_is_clip``).
    """
    given: tuple[Any, ...] = (rollout.logits, rollout.ref_logits)
    if function == "compute_sampled_token_self_distillation_loss":
        given = (*given, rollout.tokens)
    terms = from_trl("experimental.sdpo.loss_utils", function)(*given, **options)
    if rollout.behavior_logp is not None:
        weigh = from_trl("experimental.sdpo.loss_utils", "apply_importance_sampling_clipping")
        terms = weigh(terms, rollout.logp, rollout.behavior_logp, 2.0)
    return aggregate(terms, rollout.completion_mask, "sequence_mean")


def _exact(
    name: str, option: str, loss: Any, place: SourceLocation, default: str = "", note: str = ""
) -> Setting:
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
        SourceLocation(_IW_OPD, "IWOPDTrainer.generalized_jsd_loss"),
        note=f"Head: the {_SUPPORT[direction]} likeliest. Audited with a vocabulary of three tokens.",
    )


def _self_distillation(
    name: str, option: str, file: str, function: str, *, default: str = "", note: str = "", **options: Any
) -> Setting:
    function = f"compute_{function}_self_distillation_loss"
    return Setting(
        name=f"trl.{name}",
        option=option,
        loss=partial(self_distillation, function=function, **options),
        place=SourceLocation(file, function),
        placement="loss",
        level="token",
        aggregation=_PER_ANSWER,
        default=default,
        note=note,
        sampled=function == "compute_sampled_token_self_distillation_loss",
    )


def _self_full(direction: str) -> Setting:
    alpha = _DIRECTIONS[direction]
    return _self_distillation(
        f"sdpo_full_{direction}",
        f'SDPOConfig(distillation_mode="full_logits", distillation_alpha={alpha})',
        _SDPO,
        "full_logit",
        distillation_alpha=alpha,
    )


def _self_top_k(direction: str, k: int, tail: bool, default: str = "") -> Setting:
    alpha = _DIRECTIONS[direction]
    return _self_distillation(
        f"sdft_{direction}_top_{k}_{'tail' if tail else 'no_tail'}",
        f'SDFTConfig(distillation_mode="topk_logits", distillation_topk={k}, distillation_alpha={alpha}, '
        f"distillation_add_tail={tail})",
        _SDFT,
        "topk",
        default=default,
        note="Head: the student's likeliest. Audited with a vocabulary of three tokens.",
        distillation_topk=k,
        distillation_alpha=alpha,
        distillation_add_tail=tail,
    )


DISTILLATION = (
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
        place=SourceLocation(_IW_OPD, "IWOPDTrainer._compute_iw_opd_loss"),
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
        place=SourceLocation(_IW_OPD, "IWOPDTrainer._compute_iw_opd_loss"),
        placement="reward",
        level="token",
        aggregation="sum / tokens of the batch",
    ),
    _iw_opd_jsd("reverse", 0, True),
    *(_iw_opd_jsd(direction, 1, True) for direction in _DIRECTIONS),
    *(_iw_opd_jsd(direction, 2, False) for direction in ("forward", "reverse")),
    _self_distillation(
        "sdpo",
        'SDPOConfig(distillation_mode="sampled_token", distillation_alpha=1.0)',
        _SDPO,
        "sampled_token",
        default="of SDPOTrainer",
        note="Averaged over each answer.",
        distillation_alpha=1.0,
    ),
    *(_self_full(direction) for direction in _DIRECTIONS),
    _self_top_k("jensen_shannon", 2, False, "of SDFTTrainer (with k = 100)"),
    _self_top_k("reverse", 2, False),
    _self_top_k("reverse", 1, True),
)
