"""Appendix J up to J.1: the optimal policy as a target, and what a group knows of it (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, rises, same
from kl_book.ledger.claims.ground import rollouts as sampled
from kl_book.ledger.claims.ground.estimates import SAMPLED, k1
from kl_book.ledger.claims.ground.targets import at_optimum
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits


@claim("EMA-eq141-142")
def the_optimum_as_a_target() -> Iterator[Found]:
    """KL(pi||pi*) = E[-log w] = log Z - (E[R] - KL(pi||ref)), with gradient grad KL - grad E[R], 0 at pi*."""
    for w in each(sampled.rollouts)():
        value, gradient = w.to_target()
        yield same(w.E(w.log_w.exp()), 1.0)
        yield same(-w.E(w.log_w), value)
        yield same(w.log_z - w.E(w.R) + w.kl, value)
        yield same(w.d_kl - w.d_reward, gradient)
    for best in each(*map(at_optimum, bandits()))():
        yield same(best.log_w, 0.0)
        yield same(best.d_kl - best.d_reward, 0.0)


@claim("EMA-eq141-142+beta", over=each(bandits))
def beta_in_the_rewards(w: Enumeration) -> Iterator[Found]:
    """With R/beta the target is the optimum of E[R] - beta KL; the gradient is 1/beta of that objective's."""
    distances = []
    for beta in (0.1, 0.5, 2.0, 10.0):
        scaled = w.replace(rewards=w.R / beta)
        best = Enumeration(at_optimum(scaled.problem)).replace(rewards=w.R)
        yield same(beta * scaled.d_target, beta * w.d_kl - w.d_reward)
        yield same(beta * best.d_kl - best.d_reward, 0.0)
        distances.append(best.kl)
    yield rises(distances[::-1], by=1e-9)


@claim("EMA-eq141-142+every", over=each(sampled.rollouts))
def every_estimator_as_a_policy_gradient(w: Enumeration) -> Iterator[Found]:
    """As losses K2, K3++ and K4 minimize KL(pi||pi*), K3 and K5 KL(pi*||pi); K1 does it in the reward."""
    yield same(w.Es(-w.log_w), w.d_target)
    yield same(w.Es(w.at_target(k1)), 0.0)
    for name in ("K2", "K3++", "K4"):
        yield same(w.Es(w.at_target(SAMPLED[name])), w.d_target)
    for name in ("K3", "K5"):
        yield same(w.Es(w.at_target(SAMPLED[name])), w.d_target_forward)


@claim("EMA-eq143-144", over=each(sampled.rollouts))
def the_partition_function_of_a_group(w: Enumeration) -> Iterator[Found]:
    """The estimate of Z is unbiased, its log too low on average; Jensen's bound holds in every group."""
    best_bound, low = w.E(w.R) - w.kl, [float(w.log_z)]
    for size in (3, 2, 1):
        g = sampled.group(w.problem, size)
        yield same(g.expect(g.log_z.exp()), w.log_z.exp())
        yield at_most(g.value - g.kl - g.log_z, 1e-12)
        yield same(g.expect(g.value - g.kl), best_bound)
        low.append(g.expect(g.log_z))
    yield rises(low[::-1])
    yield same(low[-1], best_bound)  # at N = 1 bound and estimate are one


@claim("EMA-eq145", over=sampled.in_groups(sampled.rollouts))
def value_and_kl_as_expectations(x: tuple[Enumeration, sampled.Group]) -> Iterator[Found]:
    """Eq (144) is V - KL of the group's own means; with their expectations it is another number."""
    w, g = x
    bound = (g.reward - g.log_ratio).sum(-1, keepdim=True) / g.size
    yield same(bound, w.E(w.R) - w.kl)
    yield same(bound, g.value - g.kl, "corrected")
    yield same(g.expect(g.value), w.E(w.R), "corrected")
    yield same(g.expect(g.kl), w.kl, "corrected")
    yield same(g.sum(g.kl), w.d_kl, "corrected")


@words("EMA-eq143-144", "EMA-eq145")
def with_two_answers() -> dict[str, Any]:
    """Estimates of log Z from groups of 1, 2 and 3, and the bound of a group and its expectation."""
    w = Enumeration(sampled.two_answers())
    groups = [sampled.group(w.problem, size) for size in (1, 2, 3)]
    return {
        "estimates": [g.expect(g.log_z) for g in groups],
        "log_z": float(w.log_z),
        "bound": float((w.R - w.l)[0]),
        "expected_bound": float(w.E(w.R) - w.kl),
    }
