"""Sections 5 and 6 and appendix E: what the experiments with language models rest on (tang2025pitfalls)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, inside, less, numbers, printed, rises, same
from kl_book.ledger.claims.ground.errors import apart, degree, worst
from kl_book.ledger.claims.ground.learning import lower_mean, optimum_at
from kl_book.ledger.claims.ground.sums import Formula, forward_kl, reverse_kl
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import arms, bandits, worlds
from kl_companion.estimators import ESTIMATORS
from kl_companion.tabular import bandit, learn
from kl_companion.theory.optima import optimal_policy

LEVELS = (0.01, 0.05, 0.1)  # of the KL


def _disagreement(w: Enumeration) -> float:
    """|KL(pi, ref) - KL(ref, pi)| over the smaller of the two."""
    return abs(w.kl - w.forward) / max(min(w.kl, w.forward), 1e-300)


@claim("TM-5.1-lowKL")
def both_directions_agree_near_the_reference() -> Iterator[Found]:
    """Where every log-ratio is small the two differ by a share of that size; a small KL is not enough."""
    for w, bound in itertools.product(each(worlds)(), (0.2, 0.02, 0.002)):
        yield less(_disagreement(w.near(bound)), bound, "inside", by=0.0)
    rare = [two((1 - d, d), (1 - 4 * d, 4 * d)) for d in (1e-2, 1e-4, 1e-6)]
    for w in rare:
        yield printed(degree(_disagreement(w)))
    yield numbers(kl=rare[-1].kl, forward=rare[-1].forward, more=100 * _disagreement(rare[-1]))
    low, middle, high = _along_training()
    yield numbers(low=100 * low, middle=100 * middle, high=100 * high)


def _from_the_reference(estimator: str, beta: float) -> torch.Tensor:
    """Log-probs along a run from the reference with rewards, expected gradients, [steps, worlds, vocab]."""
    start = arms(50)._replace(logits=arms(50).ref_logits)
    return learn(start, estimator, n=None, steps=150, lr=0.2, beta=beta, rewards=True).logp


def _along_training(beta: float = 0.1) -> list[float]:
    """Mean relative difference of both directions when a run from the reference reaches `LEVELS`."""
    path, ref_logp = _from_the_reference("k2", beta), arms(50).ref_logits.squeeze(1).log_softmax(-1)
    kl, other = reverse_kl(path, ref_logp), forward_kl(path, ref_logp)
    shares = []
    for level in LEVELS:
        first = (kl >= level).double().argmax(0)[None]
        share = (other.gather(0, first) / kl.gather(0, first) - 1).abs()[0]
        shares.append(float(share[kl.max(0).values >= level].mean()))
    return shares


@cache
def _frontier(beta: float) -> tuple[float, float, float]:
    """KL to the reference of the other KL's optimum, and the share of reward that pi* has beyond it there.

    The optimum of E r - beta KL(ref, pi) against that of the KL(pi, ref) with the coefficient that spends
    the same KL(pi, ref); means over bandits. And how far pi* is from ref exp(r / beta) at most.
    """
    spent, behind, errors = [], [], []
    for problem in (bandit(100, seed=seed) for seed in range(10)):
        r, ref_logp = problem.rewards, problem.ref_logits[0].log_softmax(-1)
        other = optimal_policy(r, ref_logp, "forward_kl", beta).logp
        kl = float(reverse_kl(other, ref_logp))
        best, best_beta = optimum_at(kl, r, ref_logp)
        start, right, wrong = (float(logp.exp() @ r) for logp in (ref_logp, best, other))
        spent.append(kl)
        behind.append(1 - (wrong - start) / (right - start))
        errors.append(apart(best, (ref_logp + r / best_beta).log_softmax(-1)))
    return sum(spent) / len(spent), sum(behind) / len(behind), worst(errors)


@claim("TM-5.1-longrun")
def divergences_part_once_the_policy_moves_far() -> Iterator[Found]:
    """At equal KL, what the other KL's optimum lacks in reward grows from nearly 0 as beta falls to 1."""
    spent, behind, errors = zip(*(_frontier(beta) for beta in (30.0, 3.0, 1.0)), strict=True)
    yield at_most(0.0, min(behind))
    yield printed(worst(errors))
    yield rises(spent)
    yield rises(behind)
    yield less(behind[0], 0.01)
    yield less(0.05, behind[-1])
    end_kl, end, _ = _frontier(0.3)
    yield numbers(weak=100 * behind[0], middle=100 * behind[1], strong=100 * behind[2], end=100 * end)
    yield numbers(weak_kl=spent[0], middle_kl=spent[1], strong_kl=spent[2], end_kl=end_kl)


@cache
def reward_at(estimator: str, beta: float) -> torch.Tensor:
    """Reward when the KL first reaches `LEVELS` on the way up from the reference, [levels, worlds].

    Expected gradients, step size 0.2; NaN where a level is not reached.
    """
    path, ref_logp = _from_the_reference(estimator, beta), arms(50).ref_logits.squeeze(1).log_softmax(-1)
    kl, reward = reverse_kl(path, ref_logp), (path.exp() * arms(50).rewards).sum(-1)
    out = []
    for level in LEVELS:
        i = (kl >= level).double().argmax(0).clamp(min=1)[None]
        below, above = kl.gather(0, i - 1), kl.gather(0, i)
        part = (level - below) / (above - below)
        between = reward.gather(0, i - 1) * (1 - part) + reward.gather(0, i) * part
        out.append(between.where(kl.max(0).values >= level, torch.nan)[0])
    return torch.stack(out)


def _together(a: torch.Tensor, b: torch.Tensor, level: int) -> tuple[torch.Tensor, torch.Tensor]:
    both = ~(a[level].isnan() | b[level].isnan())
    return a[level][both], b[level][both]


@claim("TM-5.1-efficient")
def stronger_regularization_is_more_efficient() -> Iterator[Found]:
    """At the same KL the reward rises with beta, and the incorrect vanilla estimate has the least."""
    paths = [reward_at("k1", 1.0), *(reward_at("k2", beta) for beta in (0.1, 0.3, 1.0))]
    for level in range(len(LEVELS)):
        for a, b in itertools.pairwise(paths):
            yield printed(lower_mean(*_together(a, b, level)))
        yield same(*_together(paths[0], reward_at("k1", 0.1), level))


@claim("TM-5.1-same-curve")
def both_estimates_trace_one_curve_at_low_kl() -> Iterator[Found]:
    """The rewards at equal KL differ by a share that vanishes with the KL."""
    for beta in (0.1, 0.3, 1.0):
        shares = []
        for level in range(len(LEVELS)):
            right, wrong = _together(reward_at("k2", beta), reward_at("k3", beta), level)
            shares.append(abs(float(wrong.mean() / right.mean()) - 1))
            yield printed(degree(shares[-1]))
    yield rises(shares)  # at the largest beta
    low, middle, high = shares
    yield numbers(low=100 * low, middle=100 * middle, high=100 * high)


HIGHEST = 6  # power of the log-ratio


def _forces(off: Enumeration, beta: float) -> dict[str, torch.Tensor]:
    """Gradient at the optimum pi* of each way to add the squared log-ratio to an off-policy problem."""
    w = off.replace(logits=(off.problem.ref_logits[0].log_softmax(-1) + off.R / beta).log_softmax(-1)[None])
    mu, p, score, r = w.p, w.pi, w.s[:, 0], w.R
    rest = r - beta * w.l
    powers = torch.stack([w.l**k for k in range(1, HIGHEST)])
    return {
        "reward": (p * r) @ score,
        "expected reward": (p * r) @ score - beta * (mu * w.l) @ score,
        "centered": (mu * (rest - mu @ rest)) @ score,
        "weighted": (mu * (p / mu) * rest) @ score,
        "centered reward": (mu * (r - mu @ r)) @ score / beta,
        "powers": ((mu * (powers - (powers @ mu)[:, None])) @ score).T,  # gradients of E_mu[l^(k+1)]/(k+1)
    }


def _maximizer(reference: float, mu: float, beta: float = 1.0) -> float:
    """First arm's probability that maximizes p - beta/2 E_mu[(log-ratio)^2], rewards (1, 0)."""
    p = torch.linspace(1e-4, 1 - 1e-4, 200_001, dtype=torch.float64)
    squares = mu * (p / reference).log() ** 2 + (1 - mu) * ((1 - p) / (1 - reference)).log() ** 2
    return float(p[(p - beta / 2 * squares).argmax()])


@claim("TM-6-squared-offpolicy")
def squared_log_ratio_alone_keeps_the_optimum() -> Iterator[Found]:
    """With the reward under mu as well only the square keeps the optimum; with it under pi it does not."""
    several = [Enumeration(bandit(v, seed=v, off_policy=True)) for v in (2, 4, 8)]
    forces = [_forces(w, beta) for w in several for beta in (0.5, 1.0, 2.0)]
    for force in forces:
        yield printed(float(force["expected reward"].norm() / force["reward"].norm()))
        yield same(force["centered"], 0.0, "inside")
        yield same(force["weighted"], 0.0, "inside")
    powers, reward = (torch.cat([force[k] for force in forces]) for k in ("powers", "centered reward"))
    only = torch.linalg.lstsq(powers, reward).solution
    yield same(only, torch.eye(HIGHEST - 1, dtype=only.dtype)[0], "inside")
    yield inside(float(HIGHEST - 1 - torch.linalg.matrix_rank(powers)))
    yield numbers(best=torch.sigmoid(torch.tensor(1.0).double()), moved=_maximizer(0.5, 0.1))


def _powers(w: Enumeration) -> torch.Tensor:
    """Expected gradient of each power of the log-ratio, differentiated: [parameters, `HIGHEST`]."""
    fields = [w.grad(lambda a, b, k=k: (a - b) ** k) for k in range(1, HIGHEST + 1)]  # type: ignore[misc]
    return torch.stack([f.flatten() for f in fields], dim=1)


@claim("TM-6-unique")
def squared_estimate_is_the_only_correct_loss() -> Iterator[Found]:
    """Among powers of the log-ratio only the square has the KL gradient; the first power has none."""
    close = [two(p, q) for p, q in (((0.6, 0.4), (0.4, 0.6)), ((0.3, 0.7), (0.5, 0.5)))]
    every = [*each(bandits)(), *close]
    stacked = torch.cat([_powers(w) for w in every])
    solution = torch.linalg.lstsq(stacked[:, 1:], torch.cat([w.d_kl.flatten() for w in every])).solution
    yield same(solution, 0.5 * torch.eye(HIGHEST - 1).double()[0], "inside")
    yield same(stacked[:, 0], 0.0, "inside")
    yield inside(float(HIGHEST - 1 - torch.linalg.matrix_rank(stacked[:, 1:])))
    rivals: dict[str, Formula] = {
        r"$\sg(l) \log\pi$": lambda a, b: (a - b).detach() * a,
        r"$\frac{1}{2} l^2 + 3 l$": lambda a, b: (a - b) ** 2 / 2 + 3 * (a - b),
    }
    rivals |= {n: n for n, e in ESTIMATORS.items() if e.inputs == "sampled" and n != "k2"}
    right = [name for name, rival in rivals.items() if _off_the_kl_gradient(rival) < 1e-9]
    yield printed(len(right) / len(rivals))
    yield numbers(worlds=len(worlds()), right=right, count=len(right), rivals=len(rivals))


def _off_the_kl_gradient(loss: Formula) -> float:
    """How far the expected gradient of a loss is from that of the KL, over the small worlds."""
    return worst(apart(w.grad(loss), w.d_kl) for w in each(worlds)())
