"""Tables 6 and 7: optimal policies and reward transforms, row by row (emapg2026)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.best_policies import (
    BestPolicyCase,
    best_policy,
    case,
    cases,
    clipped_example,
    form_errors,
    in_training,
    in_words,
    not_best,
    reference,
    regularized,
    settings,
    tensor,
    three_answers,
    vanishing_error,
    with_changed_rewards,
    with_kl,
    z_star_solved,
)
from kl_book.ledger.claims.ground.divergences import NAMED, Pair, amari, divergence
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.printed_optima import (
    BETA,
    LAMBDA,
    REVERSE_FROM_FORWARD,
    TABLE_7,
    TILDE,
    Z_STAR,
    Form,
    R,
    S,
    Transform,
    alpha_6,
    alpha_7,
)
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.worlds import bandits
from kl_companion.divergences import T

GAP = sympy.Symbol("gap", positive=True)  # the base of a power that has to be positive


def written_right(form: Form) -> float:
    """Error of "f is convex with f(1) = 0, beside it stand f', its inverse, and the policy from it"."""
    return worst(
        (
            vanishing_error(form.f.subs(T, 1)),
            vanishing_error(sympy.diff(form.f, T) - form.slope),
            vanishing_error(form.inverse.subs(S, form.slope) - T),
            vanishing_error(form.inverse.subs(S, (R - LAMBDA) / BETA) - form.tilt),
        )
    )


def named_right(f: Callable[[torch.Tensor], torch.Tensor], named: Pair) -> float:
    """Error of "f generates this divergence", up to a factor that is the same everywhere."""
    d = divergence(f)
    factors = [exact(d, p)[0] / exact(named, p)[0] for p in bandits()]
    return worst(violation(abs(x / factors[0] - 1) - 1e-10) for x in factors)


def row(name: str, named: Pair) -> tuple[list[float], list[float]]:
    """Errors of a row of table 6, everywhere and where the optimum is interior: columns, name, policies."""
    always = [written_right(case(name).form), named_right(case(name).f, named)]
    printed, inside = list(always), list(always)
    for error, cut, excess in form_errors(name):
        printed.append(error)
        inside.append(max(cut, 0.0 if excess else error))
    return printed, inside


def _never_clipped(name: str) -> Callable[[], Evidence]:
    return lambda: Evidence(worst(row(name, NAMED[name])[0]))


for _id, _name in {
    "RKL": "Reverse KL",
    "FKL": "Forward KL",
    "JS": "Jensen-Shannon",
    "Hellinger": "Squared Hellinger",
    "Neyman": "Neyman",
}.items():
    claim(f"EMA-tab6-{_id}")(_never_clipped(_name))


@claim("EMA-tab6-Pearson")
def pearson_row() -> Iterator[Found]:
    """1 + (R - lambda)/beta turns negative where beta is small; the optimum then leaves answers out."""
    printed, inside = row("Pearson", NAMED["Pearson"])
    c, corrected = case("Pearson"), []
    for problem, beta in settings():
        lam = best_policy("Pearson", problem, beta).multiplier
        tilts = tensor([max(0.0, c.tilt(r, lam, beta)) for r in problem.rewards.tolist()])
        corrected.append(not_best(reference(problem) * tilts, regularized(c.f, problem, beta)))
    wrong, right = clipped_example()
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(inside),
        in_words_wrong=in_words(wrong),
        in_words_right=in_words(right),
        practice=in_training(),
    )


@claim("EMA-tab6-alpha")
def alpha_row() -> Iterator[Found]:
    """The row in symbols and at several alpha; above 1 it is cut off at 0 like Pearson's."""
    a, printed, inside = sympy.Symbol("a", real=True), [], []
    form = alpha_6(a)
    inside.append(written_right(form))
    for end, f in ((-1, T - 1 - sympy.log(T)), (1, T * sympy.log(T) - T + 1)):  # with f'(1) = 0
        inside.append(vanishing_error(sympy.limit(form.f - form.slope.subs(T, 1) * (T - 1), a, end) - f))
    for name, c in cases().items():
        if not name.startswith("alpha"):
            continue
        at = float(sympy.nsimplify(name.partition("= ")[2]))
        found = row(name, amari(at))
        printed += found[0]
        inside += [*found[1], *([] if at > 1 else found[0])]  # below 1 nothing is cut off
        for problem, beta in settings()[::5]:  # where the lambda of this f' lies: equal rewards keep ref
            still = best_policy(name, problem._replace(rewards=torch.zeros_like(problem.rewards)), beta)
            inside += [apart(still.multiplier, 2 * beta / (1 - at)), abs(c.at_one + 2 / (1 - at))]
    wrong = square_example()
    loss = not_best(wrong, regularized(case("alpha = 2").f, three_answers(), 1.0))
    inside += [apart(wrong.sum(), 1.0), less(1e-3, loss)]
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        in_words=in_words(wrong.tolist()),
        in_words_2=in_words(best_policy("alpha = 2", three_answers(), 1.0).policy.tolist()),
        practice=in_training(),
    )


def square_example() -> torch.Tensor:
    """alpha = 2 as printed, ref ((R - lambda)/2)^2, with the smaller lambda for which it sums to 1."""
    q, r = reference(three_answers()), three_answers().rewards
    first, second = float((q * r).sum()), float((q * r**2).sum())
    lam = first - (first**2 - second + 4) ** 0.5
    return q * ((r - lam) / 2) ** 2


def in_range(name: str, row: Transform) -> float:
    """Error of "the printed range of lambda is where the inverse and every logarithm exist"."""
    c, errors = case(name), []
    within = sympy.lambdify((R, LAMBDA, BETA), row.within, "math")
    logs = [
        sympy.lambdify((R, LAMBDA, BETA), x.args[0], "math") for x in row.reward.atoms(sympy.log) if x.has(R)
    ]
    for r, lam, beta in itertools.product((-1.3, 0.4), [k / 8 for k in range(-40, 41)], (0.5, 2.0)):
        s = (r - lam) / beta
        printed = bool(within(r, lam, beta))
        errors.append(float(printed != (c.low < s < c.high)))
        errors += [float(printed != (log(r, lam, beta) > 0)) for log in logs]
    return worst(errors)


def transform_errors(name: str, row: Transform) -> tuple[list[float], list[float]]:
    """Errors of a row of table 7, everywhere and where the optimum is interior."""
    c, x = case(name), (R - LAMBDA) / BETA
    always = [
        vanishing_error(row.inverse - c.form.inverse),
        vanishing_error(sympy.exp((row.reward - TILDE) / BETA) - row.inverse.subs(S, x)),
        in_range(name, row),
    ]
    reward = sympy.lambdify((R, LAMBDA, BETA, TILDE), row.reward, "math")
    within = sympy.lambdify((R, LAMBDA, BETA), row.within, "math")
    printed, inside = list(always), list(always)
    for problem, beta in settings():
        found = best_policy(name, problem, beta)
        every = [within(r, found.multiplier, beta) for r in problem.rewards.tolist()]
        if found.excess:  # lambda leaves the range for some answer, whichever it is
            printed.append(found.excess)
            inside.append(float(all(every)))
            continue
        inside.append(float(not all(every)))
        for tilde in (-2.0, 0.3):
            changed = with_changed_rewards(problem, reward, found.multiplier, beta, tilde)
            tilted = reference(problem) * (changed.rewards / beta).exp()
            policy = tilted / tilted.sum()
            inside += [
                not_best(policy, with_kl("reverse", changed, beta)),
                not_best(policy, regularized(c.f, problem, beta)),
            ]
    return [*printed, *inside], inside


EVERY = r"the range of $\lambda$ holds at the optimum for every answer, that is with the largest $R$"


def _transform(name: str) -> Callable[[], Evidence]:
    return lambda: Evidence(worst(transform_errors(name, TABLE_7[name])[0]), note=EVERY)


for _id, _name in {
    "JS": "Jensen-Shannon",
    "Hellinger": "Squared Hellinger",
    "Neyman": "Neyman",
}.items():
    claim(f"EMA-tab7-{_id}")(_transform(_name))


@claim("EMA-tab7-FKL")
def forward_kl_transform() -> Iterator[Found]:
    """The row, and eq (134) once more: lambda of the row is Z* - beta."""
    row = TABLE_7["Forward KL"]
    again = row.reward.subs(LAMBDA, Z_STAR - BETA) - REVERSE_FROM_FORWARD
    same = sympy.expand_log(sympy.simplify(sympy.diff(again, R)), force=True)
    errors = [vanishing_error(same)]
    errors += [
        violation(abs(best_policy("Forward KL", p, b).multiplier + b - z_star_solved(p, b)) - 1e-10)
        for p, b in settings()
    ]
    yield from each_form(worst([*errors, *transform_errors("Forward KL", row)[0]]))


@claim("EMA-tab7-Pearson")
def pearson_transform() -> Iterator[Found]:
    """lambda = E_ref R has to stay below min R + beta."""
    printed, inside = transform_errors("Pearson", TABLE_7["Pearson"])
    for problem, beta in settings():
        found = best_policy("Pearson", problem, beta)
        if not found.excess:
            inside.append(apart(found.multiplier, (reference(problem) * problem.rewards).sum()))
    lam = float((reference(three_answers()) * three_answers().rewards).sum())
    yield from each_form(
        worst([*printed, *inside]), inside=worst(inside), lam=lam, number=1 - lam, practice=in_training()
    )


@claim("EMA-tab7-alpha")
def alpha_transform() -> Iterator[Found]:
    """The row in symbols and at several alpha; the range fails above 1 where the optimum is cut off."""
    a = sympy.Symbol("a", real=True)
    x, form, row = (R - LAMBDA) / BETA, alpha_6(a), alpha_7(a)
    inside = [vanishing_error(row.inverse - form.inverse)]
    # where the base is positive: R = lambda + beta s with s = -2 base/(1 - a)
    at = {R: LAMBDA - 2 * BETA * GAP / (1 - a)}
    difference = (row.reward - TILDE - BETA * sympy.log(row.inverse.subs(S, x))).subs(at)
    inside.append(vanishing_error(sympy.expand_log(sympy.simplify(difference), force=True)))
    printed = []
    for name in cases():
        if name.startswith("alpha"):
            number = sympy.nsimplify(name.partition("= ")[2])
            found = transform_errors(name, alpha_7(number))
            printed += found[0]
            inside += found[1] if number > 1 else found[0]  # below 1 nothing is cut off
    lam = best_policy("alpha = 3", three_answers(), 1.0).multiplier
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        in_words=in_words(best_policy("alpha = 3", three_answers(), 1.0).policy.tolist()),
        lam=lam,
        practice=in_training(),
    )


def captioned(c: BestPolicyCase) -> Callable[[float, float, float], float]:
    """The transform of table 7's caption, of R, lambda and beta; its constant is -0.4."""
    return lambda r, lam, beta: beta * math.log(c.inverse((r - lam) / beta)) - 0.4


@claim("EMA-tab7-alpha+caption")
def one_transform_for_every_divergence() -> Iterator[Found]:
    """beta log((f')^{-1}((R - lambda)/beta)) + lambda~ is beta log(policy/reference) up to a constant."""
    printed, inside = [], []
    for name, c in cases().items():
        for problem, beta in settings():
            found = best_policy(name, problem, beta)
            printed.append(found.excess)
            if found.excess:
                continue
            changed = with_changed_rewards(problem, captioned(c), found.multiplier, beta)
            inside.append(not_best(found.policy, with_kl("reverse", changed, beta)))
            inside.append(not_best(found.policy, regularized(c.f, problem, beta)))
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        in_words=in_words(best_policy("Pearson", three_answers(), 1.0).policy.tolist()),
        practice=in_training(),
    )
