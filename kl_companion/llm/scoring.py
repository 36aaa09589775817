"""The log-probs that a trainer computes from the samples."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from kl_companion.checks import check_temperature
from kl_companion.llm.decoding import common_prefix, positions, read_after, saves_a_fifth, unpadded
from kl_companion.llm.generation import Samples, scores
from kl_companion.rollout import masked
from kl_companion.rollout.vocabularies import token_columns


def completion_logits(model: Any, samples: Samples, *, temperature: float = 1.0) -> torch.Tensor:
    """Logits of the completions, [batch, seq, vocab], with gradients: no sampling, no step by step.

    The vocabulary is that of the samples, without the columns that the model pads it with. Position t scores
    ``samples.tokens[:, t]``; the output layer sees completion positions only. Values at padding are finite
    and means nothing. A prompt that completions next to each other share is read once, and so is what all
    prompts begin with, where that saves a fifth of the tokens.

    Args:
        model: A causal language model; its mode and whether gradients are recorded are the caller's.
        samples: From `generate` or `answer_samples`.
        temperature: The logits are divided by it. The one that sampled.

    Returns:
        float32, float64 for a model in float64.

    Raises:
        ValueError: temperature not above 0.
    """
    check_temperature(temperature)
    prompts = _prompts(samples)
    count = 1 + sum(here != before for before, here in itertools.pairwise(prompts))
    logits = None
    if _worth_sharing(model, samples, count):
        logits = _with_shared_prompts(model, samples, prompts, count)
    if logits is None:
        logits = _row_by_row(model, samples)
    return scores(token_columns(logits, samples.vocab), temperature)


def with_output_inputs(
    model: Any, samples: Samples, *, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """`completion_logits`, and what the output layer reads at the same positions, [batch, seq, width]."""
    check_temperature(temperature)
    seen: list[torch.Tensor] = []
    layer = model.get_output_embeddings()
    watched = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        logits = _row_by_row(model, samples)
    finally:
        watched.remove()
    logits = scores(token_columns(logits, samples.vocab), temperature)
    return logits, seen[-1]  # the first may be of a prefix that all prompts share


def _prompts(samples: Samples) -> list[list[int]]:
    """Return the prompt of every completion on the host, without padding."""
    given = samples.prompts
    return unpadded(samples.prompt_tokens, samples.prompt_mask) if given is None else given


def _padded(samples: Samples, prompts: list[list[int]]) -> bool:
    return any(len(row) < samples.prompt_tokens.shape[1] for row in prompts)


def _row_by_row(model: Any, samples: Samples) -> torch.Tensor:
    prompts, (rows, length) = _prompts(samples), samples.tokens.shape
    tokens = torch.cat([samples.prompt_tokens, samples.tokens[:, :-1]], -1)
    prefix = None
    if not _recomputes(model):
        prefix = common_prefix(model, prompts, samples.prompt_tokens, samples.prompt_mask)
    if prefix is not None and saves_a_fifth((rows - 1) * prefix.tokens.shape[1], tokens.numel()):
        mask = torch.cat([prefix.mask, samples.attention_mask[:, :-1]], -1)
        rest = tokens[:, prefix.tokens.shape[1] :]
        return read_after(model, prefix, rest, mask, logits_to_keep=_last(rest, length)).logits
    options: dict[str, Any] = {}
    if _padded(samples, prompts):  # padding on the right is invisible to what comes before it
        mask = torch.cat([samples.prompt_mask, samples.attention_mask[:, :-1]], -1)
        options = {"attention_mask": mask, "position_ids": positions(mask)}
    return model(tokens, use_cache=False, logits_to_keep=_last(tokens, length), **options).logits


def _last(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """The last positions, as indices: a slice is a view, whose product rounds otherwise for frozen weights.

    Then a policy would differ from its own frozen copy, by 1e-6, which Adam turns into steps of full size.
    """
    return torch.arange(tokens.shape[1] - count, tokens.shape[1], device=tokens.device)


def _first_of_each_prompt(samples: Samples) -> torch.Tensor:
    """Where a row's prompt differs from that of the row before it, [batch] bool."""
    prompt = torch.stack([samples.prompt_tokens, samples.prompt_mask])
    new = (prompt[:, 1:] != prompt[:, :-1]).any(-1).any(0)
    return torch.cat([new.new_ones(1), new])


def _worth_sharing(model: Any, samples: Samples, prompts: int) -> bool:
    """Whether reading each prompt once saves a fifth of all tokens; a second call has its price too."""
    (rows, width), length = samples.prompt_tokens.shape, samples.tokens.shape[1]
    saved = length > 1 and saves_a_fifth((rows - prompts) * width, rows * (width + length))
    return saved and not _recomputes(model)


def _recomputes(model: Any) -> bool:
    """Whether activations are computed again for the gradient: then there is no cache while it trains."""
    return model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules())


def _with_shared_prompts(
    model: Any, samples: Samples, prompts: list[list[int]], count: int
) -> torch.Tensor | None:
    """The same logits, with each prompt read once for all of its completions; gradients flow through it.

    ``count`` is the number of prompts that differ from the one before. None for a model that keeps no cache.
    """
    new = _first_of_each_prompt(samples)
    alone = new.long().argsort(descending=True, stable=True)[:count]  # a mask as index would be read
    first: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    if _padded(samples, prompts):
        mask = torch.cat([samples.prompt_mask, samples.attention_mask[:, :-1]], -1)
        width = samples.prompt_mask.shape[1]
        first = {"attention_mask": mask[alone, :width], "position_ids": positions(mask)[alone, :width]}
        rest = {"attention_mask": mask, "position_ids": positions(mask)[:, width:]}
    tokens = samples.prompt_tokens[alone]
    out = model(tokens, use_cache=True, logits_to_keep=_last(tokens, 1), **first)
    belongs = new.cumsum(0) - 1
    if (cache := out.past_key_values) is None:
        return None
    cache.batch_select_indices(belongs)
    after = model(samples.tokens[:, :-1], past_key_values=cache, use_cache=True, **rest).logits
    return torch.cat([out.logits[belongs], after], 1)


def completion_logp(model: Any, samples: Samples, *, temperature: float = 1.0) -> torch.Tensor:
    """Log-prob of every choice, [batch, seq], 0 outside the mask. Arguments as `completion_logits`."""
    logp = completion_logits(model, samples, temperature=temperature).log_softmax(-1)
    return masked(logp.gather(-1, samples.tokens.unsqueeze(-1)).squeeze(-1), samples.completion_mask)
