"""Appendix J.1: K1 as a policy gradient, and row K1 of table 8 (emapg2026)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.estimates import k1, k3
from kl_book.ledger.claims.ground.rollout_texts import ANSWERS, WORLD
from kl_book.ledger.claims.ground.rollouts import (
    GROUP_SIZE,
    SIZES,
    eq147,
    expected_sum,
    first_logit,
    group,
    kl_to_target,
    log_w,
    log_z,
    regularized_gradient,
    reward_gradient,
    rollouts,
    slope_at_target,
    two_answers,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    field,
    forward_kl,
    kl_gradient,
    mean,
    reverse_kl,
    terms,
    variance,
)
from kl_companion.tabular import Problem, bandit


def nothing_is_learned() -> str:
    """What a run with K1 as a loss does, in words."""
    problem = two_answers()
    noise = variance(terms(problem).p, slope_at_target(k1, problem)[:, None, None] * terms(problem).score)
    return (
        r"a trainer that minimizes the loss $-\log w$ has no drift at all: no reward is learned, no KL is "
        f"kept, and noise remains (variance {noise:.2f} of a sample's gradient, where the gradient of "
        rf"$\KL{{\pi}}{{\pi^*}}$ has the length {float(kl_to_target(problem)[1].norm()):.2f}; {ANSWERS}). "
        "PPO "
        "with the KL in the reward is right"
    )


def loss_k1(problem: Problem) -> torch.Tensor:
    """Expected gradient of K1 as a loss."""
    return field(slope_at_target(k1, problem), problem)


def k1_example(printed: torch.Tensor) -> str:
    """The counterexample of K1 as a loss, beside what is printed for it."""
    return (
        f"{WORLD}: the loss K1 has the expected gradient {abs(first_logit(loss_k1(two_answers()))):.4f}, "
        "printed is "
        rf"{first_logit(printed):.4f}; $\KL{{\pi}}{{\pi^*}}$ has "
        f"{first_logit(kl_to_target(two_answers())[1]):.4f}"
    )


@claim("EMA-J1-start")
def gradient_of_k1() -> Iterator[Found]:
    """The derivative of -log w is the score: mean 0, and the reward is not in it."""
    printed, corrected = [], []
    for problem in rollouts():
        claimed = -(problem.rewards - log_z(problem))
        c = slope_at_target(k1, problem)
        printed.append(relative(field(c, problem), field(claimed, problem)))
        corrected += [apart(c, 1.0), apart(field(c, problem), 0.0)]
        corrected.append(apart(field(-log_w(problem), problem), kl_to_target(problem)[1]))
        corrected.append(apart(field(claimed, problem), -reward_gradient(problem)))
    yield from each_form(
        worst(printed),
        worst(corrected),
        counterexample=k1_example(field(-(two_answers().rewards - log_z(two_answers())), two_answers())),
        practice=nothing_is_learned(),
    )


@claim("EMA-J1-sign")
def sign_of_the_aggregate_kl() -> Iterator[Found]:
    """-(R - V + KL) s holds KL with a minus, and without the own log-ratio its mean points away."""
    printed, corrected = [], []
    for problem in rollouts():
        reward, kl = reward_gradient(problem), kl_gradient(problem)
        for size in SIZES:
            g = group(problem, size)
            line = expected_sum(-(g.reward - g.value + g.kl), problem, g)
            split = [expected_sum(-(g.reward - g.value), problem, g), expected_sum(g.kl, problem, g)]
            printed.append(relative(split[0] + split[1], line))
            corrected += [apart(line, split[0] - split[1]), apart(line, -(size - 1) * reward - kl)]
            whole = expected_sum(g.log_ratio - g.reward + g.value - g.kl, problem, g)
            corrected.append(apart(whole, (size - 1) * (kl - reward)))
    g = group(two_answers(), 2)
    part = first_logit(expected_sum(g.kl, two_answers(), g))
    yield from each_form(worst(printed), worst(corrected), number=-part, part=part)


@claim("EMA-lemJ.1")
def lemma_of_the_regularizer() -> Iterator[Found]:
    """E[sum_j s_j KL] = grad KL with the group's own mean; with KL as an expectation it is 0."""
    printed, inside = [], []
    for problem in rollouts():
        number = torch.tensor(exact(reverse_kl, problem)[0])
        for size in SIZES:
            g = group(problem, size)
            wanted = kl_gradient(problem)
            inside += [apart(expected_sum(g.kl, problem, g), wanted)]
            inside += [apart(expected_sum(g.log_ratio / size, problem, g), wanted)]
            inside.append(apart(expected_sum(number, problem, g), 0.0))
            printed.append(relative(expected_sum(number, problem, g), wanted))
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        number=exact(reverse_kl, two_answers())[0],
        first_logit=first_logit(kl_gradient(two_answers())),
    )


@claim("EMA-lemJ.1+proof")
def diagonal_and_the_rest() -> Iterator[Found]:
    """E[s_j l_i] = 0 for i != j, E[s_j l_j] = grad KL, and the double sum is made of these."""
    errors = []
    for problem in rollouts():
        wanted, score = kl_gradient(problem), terms(problem).score
        errors.append(apart(field(torch.ones(len(score)).double(), problem), 0.0))
        for size in SIZES:
            g = group(problem, size)
            parts = []
            for i, j in itertools.product(range(size), repeat=2):
                part = mean(g.chance * g.log_ratio[:, i], score[g.drawn[:, j]])
                errors.append(apart(part, wanted if i == j else 0.0))
                parts.append(part)
            errors.append(apart(sum(parts) / size, expected_sum(g.kl, problem, g)))
    yield from each_form(worst(errors))


@claim("EMA-eq147")
def k1_as_regularized_policy_gradient() -> Iterator[Found]:
    """-(R - V) s + grad KL: what K1 in the reward gives; as a loss K1 gives 0."""
    printed, corrected = [], []
    for problem in rollouts():
        printed.append(relative(loss_k1(problem), eq147(problem)))
        corrected += [
            apart(loss_k1(problem), 0.0),
            apart(field(-log_w(problem), problem), eq147(problem)),
        ]
        corrected += [
            apart(regularized_gradient(problem), eq147(problem)),
            apart(kl_to_target(problem)[1], eq147(problem)),
        ]
        for size in SIZES:
            g = group(problem, size)
            others = (g.reward.sum(-1, keepdim=True) - g.reward) / (size - 1)
            with_others = expected_sum(-(g.reward - others), problem, g) / size + kl_gradient(problem)
            corrected.append(apart(with_others, eq147(problem)))
            own = expected_sum(-(g.reward - g.value), problem, g) / size
            corrected.append(apart(own, -(1 - 1 / size) * reward_gradient(problem)))
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(corrected),
        counterexample=k1_example(eq147(two_answers())),
        practice=nothing_is_learned(),
    )


@claim("EMA-eq147+sum")
def sum_over_the_group_and_one_rollout() -> Iterator[Found]:
    """The sum over N rollouts holds N - 1 gradients of the reward and one of the KL: not N times the box."""
    printed, corrected = [], []
    for problem in rollouts():
        reward, kl = reward_gradient(problem), kl_gradient(problem)
        for size in SIZES:
            g = group(problem, size)
            per_rollout = expected_sum(-(g.reward - g.value) + g.kl, problem, g) / size
            printed.append(relative(eq147(problem), per_rollout))
            corrected.append(apart(per_rollout, kl / size - (1 - 1 / size) * reward))
    g = group(two_answers(), 3)
    found = first_logit(expected_sum(-(g.reward - g.value) + g.kl, two_answers(), g) / 3)
    yield from each_form(
        worst(printed),
        worst(corrected),
        found=found,
        first_logit=first_logit(eq147(two_answers())),
        GROUP_SIZE=GROUP_SIZE,
        number=GROUP_SIZE - 1,
    )


def kl_terms_apart() -> str:
    """How far K3's gradient is from that of the KL, near the reference and far from it, in words."""
    said = []
    for scale in (0.1, 0.5, 2.0):
        problem = bandit(10, seed=0, scale=scale)
        share = relative(exact(forward_kl, problem)[1], kl_gradient(problem))
        said.append(f"{share:.0%} at a KL of {exact(reverse_kl, problem)[0]:.2g} nats")
    return (
        "near the reference the two gradients agree to first order. In a bandit with ten arms (seed 0) they "
        rf"differ by {', '.join(said)}, so that long runs and small $\beta$ are affected; the optimum is "
        "another one. PPO with the KL in the reward is right"
    )


@claim("EMA-eq147+ppo")
def what_ppo_and_grpo_follow() -> Iterator[Found]:
    """K1 in the reward follows the box; K3 in the loss, as in GRPO, follows the other KL."""
    printed, corrected = [], []
    for problem in rollouts():
        for size in SIZES:
            g = group(problem, size)
            penalized = g.reward - g.log_ratio
            others = (penalized.sum(-1, keepdim=True) - penalized) / (size - 1)
            ppo = expected_sum(-(penalized - others), problem, g) / size
            corrected.append(apart(ppo, eq147(problem)))
            advantage = expected_sum(-(g.reward - g.value), problem, g) / size
            grpo = advantage + mean(terms(problem).p, differentiated(k3, problem))
            of_forward = exact(forward_kl, problem)[1] - (1 - 1 / size) * reward_gradient(problem)
            corrected.append(apart(grpo, of_forward))
            printed.append(relative(grpo, eq147(problem)))
    found = first_logit(exact(forward_kl, two_answers())[1])
    yield from each_form(
        worst(printed),
        worst(corrected),
        found=found,
        first_logit=first_logit(kl_gradient(two_answers())),
        practice=kl_terms_apart(),
    )
