"""Section 4.3: MiniRL on-policy, and its two variants (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_high

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground.errors import turned
from kl_book.ledger.claims.ground.minirl import (
    advantages,
    at_the_rollout,
    divided_by_length,
    mask_of,
    minirl,
    on_policy,
    one_engine,
    with_advantages,
    without_correction,
)
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.surrogates import (
    Surrogate,
    deltas,
    expected_reward,
    gradient_gap,
    gradient_of,
    lengths,
    not_of_order,
    of_tokens,
    order_of_gradient,
    order_of_value,
    per_length,
    sampled_by_the_reference,
    sampled_trees,
    towards,
    without_weights,
)
from kl_book.ledger.claims.ground.world import World
from kl_book.ledger.claims.ground.worlds import hedge_trees
from kl_companion.tabular import Problem

NEAR = 0.1  # share of the way from sampler to policy
BOTH = (of_tokens, without_weights)


@claim("QW-4.3-reduces", over=lambda: map(at_the_rollout, sampled_trees()))
def on_policy_the_weight_is_that_between_engines(here: Problem) -> Iterator[Found]:
    """With the parameters of the rollout no token is clipped, and the weight is constant."""
    yield same(mask_of(here), 1.0)
    yield same(minirl(here, here.logits), on_policy(here, here.logits))
    yield same(gradient_of(minirl, here), gradient_of(on_policy, here))
    yield differs(gradient_of(on_policy, here), gradient_of(without_correction, here))
    alike = here._replace(behavior_logits=here.ref_logits)
    yield same(gradient_of(without_correction, alike), expected_reward(alike)[1])
    yield same(gradient_of(on_policy, alike), expected_reward(alike)[1])


@claim("QW-4.3-lennorm")
def length_normalization_has_another_gradient() -> Iterator[Found]:
    """With answers of many lengths it is the gradient of E[A / |y|], also where all policies are equal."""
    proportional, angles = [], []
    for problem in sampled_trees():
        here = one_engine(problem)
        update = gradient_of(divided_by_length, here)
        away = turned(update, expected_reward(here)[1])
        proportional.append(away < 1e-9)
        if len(lengths(problem).unique()) > 1:
            shorter = here._replace(rewards=advantages(here) / lengths(here))
            yield same(update, expected_reward(shorter)[1], "inside")
            yield less(0.0, away, "inside")
            yield same(order_of_gradient(per_length, problem), 0, "inside", by=not_of_order)
            yield same(order_of_value(per_length, problem), 1, "inside", by=not_of_order)
            angles.append(away)
    yield printed(share_of_cases(proportional))
    yield numbers(proportional=sum(proportional), trees=len(angles), least=min(angles), most=max(angles))


def _with_and_without(problem: Problem) -> list[float]:
    """Relative error of the gradient near the sampler, with the weights of tokens and with none."""
    near = towards(with_advantages(problem), NEAR)
    size = float(expected_reward(near)[1].norm())
    return [gradient_gap(surrogate, near) / size for surrogate in BOTH]


def _is_first_order(surrogate: Surrogate, problem: Problem) -> bool:
    """Whether value and gradient are off by orders two and one, and the gradient is exact at the sampler."""
    world, start = with_advantages(problem), with_advantages(one_engine(problem))
    value = not_of_order(order_of_value(surrogate, world), 2)
    gradient = not_of_order(order_of_gradient(surrogate, world), 1)
    return gradient_gap(surrogate, start) < 1e-12 and value + gradient == 0


@claim("QW-4.3-wo-is")
def an_objective_without_weights_is_of_first_order_as_well() -> Iterator[Found]:
    """log(1 + delta) is delta to first order: both have remainders of order two, both gradients of one."""
    alike = []
    for problem in sampled_trees():
        alike.append(all(_is_first_order(surrogate, problem) for surrogate in BOTH))
        w, start = World(with_advantages(problem)), with_advantages(one_engine(problem))
        yield same(gradient_of(without_weights, start), expected_reward(start)[1], "corrected")
        with_weights, without = (gradient_of(surrogate, w.problem) for surrogate in BOTH)
        lost = w.E(w.tokens(deltas(w.problem) * w.R[:, None]))
        yield same(with_weights - without, lost, "corrected")
        for update in (with_weights, without):
            yield less(0.0, turned(update, w.d_reward), "corrected")
    yield printed(share_of_cases(alike))
    errors, bare = zip(*map(_with_and_without, sampled_trees()), strict=True)
    yield numbers(trees=len(alike), share=NEAR, least=min(errors), most=max(errors))
    yield numbers(least_without=min(bare), most_without=max(bare))
    others = (_with_and_without(sampled_by_the_reference(p)) for p in hedge_trees()[::2])
    shares = [error / without for error, without in others]
    yield numbers(
        others=len(shares), least_share=min(shares), most_share=max(shares), median=median_high(shares)
    )
