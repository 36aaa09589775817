"""Algorithms 1 and 2, appendix G, sections 5 and 6: baselines, branches, references (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, less, numbers, observed, printed, rises, same
from kl_book.ledger.claims.ground import rpg_losses as rpg
from kl_book.ledger.claims.ground.errors import apart, relative
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.rpg_losses import PAPER, WIDE, Bounds, branching_loss
from kl_book.ledger.claims.ground.unnormalized import BETA, Loss, OldMeasure, each_divergence, normalized
from kl_book.ledger.claims.ground.world import Enumeration
from kl_book.ledger.claims.ground.worlds import bandits, three_policies
from kl_companion.tabular import Problem

WIDER = Bounds(0.5, 2.0, 3.0)


def _branching(bounds: Bounds, divergence: str) -> Loss:
    """Algorithm 2, with the KL's part of the weight as its C_KL."""

    def loss(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return branching_loss(logp, w, r, rpg.WEIGHTS[divergence](w, torch.zeros_like(r)), bounds)

    return loss


@claim("RPG-alg2", over=each_divergence)
def gradient_of_algorithm_two(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """-wA' score inside the bounds and none outside; with wide bounds the exact gradient of all four."""
    by_hand = -x.w * rpg.advantage(x, divergence) * (1 - rpg.closed(x, divergence))
    yield same(x.slope(_branching(PAPER, divergence)), x.scored(by_hand))
    yield printed(x.loss_error(_branching(WIDE, divergence), divergence))

    def with_a_penalty(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return branching_loss(logp, w, r, BETA * (1 / w - 1 + w.log()), WIDE)  # k3(pi_old / pi) as C_KL

    if x.mass == 1:
        yield observed(wrong=relative(-x.grad(with_a_penalty), x.d_objective("URKL")))


@claim("RPG-alg2-branches")
def the_branches_are_those_of_the_dual_clip() -> Iterator[Found]:
    """Sample by sample algorithm 2 has the gradient of the dual-clip loss with A' held fixed."""
    closed = 0.0
    for divergence, x in each_divergence():
        clipped, plain = (
            rpg.surrogate_loss(bounds, stopped=True, divergence=divergence) for bounds in (PAPER, WIDE)
        )
        yield same(x.slope(_branching(PAPER, divergence)), x.slope(clipped))
        yield printed(x.loss_error(plain, divergence))
        closed += float(rpg.closed(x, divergence).sum())
    yield less(0.0, closed, by=1.0)


@claim("RPG-G1-RKL", over=normalized)
def the_clipped_loss_of_the_reverse_kl(x: OldMeasure) -> Iterator[Found]:
    """With A_RKL attached and nothing clipped, the expected gradient is that of the reverse KL objective."""
    attached, fixed = (
        x.slope(rpg.surrogate_loss(WIDE, stopped=stopped, divergence="RKL")) for stopped in (False, True)
    )
    more = x.scored(BETA * x.w)
    yield same(x.E(attached), -x.d_objective("RKL"))
    yield same(x.E(fixed), -x.d_objective("RKL"))
    yield same(attached, fixed + more)
    yield observed(more.abs().max())


@claim("RPG-alg1-noclip")
def the_example_is_not_what_its_line_computes() -> Iterator[Found]:
    """-wA with the A of line 12 is w(-(R - b) + beta(log w + 1)): beta w more than the example, line 26."""
    forms: tuple[Loss, Loss] = (
        lambda _, w, r: -w * ((r - rpg.BASELINE) - BETA * (w.log() + 1)),
        lambda _, w, r: w * (-(r - rpg.BASELINE) + BETA * w.log()),
    )
    excess = []
    for x in normalized():
        line, example = (x.losses(loss, x.logp) for loss in forms)
        excess.append(apart(line, example))
        yield printed(excess[-1])
        yield same(line, x.w * (-(x.R - rpg.BASELINE) + BETA * (x.log_w + 1)), "corrected")
        for loss in forms:  # both have the expected gradient of the reverse KL objective
            yield same(x.grad(loss), -x.d_objective("RKL"), "corrected")
    yield numbers(largest=max(excess), beta=BETA, with_small_beta=1e-4 * max(excess) / BETA)


@claim("RPG-6-bias", over=rpg.clipped_worlds)
def a_clip_trades_variance_for_bias(x: OldMeasure) -> Iterator[Found]:
    """In every world where it closes the variance falls and the mean moves; wide bounds do neither."""
    samples = [x.slope(rpg.surrogate_loss(bounds, stopped=True)) for bounds in (PAPER, WIDER, WIDE)]
    spreads = [x.var(sample) for sample in samples]
    biases = [relative(-x.E(sample), x.d_objective("URKL")) for sample in samples]
    yield less(spreads[0], spreads[-1])
    yield less(0.0, biases[0])
    yield same(biases[-1], 0.0)
    yield rises(spreads, by=0.0)
    yield observed(saved=1 - spreads[0] / spreads[-1], moved=biases[0])


CYCLES = 200


@claim("RPG-5-iterref", over=lambda: bandits()[3:])
def a_renewed_reference_bounds_steps_and_not_the_way(problem: Problem) -> Iterator[Found]:
    """Each cycle moves at most (gain in reward)/beta in KL; after n cycles the coefficient is beta / n."""
    start, rewards = problem.ref_logits.log_softmax(-1), problem.rewards
    old = start
    for cycle in range(3):
        new = (old + rewards / BETA).log_softmax(-1)
        x = OldMeasure(problem._replace(logits=new, behavior_logits=old))
        kl = x.divergence("RKL")
        yield same(x.d_objective("RKL"), 0.0)
        yield less(kl, float((new.exp() - old.exp()) @ rewards) / BETA, by=0.0)
        value = float(x.logp.exp() @ rewards) - BETA * kl
        yield same(value, BETA * torch.logsumexp(old + rewards / BETA, -1))
        yield same(new, (start + (cycle + 1) * rewards / BETA).log_softmax(-1))
        old = new
    fixed, renewed = (float((start + n * rewards / BETA).softmax(-1) @ rewards) for n in (1, CYCLES))
    yield less(fixed, renewed)
    yield less(float(rewards.max()) - renewed, 1e-3, by=0.0)
    yield observed(missing=float(rewards.max()) - fixed)
    yield numbers(cycles=CYCLES)


# the mean reward as a baseline

ANSWERS = 16  # per prompt in the source


def _batch_gradient(x: Enumeration, size: int, *, own: bool) -> torch.Tensor:
    """Mean update of w(R - b) over all batches; ``own``: the own reward is part of the mean b."""
    p, index = groups(x.problem, size)
    a = centered(x.R[index], "mean" if own else "leave_one_out")
    return torch.einsum("g,gi,girv->rv", p, x.rho[index] * a, x.s[index]) / size


@claim("RPG-alg1-baseline")
def the_mean_of_the_batch_is_no_baseline() -> Iterator[Found]:
    """With a sample's own reward in it, the mean takes away one Nth of the reward's gradient."""
    shares = []
    for x in (Enumeration(old.problem) for old in normalized() if len(old.p) < 7):
        for size in (2, 3):
            shrunk = _batch_gradient(x, size, own=True)
            shares.append(relative(shrunk, x.d_reward))
            yield printed(shares[-1])
            yield same(shrunk, (1 - 1 / size) * x.d_reward, "corrected")
            yield same(_batch_gradient(x, size, own=False), x.d_reward, "corrected")
    yield numbers(size=2, share=shares[0], answers=ANSWERS, factor=ANSWERS / (ANSWERS - 1))


def _best_constant(x: Enumeration) -> tuple[float, float]:
    """The constant baseline of least variance of w(R - b) score, and E[w^2 |score|^2]."""
    square = x.p * x.rho.square() * x.s.square().sum((-2, -1))
    return float(square @ x.R / square.sum()), float(square.sum())


def _spread(x: Enumeration, b: float) -> float:
    """Variance of w(R - b) score of one sample."""
    return x.var(x.times_score(x.R - b))


@claim("RPG-G1-baseline")
def a_mean_reward_can_raise_the_variance() -> Iterator[Found]:
    """It lowers it exactly where it lies between 0 and twice the best constant."""
    nearly_solved = Enumeration(three_policies((0.9, 0.1), (0.5, 0.5), (0.9, 0.1)))
    nearly_solved = nearly_solved.replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))
    raised = []
    for x in (nearly_solved, *(Enumeration(old.problem) for old in normalized())):
        b, (best, size) = float(x.E(x.R)), _best_constant(x)
        change = _spread(x, b) - _spread(x, 0.0)
        raised.append(change > 1e-12)
        yield same(change, b * (b - 2 * best) * size, "corrected")
        yield same(x.Es(x.rho), 0.0, "corrected")
    yield printed(share_of_cases(raised))
    yield numbers(
        factor=_spread(nearly_solved, 0.9) / _spread(nearly_solved, 0.0),
        best=_best_constant(nearly_solved)[0],
        raised=sum(raised),
        worlds=len(raised),
    )
