"""A KL term token by token, as training loops add and charge it: by the fused kernels where there is one.

The kernels keep no log-probs of whole rows and can be differentiated once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kl_companion.estimators.registry import Estimator
from kl_companion.estimators.top_k import TopK
from kl_companion.estimators.vocabulary import exact_forward_kl, exact_kl, f_divergence
from kl_companion.kernels.fused import fused_f_divergence, fused_logp, fused_top_k_f_divergence
from kl_companion.kl_term import KLTerm, ratio_of, tail_weights, weighted_estimates
from kl_companion.rollout import Rollout, masked, per_token


def token_terms(term: KLTerm, rollout: Rollout) -> torch.Tensor:
    """What every token adds to a trainer's loss, [batch, seq], differentiable and zero outside the mask.

    For trainers that sum over tokens themselves. At level "sequence" the estimate of a sequence is spread
    evenly over its tokens, so that any aggregation gives it the weight that the sequence's reward has.
    Arguments and errors as `weighted_estimates`, which computes it with the kernels.
    """
    mask = rollout.completion_mask
    x, rho = weighted_estimates(term, rollout, kernel_estimates)
    if term.level == "sequence":
        x, rho = x.unsqueeze(-1) / mask.sum(-1, keepdim=True), None if rho is None else rho.unsqueeze(-1)
    return masked((x if rho is None else x * rho).expand(mask.shape), mask)


def token_costs(term: KLTerm, rollout: Rollout) -> torch.Tensor:
    """The value of the estimate at every token by the kernels, detached, [batch, seq], zero outside the mask.

    A top-k estimator has the ratio of its term in the loss on its tail.
    """
    with torch.no_grad():
        rho = ratio_of(term, rollout) if term.entry.inputs == "top_k" else None
        x = kernel_estimates(term.entry, rollout, **tail_weights(rho))
        return masked(x, rollout.completion_mask)


def kernel_estimates(
    entry: Estimator, rollout: Rollout, *, tail_weight: torch.Tensor | None = None
) -> torch.Tensor:
    """The estimate at every token, [batch, seq]: by a fused kernel where there is one, else by its formula.

    Raises:
        ValueError: the rollout holds no logits and the estimator needs them.
    """
    options, kernel = tail_weights(tail_weight), _kernel(entry)
    if kernel is None or rollout.logits is None or rollout.ref_logits is None:
        return per_token(entry, rollout, **options)
    return kernel(rollout, **options)


def _kernel(entry: Estimator) -> Callable[..., torch.Tensor] | None:
    """The fused kernel of an estimator, a function of a rollout; None where there is none."""
    fn = entry.fn
    if isinstance(fn, TopK):
        known = fn.k is not None and fn.tail and fn.head_from != "sampler"
        return partial(_top_k, fn) if known else None
    exact = fn in (exact_kl, exact_forward_kl) or (isinstance(fn, partial) and fn.func is f_divergence)
    return partial(_exact, entry.target) if exact else None


def _exact(divergence: str, rollout: Any) -> torch.Tensor:
    """The kernel of an exact divergence, [batch, seq]: tokens outside the mask are not read."""
    return fused_f_divergence(divergence, rollout.logits, rollout.ref_logits, mask=rollout.completion_mask)


def _top_k(choices: Any, rollout: Any, tail_weight: torch.Tensor | None = None) -> torch.Tensor:
    """The kernel of a `TopK`, [batch, seq]."""
    logits, ref_logits, mask = rollout.logits, rollout.ref_logits, rollout.completion_mask
    if choices.k > logits.shape[-1]:
        raise ValueError(f"k is {choices.k}, expected at most {logits.shape[-1]}, the size of the vocabulary")
    scores = logits if choices.head_from == "policy" else ref_logits
    head = scores.detach().topk(choices.k, dim=-1).indices
    return fused_top_k_f_divergence(
        choices.divergence,
        logits,
        rollout.tokens,
        head,
        fused_logp(ref_logits, head, mask=mask) if choices.k else ref_logits[..., :0],
        rollout.ref_logp,
        form=choices.form,
        tail_weight=tail_weight,
        mask=mask,
    )
