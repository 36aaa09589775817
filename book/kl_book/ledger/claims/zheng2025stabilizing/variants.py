"""Section 4.3: MiniRL on-policy, and its two variants (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_high

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground.errors import turned
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.surrogates import (
    Engines,
    Surrogate,
    divided_by_length,
    minirl,
    not_of_order,
    of_tokens,
    on_policy,
    per_length,
    sampled_by_the_reference,
    sampled_trees,
    without_correction,
    without_weights,
)

NEAR = 0.1  # share of the way from sampler to policy
BOTH = (of_tokens, without_weights)


@claim("QW-4.3-reduces", over=sampled_trees)
def on_policy_the_weight_is_that_between_engines(w: Engines) -> Iterator[Found]:
    """With the parameters of the rollout no token is clipped, and the weight is constant."""
    here = w.at_the_rollout()
    yield same(here.open, 1.0)
    yield same(here.at(minirl), here.at(on_policy))
    yield same(here.gradient(minirl), here.gradient(on_policy))
    yield differs(here.gradient(on_policy), here.gradient(without_correction))
    alike = here.replace(behavior_logits=here.problem.ref_logits)
    yield same(alike.gradient(without_correction), alike.d_reward)
    yield same(alike.gradient(on_policy), alike.d_reward)


@claim("QW-4.3-lennorm")
def length_normalization_has_another_gradient() -> Iterator[Found]:
    """With answers of many lengths it is the gradient of E[A / |y|], also where all policies are equal."""
    proportional, angles = [], []
    for w in sampled_trees():
        here = w.one_engine()
        update = here.gradient(divided_by_length)
        away = turned(update, here.d_reward)
        proportional.append(away < 1e-9)
        if not w.even:
            shorter = here.replace(rewards=here.advantage / here.lengths)
            yield same(update, shorter.d_reward, "inside")
            yield less(0.0, away, "inside")
            yield same(w.order_of_gradient(per_length), 0, "inside", by=not_of_order)
            yield same(w.order_of_value(per_length), 1, "inside", by=not_of_order)
            angles.append(away)
    yield printed(share_of_cases(proportional))
    yield numbers(proportional=sum(proportional), trees=len(angles), least=min(angles), most=max(angles))


def _with_and_without(w: Engines) -> list[float]:
    """Relative error of the gradient near the sampler, with the weights of tokens and with none."""
    return [w.with_advantages.towards(NEAR).relative_gap(surrogate) for surrogate in BOTH]


def _is_first_order(surrogate: Surrogate, w: Engines) -> bool:
    """Whether value and gradient are off by orders two and one, and the gradient is exact at the sampler."""
    value = not_of_order(w.with_advantages.order_of_value(surrogate), 2)
    gradient = not_of_order(w.with_advantages.order_of_gradient(surrogate), 1)
    return w.one_engine().with_advantages.gap(surrogate) < 1e-12 and value + gradient == 0


@claim("QW-4.3-wo-is")
def an_objective_without_weights_is_of_first_order_as_well() -> Iterator[Found]:
    """log(1 + delta) is delta to first order: both have remainders of order two, both gradients of one."""
    alike = []
    for w in sampled_trees():
        alike.append(all(_is_first_order(surrogate, w) for surrogate in BOTH))
        w, start = w.with_advantages, w.one_engine().with_advantages
        yield same(start.gradient(without_weights), start.d_reward, "corrected")
        with_weights, without = (w.gradient(surrogate) for surrogate in BOTH)
        lost = w.E(w.tokens((w.ratio - 1) * w.R[:, None]))
        yield same(with_weights - without, lost, "corrected")
        for update in (with_weights, without):
            yield less(0.0, turned(update, w.d_reward), "corrected")
    yield printed(share_of_cases(alike))
    errors, bare = zip(*map(_with_and_without, sampled_trees()), strict=True)
    yield numbers(trees=len(alike), share=NEAR, least=min(errors), most=max(errors))
    yield numbers(least_without=min(bare), most_without=max(bare))
    others = map(_with_and_without, sampled_by_the_reference()[::2])
    shares = [error / without for error, without in others]
    yield numbers(
        others=len(shares), least_share=min(shares), most_share=max(shares), median=median_high(shares)
    )
