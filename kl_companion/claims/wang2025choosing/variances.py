"""Section 6.3: the variance of losses that carry the ratio, in every direction (wang2025choosing)."""

from __future__ import annotations

import math
from functools import cache

import torch

from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.off_policy import (
    all_worlds,
    average,
    covariance,
    excess_covariance,
    in_loss,
    in_reward,
    k1,
    kl_gradient,
    least,
    near,
    rho,
    sampled_elsewhere,
    three_policies,
    times_score,
)
from kl_companion.claims.wang2025choosing.gradients import table_row
from kl_companion.claims.worlds import (
    apart,
    differentiated,
    differs,
    exact,
    less,
    mean,
    reverse_kl,
    terms,
    two_policies,
    values,
    variance,
    worlds,
    worst,
)
from kl_companion.tabular import Problem

RATIO = f"p/q <= sqrt(e) = {math.sqrt(math.e):.3f} for everything that is sampled"
ORDER = (
    "in direction u exactly where E_mu[rho^2 (s.u)^2 (2 k1 + 1)] >= 0; for every direction and every mu "
    "it is "
    f"enough that {RATIO}"
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


def order(problems: tuple[Problem, ...] | None = None) -> Evidence:
    """rho k1 has the larger variance in every direction: tested anywhere, and where p/q <= sqrt(e)."""
    several = problems or all_worlds()
    bounded = [*(near(p) for p in several), *one_sided(True), *(() if problems else one_sided(False))]
    small = rare(0.01)
    if problems is not None:  # the same world, sampled by itself under another name
        small = small._replace(behavior_logits=small.logits)
    inside = violation(*(-least(excess_covariance(p)) - 1e-12 for p in bounded))
    return Evidence(
        violation(*(-least(excess_covariance(p)) for p in (*several, small))),
        inside=inside,
        condition=ORDER,
        counterexample=(
            f"policy (0.99, 0.01), reference (0.96, 0.04), mu = policy: rho k1 has variance "
            f"{total('k1', small):.4f}, rho k3 {total('k3', small):.4f}, and the KL is only "
            f"{exact(reverse_kl, small)[0]:.4f}"
        ),
    )


def also(errors: float, evidence: Evidence) -> Evidence:
    """The same evidence for a statement that adds something else, with the errors of that."""
    return evidence._replace(
        printed=max(evidence.printed, errors), inside=max(evidence.inside or 0.0, errors)
    )


@claim("WZ-var-identity")
def difference_of_variances() -> Evidence:
    """Cov(rho k1) - Cov(rho k3) = E_mu[rho^2 (2 k1 + 1) s s^T], and with it in every direction."""
    errors = []
    for problem in all_worlds():
        one, other = (covariance(in_loss(n, problem), problem) for n in ("k1", "k3"))
        errors.append(apart(one - other, excess_covariance(problem)) / (1 + float(one.abs().max())))
    return Evidence(worst(errors), condition="both have one mean, grad KL; mu gives mass wherever q does")


@claim("WZ-gradvar")
def attached_k3_has_the_lower_variance() -> Evidence:
    """In every direction the variance of rho k3 (and of sg(rho) k2) is at most that of rho k1."""
    return order()


@claim("WZ-onoff-rho-k1")
def both_rho_k1() -> Evidence:
    """On- and off-policy, rho k1 descends the KL, with the higher variance."""
    return also(table_row("k1", "k1 + 1", "reverse_kl"), order())


@claim("WZ-onoff-sgrho-k2")
def both_detached_k2() -> Evidence:
    """On- and off-policy, sg(rho) k2 descends the KL, with a low variance."""
    return also(table_row("k2", "k1", "reverse_kl", "detached"), order())


@claim("WZ-onoff-rho-k3")
def both_rho_k3() -> Evidence:
    """On- and off-policy, rho k3 descends the KL, with a low variance."""
    return also(table_row("k3", "k1", "reverse_kl"), order())


def _value_error(name: str) -> float:
    """Error of "E_mu[rho k] is the KL"."""
    return worst(
        apart(mean(terms(p).p, rho(p) * values(name, p)), exact(reverse_kl, p)[0])
        for p in sampled_elsewhere()
    )


@claim("WZ-9.2-rho-k1")
def guide_rho_k1() -> Evidence:
    """Off-policy: right gradient, unbiased value, higher variance."""
    field = table_row("k1", "k1 + 1", "reverse_kl", problems=sampled_elsewhere())
    return also(max(field, _value_error("k1")), order(sampled_elsewhere()))


@claim("WZ-9.2-rho-k3")
def guide_rho_k3() -> Evidence:
    """Off-policy: right gradient, low variance, unbiased value."""
    field = table_row("k3", "k1", "reverse_kl", problems=sampled_elsewhere())
    return also(max(field, _value_error("k3")), order(sampled_elsewhere()))


def _bias_share(problem: Problem) -> float:
    """|E_mu[rho k2] - KL| over the KL."""
    kl = exact(reverse_kl, problem)[0]
    return abs(float((terms(problem).p * rho(problem) * values("k2", problem)).sum()) - kl) / kl


@claim("WZ-9.2-sgrho-k2")
def guide_detached_k2() -> Evidence:
    """Off-policy: right gradient, low variance, and a value whose bias is minimal near the reference."""
    field = table_row("k2", "k1", "reverse_kl", "detached", sampled_elsewhere())
    vanishing = []
    for problem in sampled_elsewhere():  # half the distance, half the share
        shares = [_bias_share(near(problem, b)) / b for b in (0.02, 0.01)]
        vanishing += [violation(s - 1.0) for s in shares]
    far = three_policies((0.99, 0.01), (0.01, 0.99), (0.5, 0.5))
    printed = violation(_bias_share(far) - 0.1)
    evidence = also(max(field, worst(vanishing)), order(sampled_elsewhere()))
    return evidence._replace(
        printed=max(printed, evidence.printed),
        condition=f"the bias, as a share of the KL: log(p/q) is small; the variance: {ORDER}",
        counterexample=(
            f"policy (0.99, 0.01), reference (0.01, 0.99): the bias is {_bias_share(far):.2f} times the KL; "
            f"the variance: {evidence.counterexample}"
        ),
    )


@claim("WZ-var-small")
def close_to_the_reference_the_difference_is_the_noise() -> Evidence:
    """As log(p/q) tends to 0 everywhere, the difference of variances tends to E_mu[rho^2 (s.u)^2] > 0."""
    inside = []
    for problem in all_worlds():
        for bound in (1e-2, 1e-4):
            close = near(problem, bound)
            noise = covariance(times_score(torch.ones(len(rho(close))).double(), close), close)
            gap = (excess_covariance(close) - noise).abs().max() / noise.abs().max()
            inside.append(violation(float(gap) - 2 * bound))
            inside.append(violation(-least(excess_covariance(close)) - 1e-12))
    tiny = [rare(d) for d in (1e-3, 1e-5)]
    return Evidence(
        violation(*(-least(excess_covariance(p)) for p in tiny)),
        inside=worst(inside),
        condition=f"small is every log-ratio, not the KL, which rare samples hardly enter: {RATIO} is enough",
        counterexample=(
            "; ".join(
                f"KL {exact(reverse_kl, p)[0]:.2g}: rho k1 has {total('k1', p) / total('k3', p):.2f} "
                "times the "
                "variance of rho k3"
                for p in tiny
            )
            + " (policy (1 - d, d), reference (1 - 4d, 4d), mu = policy, d = 0.001 and 0.00001)"
        ),
    )


@claim("WZ-var-regime")
def a_nearby_sampler_settles_the_order() -> Evidence:
    """With mu near q and a constrained KL, rho k1 has the higher variance."""
    return order()._replace(
        condition=(
            f"{ORDER}; that mu is near q plays no part in the sign: on-policy it can be wrong, and with p/q "
            "bounded no mu turns it"
        )
    )


@claim("WZ-6.3-O1noise")
def noise_of_order_one() -> Evidence:
    """rho k1 - rho k3 is rho s per sample, of mean 0; the rest shrinks like log(p/q), this does not."""
    errors = []
    for problem in all_worlds():
        noise = in_loss("k1", problem) - in_loss("k3", problem)
        errors.append(apart(noise, times_score(torch.ones(len(noise)).double(), problem)))
        errors.append(apart(average(noise, problem), 0.0))
        sizes = []
        for bound in (1e-2, 1e-3):
            close = near(problem, bound)
            largest = float(k1(close).abs().max())
            p = terms(close).p
            left, whole = (
                math.sqrt(float(mean(p, in_loss(n, close).square().sum((-2, -1))))) for n in ("k3", "k1")
            )
            errors.append(violation(left / whole - 1.1 * largest))
            sizes.append(left / largest)
        errors.append(violation(abs(math.log(sizes[0] / sizes[1])) - 0.1))
    return Evidence(worst(errors))


def _neglected(policy: tuple[float, ...], reference: tuple[float, ...], mu_last: float) -> Problem:
    """The last arm gets ``mu_last`` from the sampler, the others share the rest evenly."""
    rest = (1 - mu_last) / (len(policy) - 1)
    return three_policies(policy, reference, (*[rest] * (len(policy) - 1), mu_last))


@claim("WZ-offpolicy-extreme")
def a_sampler_that_neglects_the_policy() -> Evidence:
    """The variance grows like 1/mu on an arm that mu neglects, unless the gradient of that arm is 0."""
    policy, wanted = (0.3, 0.3, 0.4), []
    for reference in ((0.2, 0.2, 0.6), (0.6, 0.3, 0.1)):
        for name in ("k1", "k3"):
            small, smaller = (total(name, _neglected(policy, reference, m)) for m in (1e-4, 1e-6))
            wanted += [violation(abs(small / smaller * 100 - 1) - 0.05), less(1e3, smaller)]
    at_reference = _neglected(policy, policy, 1e-6)
    e = math.e
    at_e = _neglected((0.6, 0.2, 0.2), (0.8 - 0.2 * e + 0.1, 0.1, 0.2 * e), 1e-6)
    tail = three_policies((1 - 1e-6, 1e-6), (0.5, 0.5), (1 - 1e-9, 1e-9))
    found = {"k3": total("k3", at_reference), "k1": total("k1", at_e)}
    return Evidence(
        max(worst(wanted), less(1e3, found["k3"]), less(1e3, total("k3", tail))),
        inside=worst(wanted),
        condition=(
            "q^2 |s|^2 k1^2 / mu is large somewhere (for rho k1: (k1 + 1)^2): mu neglects what q prefers and "
            "what has a gradient; a large ratio alone is not enough"
        ),
        counterexample=(
            f"mu = 0.000001 on an arm of probability 0.4: the variance of rho k3 is {found['k3']:.2g} if "
            "p = q; "
            f"on an arm with p = e q that of rho k1 is {found['k1']:.2f}; in a tail, q = 1e-6 and mu = "
            "1e-9 have "
            f"ratio 1000, and rho k3 the variance {total('k3', tail):.2g}"
        ),
    )


def _clipped(problem: Problem, most: float) -> torch.Tensor:
    """min(rho, most) k1 s of every sequence, [count, rows, vocab]."""
    return (rho(problem).clamp(max=most) * k1(problem))[:, None, None] * terms(problem).score


@claim("WZ-offpolicy-clip")
def a_clipped_ratio_under_mismatch() -> Evidence:
    """With the ratio clipped the variance stays bounded as mu neglects an arm; the gradient gets a bias."""
    policy, reference = (0.3, 0.3, 0.4), (0.2, 0.2, 0.6)
    errors, biases = [], []
    for mu in (1e-2, 1e-4, 1e-6):
        problem = _neglected(policy, reference, mu)
        clipped = _clipped(problem, 2.0)
        spread = variance(terms(problem).p, clipped)
        errors += [violation(spread - 1.0), less(2 * spread, total("k3", problem))]
        wanted = kl_gradient(problem)
        biases.append(float((average(clipped, problem) - wanted).norm() / wanted.norm()))
        errors.append(apart(average(in_loss("k3", problem), problem), wanted))
        errors.append(apart(average(_clipped(problem, math.inf), problem), wanted))
    errors.append(less(0.1, min(biases)))
    return Evidence(
        worst(errors),
        condition=(
            "clipping bounds the variance and gives up the unbiased gradient: with rho clipped at 2, in the "
            f"world of WZ-offpolicy-extreme, by {min(biases):.2f} to {max(biases):.2f} of it; that it has to "
            "be so is a judgement"
        ),
    )


@claim("WZ-offpolicy-order")
def extreme_mismatch_voids_the_advantage() -> Evidence:
    """rho k3 loses its lower variance to a sampler that neglects an arm which p prefers."""
    policy, reference = (0.45, 0.45, 0.1), (0.35, 0.35, 0.3)
    calm, torn = three_policies(policy, reference, policy), _neglected(policy, reference, 1e-4)
    errors = [less(total("k3", calm), total("k1", calm)), less(total("k1", torn), total("k3", torn))]
    for problem in worlds():  # no mu turns the order where p/q is bounded
        close = near(problem)
        for shift in (-4.0, 4.0):
            elsewhere = close._replace(behavior_logits=close.logits + shift * torch.sin(close.logits * 9))
            errors.append(violation(-least(excess_covariance(elsewhere)) - 1e-12))
    return Evidence(worst(errors), condition=f"the advantage remains, under any mu, where {RATIO}")


@claim("WZ-1.2-bottom")
def the_recommended_losses() -> Evidence:
    """k2 without a ratio, rho k3 and sg(rho) k2 descend the KL, and k1 in the reward; the others do not."""
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
    return Evidence(
        worst(errors), condition="samples that are one decision or a whole sequence; rho k1 is right too"
    )
