"""The log-probs that a trainer computes from the samples, and how far they are from the sampler's."""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.estimators.sampled import k1, k3
from kl_companion.llm.decoding import positions
from kl_companion.llm.generation import Samples, scores
from kl_companion.rollout import masked


def completion_logits(model: Any, samples: Samples, *, temperature: float = 1.0) -> torch.Tensor:
    """Logits of the completions, [batch, seq, vocab], in one forward over prompt and completion.

    Position t scores ``samples.tokens[:, t]``; the output layer sees completion positions only. What stands
    at padding is finite and means nothing.

    Args:
        model: A causal language model; its mode and whether gradients are recorded are the caller's.
        samples: From `generate` or `answer_samples`.
        temperature: The logits are divided by it. The one that sampled.

    Returns:
        float32, float64 for a model in float64.

    Raises:
        ValueError: temperature not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected above 0")
    length = samples.tokens.shape[1]
    tokens = torch.cat([samples.prompt_tokens, samples.tokens[:, :-1]], -1)
    options: dict[str, Any] = {}
    if not bool(samples.prompt_mask.all()):  # padding on the right is invisible to what comes before it
        mask = torch.cat([samples.prompt_mask, samples.attention_mask[:, :-1]], -1)
        options = {"attention_mask": mask, "position_ids": positions(mask)}
    logits = model(tokens, use_cache=False, logits_to_keep=length, **options).logits
    return scores(logits[:, -length:], temperature)


def completion_logp(model: Any, samples: Samples, *, temperature: float = 1.0) -> torch.Tensor:
    """Log-prob of every choice, [batch, seq], 0 outside the mask. Arguments as `completion_logits`."""
    logp = completion_logits(model, samples, temperature=temperature).log_softmax(-1)
    return masked(logp.gather(-1, samples.tokens.unsqueeze(-1)).squeeze(-1), samples.completion_mask)


def compare_logp(model: Any, samples: Samples, *, temperature: float = 1.0) -> dict[str, float]:
    """How far the trainer's log-probs are from the sampler's, on the sampler's own choices.

    One and the same policy has two values where the two forwards round differently (bfloat16, other kernels):
    then training is off-policy without a step in between.

    Returns:
        ``max`` and ``mean`` of |trainer - sampler| over choices; ``k1`` and ``k3``, two estimates of
        KL(sampler || trainer) in nats per sequence.
    """
    with torch.no_grad():
        inside = samples.completion_mask.bool()
        trainer = completion_logp(model, samples, temperature=temperature).double()
        sampler = samples.behavior_logp.double()
        off = (trainer - sampler)[inside].abs()
        rows = len(samples.tokens)
        return {
            "max": off.max().item(),
            "mean": off.mean().item(),
            "k1": k1(sampler, trainer)[inside].sum().item() / rows,
            "k3": k3(sampler, trainer)[inside].sum().item() / rows,
        }
