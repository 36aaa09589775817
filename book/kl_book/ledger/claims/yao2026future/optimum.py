"""Section 5.2: the best policy, and what it makes of rewards along an answer (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, same
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.updates import every_token, regularized
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import trees, worlds

BETA = 0.7


def optimal(w: Enumeration) -> Enumeration:
    """The world whose policy over sequences is pi_ref exp(r / beta), normalized; prefix by prefix."""
    p = w.problem
    weight = p.token_logp(p.ref_logits).sum(-1).exp() * (w.R / BETA).exp()
    mass = torch.zeros_like(p.logits)
    mass.index_put_((p.rows, p.sequences), weight[:, None] * p.completion_mask, accumulate=True)
    return w.replace(logits=mass.log())


@claim("FRPO-T5.1", over=each(worlds))
def the_best_policy(w: Enumeration) -> Iterator[Found]:
    """There the gradient is 0, and every other policy has beta KL(policy || best) less."""
    best = optimal(w)
    value, gradient = regularized(best.problem, BETA)
    yield same(gradient, 0.0)
    below = value - regularized(w.problem, BETA)[0]
    yield same(below, BETA * w.replace(ref_logits=best.problem.logits).kl)
    yield differs(below, 0.0)


@claim("FRPO-P5.2", over=each(trees))
def rewards_along_an_answer(w: Enumeration) -> Iterator[Found]:
    """r - beta D is one constant; what is left after a prefix depends on the prefix; steps are log-ratios."""
    best = optimal(w)
    p, cost = best.problem, BETA * best.t.log_ratio
    shifted = best.R - BETA * best.l
    yield same(shifted, shifted[0])
    yield same(shifted, regularized(p, BETA)[0])
    to_go = every_token(p, best.R) - sum_from_here(cost)
    expected = values_of_prefixes(p, to_go)[p.rows] * p.completion_mask
    yield same(to_go, expected)  # whatever follows the prefix
    yield same((to_go + cost - expected) * p.completion_mask, cost)  # the process reward after the token
