"""The best policy of a regularized objective, for the checks of emapg2026, appendix I.

A policy is the best of a concave objective J exactly if no answer's slope of J exceeds the mean slope: the
gap max g - sum pi g bounds what J can still gain. Optima are the package's, and every policy is judged by its
gap, with slopes from automatic differentiation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import sympy
import torch

from kl_book.ledger.claims.ground import divergences, sums
from kl_book.ledger.claims.ground.errors import apart, violation, worst
from kl_book.ledger.claims.ground.printed_forms import BETA, LAMBDA, TABLES, Form, R, S, alpha_row
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies
from kl_companion.divergences import Divergence, T, make_divergence
from kl_companion.tabular import Problem
from kl_companion.theory import multiplier_range, optimal_policy, policy_at

Objective = Callable[[torch.Tensor], torch.Tensor]
simplex_slopes = sums.slopes  # of an objective, at a vector of probabilities
Setting = tuple[Problem, float]
BETAS = (0.3, 1.0, 4.0)
ALPHAS = ("-3", "-1/2", "0", "2", "3", "5")


class BestPolicyCase(NamedTuple):
    """A printed row, its divergence, and functions: f, (f')^{-1}, range of f', f'(1), policy/reference."""

    form: Form
    divergence: Divergence
    f: Callable[[torch.Tensor], torch.Tensor]
    inverse: Callable[[float], float]
    low: float
    high: float
    at_one: float
    tilt: Callable[[float, float, float], float]


@cache
def case(name: str) -> BestPolicyCase:
    """A row of table 6, or ``"alpha = a"``."""
    form = TABLES[6].get(name) or alpha_row(6, sympy.nsimplify(name.partition("= ")[2]))
    slope = sympy.diff(form.f, T)
    return BestPolicyCase(
        form,
        make_divergence(name, form.f, source="emapg2026, table 6"),
        divergences.as_function(form.f, T),
        sympy.lambdify(S, form.inverse, "math"),
        float(sympy.limit(slope, T, 0)),
        float(sympy.limit(slope, T, sympy.oo)),
        float(slope.subs(T, 1)),
        sympy.lambdify((R, LAMBDA, BETA), form.tilt, "math"),
    )


def cases() -> dict[str, BestPolicyCase]:
    """The rows of table 6 and the alpha row at several alpha."""
    return {name: case(name) for name in (*TABLES[6], *(f"alpha = {a}" for a in ALPHAS))}


@cache
def three_answers() -> Problem:
    """Three answers: rewards 0, 1, 5, reference .5, .3, .2."""
    q = (0.5, 0.3, 0.2)
    return two_policies(q, q)._replace(rewards=torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64))


@cache
def settings() -> tuple[Setting, ...]:
    """Prompts with two to nine answers, each at several beta, in the order of beta."""
    at = {beta: (*bandits(), *trees()[:2], *((three_answers(),) if beta >= 1 else ())) for beta in BETAS}
    return tuple((problem, beta) for beta, problems in at.items() for problem in problems)


def reference(problem: Problem) -> torch.Tensor:
    """pi_ref of every answer, as the policies are built from it."""
    return sums.terms(problem).ref_logp.sum(-1).exp()


def true_reference(problem: Problem) -> torch.Tensor:
    """pi_ref of every answer, as the objectives hold it."""
    return problem.token_logp(problem.ref_logits).sum(-1).exp()


def regularized(f: Callable[[torch.Tensor], torch.Tensor], problem: Problem, beta: float) -> Objective:
    """sum pi R - beta sum ref f(pi/ref), eq (136), of a vector of probabilities."""
    q, r = true_reference(problem), problem.rewards
    return lambda p: (p * r).sum() - beta * (q * f(p / q)).sum()


def with_kl(direction: str, problem: Problem, beta: float) -> Objective:
    """Eq (127), ``"reverse"``, or eq (128), ``"forward"``."""
    log_q, r = true_reference(problem).log(), problem.rewards
    if direction == "reverse":
        return lambda p: (p * r).sum() - beta * sums.reverse_kl(p.log(), log_q)
    return lambda p: (p * r).sum() - beta * sums.forward_kl(p.log(), log_q)


def not_best(policy: torch.Tensor, objective: Objective, unit: float = 1.0) -> float:
    """Error of "this is a distribution, and none has a larger value of the (concave) objective".

    ``unit``: What the objective's values are measured in; rewards of size 1e6 are rounded at 1e-10.
    """
    error = max(apart(policy.sum(), 1.0), violation(-float(policy.min())))
    if error > 1e-6:
        return error
    slopes = simplex_slopes(objective, policy)
    return worst((error, violation(float(slopes.max() - (policy * slopes).sum()) / unit)))


class Best(NamedTuple):
    """The optimum of eq (136): policy, lambda, and how far the sum of eq (138) stays above 1.

    ``excess``: the smallest value of that sum over all lambda where (f')^{-1} exists for every answer,
    minus 1, and 0 where it can be 1.
    """

    policy: torch.Tensor
    multiplier: float
    excess: float


@cache
def best_policy(name: str, problem: Problem, beta: float) -> Best:
    """The optimum of eq (136) by the package's solver, whose multiplier is that of an f with f'(1) = 0."""
    world = (problem.rewards, reference(problem).log(), case(name).divergence, beta)
    policy, multiplier = optimal_policy(*world)
    interior = multiplier_range(*world).interior
    total = policy_at(interior, *world).exp().sum() if interior.isfinite() else 1.0
    return Best(policy.exp(), float(multiplier) - beta * case(name).at_one, violation(float(total) - 1))


def z_star_solved(problem: Problem, beta: float) -> float:
    """Z* of eq (131): bisected between the largest reward and beta above it."""
    r, q = problem.rewards.tolist(), reference(problem).tolist()
    low, high = max(r), max(r) + beta
    while low < (middle := (low + high) / 2) < high:
        above = math.fsum(b / (middle - a) for a, b in zip(r, q, strict=True)) > 1 / beta
        low, high = (middle, high) if above else (low, middle)
    return high


def vanishing_error(expr: sympy.Expr) -> float:
    """0 if the expression vanishes, otherwise 1."""
    return float(sympy.simplify(expr) != 0)


def tensor(values: list[float]) -> torch.Tensor:
    """[answers] in float64."""
    return torch.tensor(values, dtype=torch.float64)


def with_changed_rewards(problem: Problem, change: Callable[..., float], *constants: float) -> Problem:
    """The same prompt with every reward changed: change(R, *constants)."""
    return problem._replace(rewards=tensor([change(r, *constants) for r in problem.rewards.tolist()]))


def square_example() -> torch.Tensor:
    """alpha = 2 as printed, ref ((R - lambda)/2)^2, with the smaller lambda for which it sums to 1."""
    q, r = reference(three_answers()), three_answers().rewards
    first, second = float((q * r).sum()), float((q * r**2).sum())
    lam = first - (first**2 - second + 4) ** 0.5
    return q * ((r - lam) / 2) ** 2


def numbers_of_the_optima() -> dict[str, Any]:
    """Printed policies and optima with rewards 0, 1, 5 at beta 1; Pearson in training.

    In training rewards are 0 and 1, and beta is that of appendix A.
    """
    problem, q = three_answers(), reference(three_answers())
    lam = float((q * problem.rewards).sum())  # 1 + (R - lambda)/beta is linear in lambda
    optima = {name: best_policy(name, problem, 1.0) for name in ("Pearson", "alpha = 2", "alpha = 3")}
    rate, beta = 0.3, 0.001
    success = tensor([1 - rate, rate]).tolist()
    trained = two_policies(success, success)._replace(rewards=tensor([0.0, 1.0]))
    return {
        "pearson": q * (1 + problem.rewards - lam),
        "pearson_optimum": optima["Pearson"].policy,
        "mean_reward": lam,
        "logarithm_of": 1 - lam,
        "alpha_2": square_example(),
        "alpha_2_optimum": optima["alpha = 2"].policy,
        "alpha_3_optimum": optima["alpha = 3"].policy,
        "alpha_3_lambda": optima["alpha = 3"].multiplier,
        "beta": beta,
        "rate": rate,
        "times_reference": 1 + (0 - rate) / beta,
        "trained_optimum": float(best_policy("Pearson", trained, beta).policy[0]),
    }


def form_errors(name: str) -> Iterator[tuple[float, float, float]]:
    """Per setting: error of the printed policy, of the one that is cut off at 0, and eq (138)'s excess."""
    c = case(name)
    for problem, beta in settings():
        found, objective = best_policy(name, problem, beta), regularized(c.f, problem, beta)
        error = found.excess
        if not error:
            tilts = [c.tilt(r, found.multiplier, beta) for r in problem.rewards.tolist()]
            error = not_best(reference(problem) * torch.tensor(tilts, dtype=torch.float64), objective)
        yield error, not_best(found.policy, objective), found.excess
