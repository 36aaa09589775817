"""Section 4, Table 2 and appendices C, F and L: weights inside a stop-gradient (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import Check, claim
from kl_book.ledger.claims.comparisons import Found, differs, numbers, printed, same
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.rpg_losses import WEIGHTS, stopped_loss
from kl_book.ledger.claims.ground.sequences import values_of_prefixes
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.unnormalized import OldMeasure, each_divergence, measured, worlds_of
from kl_book.ledger.claims.ground.updates import every_token, token_field, utility_gradient
from kl_book.ledger.claims.ground.worlds import trees
from kl_companion.tabular import Problem


def _has_minus_the_gradient(*divergences: str) -> Check:
    """-E[SG(weight) log pi] has minus the gradient of its objective."""

    def check() -> Iterator[Found]:
        for divergence in divergences:
            for x in worlds_of(divergence):
                yield printed(x.loss_error(stopped_loss(divergence), divergence))

    return check


claim("RPG-tab2-UFKL")(_has_minus_the_gradient("UFKL"))
claim("RPG-tab2-URKL")(_has_minus_the_gradient("URKL"))
claim("RPG-propF.1")(_has_minus_the_gradient("FKL"))
claim("RPG-propF.4")(_has_minus_the_gradient("RKL"))
claim("RPG-prop4.1")(_has_minus_the_gradient("UFKL", "URKL"))


@claim("RPG-4-sg")
def what_leaks_without_the_stop_gradient() -> Iterator[Found]:
    """The derivative of the weight times log pi is added, and is zero in no world."""
    shares = []
    for divergence, x in each_divergence():
        weight, wanted = WEIGHTS[divergence], -x.d_objective(divergence)
        leaking = x.mass * x.grad(lambda logp, w, r, weight=weight: -weight(w, r) * logp)  # type: ignore[misc]
        yield differs(leaking, wanted)
        yield printed(x.loss_error(stopped_loss(divergence), divergence))
        shares.append(relative(leaking, wanted))
    yield numbers(least=min(shares), most=max(shares), cases=len(shares))


@claim("RPG-eqF.1", over=each_divergence)
def a_detached_weight_multiplies_the_score(case: tuple[str, OldMeasure]) -> Iterator[Found]:
    """Differentiated, -SG(weight) log pi is minus the weight times the score, sample by sample."""
    divergence, x = case
    yield same(x.slope(stopped_loss(divergence)), x.scored(-WEIGHTS[divergence](x.w, x.R)))
    yield printed(x.loss_error(stopped_loss(divergence), divergence))


@claim("RPG-L-Z", over=measured)
def leaving_the_mass_out(x: OldMeasure) -> Iterator[Found]:
    """Without the factor Z the gradient is that of the objective divided by Z."""
    for divergence in ("UFKL", "URKL"):
        yield same(x.grad(stopped_loss(divergence)), -x.d_objective(divergence) / x.mass)


# baselines of a state, appendix C.1


def _baseline(problem: Problem) -> torch.Tensor:
    """A number for every prefix, at each of the tokens that follow it, [count, length]."""
    per_prefix = torch.arange(len(problem.logits)).double().cos() + 2.0
    return per_prefix[problem.rows] * problem.completion_mask


@claim("RPG-C1-baseline", over=trees)
def a_baseline_of_the_prefix_has_no_effect(problem: Problem) -> Iterator[Found]:
    """E sum b(s_t) score_t = 0, for any numbers b and for the true values of the prefixes."""
    reward = every_token(problem, problem.rewards)
    value = values_of_prefixes(problem, reward)[problem.rows] * problem.completion_mask
    for b in (_baseline(problem), value):
        yield same(token_field(problem, b), 0.0)
        yield same(token_field(problem, reward - b), utility_gradient(problem))


@claim("RPG-eqC.2", over=trees)
def the_loss_with_a_detached_advantage(problem: Problem) -> Iterator[Found]:
    """Differentiated on samples of the policy, it has minus the gradient of the expected reward."""
    advantage = every_token(problem, problem.rewards) - _baseline(problem)
    leaf = terms(problem).logp.clone().requires_grad_()
    (slope,) = torch.autograd.grad(-(advantage * leaf).sum(), leaf)
    yield same(token_field(problem, slope), -utility_gradient(problem))
