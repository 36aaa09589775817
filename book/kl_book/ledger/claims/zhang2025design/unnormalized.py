"""Section 3.1 and 3.2: unnormalized forward and reverse KL, gradients and losses (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import Check, claim
from kl_book.ledger.claims.comparisons import Found, less, numbers, printed, same
from kl_book.ledger.claims.ground.errors import apart, turned
from kl_book.ledger.claims.ground.rpg_losses import DIFFERENTIABLE, WEIGHTS
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    DIVERGENCES,
    MASSES,
    OldMeasure,
    measured,
    normalized,
    slopes,
    unnormalized_forward,
)
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


def _gradient(divergence: str) -> Check:
    """A printed gradient: of softmax policies, and of a density without a norm."""
    weight = WEIGHTS[divergence]

    def check(x: OldMeasure) -> Iterator[Found]:
        yield same(x.Es(x.mass * weight(x.w, x.R)), x.d_objective(divergence))
        by_item = x.log_old.exp() * weight((x.free - x.log_old).exp(), x.R)
        yield same(by_item, slopes(x.objective(divergence), x.free))

    return check


def _loss(divergence: str) -> Check:
    """The gradient of Z_old E[loss] is minus that of J, for both kinds of policy."""
    loss = DIFFERENTIABLE[divergence]

    def check(x: OldMeasure) -> Iterator[Found]:
        yield printed(x.loss_error(loss, divergence))
        by_item = slopes(lambda logp: x.mass * x.mean_loss(loss, logp), x.free)
        yield same(by_item, -slopes(x.objective(divergence), x.free))

    return check


claim("RPG-eq3.1", over=measured)(_gradient("UFKL"))
claim("RPG-eq3.3", over=measured)(_gradient("URKL"))
claim("RPG-prop3.2-loss", over=measured)(_loss("UFKL"))
claim("RPG-prop3.6-loss", over=measured)(_loss("URKL"))


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


@claim("RPG-prop3.6-Z", over=measured)
def the_total_mass_in_front_only_scales(x: OldMeasure) -> Iterator[Found]:
    """With w unchanged, leaving Z_old out of the front gives the same gradient over Z_old."""
    loss, wanted = DIFFERENTIABLE["URKL"], x.d_objective("URKL")
    yield same(x.grad(loss), -wanted / x.mass)
    yield printed(turned(-x.grad(loss), wanted))
    value = -x.mass * x.mean_loss(loss, x.logp) - BETA * x.mass
    yield same(value, x.objective("URKL")(x.logp))


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
