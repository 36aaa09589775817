"""Section 3.1 and 3.2: what dividing by the deviation of the group makes of the reward (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, numbers, printed, rises, same
from kl_book.ledger.claims.ground import updates as u
from kl_book.ledger.claims.ground.errors import relative, turned
from kl_book.ledger.claims.ground.groups import standardized_or_zero
from kl_book.ledger.claims.ground.sequences import jacobian, sum_from_here
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_companion.tabular import Problem
from kl_companion.tabular.groups import group_update

BETA = 0.1
SIZES = (5, 20, 80, 320)  # 5 answers per prompt in the source's experiments (tables 6 and 7)
all_graded = each(u.graded_pairs, u.graded)


def _standardized_update(p: Problem) -> torch.Tensor:
    return u.standardized_update(p, p.rewards)


@claim("FRPO-abs-utility")
def group_normalization_gives_a_utility() -> Iterator[Found]:
    """For rewards 0/1 it does; for three rewards the update is the gradient of no function at all."""
    for w in all_graded():
        yield same(_standardized_update(w.problem), u.arcsine_gradient(w.problem), "inside")
    graded = two((0.2, 0.3, 0.5), (0.3, 0.3, 0.4)).replace(rewards=torch.tensor([0.0, 1.0, 3.0]).double())
    slopes = jacobian(_standardized_update, graded.problem)
    asymmetry = relative(slopes, slopes.T)
    yield printed(asymmetry)
    yield numbers(asymmetry=asymmetry)


@claim("FRPO-P3.1", over=all_graded)
def standardized_binary_rewards_follow_the_arcsine(w: Enumeration) -> Iterator[Found]:
    """E[(r - p)/sqrt(p(1 - p)) score] = gradient of 2 arcsin sqrt p, on bandits and trees."""
    yield same(_standardized_update(w.problem), u.arcsine_gradient(w.problem))


@claim("FRPO-P3.1-objective")
def the_printed_loss_divides_by_the_length() -> Iterator[Found]:
    """Eq (3.1) averages over the tokens of an answer: where lengths differ it has another direction."""
    shares = []
    for w in each(u.graded)():
        p, length = w.problem, w.problem.completion_mask.sum(-1)
        if len(length.unique()) > 1:
            advantage, gradient = u.standardized(p, w.R), u.arcsine_gradient(p)
            shares.append(turned(u.token_field(p, u.every_token(p, advantage / length)), gradient))
            yield same(w.Es(advantage), gradient, "corrected")
    yield printed(max(shares))
    yield numbers(least=min(shares), most=max(shares))


@claim("FRPO-3.2-score", over=each(u.graded))
def the_standardized_advantage_is_the_score_of_the_arcsine(w: Enumeration) -> Iterator[Found]:
    """(r - p)/sqrt(p(1 - p)) = l'(p)(r - p), and with it theorem 4.1 gives the gradient of its objective."""
    p, rate = w.problem, float(w.E(w.R))
    advantage = u.slope("2 arcsin sqrt(p)", rate) * (w.R - rate)
    yield same(advantage, u.standardized(p, w.R))
    weight = u.every_token(p, advantage) - BETA * sum_from_here(w.t.log_ratio)
    yield same(u.token_field(p, weight), u.decoupled_gradient(p, BETA))


def _whole_gradient(w: Enumeration, utility: str) -> torch.Tensor:
    """Gradient of a utility of E[r] minus beta times the mean of the log-ratios, in one piece."""
    return exact(lambda p, q: u.UTILITIES[utility](p.exp() @ w.R) - BETA * (p.exp() @ (p - q)), w.problem)[1]


@claim("FRPO-1-gain", over=each(u.graded))
def the_reward_has_a_gain_and_the_penalty_none(w: Enumeration) -> Iterator[Found]:
    """The gradient of l(E r) - beta E cost is l'(p) grad p - beta grad E cost, for every l tried."""
    plain, cost = u.utility_gradient(w.problem), u.penalty_gradient("k1", w.problem)
    for utility in u.UTILITIES:
        gain = u.slope(utility, float(w.E(w.R)))
        yield same(_whole_gradient(w, utility), gain * plain - BETA * cost)
    yield numbers(utilities=list(u.UTILITIES))


def _length_in_groups(w: Enumeration, n: int) -> tuple[float, float]:
    """Of rewards standardized in groups of n: how far the update turns away, and its relative length."""
    update = group_update(lambda drawn: standardized_or_zero(w.R[drawn]), w.problem, n)
    gradient = u.arcsine_gradient(w.problem)
    return turned(update, gradient), float(update.norm() / gradient.norm())


@claim("FRPO-eq5.1")
def statistics_of_the_group_estimate_those_of_the_prompt() -> Iterator[Found]:
    """The KL part is unbiased for every size; the reward part has the direction, in the limit the length."""
    yield from (same(w.E(w.cumulative()), w.d_kl) for w in each(u.graded)())
    shares = []
    for p in (0.1, 0.5):
        w = two((p, 1 - p), (0.5, 0.5)).replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))
        turns, lengths = zip(*(_length_in_groups(w, n) for n in SIZES), strict=True)
        gaps = [abs(x - 1) for x in lengths]
        yield printed(max(turns))
        yield rises(gaps[::-1])
        yield at_most(gaps[-1], 0.02)
        shares.append(lengths[0])
    yield numbers(rare=shares[0], even=shares[1])
