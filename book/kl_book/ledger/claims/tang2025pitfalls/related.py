"""Sections 1 and 6 and the references: other code, off-policy learning, dates (tang2025pitfalls)."""

from __future__ import annotations

import torch

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
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_book.ledger.claims.standard import JUDGEMENT, TOLERANCE
from kl_companion.tabular import Problem


@claim("TM-1-code", how="reading")
def code_and_papers_with_these_losses() -> Evidence:
    """What such a loss minimizes is TM-eq3 and TM-4.1-k3; who had it, only the code of that time says."""
    return Evidence(
        needs="the code of TRL, Open Instruct and of the papers named, as it was in June 2025",
        note=(
            "The loss that the GRPO papers print has the variance-reduced estimate of every token, not "
            "detached: its gradient is that of the other KL of each token (TM-eq3, TM-4.1-k3)."
        ),
    )


@claim("TM-6-bug", how="reading")
def a_bug_or_a_design() -> Evidence:
    """That the other KL is enforced is TM-eq3; whether that was meant is not a matter of mathematics."""
    return Evidence(needs=JUDGEMENT)


def _off(estimator: str, problem: Problem, *, weighted: bool) -> float:
    """Bias of the value from samples of another policy, with or without the ratio pi/mu."""
    weight = rho(problem) if weighted else torch.ones_like(terms(problem).p)
    found = (terms(problem).p * weight * values(estimator, problem)).sum()
    return apart(found, exact(reverse_kl, problem)[0])


@claim("TM-6-needs-pi")
def the_kl_from_samples_of_another_policy() -> Evidence:
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
    return Evidence(
        right / len(several),
        inside=worst(inside),
        unit="share of cases",
        condition=r"the samples carry no weight $\pi/\mu$",
        given="implied by section 2.1: its estimates carry no weights and take a sample of the policy",
        counterexample=(
            rf"in {right} of {len(several)} off-policy worlds the mean of $(\pi/\mu) \log(\pi/\pref)$ "
            r"under $\mu$ "
            rf"is the KL. The challenge is then its variance: {spread[0]:.3g} where $\mu$ gives 0.01 to an "
            f"arm of probability 1/2, {spread[1]:.3g} at 0.0001"
        ),
    )


def _regularizer(problem: Problem) -> torch.Tensor:
    """Gradient of E_mu[(log-ratio of whole sequences)^2] with mu held fixed, [rows, vocab]."""
    mu = terms(problem).p
    return exact(lambda logp, ref_logp: (mu * full_square(logp, ref_logp)).sum(), problem)[1]


@claim("TM-6-faithful")
def squared_log_ratio_of_sequences_off_policy() -> Evidence:
    """Of whole sequences its samples have the regularizer's gradient; summed over tokens they do not."""
    errors = []
    for problem in (*worlds(), *sampled_elsewhere()):
        p, right = terms(problem).p, _regularizer(problem)
        errors.append(apart(mean(p, differentiated(full_square, problem)), right))
        if problem.rows.shape[1] > 1:
            errors.append(differs(mean(p, differentiated(full_square, problem, per_token=True)), right))
    return Evidence(worst(errors))


@claim("TM-6-special-case")
def the_squared_estimate_is_the_case_on_policy() -> Evidence:
    """With mu = pi, held fixed, half the regularizer has the gradient of eq (1), which is that of the KL."""
    errors = []
    for problem in (*worlds(), *trees()):
        half = _regularizer(problem) / 2
        errors += [apart(half, mean(terms(problem).p, differentiated("k2", problem)))]
        errors += [apart(half, kl_gradient(problem))]
    for problem in sampled_elsewhere():
        errors.append(differs(_regularizer(problem) / 2, kl_gradient(problem)))
        errors.append(differs(average(in_loss("k2", problem), problem), kl_gradient(problem)))
    return Evidence(
        worst(errors),
        note=r"Half of it, with $\pi$ held fixed where it samples. Off-policy its gradient is another one.",
    )


NOTE, PYTORCH = "Schulman on approximating the KL", "Paszke and others on PyTorch"
PRINTED = {NOTE: 2017, PYTORCH: 1912}
DATED = {NOTE: 2020, PYTORCH: 2019}


@claim("TM-refs", how="text")
def years_of_the_references() -> Evidence:
    """Two years of the reference list against those that the note and arXiv:1912.01703 carry."""
    wrong = [f"{name}: {year}" for name, year in PRINTED.items() if DATED[name] != year]
    return Evidence(
        float(len(wrong)),
        unit="places in the text",
        record=(
            f"The note of Schulman carries the date 7 March {DATED[NOTE]}, the paper of Paszke and others "
            f"is of {DATED[PYTORCH]}; its number at arXiv, 1912.01703, begins with 1912."
        ),
        correction="; ".join(f"{name}: {year}" for name, year in DATED.items()) + ".",
        counterexample="printed are " + "; ".join(wrong),
    )
