"""Section 4.3: MiniRL on-policy, and its two variants (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

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
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_companion.tabular import Problem

NEAR = 0.1  # share of the way from sampler to policy


@claim("QW-4.3-reduces")
def on_policy_the_weight_is_that_between_engines() -> Evidence:
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
    return Evidence(worst(errors))


@claim("QW-4.3-lennorm")
def length_normalization_has_another_gradient() -> Evidence:
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
    return Evidence(
        share_of_cases(proportional),
        inside=worst(inside),
        unit="share of cases",
        condition="answers differ in length",
        given=r"implied by 2.1: $|y|$ is the number of tokens of the sampled answer",
        counterexample=(
            f"{sum(proportional)} trees whose answers have one length: the gradient is $1/|y|$ times that of "
            "the expected reward, up to rounding"
        ),
        practice=(
            r"Its first-order objective is $\E[\hat A/|y|]$, in which long answers count less. On "
            f"{len(angles)} trees with answers of different lengths the direction is off by "
            f"{min(angles):.0%} to {max(angles):.0%} of the gradient, with all policies equal."
        ),
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
def an_objective_without_weights_is_of_first_order_as_well() -> Evidence:
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
    return Evidence(
        share_of_cases(alike),
        worst(corrected),
        unit="share of cases",
        correction=(
            r"Without weights the objective is $\E_\mu[\hat A \sum_t \log(1 + \delta_t)]$ plus a constant, "
            r"and $\log(1 + \delta_t) = \delta_t + O(\delta_t^2)$: it is a first-order approximation, as the "
            r"weighted one is. Weights add $\E_\mu[\hat A \sum_t \delta_t \nabla \log \pi_t]$ to the "
            "gradient. This makes it exact for answers of one token; for longer ones its error stays of "
            "first order."
        ),
        counterexample=(
            f"{len(alike)} trees of two to four tokens: with and without weights the remainder of the value "
            "has the exponent 2 and the error of the gradient the exponent 1. At the sampler both gradients "
            "are the exact one; away from it neither is proportional to it"
        ),
        practice=(
            f"The weight makes the error smaller, not of another order. At {NEAR:.0%} of the way from the "
            f"sampler the gradient is off by {min(a for a, _ in own):.1%} to {max(a for a, _ in own):.1%} "
            f"with weights and by {min(b for _, b in own):.1%} to {max(b for _, b in own):.1%} without; on "
            f"{len(shares)} other trees the former error is {shares[0]:.0%} to {shares[-1]:.0%} of the "
            f"latter, with a median of {shares[len(shares) // 2]:.0%}. The order does not say why the runs "
            "without the weight collapse."
        ),
    )
