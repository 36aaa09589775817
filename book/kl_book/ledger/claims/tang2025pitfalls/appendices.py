"""Appendices A, B and C: the steps of a proof, the two parts, the settings (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import (
    Found,
    Shortfall,
    at_most,
    differs,
    inside,
    less,
    numbers,
    printed,
    same,
)
from kl_book.ledger.claims.ground import sums
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.groups import centered_gradient, groups
from kl_book.ledger.claims.ground.world import SMALL, Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import arms, bandits, worlds
from kl_companion.tabular import bandit, draw_statistics


def _steps_of_appendix_a(w: Enumeration) -> tuple[torch.Tensor, ...]:
    """(a), (b), (c) as printed, (c) with its sign turned; each [vocab] of a bandit."""
    p, q, score = w.p, w.ref, w.s[:, 0]
    slope = torch.autograd.functional.jacobian(
        lambda x: w.problem.token_logp(x).sum(-1).exp(), w.problem.logits.detach()
    )[:, 0]
    a = -(p[:, None] * (q / p**2)[:, None] * slope).sum(0)  # the gradient of pi, not of its logarithm
    b = -(p[:, None] * (q / p)[:, None] * score).sum(0)
    return a, b, (q[:, None] * score).sum(0), -(q[:, None] * score).sum(0)


@claim("TM-appA-ab", over=each(bandits))
def first_steps_of_appendix_a(w: Enumeration) -> Iterator[Found]:
    """Steps (a), (b) and the result (d) agree with the differentiated k3 and with the other KL.

    Of the three terms of the estimate, differentiated, only the ratio has a mean.
    """
    a, b, *_ = _steps_of_appendix_a(w)
    yield same(a, w.d_forward[0])
    yield same(b, w.d_forward[0])
    yield same(w.grad("k3"), w.d_forward)
    yield same(w.grad(lambda x, y: x - y), 0.0)
    yield same(w.grad(lambda x, y: (y - x).exp()), w.d_forward)
    yield same(w.grad(lambda x, y: 0 * x - 1.0), 0.0)


@claim("TM-appA-c", over=each(bandits))
def third_step_of_appendix_a(w: Enumeration) -> Iterator[Found]:
    """Step (c) carries two minus signs where one belongs."""
    *_, c, turned = _steps_of_appendix_a(w)
    yield same(c, w.d_forward[0], by=relative)
    yield same(turned, w.d_forward[0], "corrected")
    wrong, right = (float(step[0]) for step in _steps_of_appendix_a(SMALL)[2:])
    yield numbers(wrong=wrong, right=right, factor=wrong / right)


HIGHLY = 0.2  # of the gradient: what "highly biased" is taken to be
UNBIASED = ("k1", "k3", "k_lambda(0.5)", "k_lambda(-1)")


@claim("TM-appB-ghat", over=each(worlds))
def both_parts_together_are_unbiased(w: Enumeration) -> Iterator[Found]:
    """Both parts have the gradient of the estimate's mean as their mean: that of the KL where unbiased."""
    for k in (*UNBIASED, "k2"):
        yield same(w.grad(k) + w.Es(w.value(k)), w.d_square if k == "k2" else w.d_kl)
    yield differs(w.d_square, w.d_kl)


@claim("TM-appB-score", over=each(worlds))
def score_part_of_vanilla_is_everything(w: Enumeration) -> Iterator[Found]:
    """For k1 the score-function part alone is the whole gradient; for k3 it is not."""
    yield same(w.Es(w.value("k1")), w.d_kl)
    yield differs(w.Es(w.value("k3")), w.d_kl)


@claim("TM-appB-allcases")
def path_wise_part_is_highly_biased_in_all_cases() -> Iterator[Found]:
    """Highly biased is taken as a fifth of the gradient; the squared estimate has no bias at all."""
    drawn = arms()
    policies = zip(drawn.logits, drawn.ref_logits, strict=True)
    right = [Enumeration(drawn._replace(logits=a, ref_logits=b)).d_kl.flatten() for a, b in policies]
    share = []
    for k in UNBIASED:
        means = torch.as_tensor(draw_statistics(k, drawn).at(1).gradient).flatten(1)
        share.append(min(relative(mean, gradient) for mean, gradient in zip(means, right, strict=True)))
        yield at_most(HIGHLY, share[-1], "inside")
    close = two((0.51, 0.49), (0.5, 0.5))
    biases = {
        "squared": relative(SMALL.grad("k2"), SMALL.d_kl),
        "close": relative(close.grad("k3"), close.d_kl),
    }
    every = (*share, *biases.values())
    yield printed(sum(s < HIGHLY for s in every) / len(every))
    yield numbers(least=min(share), **biases)


@claim("TM-appC-MSE")
def mean_squared_error_is_a_mean() -> Iterator[Found]:
    """The square of one repeat is a random number; its mean over repeats is squared bias plus variance."""
    for w in each(bandits)():
        for k in ("k1", "k2", "k3"):
            error, total = (w.value(k) - w.kl) ** 2, w.bias(k) ** 2 + w.var(w.value(k))
            yield same(error / total, 1.0)
            yield same(w.E(error), total, "inside")
    single = (SMALL.value("k1") - SMALL.kl) ** 2
    yield numbers(first=single[0], second=single[1], mean=SMALL.E(single))


@claim("TM-appC-rootMSE")
def average_over_parameters_is_a_sum() -> Iterator[Found]:
    """The formula sums over parameters; an average is smaller by the root of their number."""
    for seed in (2, 1, 0):
        w = Enumeration(bandit(100, seed=seed))
        error = (w.vanilla() - w.d_kl).square().squeeze(1)
        average, total = (float(w.E(x)) ** 0.5 for x in (error.mean(-1), error.sum(-1)))
        rmse = draw_statistics("k1", w.problem, placement="reward").at(1).gradient_rmse
        yield same(average / total, 1.0)
        yield same(torch.as_tensor(rmse), total, "corrected")
    yield numbers(factor=total / average)


def _objective(
    logp: torch.Tensor, ref_logp: torch.Tensor, rewards: torch.Tensor, beta: float
) -> torch.Tensor:
    return (logp.exp() * rewards).sum() - beta * sums.reverse_kl(logp, ref_logp)


def _settings() -> Iterator[Shortfall]:
    """Moments of what is drawn, and the mean of the sampled update over all pairs of samples."""
    drawn, beta = arms(), 0.7
    for x in (drawn.ref_logits, drawn.logits - drawn.ref_logits, drawn.rewards):
        yield less(abs(float(x.mean())), 0.05, by=0.0)  # 10^4 numbers: five standard errors
        yield less(abs(float(x.var()) - 1), 0.08, by=0.0)
    for w in map(Enumeration, bandits()[:6]):
        chance, pair = groups(w.problem, 2)
        reward = centered_gradient(w.problem, 2, "leave_one_out", w.R)
        update = reward - beta * w.vanilla()[pair].mean(1)
        objective = partial(_objective, rewards=w.R, beta=beta)
        yield same(sums.mean(chance, update), sums.exact(objective, w.problem)[1])


@claim("TM-appC-settings")
def settings_of_the_tabular_experiments() -> Iterator[Found]:
    """Unit Gaussians, an update that is unbiased for E[r] - beta KL, and which policy it starts from."""
    for comparison in _settings():
        yield comparison
        yield inside(comparison.error)
    start = float(draw_statistics("k1", arms()).target_value.mean())
    yield printed(start)
    yield numbers(start=start)
