"""Section 3, F7, sections 4 and 5, appendix D: calibrated coefficients and their noise (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, rises, same
from kl_book.ledger.claims.ground import calibration as calibrating
from kl_book.ledger.claims.ground.calibration import AnswerGroups, every_group, mean_drift, mixed_groups
from kl_book.ledger.claims.ground.errors import turned
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import kl_gradient, log_ratio, variance
from kl_book.ledger.claims.ground.updates import binary, graded_trees, utility_gradient
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, trees
from kl_companion.tabular import Problem
from kl_companion.tabular.groups import group_update

BETA, LARGE, SMALL = 4.0, 20.0, 0.04  # the first two of the source's runs
SIZE = 3


def _update(problem: Problem, drift: torch.Tensor, beta: float) -> torch.Tensor:
    """Expected update of all groups, from the drift of every sequence [count], [rows, vocab]."""
    return group_update(lambda i: calibrating.calibrated(problem.rewards[i], drift[i], beta), problem, SIZE)


@claim("ZCPO-4-scale", over=mixed_groups)
def the_largest_deviation_scales_the_reward_alone(g: AnswerGroups) -> Iterator[Found]:
    """Rewards of another unit leave C as it is; the largest reward part is 1, whatever the KL."""
    yield same(calibrating.calibrated(7 * g.rewards + 2, g.drift, BETA), g.joint(BETA))
    reward = g.joint(BETA) + BETA * g.pull
    yield same(reward.abs().amax(-1), 1.0)
    yield same(reward * calibrating.largest_deviation(g.rewards), g.left)


@claim("ZCPO-eq2", over=lambda: [*mixed_groups(2), *mixed_groups(3)])
def the_coefficients_are_the_unique_minimizer(g: AnswerGroups) -> Iterator[Found]:
    """The stationarity conditions are one linear system of full rank, and C with its multiplier solves it."""
    size = g.answers.shape[1]
    system = torch.eye(size + 1, dtype=torch.float64)
    system[:, -1] = system[-1] = 1.0
    system[-1, -1] = 0.0
    yield same(torch.linalg.matrix_rank(system), size + 1)
    near_to = g.left / calibrating.largest_deviation(g.rewards)
    right = torch.cat([near_to - BETA * g.drift, torch.zeros_like(g.drift[:, :1])], dim=1)
    solved = torch.linalg.solve(system, right.T).T
    yield same(solved[:, :-1], g.joint(BETA))
    yield same(solved[:, -1], -BETA * g.drift.mean(-1))


@claim("ZCPO-D-shift", over=mixed_groups)
def a_common_offset_changes_nothing(g: AnswerGroups) -> Iterator[Found]:
    """The same number added to the drift of a whole group leaves every coefficient."""
    shift = torch.arange(len(g.answers), dtype=torch.float64)[:, None]
    yield same(calibrating.calibrated(g.rewards, g.drift + shift / 7, BETA), g.joint(BETA))
    of_the_first = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    yield differs(calibrating.calibrated(g.rewards, g.drift + of_the_first, BETA), g.joint(BETA))


@claim("ZCPO-D-difference", over=mixed_groups)
def order_of_the_coefficients(g: AnswerGroups) -> Iterator[Found]:
    """C_i - C_j is the difference of rewards over s less beta that of the drifts."""
    rewards, drift, joint = (x[:, :1] - x for x in (g.rewards, g.drift, g.joint(BETA)))
    yield same(joint, rewards / calibrating.largest_deviation(g.rewards) - BETA * drift)
    alike = (rewards == 0) & (drift > 1e-9)
    yield less(0.0, float(-joint[alike].max()), by=1e-9)


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
    for g in (every_group(p, SIZE) for p in calibrating.stale() if p.rows.shape[1] > 1):
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
    joint, plain, equal = g.joint(BETA), g.joint(0.0), g.equal
    yield same(joint[equal], 0.0)
    yield differs(g.pull[equal], 0.0)
    yield differs(joint[~equal], plain[~equal])
    yield same(joint[~equal] - plain[~equal], -BETA * g.pull[~equal])


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
    reward, kl = [], []
    for problem in graded_trees():
        drift = mean_drift(problem)
        reward.append(float((_update(problem, drift, LARGE) * utility_gradient(problem)).sum()))
        kl.append(float((_update(problem, drift, SMALL) * kl_gradient(problem)).sum()))
    yield less(min(reward), 0.0)
    yield less(0.0, max(kl))
    yield numbers(size=SIZE, large=LARGE, falls=sum(x < 0 for x in reward))
    yield numbers(small=SMALL, rises=sum(x > 0 for x in kl))


@claim("ZCPO-4-reversal")
def a_good_answer_can_have_a_negative_coefficient() -> Iterator[Found]:
    """C_i < 0 although A_i > 0 exactly where beta K_i > A_i / s."""
    reversals = 0
    for g in mixed_groups():
        negative, good = g.joint(LARGE) < 0, g.left > 1e-12
        more = LARGE * g.pull > g.left / calibrating.largest_deviation(g.rewards)
        yield printed(float((negative != more)[good].double().mean()))
        reversals += int(negative[good].sum())
    yield less(0.0, reversals, by=1.0)


# noise of the sampled log-ratio in a coefficient


@claim("ZCPO-F7", over=each(bandits))
def centering_leaves_the_noise(w: Enumeration) -> Iterator[Found]:
    """Var(Delta_i - mean Delta) = (1 - 1/G) Var(Delta), above 0, and all answers have one exact KL."""
    for n in (2, 3):
        p, index = groups(w.problem, n)
        noise = variance(p, centered(w.l[index], "mean")[:, 0])
        yield same(noise, (1 - 1 / n) * w.var(w.l))
        yield less(0.0, noise)
    yield same(w.E(w.l), w.kl)


@claim("ZCPO-F7-same")
def the_exact_kl_has_no_noise_of_its_token() -> Iterator[Found]:
    """It is one number per prefix; for answers of one token the centered coefficients are all 0."""
    for w in each(bandits)():
        g = every_group(w.problem, 2)
        yield same(mean_drift(w.problem), w.kl)
        yield same(g.pull, 0.0)
        yield differs(centered(w.l[g.answers], "mean"), 0.0)
    for w in each(trees)():
        along, by_token = token_kls(w.problem, w.problem.logits), w.t.log_ratio
        for row in range(len(w.problem.logits)):
            here = (w.problem.rows == row) & (w.problem.completion_mask > 0)
            yield same(along[here], along[here][0])
            yield differs(by_token[here], by_token[here][0])


def _added(problem: Problem, drift: torch.Tensor) -> torch.Tensor:
    """Return what a KL in the coefficients adds to the expected update, [rows, vocab]."""
    return _update(problem, drift, BETA) - _update(problem, drift, 0.0)


@claim("ZCPO-4-notunbiased")
def exact_and_sampled_coefficients_have_other_updates() -> Iterator[Found]:
    """In a bandit the exact one adds nothing; in trees neither has the gradient of the sequence KL."""
    for problem in map(binary, bandits()[3:]):
        yield same(_added(problem, mean_drift(problem)), 0.0)
        yield differs(_added(problem, log_ratio(problem)), 0.0)
    turns = []
    for problem in graded_trees():
        drifts = mean_drift(problem), calibrating.mean_log_ratio(problem)
        by_exact, by_sample = (_added(problem, drift) for drift in drifts)
        yield differs(by_exact, by_sample)
        w, total = Enumeration(problem), -BETA * kl_gradient(problem)
        yield same(-BETA * w.Es(w.l), total)
        turns += [turned(by_exact, total), turned(by_sample, total)]
    yield less(0.0, min(turns))
    yield numbers(least=min(turns), most=max(turns))


@claim("ZCPO-5-F7scale", over=each(bandits))
def the_spread_of_k1_near_the_reference(w: Enumeration) -> Iterator[Found]:
    """Var(k1) = 2 KL to leading order: the ratio tends to 1 as the policy nears the reference."""
    nearer = [w.near(bound) for bound in (0.00125, 0.005, 0.02)]
    gaps = [abs(x.var(x.l) / (2 * x.kl) - 1) for x in nearer]
    yield rises(gaps, by=0.0)
    yield less(gaps[0], 1e-3, by=0.0)


@claim("ZCPO-5-cRestimate")
def the_sum_of_norms_from_a_sample() -> Iterator[Found]:
    """The number of tokens times the mean norm of some of them has the right mean."""
    g = every_group(calibrating.stale()[-2], 3)
    strongest = int(g.advantage.abs().sum(-1).argmax())
    g = g.where(torch.tensor([strongest]))
    each_token = g.contributions(g.slopes(g.advantage))[0].flatten(0, 1)
    norms = each_token.flatten(1).norm(dim=-1)
    summed, total = float(norms.sum()), float(each_token.sum(0).norm())
    pairs = [len(norms) * float(norms[list(c)].mean()) for c in combinations(range(len(norms)), 2)]
    yield same(sum(pairs) / len(pairs), summed)
    rates = [1 - total / x for x in pairs if x > 0]
    yield numbers(rate=1 - total / summed, estimate=sum(rates) / len(rates))
