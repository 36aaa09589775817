"""Sections 3.3 and 4.1, figure 3, appendices F.2 and G: ratios that are clipped (zhang2025design)."""

from __future__ import annotations

import torch

from kl_book.ledger.claims.ground.calibration import CLIP, stale, surrogate_slopes
from kl_book.ledger.claims.ground.dual_clip import (
    PAPER,
    WIDE,
    Bounds,
    dual_clip_loss,
    dual_clip_objective,
    effective_ratio,
    open_gates,
)
from kl_book.ledger.claims.ground.errors import apart, relative, violation, worst
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.rpg_losses import (
    ADVANTAGES,
    BASELINE,
    advantage,
    clipped_worlds,
    surrogate_loss,
    wide_is_exact,
)
from kl_book.ledger.claims.ground.sums import field, terms
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    log_weight,
    loss_error,
    measured,
    normalized,
    objective_gradient,
    surrogate_gradient,
    worlds_of,
)
from kl_book.ledger.claims.ground.updates import utility_gradient
from kl_book.ledger.claims.ledger import Evidence, claim


@claim("RPG-3.3-loss", "RPG-G1-objective", "RPG-G1-negation")
def the_loss_is_minus_the_objective() -> Evidence:
    """The two printed forms are each other's negative, and with A held fixed their slopes are the gates."""
    errors = []
    for world in normalized():
        w = log_weight(world).exp()
        for a in (advantage(world), -advantage(world), torch.full_like(w, -1.0)):
            for scaled in (w, 3 * w, w / 3):
                errors.append(apart(dual_clip_loss(scaled, a, PAPER), -dual_clip_objective(scaled, a, PAPER)))
        found = surrogate_gradient(world, surrogate_loss(PAPER, stopped=True))
        by_hand = w * advantage(world) * open_gates(w, advantage(world), PAPER)
        errors.append(apart(found, -field(by_hand, world.problem)))
        errors.append(loss_error(world, "URKL", surrogate_loss(WIDE, stopped=True)))
    return Evidence(
        worst(errors),
        note=(
            "Section 3.3 prints no stop-gradient around $A$; what that changes is in RPG-3.3-matches. The "
            "released scripts set $c$ = 10."
        ),
    )


@claim("RPG-3.3-A-URKL", "RPG-4.1-decomposition", "RPG-G2-weight-URKL")
def advantage_of_the_unnormalized_reverse_kl() -> Evidence:
    """Z w (R - beta log w) is the weight, and a constant baseline changes no expected gradient."""
    errors = []
    for world in measured():
        log_w = log_weight(world)
        for b in (0.0, BASELINE):
            a = (world.problem.rewards - b) - BETA * log_w
            found = field(world.mass * log_w.exp() * a, world.problem)
            errors.append(apart(found, objective_gradient(world, "URKL")))
    return Evidence(worst(errors), note="Without $Z_{old}$ the update is divided by it.")


@claim("RPG-3.3-A-RKL", "RPG-G2-weight-RKL")
def advantage_of_the_reverse_kl() -> Evidence:
    """w (R - beta(log w + 1)) is the weight, and a constant baseline changes no expected gradient."""
    errors = []
    for world in normalized():
        log_w = log_weight(world)
        for b in (0.0, BASELINE):
            a = (world.problem.rewards - b) - BETA * (log_w + 1)
            errors.append(apart(field(log_w.exp() * a, world.problem), objective_gradient(world, "RKL")))
    return Evidence(worst(errors))


@claim("RPG-3.3-matches", "RPG-alg1")
def advantages_that_carry_a_gradient() -> Evidence:
    """Differentiated, -wA has the reverse KLs right in the mean and no forward KL at all; SG(A) mends it."""
    printed: dict[str, list[float]] = {divergence: [] for divergence in ADVANTAGES}
    corrected = []
    for divergence, errors in printed.items():
        for world in worlds_of(divergence):
            wanted = objective_gradient(world, divergence)
            attached, fixed = (
                -world.mass
                * surrogate_gradient(world, surrogate_loss(WIDE, stopped=x, divergence=divergence))
                for x in (False, True)
            )
            errors.append(relative(attached, wanted))
            corrected.append(apart(fixed, wanted))
            reverse = divergence.endswith("RKL")
            corrected.append(apart(attached, wanted if reverse else utility_gradient(world.problem)))
    forward = [*printed["UFKL"], *printed["FKL"]]
    return Evidence(
        worst([*forward, *printed["URKL"], *printed["RKL"]]),
        worst(corrected),
        unit="relative difference",
        correction=(
            "With a stop-gradient around $A$, as in appendix G.2, $A = $ weight$/w$ gives the gradients of "
            r"all four objectives while no ratio is clipped. Without it, URKL and RKL get $\beta w \nabla "
            r"\log \pi$ too much, which has mean 0; UFKL and FKL get the gradient of the reward alone."
        ),
        counterexample=(
            r"UFKL: $A = R - \beta(w-1)/w$, so that $-wA = -wR + \beta(w-1)$, and $\E_{old}[\nabla w] = 0$: "
            f"in {len(forward)} cases (UFKL, FKL) nothing of the KL is left in the expected update, which is "
            rf"up to {max(forward):.0%} of the gradient at $\beta$ = {BETA}"
        ),
        practice=(
            r"Algorithm 1 with a forward KL trains as if $\beta$ were 0, with this $A$ and with $A = R - b$ "
            "of appendix G.2. The released code adds the losses of Tables 1 and 4 to a clipped reward loss "
            "instead, which keeps the KL."
        ),
    )


@claim("RPG-3.3-range", "RPG-4.1-C")
def what_the_dual_clip_bounds() -> Evidence:
    """For A >= 0 only from above; for A < 0 between 1 - eps_1 and c, an upper bound of the ratio."""
    outside, corrected, smallest = [], [], []
    for world in normalized():
        w, a = log_weight(world).exp(), advantage(world)
        for sign in (1.0, -1.0):
            factor = dual_clip_objective(w, sign * a, PAPER) / (sign * a)
            corrected.append(apart(factor, effective_ratio(w, sign * a, PAPER)))
            positive = factor[sign * a > 0]
            outside += [bool(x < PAPER.low - 1e-12 or x > PAPER.high + 1e-12) for x in positive]
            smallest += positive.tolist()
        corrected.append(wide_is_exact(world))
    return Evidence(
        share_of_cases(outside),
        worst(corrected),
        unit="share of cases",
        agrees_with="RPG-G1-objective",
        correction=(
            r"What multiplies a positive $A$ is $\min(w, 1+\epsilon_2)$, with no bound from below; what "
            r"multiplies a negative one is $w$ clipped to $[1-\epsilon_1, c]$. So $c$ bounds the ratio from "
            "above and the objective from below."
        ),
        counterexample=(
            f"bounds {PAPER.low} and {PAPER.high}: by the formula of appendix G.1 a positive $A$ is "
            f"multiplied by {min(smallest):.2f} where $w$ is that small, and {sum(outside)} of "
            f"{len(outside)} factors of positive advantages lie outside"
        ),
        practice=(
            r"A clip of $w$ on both sides, as the words have it, gives an improbable answer with $A > 0$ "
            f"more weight, here up to {PAPER.low / min(smallest):.1f} times."
        ),
    )


@claim("RPG-eqC.3", "RPG-G1-ppo")
def for_positive_advantages_it_is_the_clip_of_ppo() -> Evidence:
    """min(wA, clip(w)A), in value and slope."""
    errors, bounds = [], Bounds(1 - CLIP, 1 + CLIP, PAPER.cap)
    for problem in (p for p in stale() if p.rows.shape[1] == 1):
        index = torch.arange(len(problem.sequences))[:, None]
        logp, old = terms(problem).logp[:, 0], problem.token_logp(problem.sampled_from)[:, 0]
        for a in (problem.rewards + 0.5, problem.rewards + 2.0):
            leaf = logp.clone().requires_grad_()
            w = (leaf - old).exp()
            loss = dual_clip_loss(w, a, bounds)
            errors.append(
                apart(-loss.detach(), torch.minimum(w * a, w.clamp(1 - CLIP, 1 + CLIP) * a).detach())
            )
            (found,) = torch.autograd.grad(loss.sum(), leaf)
            errors.append(apart(found, surrogate_slopes(problem, index, a[:, None])[:, 0, 0]))
    return Evidence(worst(errors), note="$A$ held fixed.")


@claim("RPG-G1-bound")
def what_the_bound_of_negative_advantages_stops() -> Evidence:
    """It stops the objective from falling and the loss from growing; neither was unbounded the other way."""
    printed, corrected = [], []
    ratios = torch.logspace(-3, 4, 40, dtype=torch.float64)
    for world in clipped_worlds():
        for a in advantage(world)[advantage(world) < 0]:
            without = dual_clip_objective(ratios, a, PAPER._replace(cap=1e9))
            bounded = dual_clip_objective(ratios, a, PAPER)
            # stopped from growing: the bound lowers the objective somewhere
            printed.append(violation(1.0 - float((without - bounded).max())))
            corrected += [
                apart(bounded, torch.maximum(without, PAPER.cap * a)),
                violation(float(without.min()) + 1.0),
            ]
        corrected.append(wide_is_exact(world))
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="difference",
        agrees_with="proof",
        correction=(
            "For $A < 0$ the objective $wA$ falls, and the loss grows, without limit as $w$ grows; the "
            "bound keeps the objective above $cA$ and the loss below $-cA$."
        ),
        counterexample=(
            f"at $w$ = {float(ratios[-1]):.0f} and $A = -1$ the objective is "
            f"{-float(ratios[-1]):.0f} without the bound and {-PAPER.cap:g} with it: the bound raises it, "
            "and without the bound it is never positive"
        ),
        practice=(
            "The bound does what the text next to it says: a sample whose probability has risen although its "
            f"advantage is negative has no gradient any more beyond $w$ = {PAPER.cap:g}."
        ),
    )
