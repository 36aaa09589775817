"""An estimator at every token of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kl_companion import checks
from kl_companion.estimators.registry import Estimator, as_estimator
from kl_companion.rollout.batch import Rollout, check_rollout
from kl_companion.rollout.masks import inside_rows, masked


def per_token(
    estimator: str | Estimator | Callable[..., torch.Tensor], rollout: Rollout, **options: Any
) -> torch.Tensor:
    """The estimate at every token, [batch, seq]: the only place that chooses sampled or vocabulary inputs.

    Log-probs outside the mask are read as 0, so that nothing there, NaN included, reaches a gradient.

    Args:
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``.
        rollout: Where the log-probs come from.
        **options: Passed on to the estimator: ``tail_weight`` [batch, seq] of a top-k one.

    Raises:
        ValueError: unknown name, or whole distributions are needed and the rollout has no logits.
    """
    check_rollout(rollout)
    entry = as_estimator(estimator)
    inside = rollout.completion_mask.bool()
    if entry.inputs == "sampled":
        return entry.fn(masked(rollout.logp, inside), masked(rollout.ref_logp, inside), **options)
    for name in ("logits", "ref_logits"):
        if getattr(rollout, name) is None:
            raise ValueError(f"{entry.name} needs {name}; this Rollout holds sampled log-probs only")
    if entry.inputs == "top_k":
        return _top_k(entry, rollout, inside, options)
    return entry.fn(*(inside_rows(x, inside) for x in (rollout.logp_all, rollout.ref_logp_all)), **options)


def _top_k(entry: Estimator, rollout: Rollout, inside: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """Return a top-k estimate of every token, zero outside the mask: padding has no token to sample."""
    logp_all, ref_logp_all = (inside_rows(x, inside) for x in (rollout.logp_all, rollout.ref_logp_all))
    # a copy of the sampler's rows is as large as the policy's: only for those who take their head from it
    reads_sampler = getattr(entry.fn, "head_from", "sampler") == "sampler"
    if reads_sampler and rollout.behavior_logits is not None:
        options = {"behavior_logp_all": inside_rows(rollout.behavior_logp_all, inside), **options}
    elif reads_sampler and rollout.behavior_logp is None:  # on-policy: the policy is the sampler
        options = {"behavior_logp_all": logp_all.detach(), **options}
    weight = options.get("tail_weight")
    if weight is not None:
        checks.check_shape("tail_weight", weight, inside.shape, "completion_mask [batch, seq]")
        options = {**options, "tail_weight": masked(weight, inside)}
    tokens = rollout.tokens.where(inside, 0)  # padding may contain any id
    return masked(entry.fn(logp_all, ref_logp_all, tokens, **options), inside)
