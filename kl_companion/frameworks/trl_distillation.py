"""TRL's other losses of distillation, of the installed release."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kl_companion.frameworks.installed import find, import_from, known
from kl_companion.frameworks.trl import stand_in
from kl_companion.rollout import Rollout, aggregate

__all__ = ["chunked", "iw_opd", "iw_opd_jsd", "self_distillation"]

_SDPO, _SDFT = "trl/experimental/sdpo/loss_utils.py", "trl/experimental/sdft/loss_utils.py"


@cache
def from_trl(module: str, name: str) -> Any:
    """What TRL's module ``trl.<module>`` calls ``name``; `Unavailable` unless TRL is installed."""
    return getattr(import_from(find(*known("trl")), f"trl.{module}"), name)


def _labels(rollout: Rollout) -> torch.Tensor:
    return rollout.tokens.masked_fill(~rollout.completion_mask.bool(), -100)


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
    trainer = stand_in(rollout, {}, temperature=1.0, iw_opd_gamma=gamma, iw_opd_epsilon=1e-8)
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
