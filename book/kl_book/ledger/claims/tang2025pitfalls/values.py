"""Section 2: what the three estimates of the KL are worth (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, hedged, less, violation, worst
from kl_book.ledger.claims.ground.spreads import K3_BOUND, bias_of_value
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
from kl_companion.estimators.sampled import k_lambda
from kl_companion.tabular import Problem, bandit, draw_statistics


def _missing_mass(lam: float) -> tuple[float, float, float]:
    """KL, mean estimate and bias of k_lambda where the policy (1, 0) misses half of the reference."""
    logp, ref_logp = torch.tensor([0.0]).double(), torch.tensor([0.5]).double().log()
    kl = float(reverse_kl(logp, ref_logp))  # the second arm has probability 0 and is never sampled
    found = float(k_lambda(lam)(logp, ref_logp)[0])
    return kl, found, abs(found - kl)


@claim("TM-KL-def")
def kl_is_the_expected_log_ratio() -> Iterator[Found]:
    """The mean log-ratio is the divergence with generator t log t, never negative, 0 between equals."""
    errors = []
    for problem in worlds():
        t = terms(problem)
        q, ratio = t.ref_logp.sum(-1).exp(), t.log_ratio.sum(-1).exp()
        found = mean(t.p, t.log_ratio.sum(-1))
        errors += [apart(found, (q * (ratio * ratio.log() - ratio + 1)).sum()), max(0.0, -float(found))]
        same = terms(problem._replace(ref_logits=problem.logits))
        errors.append(apart(mean(same.p, same.log_ratio.sum(-1)), 0.0))
    yield from each_form(worst(errors))


@claim("TM-2.1-vanilla")
def vanilla_value_is_unbiased() -> Iterator[Found]:
    """E[k1] is the KL."""
    yield from each_form(worst(abs(bias_of_value("k1", p)) for p in worlds()))


@claim("TM-2.1-varreduced")
def reduced_value_is_unbiased() -> Iterator[Found]:
    """E[k3] is the KL, because the ratio of the reference to the policy has mean one."""
    errors = [abs(bias_of_value("k3", p)) for p in worlds()]
    errors += [apart(mean(terms(p).p, (-terms(p).log_ratio.sum(-1)).exp()), 1.0) for p in worlds()]
    kl, found, _ = _missing_mass(1.0)
    yield from each_form(worst(errors), kl=kl, found=found)


@claim("TM-2.1-control-variate")
def control_variate_has_mean_zero() -> Iterator[Found]:
    """1 - pi/pi_ref has mean minus chi-square; its inverse ratio has mean zero."""
    printed, corrected = [], []
    for problem in worlds():
        t = terms(problem)
        ratio = t.log_ratio.sum(-1).exp()
        printed.append(abs(float(mean(t.p, 1 - ratio))))
        corrected.append(abs(float(mean(t.p, 1 / ratio - 1))))
    problem = two_policies((0.75, 0.25), (0.5, 0.5))
    small, kl = terms(problem), exact(reverse_kl, problem)[0]
    value = float(mean(small.p, 1 - small.log_ratio.sum(-1).exp()))
    yield from each_form(worst(printed), worst(corrected), value=value, number=kl + value, kl=kl)


def _reduction(problem: Problem) -> tuple[float, float]:
    """Var k1 - Var k3, sampled and in closed form: 2 (KL + forward KL) - chi-square."""
    t = terms(problem)
    sampled = variance(t.p, values("k1", problem)) - variance(t.p, values("k3", problem))
    chi2 = float(mean(t.p, (-2 * t.log_ratio.sum(-1)).exp())) - 1
    return sampled, 2 * (exact(reverse_kl, problem)[0] + exact(forward_kl, problem)[0]) - chi2


@claim("TM-2.1-varreduction")
def control_variate_reduces_the_variance() -> Iterator[Found]:
    """Generally: in the bandits of appendix C; exactly where chi-square is at most twice both divergences."""
    small, safe = two_policies((0.05, 0.95), (0.5, 0.5)), K3_BOUND
    found = [_reduction(p) for p in (*worlds(), small)]
    formula = violation(*(-a for a, b in found if b >= 0), *(abs(a - b) / (1 + abs(b)) for a, b in found))
    for shift, sign in ((-0.02, 1), (0.02, -1)):  # one rare arm just inside and just outside of the bound
        rare = two_policies((1e-6, 1 - 1e-6), (x := (safe + shift) * 1e-6, 1 - x))
        formula = max(formula, violation(-sign * _reduction(rare)[1]))
    one, other = (variance(terms(small).p, values(k, small)) for k in ("k1", "k3"))
    k1, k3 = (draw_statistics(k, arms()).value_variance for k in ("k1", "k3"))
    yield from each_form(
        max(formula, hedged((k3 < k1).tolist())),
        int=int((k3 < k1).sum()),
        number_of_k1=len(k1),
        safe=safe,
        other=other,
        one=one,
    )


@claim("TM-eq1")
def squared_value_is_biased_and_closer_near_the_reference() -> Iterator[Found]:
    """The bias of k2 is of third order where the KL is of second, and its error is below that of k1."""
    errors = []
    for seed in range(5):
        base = bandit(6, seed=seed)
        far, near, nearer = (
            base._replace(logits=base.ref_logits + eps * (base.logits - base.ref_logits))
            for eps in (1.0, 0.02, 0.01)
        )
        errors.append(differs(bias_of_value("k2", far), 0.0))
        shares = [abs(bias_of_value("k2", p)) / exact(reverse_kl, p)[0] for p in (near, nearer)]
        errors += [less(shares[1], 0.6 * shares[0]), less(shares[0], 0.05)]
        t = terms(near)
        squared = bias_of_value("k2", near) ** 2 + variance(t.p, values("k2", near))
        errors.append(less(squared, variance(t.p, values("k1", near))))
    yield from each_form(worst(errors))


@claim("TM-fig1")
def errors_of_the_values_against_the_sample_size() -> Iterator[Found]:
    """Averaged over bandits, k2 and k3 beat k1 with few samples, k2 saturates, k3 stays below k1."""
    sizes = 2 ** torch.arange(11)
    k1, k2, k3 = (draw_statistics(k, arms()).at(sizes) for k in ("k1", "k2", "k3"))
    mse1, mse2, mse3 = (torch.as_tensor(m.value_mse).mean(0) for m in (k1, k2, k3))
    floor = float((torch.as_tensor(k2.value_bias)[:, 0] ** 2).mean())
    errors = [
        less(float(mse2[0]), float(mse1[0])),
        less(float((mse3 / mse1).max()), 1.0),
        less(float(mse1[-1]), float(mse2[-1])),
        less(float(mse2[-1]), 1.1 * floor),
        less(torch.as_tensor(k2.value_variance).mean(0)[0].item(), float(mse1[0])),
    ]
    single = int((torch.as_tensor(k3.value_mse)[:, 0] > torch.as_tensor(k1.value_mse)[:, 0]).sum())
    crossing = int(sizes[mse2 > mse1][0])
    yield from each_form(worst(errors), number=len(arms().logits), single=single, crossing=crossing)


@claim("TM-3-lambda-value")
def every_factor_gives_an_unbiased_value() -> Iterator[Found]:
    """E[KL_lambda] is the KL for positive, zero and negative factors."""
    factors = (-1.0, 0.0, 0.5, 1.0, 3.0)
    kl, found, _ = _missing_mass(0.5)
    yield from each_form(
        worst(abs(bias_of_value(f"k_lambda({lam:g})", p)) for lam in factors for p in bandits()),
        kl=kl,
        found=found,
    )


@claim("TM-2.2-sign")
def descending_minus_the_estimate_minimizes_the_kl() -> Iterator[Found]:
    """A small step down the gradient of -KL raises the KL; down the gradient of +KL lowers it."""
    printed, corrected = [], []
    for problem in worlds():
        t, (before, _) = terms(problem), exact(reverse_kl, problem)
        step = 1e-3 * mean(t.p, differentiated("k2", problem))
        up, down = (
            exact(reverse_kl, problem._replace(logits=problem.logits + sign * step))[0] for sign in (1, -1)
        )
        printed.append(max(0.0, up - before))
        corrected.append(max(0.0, down - before))
    yield from each_form(
        worst(printed),
        worst(corrected),
        max_printed=max(printed),
        number_of_printed=len(printed),
        sum=sum(x > 0 for x in printed),
    )
