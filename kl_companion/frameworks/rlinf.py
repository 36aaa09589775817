"""RLinf: `kl_penalty` as its two back ends call it, and the KL that REINFORCE++ subtracts from rewards.

The actor of the FSDP back end hands the reference's log-probs over as the policy's and the other way round;
the actors of the Megatron back end do not. The calls stand in the middle of training loops: their order is
written here, and a test reads it in the installed files. `kl_penalty` and `masked_mean` are RLinf's own.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Literal

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.installed import Distribution, SourceLocation, load, loaded_from
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

VERSIONS = ("0.3.0",)
BackEnd = Literal["fsdp", "megatron"]
CALLS = {
    "fsdp": SourceLocation("rlinf/workers/actor/fsdp_actor_worker.py", "FSDPActor.training_step"),
    "megatron": SourceLocation(
        "rlinf/workers/actor/megatron_actor_worker.py", "MegatronActor.get_forward_step_func"
    ),
}
_ADVANTAGES = "rlinf/algorithms/advantages.py"
_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-6),
    SourceLocation(_ADVANTAGES, "compute_grpo_advantages"),
)
_PLUS_PLUS = Algorithm(
    "REINFORCE++",
    Recipe("whitened", eps=1e-8),
    SourceLocation(_ADVANTAGES, "compute_reinpp_advantages"),
    when="algorithm: adv_type=reinpp",
)


@loaded_from("rlinf", VERSIONS)
def functions(rlinf: Distribution) -> SimpleNamespace:
    """RLinf's own functions, out of the installed files; `Unavailable` without them."""
    return SimpleNamespace(
        **load(rlinf, "rlinf/algorithms/utils.py", "kl_penalty"),
        **load(rlinf, "rlinf/utils/utils.py", "masked_mean"),
    )


def in_loss(back_end: BackEnd, kind: str, rollout: Rollout) -> torch.Tensor:
    """`kl_penalty` as the actor of a back end orders its arguments, then `masked_mean` times the tokens.

    It divides by the number of tokens of the micro-batch, which is a constant there and not to one sequence.
    """
    both = (rollout.logp, rollout.ref_logp)
    kl = functions().kl_penalty(*(both[::-1] if back_end == "fsdp" else both), kind)
    loss: torch.Tensor = functions().masked_mean(kl, rollout.completion_mask.bool())
    return loss * rollout.completion_mask.sum() / len(rollout.tokens)


def in_reward(kind: str, rollout: Rollout) -> torch.Tensor:
    """`kl_penalty` of the sampler, as `compute_reinpp_advantages` calls it, and its sums of what follows."""
    kl = functions().kl_penalty(rollout.sampled_from, rollout.ref_logp, kl_penalty=kind)
    return charged(kl, rollout, ahead=True)


def _in_loss(back_end: BackEnd, kind: str) -> Setting:
    shipped = kind == "low_var_kl"
    return Setting(
        name=f"rlinf.{back_end}_loss_{kind}",
        option=f"algorithm: kl_beta=0.001, kl_penalty_type={kind}; actor: training_backend={back_end}",
        loss=partial(in_loss, back_end, kind),
        place=CALLS[back_end],
        placement="loss",
        level="token",
        aggregation="token-mean: sum / tokens of the micro-batch",
        default=f"of shipped configurations of {back_end} once kl_beta > 0" if shipped else "",
        note="kl_penalty is called with the reference in the place of the policy."
        if back_end == "fsdp"
        else "",
        algorithms=(_GRPO,),
        beta=0.0 if shipped else None,
    )


def _in_reward(kind: str) -> Setting:
    shipped = kind == "k2"
    return Setting(
        name=f"rlinf.reward_{kind}",
        option=f"algorithm: adv_type=reinpp, reinpp_kl_beta=0.001, kl_penalty_type={kind}",
        loss=partial(in_reward, kind),
        place=_PLUS_PLUS.place,
        placement="reward",
        level="sequence",
        aggregation="sum of what follows",
        default="of the shipped configuration of REINFORCE++ (reinpp_kl_beta 0.001)" if shipped else "",
        note="The arguments of kl_penalty are in order here, on both back ends.",
        algorithms=(_PLUS_PLUS._replace(when=""),),
        beta=0.001 if shipped else None,
    )


_KINDS = ("low_var_kl", "k1", "k2", "abs")
_BACK_ENDS: tuple[BackEnd, ...] = ("fsdp", "megatron")

FRAMEWORK = Framework(
    name="rlinf",
    title="RLinf",
    distribution="rlinf",
    versions=VERSIONS,
    settings=(
        *(_in_loss(back_end, kind) for back_end in _BACK_ENDS for kind in _KINDS),
        *(_in_reward(kind) for kind in _KINDS),
    ),
    remedy=Remedy(
        sequence="rlinf.reward_k1",
        token="rlinf.fsdp_loss_k2",
        words="k2 is the same whichever argument comes first, on both back ends, and has the token-level "
        "gradient on-policy only. The reward's penalty is there with adv_type=reinpp alone.",
    ),
)
