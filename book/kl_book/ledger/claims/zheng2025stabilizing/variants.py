"""Section 4.3: MiniRL on-policy, and its two variants (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import (
    STRICT,
    apart,
    differs,
    turned,
    violation,
    worst,
)
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
from kl_book.ledger.claims.ground.sequences import token_weighted
from kl_book.ledger.claims.ground.sums import mean, terms
from kl_book.ledger.claims.ground.surrogates import (
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
    sampled_trees,
    towards,
    without_weights,
)
from kl_book.ledger.claims.ground.worlds import hedge_trees
from kl_companion.tabular import Problem

NEAR = 0.1  # share of the way from sampler to policy


@claim("QW-4.3-reduces")
def on_policy_the_weight_is_that_between_engines() -> Iterator[Found]:
    """With the parameters of the rollout no token is clipped, and the weight is constant."""
    errors = []
    for problem in sampled_trees():
        here = at_the_rollout(problem)
        errors += [apart(mask_of(here), 1.0), apart(minirl(here, here.logits), on_policy(here, here.logits))]
        errors.append(apart(gradient_of(minirl, here), gradient_of(on_policy, here)))
        errors.append(differs(gradient_of(on_policy, here), gradient_of(without_correction, here)))
        one_engine = here._replace(behavior_logits=here.ref_logits)
        errors.append(apart(gradient_of(without_correction, one_engine), expected_reward(one_engine)[1]))
        errors.append(apart(gradient_of(on_policy, one_engine), expected_reward(one_engine)[1]))
    yield from each_form(worst(errors))


@claim("QW-4.3-lennorm")
def length_normalization_has_another_gradient() -> Iterator[Found]:
    """With answers of many lengths it is the gradient of E[A / |y|], also where all policies are equal."""
    proportional, inside, angles = [], [], []
    for problem in sampled_trees():
        here = one_engine(problem)
        away = turned(gradient_of(divided_by_length, here), expected_reward(here)[1])
        proportional.append(away < 1e-9)
        if len(lengths(problem).unique()) == 1:
            continue
        angles.append(away)
        shorter = here._replace(rewards=advantages(here) / lengths(here))
        inside.append(apart(gradient_of(divided_by_length, here), expected_reward(shorter)[1]))
        inside += [violation(STRICT - away), not_of_order(order_of_gradient(per_length, problem), 0)]
        inside.append(not_of_order(order_of_value(per_length, problem), 1))
    yield from each_form(
        share_of_cases(proportional),
        inside=worst(inside),
        sum_of_proportional=sum(proportional),
        number_of_angles=len(angles),
        min_angles=min(angles),
        max_angles=max(angles),
    )


@cache
def _with_and_without(problem: Problem) -> tuple[float, float]:
    """Relative error of the gradient near the sampler, with the weights of tokens and with none."""
    near = towards(with_advantages(problem), NEAR)
    size = float(expected_reward(near)[1].norm())
    return gradient_gap(of_tokens, near) / size, gradient_gap(without_weights, near) / size


def _is_first_order(surrogate: Callable[[Problem, torch.Tensor], torch.Tensor], problem: Problem) -> bool:
    """Whether value and gradient are off by orders two and one, and the gradient is exact at the sampler."""
    start = one_engine(problem)
    at_start = gradient_gap(surrogate, with_advantages(start)) < 1e-12
    value = not_of_order(order_of_value(surrogate, with_advantages(problem)), 2)
    return at_start and value + not_of_order(order_of_gradient(surrogate, with_advantages(problem)), 1) == 0


@claim("QW-4.3-wo-is")
def an_objective_without_weights_is_of_first_order_as_well() -> Iterator[Found]:
    """log(1 + delta) is delta to first order: both have remainders of order two, both gradients of one."""
    alike, corrected, away = [], [], []
    for problem in sampled_trees():
        both = [_is_first_order(surrogate, problem) for surrogate in (of_tokens, without_weights)]
        alike.append(all(both))
        world, start = with_advantages(problem), with_advantages(one_engine(problem))
        corrected.append(apart(gradient_of(without_weights, start), expected_reward(start)[1]))
        lost = token_weighted(world, deltas(world) * world.rewards[:, None])
        gap = gradient_of(of_tokens, world) - gradient_of(without_weights, world)
        corrected.append(apart(gap, mean(terms(world).p, lost)))
        for surrogate in (of_tokens, without_weights):
            away.append(turned(gradient_of(surrogate, world), expected_reward(world)[1]))
    corrected.append(violation(STRICT - min(away)))
    pairs = [_with_and_without(p._replace(behavior_logits=p.ref_logits)) for p in hedge_trees()[::2]]
    own = [_with_and_without(p) for p in sampled_trees()]
    shares = sorted(a / b for a, b in pairs)
    yield from each_form(
        share_of_cases(alike),
        worst(corrected),
        number_of_alike=len(alike),
        NEAR=NEAR,
        min=min(a for a, _ in own),
        max=max(a for a, _ in own),
        min_2=min(b for _, b in own),
        max_2=max(b for _, b in own),
        number_of_shares=len(shares),
        shares_0=shares[0],
        shares_1=shares[-1],
        shares_len_shares_2=shares[len(shares) // 2],
    )
