"""Sections 3.1 and 3.2, appendices D, E and K: divergences and values of objectives (zhang2025design)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, less, numbers, printed, same
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.rpg_losses import WEIGHTS
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    DIVERGENCES,
    MASSES,
    OldMeasure,
    each_divergence,
    measured,
    normalized,
    slopes,
    unnormalized_forward,
)
from kl_book.ledger.claims.ground.updates import utility_gradient
from kl_book.ledger.claims.standard import TOLERANCE


@claim("RPG-def3.1", over=measured)
def divergences_of_measures(x: OldMeasure) -> Iterator[Found]:
    """Both are positive, 0 for equal measures alone, and the KL where both measures have mass 1."""
    z, mass, old = x.mass, x.logp.exp().sum(), x.log_old
    yield same(-z * x.E(x.log_w) + mass - z, x.divergence("UFKL"))
    yield same(x.logp.exp() @ x.log_w + z - mass, x.divergence("URKL"))
    for name, normal in (("UFKL", "FKL"), ("URKL", "RKL")):
        yield less(0.0, x.divergence(name))
        yield same(DIVERGENCES[name](old, old), 0.0)
        yield less(0.0, float(DIVERGENCES[name](old + 0.1, old)))
        if z == 1:
            yield same(x.divergence(name), x.divergence(normal))


def _forward_term(_: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """What L_UFKL has for the divergence, without Z_old."""
    return BETA * (w - w.log() - 1)


def _reverse_term(_: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """What L_URKL has for the divergence, without Z_old."""
    return BETA * (w * w.log() - w)


@claim("RPG-rem3.3-value", over=measured)
def k3_at_w_estimates_the_unnormalized_forward_kl(x: OldMeasure) -> Iterator[Found]:
    """Z E[beta (w - log w - 1)] over the normalized old measure is beta UKL(pi_old || pi)."""
    yield same(x.mass * x.mean_loss(_forward_term, x.logp), BETA * x.divergence("UFKL"))
    of_density = BETA * unnormalized_forward(x.free, x.log_old)
    yield same(x.mass * x.mean_loss(_forward_term, x.free), of_density)


@claim("RPG-rem3.3-mass")
def a_policy_cannot_match_the_total_mass() -> Iterator[Found]:
    """The least divergence has a policy of mass 1; the mass of the old measure is a factor of beta alone."""
    shares = []
    for x in measured():
        there = x._replace(problem=x.problem._replace(logits=x.problem.sampled_from))  # of the old shape
        mass, old = float(there.logp.exp().sum()), x.log_old
        if apart(there.d_divergence("UFKL"), 0.0) <= TOLERANCE:  # the least divergence of a policy
            shares.append(abs(mass - x.mass) / x.mass)
        yield same(slopes(lambda logp, old=old: unnormalized_forward(logp, old), old), 0.0, "inside")  # type: ignore[misc]
        pull = x.Es(-x.mass * BETA * (x.w - 1))
        yield same(pull, -BETA * x.mass * x.d_divergence("FKL"), "corrected")
    yield printed(max(shares))
    noise = [x.var(x.scored(x.w - 1)) / x.var(x.s) for x in normalized()]
    yield numbers(least_mass=min(MASSES), most_mass=max(MASSES), mass=mass, most_missed=max(shares))
    yield numbers(least_noise=min(noise), most_noise=max(noise))


@claim("RPG-def3.4-mass", over=measured)
def mass_correction_of_the_reverse_divergence(x: OldMeasure) -> Iterator[Found]:
    """Sum of pi_old - pi over all sequences = Z_old minus the mass of pi, with pi_old = Z_old times p."""
    for logp in (x.logp, x.free):
        yield same(x.mass * x.mean_loss(lambda _, w, r: 1 - w, logp), x.mass - logp.exp().sum())


@claim("RPG-rem3.5", over=measured)
def mean_of_k3_at_the_old_measure(x: OldMeasure) -> Iterator[Found]:
    """E[k3(pi_old / pi)] over samples of pi is UKL(pi || pi_old), as a function of the policy."""
    old = x.log_old

    def mean_k3(logp: torch.Tensor) -> torch.Tensor:
        y = (old - logp).exp()
        return logp.exp() @ (y - 1 - y.log())

    yield same(mean_k3(x.logp), x.divergence("URKL"))
    yield same(exact(lambda logp, _: mean_k3(logp), x.problem)[1], x.d_divergence("URKL"))
    yield same(mean_k3(x.free), DIVERGENCES["URKL"](x.free, old))


@claim("RPG-rem3.7-value", over=measured)
def the_loss_has_the_divergence_up_to_the_total_mass(x: OldMeasure) -> Iterator[Found]:
    """beta UKL(pi || pi_old) minus Z E[beta (w log w - w)] is beta Z_old, whatever the policy is."""
    for logp in (x.logp, x.free):
        divergence = DIVERGENCES["URKL"](logp, x.log_old)
        yield same(BETA * divergence - x.mass * x.mean_loss(_reverse_term, logp), BETA * x.mass)


@claim("RPG-rem3.7-scaling")
def the_unnormalized_reverse_scaling_is_shorter() -> Iterator[Found]:
    """R - beta log w has one operation less than R - beta (log w + 1), and the same mean gradient."""
    r, beta, log_w = sympy.symbols("R beta log_w")
    short, long = (sympy.count_ops(x) for x in (r - beta * log_w, r - beta * (log_w + 1)))
    yield less(float(short), float(long), by=1.0)
    shares = []
    for x in normalized():
        one, other = (WEIGHTS[name](x.w, x.R) for name in ("URKL", "RKL"))
        yield same(x.Es(one), x.d_objective("RKL"))
        yield same(x.Es(other), x.d_objective("RKL"))
        yield same(one - other, BETA * x.w)
        shares.append(x.var(x.scored(one)) / x.var(x.scored(other)))
    yield numbers(beta=BETA, least=min(shares), most=max(shares))


# appendices D, E and K


VALUES: dict[str, Callable[[OldMeasure], torch.Tensor]] = {
    "UFKL": lambda x: x.w * x.R + BETA * x.log_w - BETA * x.w + BETA,
    "URKL": lambda x: x.w * x.R - BETA * x.w * x.log_w - BETA + BETA * x.w,
    "FKL": lambda x: x.w * x.R + BETA * x.log_w,
    "RKL": lambda x: x.w * x.R - BETA * x.w * x.log_w,
}


def value(case: tuple[str, OldMeasure]) -> Iterator[Found]:
    """An objective is Z E of its printed integrand over the normalized old measure."""
    divergence, x = case
    yield same(x.mass * x.E(VALUES[divergence](x)), x.objective(divergence)(x.logp))


for id, divergence in (("RPG-K2-J", "UFKL"), ("RPG-K4-J", "URKL"), ("RPG-eqE.1", "FKL")):
    claim(id, over=partial(each_divergence, divergence))(value)


@claim("RPG-eqE.2", over=partial(each_divergence, "RKL"))
def value_of_the_reverse_objective(case: tuple[str, OldMeasure]) -> Iterator[Found]:
    """KL(policy, old) = E_old[w log w], and J = E_old[wR - beta w log w]."""
    x = case[1]
    yield same(x.E(x.w * x.log_w), x.divergence("RKL"))
    yield from value(case)


@claim("RPG-D-forward", over=measured)
def k3_forward(x: OldMeasure) -> Iterator[Found]:
    """The integral of pi_old k3(pi / pi_old) is UKL(old, policy)."""
    yield same(x.mass * x.E(x.w - 1 - x.log_w), x.divergence("UFKL"))


@claim("RPG-D-reverse", over=measured)
def k3_reverse(x: OldMeasure) -> Iterator[Found]:
    """The mean of k3(pi_old / pi) under the policy is UKL(policy, old)."""
    y = x.log_old - x.logp
    yield same(x.logp.exp() @ (y.exp() - 1 - y), x.divergence("URKL"))


@claim("RPG-K-gradw", over=normalized)
def derivative_of_the_ratio(x: OldMeasure) -> Iterator[Found]:
    """grad w = w score, grad log w = score, of every sequence."""
    old = x.log_old

    def ratio(logits: torch.Tensor) -> torch.Tensor:
        return (x.problem.token_logp(logits).sum(-1) - old).exp()

    slope = torch.autograd.functional.jacobian(ratio, x.problem.logits.detach(), vectorize=True)
    yield same(slope, x.scored(x.w))
    yield same(slope / x.w[:, None, None], x.s)
    yield same(x.E(x.R[:, None, None] * slope), utility_gradient(x.problem))
