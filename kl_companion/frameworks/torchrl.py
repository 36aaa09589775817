"""torchrl: the KL terms of `GRPOLoss`, its penalty in the reward, and its losses of distillation.

The losses are the installed ones (see `installed`): `GRPOLoss.forward` and what it calls run on stand-ins for
the loss module and for the dictionary of tensors. The KL term of GRPO is a mean over all positions of the
padded batch, prompts and padding among them, whatever the ``aggregation``; its policy loss is a mean over the
answers' tokens. The rollouts here have no prompts, so that a position is one of a padded answer.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from kl_companion.auditing.updates.advantages import whitened
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import SEQUENCES, TOKENS, charged
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.frameworks.torchrl_functions import (
    DISTILLATION,
    GRPO,
    KEYS,
    REWARD,
    SFT,
    VERSIONS,
    Tensors,
    functions,
)
from kl_companion.rollout import Rollout

_MC = SourceLocation(GRPO.file, "MCAdvantage._inv_call_single")
_POSITIONS = "sum / positions of the padded batch"


def grpo(
    rollout: Rollout,
    *,
    part: str,
    aggregation: str = "token_mean",
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    """One part of what `GRPOLoss.forward` returns, with coefficients of 1; a scalar.

    Args:
        rollout: The samples.
        part: ``"loss_kl_to_ref"``, ``"loss_kl_to_inference"`` or ``"loss_objective"``.
        aggregation: torchrl's own option.
        advantages: [batch, seq]; zero if there are none.
    """
    dist = SimpleNamespace(mask=rollout.completion_mask.bool())
    loss_module = functions().GRPO(
        tensor_keys=KEYS,
        kl_mask_threshold=None,
        entropy_bonus=False,
        aggregation=aggregation,
        reduction="mean",
        kl_to_ref_coeff=1.0,
        kl_to_inference_coeff=1.0,
        clip_epsilon_low=torch.tensor(0.2, dtype=rollout.logp.dtype),
        clip_epsilon_high=torch.tensor(0.2, dtype=rollout.logp.dtype),
        ref_log_prob_padding_side="left",
        ref_log_prob_padding_value=0.0,
        output_type=SimpleNamespace(from_tensordict=lambda found: found),
        _get_cur_log_prob=lambda _: (rollout.logp, dist, False),
        _loss_mask_key=None,
    )
    a = torch.zeros_like(rollout.sampled_from) if advantages is None else advantages
    batch = Tensors(
        action=rollout.tokens,
        advantage=a.unsqueeze(-1),
        sampled=rollout.sampled_from,
        reference=rollout.ref_logp,
    )
    found: torch.Tensor = loss_module.forward(batch)[part]
    return found


def distilled(rollout: Rollout, *, kl_direction: str, normalize_by_seq_length: bool) -> torch.Tensor:
    """`DistillationLoss.forward` with the teacher in the place of the reference."""
    mask = [rollout.completion_mask.bool()]
    student = Tensors(log_probs=[rollout.logp])
    loss_module = SimpleNamespace(
        tensor_keys=KEYS,
        actor_network=lambda _: student,
        assistant_only=True,
        kl_direction=kl_direction,
        normalize_by_seq_length=normalize_by_seq_length,
        reduction="mean",
        _device_fallback=None,
        _get_masks=lambda *_: (mask, mask, mask),
    )
    batch = Tensors(history=None, teacher=[rollout.ref_logp])
    loss: torch.Tensor = functions().distillation(loss_module, batch).loss_distill
    return loss


def sft(rollout: Rollout) -> torch.Tensor:
    """`SFTLoss._kl_to_ref`, times the tokens of the batch: their number is a constant there."""
    inside = rollout.completion_mask.bool()
    both = [rollout.logp[inside]], [rollout.ref_logp[inside]]
    loss: torch.Tensor = functions().sft(SimpleNamespace(kl_to_ref_coeff=1.0), *both)[0]
    return loss * inside.sum() / len(inside)


def in_reward(rollout: Rollout, *, ahead: bool) -> torch.Tensor:
    """`KLComputation._step` of the sampler, charged to its own token or to what was before it."""
    transform = SimpleNamespace(
        gen_log_probs_full_key="sampled",
        ref_log_probs_full_key="reference",
        kl_key="kl",
        add_to_reward=True,
        coeff=1.0,
    )
    nothing = torch.zeros_like(rollout.sampled_from).unsqueeze(-1)
    batch = Tensors(sampled=[rollout.sampled_from], reference=[rollout.ref_logp], reward=[nothing])
    (rewards,) = functions().reward(transform, batch, batch)["reward"]
    return charged(-rewards.squeeze(-1), rollout, ahead=ahead)


def _policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    return grpo(rollout, part="loss_objective", advantages=advantages)


_normalize = partial(whitened, eps=1e-12, floor="least")  # its deviation is at least 1e-6
_ANSWERS = Algorithm("GRPO", Recipe("group_std", normalize=_normalize), _MC, policy=_policy)
_OF_TOKENS = Algorithm("GRPO, by tokens", Recipe("whitened", normalize=_normalize), _MC, policy=_policy)
_K3 = "The log-ratios outside the mask are zeros, which the mean counts."


def _in_loss(aggregation: str) -> Setting:
    default = aggregation == "token_mean"
    return Setting(
        name="torchrl.kl_to_ref" + ("" if default else f"_{aggregation}"),
        option=f'GRPOLoss(kl_to_ref_coeff=..., aggregation="{aggregation}")',
        loss=partial(grpo, part="loss_kl_to_ref", aggregation=aggregation),
        place=GRPO,
        placement="loss",
        level="token",
        aggregation=_POSITIONS,
        default="of GRPOLoss once kl_to_ref_coeff > 0 (it is None by default)" if default else "",
        note=f"{_K3} Prompts are among its positions; aggregation is that of the policy loss alone.",
        algorithms=(_ANSWERS,),
        beta=0.0 if default else None,
    )


def _distilled(direction: str, normalized: bool) -> Setting:
    return Setting(
        name=f"torchrl.distillation_{direction}" + ("" if normalized else "_sums"),
        option=f'DistillationLoss(kl_direction="{direction}", normalize_by_seq_length={normalized})',
        loss=partial(distilled, kl_direction=direction, normalize_by_seq_length=normalized),
        place=DISTILLATION,
        placement="loss",
        level="token",
        aggregation=SEQUENCES if normalized else "sum over tokens, mean over sequences",
        default="of DistillationLoss" if normalized and direction == "reverse" else "",
        note="Its own documentation says that it does not have the gradient of a reverse KL."
        if direction == "reverse"
        else "It is meant for the teacher's samples; the audit has the student's.",
    )


def _in_reward(name: str, option: str, algorithm: Algorithm, note: str, ahead: bool) -> Setting:
    return Setting(
        name=f"torchrl.{name}",
        option=f"RetrieveKL(coeff=..., add_to_reward=True); {option}",
        loss=partial(in_reward, ahead=ahead),
        place=REWARD,
        placement="reward",
        level="sequence" if ahead else "token",
        aggregation="sum over the sequence" if ahead else "each token its own term",
        default="" if ahead else "of the reward once RetrieveKL is appended (its coeff is 1.0 by default)",
        note=note,
        algorithms=(algorithm,),
        beta=None if ahead else 0.0,
    )


FRAMEWORK = Framework(
    name="torchrl",
    title="torchrl",
    distribution="torchrl",
    versions=VERSIONS,
    settings=(
        *(_in_loss(aggregation) for aggregation in ("token_mean", "prompt_mean", "none")),
        Setting(
            name="torchrl.kl_to_inference",
            option="GRPOLoss(kl_to_inference_coeff=...)",
            loss=partial(grpo, part="loss_kl_to_inference"),
            place=GRPO,
            placement="loss",
            level="token",
            aggregation=_POSITIONS,
            note="The policy that sampled is in the place of the reference, which is not read.",
            algorithms=(_ANSWERS,),
        ),
        _in_reward(
            "reward",
            "MCAdvantage(trajectory_return=None)",
            _OF_TOKENS,
            "Divided by the deviation of all tokens' rewards in the answers to one prompt.",
            ahead=False,
        ),
        _in_reward(
            "reward_trajectory_sum",
            'MCAdvantage(trajectory_return="sum")',
            _ANSWERS,
            "What is summed over the tokens is the answer's reward too, where every token has it.",
            ahead=True,
        ),
        *(_distilled(direction, True) for direction in ("reverse", "forward")),
        _distilled("reverse", False),
        Setting(
            name="torchrl.sft_kl_to_ref",
            option="SFTLoss(kl_to_ref_coeff=...)",
            loss=sft,
            place=SFT,
            placement="loss",
            level="token",
            aggregation=TOKENS,
            note="Of expert iteration. The tokens that are counted are those of the whole conversation.",
        ),
    ),
    remedy=Remedy(
        sequence="torchrl.reward_trajectory_sum",
        token="torchrl.reward",
        words="In the loss there is none.",
    ),
)
