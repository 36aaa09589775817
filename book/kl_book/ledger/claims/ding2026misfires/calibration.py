"""Section 4, appendix D: the calibrated coefficients, and what they do not promise (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import (
    calibrated,
    gates,
    k3_slopes,
    largest_deviation,
    mean_drift,
    stale,
    surrogate_slopes,
    token_ratios,
)
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.sums import kl_gradient, terms
from kl_book.ledger.claims.ground.updates import binary, utility_gradient
from kl_book.ledger.claims.ground.worlds import trees
from kl_companion.tabular import Problem
from kl_companion.tabular.groups import group_update

BETA, LARGE = 4.0, 20.0  # of the source's runs
SIZE = 3


def _graded_groups(size: int = SIZE) -> list[tuple[Problem, torch.Tensor]]:
    """Trees with rewards 0 and 1, and all their groups in which rewards differ."""
    found = []
    for problem in (binary(p) for p in trees()):
        index = groups(problem, size)[1]
        rewards = problem.rewards[index]
        found.append((problem, index[(rewards != rewards[:, :1]).any(-1)]))
    return found


def _drift(problem: Problem, index: torch.Tensor) -> torch.Tensor:
    return mean_drift(problem)[index]


@claim("ZCPO-4-scale")
def the_largest_deviation_scales_the_reward_alone() -> Iterator[Found]:
    """Rewards of another unit leave C as it is; the largest reward part is 1, whatever the KL."""
    errors = []
    for problem, index in _graded_groups():
        rewards, drift = problem.rewards[index], _drift(problem, index)
        found = calibrated(rewards, drift, BETA)
        errors.append(apart(calibrated(7 * rewards + 2, drift, BETA), found))
        reward = found + BETA * centered(drift, "mean")
        errors.append(apart(reward.abs().amax(-1), 1.0))
        errors.append(apart(reward * largest_deviation(rewards), centered(rewards, "mean")))
    yield from each_form(worst(errors))


@claim("ZCPO-eq2")
def the_coefficients_are_the_unique_minimizer() -> Iterator[Found]:
    """The stationarity conditions are one linear system of full rank, and C with its multiplier solves it."""
    errors = []
    for size in (2, 3):
        ones = torch.ones(size, 1, dtype=torch.float64)
        system = torch.cat(
            [
                torch.cat([torch.eye(size, dtype=torch.float64), ones], dim=1),
                torch.cat([ones.T, torch.zeros(1, 1, dtype=torch.float64)], dim=1),
            ]
        )
        errors.append(float(size + 1 - torch.linalg.matrix_rank(system)))
        for problem, index in _graded_groups(size):
            rewards, drift = problem.rewards[index], _drift(problem, index)
            near_to = centered(rewards, "mean") / largest_deviation(rewards)
            right = torch.cat([near_to - BETA * drift, torch.zeros_like(drift[:, :1])], dim=1)
            solved = torch.linalg.solve(system, right.T).T
            errors.append(apart(solved[:, :-1], calibrated(rewards, drift, BETA)))
            errors.append(apart(solved[:, -1], -BETA * drift.mean(-1)))
    yield from each_form(worst(errors))


@claim("ZCPO-D-shift")
def a_common_offset_changes_nothing() -> Iterator[Found]:
    """The same number added to the drift of a whole group leaves every coefficient."""
    errors = []
    for problem, index in _graded_groups():
        rewards, drift = problem.rewards[index], _drift(problem, index)
        shift = torch.arange(len(index), dtype=torch.float64)[:, None]
        errors.append(apart(calibrated(rewards, drift + shift / 7, BETA), calibrated(rewards, drift, BETA)))
        alone = drift.clone()
        alone[:, 0] += 1.0
        errors.append(differs(calibrated(rewards, alone, BETA), calibrated(rewards, drift, BETA)))
    yield from each_form(worst(errors))


@claim("ZCPO-D-difference")
def order_of_the_coefficients() -> Iterator[Found]:
    """C_i - C_j is the difference of rewards over s less beta that of the drifts."""
    errors = []
    for problem, index in _graded_groups():
        rewards, drift = problem.rewards[index], _drift(problem, index)
        found = calibrated(rewards, drift, BETA)
        printed = (rewards[:, :1] - rewards) / largest_deviation(rewards) - BETA * (drift[:, :1] - drift)
        errors.append(apart(found[:, :1] - found, printed))
        alike = (rewards == rewards[:, :1]) & (drift < drift[:, :1] - 1e-9)
        errors.append(violation(1e-9 - float((found - found[:, :1])[alike].min())))
    yield from each_form(worst(errors))


@claim("ZCPO-4-sums")
def coefficients_add_up_to_zero() -> Iterator[Found]:
    """The centered drifts and the coefficients of every group."""
    errors = []
    for problem, index in _graded_groups():
        rewards, drift = problem.rewards[index], _drift(problem, index)
        joint = calibrated(rewards, drift, BETA)
        errors += [apart(joint.sum(-1), 0.0), apart((joint - calibrated(rewards, drift, 0.0)).sum(-1), 0.0)]
    yield from each_form(worst(errors))


@claim("ZCPO-4-F2")
def both_branches_cancel_at_a_shared_token() -> Iterator[Found]:
    """At the sampler, at the first token that a group shares: reward and KL part each add up to 0."""
    errors = []
    for problem, index in _graded_groups():
        first = problem.sequences[index][..., 0]
        shared = index[(first == first[:, :1]).all(-1)]
        rewards, drift = problem.rewards[shared], _drift(problem, shared)
        reward = calibrated(rewards, drift, 0.0)
        for branch in (reward, calibrated(rewards, drift, BETA) - reward):
            slopes = surrogate_slopes(problem, shared, branch)[..., 0]
            errors.append(apart(slopes.sum(-1), 0.0))
        independent = k3_slopes(problem)[shared][..., 0].sum(-1)
        by_hand = SIZE * (1 - (-terms(problem).log_ratio[shared][:, 0, 0]).exp())
        errors.append(apart(independent, by_hand))
    yield from each_form(worst(errors))


@claim("ZCPO-4-F1")
def a_closed_gate_closes_both_branches() -> Iterator[Found]:
    """The slope of the surrogate is -C r where the gate of C is open, and 0 where it is closed."""
    errors, closed, moved = [], 0.0, 0.0
    for problem in (p for p in stale() if p.rows.shape[1] > 1):
        index = groups(problem, SIZE)[1]
        joint = calibrated(problem.rewards[index], _drift(problem, index), LARGE)
        ratio, mask = token_ratios(problem)[index], problem.completion_mask[index]
        gate = gates(ratio, joint[..., None])
        slopes = surrogate_slopes(problem, index, joint)
        errors.append(apart(slopes, -joint[..., None] * ratio * gate * mask))
        closed += float(((1 - gate) * mask).sum())
        by_reward = gates(ratio, calibrated(problem.rewards[index], _drift(problem, index), 0.0)[..., None])
        moved += float(((by_reward != gate) * mask).sum())  # the KL has a say in which gates close
    errors += [violation(1.0 - closed), violation(1.0 - moved)]
    yield from each_form(worst(errors))


@claim("ZCPO-4-F3")
def groups_with_equal_rewards_are_skipped() -> Iterator[Found]:
    """All coefficients are 0 there, however the drifts differ; elsewhere the KL acts."""
    errors = []
    for problem in (binary(p) for p in trees()):
        index = groups(problem, SIZE)[1]
        rewards, drift = problem.rewards[index], _drift(problem, index)
        equal = (rewards == rewards[:, :1]).all(-1)
        joint, plain = calibrated(rewards, drift, BETA), calibrated(rewards, drift, 0.0)
        errors += [apart(joint[equal], 0.0), differs(centered(drift, "mean")[equal], 0.0)]
        errors.append(differs(joint[~equal], plain[~equal]))
        errors.append(apart(joint[~equal] - plain[~equal], -BETA * centered(drift, "mean")[~equal]))
    yield from each_form(worst(errors))


@claim("ZCPO-4-remain")
def the_kl_can_remain_where_the_reward_cancels() -> Iterator[Found]:
    """Two of four answers with a common first token and advantages that cancel; their drifts do not."""
    errors, found = [], 0
    for problem in (binary(p) for p in trees() if len(p.sequences) < 10):
        index = groups(problem, 4)[1]
        rewards, drift = problem.rewards[index], _drift(problem, index)
        reward = calibrated(rewards, drift, 0.0)
        kl = calibrated(rewards, drift, BETA) - reward
        first = (problem.sequences[index][..., 0] == 1).double()
        taken = (first.sum(-1) == 2) & ((reward * first).sum(-1).abs() < 1e-12)
        taken &= (kl * first).sum(-1).abs() > 1e-3
        found += int(taken.sum())
        if not taken.any():
            continue
        chosen, here = index[taken], first[taken]
        by_reward, by_kl = (surrogate_slopes(problem, chosen, x[taken])[..., 0] * here for x in (reward, kl))
        errors += [apart(by_reward.sum(-1), 0.0), violation(1e-6 - float(by_kl.sum(-1).abs().min()))]
    errors.append(violation(1.0 - found))
    yield from each_form(worst(errors))


def _update(problem: Problem, beta: float) -> torch.Tensor:
    """Expected update of groups of three, [rows, vocab]."""
    drift = mean_drift(problem)
    return group_update(lambda i: calibrated(problem.rewards[i], drift[i], beta), problem, SIZE)


@claim("ZCPO-4-noguarantee")
def a_step_may_lower_the_reward_or_raise_the_kl() -> Iterator[Found]:
    """The expected update itself: with a large beta the reward falls, with a small one the KL rises."""
    falls, rises = [], []
    for problem in (binary(p) for p in trees()):
        falls.append(float((_update(problem, LARGE) * utility_gradient(problem)).sum()))
        rises.append(float((_update(problem, BETA / 100) * kl_gradient(problem)).sum()))
    yield from each_form(
        worst([less(min(falls), 0.0), less(0.0, max(rises))]),
        SIZE=SIZE,
        LARGE=LARGE,
        sum=sum(x < 0 for x in falls),
        number=BETA / 100,
        sum_2=sum(x > 0 for x in rises),
    )


@claim("ZCPO-4-reversal")
def a_good_answer_can_have_a_negative_coefficient() -> Iterator[Found]:
    """C_i < 0 although A_i > 0 exactly where beta K_i > A_i / s."""
    errors, reversed_ones = [], 0
    for problem, index in _graded_groups():
        rewards, drift = problem.rewards[index], _drift(problem, index)
        good = centered(rewards, "mean") > 1e-12
        joint = calibrated(rewards, drift, LARGE)
        pull = LARGE * centered(drift, "mean")
        more = pull > centered(rewards, "mean") / largest_deviation(rewards)
        errors.append(float(((joint < 0) != more)[good].double().mean()))
        reversed_ones += int((joint < 0)[good].sum())
    errors.append(violation(1.0 - reversed_ones))
    yield from each_form(worst(errors))
