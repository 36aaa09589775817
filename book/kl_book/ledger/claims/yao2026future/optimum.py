"""Section 5.2: the best policy, and what it makes of rewards along an answer (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, worst
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.sums import exact, log_ratio, reverse_kl, terms
from kl_book.ledger.claims.ground.updates import every_token, regularized, regularized_gradient
from kl_book.ledger.claims.ground.worlds import bandits, trees
from kl_companion.tabular import Problem

BETA = 0.7


def optimal(problem: Problem) -> Problem:
    """The world whose policy over sequences is pi_ref exp(r / beta), normalized; prefix by prefix."""
    weight = problem.token_logp(problem.ref_logits).sum(-1).exp() * (problem.rewards / BETA).exp()
    mass = torch.zeros_like(problem.logits)
    along = weight[:, None] * problem.completion_mask
    mass.index_put_((problem.rows, problem.sequences), along, accumulate=True)
    return problem._replace(logits=mass.log())


@claim("FRPO-T5.1")
def the_best_policy() -> Iterator[Found]:
    """There the gradient is 0, and every other policy has beta KL(policy || best) less."""
    errors = []
    for problem in (*bandits(), *trees()):
        best = optimal(problem)
        errors.append(apart(regularized_gradient(best, BETA), 0.0))
        below = regularized(best, BETA)[0] - regularized(problem, BETA)[0]
        distance = exact(reverse_kl, problem._replace(ref_logits=best.logits))[0]
        errors += [apart(below, BETA * distance), differs(below, 0.0)]
    yield from each_form(worst(errors))


@claim("FRPO-P5.2")
def rewards_along_an_answer() -> Iterator[Found]:
    """r - beta D is one constant; what is left after a prefix depends on the prefix; steps are log-ratios."""
    errors = []
    for problem in trees():
        best = optimal(problem)
        shifted = best.rewards - BETA * log_ratio(best)
        errors.append(apart(shifted, shifted[0]))
        t, inside = terms(best), best.completion_mask
        to_go = every_token(best, best.rewards) - BETA * sum_from_here(t.log_ratio)
        expected = values_of_prefixes(best, to_go)[best.rows] * inside
        errors.append(apart(to_go, expected))  # whatever follows the prefix
        after = to_go + BETA * t.log_ratio  # the process reward after the token
        errors.append(apart((after - expected) * inside, BETA * t.log_ratio))
        errors.append(apart(shifted, regularized(best, BETA)[0]))
    yield from each_form(worst(errors))
