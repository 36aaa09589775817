"""Sections 1 and 6 and the references: other code, off-policy learning, dates (tang2025pitfalls)."""

from __future__ import annotations

import torch

from kl_companion.claims.ledger import Evidence, claim
from kl_companion.claims.off_policy import (
    average,
    in_loss,
    kl_gradient,
    rho,
    sampled_elsewhere,
    three_policies,
)
from kl_companion.claims.worlds import (
    apart,
    differentiated,
    differs,
    exact,
    less,
    mean,
    reverse_kl,
    terms,
    trees,
    values,
    variance,
    worlds,
    worst,
)
from kl_companion.tabular import Problem


@claim("TM-1-code", how="reading")
def code_and_papers_with_these_losses() -> Evidence:
    """What such a loss descends is TM-eq3 and TM-4.1-k3; who had it, only the code of that time says."""
    return Evidence(
        needs="the code of TRL, Open Instruct and of the papers named, as it was in June 2025",
        correction=(
            "the loss that the GRPO papers print holds the variance-reduced estimate of every token, "
            "undetached: by TM-eq3 and TM-4.1-k3 it follows the other KL of each token"
        ),
    )


@claim("TM-6-bug", how="reading")
def a_bug_or_a_design() -> Evidence:
    """That the other KL is enforced is TM-eq3; whether that was meant is not a matter of mathematics."""
    return Evidence(needs="a judgement")


def _off(estimator: str, problem: Problem, *, weighted: bool) -> float:
    """Bias of the value from samples of another policy, with or without the ratio pi/mu."""
    weight = rho(problem) if weighted else torch.ones_like(terms(problem).p)
    found = (terms(problem).p * weight * values(estimator, problem)).sum()
    return apart(found, exact(reverse_kl, problem)[0])


@claim("TM-6-needs-pi")
def the_kl_from_samples_of_another_policy() -> Evidence:
    """Without weights the values are biased off-policy; with pi/mu they are not, at the price of variance."""
    several = sampled_elsewhere()
    wrong = [less(0.0, _off(k, p, weighted=False)) for k in ("k1", "k3") for p in several]
    inside = [_off(k, p, weighted=True) for k in ("k1", "k3") for p in several]
    spread = []
    for mu in (1e-2, 1e-4):
        rare = three_policies((0.5, 0.5), (0.25, 0.75), (1 - mu, mu))
        inside.append(_off("k1", rare, weighted=True))
        spread.append(variance(terms(rare).p, rho(rare) * values("k1", rare)))
    inside.append(less(50 * spread[0], spread[1]))
    return Evidence(
        max(worst(inside), worst(wrong), *(less(0.0, _off("k1", p, weighted=True)) for p in several)),
        inside=max(worst(inside), worst(wrong)),
        condition=(
            "the samples are not weighted by pi/mu; with this weight they do, and the challenge is a "
            f"variance, here {spread[0]:.3g} where mu gives 0.01 to an arm of probability 1/2 and "
            f"{spread[1]:.3g} at 0.0001"
        ),
        counterexample=(
            f"in {len(several)} off-policy worlds the mean of (pi/mu) log(pi/pi_ref) under mu is the KL up "
            f"to {max(_off('k1', p, weighted=True) for p in several):.1g}"
        ),
    )


def _square(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    return (logp - ref_logp) ** 2


def _regularizer(problem: Problem) -> torch.Tensor:
    """Gradient of E_mu[(log-ratio of whole sequences)^2] with mu held fixed, [rows, vocab]."""
    mu = terms(problem).p
    return exact(lambda logp, ref_logp: (mu * _square(logp, ref_logp)).sum(), problem)[1]


@claim("TM-6-faithful")
def squared_log_ratio_of_sequences_off_policy() -> Evidence:
    """Of whole sequences its samples have the regularizer's gradient; summed over tokens they do not."""
    errors = []
    for problem in (*worlds(), *sampled_elsewhere()):
        p, right = terms(problem).p, _regularizer(problem)
        errors.append(apart(mean(p, differentiated(_square, problem)), right))
        if problem.rows.shape[1] > 1:
            errors.append(differs(mean(p, differentiated(_square, problem, per_token=True)), right))
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
        condition="half of it, with pi held fixed where it samples; off-policy it is not the KL's gradient",
    )


PRINTED = {
    "the note of Schulman on approximating the KL": 2017,
    "the PyTorch paper of Paszke and others": 1912,
}
DATED = {"the note of Schulman on approximating the KL": 2020, "the PyTorch paper of Paszke and others": 2019}


@claim("TM-refs")
def years_of_the_references() -> Evidence:
    """Two years of the reference list against those that the note and arXiv:1912.01703 carry."""
    wrong = [f"{name}: {year}" for name, year in PRINTED.items() if DATED[name] != year]
    return Evidence(
        float(len(wrong)),
        correction="; ".join(f"{name}: {year}" for name, year in DATED.items()),
        counterexample="; ".join(wrong),
    )
