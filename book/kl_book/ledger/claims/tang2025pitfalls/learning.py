"""Section 3.1: minimizing the KL, and KL-regularized reward (tang2025pitfalls).

The settings are those of appendix C (100 arms, 100 bandits, step size 1); beta and the horizon, which the
source does not give, are swept. "Converged" is the last policy after `HORIZON` updates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, degree, differs, less, violation, worst
from kl_book.ledger.claims.ground.learning import lower_mean
from kl_book.ledger.claims.ground.sums import exact, forward_kl, reverse_kl
from kl_book.ledger.claims.ground.worlds import arms, bandits
from kl_book.ledger.claims.standard import DEGREE
from kl_companion.tabular import Problem, learn
from kl_companion.theory.optima import optimal_policy

SIZES = (4, 16, 64)
HORIZON = 1000
BANDITS = 50
WAYS: dict[str, dict[str, Any]] = {
    "vanilla": {"estimator": "k1", "placement": "reward"},
    "leave-one-out": {"estimator": "k1", "placement": "reward", "baseline": "leave_one_out"},
    "vanilla (incorrect)": {"estimator": "k1"},
    "variance-reduced (incorrect)": {"estimator": "k3"},
}


def _reference(problem: Problem) -> torch.Tensor:
    return problem.ref_logits.squeeze(-2).log_softmax(-1)


@cache
def kl_path(way: str, scale: float = 1.0, n: int | None = 4) -> torch.Tensor:
    """KL to the reference along 500 updates, [501, worlds]; ``way`` is one of `WAYS`; n None is exact."""
    problem = arms(100 if scale == 1.0 else 30, 100, scale)
    arguments = WAYS[way] if n else {"estimator": "k2" if way == "vanilla" else WAYS[way]["estimator"]}
    path = learn(problem, n=n, steps=500, record=1, **arguments)
    return reverse_kl(path.logp, _reference(problem))


@claim("TM-fig3")
def minimizing_the_kl_by_samples() -> Iterator[Found]:
    """With 4 samples the incorrect vanilla estimate raises the KL, the three others lower it."""
    start = kl_path("vanilla")[0]
    errors = [lower_mean(kl_path(way)[-1], start) for way in WAYS if way != "vanilla (incorrect)"]
    drift = kl_path("vanilla (incorrect)")
    errors += [lower_mean(start, drift[50]), lower_mean(drift[50], drift[-1])]
    still = kl_path("vanilla (incorrect)", n=None)  # without noise it stays: what drifts is the noise
    errors.append(apart(still[-1], still[0]))
    yield from each_form(worst(errors))


@claim("TM-fig3-slower")
def reduced_lowers_the_kl_more_slowly() -> Iterator[Found]:
    """Slower in the first updates only; far away it does not even lower the KL with few samples."""
    two = ("vanilla", "variance-reduced (incorrect)")
    expected, here, far = (
        [kl_path(w, n=None) for w in two],
        [kl_path(w) for w in two],
        [kl_path(w, 3.0) for w in two],
    )
    slow = int((expected[1].mean(-1) > expected[0].mean(-1))[1:].double().cumprod(0).sum())
    later = (100, 250, 500)
    against = (here[1].mean(-1) < here[0].mean(-1))[1:].double().mean()
    last = int((here[1].mean(-1) >= here[0].mean(-1)).nonzero().max())
    certain = [lower_mean(here[1][i], here[0][i]) for i in later]  # by three standard errors
    certain.append(lower_mean(far[0][-1], far[1][-1]))
    yield from each_form(
        float(against) if worst(certain) == 0 else math.inf,
        inside=worst(
            e
            for i, j in itertools.pairwise((0, 1, 5, 10))
            for e in (
                lower_mean(expected[0][j], expected[1][j]),
                lower_mean(expected[1][j], expected[1][i]),
            )
        ),
        slow=slow,
        later_0=later[0],
        float=float(here[1][100].mean()),
        float_2=float(here[0][100].mean()),
        float_3=float(here[1][-1].mean()),
        float_4=float(here[0][-1].mean()),
        number=here[0].shape[1],
        number_2=500 - round(500 * float(against)),
        last=last,
        float_5=float(far[1][-1].mean()),
        float_6=float(far[1][0].mean()),
        float_7=float(far[0][-1].mean()),
    )


BETAS = (0.1, 0.5, 1.0, 2.0)


def _objective(
    logp: torch.Tensor, ref_logp: torch.Tensor, rewards: torch.Tensor, beta: float
) -> torch.Tensor:
    return (logp.exp() * rewards).sum(-1) - beta * reverse_kl(logp, ref_logp)


@claim("TM-3.1-objective")
def optimum_of_the_regularized_reward() -> Iterator[Found]:
    """At ref exp(r / beta) the gradient vanishes, and no other policy does better."""
    errors = []
    for problem in bandits():
        r, ref_logp = problem.rewards, _reference(problem)
        for beta in BETAS:
            best = (ref_logp + r / beta).log_softmax(-1)
            at = problem._replace(logits=best[None])
            found, gradient = exact(lambda a, b, g=r, c=beta: _objective(a, b, g, c), at)  # type: ignore[misc]
            errors.append(apart(gradient, 0.0))
            others = torch.cat([problem.logits, problem.ref_logits, best + torch.eye(len(r)), 2 * best[None]])
            rivals = _objective(others.log_softmax(-1), ref_logp, r, beta)
            errors.append(violation(float(rivals.max()) - found - 1e-12))
    yield from each_form(worst(errors))


@claim("TM-3.1-constant")
def objective_is_a_constant_away_from_minus_the_kl() -> Iterator[Found]:
    """Objective plus beta KL(pi || pi*) does not depend on the policy; without beta it does."""
    spread: dict[tuple[float, bool], float] = {}
    for beta in BETAS:
        for scaled in (False, True):
            errors = []
            for problem in bandits():
                ref_logp, r = _reference(problem), problem.rewards
                best = (ref_logp + r / beta).log_softmax(-1)
                tries = torch.cat([problem.logits, problem.ref_logits, 3 * torch.eye(len(r)).double()])
                logp = tries.log_softmax(-1)
                total = _objective(logp, ref_logp, r, beta)
                total = total + (beta if scaled else 1.0) * reverse_kl(logp, best)
                errors.append(float(total.max() - total.min()))
            spread[beta, scaled] = worst(errors)
    yield from each_form(
        worst(spread[b, False] for b in BETAS),
        worst(spread[b, True] for b in BETAS),
        inside=spread[1.0, False],
        spread_2_0_False=spread[2.0, False],
        number=0.01 / BETAS[0],
        BETAS_0=BETAS[0],
        number_2=0.01 / 0.001,
    )


@claim("TM-pi-rev")
def optimum_with_the_other_kl() -> Iterator[Found]:
    """beta ref / (lambda - r), with lambda from bisection above the largest reward, is the maximizer."""
    errors = []
    for problem in bandits():
        r, ref_logp = problem.rewards, _reference(problem)
        for beta in BETAS:
            low, high = float(r.max()), float(r.max()) + beta
            for _ in range(200):
                middle = (low + high) / 2
                above = float((beta * ref_logp.exp() / (middle - r)).sum()) > 1
                low, high = (middle, high) if above else (low, middle)
            policy = beta * ref_logp.exp() / (high - r)
            at = problem._replace(logits=policy.log()[None])
            gradient = exact(lambda a, b, g=r, c=beta: (a.exp() * g).sum() - c * forward_kl(a, b), at)[1]  # type: ignore[misc]
            package = optimal_policy(r, ref_logp, "forward_kl", beta).logp.exp()
            errors += [apart(policy.sum(), 1.0), apart(gradient, 0.0), apart(policy, package)]
            errors.append(less(0.0, float(policy.min()), by=1e-12))
    yield from each_form(worst(errors))


@cache
def converged(way: str, beta: float, n: int) -> dict[str, torch.Tensor]:
    """KL of the last policy to both optima, and of the reference to the wanted one; [worlds] each."""
    problem = arms(BANDITS)
    start, ref_logp = problem._replace(logits=problem.ref_logits), _reference(problem)
    path = learn(start, n=n, steps=HORIZON, record=HORIZON, beta=beta, rewards=True, seed=1, **WAYS[way])
    wanted, other = (
        optimal_policy(problem.rewards, ref_logp, name, beta).logp for name in ("reverse_kl", "forward_kl")
    )
    last = path.logp[-1]
    return {
        "wanted": reverse_kl(last, wanted),
        "other": reverse_kl(last, other),
        "start": reverse_kl(ref_logp, wanted),
    }


@cache
def normalized_limit(beta: float) -> float:
    """Mean KL(pi_rev* || pi*) over mean KL(pi_ref || pi*): where the exact incorrect gradient ends."""
    problem = arms()
    ref_logp = _reference(problem)
    wanted, other = (
        optimal_policy(problem.rewards, ref_logp, name, beta).logp for name in ("reverse_kl", "forward_kl")
    )
    return float(reverse_kl(other, wanted).mean() / reverse_kl(ref_logp, wanted).mean())


def _does_not_improve(beta: float, n: int) -> float:
    """Error of "the two incorrect estimates end no closer to the optimum than they began"."""
    ends = [converged(way, beta, n) for way in WAYS if "incorrect" in way]
    return worst(lower_mean(end["start"], end["wanted"]) for end in ends)


@claim("TM-fig4")
def regularized_reward_by_samples() -> Iterator[Found]:
    """Vanilla improves, to a level that falls with n; the incorrect ones do or do not, with beta."""
    stays, tried = (1.0, 1.5), (0.3, 1.0, 1.5, 3.0)
    improves = sum(_does_not_improve(beta, 16) > 0 for beta in tried)
    inside = [_does_not_improve(beta, 16) for beta in stays]
    for beta in (1.0, 3.0):
        ends = [converged("vanilla", beta, n) for n in SIZES]
        inside += [lower_mean(end["wanted"], end["start"]) for end in ends]
        inside += [lower_mean(b["wanted"], a["wanted"]) for a, b in itertools.pairwise(ends)]
    grid = torch.arange(2, 40) / 10
    worse = [b for b in grid.tolist() if normalized_limit(b) > 1]
    share = {
        beta: float(x["wanted"].mean() / x["start"].mean())
        for beta in (0.3, 3.0)
        for x in (converged("variance-reduced (incorrect)", beta, 16),)
    }
    yield from each_form(
        max(improves / len(tried), worst(inside)),
        inside=worst(inside),
        min_worse=min(worse),
        max_worse=max(worse),
        share_0_3=share[0.3],
        share_3_0=share[3.0],
        BANDITS=BANDITS,
    )


@claim("TM-fig5")
def converged_kl_against_the_sample_size() -> Iterator[Found]:
    """Vanilla gains from every fourfold n; the variance-reduced estimate levels off, and higher."""
    errors, levels = [], {}
    for beta in (1.0, 2.0, 3.0):
        right = [converged("vanilla", beta, n)["wanted"] for n in SIZES]
        wrong = [converged("variance-reduced (incorrect)", beta, n)["wanted"] for n in SIZES]
        errors += [lower_mean(b, a) for a, b in itertools.pairwise(right)]
        errors += [lower_mean(a, b) for a, b in zip(right, wrong, strict=True)]
        errors += [less(float(b.mean() / a.mean()), 1 - DEGREE) for a, b in itertools.pairwise(right)]
        errors.append(degree(float(wrong[2].mean() / wrong[1].mean()) - 1))  # it has leveled off at n = 16
        levels[beta] = ", ".join(f"{float(x.mean()):.4f}" for x in wrong)
    yield from each_form(worst(errors), BANDITS=BANDITS, levels_1_0=levels[1.0], levels_3_0=levels[3.0])


@claim("TM-fig6")
def reduced_converges_to_another_optimum() -> Iterator[Found]:
    """The KL to pi_rev* falls with n, that to pi* levels off; the exact gradient ends at pi_rev*."""
    errors, found = [], {}
    for beta in (1.0, 2.0, 3.0):
        ends = found[beta] = [converged("variance-reduced (incorrect)", beta, n) for n in SIZES]
        errors.append(lower_mean(ends[-1]["other"], ends[-1]["wanted"]))
        errors.append(degree(float(ends[2]["wanted"].mean() / ends[1]["wanted"].mean()) - 1))
        if beta > 1:  # at 1 the runs have not ended, and differ too much for three standard errors
            errors += [lower_mean(b["other"], a["other"]) for a, b in itertools.pairwise(ends)]
    problem = arms(10, 6)
    start, ref_logp = problem._replace(logits=problem.ref_logits), _reference(problem)
    end = learn(start, "k3", n=None, steps=2000, record=2000, rewards=True).logp[-1]
    wanted, other = (optimal_policy(problem.rewards, ref_logp, d).logp for d in ("reverse_kl", "forward_kl"))
    errors += [apart(reverse_kl(end, other), 0.0), differs(wanted, other)]
    levels = {
        (beta, end): ", ".join(f"{float(e[end].mean()):.2g}" for e in ends)
        for beta, ends in found.items()
        for end in ("other", "wanted")
    }
    yield from each_form(
        worst(errors),
        levels_1_0_other=levels[1.0, "other"],
        levels_1_0_wanted=levels[1.0, "wanted"],
        HORIZON=HORIZON,
        levels_3_0_other=levels[3.0, "other"],
        levels_3_0_wanted=levels[3.0, "wanted"],
    )
