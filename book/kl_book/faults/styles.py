"""Sound steps as different people write them: what the doctor must leave alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from kl_book.faults.steps import (
    BETA,
    Batch,
    averaged,
    frozen,
    k3_of,
    policy_terms,
    reference_logps,
    token_logps,
)


def by_cross_entropy(model: Any, ref_model: Any, inputs: Batch) -> dict[str, Any]:
    """Log-probs by cross-entropy with labels, divided by the tokens of the whole step."""
    labels = inputs["labels"][:, 1:]
    both = []
    for each in (model, frozen(ref_model)):
        logits = each(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
        nll = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
        both.append(-nll)
    ratio = torch.exp(both[0] - both[0].detach())
    terms = -ratio * inputs["advantages"].unsqueeze(1) + BETA * k3_of(both[0], both[1])
    return {"loss": (terms * (labels != -100)).sum() / inputs["num_items_in_batch"], "kl": 0.0}


def by_kl_div(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The KL of whole distributions, by `torch.nn.functional.kl_div`."""
    both = []
    for each in (model, frozen(ref_model)):
        logits = each(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        both.append(logits.log_softmax(-1))
    kl = functional.kl_div(both[1], both[0], reduction="none", log_target=True).sum(-1)
    logp = both[0].gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    return averaged(BETA * kl - batch["advantages"].unsqueeze(-1) * logp, batch["labels"][:, 1:] != -100)


def flattened(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The tokens of all answers one after the other, and ``backward`` inside of the step."""
    ids, inside = batch["input_ids"][:, 1:], batch["labels"][:, 1:] != -100
    both = []
    for each in (model, frozen(ref_model)):
        logits = each(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1][
            inside
        ]
        both.append(logits.log_softmax(-1).gather(-1, ids[inside].unsqueeze(-1)).squeeze(-1))
    advantages = batch["advantages"].repeat_interleave(inside.sum(-1))
    terms = BETA * 0.5 * (both[0] - both[1]) ** 2 - advantages * both[0]
    loss = terms.sum() / len(ids)
    loss.backward()
    return loss.detach()


def with_entropy(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """An entropy bonus beside the KL."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    whole = output.logits[:, batch["prompt_length"] - 1 : -1].log_softmax(-1)
    entropy = -(whole.exp() * whole).sum(-1)
    terms = policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp) - 0.01 * entropy
    return averaged(terms, batch["completion_mask"])


def kl_in_reward(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """K1 is taken off the rewards, whose mean is the baseline."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    mask = batch["completion_mask"]
    rewards = batch["rewards"] - BETA * ((logp.detach() - ref_logp) * mask).sum(-1)
    advantages = rewards - rewards.mean()
    return averaged(-advantages.unsqueeze(-1) * logp, mask)


def absolute(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The absolute log-ratio, in float32."""
    logp, ref_logp = token_logps(model, batch).float(), reference_logps(ref_model, batch).float()
    return averaged(policy_terms(logp, batch) + BETA * (logp - ref_logp).abs(), batch["completion_mask"])


def without_kl(model: Any, batch: Batch) -> torch.Tensor:
    """No KL, rewards without a baseline, and the ratio to a second pass of the same policy."""
    logp, old_logp = token_logps(model, batch), reference_logps(model, batch)
    ratio, rewards = torch.exp(logp - old_logp), batch["rewards"].unsqueeze(-1)
    terms = -torch.min(ratio * rewards, ratio.clamp(0.8, 1.2) * rewards)
    return averaged(terms, batch["completion_mask"])
