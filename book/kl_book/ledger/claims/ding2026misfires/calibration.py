"""Section 4, appendix D: the calibrated coefficients, and what they do not promise (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground.calibration import (
    AnswerGroups,
    calibrated,
    calibrated_update,
    every_group,
    largest_deviation,
    mean_drift,
    mixed_groups,
    stale,
)
from kl_book.ledger.claims.ground.groups import centered
from kl_book.ledger.claims.ground.sums import kl_gradient
from kl_book.ledger.claims.ground.updates import graded_trees, utility_gradient
from kl_companion.tabular import Problem

BETA, LARGE = 4.0, 20.0  # of the source's runs
SIZE = 3


@claim("ZCPO-4-scale", over=mixed_groups)
def the_largest_deviation_scales_the_reward_alone(g: AnswerGroups) -> Iterator[Found]:
    """Rewards of another unit leave C as it is; the largest reward part is 1, whatever the KL."""
    yield same(calibrated(7 * g.rewards + 2, g.drift, BETA), g.joint(BETA))
    reward = g.joint(BETA) + BETA * centered(g.drift, "mean")
    yield same(reward.abs().amax(-1), 1.0)
    yield same(reward * largest_deviation(g.rewards), centered(g.rewards, "mean"))


@claim("ZCPO-eq2", over=lambda: [*mixed_groups(2), *mixed_groups(3)])
def the_coefficients_are_the_unique_minimizer(g: AnswerGroups) -> Iterator[Found]:
    """The stationarity conditions are one linear system of full rank, and C with its multiplier solves it."""
    size = g.answers.shape[1]
    system = torch.eye(size + 1, dtype=torch.float64)
    system[:, -1] = system[-1] = 1.0
    system[-1, -1] = 0.0
    yield same(torch.linalg.matrix_rank(system), size + 1)
    near_to = centered(g.rewards, "mean") / largest_deviation(g.rewards)
    right = torch.cat([near_to - BETA * g.drift, torch.zeros_like(g.drift[:, :1])], dim=1)
    solved = torch.linalg.solve(system, right.T).T
    yield same(solved[:, :-1], g.joint(BETA))
    yield same(solved[:, -1], -BETA * g.drift.mean(-1))


@claim("ZCPO-D-shift", over=mixed_groups)
def a_common_offset_changes_nothing(g: AnswerGroups) -> Iterator[Found]:
    """The same number added to the drift of a whole group leaves every coefficient."""
    shift = torch.arange(len(g.answers), dtype=torch.float64)[:, None]
    yield same(calibrated(g.rewards, g.drift + shift / 7, BETA), g.joint(BETA))
    of_the_first = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    yield differs(calibrated(g.rewards, g.drift + of_the_first, BETA), g.joint(BETA))


@claim("ZCPO-D-difference", over=mixed_groups)
def order_of_the_coefficients(g: AnswerGroups) -> Iterator[Found]:
    """C_i - C_j is the difference of rewards over s less beta that of the drifts."""
    rewards, drift, joint = g.rewards, g.drift, g.joint(BETA)
    by_hand = (rewards[:, :1] - rewards) / largest_deviation(rewards) - BETA * (drift[:, :1] - drift)
    yield same(joint[:, :1] - joint, by_hand)
    alike = (rewards == rewards[:, :1]) & (drift < drift[:, :1] - 1e-9)
    yield less(0.0, float((joint - joint[:, :1])[alike].min()), by=1e-9)


@claim("ZCPO-4-sums", over=mixed_groups)
def coefficients_add_up_to_zero(g: AnswerGroups) -> Iterator[Found]:
    """The centered drifts and the coefficients of every group."""
    yield same(g.joint(BETA).sum(-1), 0.0)
    yield same((g.joint(BETA) - g.joint(0.0)).sum(-1), 0.0)


@claim("ZCPO-4-F2", over=mixed_groups)
def both_branches_cancel_at_a_shared_token(g: AnswerGroups) -> Iterator[Found]:
    """At the sampler, at the first token that a group shares: reward and KL part each add up to 0."""
    g = g.where(g.one_start)
    for branch in (g.joint(0.0), g.joint(BETA) - g.joint(0.0)):
        yield same(g.slopes(branch)[..., 0].sum(-1), 0.0)
    independent = g.k3[..., 0].sum(-1)
    yield same(independent, SIZE * (1 - (-g.log_ratio[:, 0, 0]).exp()))


@claim("ZCPO-4-F1")
def a_closed_gate_closes_both_branches() -> Iterator[Found]:
    """The slope of the surrogate is -C r where the gate of C is open, and 0 where it is closed."""
    closed, moved = 0.0, 0.0
    for g in (every_group(p, SIZE) for p in stale() if p.rows.shape[1] > 1):
        joint = g.joint(LARGE)
        gate, by_reward = g.gates(joint), g.gates(g.joint(0.0))
        yield same(g.slopes(joint), -joint[..., None] * g.ratio * gate * g.mask)
        closed += float(((1 - gate) * g.mask).sum())
        moved += float(((by_reward != gate) * g.mask).sum())  # the KL has a say in which gates close
    yield less(0.0, closed, by=1.0)
    yield less(0.0, moved, by=1.0)


@claim("ZCPO-4-F3", over=graded_trees)
def groups_with_equal_rewards_are_skipped(problem: Problem) -> Iterator[Found]:
    """All coefficients are 0 there, however the drifts differ; elsewhere the KL acts."""
    g = every_group(problem, SIZE)
    joint, plain, pull, equal = g.joint(BETA), g.joint(0.0), centered(g.drift, "mean"), g.equal
    yield same(joint[equal], 0.0)
    yield differs(pull[equal], 0.0)
    yield differs(joint[~equal], plain[~equal])
    yield same(joint[~equal] - plain[~equal], -BETA * pull[~equal])


@claim("ZCPO-4-remain")
def the_kl_can_remain_where_the_reward_cancels() -> Iterator[Found]:
    """Two of four answers with a common first token and advantages that cancel; their drifts do not."""
    cases = 0
    for g in (every_group(p, 4) for p in graded_trees() if len(p.sequences) < 10):
        here = (g.problem.sequences[g.answers][..., 0] == 1).double()
        reward, kl = g.joint(0.0), g.joint(BETA) - g.joint(0.0)
        cancels = (here.sum(-1) == 2) & ((reward * here).sum(-1).abs() < 1e-12)
        cancels &= (kl * here).sum(-1).abs() > 1e-3
        cases += int(cancels.sum())
        if cancels.any():
            some = g.where(cancels)
            by_reward, by_kl = (some.slopes(x[cancels])[..., 0] * here[cancels] for x in (reward, kl))
            yield same(by_reward.sum(-1), 0.0)
            yield less(0.0, float(by_kl.sum(-1).abs().min()))
    yield less(0.0, cases, by=1.0)


@claim("ZCPO-4-noguarantee")
def a_step_may_lower_the_reward_or_raise_the_kl() -> Iterator[Found]:
    """The expected update itself: with a large beta the reward falls, with a small one the KL rises."""
    small, problems = BETA / 100, graded_trees()
    reward = [
        float((calibrated_update(p, mean_drift(p), LARGE) * utility_gradient(p)).sum()) for p in problems
    ]
    kl = [float((calibrated_update(p, mean_drift(p), small) * kl_gradient(p)).sum()) for p in problems]
    yield less(min(reward), 0.0)
    yield less(0.0, max(kl))
    yield numbers(size=SIZE, large=LARGE, falls=sum(x < 0 for x in reward))
    yield numbers(small=small, rises=sum(x > 0 for x in kl))


@claim("ZCPO-4-reversal")
def a_good_answer_can_have_a_negative_coefficient() -> Iterator[Found]:
    """C_i < 0 although A_i > 0 exactly where beta K_i > A_i / s."""
    reversals = 0
    for g in mixed_groups():
        centered_rewards, joint = centered(g.rewards, "mean"), g.joint(LARGE)
        good = centered_rewards > 1e-12
        more = LARGE * centered(g.drift, "mean") > centered_rewards / largest_deviation(g.rewards)
        yield printed(float(((joint < 0) != more)[good].double().mean()))
        reversals += int((joint < 0)[good].sum())
    yield less(0.0, reversals, by=1.0)
