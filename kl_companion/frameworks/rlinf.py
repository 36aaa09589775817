"""RLinf: `kl_penalty` as its two back ends call it, and the KL that REINFORCE++ subtracts from rewards.

The actor of the FSDP back end hands the reference's log-probs over as the policy's and the other way round;
the actors of the Megatron back end do not. The calls stand in the middle of training loops: their order is
written here, and a test reads it in the installed files. `kl_penalty` and `masked_mean` are RLinf's own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import torch

from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.installed import Distribution, SourceLocation, known, load, loaded_from
from kl_companion.rollout import Rollout

__all__ = ["in_loss", "in_reward"]

BackEnd = Literal["fsdp", "megatron"]
CALLS = {
    "fsdp": SourceLocation("rlinf/workers/actor/fsdp_actor_worker.py", "FSDPActor.training_step"),
    "megatron": SourceLocation(
        "rlinf/workers/actor/megatron_actor_worker.py", "MegatronActor.get_forward_step_func"
    ),
}


@loaded_from(*known("rlinf"))
def functions(rlinf: Distribution) -> SimpleNamespace:
    """RLinf's own functions, out of the installed files; `Unavailable` without them."""
    return SimpleNamespace(
        **load(rlinf, "rlinf/algorithms/utils.py", "kl_penalty"),
        **load(rlinf, "rlinf/utils/utils.py", "masked_mean"),
    )


def in_loss(rollout: Rollout, *, back_end: BackEnd, kind: str) -> torch.Tensor:
    """`kl_penalty` as the actor of a back end orders its arguments, then `masked_mean` times the tokens.

    It divides by the number of tokens of the micro-batch, which is a constant there and not to one sequence.
    """
    both = (rollout.logp, rollout.ref_logp)
    kl = functions().kl_penalty(*(both[::-1] if back_end == "fsdp" else both), kind)
    loss: torch.Tensor = functions().masked_mean(kl, rollout.completion_mask.bool())
    return loss * rollout.completion_mask.sum() / len(rollout.tokens)


def in_reward(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """`kl_penalty` of the sampler, as `compute_reinpp_advantages` calls it, and its sums of what follows."""
    kl = functions().kl_penalty(rollout.sampled_from, rollout.ref_logp, kl_penalty=kind)
    return charged(kl, rollout, ahead=True)
