"""Appendix J.1: K1 as a policy gradient, and row K1 of table 8 (emapg2026)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, same
from kl_book.ledger.claims.ground import rollouts as sampled
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.estimates import k1, k3
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_companion.tabular import bandit

InGroups = tuple[Enumeration, sampled.Group]


@claim("EMA-J1-start", over=each(sampled.rollouts))
def gradient_of_k1(w: Enumeration) -> Iterator[Found]:
    """The derivative of -log w is the score: mean 0, and the reward is not in it."""
    c, claimed = w.at_target(k1), w.log_z - w.R
    yield same(w.Es(c), w.Es(claimed), by=relative)
    yield same(c, 1.0, "corrected")
    yield same(w.Es(c), 0.0, "corrected")
    yield same(w.Es(-w.log_w), w.d_target, "corrected")
    yield same(w.Es(claimed), -w.d_reward, "corrected")


@claim("EMA-J1-sign", over=sampled.in_groups(sampled.rollouts))
def sign_of_the_aggregate_kl(x: InGroups) -> Iterator[Found]:
    """-(R - V + KL) s holds KL with a minus, and without the own log-ratio its mean points away."""
    w, g = x
    line, reward, kl = g.sum(-(g.reward - g.value + g.kl)), g.sum(-(g.reward - g.value)), g.sum(g.kl)
    whole = g.sum(g.log_ratio - g.reward + g.value - g.kl)
    yield same(reward + kl, line, by=relative)
    yield same(line, reward - kl, "corrected")
    yield same(line, -(g.size - 1) * w.d_reward - w.d_kl, "corrected")
    yield same(whole, (g.size - 1) * (w.d_kl - w.d_reward), "corrected")


@claim("EMA-lemJ.1", over=sampled.in_groups(sampled.rollouts))
def lemma_of_the_regularizer(x: InGroups) -> Iterator[Found]:
    """E[sum_j s_j KL] = grad KL with the group's own mean; with KL as an expectation it is 0."""
    w, g = x
    expectation = g.sum(torch.tensor(w.kl))
    yield same(g.sum(g.kl), w.d_kl, "inside")
    yield same(g.sum(g.log_ratio / g.size), w.d_kl, "inside")
    yield same(expectation, 0.0, "inside")
    yield same(expectation, w.d_kl, by=relative)


@claim("EMA-lemJ.1+proof", over=sampled.in_groups(sampled.rollouts))
def diagonal_and_the_rest(x: InGroups) -> Iterator[Found]:
    """E[s_j l_i] = 0 for i != j, E[s_j l_j] = grad KL, and the double sum is made of these."""
    w, g = x
    yield same(w.Es(torch.ones(len(w.s)).double()), 0.0)
    total = torch.zeros_like(w.d_kl)
    for i, j in itertools.product(range(g.size), repeat=2):
        part = torch.tensordot(g.chance * g.log_ratio[:, i], w.s[g.drawn[:, j]], dims=1)
        yield same(part, w.d_kl if i == j else 0.0)
        total += part
    yield same(total / g.size, g.sum(g.kl))


@claim("EMA-eq147", over=sampled.in_groups(sampled.rollouts))
def k1_as_regularized_policy_gradient(x: InGroups) -> Iterator[Found]:
    """-(R - V) s + grad KL: what K1 in the reward gives; as a loss K1 gives 0."""
    w, g = x
    as_loss, box = w.Es(w.at_target(k1)), sampled.eq147(w)
    yield same(as_loss, box, by=relative)
    own, with_others = (g.sum(-(g.reward - v)) / g.size for v in (g.value, g.others(g.reward)))
    for form in ("inside", "corrected"):
        yield same(as_loss, 0.0, form)
        for gradient in (w.Es(-w.log_w), w.d_kl - w.d_reward, w.d_target, with_others + w.d_kl):
            yield same(gradient, box, form)
        yield same(own, -(1 - 1 / g.size) * w.d_reward, form)


@claim("EMA-eq147+sum", over=sampled.in_groups(sampled.rollouts))
def sum_over_the_group_and_one_rollout(x: InGroups) -> Iterator[Found]:
    """The sum over N rollouts holds N - 1 gradients of the reward and one of the KL: not N times the box."""
    w, g = x
    per_rollout = g.sum(-(g.reward - g.value) + g.kl) / g.size
    yield same(sampled.eq147(w), per_rollout, by=relative)
    yield same(per_rollout, w.d_kl / g.size - (1 - 1 / g.size) * w.d_reward, "corrected")


@claim("EMA-eq147+ppo", over=sampled.in_groups(sampled.rollouts))
def what_ppo_and_grpo_follow(x: InGroups) -> Iterator[Found]:
    """K1 in the reward follows the box; K3 in the loss, as in GRPO, follows the other KL."""
    w, g = x
    penalized = g.reward - g.log_ratio
    ppo = g.sum(-(penalized - g.others(penalized))) / g.size
    grpo = g.sum(-(g.reward - g.value)) / g.size + w.grad(k3)
    yield same(ppo, sampled.eq147(w), "corrected")
    yield same(grpo, w.d_forward - (1 - 1 / g.size) * w.d_reward, "corrected")
    yield same(grpo, sampled.eq147(w), by=relative)


@words("EMA-J1-start", "EMA-J1-sign", "EMA-lemJ.1", "EMA-eq147", "EMA-eq147+sum", "EMA-eq147+ppo")
def two_answers_and_three_bandits() -> dict[str, Any]:
    """Entries of the first logit with two answers; K3 near the reference and far from it."""
    w = Enumeration(sampled.two_answers())
    pair, three = sampled.group(w.problem, 2), sampled.group(w.problem, 3)
    gradients = {
        "start": w.Es(w.log_z - w.R),
        "target": w.d_target,
        "box": sampled.eq147(w),
        "split": three.sum(-(three.reward - three.value) + three.kl) / 3,
        "kl_of_the_pair": pair.sum(pair.kl),
        "minus_kl_of_the_pair": -pair.sum(pair.kl),
        "of_the_kl": w.d_kl,
        "of_k3": w.d_forward,
    }
    apart = {f"apart_{scale}": Enumeration(bandit(10, scale=scale / 10)) for scale in (1, 5, 20)}
    return {name: sampled.first_logit(gradient) for name, gradient in gradients.items()} | {
        "of_k1": abs(sampled.first_logit(w.Es(w.at_target(k1)))),
        "kl": w.kl,
        "noise": w.var(w.at_target(k1)[:, None, None] * w.s),
        "length": float(w.d_target.norm()),
        "group": sampled.GROUP_SIZE,
        "others": sampled.GROUP_SIZE - 1,
        **{name: relative(b.d_forward, b.d_kl) for name, b in apart.items()},
        **{f"kl_{name}": b.kl for name, b in apart.items()},
    }
