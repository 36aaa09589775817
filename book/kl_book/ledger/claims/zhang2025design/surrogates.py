"""Tables 1 and 4, section 4, appendices D, E and K: losses that carry all gradients (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import Check, claim
from kl_book.ledger.claims.comparisons import Found, differs, printed, same
from kl_book.ledger.claims.ground.rpg_losses import DIFFERENTIABLE
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    OldMeasure,
    each_divergence,
    measured,
    normalized,
    slopes,
    worlds_of,
)
from kl_book.ledger.claims.ground.updates import utility_gradient


def _has_minus_the_gradient(divergence: str) -> Check:
    """The loss of a table, differentiated, has minus the gradient of its objective."""

    def check() -> Iterator[Found]:
        for x in worlds_of(divergence):
            yield printed(x.loss_error(DIFFERENTIABLE[divergence], divergence))

    return check


claim("RPG-tab1-UFKL")(_has_minus_the_gradient("UFKL"))
claim("RPG-tab1-URKL")(_has_minus_the_gradient("URKL"))
claim("RPG-propE.1-loss")(_has_minus_the_gradient("FKL"))
claim("RPG-propE.3-loss")(_has_minus_the_gradient("RKL"))


@claim("RPG-propE.1-grad", over=normalized)
def forward_gradient(x: OldMeasure) -> Iterator[Found]:
    """E_old[(wR + beta) score] is the gradient of E[R] - beta KL(old, policy)."""
    yield same(x.Es(x.w * x.R + BETA), x.d_objective("FKL"))


@claim("RPG-propE.3-grad", over=normalized)
def reverse_gradient(x: OldMeasure) -> Iterator[Found]:
    """E_old[w(R - beta(log w + 1)) score] is the gradient of E[R] - beta KL(policy, old)."""
    yield same(x.Es(x.w * (x.R - BETA * (x.log_w + 1))), x.d_objective("RKL"))


@claim("RPG-4-minusJ", over=each_divergence)
def losses_are_minus_the_objective_up_to_constants(case: tuple[str, OldMeasure]) -> Iterator[Found]:
    """L + J is one number at two policies, for all four divergences."""
    divergence, x = case
    loss, objective = DIFFERENTIABLE[divergence], x.objective(divergence)
    other = x.problem.token_logp(x.problem.ref_logits).sum(-1)
    here, there = (x.mass * x.mean_loss(loss, logp) + objective(logp) for logp in (x.logp, other))
    yield same(here, there)
    if divergence in ("UFKL", "RKL"):
        yield same(here, 0.0)
    yield printed(x.loss_error(loss, divergence))


@claim("RPG-remE.2", over=normalized)
def without_a_reward_it_is_maximum_likelihood(x: OldMeasure) -> Iterator[Found]:
    """With R = 0 the gradient of J is beta times that of the mean log-likelihood of the old samples."""
    silent = OldMeasure(x.problem._replace(rewards=torch.zeros_like(x.R)))
    yield same(silent.d_objective("FKL"), BETA * silent.Es(torch.ones_like(x.R)))


@claim("RPG-eqE.1", over=normalized)
def value_of_the_forward_objective(x: OldMeasure) -> Iterator[Found]:
    """It is E_old[wR + beta log w]."""
    yield same(x.E(x.w * x.R + BETA * x.log_w), x.objective("FKL")(x.logp))


@claim("RPG-eqE.2", over=normalized)
def value_of_the_reverse_objective(x: OldMeasure) -> Iterator[Found]:
    """KL(policy, old) = E_old[w log w], and J = E_old[wR - beta w log w]."""
    yield same(x.E(x.w * x.log_w), x.divergence("RKL"))
    yield same(x.E(x.w * x.R - BETA * x.w * x.log_w), x.objective("RKL")(x.logp))


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


@claim("RPG-K2-J", over=measured)
def value_of_the_unnormalized_forward_objective(x: OldMeasure) -> Iterator[Found]:
    """It is Z E[wR + beta log w - beta w + beta]."""
    mean = x.E(x.w * x.R + BETA * x.log_w - BETA * x.w + BETA)
    yield same(x.mass * mean, x.objective("UFKL")(x.logp))


@claim("RPG-K4-J", over=measured)
def value_of_the_unnormalized_reverse_objective(x: OldMeasure) -> Iterator[Found]:
    """It is Z E[wR - beta w log w - beta + beta w]."""
    mean = x.E(x.w * x.R - BETA * x.w * x.log_w - BETA + BETA * x.w)
    yield same(x.mass * mean, x.objective("URKL")(x.logp))


def _without_the_constant(_: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """The loss of UFKL without its -1."""
    return -w * r + BETA * (w - w.log())


@claim("RPG-K2-constant", over=measured)
def the_minus_one_of_the_loss(x: OldMeasure) -> Iterator[Found]:
    """Without it L is beta Z away from -J, and its gradient is the same for every sample."""
    gap = x.mass * x.mean_loss(_without_the_constant, x.logp) + x.objective("UFKL")(x.logp)
    yield same(gap, BETA * x.mass)
    yield differs(gap, 0.0)
    without = slopes(lambda logp: x.losses(_without_the_constant, logp).sum(), x.logp)
    yield same(without, slopes(lambda logp: x.losses(DIFFERENTIABLE["UFKL"], logp).sum(), x.logp))
