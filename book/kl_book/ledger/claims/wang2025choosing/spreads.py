"""Section 4: the variances of the values, and the quick table about them (wang2025choosing)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, less, numbers, printed, regardless, same
from kl_book.ledger.claims.ground import spreads
from kl_book.ledger.claims.ground.errors import hedged
from kl_book.ledger.claims.ground.learning import value_is_biased, value_is_unbiased
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.world import each, two
from kl_book.ledger.claims.ground.worlds import hedge_bandits, hedge_trees, near
from kl_book.ledger.claims.standard import HEDGE_SHARE
from kl_companion.tabular import bandit


@claim("WZ-table-value-k1")
def log_ratio_has_the_high_variance() -> Iterator[Found]:
    """Unbiased, with a variance above that of k2 and k3."""
    yield from regardless(value_is_unbiased("k1"))
    yield from spreads.smaller_variances("k2", "k3")


@claim("WZ-table-value-k2")
def half_square_has_a_low_variance() -> Iterator[Found]:
    """Biased, with a variance below that of k1."""
    yield from regardless(value_is_biased("k2"))
    yield from spreads.smaller_variances("k2")


@claim("WZ-table-value-k3")
def reduced_value_has_a_low_variance() -> Iterator[Found]:
    """Unbiased, with a variance below that of k1."""
    yield from regardless(value_is_unbiased("k3"))
    yield from spreads.smaller_variances("k3")


@words("WZ-table-value-k1", "WZ-table-value-k2", "WZ-table-value-k3", "WZ-9.3-k1", "WZ-9.3-k3")
def _far_apart() -> dict[str, Any]:
    variances = {k: spreads.value_variance(k, spreads.far_apart()) for k in ("k1", "k2", "k3")}
    return variances | {"bound": spreads.K3_BOUND}


@claim("WZ-4-blowup")
def reduced_value_blows_up_far_away() -> Iterator[Found]:
    """Where p/q is large on a rare sample, the variance of k3 passes that of k1 and has no bound."""
    rare = [two((1 - d, d), (0.5, 0.5)).problem for d in (1e-2, 1e-4, 1e-6)]
    for problem in rare:
        yield less(spreads.value_variance("k1", problem), spreads.value_variance("k3", problem))
        yield same(spreads.excess_of_k3(problem), 0.0)
    first, second, third = (spreads.value_variance("k3", p) for p in rare)
    yield less(50 * first, second)
    yield less(50 * second, third)


@claim("WZ-4-safest")
def reduced_value_is_the_safest_near_the_reference() -> Iterator[Found]:
    """With p/q bounded k3 has no bias and, of both unbiased values, the smaller variance; often elsewhere."""
    yield printed(value_is_unbiased("k3"))
    closer = [near(bandit(v, seed=s, scale=2.0), spreads.WITHIN["k3"]) for v in (3, 10) for s in range(20)]
    yield printed(share_of_cases(spreads.larger("k3", p) for p in (*closer, *spreads.one_sided())))
    yield printed(float(not spreads.larger("k3", spreads.just_beyond())))
    smaller: dict[bool, list[bool]] = {True: [], False: []}
    for w in each(hedge_bandits, hedge_trees)():
        smaller[w.kl <= 0.1].append(not spreads.larger("k3", w.problem))
    yield printed(hedged(smaller[True]))
    yield numbers(HEDGE_SHARE=HEDGE_SHARE, K3_BOUND=spreads.K3_BOUND)
    yield numbers(near_smaller=sum(smaller[True]), near=len(smaller[True]))
    yield numbers(far_smaller=sum(smaller[False]), far=len(smaller[False]))
