"""Section 3.1: minimizing the KL, and KL-regularized reward (tang2025pitfalls).

The settings are those of appendix C (100 arms, 100 bandits, step size 1); beta and the horizon, which the
source does not give, are swept. "Converged" is the last policy after `HORIZON` updates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, inside, less, numbers, printed, same
from kl_book.ledger.claims.ground.errors import degree, worst
from kl_book.ledger.claims.ground.learning import lower_mean
from kl_book.ledger.claims.ground.sums import exact, forward_kl, reverse_kl
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import arms, bandits
from kl_book.ledger.claims.standard import DEGREE
from kl_companion.tabular import Problem, learn
from kl_companion.theory.optima import optimal_policy

SIZES = (4, 16, 64)
HORIZON = 1000
BANDITS = 50
VANILLA, REDUCED = "vanilla", "variance-reduced (incorrect)"
WAYS: dict[str, dict[str, Any]] = {
    VANILLA: {"estimator": "k1", "placement": "reward"},
    "leave-one-out": {"estimator": "k1", "placement": "reward", "baseline": "leave_one_out"},
    "vanilla (incorrect)": {"estimator": "k1"},
    REDUCED: {"estimator": "k3"},
}


def _reference(problem: Problem) -> torch.Tensor:
    return problem.ref_logits.squeeze(-2).log_softmax(-1)


@cache
def kl_path(way: str, scale: float = 1.0, n: int | None = 4) -> torch.Tensor:
    """KL to the reference along 500 updates, [501, worlds]; ``way`` is one of `WAYS`; n None is exact."""
    problem = arms(100 if scale == 1.0 else 30, 100, scale)
    arguments = WAYS[way] if n else {"estimator": "k2" if way == VANILLA else WAYS[way]["estimator"]}
    path = learn(problem, n=n, steps=500, record=1, **arguments)
    return reverse_kl(path.logp, _reference(problem))


@claim("TM-fig3")
def minimizing_the_kl_by_samples() -> Iterator[Found]:
    """With 4 samples the incorrect vanilla estimate raises the KL, the three others lower it."""
    start, drift = kl_path(VANILLA)[0], kl_path("vanilla (incorrect)")
    for way in (VANILLA, "leave-one-out", REDUCED):
        yield printed(lower_mean(kl_path(way)[-1], start))
    yield printed(lower_mean(start, drift[50]))
    yield printed(lower_mean(drift[50], drift[-1]))
    still = kl_path("vanilla (incorrect)", n=None)  # without noise it stays: what drifts is the noise
    yield same(still[-1], still[0])


@claim("TM-fig3-slower")
def reduced_lowers_the_kl_more_slowly() -> Iterator[Found]:
    """Slower in the first updates only; far away it does not even lower the KL with few samples."""
    right, wrong = (kl_path(way, n=None) for way in (VANILLA, REDUCED))
    here, there = kl_path(VANILLA), kl_path(REDUCED)
    far, away = kl_path(VANILLA, 3.0), kl_path(REDUCED, 3.0)
    later = (100, 250, 500)
    certain = [lower_mean(there[i], here[i]) for i in later]  # by three standard errors
    slower = (there.mean(-1) < here.mean(-1))[1:].double().mean()
    yield printed(float(slower) if max(*certain, lower_mean(far[-1], away[-1])) == 0 else torch.inf)
    for i, j in itertools.pairwise((0, 1, 5, 10)):
        yield inside(lower_mean(right[j], wrong[j]))
        yield inside(lower_mean(wrong[j], wrong[i]))
    yield numbers(slow=int((wrong.mean(-1) > right.mean(-1))[1:].double().cumprod(0).sum()))
    yield numbers(early=later[0], early_reduced=there[100].mean(), early_vanilla=here[100].mean())
    yield numbers(end_reduced=there[-1].mean(), end_vanilla=here[-1].mean(), bandits=here.shape[1])
    yield numbers(updates=500 - round(500 * float(slower)))
    yield numbers(last=int((there.mean(-1) >= here.mean(-1)).nonzero().max()))
    yield numbers(far_reduced=away[-1].mean(), far_start=away[0].mean(), far_vanilla=far[-1].mean())


BETAS = (0.1, 0.5, 1.0, 2.0)


def _objective(
    logp: torch.Tensor, ref_logp: torch.Tensor, rewards: torch.Tensor, beta: float
) -> torch.Tensor:
    return (logp.exp() * rewards).sum(-1) - beta * reverse_kl(logp, ref_logp)


def _best(w: Enumeration, beta: float) -> torch.Tensor:
    """Log-probs of ref exp(r / beta), [vocab]."""
    return (_reference(w.problem) + w.R / beta).log_softmax(-1)


@claim("TM-3.1-objective", over=each(bandits))
def optimum_of_the_regularized_reward(w: Enumeration) -> Iterator[Found]:
    """At ref exp(r / beta) the gradient vanishes, and no other policy does better."""
    for beta in BETAS:
        best = _best(w, beta)
        at = w.problem._replace(logits=best[None])
        value, gradient = exact(lambda a, b, c=beta: _objective(a, b, w.R, c), at)  # type: ignore[misc]
        yield same(gradient, 0.0)
        rivals = [w.problem.logits, w.problem.ref_logits, best + torch.eye(len(w.R)), 2 * best[None]]
        logp = torch.cat(rivals).log_softmax(-1)
        yield at_most(_objective(logp, _reference(w.problem), w.R, beta), value + 1e-12)


def _spread(w: Enumeration, beta: float, factor: float) -> float:
    """Largest difference, between policies, of the objective plus a factor times KL(pi || pi*)."""
    tries = torch.cat([w.problem.logits, w.problem.ref_logits, 3 * torch.eye(len(w.R)).double()])
    logp = tries.log_softmax(-1)
    kl = reverse_kl(logp, _best(w, beta))
    total = _objective(logp, _reference(w.problem), w.R, beta) + factor * kl
    return float(total.max() - total.min())


@claim("TM-3.1-constant")
def objective_is_a_constant_away_from_minus_the_kl() -> Iterator[Found]:
    """Objective plus beta KL(pi || pi*) does not depend on the policy; without beta it does."""
    for w, beta in itertools.product(each(bandits)(), BETAS):
        yield same(_spread(w, beta, 1.0), 0.0)
        yield same(_spread(w, beta, beta), 0.0, "corrected")
        if beta == 1.0:
            yield same(_spread(w, beta, 1.0), 0.0, "inside")
    yield numbers(spread=max(_spread(w, 2.0, 1.0) for w in each(bandits)()))
    yield numbers(nats=0.01 / BETAS[0], beta=BETAS[0], more=0.01 / 0.001)


@claim("TM-pi-rev", over=each(bandits))
def optimum_with_the_other_kl(w: Enumeration) -> Iterator[Found]:
    """beta ref / (lambda - r), with lambda from bisection above the largest reward, is the maximizer."""
    r, ref_logp = w.R, _reference(w.problem)
    for beta in BETAS:
        low, high = float(r.max()), float(r.max()) + beta
        for _ in range(200):
            middle = (low + high) / 2
            above = float((beta * ref_logp.exp() / (middle - r)).sum()) > 1
            low, high = (middle, high) if above else (low, middle)
        policy = beta * ref_logp.exp() / (high - r)
        at = w.problem._replace(logits=policy.log()[None])
        yield same(policy.sum(), 1.0)
        yield same(exact(lambda a, b, c=beta: (a.exp() * r).sum() - c * forward_kl(a, b), at)[1], 0.0)  # type: ignore[misc]
        yield same(policy, optimal_policy(r, ref_logp, "forward_kl", beta).logp.exp())
        yield less(0.0, float(policy.min()), by=1e-12)


def _optima(problem: Problem, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the optimum of reverse KL, and of that of forward KL."""
    r, ref_logp = problem.rewards, _reference(problem)
    kl, other = (optimal_policy(r, ref_logp, name, beta).logp for name in ("reverse_kl", "forward_kl"))
    return kl, other


@cache
def converged(way: str, beta: float, n: int) -> dict[str, torch.Tensor]:
    """KL of the last policy to both optima, and of the reference to the right one; [worlds] each."""
    problem = arms(BANDITS)
    start, ref_logp = problem._replace(logits=problem.ref_logits), _reference(problem)
    path = learn(start, n=n, steps=HORIZON, record=HORIZON, beta=beta, rewards=True, seed=1, **WAYS[way])
    best, other = _optima(problem, beta)
    last = path.logp[-1]
    return {
        "best": reverse_kl(last, best),
        "other": reverse_kl(last, other),
        "start": reverse_kl(ref_logp, best),
    }


@cache
def normalized_limit(beta: float) -> float:
    """Mean KL(pi_rev* || pi*) over mean KL(pi_ref || pi*): where the exact incorrect gradient ends."""
    best, other = _optima(arms(), beta)
    return float(reverse_kl(other, best).mean() / reverse_kl(_reference(arms()), best).mean())


def _does_not_improve(beta: float, n: int) -> float:
    """Error of "the two incorrect estimates end no closer to the optimum than they began"."""
    ends = [converged(way, beta, n) for way in WAYS if "incorrect" in way]
    return worst(lower_mean(end["start"], end["best"]) for end in ends)


def _improvement() -> Iterator[float]:
    """Errors of what figure 4 shows where the incorrect estimates do not improve."""
    yield from (_does_not_improve(beta, 16) for beta in (1.0, 1.5))
    for beta in (1.0, 3.0):
        ends = [converged(VANILLA, beta, n) for n in SIZES]
        yield from (lower_mean(end["best"], end["start"]) for end in ends)
        yield from (lower_mean(b["best"], a["best"]) for a, b in itertools.pairwise(ends))


@claim("TM-fig4")
def regularized_reward_by_samples() -> Iterator[Found]:
    """Vanilla improves, to a level that falls with n; the incorrect ones do or do not, with beta."""
    tried = (0.3, 1.0, 1.5, 3.0)
    yield printed(sum(_does_not_improve(beta, 16) > 0 for beta in tried) / len(tried))
    for error in _improvement():
        yield printed(error)
        yield inside(error)
    worse = [b for b in (torch.arange(2, 40) / 10).tolist() if normalized_limit(b) > 1]
    weak, strong = (converged(REDUCED, beta, 16) for beta in (0.3, 3.0))
    yield numbers(lowest=min(worse), highest=max(worse), bandits=BANDITS)
    yield numbers(weak=weak["best"].mean() / weak["start"].mean())
    yield numbers(strong=strong["best"].mean() / strong["start"].mean())


@claim("TM-fig5")
def converged_kl_against_the_sample_size() -> Iterator[Found]:
    """Vanilla gains from every fourfold n; the variance-reduced estimate levels off, and higher."""
    for beta in (1.0, 2.0, 3.0):
        right, wrong = ([converged(way, beta, n)["best"] for n in SIZES] for way in (VANILLA, REDUCED))
        for a, b in itertools.pairwise(right):
            yield printed(lower_mean(b, a))
            yield less(float(b.mean() / a.mean()), 1 - DEGREE)
        for a, b in zip(right, wrong, strict=True):
            yield printed(lower_mean(a, b))
        yield printed(degree(float(wrong[2].mean() / wrong[1].mean()) - 1))  # it has leveled off at n = 16
    yield numbers(bandits=BANDITS, levels_1=_levels(1.0, "best"), levels_3=_levels(3.0, "best"))


def _levels(beta: float, optimum: str) -> list[float]:
    """Mean KL to an optimum at which the variance-reduced estimate ends, for each of `SIZES`."""
    return [float(converged(REDUCED, beta, n)[optimum].mean()) for n in SIZES]


@claim("TM-fig6")
def reduced_converges_to_another_optimum() -> Iterator[Found]:
    """The KL to pi_rev* falls with n, that to pi* levels off; the exact gradient ends at pi_rev*."""
    for beta in (1.0, 2.0, 3.0):
        ends = [converged(REDUCED, beta, n) for n in SIZES]
        yield printed(lower_mean(ends[-1]["other"], ends[-1]["best"]))
        yield printed(degree(float(ends[2]["best"].mean() / ends[1]["best"].mean()) - 1))
        if beta > 1:  # at 1 the runs have not ended, and differ too much for three standard errors
            for a, b in itertools.pairwise(ends):
                yield printed(lower_mean(b["other"], a["other"]))
    problem = arms(10, 6)
    start = problem._replace(logits=problem.ref_logits)
    end = learn(start, "k3", n=None, steps=2000, record=2000, rewards=True).logp[-1]
    best, other = _optima(problem, 1.0)
    yield same(reverse_kl(end, other), 0.0)
    yield differs(best, other)
    yield numbers(other_1=_levels(1.0, "other"), best_1=_levels(1.0, "best"), horizon=HORIZON)
    yield numbers(other_3=_levels(3.0, "other"), best_3=_levels(3.0, "best"))
