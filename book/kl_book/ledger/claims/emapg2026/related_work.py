"""What the source says of the work of others, as far as it can be computed (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.best_policies import BETAS, best_policy, case
from kl_book.ledger.claims.ground.divergences import GENERATORS, NAMED, divergence
from kl_book.ledger.claims.ground.errors import apart, differs, violation, worst
from kl_book.ledger.claims.ground.estimates import SAMPLED
from kl_book.ledger.claims.ground.reported import reported
from kl_book.ledger.claims.ground.rollouts import slope_at_target
from kl_book.ledger.claims.ground.sequences import longer_trees, partial_gradient
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    field,
    kl_gradient,
    log_ratio,
    mean,
    terms,
)
from kl_book.ledger.claims.ground.targets import at_optimum
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere
from kl_companion.tabular import Problem

NO_SOURCE = "the papers that it names, which are no sources here"


@claim("EMA-intro-objectives")
def two_ways_of_adding_a_kl() -> Iterator[Found]:
    """K1 of sequences in the reward follows the KL's gradient, K3 per token in the loss another field."""
    errors = []
    for problem in longer_trees():
        added = field(log_ratio(problem), problem)
        found = {
            name: mean(terms(problem).p, differentiated(SAMPLED[name], problem, per_token=True))
            for name in ("K2", "K3")
        }
        errors += [
            apart(added, kl_gradient(problem)),
            apart(found["K3"], partial_gradient(problem, forward=True)),
        ]
        errors += [differs(found[name], added) for name in found]  # the level by itself is enough
    for problem in bandits():  # and so is the direction, with one token
        found_3 = mean(terms(problem).p, differentiated(SAMPLED["K3"], problem))
        errors.append(differs(found_3, field(log_ratio(problem), problem)))
    yield from each_form(worst(errors))


def _slope(f: str, t: torch.Tensor) -> torch.Tensor:
    """f'(t) of a generator."""
    leaf = t.clone().requires_grad_()
    (derivative,) = torch.autograd.grad(GENERATORS[f](leaf).sum(), leaf)
    return derivative


def _with_discriminator(f: str, at: torch.Tensor, problem: Problem) -> float:
    """E_P[T] - E_Q[f*(T)], T = f'(at), which f-GAN's discriminator maximizes; f*(f'(t)) = t f'(t) - f(t)."""
    t = terms(problem)
    slope = _slope(f, at)
    conjugate = at * slope - GENERATORS[f](at)
    return float(mean(t.p, slope) - mean(t.ref_logp.sum(-1).exp(), conjugate))


def _implied_rewards(name: str, problem: Problem, beta: float) -> float:
    """Error of "beta f'(pi*/ref) are the rewards up to one number", at the optimum under a divergence."""
    leaf = (best_policy(name, problem, beta).policy / terms(problem).ref_logp.sum(-1).exp()).requires_grad_()
    (slope,) = torch.autograd.grad(case(name).f(leaf).sum(), leaf)
    found = beta * slope - problem.rewards
    return apart(found, found[0]) / (1 + beta * float(slope.abs().max()))


@claim("EMA-K-generalize")
def special_cases_of_f_divergences() -> Iterator[Found]:
    """GAN is f-GAN with Jensen-Shannon, DPO is f-DPO with t log t, and every f has its own."""
    errors = []
    for problem in bandits():
        t = terms(problem)
        p, q = t.p, t.ref_logp.sum(-1).exp()
        gan = mean(p, (p / (p + q)).log()) + mean(q, (q / (p + q)).log())
        js = exact(NAMED["Jensen-Shannon"], problem)[0]
        errors.append(apart(gan, 2 * js - 2 * torch.log(torch.tensor(2.0, dtype=torch.float64))))
        for f in GENERATORS:
            truth = exact(divergence(GENERATORS[f]), problem)[0]
            errors.append(apart(_with_discriminator(f, p / q, problem), truth) / (1 + truth))
            for other in (torch.ones_like(p), (p / q).sqrt(), (p / q).flip(0)):
                bound = _with_discriminator(f, other, problem)  # any other discriminator is below
                errors.append(violation(bound - truth - 1e-12 * (1 + truth)))
        ratio = log_ratio(problem).exp()
        dpo = _slope("reverse_kl", ratio) - log_ratio(problem)
        errors.append(apart(dpo, dpo[0]))  # DPO's implicit reward, up to a number that cancels in pairs
        for beta in BETAS:
            names = ("Reverse KL", "Forward KL", "Jensen-Shannon", "Squared Hellinger")
            errors += [_implied_rewards(name, problem, beta) for name in names]
    yield from each_form(worst(errors))


def _rest_points() -> str:
    """Which of the losses vanish at the optimum sample by sample, whoever samples, in words."""
    worlds = [at_optimum(p) for p in sampled_elsewhere() if p.rows.shape[1] == 1]
    size = {name: worst(apart(slope_at_target(fn, p), 0.0) for p in worlds) for name, fn in SAMPLED.items()}
    rest = [name for name, x in size.items() if x < 1e-9]
    gone = [name for name in size if name not in rest]
    return (
        f"with an exact $Z$ the gradients of {', '.join(rest)} are 0 at $\\pi^*$ in every sample, whoever "
        f"samples; those of {', '.join(gone)} are not ({len(worlds)} bandits). With $V$ for $\\log Z$: "
        "EMA-eq148+offpolicy"
    )


reported("EMA-J4-offpolicy+prior", NO_SOURCE, _rest_points)
