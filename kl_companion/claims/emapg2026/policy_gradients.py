"""Appendix J and J.1: the optimal policy as a target, and K1 as a policy gradient (emapg2026)."""

from __future__ import annotations

import itertools

import torch

from kl_companion.claims.emapg2026.rollout_groups import (
    SIZES,
    at_target,
    first,
    group,
    log_w,
    log_z,
    reward_gradient,
    rollouts,
    small,
    summed,
    to_target,
)
from kl_companion.claims.emapg2026.table_one import SAMPLED, k1, k3
from kl_companion.claims.emapg2026.weights import at_optimum
from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.worlds import (
    apart,
    bandits,
    differentiated,
    differs,
    exact,
    field,
    forward_kl,
    kl_gradient,
    less,
    log_ratio,
    mean,
    reverse_kl,
    terms,
    worst,
)
from kl_companion.tabular import Problem

ANSWERS = "two answers, policy (0.9, 0.1), even reference, R = (1, 0)"
WORLD = f"{ANSWERS}, first logit"


def expected_reward(problem: Problem) -> torch.Tensor:
    """V as eq (145) defines it: a number."""
    return mean(terms(problem).p, problem.rewards)


def regularized(problem: Problem, beta: float = 1.0) -> torch.Tensor:
    """Gradient of beta KL(policy || reference) - E[R]."""
    return beta * kl_gradient(problem) - reward_gradient(problem)


@claim("EMA-eq141-142")
def the_optimum_as_a_target() -> Evidence:
    """KL(pi||pi*) = E[-log w] = log Z - (E[R] - KL(pi||ref)), with gradient grad KL - grad E[R], 0 at pi*."""
    errors = []
    for problem in rollouts():
        p, (value, gradient) = terms(problem).p, to_target(problem)
        kept = float(expected_reward(problem)) - exact(reverse_kl, problem)[0]
        errors += [apart(mean(p, log_w(problem).exp()), 1.0), apart(-mean(p, log_w(problem)), value)]
        errors += [apart(log_z(problem) - kept, value), apart(regularized(problem), gradient)]
    for problem in bandits():
        best = at_optimum(problem)
        errors += [apart(log_w(best), 0.0), apart(regularized(best), 0.0)]
    return Evidence(worst(errors))


@claim("EMA-eq141-142+beta")
def beta_in_the_rewards() -> Evidence:
    """With R/beta the target is the optimum of E[R] - beta KL; the gradient is 1/beta of that objective's."""
    errors = []
    for problem in bandits():
        distances = []
        for beta in (0.1, 0.5, 2.0, 10.0):
            scaled = problem._replace(rewards=problem.rewards / beta)
            errors.append(apart(beta * to_target(scaled)[1], regularized(problem, beta)))
            best = at_optimum(scaled)._replace(rewards=problem.rewards)
            errors.append(apart(regularized(best, beta), 0.0))
            distances.append(exact(reverse_kl, best)[0])
        errors += [less(b, a, by=1e-9) for a, b in itertools.pairwise(distances)]
    return Evidence(
        worst(errors), condition="the gradient is divided by beta as well: a step size must follow"
    )


@claim("EMA-eq141-142+every")
def every_estimator_as_a_policy_gradient() -> Evidence:
    """As losses K2, K3++, K4 descend KL(pi||pi*), K3 and K5 KL(pi*||pi), and K1 nothing."""
    forward = ("K3", "K5")
    errors: dict[str, list[float]] = {name: [] for name in SAMPLED}
    for problem in rollouts():
        for name, found in errors.items():
            wanted = to_target(problem, forward=name in forward)[1]
            found.append(apart(field(at_target(SAMPLED[name], problem), problem), wanted))
    inside = [e for name, found in errors.items() if name != "K1" for e in found]
    for problem in rollouts():  # K1 as a penalty: its value times the score
        inside.append(apart(field(-log_w(problem), problem), to_target(problem)[1]))
        inside.append(apart(field(at_target(k1, problem), problem), 0.0))
    nothing = abs(first(field(at_target(k1, small()), small())))
    return Evidence(
        worst([*inside, *errors["K1"]]),
        inside=worst(inside),
        condition="K1 is taken as a penalty in the reward, its value times the score, and not as a loss",
        counterexample=(
            f"{WORLD}: the expected gradient of the loss K1 is {nothing:.4f}, whatever the rewards are, "
            f"that of KL(pi||pi*) {first(to_target(small())[1]):.4f}"
        ),
    )


@claim("EMA-eq143-144")
def the_partition_function_of_a_group() -> Evidence:
    """The estimate of Z is unbiased, its log too low on average; Jensen's bound holds in every group."""
    errors = []
    for problem in rollouts():
        best_bound = float(expected_reward(problem)) - exact(reverse_kl, problem)[0]
        low = [float(log_z(problem))]
        for size in (3, 2, 1):
            g = group(problem, size)
            errors.append(apart(g.expect(g.log_z.exp()), log_z(problem).exp()))
            errors.append(violation(float((g.value - g.kl - g.log_z).max()) - 1e-12))
            errors.append(apart(g.expect(g.value - g.kl), best_bound))
            low.append(g.expect(g.log_z))
        errors += [less(b, a) for a, b in itertools.pairwise(low)]
        errors.append(apart(low[-1], best_bound))  # at N = 1 bound and estimate are one
    means = [group(small(), n).expect(group(small(), n).log_z) for n in (1, 2, 3)]
    said = ", ".join(f"{m:.3f}" for m in means)
    return Evidence(
        worst(errors),
        condition=(
            "in every group. The estimate of Z is unbiased, its log too low on average. "
            f"With {ANSWERS}: {said} at N = 1, 2, 3; log Z = {float(log_z(small())):.3f}"
        ),
    )


@claim("EMA-eq145")
def value_and_kl_as_expectations() -> Evidence:
    """Eq (144) is V - KL of the group's own means; with their expectations it is another number."""
    printed, corrected = [], []
    for problem in rollouts():
        value, kl = float(expected_reward(problem)), exact(reverse_kl, problem)[0]
        for size in SIZES:
            g = group(problem, size)
            bound = (g.reward - g.log_ratio).sum(-1, keepdim=True) / size
            printed.append(apart(bound, value - kl))
            corrected += [apart(bound, g.value - g.kl), apart(g.expect(g.value), value)]
            corrected += [apart(g.expect(g.kl), kl), apart(summed(g.kl, problem, g), kl_gradient(problem))]
    both = float((small().rewards - log_ratio(small()))[0])
    number = float(expected_reward(small())) - exact(reverse_kl, small())[0]
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-lemJ.1",
        correction="V and KL are the group's means, without the expectation, as in J.1 and in appendix A",
        counterexample=(
            f"{ANSWERS}, N = 2, the first one twice: eq (144) is "
            f"{both:.4f}, V - KL of eq (145) is {number:.4f}"
        ),
    )


@claim("EMA-J1-start")
def gradient_of_k1() -> Evidence:
    """The derivative of -log w is the score: mean 0, and the reward is not in it."""
    printed, corrected = [], []
    for problem in rollouts():
        claimed = -(problem.rewards - log_z(problem))
        c = at_target(k1, problem)
        printed += [apart(c, claimed), apart(field(c, problem), field(claimed, problem))]
        corrected += [apart(c, 1.0), apart(field(c, problem), 0.0)]
        corrected.append(apart(field(-log_w(problem), problem), to_target(problem)[1]))
        corrected.append(apart(field(claimed, problem), -reward_gradient(problem)))
    claimed = field(-(small().rewards - log_z(small())), small())
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            "grad(-log w) = grad log pi, of mean 0 (table 1 says so of K1). As a penalty in the reward K1 "
            "gives -(R - l - log Z) grad log pi, l = log pi/pi_ref: the printed line lacks l, and is plain "
            "REINFORCE without a KL"
        ),
        counterexample=(
            f"{WORLD}: the printed gradient has the mean {first(claimed):.4f}, the derivative of K1 "
            f"{abs(first(field(at_target(k1, small()), small()))):.4f}, and KL(pi||pi*) the gradient "
            f"{first(to_target(small())[1]):.4f}"
        ),
    )


@claim("EMA-J1-sign")
def sign_of_the_aggregate_kl() -> Evidence:
    """-(R - V + KL) s holds KL with a minus, and without the own log-ratio its mean points away."""
    printed, corrected = [], []
    for problem in rollouts():
        reward, kl = reward_gradient(problem), kl_gradient(problem)
        for size in SIZES:
            g = group(problem, size)
            line = summed(-(g.reward - g.value + g.kl), problem, g)
            split = [summed(-(g.reward - g.value), problem, g), summed(g.kl, problem, g)]
            printed += [apart(line, split[0] + split[1]), apart(line, -(size - 1) * reward + kl)]
            corrected += [apart(line, split[0] - split[1]), apart(line, -(size - 1) * reward - kl)]
            whole = summed(g.log_ratio - g.reward + g.value - g.kl, problem, g)
            corrected.append(apart(whole, (size - 1) * (kl - reward)))
    g = group(small(), 2)
    part = first(summed(g.kl, small(), g))
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="proof",
        correction=(
            "minus: the line above gives -sum s_j KL, whose mean is -grad KL. The sign is turned back by the "
            "log-ratio l_j that the start leaves out: sum s_j (l_j - R_j + V - KL) has the mean "
            "(N - 1)(grad KL - grad E[R])"
        ),
        counterexample=f"{WORLD}, N = 2: the second sum contributes {-part:.4f}, printed is {part:+.4f}",
    )


@claim("EMA-lemJ.1")
def lemma_of_the_regularizer() -> Evidence:
    """E[sum_j s_j KL] = grad KL with the group's own mean; with KL as an expectation it is 0."""
    printed, inside = [], []
    for problem in rollouts():
        number = torch.tensor(exact(reverse_kl, problem)[0])
        for size in SIZES:
            g = group(problem, size)
            wanted = kl_gradient(problem)
            inside += [apart(summed(g.kl, problem, g), wanted)]
            inside += [apart(summed(g.log_ratio / size, problem, g), wanted)]
            inside.append(apart(summed(number, problem, g), 0.0))
            printed.append(apart(summed(number, problem, g), wanted))
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition=(
            "KL is the group's own mean, not the expectation that eq (145) defines; and the sum over all N "
            "rollouts yields one grad KL, so each yields 1/N of it"
        ),
        counterexample=(
            f"{WORLD}: with KL = {exact(reverse_kl, small())[0]:.4f}, the expectation, the left side is 0, "
            f"the gradient of the KL {first(kl_gradient(small())):.4f}"
        ),
    )


@claim("EMA-lemJ.1+proof")
def diagonal_and_the_rest() -> Evidence:
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
            errors.append(apart(sum(parts) / size, summed(g.kl, problem, g)))
    return Evidence(worst(errors))


@claim("EMA-eq147")
def k1_as_regularized_policy_gradient() -> Evidence:
    """-(R - V) s + grad KL: what K1 in the reward gives; as a loss K1 gives 0."""
    printed, inside = [], []
    for problem in rollouts():
        box = field(-(problem.rewards - expected_reward(problem)), problem) + kl_gradient(problem)
        printed.append(apart(field(at_target(k1, problem), problem), box))
        inside += [apart(field(-log_w(problem), problem), box), apart(regularized(problem), box)]
        for size in SIZES:
            g = group(problem, size)
            others = (g.reward.sum(-1, keepdim=True) - g.reward) / (size - 1)
            with_others = summed(-(g.reward - others), problem, g) / size + kl_gradient(problem)
            inside.append(apart(with_others, box))
            own = summed(-(g.reward - g.value), problem, g) / size
            inside.append(apart(own, -(1 - 1 / size) * reward_gradient(problem)))
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition=(
            "K1 is a penalty in the reward; in expectation; and V does not hold the own reward: with the "
            "mean of all N the reward's gradient is 1 - 1/N of its size"
        ),
        counterexample=(
            f"{WORLD}: the loss K1 has the expected gradient "
            f"{abs(first(field(at_target(k1, small()), small()))):.4f}, the box "
            f"{first(regularized(small())):.4f}"
        ),
    )


@claim("EMA-eq147+sum")
def sum_over_the_group_and_one_rollout() -> Evidence:
    """The sum over N rollouts holds N - 1 gradients of the reward and one of the KL: not N times the box."""
    printed, corrected = [], []
    for problem in rollouts():
        reward, kl = reward_gradient(problem), kl_gradient(problem)
        for size in SIZES:
            g = group(problem, size)
            per_rollout = summed(-(g.reward - g.value) + g.kl, problem, g) / size
            printed += [apart(per_rollout, regularized(problem))]
            printed.append(apart(per_rollout, kl - (1 - 1 / size) * reward))
            corrected.append(apart(per_rollout, kl / size - (1 - 1 / size) * reward))
    g = group(small(), 3)
    found = first(summed(-(g.reward - g.value) + g.kl, small(), g) / 3)
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-lemJ.1",
        correction=(
            "per rollout grad KL has the factor 1/N, N - 1 times less weight than the reward; the full grad "
            "KL of the box comes from the own log-ratio of each rollout, not from the mean of the group"
        ),
        counterexample=(
            f"{WORLD}, N = 3: the split of J.1 has the mean {found:.4f} per rollout, the box "
            f"{first(regularized(small())):.4f}"
        ),
    )


@claim("EMA-eq147+ppo")
def what_ppo_and_grpo_follow() -> Evidence:
    """K1 in the reward follows the box; K3 in the loss, as in GRPO, follows the other KL."""
    printed, inside = [], []
    for problem in rollouts():
        for size in SIZES:
            g = group(problem, size)
            penalized = g.reward - g.log_ratio
            others = (penalized.sum(-1, keepdim=True) - penalized) / (size - 1)
            ppo = summed(-(penalized - others), problem, g) / size
            inside.append(apart(ppo, regularized(problem)))
            advantage = summed(-(g.reward - g.value), problem, g) / size
            grpo = advantage + mean(terms(problem).p, differentiated(k3, problem))
            of_forward = exact(forward_kl, problem)[1] - (1 - 1 / size) * reward_gradient(problem)
            inside.append(apart(grpo, of_forward))
            printed.append(apart(grpo, regularized(problem)))
        inside.append(differs(exact(forward_kl, problem)[1], kl_gradient(problem)))
    found = first(exact(forward_kl, small())[1])
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition=(
            "the KL is in the reward as K1, and the baseline does not hold the own rollout: PPO with a "
            "penalized reward. GRPO's K3 in the loss follows the gradient of KL(ref||pi)"
        ),
        counterexample=(
            f"{WORLD}: K3 in the loss adds {found:.4f}, the gradient of KL(pi||ref) is "
            f"{first(kl_gradient(small())):.4f}"
        ),
    )
