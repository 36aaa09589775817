"""What a trainer of TRL says of itself, and where its batch holds the completions.

Read in the code of TRL 1.16.0, the version that is known to work:

* GRPO logs K3, the mean over completion tokens, times the importance ratio where `use_bias_correction_kl` is
  set (the default); then the gradient of its KL term is that of the exact KL(policy || reference). Rewards
  are divided by a standard deviation (`scale_rewards`) and the KL is not.
* RLOO logs K1 per token and subtracts its sum over the sequence from the reward, before the advantage is
  taken and divided: beta stays in units of the reward, and advantages hold the KL already.
* The distillation trainers log no KL; their loss is a divergence to the teacher, their `beta` says which one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kl_companion.host_reads import to_host
from kl_companion.kl_term import KLTerm
from kl_companion.monitor.mismatch import Engine

DIVIDED = {"group": "group_std", "batch": "batch_std", "none": None}
_ADDED = 1e-4  # what TRL adds to a standard deviation
_BESIDES_TEXT = ("pixel_values", "image_grid_thw", "image_sizes", "token_type_ids", "mm_token_type_ids")


class TrainerFacts(NamedTuple):
    """What a trainer says of itself.

    Attributes:
        trainer: Its name, as ``"trl.GRPOTrainer"``.
        temperature: At which policy and reference are compared.
        engine: How it samples.
        beta: The KL coefficient; None for a distillation.
        estimator: What it logs; None for nothing.
        term: What it differentiates; None for the exact KL.
        divided: How rewards are divided.
    """

    trainer: str
    temperature: float
    engine: Engine
    beta: float | None = None
    estimator: Any = None
    term: KLTerm | None = None
    divided: str | None = None


def said_by(trainer: Any) -> TrainerFacts:
    """What a trainer says of itself.

    Raises:
        ValueError: a trainer that is not known, which cannot be read.
    """
    names = [kind.__name__ for kind in type(trainer).__mro__]
    known = next((name for name in _READERS if name in names), None)
    if known is None:
        raise ValueError(
            f"trainer is a {type(trainer).__name__}, expected one of TRL's {', '.join(_READERS)}: in another "
            "loop, call observe"
        )
    return _READERS[known](f"trl.{known}", trainer)


def _engine(trainer: Any) -> Engine:
    top_k = getattr(trainer, "top_k", 0) or 0
    return Engine(trainer.temperature, getattr(trainer, "top_p", 1.0) or 1.0, max(0, top_k))


def _grpo(name: str, trainer: Any) -> TrainerFacts:
    term = getattr(trainer, "kl", None)  # this package's trainer, with another term
    if term is None:
        scope = trainer.importance_sampling_level  # of the ratio that the KL is multiplied by
        corrected = KLTerm("k3", importance=scope, ratio="attached")
        term = corrected if trainer.args.use_bias_correction_kl else KLTerm("k3", importance=None)
    divided = DIVIDED.get(trainer.scale_rewards, str(trainer.scale_rewards))
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        divided = trainer.multi_objective_aggregation
    return TrainerFacts(name, trainer.temperature, _engine(trainer), trainer.beta, term.entry, term, divided)


def _rloo(name: str, trainer: Any) -> TrainerFacts:
    term = KLTerm("k1", "reward", "sequence")
    return TrainerFacts(name, trainer.temperature, _engine(trainer), trainer.beta, term.entry, term)


def _distillation(name: str, trainer: Any) -> TrainerFacts:
    return TrainerFacts(name, trainer.temperature, _engine(trainer))


def _gkd(name: str, trainer: Any) -> TrainerFacts:
    # the temperature is that of sampling: the loss compares both models at 1
    return TrainerFacts(name, 1.0, _engine(trainer))


_READERS = {
    "GRPOTrainer": _grpo,
    "RLOOTrainer": _rloo,
    "GKDTrainer": _gkd,
    "DistillationTrainer": _distillation,
}


class Texts(NamedTuple):
    """Some answers of a batch, without the padding that all of them share.

    Attributes:
        ids, attention: Of prompt and completion, [batch, prompt + seq].
        tokens, mask: Of the completion, [batch, seq].
        rows: Which answers of the batch they are, [batch].
        columns: Which columns of the batch's completions they are.
        whole: Whether all answers that have a token are there.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor
    columns: slice
    whole: bool

    def of(self, x: torch.Tensor | None) -> torch.Tensor | None:
        """The part of a tensor of the batch, [batch, seq] or [batch]."""
        return None if x is None else x[self.rows] if x.ndim == 1 else x[self.rows, self.columns]


def texts_of(inputs: Mapping[str, Any], rows: int | None) -> Texts | None:
    """The first answers of a batch that have a token, ``rows`` of them at most; None without any.

    Raises:
        ValueError: a batch of images beside the text, or one without completions.
    """
    besides = next((name for name in _BESIDES_TEXT if inputs.get(name) is not None), None)
    if besides is not None:
        raise ValueError(f"the batch holds {besides}, expected text alone: logits are computed from text")
    if "completion_ids" in inputs:
        ids, attention = (
            torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], 1) for x in ("ids", "mask")
        )
        prompt = inputs["prompt_ids"].shape[1]
        inside = torch.zeros_like(ids, dtype=torch.bool)
        inside[:, prompt:] = inputs["completion_mask"].bool()
        if "tool_mask" in inputs:  # tokens that a tool wrote
            inside[:, prompt:] &= inputs["tool_mask"].bool()
    elif "labels" in inputs:
        ids, attention, prompt = inputs["input_ids"], inputs["attention_mask"], 0
        inside = inputs["labels"] != -100
    else:
        raise ValueError(f"the batch holds {', '.join(inputs)}, expected completion_ids or labels")
    inside[:, 0] = False  # nothing scores the first token
    answered, present = to_host([inside, attention.bool()])  # which tokens there are, by one read
    there = answered.any(1).nonzero()[:, 0]
    if not len(there):
        return None
    chosen = there if rows is None else there[:rows]
    used = answered[chosen].any(0).nonzero()[:, 0]
    first, end = max(int(used[0]), prompt), int(used[-1]) + 1
    begin = min(int(present[chosen].any(0).nonzero()[0, 0]), first - 1)
    index = chosen.to(ids.device)
    ids, attention, inside = ids[index], attention[index], inside[index]
    return Texts(
        ids[:, begin:end],
        attention[:, begin:end],
        ids[:, first:end],
        inside[:, first:end],
        index,
        slice(first - prompt, end - prompt),
        len(chosen) == len(there),
    )


def rewards_of(trainer: Any, per_function: torch.Tensor) -> torch.Tensor:
    """The rewards of all answers as the trainer adds them up, [answers]; NaN where none was given.

    Args:
        trainer: With `reward_weights`.
        per_function: [answers, reward functions], NaN where a function gave none.
    """
    weights = trainer.reward_weights.to(per_function.device)
    total = (per_function * weights).nansum(1)
    total = total.where(~per_function.isnan().all(1), torch.nan)
    clip = getattr(trainer, "reward_clip_range", None)
    return total.clamp(*clip) if clip else total


def deviations_of(rewards: torch.Tensor, size: int, divided: str | None) -> torch.Tensor | None:
    """By what TRL divides, one number per group of ``size``, or one for all; None where that is not known."""
    if divided not in ("group_std", "batch_std"):
        return None
    parts = rewards.split(size) if divided == "group_std" else (rewards,)
    spreads = [x[~x.isnan()].double() for x in parts]
    return torch.stack([x.std() if len(x) > 1 else x.new_zeros(()) for x in spreads]) + _ADDED
