"""Sections 3 and 4, tables 1, 2 and 4, appendices E, F and L: gradients and losses (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, numbers, printed, same
from kl_book.ledger.claims.ground.errors import relative, turned
from kl_book.ledger.claims.ground.rpg_losses import DIFFERENTIABLE, WEIGHTS, stopped_loss
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    OldMeasure,
    each_divergence,
    measured,
    normalized,
    slopes,
)

Case = tuple[str, OldMeasure]  # a divergence, and one of its worlds


def gradient(case: Case) -> Iterator[Found]:
    """A printed gradient is that of J, of softmax policies and of a density without a norm."""
    divergence, x = case
    weight = WEIGHTS[divergence]
    yield same(x.Es(x.mass * weight(x.w, x.R)), x.d_objective(divergence))
    by_item = x.log_old.exp() * weight((x.free - x.log_old).exp(), x.R)
    yield same(by_item, slopes(x.objective(divergence), x.free))


def loss(case: Case) -> Iterator[Found]:
    """The gradient of Z_old E[loss], differentiated as printed, is minus that of J, of both as well."""
    divergence, x = case
    yield printed(x.loss_error(DIFFERENTIABLE[divergence], divergence))
    by_item = slopes(lambda logp: x.mass * x.mean_loss(DIFFERENTIABLE[divergence], logp), x.free)
    yield same(by_item, -slopes(x.objective(divergence), x.free))


def stopped(case: Case) -> Iterator[Found]:
    """-Z_old E[SG(weight) log pi] has minus the gradient of J."""
    divergence, x = case
    yield printed(x.loss_error(stopped_loss(divergence), divergence))


for divergence, checks in {
    "UFKL": {
        "RPG-eq3.1": gradient,
        "RPG-prop3.2-loss": loss,
        "RPG-tab1-UFKL": loss,
        "RPG-tab2-UFKL": stopped,
    },
    "URKL": {
        "RPG-eq3.3": gradient,
        "RPG-prop3.6-loss": loss,
        "RPG-tab1-URKL": loss,
        "RPG-tab2-URKL": stopped,
    },
    "FKL": {"RPG-propE.1-grad": gradient, "RPG-propE.1-loss": loss, "RPG-propF.1": stopped},
    "RKL": {"RPG-propE.3-grad": gradient, "RPG-propE.3-loss": loss, "RPG-propF.4": stopped},
}.items():
    for id, check in checks.items():
        claim(id, over=partial(each_divergence, divergence))(check)
claim("RPG-prop4.1", over=partial(each_divergence, "UFKL", "URKL"))(stopped)


@claim("RPG-4-minusJ", over=each_divergence)
def losses_are_minus_the_objective_up_to_constants(case: Case) -> Iterator[Found]:
    """L + J is one number at two policies, for all four divergences."""
    divergence, x = case
    loss, objective = DIFFERENTIABLE[divergence], x.objective(divergence)
    other = x.problem.token_logp(x.problem.ref_logits).sum(-1)
    here, there = (x.mass * x.mean_loss(loss, logp) + objective(logp) for logp in (x.logp, other))
    yield same(here, there)
    if divergence in ("UFKL", "RKL"):
        yield same(here, 0.0)
    yield printed(x.loss_error(loss, divergence))


@claim("RPG-prop3.6-Z", over=measured)
def the_total_mass_in_front_only_scales(x: OldMeasure) -> Iterator[Found]:
    """With w unchanged, leaving Z_old out of the front gives the same gradient over Z_old."""
    loss, target = DIFFERENTIABLE["URKL"], x.d_objective("URKL")
    yield same(x.grad(loss), -target / x.mass)
    yield printed(turned(-x.grad(loss), target))
    value = -x.mass * x.mean_loss(loss, x.logp) - BETA * x.mass
    yield same(value, x.objective("URKL")(x.logp))


@claim("RPG-L-Z", over=partial(each_divergence, "UFKL", "URKL"))
def leaving_the_mass_out(case: Case) -> Iterator[Found]:
    """Without the factor Z the gradient is that of the objective divided by Z."""
    divergence, x = case
    yield same(x.grad(stopped_loss(divergence)), -x.d_objective(divergence) / x.mass)


def _without_the_constant(_: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """The loss of UFKL without its -1."""
    return -w * r + BETA * (w - w.log())


@claim("RPG-K2-constant", over=measured)
def the_minus_one_of_the_loss(x: OldMeasure) -> Iterator[Found]:
    """Without it L is beta Z away from -J, and its gradient is the same for every sample."""
    gap = x.mass * x.mean_loss(_without_the_constant, x.logp) + x.objective("UFKL")(x.logp)
    yield same(gap, BETA * x.mass)
    yield differs(gap, 0.0)
    yield same(x.coefficients(_without_the_constant), x.coefficients(DIFFERENTIABLE["UFKL"]))


@claim("RPG-remE.2", over=normalized)
def without_a_reward_it_is_maximum_likelihood(x: OldMeasure) -> Iterator[Found]:
    """With R = 0 the gradient of J is beta times that of the mean log-likelihood of the old samples."""
    silent = OldMeasure(x.problem._replace(rewards=torch.zeros_like(x.R)))
    yield same(silent.d_objective("FKL"), BETA * silent.Es(torch.ones_like(x.R)))


# weights inside a stop-gradient


@claim("RPG-abs-equivalence", over=each_divergence)
def losses_with_stop_gradient_have_the_same_gradients(case: Case) -> Iterator[Found]:
    """For each of the four objectives the two losses have one gradient, sample by sample, that of -J."""
    divergence, x = case
    yield same(x.mass * x.slope(DIFFERENTIABLE[divergence]), x.mass * x.slope(stopped_loss(divergence)))
    yield from stopped(case)


@claim("RPG-eqF.1", over=each_divergence)
def a_detached_weight_multiplies_the_score(case: Case) -> Iterator[Found]:
    """Differentiated, -SG(weight) log pi is minus the weight times the score, sample by sample."""
    divergence, x = case
    yield same(x.slope(stopped_loss(divergence)), x.scored(-WEIGHTS[divergence](x.w, x.R)))
    yield from stopped(case)


@claim("RPG-4-sg")
def what_leaks_without_the_stop_gradient() -> Iterator[Found]:
    """The derivative of the weight times log pi is added, and is zero in no world."""
    shares = []
    for divergence, x in each_divergence():
        weight, target = WEIGHTS[divergence], -x.d_objective(divergence)
        leaking = x.mass * x.grad(lambda logp, w, r, weight=weight: -weight(w, r) * logp)  # type: ignore[misc]
        yield differs(leaking, target)
        yield from stopped((divergence, x))
        shares.append(relative(leaking, target))
    yield numbers(least=min(shares), most=max(shares), cases=len(shares))
