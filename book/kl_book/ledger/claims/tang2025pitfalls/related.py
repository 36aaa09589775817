"""Sections 1 and 6 and the references: other code, off-policy learning, dates (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import errors, estimates
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, three_policies, trees, worlds
from kl_book.ledger.claims.standard import TOLERANCE


def _off(estimator: str, w: Enumeration) -> float:
    """Bias of the value from samples of another policy, weighted with the ratio pi/mu."""
    return errors.apart(w.E(w.rho * w.value(estimator)), w.kl)


@claim("TM-6-needs-pi")
def the_kl_from_samples_of_another_policy() -> Iterator[Found]:
    """Without weights the values are biased off-policy; with pi/mu they are not, at the price of variance."""
    several = list(each(sampled_elsewhere)())
    for w in several:
        for k in ("k1", "k3"):
            yield less(0.0, abs(w.bias(k)), "inside")
        yield same(_off("k3", w), 0.0, "inside")
    right = sum(_off("k1", w) <= TOLERANCE for w in several)
    yield printed(right / len(several))
    rare = [Enumeration(three_policies((0.5, 0.5), (0.25, 0.75), (1 - mu, mu))) for mu in (1e-2, 1e-4)]
    for w in rare:
        yield same(_off("k1", w), 0.0, "inside")
    spread, wider = (w.var(w.rho * w.value("k1")) for w in rare)
    yield less(50 * spread, wider, "inside")
    yield numbers(right=right, worlds=len(several), spread=spread, wider=wider)


def _regularizer(w: Enumeration) -> torch.Tensor:
    """Gradient of E_mu[(log-ratio of whole sequences)^2] with mu held fixed, [rows, vocab]."""
    return exact(lambda logp, ref_logp: (w.p * estimates.full_square(logp, ref_logp)).sum(), w.problem)[1]


@claim("TM-6-faithful", over=each(worlds, sampled_elsewhere))
def squared_log_ratio_of_sequences_off_policy(w: Enumeration) -> Iterator[Found]:
    """Of whole sequences its samples have the regularizer's gradient; summed over tokens they do not."""
    yield same(w.grad(estimates.full_square), _regularizer(w))
    if w.problem.rows.shape[1] > 1:
        yield differs(w.grad(estimates.full_square, per_token=True), _regularizer(w))


@claim("TM-6-special-case")
def the_squared_estimate_is_the_case_on_policy() -> Iterator[Found]:
    """With mu = pi, held fixed, half the regularizer has the gradient of eq (1), which is that of the KL."""
    for w in each(worlds, trees)():
        yield same(_regularizer(w) / 2, w.grad("k2"))
        yield same(_regularizer(w) / 2, w.d_kl)
    for w in each(sampled_elsewhere)():
        yield differs(_regularizer(w) / 2, w.d_kl)
        yield differs(w.E(w.in_loss("k2")), w.d_kl)


PRINTED = {"note": 2017, "pytorch": 1912}
DATED = {"note": 2020, "pytorch": 2019}


@claim("TM-refs")
def years_of_the_references() -> Iterator[Found]:
    """Two years of the reference list against those that the note and arXiv:1912.01703 carry."""
    yield printed(float(sum(DATED[work] != year for work, year in PRINTED.items())))
    yield numbers(**DATED, **{f"printed_{work}": year for work, year in PRINTED.items()})
