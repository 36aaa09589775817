"""Sections 1 and 6 and the references: other code, off-policy learning, dates (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, worst
from kl_book.ledger.claims.ground.estimates import full_square
from kl_book.ledger.claims.ground.off_policy import average, in_loss, rho
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    kl_gradient,
    mean,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, three_policies, trees, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem


def _off(estimator: str, problem: Problem, *, weighted: bool) -> float:
    """Bias of the value from samples of another policy, with or without the ratio pi/mu."""
    weight = rho(problem) if weighted else torch.ones_like(terms(problem).p)
    found = (terms(problem).p * weight * values(estimator, problem)).sum()
    return apart(found, exact(reverse_kl, problem)[0])


@claim("TM-6-needs-pi")
def the_kl_from_samples_of_another_policy() -> Iterator[Found]:
    """Without weights the values are biased off-policy; with pi/mu they are not, at the price of variance."""
    several = sampled_elsewhere()
    inside = [less(0.0, _off(k, p, weighted=False)) for k in ("k1", "k3") for p in several]
    exactly = [_off("k1", p, weighted=True) for p in several]
    right = sum(e <= TOLERANCE for e in exactly)
    inside += [_off("k3", p, weighted=True) for p in several]
    spread = []
    for mu in (1e-2, 1e-4):
        rare = three_policies((0.5, 0.5), (0.25, 0.75), (1 - mu, mu))
        inside.append(_off("k1", rare, weighted=True))
        spread.append(variance(terms(rare).p, rho(rare) * values("k1", rare)))
    inside.append(less(50 * spread[0], spread[1]))
    yield from each_form(
        right / len(several),
        inside=worst(inside),
        right=right,
        number_of_several=len(several),
        spread_0=spread[0],
        spread_1=spread[1],
    )


def _regularizer(problem: Problem) -> torch.Tensor:
    """Gradient of E_mu[(log-ratio of whole sequences)^2] with mu held fixed, [rows, vocab]."""
    mu = terms(problem).p
    return exact(lambda logp, ref_logp: (mu * full_square(logp, ref_logp)).sum(), problem)[1]


@claim("TM-6-faithful")
def squared_log_ratio_of_sequences_off_policy() -> Iterator[Found]:
    """Of whole sequences its samples have the regularizer's gradient; summed over tokens they do not."""
    errors = []
    for problem in (*worlds(), *sampled_elsewhere()):
        p, right = terms(problem).p, _regularizer(problem)
        errors.append(apart(mean(p, differentiated(full_square, problem)), right))
        if problem.rows.shape[1] > 1:
            errors.append(differs(mean(p, differentiated(full_square, problem, per_token=True)), right))
    yield from each_form(worst(errors))


@claim("TM-6-special-case")
def the_squared_estimate_is_the_case_on_policy() -> Iterator[Found]:
    """With mu = pi, held fixed, half the regularizer has the gradient of eq (1), which is that of the KL."""
    errors = []
    for problem in (*worlds(), *trees()):
        half = _regularizer(problem) / 2
        errors += [apart(half, mean(terms(problem).p, differentiated("k2", problem)))]
        errors += [apart(half, kl_gradient(problem))]
    for problem in sampled_elsewhere():
        errors.append(differs(_regularizer(problem) / 2, kl_gradient(problem)))
        errors.append(differs(average(in_loss("k2", problem), problem), kl_gradient(problem)))
    yield from each_form(worst(errors))


NOTE, PYTORCH = "Schulman on approximating the KL", "Paszke and others on PyTorch"
PRINTED = {NOTE: 2017, PYTORCH: 1912}
DATED = {NOTE: 2020, PYTORCH: 2019}


@claim("TM-refs")
def years_of_the_references() -> Iterator[Found]:
    """Two years of the reference list against those that the note and arXiv:1912.01703 carry."""
    wrong = [f"{name}: {year}" for name, year in PRINTED.items() if DATED[name] != year]
    yield from each_form(
        float(len(wrong)),
        DATED_NOTE=DATED[NOTE],
        DATED_PYTORCH=DATED[PYTORCH],
        correction="; ".join(f"{name}: {year}" for name, year in DATED.items()) + ".",
        counterexample="printed are " + "; ".join(wrong),
    )
