"""Section 2, Figure 2 and eq (5): what estimates of the KL and its gradient are worth (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import errors, spreads, sums
from kl_book.ledger.claims.ground.world import SMALL, Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import arms, bandits, hedge_bandits, worlds
from kl_book.ledger.claims.standard import DEGREE
from kl_companion.estimators.sampled import k_lambda
from kl_companion.tabular import bandit, draw_statistics


def _missing_mass(lam: float) -> dict[str, float]:
    """KL and estimate by k_lambda where the policy (1, 0) misses half of the reference."""
    logp, ref_logp = torch.tensor([0.0]).double(), torch.tensor([0.5]).double().log()
    kl = float(sums.reverse_kl(logp, ref_logp))  # the second arm has probability 0 and is never sampled
    return {"kl": kl, "estimate": float(k_lambda(lam)(logp, ref_logp)[0])}


@claim("TM-KL-def", over=each(worlds))
def kl_is_the_expected_log_ratio(w: Enumeration) -> Iterator[Found]:
    """The mean log-ratio is the divergence with generator t log t, never negative, 0 between equals."""
    ratio, mean = w.l.exp(), w.E(w.l)
    yield same(mean, (w.ref * (ratio * ratio.log() - ratio + 1)).sum())
    yield at_most(0.0, mean)
    equal = w.replace(ref_logits=w.problem.logits)
    yield same(equal.E(equal.l), 0.0)


@claim("TM-2.1-vanilla", over=each(worlds))
def vanilla_value_is_unbiased(w: Enumeration) -> Iterator[Found]:
    """E[k1] is the KL."""
    yield same(w.bias("k1"), 0.0)


@claim("TM-2.1-varreduced", over=each(worlds))
def reduced_value_is_unbiased(w: Enumeration) -> Iterator[Found]:
    """E[k3] is the KL, because the ratio of the reference to the policy has mean one."""
    yield same(w.bias("k3"), 0.0)
    yield same(w.E((-w.l).exp()), 1.0)
    yield numbers(**_missing_mass(1.0))


@claim("TM-2.1-control-variate", over=each(worlds))
def control_variate_has_mean_zero(w: Enumeration) -> Iterator[Found]:
    """1 - pi/pi_ref has mean minus chi-square; its inverse ratio has mean zero."""
    yield same(w.E(1 - w.l.exp()), 0.0)
    yield same(w.E(1 / w.l.exp() - 1), 0.0, "corrected")
    mean = float(SMALL.E(1 - SMALL.l.exp()))
    yield numbers(mean=mean, logged=SMALL.kl + mean, kl=SMALL.kl)


def _variance(w: Enumeration, estimator: str) -> float:
    return w.var(w.value(estimator))


def _formula(w: Enumeration) -> float:
    """Var k1 - Var k3 in closed form: 2 (KL + forward KL) - chi-square."""
    return 2 * (w.kl + w.forward) - (float(w.E((-2 * w.l).exp())) - 1)


@claim("TM-2.1-varreduction")
def control_variate_reduces_the_variance() -> Iterator[Found]:
    """Generally: in the bandits of appendix C; exactly where chi-square is at most twice both divergences."""
    small = two((0.05, 0.95), (0.5, 0.5))
    for w in (*each(worlds)(), small):
        sampled, formula = _variance(w, "k1") - _variance(w, "k3"), _formula(w)
        yield printed(abs(sampled - formula) / (1 + abs(formula)))
        if formula >= 0:
            yield less(0.0, sampled, by=0.0)
    for shift, sign in ((-0.02, 1), (0.02, -1)):  # one rare arm just inside and just outside of the bound
        rare = two((1e-6, 1 - 1e-6), (x := (spreads.K3_BOUND + shift) * 1e-6, 1 - x))
        yield less(0.0, sign * _formula(rare), by=0.0)
    k1, k3 = (draw_statistics(k, arms()).value_variance for k in ("k1", "k3"))
    yield printed(errors.hedged((k3 < k1).tolist()))
    yield numbers(lower=int((k3 < k1).sum()), bandits=len(k1), safe=spreads.K3_BOUND)
    yield numbers(k3=_variance(small, "k3"), k1=_variance(small, "k1"))


@claim("TM-eq1")
def squared_value_is_biased_and_closer_near_the_reference() -> Iterator[Found]:
    """The bias of k2 is of third order where the KL is of second, and its error is below that of k1."""
    for base in (bandit(6, seed=seed) for seed in range(5)):
        shift = base.logits - base.ref_logits
        close, closer = (
            Enumeration(base._replace(logits=base.ref_logits + eps * shift)) for eps in (0.02, 0.01)
        )
        yield differs(Enumeration(base).bias("k2"), 0.0)
        share, smaller = (abs(w.bias("k2")) / w.kl for w in (close, closer))
        yield less(smaller, 0.6 * share)
        yield less(share, 0.05)
        yield less(close.bias("k2") ** 2 + _variance(close, "k2"), _variance(close, "k1"))


@claim("TM-fig1")
def errors_of_the_values_against_the_sample_size() -> Iterator[Found]:
    """Averaged over bandits, k2 and k3 beat k1 with few samples, k2 saturates, k3 stays below k1."""
    sizes = 2 ** torch.arange(11)
    moments = {k: draw_statistics(k, arms()).at(sizes) for k in ("k1", "k2", "k3")}
    each_k1, _, each_k3 = (torch.as_tensor(m.value_mse) for m in moments.values())
    k1, k2, k3 = (torch.as_tensor(m.value_mse).mean(0) for m in moments.values())
    floor = float((torch.as_tensor(moments["k2"].value_bias)[:, 0] ** 2).mean())
    yield less(float(k2[0]), float(k1[0]))
    yield less(float((k3 / k1).max()), 1.0)
    yield less(float(k1[-1]), float(k2[-1]))
    yield less(float(k2[-1]), 1.1 * floor)
    yield less(float(torch.as_tensor(moments["k2"].value_variance).mean(0)[0]), float(k1[0]))
    single = int((each_k3[:, 0] > each_k1[:, 0]).sum())
    yield numbers(bandits=len(arms().logits), single=single, crossing=int(sizes[k2 > k1][0]))


@claim("TM-3-lambda-value", over=each(bandits))
def every_factor_gives_an_unbiased_value(w: Enumeration) -> Iterator[Found]:
    """E[KL_lambda] is the KL for positive, zero and negative factors."""
    for lam in (-1.0, 0.0, 0.5, 1.0, 3.0):
        yield same(w.bias(f"k_lambda({lam:g})"), 0.0)
    yield numbers(**_missing_mass(0.5))


@claim("TM-2.2-sign")
def descending_minus_the_estimate_minimizes_the_kl() -> Iterator[Found]:
    """A small step down the gradient of -KL raises the KL; down the gradient of +KL lowers it."""
    rises = []
    for w in each(worlds)():
        step = 1e-3 * w.grad("k2")
        up, down = (w.replace(logits=w.problem.logits + sign * step).kl - w.kl for sign in (1, -1))
        yield at_most(up, 0.0)
        yield at_most(down, 0.0, "corrected")
        rises.append(up)
    yield numbers(most=max(rises), worlds=len(rises), rising=sum(x > 0 for x in rises))


@claim("TM-fig2-LOO")
def leave_one_out_has_marginally_smaller_variance() -> Iterator[Found]:
    """On average over bandits of appendix C it loses for few samples and wins for many."""
    sizes = torch.arange(2, 1025)
    plain, left = (
        torch.as_tensor(
            draw_statistics("k1", arms(), placement="reward", baseline=b).at(sizes).gradient_variance
        )
        for b in (None, "leave_one_out")
    )
    share = left.mean(0) / plain.mean(0)  # falls with n
    first, last = int((share >= 1).sum()), int((share >= 1 - DEGREE).sum())
    tried = 2 ** torch.arange(1, 11) - 2  # places of n = 2, 4, ..., 1024
    yield printed(float((left >= plain)[:, tried].double().mean()))
    yield at_most(share[first], 1.0, "inside")
    yield at_most(1 - DEGREE, share[last - 1], "inside")
    yield at_most(share[1:], share[:-1], "inside")
    yield numbers(fewest=int(sizes[first]), most=int(sizes[last - 1]), DEGREE=DEGREE)
    yield numbers(worse=int((left >= plain)[:, 2].sum()), bandits=len(left), largest=int(sizes[-1]))
    yield numbers(share_2=share[0], share_4=share[2], share_16=share[14], share_largest=share[-1])


@claim("TM-fig2")
def errors_of_the_gradients_against_the_sample_size() -> Iterator[Found]:
    """The error of vanilla falls like one over root n; the incorrect ones level off at their bias."""
    sizes = 2 ** torch.arange(11)
    vanilla = draw_statistics("k1", arms(), placement="reward").at(sizes)
    right = torch.as_tensor(vanilla.gradient_rmse).mean(0)
    yield same(right * sizes.double().sqrt(), right[0])
    for k in ("k1", "k3"):
        moments = draw_statistics(k, arms(), placement="loss").at(sizes)
        floor, rmse = (
            float(torch.as_tensor(x).mean(0)[-1]) for x in (moments.gradient_bias, moments.gradient_rmse)
        )
        yield less(float(right[-1]), floor)
        yield at_most(floor, rmse)
        yield less(rmse, 1.25 * floor)


@claim("TM-eq5")
def analytic_gradient_is_exact_and_of_less_variance() -> Iterator[Found]:
    """The sum over all outcomes is the gradient; a sample varies where the outcomes do not tie."""
    for w in each(worlds, hedge_bandits)():
        yield same(w.E(w.vanilla()), w.d_kl)
        yield less(0.0, w.var(w.vanilla()))
    root = _second_root()
    tied = two((0.75, 0.25), (1 - root, root))
    yield at_most(tied.var(tied.vanilla()), 1e-12)
    yield numbers(first=1 - root, second=root)


def _second_root(p: float = 0.25) -> float:
    """The other q at which (1 - p) log(p/q) + p log((1 - p)/(1 - q)) = 0: both arms give one gradient."""
    low, high = 1 - p, 1 - 1e-12
    for _ in range(200):
        q = torch.tensor((low + high) / 2, dtype=torch.float64)
        above = (1 - p) * torch.log(p / q) + p * torch.log((1 - p) / (1 - q)) > 0
        low, high = (low, float(q)) if above else (float(q), high)
    return low
