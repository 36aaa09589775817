"""Section 3: the KL divergence as the penalty, and rewards without a scale (vojnovic2025alignment)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.best_policies import Objective, not_best
from kl_book.ledger.claims.ground.errors import apart, differs, violation, worst
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import rho
from kl_book.ledger.claims.ground.stationary_policies import (
    NOISY,
    THREE,
    Question,
    Reward,
    could_gain,
    deviation,
    expected_rewards,
    margins,
    not_stationary,
    preference,
    question,
    reference_of,
    stationary,
)
from kl_book.ledger.claims.ground.sums import exact, mean, reverse_kl, terms, values
from kl_book.ledger.claims.ground.two_answers import (
    CERTAIN,
    CHECKED,
    GRADED,
    NEARLY_ZERO,
    REFERENCES,
    all_stationary_pairs,
    answer_a,
    lead,
    margin,
    stationary_pair,
    weighted,
)
from kl_book.ledger.claims.ground.worlds import (
    bandits,
    few_sampled_elsewhere,
    sampled_elsewhere,
    two_policies,
)
from kl_companion.tabular import Problem


def log_odds(policy: torch.Tensor) -> float:
    """log pi(a) - log pi(b)."""
    a, b = policy.log().tolist()
    return a - b


def _with_divergence(worth: torch.Tensor, log_ref: torch.Tensor, beta: float) -> Objective:
    """E[worth] - beta KL from the reference, of a vector of probabilities."""
    return lambda p: p @ worth - beta * reverse_kl(p.log(), log_ref)


@claim("VY-3-D")
def a_weighted_penalty_has_the_divergence_as_its_mean() -> Iterator[Found]:
    """Policy over sampler, times k3: the mean over samples of the sampler is the KL of the policy."""
    errors = []
    for problem in sampled_elsewhere():
        found = mean(terms(problem).p, rho(problem) * values("k3", problem))
        errors.append(apart(found, exact(reverse_kl, problem)[0]))
    yield from each_form(worst(errors))


@claim("VY-3-policy")
def the_pool_with_the_divergence() -> Iterator[Found]:
    """Stationary policies are pi_ref e^(P_G/beta) / Z, and none is better in groups of their own."""
    errors = []
    cases: list[tuple[tuple[Reward, ...], int | None]] = [((0.0, 0.4, 1.0), 2), ((0.0, 0.4, 1.0), 4)]
    for rewards, size in (*cases, (NOISY, 3), (NOISY, None)):
        q = question(THREE, 0.7, rewards, size, "weighted")
        policy = stationary(q)
        pool = reference_of(q) * (preference(q, policy) / q.beta).exp()
        errors += [apart(pool / pool.sum(), policy), not_stationary(q, policy), could_gain(q, policy)]
    yield from each_form(worst(errors))


@claim("VY-3-nlhf")
def groups_of_two_and_nash_learning() -> Iterator[Found]:
    """With the KL divergence the stationary policy is the equilibrium of NLHF at half the coefficient."""
    errors = []
    for rewards in ((0.0, 0.4, 1.0), NOISY):
        for beta in (0.7, 2.0):
            q = question(THREE, beta, rewards, 2, "weighted")
            policy, log_ref = stationary(q), reference_of(q).log()
            wins = ((1 + margins(q)) / 2) @ policy  # ties count for half
            payoff = _with_divergence(wins, log_ref, beta / 2)
            errors += [not_best(policy, payoff), not_stationary(q, policy)]
    yield from each_form(worst(errors))


def _pooled(q: Question, policy: torch.Tensor, gap: float) -> float:
    """Error of "the log-odds of the policy are those of the reference and gap/beta"."""
    return apart(log_odds(policy), log_odds(reference_of(q)) + gap / q.beta)


@claim("VY-3-binary")
def the_pool_over_two_answers() -> Iterator[Found]:
    """pi(a) is e^(gamma/2beta) pi_ref(a)/Z, for deterministic and random rewards."""
    errors = []
    for ref, beta, rewards in itertools.product(REFERENCES[1:], (0.1, 0.5), (CERTAIN, CHECKED, GRADED)):
        q = weighted(ref, beta, rewards)
        up = math.exp(margin(q) / (2 * beta))
        a, b = reference_of(q).tolist()
        errors.append(apart(stationary_pair(q)[0], up * a / (up * a + b / up)))
    yield from each_form(worst(errors))


@claim("VY-fig3")
def no_jump_with_the_divergence() -> Iterator[Found]:
    """pi(a) is at most e^(gamma/beta) pi_ref(a), so that it goes to 0 with the reference."""
    errors = []
    for beta, rewards in itertools.product((0.1, 0.5), (CERTAIN, GRADED)):
        for ref in (NEARLY_ZERO, 1e-6, 0.3):
            q = weighted(ref, beta, rewards)
            a, gap = answer_a(q), margin(q)
            errors += [violation(a - math.exp(gap / beta) * ref - 1e-15), _pooled(q, stationary_pair(q), gap)]
    small = weighted(1e-3, 0.04)
    yield from each_form(worst(errors), beta=small.beta, float=float(stationary_pair(small)[0]))


def _signal(q: Question, policy: torch.Tensor) -> float:
    """(r(a) - r(b)) / sigma(pi)."""
    a, b = expected_rewards(q).tolist()
    return (a - b) / float(deviation(q, policy))


RANDOM = (CHECKED, GRADED)


def _leads_everywhere(q: Question) -> bool:
    """Whether answer a has the larger slope at all log-odds from -15 to 15."""
    return all(lead(q, float(x)) > 0 for x in range(-15, 16))


@claim("VY-3-Ginf-small")
def small_coefficients_with_the_divergence() -> Iterator[Found]:
    """With certain rewards a leads everywhere; with random ones there is an optimum below 1 at every beta."""
    printed, corrected, inside = [], [], []
    for ref, beta in ((0.3, 1.0), (0.3, 0.3), (0.8, 1.0)):
        inside.append(float(not _leads_everywhere(weighted(ref, beta, CERTAIN, None))))
        for rewards in RANDOM:
            q = weighted(ref, beta, rewards, None)
            policy = stationary_pair(q)
            printed.append(1 - float(policy[0]))
            corrected.append(_pooled(q, policy, _signal(q, policy)))
    q = weighted(0.3, 1.0, CHECKED, None)
    lower = q._replace(beta=0.3)
    yield from each_form(
        worst([*printed, *inside]),
        worst(corrected),
        inside=worst(inside),
        float=float(stationary_pair(q)[1]),
        beta=q.beta,
        float_2=float(stationary_pair(lower)[1]),
        beta_2=lower.beta,
    )


@claim("VY-3-Ginf-two")
def large_coefficients_with_the_divergence() -> Iterator[Found]:
    """With certain rewards two policies are best in their own groups; with random rewards one is."""
    without, corrected, inside = [], [], []
    for ref, beta in ((0.3, 5.0), (0.8, 8.0)):
        q = weighted(ref, beta, CERTAIN, None)
        found = all_stationary_pairs(q)
        inside += [apart(float(len(found)), 2.0), *(could_gain(q, policy) for policy in found)]
        for rewards in RANDOM:
            q = weighted(ref, beta, rewards, None)
            found = all_stationary_pairs(q)
            without.append(len(found) != 2)
            corrected += [_pooled(q, policy, _signal(q, policy)) for policy in found]
            corrected.append(apart(float(len(found)), 1.0))
    two = all_stationary_pairs(weighted(0.3, 5.0, CERTAIN, None))
    (one,) = all_stationary_pairs(weighted(0.3, 5.0, CHECKED, None)) or (torch.full((2,), math.nan),)
    yield from each_form(
        sum(without) / len(without) + worst(inside),
        worst(corrected),
        inside=worst(inside),
        float=float(one[0]),
        float_2=float(two[0][0]),
        float_3=float(two[1][0]),
    )


def _shifted_preference(problem: Problem, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Probability of every group under its sampler, and r - mean of its first answer, [groups]."""
    p, index = groups(problem, size)
    return p, centered(problem.rewards[index], "mean")[:, 0]


@claim("VY-3-shift")
def advantages_without_a_scale() -> Iterator[Found]:
    """Their mean over answers of the policy is (1 - 1/G) times what the policy gains in expected reward."""
    errors = []
    for problem in few_sampled_elsewhere():
        gain = exact(lambda p, q, r=problem.rewards: p.exp() @ r, problem)[0]  # type: ignore[misc]
        gain -= float(mean(terms(problem).p, problem.rewards))
        for size in (2, 3):
            (p, advantage), first = _shifted_preference(problem, size), groups(problem, size)[1][:, 0]
            errors.append(apart(mean(p, rho(problem)[first] * advantage), (1 - 1 / size) * gain))
    yield from each_form(worst(errors))


@claim("VY-3-rlhf")
def both_changes_give_the_policy_of_rlhf() -> Iterator[Found]:
    """The stationary policy is pi_ref e^(r (1 - 1/G)/beta) / Z: RLHF at the coefficient beta G/(G - 1)."""
    errors = []
    for problem, size, beta in itertools.product(bandits()[:6], (2, 3), (0.5, 2.0)):
        log_ref = terms(problem).ref_logp.sum(-1)
        best = (log_ref + problem.rewards / (beta * size / (size - 1))).softmax(-1)
        own = two_policies(best.tolist(), log_ref.exp().tolist())._replace(rewards=problem.rewards)
        (p, advantage), first = _shifted_preference(own, size), groups(own, size)[1][:, 0]
        given = torch.zeros_like(best).index_add(0, first, p)
        preferred = torch.zeros_like(best).index_add(0, first, p * advantage) / given
        value = _with_divergence(preferred, problem.token_logp(problem.ref_logits).sum(-1), beta)
        errors.append(not_best(best, value))
        other = (log_ref + problem.rewards / beta).softmax(-1)
        errors.append(differs(best, other))
    yield from each_form(worst(errors))
