"""A training step as it stands in a small project, and the same with one mistake in it, marked ``# fault``.

Every mistake is one that has been made: most of them run without an error, and the loss goes down.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

BETA = 0.1
Batch = Any


def token_logps(model: Any, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of the completion's tokens, [batch, seq]."""
    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    logits = output.logits[:, batch["prompt_length"] - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)


def reference_logps(model: Any, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """The same without a gradient."""
    with torch.no_grad():
        return token_logps(model, batch, temperature)


def frozen(model: Any) -> Any:
    """The same model without gradients, called like it."""

    def forward(**inputs: Any) -> Any:
        with torch.no_grad():
            return model(**inputs)

    return forward


def k3_of(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """K3 of every token."""
    log_ratio = ref_logp - logp
    return torch.exp(log_ratio) - log_ratio - 1


def averaged(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum over tokens, mean over answers: the same in any micro-batch."""
    return (x * mask).sum(-1).mean()


def policy_terms(logp: torch.Tensor, batch: Batch) -> torch.Tensor:
    """PPO's clipped terms, [batch, seq]."""
    ratio = torch.exp(logp - batch["old_log_probs"])
    advantages = batch["advantages"].unsqueeze(-1)
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def sound(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Nothing is wrong with it."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    kl = 0.5 * (logp - ref_logp) ** 2
    return averaged(policy_terms(logp, batch) + BETA * kl, batch["completion_mask"])


def exchanged(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """K3 with its arguments in the wrong order."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    log_ratio = logp - ref_logp  # fault
    kl = torch.exp(log_ratio) - log_ratio - 1
    return averaged(policy_terms(logp, batch) + BETA * kl, batch["completion_mask"])


def exchanged_models(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The KL's gradient is asked of the reference."""
    ref_logp = token_logps(ref_model, batch)
    logp = reference_logps(model, batch)
    kl = 0.5 * (logp - ref_logp) ** 2  # fault
    policy = policy_terms(token_logps(model, batch), batch)
    return averaged(policy + BETA * kl, batch["completion_mask"])


def without_mask(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Padding counts."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    terms = policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp)
    return terms.sum(-1).mean()  # fault


def shifted_mask(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Logits were shifted, the mask was not."""
    ids, labels = batch["input_ids"], batch["labels"]
    both = []
    for each in (model, frozen(ref_model)):
        logits = each(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, :-1]
        both.append(logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1))
    mask = (labels != -100)[:, :-1]  # fault
    kl = k3_of(both[0], both[1])
    return averaged(kl, mask)


def shifted_tokens(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Logits score the token that they have just read."""
    both = []
    for each in (model, frozen(ref_model)):
        output = each(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = output.logits[:, batch["prompt_length"] - 1 : -1]
        scored = batch["input_ids"][:, batch["prompt_length"] - 1 : -1].unsqueeze(-1)
        both.append(logits.log_softmax(-1).gather(-1, scored).squeeze(-1))  # fault
    logp, ref_logp = both[0], both[1]
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def prompt_in_kl(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The KL of prompt tokens, too."""
    ids, attention = batch["input_ids"], batch["attention_mask"]
    both = []
    for each in (model, frozen(ref_model)):
        logits = each(input_ids=ids, attention_mask=attention).logits[:, :-1]
        both.append(logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1))
    kl = averaged(k3_of(both[0], both[1]), attention[:, 1:])  # fault
    policy = averaged(policy_terms(token_logps(model, batch), batch), batch["completion_mask"])
    return policy + BETA * kl


def without_eos(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """A mask from ids, where padding has the id of the end."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    mask = batch["completion_mask"] * (batch["completion_ids"] != 1)  # fault
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), mask)


def token_mean(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The mean over the tokens of a micro-batch, accumulated over several."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    terms, mask = policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"]
    return (terms * mask).sum() / mask.sum()  # fault


def merged_reference(model: Any, batch: Batch) -> torch.Tensor:
    """Adapters are merged before the reference is asked."""
    merged = model.merge_and_unload()  # fault
    ref_logp = reference_logps(merged, batch)
    logp = token_logps(model, batch)
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def adapters_on(model: Any, batch: Batch) -> torch.Tensor:
    """The reference is asked with the adapters on."""
    logp = token_logps(model, batch)
    ref_logp = reference_logps(model, batch)  # fault
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def adapters_off(model: Any, batch: Batch) -> torch.Tensor:
    """Nothing is wrong with it: the reference is the model without its adapters."""
    logp = token_logps(model, batch)
    with model.disable_adapter():
        ref_logp = reference_logps(model, batch)
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def following_reference(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The reference is made from the current policy in every step."""
    ref_model = copy.deepcopy(model)
    ref_logp = reference_logps(ref_model, batch)  # fault
    logp = token_logps(model, batch)
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def synced_reference(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The reference is given the policy's weights in every step."""
    ref_model.load_state_dict(model.state_dict())
    logp = token_logps(model, batch)
    ref_logp = reference_logps(ref_model, batch)  # fault
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def with_temperature(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Nothing is wrong with it where samples are drawn at 0.7."""
    logp, ref_logp = token_logps(model, batch, 0.7), reference_logps(ref_model, batch, 0.7)
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def without_temperature(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Samples are drawn at 0.7, log-probs are those at 1."""
    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    logits = output.logits[:, batch["prompt_length"] - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)  # fault
    ref_logp = reference_logps(ref_model, batch)
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def truncated_sampler(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Samples are drawn with top-p, and nothing of it is here."""
    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    logits = output.logits[:, batch["prompt_length"] - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)  # fault
    kl = k3_of(logp, reference_logps(ref_model, batch))
    return averaged(-batch["advantages"].unsqueeze(-1) * logp + BETA * kl, batch["completion_mask"])


def hot_reference(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The policy's logits are divided by the temperature, the reference's are not."""
    logp = token_logps(model, batch, 0.7)
    ref_logp = reference_logps(ref_model, batch)  # fault
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def recomputed_old(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Old log-probs from the policy as it is now, in each of several updates on a batch."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    old_logp = reference_logps(model, batch)  # fault
    ratio, advantages = torch.exp(logp - old_logp), batch["advantages"].unsqueeze(-1)
    policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return averaged(policy + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def packed(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Answers in one row, and nothing that keeps them apart."""
    inside = batch["attention_mask"].bool()
    row = batch["input_ids"][inside].unsqueeze(0)
    counts = (batch["labels"] != -100)[inside].unsqueeze(0)
    both = []
    for each in (model, frozen(ref_model)):
        logits = each(input_ids=row).logits[:, :-1]  # fault
        both.append(logits.log_softmax(-1).gather(-1, row[:, 1:, None]).squeeze(-1))
    kl = k3_of(both[0], both[1])
    return (kl * counts[:, 1:]).sum()


def packed_apart(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Nothing is wrong with it: position ids begin again with every answer."""
    inside = batch["attention_mask"].bool()
    row = batch["input_ids"][inside].unsqueeze(0)
    places = batch["position_ids"][inside].unsqueeze(0)
    counts = (batch["labels"] != -100)[inside].unsqueeze(0)
    both = []
    for each in (model, frozen(ref_model)):
        logits = each(input_ids=row, position_ids=places).logits[:, :-1]
        both.append(logits.log_softmax(-1).gather(-1, row[:, 1:, None]).squeeze(-1))
    kl = k3_of(both[0], both[1])
    return (kl * counts[:, 1:]).sum() / len(batch["input_ids"])


def unmasked_attention(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Prompts are padded on the left, and the model is not told."""
    output = model(input_ids=batch["input_ids"])  # fault
    logits = output.logits[:, batch["prompt_length"] - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
    ref_logp = reference_logps(ref_model, batch)
    return averaged(policy_terms(logp, batch) + BETA * k3_of(logp, ref_logp), batch["completion_mask"])


def kl_times_advantage(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """A bracket in the wrong place."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    ratio, kl = torch.exp(logp - batch["old_log_probs"]), k3_of(logp, ref_logp)
    terms = -(ratio - BETA * kl) * batch["advantages"].unsqueeze(-1)  # fault
    return averaged(terms, batch["completion_mask"])


def clipped_value(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The KL of a token is clipped, and with it its gradient."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    kl = torch.clamp(k3_of(logp, ref_logp), max=10.0)  # fault
    return averaged(policy_terms(logp, batch) + BETA * kl, batch["completion_mask"])


def subtracted(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The sign of a penalty on the reward, in the loss."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    terms = policy_terms(logp, batch) - BETA * k3_of(logp, ref_logp)  # fault
    return averaged(terms, batch["completion_mask"])


def k1_in_loss(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """K1, whose gradient does not depend on the reference and has expectation 0."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    kl = logp - ref_logp  # fault
    return averaged(policy_terms(logp, batch) + BETA * kl, batch["completion_mask"])


def trained_reference(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """Gradients go into the reference."""
    logp = token_logps(model, batch)
    ref_logp = token_logps(ref_model, batch)  # fault
    kl = 0.5 * (logp - ref_logp) ** 2
    return averaged(policy_terms(logp, batch) + BETA * kl, batch["completion_mask"])


def detached_kl(model: Any, ref_model: Any, batch: Batch) -> torch.Tensor:
    """The KL is in the loss, and has no gradient."""
    logp, ref_logp = token_logps(model, batch), reference_logps(ref_model, batch)
    kl = k3_of(logp.detach(), ref_logp)  # fault
    return averaged(policy_terms(logp, batch) + BETA * kl, batch["completion_mask"])
