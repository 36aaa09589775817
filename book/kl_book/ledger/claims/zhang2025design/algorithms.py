"""Algorithms 1 and 2, appendix G, sections 5 and 6: baselines, branches, references (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.dual_clip import PAPER, WIDE, Bounds, branching_loss, open_gates
from kl_book.ledger.claims.ground.errors import apart, less, relative, violation, worst
from kl_book.ledger.claims.ground.rpg_losses import (
    ADVANTAGES,
    BASELINE,
    WEIGHTS,
    advantage,
    clipped_worlds,
    surrogate_loss,
)
from kl_book.ledger.claims.ground.sums import exact, mean, terms, variance
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    Loss,
    OldMeasure,
    divergence_value,
    log_weight,
    loss_error,
    loss_gradients,
    normalized,
    objective_gradient,
    surrogate_gradient,
    worlds_of,
)
from kl_book.ledger.claims.ground.worlds import bandits

WIDER = Bounds(0.5, 2.0, 3.0)


def _branching(bounds: Bounds, divergence: str) -> Loss:
    """Algorithm 2, with the KL's part of the weight as its C_KL."""

    def loss(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return branching_loss(logp, w, r, WEIGHTS[divergence](w, torch.zeros_like(r)), bounds)

    return loss


@claim("RPG-alg2")
def gradient_of_algorithm_two() -> Iterator[Found]:
    """-wA' score inside the bounds and none outside; with wide bounds the exact gradient of all four."""
    errors, wrong = [], []
    for divergence in ADVANTAGES:
        for world in worlds_of(divergence):
            w, a = log_weight(world).exp(), advantage(world, divergence)
            by_hand = -(w * a * open_gates(w, a, PAPER))[:, None, None] * terms(world.problem).score
            errors.append(apart(loss_gradients(world, _branching(PAPER, divergence)), by_hand))
            errors.append(loss_error(world, divergence, _branching(WIDE, divergence)))
            if divergence == "URKL" and world.mass == 1:
                wrong.append(_with_a_penalty(world))
    yield from each_form(worst(errors), max_wrong=max(wrong))


def _with_a_penalty(world: OldMeasure) -> float:
    """How far algorithm 2 is from the gradient if C_KL is beta k3(pi_old / pi)."""
    found = surrogate_gradient(
        world, lambda logp, w, r: branching_loss(logp, w, r, BETA * (1 / w - 1 + w.log()), WIDE)
    )
    return relative(-found, objective_gradient(world, "URKL"))


@claim("RPG-alg2-branches")
def the_branches_are_those_of_the_dual_clip() -> Iterator[Found]:
    """Sample by sample algorithm 2 has the gradient of the dual-clip loss with A' held fixed."""
    errors, closed = [], 0.0
    for divergence in ADVANTAGES:
        for world in worlds_of(divergence):
            by_branches = loss_gradients(world, _branching(PAPER, divergence))
            by_clip = loss_gradients(world, surrogate_loss(PAPER, stopped=True, divergence=divergence))
            errors.append(apart(by_branches, by_clip))
            plain = surrogate_loss(WIDE, stopped=True, divergence=divergence)
            errors.append(loss_error(world, divergence, plain))
            gates = open_gates(log_weight(world).exp(), advantage(world, divergence), PAPER)
            closed += float((1 - gates).sum())
    errors.append(violation(1.0 - closed))
    yield from each_form(worst(errors))


@claim("RPG-G1-RKL")
def the_clipped_loss_of_the_reverse_kl() -> Iterator[Found]:
    """With A_RKL attached and nothing clipped, the expected gradient is that of the reverse KL objective."""
    errors, apart_per_sample = [], []
    for world in normalized():
        attached = loss_gradients(world, surrogate_loss(WIDE, stopped=False, divergence="RKL"))
        fixed = loss_gradients(world, surrogate_loss(WIDE, stopped=True, divergence="RKL"))
        for found in (attached, fixed):
            errors.append(apart(mean(terms(world.problem).p, found), -objective_gradient(world, "RKL")))
        extra = BETA * log_weight(world).exp()[:, None, None] * terms(world.problem).score
        errors.append(apart(attached, fixed + extra))
        apart_per_sample.append(float(extra.abs().max()))
    yield from each_form(worst(errors), max_apart_per_sample=max(apart_per_sample))


@claim("RPG-alg1-noclip")
def the_example_is_not_what_its_line_computes() -> Iterator[Found]:
    """-wA with the A of line 12 is w(-(R - b) + beta(log w + 1)): beta w more than the example."""
    printed, corrected = [], []
    for world in normalized():
        log_w, reward = log_weight(world), world.problem.rewards - BASELINE
        w = log_w.exp()
        line = -w * (reward - BETA * (log_w + 1))
        printed.append(apart(line, w * (-reward + BETA * log_w)))
        corrected.append(apart(line, w * (-reward + BETA * (log_w + 1))))
        # both have the expected gradient of the reverse KL objective
        both: tuple[Loss, Loss] = (
            lambda _, w, r: -w * ((r - BASELINE) - BETA * (w.log() + 1)),
            lambda _, w, r: w * (-(r - BASELINE) + BETA * w.log()),
        )
        corrected += [loss_error(world, "RKL", x) for x in both]
    yield from each_form(
        worst(printed),
        worst(corrected),
        max_printed=max(printed),
        BETA=BETA,
        number=1e-4 * max(printed) / BETA,
    )


@claim("RPG-6-bias")
def a_clip_trades_variance_for_bias() -> Iterator[Found]:
    """In every world where it closes the variance falls and the mean moves; wide bounds do neither."""
    errors, saved, moved = [], [], []
    for world in clipped_worlds():
        p, wanted = terms(world.problem).p, objective_gradient(world, "URKL")
        spreads, biases = [], []
        for bounds in (PAPER, WIDER, WIDE):
            sample = loss_gradients(world, surrogate_loss(bounds, stopped=True))
            spreads.append(variance(p, sample))
            biases.append(relative(-mean(p, sample), wanted))
        errors += [less(spreads[0], spreads[-1]), less(0.0, biases[0]), apart(biases[-1], 0.0)]
        errors += [violation(a - b) for a, b in pairwise(spreads)]
        saved.append(1 - spreads[0] / spreads[-1])
        moved.append(biases[0])
    yield from each_form(
        worst(errors),
        number_of_saved=len(saved),
        min_saved=min(saved),
        max_saved=max(saved),
        min_moved=min(moved),
        max_moved=max(moved),
    )


CYCLES = 200


def _expected(rewards: torch.Tensor, logp: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """E[R] from log pi of every sequence."""
    return logp.exp() @ rewards


@claim("RPG-5-iterref")
def a_renewed_reference_bounds_steps_and_not_the_way() -> Iterator[Found]:
    """Each cycle moves at most (gain in reward)/beta in KL; after n cycles the coefficient is beta / n."""
    errors, missing = [], []
    for problem in bandits()[3:]:
        start, rewards = problem.ref_logits.log_softmax(-1), problem.rewards
        old = start
        for cycle in range(3):
            new = (old + rewards / BETA).log_softmax(-1)
            world = OldMeasure(problem._replace(logits=new, behavior_logits=old))
            kl = divergence_value(world, "RKL")
            gain = float((new.exp() - old.exp()) @ rewards)
            errors.append(apart(objective_gradient(world, "RKL"), 0.0))
            errors.append(violation(kl - gain / BETA))
            reward = exact(partial(_expected, rewards), world.problem)[0]
            value = reward - BETA * kl
            errors.append(apart(value, BETA * torch.logsumexp(old + rewards / BETA, -1)))
            errors.append(apart(new, (start + (cycle + 1) * rewards / BETA).log_softmax(-1)))
            old = new
        fixed = float((start + rewards / BETA).softmax(-1) @ rewards)
        renewed = float((start + CYCLES * rewards / BETA).softmax(-1) @ rewards)
        errors += [less(fixed, renewed), violation(float(rewards.max()) - renewed - 1e-3)]
        missing.append(float(rewards.max()) - fixed)
    yield from each_form(worst(errors), max_missing=max(missing), CYCLES=CYCLES)
