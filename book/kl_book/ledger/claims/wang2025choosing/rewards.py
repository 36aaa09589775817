"""Sections 7 and 9.3: the estimate as a detached part of the reward (wang2025choosing)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.learning import (
    training_is_stable,
    training_is_unstable,
    update_is_right,
    update_is_wrong,
    value_is_unbiased,
    what_training_did,
)
from kl_book.ledger.claims.ground.off_policy import average, half_square, in_reward, rho, times_score
from kl_book.ledger.claims.ground.spreads import bias_of_value, variances_stay_lower
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    forward_kl,
    kl_gradient,
    log_ratio,
    reverse_kl,
    terms,
    values,
)
from kl_book.ledger.claims.ground.worlds import all_worlds, near, sampled_elsewhere, two_policies, worlds
from kl_companion.tabular import Problem


def _unseen(x: torch.Tensor, problem: Problem) -> torch.Tensor:
    """What is left of a function of the sequences after its least-squares fit by the scores, [count]."""
    weight = (terms(problem).p * rho(problem)).sqrt()
    scores = terms(problem).score.flatten(1)
    fit = torch.linalg.pinv(weight[:, None] * scores) @ (weight * x)
    return x - scores @ fit


@claim("WZ-7.1-condition")
def condition_on_a_detached_estimate() -> Iterator[Found]:
    """The update is right exactly where E[s k] = E[s k1]: tested on estimates on both sides of it.

    Right are k1 plus a constant and k1 plus any function whose projection on the score is taken away.
    """
    errors = []
    for problem in all_worlds():
        gain, beta = problem.rewards, 0.3
        t = terms(problem)
        p = t.logp.sum(-1).exp()
        true = (p * gain) @ t.score.flatten(1) - beta * kl_gradient(problem).flatten()
        others = [values(name, problem) for name in ("k3", "k2")]
        cases = [(log_ratio(problem) + 3, True), *((k, False) for k in others)]
        cases += [(log_ratio(problem) + _unseen(k, problem), True) for k in others]
        for k, right in cases:
            update = average(times_score(gain - beta * k, problem), problem).flatten()
            condition = apart(average(times_score(k, problem), problem), kl_gradient(problem))
            errors.append(abs(beta * condition - apart(update, true)))
            errors.append(apart(update, true) if right else differs(update, true))
    yield from each_form(worst(errors))


@claim("WZ-7.1-k1")
def log_ratio_in_the_reward() -> Iterator[Found]:
    """E[s k1] = grad KL(q||p)."""
    yield from each_form(update_is_right("k1"))


def _field(name: str, wanted: str) -> float:
    """Error of "E[s k] is grad A - grad B", and of its being no more than second order near the reference."""
    errors = []
    for problem in worlds():
        other = exact(forward_kl, problem)[1]
        kl = kl_gradient(problem)
        right = kl - other if wanted == "both" else exact(half_square, problem)[1] - kl
        found = average(in_reward(name, problem), problem)
        errors += [apart(found, right), differs(found, kl)]
        shares = []
        for bound in (0.02, 0.01):
            close = near(problem, bound)
            size = average(in_reward(name, close), close).norm() / kl_gradient(close).norm()
            shares.append(float(size) / float(log_ratio(close).abs().max()))
        errors.append(violation(max(shares) - 2.0))
    return worst(errors)


@claim("WZ-7.1-k3")
def reduced_value_in_the_reward() -> Iterator[Found]:
    """E[s k3] = grad KL(q||p) - grad KL(p||q)."""
    yield from each_form(_field("k3", "both"))


@claim("WZ-7.1-k2")
def half_square_in_the_reward() -> Iterator[Found]:
    """E[s k2] = grad E_q[k2] - grad KL(q||p), which is not grad KL(q||p)."""
    yield from each_form(_field("k2", "square"))


@claim("WZ-7.1-mixture")
def no_pure_regularization_is_left() -> Iterator[Found]:
    """k3 in the reward minimizes KL(q||p) - KL(p||q), which falls without bound as q loses an arm of p."""
    errors = []
    found = []
    for d in (1e-2, 1e-20, 1e-200):
        problem = two_policies((1 - d, d), (0.5, 0.5))
        found.append(exact(reverse_kl, problem)[0] - exact(forward_kl, problem)[0])
    errors += [less(b, a - 5) for a, b in itertools.pairwise(found)]
    yield from each_form(max(worst(errors), _field("k3", "both"), training_is_unstable("k3")))


@claim("WZ-7.1-offpolicy")
def one_ratio_is_enough() -> Iterator[Found]:
    """Off-policy E_mu[rho s (R - beta k1)] is the gradient wanted; a second ratio on k1 spoils it."""
    errors = []
    for problem in sampled_elsewhere():
        beta, gain, t = 0.3, problem.rewards, terms(problem)
        true = torch.tensordot(t.logp.sum(-1).exp() * gain, t.score, 1) - beta * kl_gradient(problem)
        once, twice = (
            average(times_score(gain - beta * c * log_ratio(problem), problem), problem)
            for c in (1.0, rho(problem))
        )
        errors += [apart(once, true), differs(twice, true)]
        errors.append(differs(average(in_reward("k3", problem), problem), kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("WZ-7.1-shah")
def stable_and_unstable_training() -> Iterator[Found]:
    """The report is about language models; exact training on bandits shows the same split."""
    yield numbers(what_training_did=what_training_did("k1"), what_training_did_2=what_training_did("k3"))


@claim("WZ-7.2-k1")
def seven_two_k1() -> Iterator[Found]:
    """k1: unbiased value, right update, stable training."""
    errors = [value_is_unbiased("k1"), update_is_right("k1"), training_is_stable("k1")]
    yield from each_form(worst(errors), what_training_did=what_training_did("k1"))


@claim("WZ-7.2-k2")
def seven_two_k2() -> Iterator[Found]:
    """k2: biased value, wrong update, and training that leads away from the reference."""
    errors = [update_is_wrong("k2"), training_is_unstable("k2")]
    errors += [differs(bias_of_value("k2", p), 0.0, by=1e-9) for p in worlds()]
    yield from each_form(worst(errors), what_training_did=what_training_did("k2"))


@claim("WZ-7.2-k3")
def seven_two_k3() -> Iterator[Found]:
    """k3: unbiased value, wrong update, can collapse."""
    errors = [value_is_unbiased("k3"), update_is_wrong("k3"), training_is_unstable("k3")]
    yield from each_form(worst(errors), what_training_did=what_training_did("k3"))


@claim("WZ-9.3-k1")
def nine_three_k1() -> Evidence:
    """k1: unbiased value, right update, a variance above that of k3."""
    return variances_stay_lower("k1", "k3", extra=max(value_is_unbiased("k1"), update_is_right("k1")))


@claim("WZ-9.3-k2")
def nine_three_k2() -> Iterator[Found]:
    """k2: biased value, wrong update."""
    errors = [_field("k2", "square"), *(differs(bias_of_value("k2", p), 0.0, by=1e-9) for p in worlds())]
    yield from each_form(worst(errors))


@claim("WZ-9.3-k3")
def nine_three_k3() -> Evidence:
    """k3: unbiased value of low variance; its update is off by -grad KL(p||q), and can collapse."""
    errors = [value_is_unbiased("k3"), training_is_unstable("k3")]
    for problem in worlds():
        off = average(in_reward("k3", problem), problem) - kl_gradient(problem)
        errors.append(apart(off, -exact(forward_kl, problem)[1]))
    return variances_stay_lower("k3", "k3", extra=worst(errors))


@claim("WZ-9.4-axes")
def value_and_gradient_are_two_axes() -> Iterator[Found]:
    """All four combinations of an unbiased value and a right gradient occur."""
    errors = []
    for problem in worlds():
        kl = kl_gradient(problem)
        k2_in_loss = average(differentiated("k2", problem), problem)
        errors += [abs(bias_of_value("k1", problem)), apart(average(in_reward("k1", problem), problem), kl)]
        errors += [abs(bias_of_value("k3", problem)), differs(average(in_reward("k3", problem), problem), kl)]
        errors += [differs(bias_of_value("k2", problem), 0.0, by=1e-9), apart(k2_in_loss, kl)]
        errors.append(differs(average(in_reward("k2", problem), problem), kl))
    yield from each_form(worst(errors))
