"""Tables 6 and 7: optimal policies and reward transforms, row by row (emapg2026)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import (
    Form,
    Found,
    Shortfall,
    at_most,
    corrected,
    inside,
    less,
    printed,
    same,
)
from kl_book.ledger.claims.ground import best_policies as best
from kl_book.ledger.claims.ground.divergences import NAMED, Pair, amari, divergence
from kl_book.ledger.claims.ground.printed_forms import (
    BETA,
    LAMBDA,
    REVERSE_FROM_FORWARD,
    TABLES,
    TILDE,
    Z_STAR,
    R,
    S,
    Transform,
    alpha_row,
)
from kl_book.ledger.claims.ground.printed_forms import Form as Row
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.worlds import bandits
from kl_companion.divergences import T

GAP = sympy.Symbol("gap", positive=True)  # the base of a power that has to be positive

words(
    *("EMA-eq137-138", "EMA-tab6-Pearson", "EMA-tab6-alpha", "EMA-eq139-140"),
    *("EMA-tab7-Pearson", "EMA-tab7-alpha", "EMA-tab7-alpha+caption"),
)(best.numbers_of_the_optima)


def written(row: Row, form: Form = "inside") -> Iterator[Found]:
    """f is convex with f(1) = 0, beside it stand f', its inverse, and the policy from it."""
    for zero in (
        row.f.subs(T, 1),
        sympy.diff(row.f, T) - row.slope,
        row.inverse.subs(S, row.slope) - T,
        row.inverse.subs(S, (R - LAMBDA) / BETA) - row.tilt,
    ):
        yield Shortfall(form, best.vanishing_error(zero))


def optimum(name: str, named: Pair, form: Form = "inside", policies: Form = "printed") -> Iterator[Found]:
    """A row of table 6: its columns, its name, and the policies, where the optimum is interior and not."""
    yield from written(best.case(name).form, form)
    d = divergence(best.case(name).f)
    factors = [exact(d, p)[0] / exact(named, p)[0] for p in bandits()]  # f generates it, up to one factor
    for factor in factors:
        yield at_most(abs(factor / factors[0] - 1), 1e-10, form)
    for error, cut, excess in best.form_errors(name):
        yield Shortfall(policies, error)
        yield Shortfall(form, max(cut, 0.0 if excess else error))


def never_cut_off(name: str) -> Iterator[Found]:
    """A row of table 6 whose optimum is always interior."""
    yield from optimum(name, NAMED[name], form="printed")


NAMES = {"JS": "Jensen-Shannon", "Hellinger": "Squared Hellinger", "Neyman": "Neyman"}
KLS = {"RKL": "Reverse KL", "FKL": "Forward KL"}
claim_rows(never_cut_off, {f"EMA-tab6-{id}": [name] for id, name in (KLS | NAMES).items()})


@claim("EMA-tab6-Pearson")
def pearson_row() -> Iterator[Found]:
    """1 + (R - lambda)/beta turns negative where beta is small; the optimum then leaves answers out."""
    yield from optimum("Pearson", NAMED["Pearson"])
    c = best.case("Pearson")
    for problem, beta in best.settings():
        lam = best.best_policy("Pearson", problem, beta).multiplier
        tilts = best.tensor([max(0.0, c.tilt(r, lam, beta)) for r in problem.rewards.tolist()])
        yield corrected(best.not_best(best.reference(problem) * tilts, best.regularized(c.f, problem, beta)))


def alphas() -> Iterator[tuple[str, sympy.Expr]]:
    """The cases of the alpha row, and their alpha."""
    for name in best.cases():
        if name.startswith("alpha"):
            yield name, sympy.nsimplify(name.partition("= ")[2])


@claim("EMA-tab6-alpha")
def row_of_alpha() -> Iterator[Found]:
    """The row in symbols and at several alpha; above 1 it is cut off at 0 like Pearson's."""
    a = sympy.Symbol("a", real=True)
    form = alpha_row(6, a)
    yield from written(form)
    for end, f in ((-1, T - 1 - sympy.log(T)), (1, T * sympy.log(T) - T + 1)):  # with f'(1) = 0
        limit = sympy.limit(form.f - form.slope.subs(T, 1) * (T - 1), a, end)
        yield inside(best.vanishing_error(limit - f))
    for name, number in alphas():
        at = float(number)
        # below 1 nothing is cut off
        yield from optimum(name, amari(at), policies="printed" if at > 1 else "inside")
        yield same(best.case(name).at_one, -2 / (1 - at), "inside")
        for problem, beta in best.settings()[::5]:  # where the lambda of this f' lies: equal rewards keep ref
            still = problem._replace(rewards=torch.zeros_like(problem.rewards))
            yield same(best.best_policy(name, still, beta).multiplier, 2 * beta / (1 - at), "inside")
    objective = best.regularized(best.case("alpha = 2").f, best.three_answers(), 1.0)
    yield same(best.square_example().sum(), 1.0, "inside")
    yield less(1e-3, best.not_best(best.square_example(), objective), "inside")


def in_range(name: str, row: Transform, form: Form) -> Iterator[Found]:
    """The printed range of lambda is where the inverse and every logarithm exist."""
    c, symbols = best.case(name), (R, LAMBDA, BETA)
    within = sympy.lambdify(symbols, row.within, "math")
    logs = [sympy.lambdify(symbols, x.args[0], "math") for x in row.reward.atoms(sympy.log) if x.has(R)]
    for r, lam, beta in itertools.product((-1.3, 0.4), [k / 8 for k in range(-40, 41)], (0.5, 2.0)):
        yield same(bool(within(r, lam, beta)), c.low < (r - lam) / beta < c.high, form)
        for log in logs:
            yield same(bool(within(r, lam, beta)), log(r, lam, beta) > 0, form)


def transform(name: str, row: Transform, form: Form = "inside", excess: Form = "printed") -> Iterator[Found]:
    """A row of table 7, where the optimum is interior, and where lambda leaves the range for some answer."""
    c, x = best.case(name), (R - LAMBDA) / BETA
    yield Shortfall(form, best.vanishing_error(row.inverse - c.form.inverse))
    zero = sympy.exp((row.reward - TILDE) / BETA) - row.inverse.subs(S, x)
    yield Shortfall(form, best.vanishing_error(zero))
    yield from in_range(name, row, form)
    reward = sympy.lambdify((R, LAMBDA, BETA, TILDE), row.reward, "math")
    within = sympy.lambdify((R, LAMBDA, BETA), row.within, "math")
    for problem, beta in best.settings():
        optimal = best.best_policy(name, problem, beta)
        everywhere = all(within(r, optimal.multiplier, beta) for r in problem.rewards.tolist())
        yield Shortfall(excess, optimal.excess)
        yield same(everywhere, not optimal.excess, form)
        if optimal.excess:
            continue
        for tilde in (-2.0, 0.3):
            changed = best.with_changed_rewards(problem, reward, optimal.multiplier, beta, tilde)
            tilted = best.reference(problem) * (changed.rewards / beta).exp()
            policy = tilted / tilted.sum()
            yield Shortfall(form, best.not_best(policy, best.with_kl("reverse", changed, beta)))
            yield Shortfall(form, best.not_best(policy, best.regularized(c.f, problem, beta)))


def always_in_range(name: str) -> Iterator[Found]:
    """A row of table 7 whose range of lambda holds at every optimum."""
    yield from transform(name, TABLES[7][name], form="printed")


claim_rows(always_in_range, {f"EMA-tab7-{id}": [name] for id, name in NAMES.items()})


@claim("EMA-tab7-FKL")
def forward_kl_transform() -> Iterator[Found]:
    """The row, and eq (134) once more: lambda of the row is Z* - beta."""
    row = TABLES[7]["Forward KL"]
    yield from transform("Forward KL", row, form="printed")
    slope = sympy.diff(row.reward.subs(LAMBDA, Z_STAR - BETA) - REVERSE_FROM_FORWARD, R)
    yield printed(best.vanishing_error(sympy.expand_log(sympy.simplify(slope), force=True)))
    for problem, beta in best.settings():
        lam = best.best_policy("Forward KL", problem, beta).multiplier
        yield at_most(abs(lam + beta - best.z_star_solved(problem, beta)), 1e-10)


@claim("EMA-tab7-Pearson")
def pearson_transform() -> Iterator[Found]:
    """lambda = E_ref R has to stay below min R + beta."""
    yield from transform("Pearson", TABLES[7]["Pearson"])
    for problem, beta in best.settings():
        optimal = best.best_policy("Pearson", problem, beta)
        if not optimal.excess:
            yield same(optimal.multiplier, (best.reference(problem) * problem.rewards).sum(), "inside")


@claim("EMA-tab7-alpha")
def alpha_transform() -> Iterator[Found]:
    """The row in symbols and at several alpha; the range fails above 1 where the optimum is cut off."""
    a = sympy.Symbol("a", real=True)
    x, row = (R - LAMBDA) / BETA, alpha_row(7, a)
    yield inside(best.vanishing_error(row.inverse - alpha_row(6, a).inverse))
    # where the base is positive: R = lambda + beta s with s = -2 base/(1 - a)
    at = {R: LAMBDA - 2 * BETA * GAP / (1 - a)}
    zero = (row.reward - TILDE - BETA * sympy.log(row.inverse.subs(S, x))).subs(at)
    yield inside(best.vanishing_error(sympy.expand_log(sympy.simplify(zero), force=True)))
    for name, number in alphas():  # below 1 nothing is cut off
        yield from transform(name, alpha_row(7, number), excess="printed" if number > 1 else "inside")


def captioned(c: best.BestPolicyCase) -> Callable[[float, float, float], float]:
    """The transform of table 7's caption, of R, lambda and beta; its constant is -0.4."""
    return lambda r, lam, beta: beta * math.log(c.inverse((r - lam) / beta)) - 0.4


@claim("EMA-tab7-alpha+caption")
def one_transform_for_every_divergence() -> Iterator[Found]:
    """beta log((f')^{-1}((R - lambda)/beta)) + lambda~ is beta log(policy/reference) up to a constant."""
    for (name, c), (problem, beta) in itertools.product(best.cases().items(), best.settings()):
        optimal = best.best_policy(name, problem, beta)
        yield printed(optimal.excess)
        if not optimal.excess:
            changed = best.with_changed_rewards(problem, captioned(c), optimal.multiplier, beta)
            yield inside(best.not_best(optimal.policy, best.with_kl("reverse", changed, beta)))
            yield inside(best.not_best(optimal.policy, best.regularized(c.f, problem, beta)))
