"""The ratio of the policy to the policy that sampled: in the graph, detached, clipped."""

from __future__ import annotations

import math
from typing import Literal

import torch

from kl_companion import checks
from kl_companion.rollout.batch import Rollout, clean, masked

Scope = Literal["token", "prefix", "sequence"]
Missing = Literal["raise", "ignore"]
SCOPES: tuple[Scope, ...] = ("token", "prefix", "sequence")
MISSING: tuple[Missing, ...] = ("raise", "ignore")


def _log_ratio(rollout: Rollout, scope: Scope, missing: Missing) -> torch.Tensor:
    """log pi - log mu of the scope, [batch, seq]; -inf where mu cannot have sampled; mu is detached."""
    checks.check_choice("scope", scope, SCOPES)
    checks.check_choice("missing", missing, MISSING)
    inside = rollout.completion_mask.bool()
    # half precision is widened first: there exp is 0 at log-probs of ordinary tokens
    never = (rollout.sampled_from.to(_wide(rollout.sampled_from)).exp() == 0) & inside
    if missing == "raise":
        _check_support(rollout, never)
    log_ratio = masked(rollout.logp - rollout.sampled_from, rollout.completion_mask)
    log_ratio = log_ratio.masked_fill(never, -torch.inf)
    if scope == "prefix":
        return log_ratio.cumsum(-1)
    if scope == "sequence":
        return log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    return log_ratio


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _check_support(rollout: Rollout, never: torch.Tensor) -> None:
    """Refuse weights that cannot be right: mu gives no probability where the policy gives some."""
    if never.any():
        i, t = never.nonzero()[0].tolist()
        raise ValueError(
            f"behavior_logp[{i}, {t}] is {rollout.sampled_from[i, t].item():g}: a probability of 0, expected "
            "the positive probability with which the token was sampled: no weight makes up for tokens that "
            "are never sampled (missing='ignore' goes on without them)"
        )
    if rollout.logits is None or rollout.behavior_logits is None:
        return
    with torch.no_grad():
        policy = rollout.logp_all.exp()
        scores = clean(rollout.behavior_logits, rollout.completion_mask)
        behavior = scores.softmax(-1, dtype=_wide(scores))
        lost = (behavior == 0) & (policy > 0) & rollout.completion_mask.bool().unsqueeze(-1)
    if lost.any():
        i, t, token = lost.nonzero()[0].tolist()
        raise ValueError(
            f"the behavior policy gives token {token} at [{i}, {t}] probability 0, the policy "
            f"{policy[i, t, token].item():.3g}: expected mass wherever the policy has some, because no "
            "weight makes up for tokens that are never sampled (missing='ignore' goes on without them)"
        )


def _ratio(log_ratio: torch.Tensor, clip: tuple[float, float] | None) -> torch.Tensor:
    """Clipped exp of a log-ratio; ValueError where it is infinite and no clip makes it finite."""
    weight = log_ratio.exp()
    # an infinite weight is replaced before the clip, which would multiply its infinite gradient by zero
    broken = ~weight.detach().isfinite()
    if broken.any():
        largest = torch.finfo(weight.dtype).max
        if clip is None or clip[1] > largest or log_ratio.detach().isnan().any():
            i, t = broken.nonzero()[0].tolist()
            raise ValueError(
                f"the importance ratio is infinite at [{i}, {t}], log-ratio {log_ratio[i, t].item():.4g}: "
                f"expected log-ratios of at most {math.log(largest):.1f} in {weight.dtype}, because pi and "
                "mu are too far apart (a clip bounds the ratio)"
            )
        weight = log_ratio.masked_fill(broken, 0.0).exp().masked_fill(broken, largest)
    return weight if clip is None else weight.clamp(*clip)


def importance_ratio(
    rollout: Rollout, *, scope: Scope, clip: tuple[float, float] | None = None, missing: Missing = "raise"
) -> torch.Tensor:
    """rho = pi / sg(mu) of every token, kept in the graph, [batch, seq].

    On-policy it is 1 everywhere, and its gradient is the score: what a literal 1 would lose.

    Args:
        rollout: Without ``behavior_logp`` the policy itself sampled.
        scope: ``"token"``: of the token itself; ``"prefix"``: of the sequence up to and including it;
            ``"sequence"``: of the whole sequence.
        clip: (lowest, highest) ratio; no gradient passes outside. None leaves it free.
        missing: ``"raise"`` refuses a behavior policy that gives probability 0 where the policy has
            mass (seen only where the rollout holds both distributions); ``"ignore"`` goes on with what
            was sampled.

    Raises:
        ValueError: unknown choice, a clip range that is not 0 <= lowest <= highest, missing support, or a
            ratio that the dtype does not hold and no clip bounds.

    Source: wang2025choosing, section 2.1.
    """
    if clip is not None:
        checks.check_clip(clip)
    return _ratio(_log_ratio(rollout, scope, missing), clip)


def importance_weight(
    rollout: Rollout, *, scope: Scope, clip: tuple[float, float] | None = None, missing: Missing = "raise"
) -> torch.Tensor:
    """sg(rho): `importance_ratio` without its gradient, [batch, seq]; arguments and errors as there."""
    return importance_ratio(rollout, scope=scope, clip=clip, missing=missing).detach()
