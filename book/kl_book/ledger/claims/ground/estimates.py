"""The estimators of table 1 of emapg2026, written out from the paper and not taken from the package.

Each takes the log-probs of all tokens under policy and reference and gives the estimate for every token that
may be sampled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kl_book.ledger.claims.ground.sums import slopes

Estimate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def score_ratio(logp: torch.Tensor) -> torch.Tensor:
    """r = pi / sg(pi)."""
    return (logp - logp.detach()).exp()


def k1(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """-log w."""
    return -(ref_logp - logp)


def k2(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """(log w)^2 / 2."""
    return (ref_logp - logp) ** 2 / 2


def k3(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """-log w + w - 1."""
    return -(ref_logp - logp) + (ref_logp - logp).exp() - 1


def k3_plus_plus(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """r (-log w + w - 1)."""
    return score_ratio(logp) * k3(logp, ref_logp)


def k4(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """r sg(-log w)."""
    return score_ratio(logp) * k1(logp, ref_logp).detach()


def k5(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """sg(w) log w + log r."""
    log_w = ref_logp - logp
    return log_w.exp().detach() * log_w + score_ratio(logp).log()


SAMPLED: dict[str, Estimate] = {"K1": k1, "K2": k2, "K3": k3, "K3++": k3_plus_plus, "K4": k4, "K5": k5}


def exact_reverse(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """The whole sum, whatever was sampled."""
    return (logp.exp() * (logp - ref_logp)).sum().expand_as(logp)


def exact_forward(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """The whole sum, whatever was sampled."""
    return (ref_logp.exp() * (ref_logp - logp)).sum().expand_as(logp)


def top_k_estimate(
    logp: torch.Tensor, ref_logp: torch.Tensor, *, k: int, forward: bool = False, bregman: bool = False
) -> torch.Tensor:
    """Algorithms 1 and 2 on-policy; ``bregman`` adds to head and tail what makes every entry convex."""
    chosen = (ref_logp if forward else logp).detach().topk(k).indices
    inside = torch.zeros(len(logp), dtype=torch.bool).index_fill(0, chosen, True)
    p, q = logp.exp(), ref_logp.exp()
    head = q * (ref_logp - logp) if forward else p * (logp - ref_logp)
    tail = (k5 if forward else k4)(logp, ref_logp)
    if bregman:
        head = head + (p - q if forward else q - p)
        w, r = q.detach() / p.detach(), score_ratio(logp)
        tail = w * (ref_logp - logp) + r - w if forward else k3_plus_plus(logp, ref_logp)
    return head[inside].sum() + tail.where(~inside, 0.0)


def detached_forward(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """sg(w) log w."""
    return (q - p).exp().detach() * (q - p)


def full_square(logp: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """(log w)^2, without the half of K2."""
    return (logp - target) ** 2


def logp_slope(estimate: Estimate, logp: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Derivative of an estimate by the policy's log-prob, entry by entry: what multiplies the score."""
    return slopes(lambda x: estimate(x, target), logp)
