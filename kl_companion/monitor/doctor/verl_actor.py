"""verl's actor update on the small world: verl's own `ppo_loss`, advantages included, out of installed files.

verl's forward pass needs Ray and a cluster's worker; here its log-probs are those of the tiny model, at the
temperature that verl divides by. What is examined is the loss that its actor differentiates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kl_companion.frameworks.verl import Batch, Configuration
from kl_companion.frameworks.verl_algorithms import core, ppo_loss


class _Data(Batch):
    """A batch as `ppo_loss` reads verl's data protocol: it selects and pads."""

    def select(self, *names: str) -> _Data:
        """The same with these entries only."""
        return _Data({name: self[name] for name in names})

    def to_padded_tensor(self) -> _Data:
        """Itself: it is padded."""
        return self


def actor_step(
    *,
    advantage: str = "compute_grpo_outcome_advantage",
    temperature: float = 1.0,
    kl_loss_coef: float = 0.001,
    kl_loss_type: str = "low_var_kl",
    use_kl_loss: bool = True,
    loss_agg_mode: str = "token-mean",
) -> Callable[[Any, Any], torch.Tensor]:
    """A function ``step(model, batch)`` for `diagnose`, with verl's settings by verl's names and defaults.

    WorldGradients of its micro-batches are added up (``summed=True``), as verl's engine does.

    Args:
        advantage: A function of `verl.trainer.ppo.core_algos` that makes advantages of rewards and groups.
        temperature: Of the rollout, by which verl divides the actor's logits.
        kl_loss_coef: Of ``actor_rollout_ref.actor``.
        kl_loss_type: Likewise.
        use_kl_loss: Likewise.
        loss_agg_mode: Likewise.

    Raises:
        Unavailable: verl is not installed, in a version that is known.
    """
    examined_loss, estimator = ppo_loss(), core(advantage)
    settings = {
        "clip_ratio": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.2,
        "entropy_coeff": 0.0,
        "loss_scale_factor": None,
        "policy_loss": Configuration(loss_mode="vanilla"),
        "use_kl_loss": use_kl_loss,
        "kl_loss_coef": kl_loss_coef,
        "kl_loss_type": kl_loss_type,
        "loss_agg_mode": loss_agg_mode,
    }

    def verl_actor(model: Any, batch: Any) -> torch.Tensor:
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = output.logits[:, batch["prompt_length"] - 1 : -1] / temperature
        logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
        data = _Data(
            response_mask=batch["response_mask"],
            old_log_probs=batch["old_log_probs"],
            ref_log_prob=batch["ref_log_prob"],
            advantages=batch["advantages"],
            dp_size=1,
            batch_num_tokens=batch["num_items_in_batch"],
            global_batch_size=batch["answers_in_batch"],
        )
        config = Configuration(**settings, global_batch_info={})
        loss: torch.Tensor
        loss, _ = examined_loss(config, {"log_probs": logp}, data)
        return loss

    def advantages(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        last = torch.zeros_like(mask, dtype=rewards.dtype)
        last[torch.arange(len(mask)), mask.sum(-1) - 1] = rewards
        found: torch.Tensor
        found, _ = estimator(last, mask, [0] * len(mask))
        return found

    verl_actor.advantages = advantages  # type: ignore[attr-defined]
    return verl_actor
