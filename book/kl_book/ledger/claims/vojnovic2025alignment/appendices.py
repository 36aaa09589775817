"""Appendix B: questions with two answers, step by step (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, Shortfall, at_most, inside, numbers, printed, rises, same
from kl_book.ledger.claims.ground import questions as ab
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.group_objective import policy_mean
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sums import variance
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere

POINTS = torch.tensor([0.05, 0.2, 0.5, 0.7, 0.95], dtype=torch.float64)
Sampled = tuple[Enumeration, ab.Question]
Kind = tuple[ab.Reward, ab.Reward]


def _sampled(size: int | None, kinds: Sequence[Kind] = ab.KINDS) -> Callable[[], Iterator[Sampled]]:
    """Worlds of two answers that another policy samples, each with questions about them."""
    worlds = each(lambda: (p for p in sampled_elsewhere() if len(p.sequences) == 2))
    return lambda: product(worlds(), ab.pairs(*kinds, refs=(0.3,), betas=(1.0,), size=size))


@claim("VY-eq16", over=_sampled(2))
def the_mean_preference_in_groups_of_two(w: Enumeration, q: ab.Question) -> Iterator[Found]:
    """gamma (pi(a) - pi_old(a)), for certain and random rewards."""
    yield same(policy_mean(w, q.preference(w.p))[0], q.gamma * (w.pi[0] - w.p[0]))


def _printed_objective(q: ab.Question, x: torch.Tensor, old: float) -> torch.Tensor:
    """J(pi(a)) of B.1 without its constant, groups of two, [points]."""
    ref = q.ref[0]
    cost = old * ref / x + (1 - old) * (1 - ref) / (1 - x) + old * x.log() + (1 - old) * (1 - x).log()
    return q.gamma * x - q.beta * cost


def _questions() -> list[ab.Question]:
    """Groups of two, with certain and random rewards, at one reference and one coefficient."""
    return ab.pairs(*ab.KINDS, refs=(0.3,), betas=(0.7,))


@claim("VY-B1-J", over=lambda: product(_questions(), (0.1, 0.5, 0.8)))
def the_objective_in_one_variable(q: ab.Question, old: float) -> Iterator[Found]:
    """Differences of values between policies are those of the objective, in groups of any sampler."""
    values = q.objective(
        torch.stack((POINTS, 1 - POINTS), -1), torch.tensor([old, 1 - old], dtype=torch.float64)
    )
    claimed = _printed_objective(q, POINTS, old)
    yield same(claimed - claimed[0], values - values[0])


@claim("VY-eq17", over=lambda: product(_questions(), (-3.0, -1.0, 0.5, 2.0)))
def the_slope_in_groups_of_two(q: ab.Question, x: float) -> Iterator[Found]:
    """gamma minus beta (pi - ref)/(pi (1 - pi)) at a: zero exactly where (17) holds."""
    a, b = ab.with_odds(x)
    yield same(ab.lead(q, x), q.gamma - q.beta * (a - q.ref[0]) / (a * b))


@claim("VY-B1-quad", over=lambda: ab.pairs(*ab.KINDS))
def the_quadratic_for_groups_of_two(q: ab.Question) -> Iterator[Found]:
    """The stationary policy is its positive root, and the other root is negative."""
    ratio, x = q.beta / q.gamma, ab.answer_a(q)
    yield same(x**2 - (1 - ratio) * x - ratio * q.ref[0], 0.0)
    yield at_most(1 - ratio - x, 0.0)  # the other root: the two add up to 1 - ratio


def _printed_gain(new: torch.Tensor, old: torch.Tensor) -> float:
    """(18) where a has the larger expected reward."""
    return float(new[0] / (old[0] * old[1]).sqrt() - (old[0] / old[1]).sqrt())


EVEN = ab.with_odds(0.0)


@claim("VY-eq18", over=_sampled(None))
def the_mean_preference_in_large_groups(w: Enumeration, q: ab.Question) -> Iterator[Found]:
    """(18) is right for certain rewards; random ones have a larger deviation."""
    mean, (a, b) = policy_mean(w, q.preference(w.p))[0], q.r
    error = apart(mean, _printed_gain(w.pi, w.p))
    yield same(mean, (a - b) * (w.pi[0] - w.p[0]) / q.rewards.deviation(w.p), "corrected")
    yield inside(error) if len(q.levels[0]) == 1 else printed(error)
    new = ab.with_odds(1.0)
    gain = float((new - EVEN) @ ab.pair(0.3, 1.0, ab.CHECKED, None).preference(EVEN))
    claimed = _printed_gain(new, EVEN)
    yield numbers(new=new[0], printed=claimed, gain=gain, weaker=1 - gain / claimed)


@claim("VY-B1-sigma", over=_sampled(None))
def the_variance_of_the_reward(w: Enumeration, q: ab.Question) -> Iterator[Found]:
    """The printed variance is that of the expected rewards; random rewards add their own."""
    levels, chances = q.rewards
    total = variance((w.p[:, None] * chances).flatten(), levels.flatten())
    own = w.E((levels - q.r[:, None]).square().mul(chances).sum(-1))
    between = (q.r[0] - q.r[1]).square() * w.p[0] * w.p[1]
    yield printed(float(1 - between / total))
    yield same(total, between + own, "corrected")
    if len(q.levels[0]) == 1:
        yield same(total, between, "inside")
    q = ab.pair(0.3, 1.0, ab.CHECKED, None)
    between = (q.r[0] - q.r[1]) ** 2 * EVEN[0] * EVEN[1]
    yield numbers(variance=q.rewards.deviation(EVEN) ** 2, between=between)


@claim("VY-eq19", over=lambda: ab.pairs(ab.CERTAIN, size=None))
def the_quadratic_for_large_groups(q: ab.Question) -> Iterator[Found]:
    """The printed objective has slope 0 at the root of the quadratic above the reference, and only there."""
    (a, b), r, beta = ab.stationary_pair(q).tolist(), float(q.ref[0]), q.beta
    yield same(beta * (a - r), math.sqrt(a * b))
    yield same((1 + beta**2) * a**2 - (2 * beta**2 * r + 1) * a + beta**2 * r**2, 0.0)
    other = (2 * beta**2 * r + 1) / (1 + beta**2) - a  # the two roots add up to this
    yield rises((other, r, a))


# appendix B.2


def h(beta: float, ref: float, x: float) -> float:
    """The function of appendix B.2; not a number where it is not real."""
    inside = x * (1 - x)
    if inside <= 0:
        return math.nan
    return 1 / (beta * math.sqrt(inside)) - math.log(x / (1 - x)) + math.log(ref / (1 - ref))


def _is_slope(q: ab.Question, log_odds: float, x: float) -> Shortfall:
    """At x, the probability of a with these log-odds, the slope of a minus that of b is beta h."""
    return same(ab.lead(q, log_odds), q.beta * h(q.beta, float(q.ref[0]), x))


def large(*betas: float) -> Callable[[], list[ab.Question]]:
    """The KL divergence as the penalty, large groups, certain rewards."""
    return lambda: ab.pairs(ab.CERTAIN, betas=betas, size=None, penalty="weighted")


@claim("VY-B2-derivative", over=large(0.3, 5.0))
def the_slope_with_the_divergence(q: ab.Question) -> Iterator[Found]:
    """The slope of a minus that of b is beta h, where the sampler is the policy."""
    for x in (-3.0, 0.5, 2.0):
        yield _is_slope(q, x, float(ab.with_odds(x)[0]))


@claim("VY-B2-gamma", over=_sampled(None, (ab.CERTAIN, (0.0, 1.0), (-3.0, 2.0))))
def the_sign_of_the_difference(w: Enumeration, q: ab.Question) -> Iterator[Found]:
    """The sign of a difference is meant: that of a comparison is 0, not -1, where b is better."""
    a, b = q.r
    gain = policy_mean(w, q.preference(w.p))[0]
    gamma = gain * float((w.p[0] * w.p[1]).sqrt()) / float(w.pi[0] - w.p[0])
    yield same((a > b).double().sign(), gamma)
    yield same(torch.sign(a - b), gamma, "corrected")
    yield numbers(false=float(0.0 > 1.0), true=float(1.0 > 0.0))


@claim("VY-B2-xstar", over=large(0.3, 1.0, 5.0))
def where_h_is_smallest(q: ab.Question) -> Iterator[Found]:
    """The slope falls up to x* and rises after it."""
    middle = 2 * math.asinh(q.beta)  # log-odds of x*
    star = (1 + math.sqrt(1 - 1 / (1 + q.beta**2))) / 2
    yield same(ab.with_odds(middle)[0], star)
    for side in (-1, 1):
        yield rises([ab.lead(q, middle + side * x) for x in (0.0, 0.1, 1.0, 5.0)])
    yield _is_slope(q, middle, star)


@claim("VY-B2-limits")
def limits_at_both_ends() -> Iterator[Found]:
    """Towards 0 from above and 1 from below h grows without bound; from the other sides it is not real."""
    outside = []
    for q in large(0.3, 5.0)():
        ref = float(q.ref[0])
        outside += [math.isnan(h(q.beta, ref, x)) for y in (1e-4, 1e-8, 1e-12) for x in (-y, 1 + y)]
        for side in (-1.0, 1.0):
            far = [2 * math.log(10.0) * side * n for n in (2, 4, 6)]
            roots = [float(ab.with_odds(x).prod().sqrt()) for x in far]
            ends = [apart(ab.lead(q, x) * root, 1.0) for x, root in zip(far, roots, strict=True)]
            yield from (at_most(b, 0.1 * a, "corrected") for a, b in pairwise(ends))
            near = float(ab.with_odds(far[0])[0])
            yield same(ab.lead(q, far[0]) / q.beta / h(q.beta, ref, near), 1.0, "corrected")
    yield printed(share_of_cases(outside))
    yield numbers(inside_root=-1e-4 * (1 + 1e-4), points=len(outside))


def _threshold(ref: float) -> float:
    """The beta at which the smallest value of h is 0, by bisection."""
    low, high = 0.01, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        above = h(middle, ref, (1 + math.sqrt(1 - 1 / (1 + middle**2))) / 2) > 0
        low, high = (middle, high) if above else (low, middle)
    return low


@claim("VY-B2-zeros")
def zeros_of_h() -> Iterator[Found]:
    """For small beta a leads everywhere; for large beta two policies have no slope."""
    for small, big in zip(large(0.3)(), large(8.0)(), strict=True):
        yield at_most(0.0, min(ab.lead(small, float(x)) for x in range(-15, 16)))
        zeros = ab.all_stationary_pairs(big)
        yield same(float(len(zeros)), 2.0)
        yield from (same(h(8.0, float(big.ref[0]), float(p[0])), 0.0) for p in zeros)
    yield numbers(thresholds=[_threshold(ref) for ref in ab.REFERENCES])
