"""Steps for the doctor, written from few parts, with hooks for what a test changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.step import ExaminedStep
from kl_companion.monitor.doctor.subject import Declared


def log_probs(model: Any, batch: Any, temperature: float = 1.0, **more: Any) -> torch.Tensor:
    """Of the completion's tokens, [batch, seq]."""
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], **more}
    logits = model(**given).logits[:, batch["prompt_length"] - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)


def k3(logp: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Of every token."""
    return torch.exp(ref - logp) - (ref - logp) - 1


def probe(step: Callable[..., Any], *, summed: bool = False, **declared: Any) -> Probe:
    """The experiments on a step, with what its user says of it."""
    return Probe(ExaminedStep(step, Declared(**declared), summed=summed))


def by_answer(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sums over tokens, averaged over answers."""
    return (x * mask).sum(-1).mean()


def step_of(
    kl: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda logp, ref: 0.05 * (logp - ref) ** 2,
    policy: Callable[[torch.Tensor, Any], torch.Tensor] = lambda logp, batch: (
        -torch.exp(logp - batch["old_log_probs"]) * batch["advantages"].unsqueeze(-1)
    ),
    mask: Callable[[Any], torch.Tensor] = lambda batch: batch["completion_mask"],
    reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = by_answer,
    temperatures: tuple[float, float] = (1.0, 1.0),
) -> Callable[..., torch.Tensor]:
    """A step with a term of the KL and one of the policy.

    Args:
        kl: Of the log-probs of policy and reference, [batch, seq].
        policy: Of the log-probs and the batch.
        mask: Of the batch.
        reduce: From terms and mask to the loss.
        temperatures: Of policy and reference.
    """

    def step(model: Any, ref_model: Any, batch: Any) -> torch.Tensor:
        logp = log_probs(model, batch, temperatures[0])
        with torch.no_grad():
            ref = log_probs(ref_model, batch, temperatures[1])
        return reduce(policy(logp, batch) + kl(logp, ref), mask(batch))

    return step


def reinforce(
    at: Any, advantages: torch.Tensor, beta: float, temperature: float = 1.0
) -> tuple[float, torch.Tensor]:
    """REINFORCE with K2 in the loss: its value, and its gradient by the policy's table."""
    rollout = at.rollout
    logits = rollout.logits.detach().clone().requires_grad_()
    pick, mask = rollout.tokens.unsqueeze(-1), rollout.completion_mask

    def scored(x: torch.Tensor) -> torch.Tensor:
        return (x / temperature).log_softmax(-1).gather(-1, pick).squeeze(-1)

    logp, ref = scored(logits), scored(rollout.ref_logits)
    old = logp.detach() if rollout.behavior_logits is None else scored(rollout.behavior_logits)
    terms = beta * (logp - ref) ** 2 / 2 - (logp - old).exp() * advantages.unsqueeze(-1)
    loss = (terms * mask).sum(-1).mean()
    return loss.item(), torch.autograd.grad(loss, logits)[0]
