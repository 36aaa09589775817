"""Section 2.2 and abstract: GRPO's k3 and its missing weight (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, observed, printed, same
from kl_book.ledger.claims.ground.calibration import surrogate_slopes
from kl_book.ledger.claims.ground.errors import hedged, relative
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import exact, mean, terms
from kl_book.ledger.claims.ground.unnormalized import BETA, MASSES, OldMeasure, unnormalized_reverse
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import all_worlds, few_sampled_elsewhere, sampled_elsewhere, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

SIZE = 2


def k3(y: torch.Tensor) -> torch.Tensor:
    """y - log y - 1 of a ratio."""
    return y - y.log() - 1


@claim("RPG-2.2-k3", over=worlds)
def printed_k3_is_the_registered_one(problem: Problem) -> Iterator[Found]:
    """y - log y - 1 at y = pi_ref / pi is the registered k3 of the two log-probs, and is never negative."""
    logp, ref = terms(problem).logp.sum(-1), terms(problem).ref_logp.sum(-1)
    estimate = k3((ref - logp).exp())
    yield same(estimate, get_estimator("k3").fn(logp, ref))
    yield less(0.0, float(estimate.min()), by=0.0)


@claim("RPG-2.2-k3-urkl", over=each(worlds))
def mean_of_k3_is_the_unnormalized_reverse_kl(w: Enumeration) -> Iterator[Found]:
    """E[k3(pi_ref / pi)] over samples of pi is UKL(pi || pi_ref), whatever the total mass of pi_ref."""
    for mass in MASSES:
        shift = math.log(mass)
        divergence = exact(lambda p, q, z=shift: unnormalized_reverse(p, q + z), w.problem)[0]  # type: ignore[misc]
        yield same(w.E(k3(mass * (-w.l).exp())), divergence)


# one decision, or a whole answer as one item


@claim("RPG-2.2-weight", over=each(sampled_elsewhere))
def the_weight_makes_the_value_right(w: Enumeration) -> Iterator[Found]:
    """E over pi_old of w k3 is UKL(pi || pi_ref); without w it is another number."""
    divergence = exact(unnormalized_reverse, w.problem)[0]
    without = float(w.E(w.value("k3")))
    yield same(w.E(OldMeasure(w.problem).w * w.value("k3")), divergence)
    yield differs(without, divergence)
    yield observed(without / divergence)


@claim("RPG-1-corrected-loss", over=each(all_worlds))
def the_weight_makes_value_and_gradient_right(w: Enumeration) -> Iterator[Found]:
    """w k3 with w differentiated has the value and the gradient of UKL(pi || pi_ref); without w neither."""
    divergence, target = exact(unnormalized_reverse, w.problem)
    yield same(w.E(w.in_loss("k3")), target)
    if w.problem.behavior_logits is None:
        yield observed(on_policy=relative(w.grad("k3"), target))
        return
    yield same(w.E(OldMeasure(w.problem).w * w.value("k3")), divergence)
    yield differs(w.E(w.value("k3")), divergence)
    yield differs(w.grad("k3"), target)
    yield observed(detached=relative(w.E(w.in_loss("k3", "detached")), target))


@claim("RPG-abs-k3", over=each(all_worlds))
def k3_is_a_divergence_and_its_sampled_term_is_not(w: Enumeration) -> Iterator[Found]:
    """As a mean over the policy k3 is UKL; the sampled penalty, differentiated, follows another KL."""
    divergence, target = exact(unnormalized_reverse, w.problem)
    share = relative(w.grad("k3"), target)
    yield printed(share)
    if w.problem.behavior_logits is not None:
        yield observed(older=share)
        return
    yield observed(share)
    yield same(w.E(w.value("k3")), divergence, "inside")
    yield same(w.E(w.value("k3")[:, None, None] * w.s + w.slope("k3")), target, "inside")


# GRPO's objective as printed, token by token


def grpo_gradient(problem: Problem, *, weighted: bool, beta: float = BETA) -> torch.Tensor:
    """Gradient of J_GRPO over all groups, [rows, vocab]: clip term and KL, with w or without, over tokens."""
    t, mask = terms(problem), problem.completion_mask
    p, index = groups(problem, SIZE)
    length = mask.sum(-1, keepdim=True)
    leaf = t.logp.clone().requires_grad_()
    penalty = k3((t.ref_logp - leaf).exp()) * mask
    if weighted:
        penalty = (leaf - problem.token_logp(problem.sampled_from)).exp() * penalty
    (slopes,) = torch.autograd.grad(penalty.sum(), leaf)
    clip = -surrogate_slopes(problem, index, standardized_or_zero(problem.rewards[index]))
    each = (clip - beta * slopes[index]) / length[index]
    return torch.einsum("g,git,gitrv->rv", p, each, t.scores[index]) / SIZE


def intended_gradient(problem: Problem, beta: float = BETA) -> torch.Tensor:
    """Gradient of J_Clip minus beta times UKL at each history of the old policy, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    length = problem.completion_mask.sum(-1)
    visited = mean(terms(problem).p, token_kls(problem, theta).sum(-1) / length)
    (divergence,) = torch.autograd.grad(visited, theta)
    return grpo_gradient(problem, weighted=False, beta=0.0) - beta * divergence


@claim("RPG-2.2-grpo")
def without_the_weight_the_gradient_is_another() -> Iterator[Found]:
    """GRPO's printed objective has not the gradient of J_Clip - beta UKL; with w, and one length, it has."""
    shares = []
    for problem in few_sampled_elsewhere():
        target, mended = intended_gradient(problem), grpo_gradient(problem, weighted=True)
        shares.append(relative(grpo_gradient(problem, weighted=False), target))
        yield observed(shares[-1])
        if len(problem.completion_mask.sum(-1).unique()) == 1:
            yield same(mended, target)
        else:
            yield observed(uneven=relative(mended, target))
    yield printed(hedged(share > TOLERANCE for share in shares))
    yield numbers(size=SIZE, beta=BETA)
