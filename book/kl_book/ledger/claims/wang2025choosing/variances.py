"""Section 6.3: the variance of losses that carry the ratio, in every direction (wang2025choosing)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import (
    Found,
    differs,
    inside,
    less,
    numbers,
    printed,
    regardless,
    same,
)
from kl_book.ledger.claims.ground import off_policy
from kl_book.ledger.claims.ground.errors import apart, degree, relative
from kl_book.ledger.claims.ground.loss_rows import LossRow
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import (
    all_worlds,
    hedge_bandits,
    hedge_trees,
    sampled_elsewhere,
    three_policies,
    worlds,
)


def total(w: Enumeration, name: str) -> float:
    """Variance of the gradient of rho k, summed over parameters."""
    return w.var(w.in_loss(name))


def ordered(w: Enumeration) -> bool:
    """Whether rho k1 has the larger variance in every direction."""
    return off_policy.nowhere_less(off_policy.excess_covariance(w.problem))


def against(several: Iterable[Enumeration]) -> float:
    """Share of worlds where rho k1 has the smaller variance in some direction."""
    return off_policy.share_of_cases(not ordered(w) for w in several)


def rare(delta: float) -> Enumeration:
    """Two arms, the second rare under the policy (delta) and four times as likely under the reference."""
    return two((1 - delta, delta), (1 - 4 * delta, 4 * delta))


def sampled_from(
    policy: Iterable[float], reference: Iterable[float], behavior: Iterable[float]
) -> Enumeration:
    """A bandit with these probabilities, sampled from the third."""
    return Enumeration(three_policies(tuple(policy), tuple(reference), tuple(behavior)))


@cache
def one_sided() -> tuple[Enumeration, ...]:
    """p/q <= sqrt(e), while q/p is large on some arms; with several samplers."""
    several = []
    for policy, reference in (((0.6, 0.4), (0.96, 0.04)), ((0.5, 0.3, 0.2), (0.8, 0.19, 0.01))):
        for tilt in (1.0, 0.1, 10.0):
            mu = [q * tilt**i for i, q in enumerate(policy)]
            several.append(sampled_from(policy, reference, [m / sum(mu) for m in mu]))
    return tuple(several)


def bounded(off: bool) -> Iterator[Enumeration]:
    """Worlds where p/q <= sqrt(e) for everything that is sampled; ``off`` keeps those of another sampler."""
    yield from (w.near() for w in each(sampled_elsewhere if off else all_worlds)())
    yield from one_sided()
    if not off:
        yield from (w.replace(behavior_logits=None) for w in one_sided()[::3])


@claim("WZ-var-identity", over=each(all_worlds))
def difference_of_variances(w: Enumeration) -> Iterator[Found]:
    """Cov(rho k1) - Cov(rho k3) = E_mu[rho^2 (2 k1 + 1) s s^T], and with it in every direction."""
    one, other = (off_policy.covariance(w.in_loss(k), w.problem) for k in ("k1", "k3"))
    excess = off_policy.excess_covariance(w.problem)
    yield printed(apart(one - other, excess) / (1 + float(one.abs().max())))


@claim("WZ-gradvar")
def attached_k3_has_the_lower_variance(off: bool = False) -> Iterator[Found]:
    """In every direction the variance of rho k3 (and of sg(rho) k2) is at most that of rho k1."""
    small = rare(0.01)
    if off:  # the same world, sampled by itself under another name
        small = small.replace(behavior_logits=small.problem.logits)
    yield printed(against([*each(sampled_elsewhere if off else all_worlds)(), small]))
    yield inside(against(bounded(off)))


def right_gradient_and_order_of_variances(row: LossRow) -> Iterator[Found]:
    """The loss has the gradient of the KL; rho k1 has the higher variance, in every direction."""
    for comparison in row.gradient():
        yield from regardless(comparison.error)
    yield from attached_k3_has_the_lower_variance(row.off)


TABLE = {
    "WZ-onoff-rho-k1": [LossRow("k1", "k1 + 1")],
    "WZ-onoff-sgrho-k2": [LossRow("k2", ratio="detached")],
    "WZ-onoff-rho-k3": [LossRow("k3")],
}
claim_rows(right_gradient_and_order_of_variances, TABLE)


def right_value_as_well(row: LossRow) -> Iterator[Found]:
    """Off-policy: right gradient, order of variances, and E_mu[rho k] is the KL."""
    for w in row.worlds():
        yield from regardless(apart(w.E(w.rho * w.value(row.name)), w.kl))
    yield from right_gradient_and_order_of_variances(row)


GUIDE = {
    "WZ-9.2-rho-k1": [LossRow("k1", "k1 + 1", off=True)],
    "WZ-9.2-rho-k3": [LossRow("k3", off=True)],
}
claim_rows(right_value_as_well, GUIDE)


def _bias_share(w: Enumeration) -> float:
    """|E_mu[rho k2] - KL| over the KL."""
    return abs(float(w.E(w.rho * w.value("k2"))) - w.kl) / w.kl


@claim("WZ-9.2-sgrho-k2")
def guide_detached_k2() -> Iterator[Found]:
    """Off-policy: right gradient, low variance, and a value whose bias is minimal near the reference."""
    for comparison in LossRow("k2", ratio="detached", off=True).gradient():
        yield from regardless(comparison.error)
    yield from regardless(against(bounded(off=True)))
    for w in each(sampled_elsewhere)():
        for bound in (0.1, 0.05):
            yield from regardless(degree(_bias_share(w.near(bound))))
    far = sampled_from((0.99, 0.01), (0.01, 0.99), (0.5, 0.5))
    cases = [*each(sampled_elsewhere)(), far]
    yield printed(off_policy.share_of_cases(degree(_bias_share(w)) > 0 or not ordered(w) for w in cases))
    yield numbers(bias=_bias_share(far))


@words("WZ-gradvar", "WZ-9.2-sgrho-k2", *TABLE, *GUIDE)
def _rare() -> dict[str, Any]:
    return {"rho_k1": total(rare(0.01), "k1"), "rho_k3": total(rare(0.01), "k3"), "kl": rare(0.01).kl}


@claim("WZ-var-small")
def close_to_the_reference_the_difference_is_the_noise() -> Iterator[Found]:
    """As log(p/q) tends to 0 everywhere, the difference of variances tends to E_mu[rho^2 (s.u)^2] > 0."""
    cases = []
    for w in each(all_worlds)():
        for bound in (1e-2, 1e-4):
            close = w.near(bound)
            noise = off_policy.covariance(close.times_score(torch.ones_like(close.p)), close.problem)
            gap = (off_policy.excess_covariance(close.problem) - noise).abs().max() / noise.abs().max()
            cases.append(float(gap) > 2 * bound or not ordered(close))
    tiny = rare(1e-5)
    yield printed(against((*regime(), tiny)))
    yield inside(off_policy.share_of_cases(cases))
    yield numbers(kl=tiny.kl, ratio=total(tiny, "k1") / total(tiny, "k3"))


CLOSE = 0.1  # nats per decision or sequence


def sampled_nearby(w: Enumeration) -> Enumeration:
    """The same world, sampled from a policy a tenth of the way back to the reference."""
    logits = w.problem.logits
    return w.replace(behavior_logits=logits + 0.1 * (w.problem.ref_logits - logits))


@cache
def regime() -> tuple[Enumeration, ...]:
    """The fixed bandits and trees with a small KL, and such a sampler."""
    return tuple(sampled_nearby(w) for w in each(hedge_bandits, hedge_trees)() if w.kl <= CLOSE)


@claim("WZ-var-regime")
def a_nearby_sampler_settles_the_order() -> Iterator[Found]:
    """With mu near q and a constrained KL, rho k1 has the higher variance: usually, and not for certain."""
    nearby = sampled_nearby(rare(0.01))
    yield printed(against((*regime(), nearby)))
    yield inside(against(w.near() for w in (*regime(), nearby)))
    yield numbers(kl=nearby.kl, rho_k1=total(nearby, "k1"), rho_k3=total(nearby, "k3"), CLOSE=CLOSE)
    ratios = torch.tensor([total(w, "k1") / total(w, "k3") for w in regime()])
    yield numbers(worlds=len(ratios), in_total=int((ratios > 1).sum()), median=ratios.median())
    yield numbers(in_every_direction=sum(ordered(w) for w in regime()))


@claim("WZ-6.3-O1noise", over=each(all_worlds))
def noise_of_order_one(w: Enumeration) -> Iterator[Found]:
    """rho k1 - rho k3 is rho s per sample, of mean 0; the rest shrinks like log(p/q), this does not."""
    noise = w.in_loss("k1") - w.in_loss("k3")
    yield same(noise, w.times_score(torch.ones_like(w.p)))
    yield same(w.E(noise), 0.0)
    sizes = []
    for close in (w.near(1e-2), w.near(1e-3)):
        largest = float(close.l.abs().max())
        left, whole = (
            math.sqrt(float(close.E(close.in_loss(k).square().sum((-2, -1))))) for k in ("k3", "k1")
        )
        yield less(left / whole, 1.1 * largest, by=0.0)
        sizes.append(left / largest)
    yield less(abs(math.log(sizes[0] / sizes[1])), 0.1, by=0.0)


def _neglected(policy: tuple[float, ...], reference: tuple[float, ...], mu_last: float) -> Enumeration:
    """The last arm gets ``mu_last`` from the sampler, the others share the rest evenly."""
    rest = (1 - mu_last) / (len(policy) - 1)
    return sampled_from(policy, reference, (*[rest] * (len(policy) - 1), mu_last))


def _with_ratio(w: Enumeration) -> list[float]:
    """Variances of the gradients of all losses with a ratio, summed over parameters."""
    return [*(total(w, k) for k in ("k1", "k2", "k3")), w.var(w.in_loss("k2", "detached"))]


def geometric(count: int) -> Enumeration:
    """Arms of probability 1/2^i under the policy, 1/3^i under the reference, 1/5^i under the sampler."""
    i = torch.arange(count, dtype=torch.float64)
    weights = ((-i * math.log(base)).exp() for base in (2, 3, 5))
    return sampled_from(*((w / w.sum()).tolist() for w in weights))


@claim("WZ-offpolicy-extreme")
def a_sampler_that_neglects_the_policy() -> Iterator[Found]:
    """The variance grows like 1/mu on an arm that mu neglects, and beyond all bounds with tails of rho."""
    for reference in ((0.2, 0.2, 0.6), (0.6, 0.3, 0.1)):
        variances = [_with_ratio(_neglected((0.3, 0.3, 0.4), reference, mu)) for mu in (1e-4, 1e-6)]
        for small, smaller in zip(*variances, strict=True):
            yield less(abs(small / smaller * 100 - 1), 0.05, by=0.0)
            yield less(1e3, smaller)
    for short, long in zip(*(_with_ratio(geometric(n)) for n in (20, 40)), strict=True):
        yield less(20 * short, long)
    e = math.e
    at_e = _neglected((0.6, 0.2, 0.2), (0.8 - 0.2 * e + 0.1, 0.1, 0.2 * e), 1e-6)
    tail = sampled_from((1 - 1e-6, 1e-6), (0.5, 0.5), (1 - 1e-9, 1e-9))
    yield numbers(at_e=total(at_e, "k1"), tail=total(tail, "k3"))


def _clipped(w: Enumeration, most: float) -> torch.Tensor:
    """min(rho, most) k1 s of every sequence, [count, rows, vocab]."""
    return (w.rho.clamp(max=most) * w.l)[:, None, None] * w.s


@claim("WZ-offpolicy-clip")
def a_clipped_ratio_under_mismatch() -> Iterator[Found]:
    """That clipping has to be used is advice; what it does to variance and bias is computed."""
    several = [_neglected((0.3, 0.3, 0.4), (0.2, 0.2, 0.6), mu) for mu in (1e-2, 1e-4, 1e-6)]
    biases = [relative(w.E(_clipped(w, 2.0)), w.d_kl) for w in several]
    yield numbers(first=total(several[0], "k3"), last=total(several[-1], "k3"))
    yield numbers(clipped=max(w.var(_clipped(w, 2.0)) for w in several))
    yield numbers(least_bias=min(biases), most_bias=max(biases))


@claim("WZ-offpolicy-order")
def extreme_mismatch_voids_the_advantage() -> Iterator[Found]:
    """rho k3 loses its lower variance to a sampler that neglects an arm which p prefers."""
    policy, reference = (0.45, 0.45, 0.1), (0.35, 0.35, 0.3)
    calm, torn = sampled_from(policy, reference, policy), _neglected(policy, reference, 1e-4)
    yield less(total(calm, "k3"), total(calm, "k1"))
    yield less(total(torn, "k1"), total(torn, "k3"))
    for w in each(worlds)():  # no mu turns the order where p/q is bounded
        logits = w.near().problem.logits
        for shift in (-4.0, 4.0):
            elsewhere = w.near().replace(behavior_logits=logits + shift * torch.sin(logits * 9))
            yield printed(float(not ordered(elsewhere)))


@claim("WZ-1.2-bottom", over=each(all_worlds))
def the_recommended_losses(w: Enumeration) -> Iterator[Found]:
    """k2 without a ratio, rho k3, sg(rho) k2, and k1 in the reward have the gradient of the KL."""
    right = [w.in_loss("k3"), w.in_loss("k2", "detached"), w.in_loss("k1"), w.in_reward("k1")]
    wrong = [w.in_loss("k2"), *(w.in_loss(k, "detached") for k in ("k1", "k3"))]
    wrong += [*(w.in_reward(k) for k in ("k2", "k3")), *(w.slope(k) for k in ("k1", "k3"))]
    (right if w.problem.behavior_logits is None else wrong).append(w.slope("k2"))
    for gradient in right:
        yield same(w.E(gradient), w.d_kl)
    for gradient in wrong:
        yield differs(w.E(gradient), w.d_kl)
