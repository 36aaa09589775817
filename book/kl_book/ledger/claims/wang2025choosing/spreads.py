"""Section 4: the variances of the values, and the quick table about them (wang2025choosing)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.errors import hedged, less, worst
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.spreads import (
    K3_BOUND,
    WITHIN,
    bias_of_value,
    excess_of_k3,
    just_beyond,
    larger,
    one_sided,
    value_variance,
    variances_stay_lower,
)
from kl_book.ledger.claims.ground.sums import exact, reverse_kl
from kl_book.ledger.claims.ground.worlds import hedge_bandits, hedge_trees, near, two_policies, worlds
from kl_book.ledger.claims.standard import HEDGE_SHARE
from kl_companion.tabular import Problem, bandit


@claim("WZ-table-value-k1")
def log_ratio_has_the_high_variance() -> Evidence:
    """Unbiased, with a variance above that of k2 and k3."""
    return variances_stay_lower("k1", "k2", "k3")


@claim("WZ-table-value-k2")
def half_square_has_a_low_variance() -> Evidence:
    """Biased, with a variance below that of k1."""
    return variances_stay_lower("k2", "k2")


@claim("WZ-table-value-k3")
def reduced_value_has_a_low_variance() -> Evidence:
    """Unbiased, with a variance below that of k1."""
    return variances_stay_lower("k3", "k3")


@claim("WZ-4-blowup")
def reduced_value_blows_up_far_away() -> Iterator[Found]:
    """Where p/q is large on a rare sample, the variance of k3 passes that of k1 and has no bound."""
    found = [two_policies((1 - d, d), (0.5, 0.5)) for d in (1e-2, 1e-4, 1e-6)]
    errors = [less(value_variance("k1", p), value_variance("k3", p)) for p in found]
    errors += [excess_of_k3(p) for p in found]
    errors += [
        less(50 * value_variance("k3", a), value_variance("k3", b)) for a, b in itertools.pairwise(found)
    ]
    yield from each_form(worst(errors))


def _close(problem: Problem) -> bool:
    return exact(reverse_kl, problem)[0] <= 0.1


@claim("WZ-4-safest")
def reduced_value_is_the_safest_near_the_reference() -> Iterator[Found]:
    """With p/q bounded k3 has no bias and, of both unbiased values, the smaller variance; often elsewhere."""
    errors = [abs(bias_of_value("k3", p)) for p in worlds()]
    bound = WITHIN["k3"]
    closer = [near(bandit(v, seed=s, scale=2.0), bound) for v in (3, 10) for s in range(20)]
    errors.append(share_of_cases(larger("k3", p) for p in (*closer, *one_sided())))
    errors.append(float(not larger("k3", just_beyond())))
    drawn = (*hedge_bandits(), *hedge_trees())
    found = {small: [not larger("k3", p) for p in drawn if _close(p) == small] for small in (True, False)}
    yield from each_form(
        max(worst(errors), hedged(found[True])),
        sum=sum(found[True]),
        number=len(found[True]),
        HEDGE_SHARE=HEDGE_SHARE,
        sum_2=sum(found[False]),
        number_2=len(found[False]),
        K3_BOUND=K3_BOUND,
    )
