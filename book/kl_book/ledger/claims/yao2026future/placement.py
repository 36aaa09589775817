"""Sections 3.2, 4.2 and 5.1: the KL in the reward, before the rewards are standardized (yao2026future).

Statistics are those of the population: p is the expected reward, D the summed log-ratio, K its mean, s the
deviation of r - beta D.
"""

from __future__ import annotations

import math

import torch

from kl_book.ledger.claims.ground.errors import apart, differs, less, relative, turned, worst
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import jacobian, sum_from_here
from kl_book.ledger.claims.ground.sums import (
    exact,
    field,
    kl_gradient,
    log_ratio,
    reverse_kl,
    terms,
)
from kl_book.ledger.claims.ground.updates import (
    UTILITIES,
    arcsine_gradient,
    coordinates,
    decoupled_gradient,
    deviation,
    every_token,
    graded,
    graded_pairs,
    graded_trees,
    population_mean,
    regularized_gradient,
    shaped,
    standardized_update,
    token_field,
    utility_gradient,
)
from kl_book.ledger.claims.ground.worlds import two_policies
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem

BETA = 0.1
IN_THE_REWARD = (
    r"Standardized, $r - \beta D$ has the update $\frac{1}{s} \nabla (\E[r] - \beta\,\mathrm{KL})$, with "
    r"$s$ the deviation of $r - \beta D$."
)


def in_the_reward(problem: Problem, beta: float = BETA) -> torch.Tensor:
    """The update from r - beta D, standardized."""
    return standardized_update(problem, shaped(problem, beta))


@claim("FRPO-1-linear", "FRPO-tab5-maxent")
def without_normalization_reward_and_kl_are_one_reward() -> Evidence:
    """r - beta D as one reward, and the KL from each token on beside the reward, have the same gradient."""
    errors = []
    for problem in graded_trees():
        wanted, ratio = regularized_gradient(problem, BETA), terms(problem).log_ratio
        to_go = every_token(problem, problem.rewards) - BETA * sum_from_here(ratio)
        own_alone = every_token(problem, problem.rewards) - BETA * ratio
        errors += [apart(field(shaped(problem, BETA), problem), wanted)]
        errors += [
            apart(token_field(problem, to_go), wanted),
            differs(token_field(problem, own_alone), wanted),
        ]
    return Evidence(worst(errors), note="Tried on trees; without the later tokens the gradient is another.")


@claim("FRPO-1-fuse")
def a_bent_utility_and_the_kl_do_not_commute() -> Evidence:
    """l(E[r - beta D]) and l(E r) - beta E[D] differ, for the arcsine by more than the KL itself."""
    errors = []
    for problem in graded():
        p, kl = population_mean(problem, problem.rewards), exact(reverse_kl, problem)[0]
        beta = p / (10 * kl)  # the argument of the arcsine stays within 0 and 1
        fused = torch.tensor(population_mean(problem, shaped(problem, beta)), dtype=torch.float64)
        errors.append(apart(fused, p - beta * kl))
        for name in ("2 arcsin sqrt(p)", "log p"):
            utility = UTILITIES[name]
            apart_from_it = float(utility(torch.tensor(p, dtype=torch.float64)) - utility(fused))
            errors.append(differs(apart_from_it, beta * kl))
            if name != "log p":
                errors.append(less(2 * beta * kl, apart_from_it, by=0.0))
    return Evidence(
        worst(errors),
        note=(
            r"The slope of $2 \arcsin \sqrt p$ is 2 or more, so that the left side is lower by at least "
            r"twice $\beta\,\mathrm{KL}$, the right side by $\beta\,\mathrm{KL}$. Where the KL "
            r"exceeds $p/\beta$, the left side is not defined."
        ),
    )


@claim("FRPO-1-onescalar")
def one_number_for_every_token() -> Evidence:
    """In every group the mean and the deviation change; the KL to go differs from token to token."""
    errors = []
    for problem in (graded()[0], graded_trees()[0], graded_trees()[2]):
        p, index = groups(problem, 3)
        ratio, rewards = log_ratio(problem)[index], problem.rewards[index]
        with_kl = rewards - BETA * ratio
        moved = with_kl.mean(-1) - rewards.mean(-1)
        errors.append(apart((p * moved).sum(), -BETA * exact(reverse_kl, problem)[0]))
        varied = ratio.std(-1) > TOLERANCE
        wider = (with_kl.std(-1, correction=0) - rewards.std(-1, correction=0)).abs()[varied]
        errors += [differs(0.0, float(moved.abs()[varied].min())), differs(0.0, float(wider.min()))]
        if problem.rows.shape[1] > 1:
            to_go = sum_from_here(terms(problem).log_ratio)[index]
            apart_in_answer = (to_go[..., 0] - to_go[..., 1])[problem.completion_mask[index][..., 1] > 0]
            errors.append(differs(0.0, float(apart_in_answer.abs().min())))
        advantage = standardized_or_zero(with_kl)  # one number per answer
        whole = torch.einsum("gi,girv->grv", advantage, terms(problem).score[index])
        by_token = torch.einsum("gi,gitrv->grv", advantage, terms(problem).scores[index])
        errors.append(apart(whole, by_token))
    return Evidence(worst(errors), note="Every group of three answers of a bandit and of two trees.")


@claim("FRPO-P3.2-objective", "FRPO-D1-sketch")
def there_is_no_objective() -> Evidence:
    """The derivatives of the update are not symmetric: it is the gradient of no function."""
    printed, corrected = [], []
    for problem in graded():
        slopes = jacobian(lambda there: in_the_reward(there), problem)
        printed.append(relative(slopes, slopes.T))
        spread = deviation(problem, shaped(problem, BETA))
        corrected.append(apart(in_the_reward(problem), regularized_gradient(problem, BETA) / spread))
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        correction=(
            rf"{IN_THE_REWARD} Its direction is that of $\E[r] - \beta\,\mathrm{{KL}}$; with its length, "
            "which changes from policy to policy, it is the gradient of no function."
        ),
        counterexample=(
            rf"three answers, one right, $\beta$ = {BETA}: the matrix of derivatives of the update differs "
            f"from its transpose by {printed[0]:.0%} of its size"
        ),
        practice=(
            r"A run with the KL in the reward optimizes $\E[r] - \beta\,\mathrm{KL}$, prompt by prompt, "
            f"with steps of another length; on {len(graded())} worlds the derivatives are asymmetric by "
            f"{min(printed):.0%} to {max(printed):.0%}."
        ),
    )


def _difference_of_log_ratios(problem: Problem) -> float:
    """Of two answers: log-ratio of the right one minus that of the wrong one."""
    right = problem.rewards.argmax()
    return float(log_ratio(problem)[right] - log_ratio(problem)[1 - right])


def _bent_slope(problem: Problem) -> float:
    """Slope in p of 2 arcsin sqrt p + beta KL, with two answers of which one is right."""
    ahead = _difference_of_log_ratios(problem)
    return 1 / deviation(problem, problem.rewards) + BETA * ahead


@claim("FRPO-C1-linear", "FRPO-P3.2-affine")
def an_affine_utility_is_neither_needed_nor_enough() -> Evidence:
    """With two answers the update is the gradient of a bent utility minus the KL; an affine one is not it."""
    against, slopes = [], []
    for problem in graded_pairs():
        policies = [problem, problem._replace(logits=problem.logits / 2)]
        bent = [_bent_slope(there) for there in policies]
        gaps = [
            apart(in_the_reward(p), by * utility_gradient(p) - BETA * kl_gradient(p))
            for p, by in zip(policies, bent, strict=True)
        ]
        against.append(max(gaps) <= TOLERANCE and differs(*bent) == 0)
        slopes += bent
    corrected = []
    for problem in graded():
        spread = deviation(problem, shaped(problem, BETA))
        found = coordinates(in_the_reward(problem), utility_gradient(problem), kl_gradient(problem))
        corrected += [apart(found[0], 1 / spread), apart(found[1], -BETA / spread)]
    widths = [deviation(p, shaped(p, BETA)) for p in graded()]
    return Evidence(
        share_of_cases(against),
        worst(corrected),
        unit="share of cases",
        correction=(
            f"{IN_THE_REWARD} Where the gradients of $p$ and of the KL are not parallel this is that of "
            r"$\ell(p) - \beta\,\mathrm{KL}$ exactly where $\ell'(p) = s = 1$. Whether $\ell$ is affine "
            r"decides nothing: an affine $\ell$ differs as well, unless $s = 1$."
        ),
        counterexample=(
            "two answers, one of them right: the KL is a function $K(p)$ of the pass rate, and the update is "
            r"the gradient of $\ell(p) - \beta\,\mathrm{KL}$ with $\ell(p) = 2 \arcsin \sqrt p + \beta "
            f"K(p)$, whose slope is {min(slopes):.2f} to {max(slopes):.2f} at the policies tried"
        ),
        practice=(
            f"$s$ is {min(widths):.2f} to {max(widths):.2f} on the {len(widths)} worlds tried: dropping the "
            r"normalization repairs the update ($s$ is no longer divided by), choosing another $\ell$ does "
            r"not."
        ),
    )


def _cancelling() -> tuple[Problem, ...]:
    """Two answers whose log-ratios differ by 2 / (beta std(r)), at beta = 1."""
    made = []
    for p in (0.2, 0.5, 0.8):
        ahead = math.log(p / (1 - p)) - 2 / math.sqrt(p * (1 - p))
        q = 1 / (1 + math.exp(-ahead))
        problem = two_policies((p, 1 - p), (q, 1 - q))
        made.append(problem._replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64)))
    return tuple(made)


@claim("FRPO-P3.2-nonvanishing")
def the_discrepancy_can_vanish() -> Evidence:
    """With two answers it vanishes where beta times the difference of the log-ratios is 2 / std(r)."""
    tried = [(p, 1.0) for p in _cancelling()] + [(p, BETA) for p in (*graded_pairs(), *graded())]
    gaps = [apart(in_the_reward(p, b), decoupled_gradient(p, b)) for p, b in tried]
    corrected, sizes = [], []
    for problem in graded():
        spread, plain = deviation(problem, shaped(problem, BETA)), deviation(problem, problem.rewards)
        gap = in_the_reward(problem) - decoupled_gradient(problem, BETA)
        found = coordinates(gap, utility_gradient(problem), kl_gradient(problem))
        corrected += [apart(found[0], 1 / spread - 1 / plain), apart(found[1], BETA - BETA / spread)]
        corrected.append(less(plain, 0.5, by=0.0))
        sizes.append(relative(in_the_reward(problem), decoupled_gradient(problem, BETA)))
    one = _cancelling()[1]
    return Evidence(
        share_of_cases(gap <= TOLERANCE for gap in gaps),
        worst(corrected),
        unit="share of cases",
        condition="the gradients of the pass rate and of the KL are not parallel",
        correction=(
            r"The discrepancy is $(1/s - 1/\sigma) \nabla p - \beta (1/s - 1) \nabla \mathrm{KL}$, with "
            r"$\sigma = \sqrt{p(1-p)}$. As $\sigma \le 1/2$, both factors are never 0 together; where the "
            "two gradients are parallel, as with two answers, the sum can be."
        ),
        counterexample=(
            rf"two answers with probability 1/2, one right, $\beta$ = 1, log-ratios that differ by "
            f"{_difference_of_log_ratios(one):.3g}: both updates have the first entry "
            f"{float(in_the_reward(one, 1.0)[0, 0]):.4f}"
        ),
        practice=(
            f"Such a policy is far from the reference. On {len(sizes)} bandits and trees with more answers "
            rf"the two updates differ by {min(sizes):.0%} to {max(sizes):.0%} at $\beta$ = {BETA}."
        ),
    )


@claim("FRPO-3.2-structural")
def no_constant_coefficient_repairs_it() -> Evidence:
    """Beside l(p) - beta KL the direction is wrong, and right for the coefficient beta / sqrt(p(1 - p))."""
    errors, needed, turns = [], [], []
    for problem in graded():
        found = coordinates(in_the_reward(problem), arcsine_gradient(problem), kl_gradient(problem))
        sigma = deviation(problem, problem.rewards)
        effective = float(-found[1] / found[0])
        errors += [apart(effective, BETA / sigma), differs(effective, BETA)]
        errors.append(less(0.0, turned(in_the_reward(problem), decoupled_gradient(problem, BETA))))
        turns.append(turned(in_the_reward(problem), regularized_gradient(problem, BETA)))
        needed.append(effective)
    errors += [differs(max(needed), min(needed)), worst(turns)]
    return Evidence(
        worst(errors),
        note=(
            r"By the source's own yardstick, eq (4.1): the direction is that of $2 \arcsin \sqrt p - "
            r"\beta' \mathrm{KL}$ with $\beta' = \beta/\sqrt{p(1-p)}$, here "
            rf"{min(needed):.2f} to {max(needed):.2f} instead of {BETA}; no constant $\beta$ gives another "
            r"prompt or policy the right one. Beside $\E[r] - \beta\,\mathrm{KL}$ the direction is exact, "
            "and only the length of the step is changed."
        ),
    )


@claim("FRPO-5.1-explains")
def the_proposition_predicts_no_collapse() -> Evidence:
    """In the limit of large groups, the proposition's own, the update always raises E[r] - beta KL."""
    raised, corrected, lengths = [], [], []
    for problem in (*graded_pairs(), *graded()):
        found, wanted = in_the_reward(problem), regularized_gradient(problem, BETA)
        raised.append(float((found * wanted).sum()) > 0)
        corrected.append(apart(found * deviation(problem, shaped(problem, BETA)), wanted))
        lengths.append(float(found.norm() / wanted.norm()))
    return Evidence(
        share_of_cases(raised),
        worst(corrected),
        unit="share of cases",
        correction=(
            rf"{IN_THE_REWARD} A small step along it raises $\E[r] - \beta\,\mathrm{{KL}}$ at every policy "
            "but the best one. A collapse needs another cause: finite groups, the step size, the estimate."
        ),
        counterexample=(
            rf"on all {len(raised)} worlds tried (the worlds with rewards 0 and 1, $\beta$ = {BETA}) the "
            r"update of the proposition has the direction in which $\E[r] - \beta\,\mathrm{KL}$ rises "
            r"fastest"
        ),
        practice=(
            f"Its steps are {min(lengths):.1f} to {max(lengths):.1f} times as long. In a finite group with "
            "equal rewards the standardized advantage is that of the log-ratios alone, of unit size for "
            r"every $\beta$: a cause that the proposition does not speak of."
        ),
    )


@claim("FRPO-4.1-rescaled", "FRPO-D1-misweight")
def the_scale_is_that_of_the_shaped_reward() -> Evidence:
    """What is put into the reward is divided by the deviation of the sum, not by that of the reward."""
    printed, corrected, ratios = [], [], []
    for problem in (*graded_pairs(), *graded()):
        wanted = regularized_gradient(problem, BETA)
        plain, spread = deviation(problem, problem.rewards), deviation(problem, shaped(problem, BETA))
        printed.append(relative(in_the_reward(problem), wanted / plain))
        corrected.append(apart(in_the_reward(problem), wanted / spread))
        ratios.append(plain / spread)
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        correction=(
            r"Both are scaled by $1/s$, with $s^2 = p(1-p) - 2\beta\,\mathrm{Cov}[r, D] + \beta^2 \Var[D]$, "
            r"as the source's appendix D.1 computes; $\ell'(p) = 1/\sqrt{p(1-p)}$ is its value at $\beta = "
            r"0$."
        ),
        counterexample=(
            rf"$\beta$ = {BETA}, worlds with rewards 0 and 1: the scale is {min(ratios):.2f} to "
            rf"{max(ratios):.2f} times $\ell'(p)$"
        ),
        practice=(
            rf"With $\beta$ = {BETA} the step is wrong by {max(printed):.0%} in the worst world tried; near "
            "the reference the two scales agree."
        ),
    )


@claim("FRPO-D1-display", "FRPO-D1-variance")
def the_update_and_the_variance_of_the_shaped_reward() -> Evidence:
    """E[A score] = grad(p - beta K) / s, and s^2 = p(1 - p) - 2 beta Cov + beta^2 Var."""
    errors = []
    for problem in (*graded_pairs(), *graded()):
        p, ratio = population_mean(problem, problem.rewards), log_ratio(problem)
        mean_ratio = exact(reverse_kl, problem)[0]
        spread = deviation(problem, shaped(problem, BETA))
        errors.append(apart(in_the_reward(problem), regularized_gradient(problem, BETA) / spread))
        covariance = population_mean(problem, problem.rewards * ratio) - p * mean_ratio
        variance = population_mean(problem, ratio**2) - mean_ratio**2
        errors.append(apart(spread**2, p * (1 - p) - 2 * BETA * covariance + BETA**2 * variance))
    return Evidence(worst(errors))
