"""Appendices A, B and C: the steps of a proof, the two parts, the settings (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, relative, violation, worst
from kl_book.ledger.claims.ground.groups import vanilla
from kl_book.ledger.claims.ground.off_policy import half_square, mean_gradient
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    forward_kl,
    mean,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.worlds import arms, bandits, two_policies, worlds
from kl_companion.tabular import Problem, bandit, draw_statistics


def _steps_of_appendix_a(problem: Problem) -> tuple[torch.Tensor, ...]:
    """(a), (b), (c) as printed, (c) with its sign turned; each [vocab] of a bandit."""
    t = terms(problem)
    p, q, score = t.p, t.ref_logp.exp().sum(-1), t.score[:, 0]
    theta = problem.logits.detach()
    slope = torch.autograd.functional.jacobian(lambda x: problem.token_logp(x).sum(-1).exp(), theta)[:, 0]
    a = -(p[:, None] * (q / p**2)[:, None] * slope).sum(0)  # the gradient of pi, not of its logarithm
    b = -(p[:, None] * (q / p)[:, None] * score).sum(0)
    return a, b, (q[:, None] * score).sum(0), -(q[:, None] * score).sum(0)


@claim("TM-appA-ab")
def first_steps_of_appendix_a() -> Iterator[Found]:
    """Steps (a), (b) and the result (d) agree with the differentiated k3 and with the other KL.

    Of the three terms of the estimate, differentiated, only the ratio has a mean.
    """
    errors = []
    for problem in bandits():
        gradient = exact(forward_kl, problem)[1][0]
        a, b, *_ = _steps_of_appendix_a(problem)
        errors += [apart(x, gradient) for x in (a, b, mean_gradient("k3", problem)[0])]
        log_ratio, ratio, one = (
            mean(terms(problem).p, differentiated(term, problem))[0]
            for term in (lambda x, y: x - y, lambda x, y: (y - x).exp(), lambda x, y: 0 * x - 1.0)
        )
        errors += [apart(log_ratio, 0.0), apart(one, 0.0), apart(ratio, gradient)]
    yield from each_form(worst(errors))


@claim("TM-appA-c")
def third_step_of_appendix_a() -> Iterator[Found]:
    """Step (c) carries two minus signs where one belongs."""
    steps = [(_steps_of_appendix_a(p), exact(forward_kl, p)[1][0]) for p in bandits()]
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    wrong, right = (float(_steps_of_appendix_a(small)[i][0]) for i in (2, 3))
    yield from each_form(
        worst(relative(s[2], g) for s, g in steps),
        worst(apart(s[3], g) for s, g in steps),
        wrong=wrong,
        right=right,
        number=wrong / right,
    )


HIGHLY = 0.2  # of the gradient: what "highly biased" is taken to be
UNBIASED = ("k1", "k3", "k_lambda(0.5)", "k_lambda(-1)")


@claim("TM-appB-ghat")
def both_parts_together_are_unbiased() -> Iterator[Found]:
    """Both parts have the gradient of the estimate's mean as their mean: that of the KL where unbiased."""
    errors = []
    for problem in worlds():
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        for name in (*UNBIASED, "k2"):
            both = differentiated(name, problem) + values(name, problem)[:, None, None] * t.score
            wanted = exact(half_square, problem)[1] if name == "k2" else gradient
            errors.append(apart(mean(t.p, both), wanted))
        errors.append(differs(exact(half_square, problem)[1], gradient))
    yield from each_form(worst(errors))


@claim("TM-appB-score")
def score_part_of_vanilla_is_everything() -> Iterator[Found]:
    """For k1 the score-function part alone is the whole gradient; for k3 it is not."""
    errors = []
    for problem in worlds():
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        one, three = (mean(t.p, values(k, problem)[:, None, None] * t.score) for k in ("k1", "k3"))
        errors += [apart(one, gradient), differs(three, gradient)]
    yield from each_form(worst(errors))


def _relative_bias(name: str, problem: Problem) -> float:
    gradient = exact(reverse_kl, problem)[1]
    return float((mean_gradient(name, problem) - gradient).norm() / gradient.norm())


@claim("TM-appB-allcases")
def path_wise_part_is_highly_biased_in_all_cases() -> Iterator[Found]:
    """Highly biased is taken as a fifth of the gradient; the squared estimate has no bias at all."""
    drawn = arms()
    policies = zip(drawn.logits, drawn.ref_logits, strict=True)
    right = [exact(reverse_kl, drawn._replace(logits=a, ref_logits=b))[1].flatten() for a, b in policies]
    share = []
    for name in UNBIASED:
        found = torch.as_tensor(draw_statistics(name, arms()).at(1).gradient).flatten(1)
        share.append(min(float((f - g).norm() / g.norm()) for f, g in zip(found, right, strict=True)))
    small, near = two_policies((0.75, 0.25), (0.5, 0.5)), two_policies((0.51, 0.49), (0.5, 0.5))
    squared, close = _relative_bias("k2", small), _relative_bias("k3", near)
    every = (*share, squared, close)
    yield from each_form(
        sum(s < HIGHLY for s in every) / len(every),
        inside=violation(*(HIGHLY - s for s in share)),
        min_share=min(share),
        squared=squared,
        close=close,
    )


@claim("TM-appC-MSE")
def mean_squared_error_is_a_mean() -> Iterator[Found]:
    """The square of one repeat is a random number; its mean over repeats is squared bias plus variance."""
    printed, inside = [], []
    for problem in bandits():
        t, kl = terms(problem), exact(reverse_kl, problem)[0]
        for name in ("k1", "k2", "k3"):
            error = (values(name, problem) - kl) ** 2
            total = (float(mean(t.p, values(name, problem))) - kl) ** 2 + variance(t.p, values(name, problem))
            printed.append(apart(error / total, 1.0))
            inside.append(apart(mean(t.p, error), total))
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    single = (values("k1", small) - exact(reverse_kl, small)[0]) ** 2
    total = float(mean(terms(small).p, single))
    yield from each_form(
        worst(printed), inside=worst(inside), float=float(single[0]), float_2=float(single[1]), total=total
    )


@claim("TM-appC-rootMSE")
def average_over_parameters_is_a_sum() -> Iterator[Found]:
    """The formula sums over parameters; an average is smaller by the root of their number."""
    printed, corrected, factors = [], [], []
    for seed in range(3):
        problem = bandit(100, seed=seed)
        p, gradient = terms(problem).p, exact(reverse_kl, problem)[1]
        error = (vanilla(problem) - gradient).square().squeeze(1)
        words, formula = (float(mean(p, x)) ** 0.5 for x in (error.mean(-1), error.sum(-1)))
        rmse = draw_statistics("k1", problem, placement="reward").at(1).gradient_rmse
        printed.append(abs(words / formula - 1))
        corrected.append(apart(torch.as_tensor(rmse), formula))
        factors.append(formula / words)
    yield from each_form(worst(printed), worst(corrected), factors_0=factors[0])


@claim("TM-appC-settings")
def settings_of_the_tabular_experiments() -> Iterator[Found]:
    """Unit Gaussians, an update that is unbiased for E[r] - beta KL, and which policy it starts from."""
    drawn, errors = arms(), []
    shift = drawn.logits - drawn.ref_logits
    for x in (drawn.ref_logits, shift, drawn.rewards):  # 10^4 numbers: five standard errors
        errors += [violation(abs(float(x.mean())) - 0.05), violation(abs(float(x.var()) - 1) - 0.08)]
    for problem in bandits()[:6]:  # the sampled update over all pairs of samples
        t, r, beta = terms(problem), problem.rewards, 0.7
        pair = torch.cartesian_prod(torch.arange(len(t.p)), torch.arange(len(t.p)))
        reward = torch.einsum("gi,girv->grv", r[pair] - r[pair].flip(-1), t.score[pair]) / 2
        update = reward - beta * vanilla(problem)[pair].mean(1)

        def objective(logp: torch.Tensor, ref_logp: torch.Tensor, gain: torch.Tensor = r) -> torch.Tensor:
            return (logp.exp() * gain).sum() - 0.7 * reverse_kl(logp, ref_logp)

        errors.append(apart(mean(t.p[pair].prod(-1), update), exact(objective, problem)[1]))
    start = draw_statistics("k1", drawn).target_value
    yield from each_form(
        max(worst(errors), float(start.mean())), inside=worst(errors), float=float(start.mean())
    )
