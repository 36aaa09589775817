"""Section 6.3: the variance of losses that carry the ratio, in every direction (wang2025choosing)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.errors import apart, degree, differs, less, violation, worst
from kl_book.ledger.claims.ground.off_policy import (
    average,
    covariance,
    error_of_gradient_row,
    excess_covariance,
    in_loss,
    in_reward,
    nowhere_less,
    rho,
    share_of_cases,
    times_score,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.worlds import (
    all_worlds,
    hedge_bandits,
    hedge_trees,
    near,
    sampled_elsewhere,
    three_policies,
    two_policies,
    worlds,
)
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem

RATIO = rf"$p/q \le \sqrt{{e}}$ = {math.sqrt(math.e):.3f} for everything that is sampled"
CONDITION = (
    r"in direction u exactly where $\E_\mu[\rho^2 (s \cdot u)^2 (2 k_1 + 1)] \ge 0$; in every direction and "
    rf"for every sampler it is enough that {RATIO}"
)
NEIGHBORHOOD = (
    "outside of the small-KL neighborhood, where p/q is 1 plus a small term, the sign of $2 k_1 + 1$ is not "
    "guaranteed, and with it the order"
)


def total(name: str, problem: Problem) -> float:
    """Variance of the gradient of rho k, summed over parameters."""
    return variance(terms(problem).p, in_loss(name, problem))


@cache
def rare(delta: float) -> Problem:
    """Two arms, the second rare under the policy (delta) and four times as likely under the reference."""
    return two_policies((1 - delta, delta), (1 - 4 * delta, 4 * delta))


@cache
def one_sided(sampled: bool) -> tuple[Problem, ...]:
    """p/q <= sqrt(e), while q/p is large on some arms; with several samplers, or on-policy alone."""
    found = []
    for policy, reference in (((0.6, 0.4), (0.96, 0.04)), ((0.5, 0.3, 0.2), (0.8, 0.19, 0.01))):
        for tilt in (1.0, 0.1, 10.0):
            mu = [q * tilt**i for i, q in enumerate(policy)]
            found.append(three_policies(policy, reference, [m / sum(mu) for m in mu]))
    return tuple(found) if sampled else tuple(p._replace(behavior_logits=None) for p in found[::3])


def order(*others: float, problems: tuple[Problem, ...] | None = None) -> Evidence:
    """rho k1 has the larger variance in every direction: share of worlds against it; where p/q <= sqrt(e).

    ``others`` are the errors of what else a row says; where one of them is not 0, every world is against it.
    """
    several = problems or all_worlds()
    bounded = [*(near(p) for p in several), *one_sided(True), *(() if problems else one_sided(False))]
    small = rare(0.01)
    if problems is not None:  # the same world, sampled by itself under another name
        small = small._replace(behavior_logits=small.logits)
    holds = not others or worst(others) <= TOLERANCE
    printed, inside = (
        share_of_cases(not holds or not nowhere_less(excess_covariance(p)) for p in cases)
        for cases in ((*several, small), bounded)
    )
    return Evidence(
        printed,
        inside=inside,
        unit="share of cases",
        condition=CONDITION,
        given=f"stated in section 6.3{', which section 9 sums up' if problems else ''}: {NEIGHBORHOOD}",
        counterexample=(
            f"policy (0.99, 0.01), reference (0.96, 0.04), sampled from the policy: $\\rho k_1$ has variance "
            f"{total('k1', small):.4f}, $\\rho k_3$ {total('k3', small):.4f}, and the KL is only "
            f"{exact(reverse_kl, small)[0]:.4f}"
        ),
    )


@claim("WZ-var-identity")
def difference_of_variances() -> Iterator[Found]:
    """Cov(rho k1) - Cov(rho k3) = E_mu[rho^2 (2 k1 + 1) s s^T], and with it in every direction."""
    errors = []
    for problem in all_worlds():
        one, other = (covariance(in_loss(n, problem), problem) for n in ("k1", "k3"))
        errors.append(apart(one - other, excess_covariance(problem)) / (1 + float(one.abs().max())))
    yield from each_form(worst(errors))


@claim("WZ-gradvar")
def attached_k3_has_the_lower_variance() -> Evidence:
    """In every direction the variance of rho k3 (and of sg(rho) k2) is at most that of rho k1."""
    return order()


@claim("WZ-onoff-rho-k1")
def both_rho_k1() -> Evidence:
    """On- and off-policy, rho k1 has the gradient of the KL, with the higher variance."""
    return order(error_of_gradient_row("k1", "k1 + 1", "reverse_kl"))


@claim("WZ-onoff-sgrho-k2")
def both_detached_k2() -> Evidence:
    """On- and off-policy, sg(rho) k2 has the gradient of the KL, with a low variance."""
    return order(error_of_gradient_row("k2", "k1", "reverse_kl", "detached"))


@claim("WZ-onoff-rho-k3")
def both_rho_k3() -> Evidence:
    """On- and off-policy, rho k3 has the gradient of the KL, with a low variance."""
    return order(error_of_gradient_row("k3", "k1", "reverse_kl"))


def _value_error(name: str) -> float:
    """Error of "E_mu[rho k] is the KL"."""
    return worst(
        apart(mean(terms(p).p, rho(p) * values(name, p)), exact(reverse_kl, p)[0])
        for p in sampled_elsewhere()
    )


@claim("WZ-9.2-rho-k1")
def guide_rho_k1() -> Evidence:
    """Off-policy: right gradient, unbiased value, higher variance."""
    field = error_of_gradient_row("k1", "k1 + 1", "reverse_kl", problems=sampled_elsewhere())
    return order(field, _value_error("k1"), problems=sampled_elsewhere())


@claim("WZ-9.2-rho-k3")
def guide_rho_k3() -> Evidence:
    """Off-policy: right gradient, low variance, unbiased value."""
    field = error_of_gradient_row("k3", "k1", "reverse_kl", problems=sampled_elsewhere())
    return order(field, _value_error("k3"), problems=sampled_elsewhere())


def _bias_share(problem: Problem) -> float:
    """|E_mu[rho k2] - KL| over the KL."""
    kl = exact(reverse_kl, problem)[0]
    return abs(float((terms(problem).p * rho(problem) * values("k2", problem)).sum()) - kl) / kl


@claim("WZ-9.2-sgrho-k2")
def guide_detached_k2() -> Evidence:
    """Off-policy: right gradient, low variance, and a value whose bias is minimal near the reference."""
    field = error_of_gradient_row("k2", "k1", "reverse_kl", "detached", sampled_elsewhere())
    close = worst(degree(_bias_share(near(p, bound))) for p in sampled_elsewhere() for bound in (0.1, 0.05))
    evidence = order(field, close, problems=sampled_elsewhere())
    far = three_policies((0.99, 0.01), (0.01, 0.99), (0.5, 0.5))
    cases = (*sampled_elsewhere(), far)
    against = (degree(_bias_share(p)) > 0 or not nowhere_less(excess_covariance(p)) for p in cases)
    return evidence._replace(
        printed=max(share_of_cases(against), evidence.inside or 0.0),
        condition=(
            r"bias: within 10 percent of the KL where $|\log(p/q)| \le 0.1$ for everything that is sampled; "
            rf"variance: in every direction and for every sampler where {RATIO}"
        ),
        given=f"stated in section 3.1, by which $k_2$ is useful near q = p, and in 6.3: {NEIGHBORHOOD}",
        counterexample=(
            f"policy (0.99, 0.01), reference (0.01, 0.99): the bias is {_bias_share(far):.2f} times the KL; "
            f"{evidence.counterexample}"
        ),
    )


@claim("WZ-var-small")
def close_to_the_reference_the_difference_is_the_noise() -> Iterator[Found]:
    """As log(p/q) tends to 0 everywhere, the difference of variances tends to E_mu[rho^2 (s.u)^2] > 0."""
    against = []
    for problem in all_worlds():
        for bound in (1e-2, 1e-4):
            close = near(problem, bound)
            noise = covariance(times_score(torch.ones(len(rho(close))).double(), close), close)
            gap = (excess_covariance(close) - noise).abs().max() / noise.abs().max()
            against.append(float(gap) > 2 * bound or not nowhere_less(excess_covariance(close)))
    tiny = rare(1e-5)
    yield from each_form(
        share_of_cases(not nowhere_less(excess_covariance(p)) for p in (*regime(), tiny)),
        inside=share_of_cases(against),
        number=exact(reverse_kl, tiny)[0],
        number_2=total("k1", tiny) / total("k3", tiny),
    )


CLOSE = 0.1  # nats per decision or sequence


@cache
def regime() -> tuple[Problem, ...]:
    """The fixed bandits and trees with a small KL, sampled from a policy a tenth of the way back."""
    drawn = [p for p in (*hedge_bandits(), *hedge_trees()) if exact(reverse_kl, p)[0] <= CLOSE]
    return tuple(p._replace(behavior_logits=p.logits + 0.1 * (p.ref_logits - p.logits)) for p in drawn)


@claim("WZ-var-regime")
def a_nearby_sampler_settles_the_order() -> Iterator[Found]:
    """With mu near q and a constrained KL, rho k1 has the higher variance: usually, and not for certain."""
    small = rare(0.01)
    nearby = small._replace(behavior_logits=small.logits + 0.1 * (small.ref_logits - small.logits))
    cases = (*regime(), nearby)
    bounded = [near(p) for p in cases]
    one, other = total("k1", nearby), total("k3", nearby)
    in_total = [total("k1", p) / total("k3", p) for p in regime()]
    yield from each_form(
        share_of_cases(not nowhere_less(excess_covariance(p)) for p in cases),
        inside=share_of_cases(not nowhere_less(excess_covariance(p)) for p in bounded),
        number=exact(reverse_kl, nearby)[0],
        one=one,
        other=other,
        number_of_in_total=len(in_total),
        CLOSE=CLOSE,
        sum=sum(x > 1 for x in in_total),
        float=float(torch.tensor(in_total).median()),
        sum_2=sum(nowhere_less(excess_covariance(p)) for p in regime()),
    )


@claim("WZ-6.3-O1noise")
def noise_of_order_one() -> Iterator[Found]:
    """rho k1 - rho k3 is rho s per sample, of mean 0; the rest shrinks like log(p/q), this does not."""
    errors = []
    for problem in all_worlds():
        noise = in_loss("k1", problem) - in_loss("k3", problem)
        errors.append(apart(noise, times_score(torch.ones(len(noise)).double(), problem)))
        errors.append(apart(average(noise, problem), 0.0))
        sizes = []
        for bound in (1e-2, 1e-3):
            close = near(problem, bound)
            largest = float(log_ratio(close).abs().max())
            p = terms(close).p
            left, whole = (
                math.sqrt(float(mean(p, in_loss(n, close).square().sum((-2, -1))))) for n in ("k3", "k1")
            )
            errors.append(violation(left / whole - 1.1 * largest))
            sizes.append(left / largest)
        errors.append(violation(abs(math.log(sizes[0] / sizes[1])) - 0.1))
    yield from each_form(worst(errors))


def _neglected(policy: tuple[float, ...], reference: tuple[float, ...], mu_last: float) -> Problem:
    """The last arm gets ``mu_last`` from the sampler, the others share the rest evenly."""
    rest = (1 - mu_last) / (len(policy) - 1)
    return three_policies(policy, reference, (*[rest] * (len(policy) - 1), mu_last))


def _with_ratio(problem: Problem) -> list[float]:
    """Variances of the gradients of all losses with a ratio, summed over parameters."""
    detached = variance(terms(problem).p, in_loss("k2", problem, "detached"))
    return [*(total(name, problem) for name in ("k1", "k2", "k3")), detached]


@cache
def geometric(count: int) -> Problem:
    """Arms of probability 1/2^i under the policy, 1/3^i under the reference, 1/5^i under the sampler."""
    i = torch.arange(count, dtype=torch.float64)
    weights = ((-i * math.log(base)).exp() for base in (2, 3, 5))
    return three_policies(*((w / w.sum()).tolist() for w in weights))


@claim("WZ-offpolicy-extreme")
def a_sampler_that_neglects_the_policy() -> Iterator[Found]:
    """The variance grows like 1/mu on an arm that mu neglects, and beyond all bounds with tails of rho."""
    policy, errors = (0.3, 0.3, 0.4), []
    for reference in ((0.2, 0.2, 0.6), (0.6, 0.3, 0.1)):
        found = [_with_ratio(_neglected(policy, reference, m)) for m in (1e-4, 1e-6)]
        for small, smaller in zip(*found, strict=True):
            errors += [violation(abs(small / smaller * 100 - 1) - 0.05), less(1e3, smaller)]
    for short, long in zip(*(_with_ratio(geometric(n)) for n in (20, 40)), strict=True):
        errors += [less(20 * short, long)]
    e = math.e
    at_e = _neglected((0.6, 0.2, 0.2), (0.8 - 0.2 * e + 0.1, 0.1, 0.2 * e), 1e-6)
    tail = three_policies((1 - 1e-6, 1e-6), (0.5, 0.5), (1 - 1e-9, 1e-9))
    yield from each_form(worst(errors), total=total("k1", at_e), total_2=total("k3", tail))


def _clipped(problem: Problem, most: float) -> torch.Tensor:
    """min(rho, most) k1 s of every sequence, [count, rows, vocab]."""
    return (rho(problem).clamp(max=most) * log_ratio(problem))[:, None, None] * terms(problem).score


@claim("WZ-offpolicy-clip")
def a_clipped_ratio_under_mismatch() -> Iterator[Found]:
    """That clipping has to be used is advice; what it does to variance and bias is computed."""
    policy, reference = (0.3, 0.3, 0.4), (0.2, 0.2, 0.6)
    found = [_neglected(policy, reference, mu) for mu in (1e-2, 1e-4, 1e-6)]
    whole, clipped, biases = [], [], []
    for problem in found:
        cut, wanted = _clipped(problem, 2.0), kl_gradient(problem)
        whole.append(total("k3", problem))
        clipped.append(variance(terms(problem).p, cut))
        biases.append(float((average(cut, problem) - wanted).norm() / wanted.norm()))
    yield numbers(
        whole_0=whole[0],
        whole_1=whole[-1],
        max_clipped=max(clipped),
        min_biases=min(biases),
        max_biases=max(biases),
    )


@claim("WZ-offpolicy-order")
def extreme_mismatch_voids_the_advantage() -> Iterator[Found]:
    """rho k3 loses its lower variance to a sampler that neglects an arm which p prefers."""
    policy, reference = (0.45, 0.45, 0.1), (0.35, 0.35, 0.3)
    calm, torn = three_policies(policy, reference, policy), _neglected(policy, reference, 1e-4)
    errors = [less(total("k3", calm), total("k1", calm)), less(total("k1", torn), total("k3", torn))]
    for problem in worlds():  # no mu turns the order where p/q is bounded
        close = near(problem)
        for shift in (-4.0, 4.0):
            elsewhere = close._replace(behavior_logits=close.logits + shift * torch.sin(close.logits * 9))
            errors.append(float(not nowhere_less(excess_covariance(elsewhere))))
    yield from each_form(worst(errors))


@claim("WZ-1.2-bottom")
def the_recommended_losses() -> Iterator[Found]:
    """k2 without a ratio, rho k3, sg(rho) k2, and k1 in the reward have the gradient of the KL."""
    errors = []
    for problem in all_worlds():
        kl = kl_gradient(problem)
        right = [in_loss("k3", problem), in_loss("k2", problem, "detached"), in_loss("k1", problem)]
        right.append(in_reward("k1", problem))
        other = [in_loss("k2", problem), *(in_loss(k, problem, "detached") for k in ("k1", "k3"))]
        other += [in_reward(k, problem) for k in ("k2", "k3")]
        other += [differentiated(k, problem) for k in ("k1", "k3")]
        (right if problem.behavior_logits is None else other).append(differentiated("k2", problem))
        errors += [apart(average(g, problem), kl) for g in right]
        errors += [differs(average(g, problem), kl) for g in other]
    yield from each_form(worst(errors))
