"""The ratio of the policy to the policy that sampled: in the graph, detached, clipped."""

from __future__ import annotations

import math
from typing import Literal

import torch

from kl_companion import checks
from kl_companion.rollout.batch import Rollout, check_rollout
from kl_companion.rollout.flags import Flags
from kl_companion.rollout.masks import masked

Scope = Literal["token", "prefix", "sequence"]
Missing = Literal["raise", "ignore"]
SCOPES: tuple[Scope, ...] = ("token", "prefix", "sequence")
MISSING: tuple[Missing, ...] = ("raise", "ignore")


def importance_ratio(
    rollout: Rollout, *, scope: Scope, clip: tuple[float, float] | None = None, missing: Missing = "raise"
) -> torch.Tensor:
    """Return rho = pi / sg(mu) of every token, kept in the graph, [batch, seq].

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
    check_rollout(rollout)
    flags = Flags()
    rho = flagged_ratio(rollout, scope, clip, missing, flags)
    flags.settle()
    return rho


def importance_weight(
    rollout: Rollout, *, scope: Scope, clip: tuple[float, float] | None = None, missing: Missing = "raise"
) -> torch.Tensor:
    """Return `importance_ratio` without its gradient, [batch, seq], with the same arguments and errors."""
    return importance_ratio(rollout, scope=scope, clip=clip, missing=missing).detach()


def flagged_ratio(
    rollout: Rollout, scope: Scope, clip: tuple[float, float] | None, missing: Missing, flags: Flags
) -> torch.Tensor:
    """Return `importance_ratio`, whose values are checked when ``flags`` are settled."""
    if clip is not None:
        checks.check_clip(clip)
    return _ratio(_log_ratio(rollout, scope, missing, flags), clip, flags)


def _log_ratio(rollout: Rollout, scope: Scope, missing: Missing, flags: Flags) -> torch.Tensor:
    """Return log pi - log sg(mu) of the scope, [batch, seq]; -inf where mu cannot have sampled."""
    checks.check_choice("scope", scope, SCOPES)
    checks.check_choice("missing", missing, MISSING)
    inside = rollout.completion_mask.bool()
    # half precision is widened first: there exp is 0 at log-probs of ordinary tokens
    never = (rollout.sampled_from.to(_wide(rollout.sampled_from)).exp() == 0) & inside
    if missing == "raise":
        _check_support(rollout, never, flags)
    log_ratio = masked(rollout.logp - rollout.sampled_from, inside).masked_fill(never, -torch.inf)
    if scope == "prefix":
        return log_ratio.cumsum(-1)
    if scope == "sequence":
        return log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    return log_ratio


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _check_support(rollout: Rollout, never: torch.Tensor, flags: Flags) -> None:
    """Refuse weights that cannot be right: mu gives no probability where the policy gives some."""
    sampler = rollout.sampled_from

    def complain_of_token() -> None:
        i, t = never.nonzero()[0].tolist()
        raise ValueError(
            f"behavior_logp[{i}, {t}] is {sampler[i, t].item():g}: a probability of 0, expected "
            "the positive probability with which the token was sampled: no weight makes up for tokens that "
            "are never sampled (missing='ignore' goes on without them)"
        )

    flags.add(never, complain_of_token)
    if rollout.logits is None or rollout.behavior_logits is None:
        return
    with torch.no_grad():
        policy = rollout.logp_all.exp()
        scores = rollout.behavior_logits
        behavior = scores.softmax(-1, dtype=_wide(scores))
        lost = (behavior == 0) & (policy > 0) & rollout.completion_mask.bool().unsqueeze(-1)

    def complain_of_row() -> None:
        i, t, token = lost.nonzero()[0].tolist()
        raise ValueError(
            f"the behavior policy gives token {token} at [{i}, {t}] probability 0, the policy "
            f"{policy[i, t, token].item():.3g}: expected mass wherever the policy has some, because no "
            "weight makes up for tokens that are never sampled (missing='ignore' goes on without them)"
        )

    flags.add(lost, complain_of_row)


def _ratio(log_ratio: torch.Tensor, clip: tuple[float, float] | None, flags: Flags) -> torch.Tensor:
    """Return the clipped exp of a log-ratio, which must be finite unless a clip makes it so."""
    weight = log_ratio.exp()
    infinite, largest = ~weight.detach().isfinite(), torch.finfo(weight.dtype).max

    def complain() -> None:
        i, t = infinite.nonzero()[0].tolist()
        raise ValueError(
            f"the importance ratio is infinite at [{i}, {t}], log-ratio {log_ratio[i, t].item():.4g}: "
            f"expected log-ratios of at most {math.log(largest):.1f} in {weight.dtype}, because pi and "
            "mu are too far apart (a clip bounds the ratio)"
        )

    if clip is None or clip[1] > largest:
        flags.add(infinite, complain)
    else:
        flags.add(log_ratio.detach().isnan(), complain)
        # an infinite weight is replaced before the clip, which would multiply its infinite gradient by zero
        weight = log_ratio.masked_fill(infinite, 0.0).exp().masked_fill(infinite, largest)
    return weight if clip is None else weight.clamp(*clip)
