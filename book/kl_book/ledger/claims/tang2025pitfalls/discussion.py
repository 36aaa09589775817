"""Sections 5 and 6 and appendix E: what the experiments with language models rest on (tang2025pitfalls)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.ground.errors import apart, degree, less, violation, worst
from kl_book.ledger.claims.ground.learning import lower_mean
from kl_book.ledger.claims.ground.sums import (
    Formula,
    differentiated,
    exact,
    forward_kl,
    mean,
    reverse_kl,
    terms,
)
from kl_book.ledger.claims.ground.worlds import arms, bandits, near, two_policies, worlds
from kl_companion.estimators import ESTIMATORS
from kl_companion.tabular import Problem, bandit, learn
from kl_companion.theory.optima import optimal_policy

LEVELS = (0.01, 0.05, 0.1)  # of the KL


def _disagreement(problem: Problem) -> float:
    """|KL(pi, ref) - KL(ref, pi)| over the smaller of the two."""
    one, other = exact(reverse_kl, problem)[0], exact(forward_kl, problem)[0]
    return abs(one - other) / max(min(one, other), 1e-300)


@claim("TM-5.1-lowKL")
def both_directions_agree_near_the_reference() -> Iterator[Found]:
    """Where every log-ratio is small the two differ by a share of that size; a small KL is not enough."""
    inside = []
    for problem in worlds():
        for bound in (0.2, 0.02, 0.002):
            inside.append(violation(_disagreement(near(problem, bound)) - bound))
    rare = [two_policies((1 - d, d), (1 - 4 * d, 4 * d)) for d in (1e-2, 1e-4, 1e-6)]
    share = _disagreement(rare[-1])
    along = ", ".join(f"{100 * apart:.0f} % at a KL of {level:g}" for level, apart in _along_training())
    yield from each_form(
        violation(*(degree(_disagreement(p)) for p in rare)),
        inside=worst(inside),
        number=exact(reverse_kl, rare[-1])[0],
        number_2=exact(forward_kl, rare[-1])[0],
        number_3=100 * share,
        along=along,
    )


def _along_training(beta: float = 0.1) -> list[tuple[float, float]]:
    """(KL, mean relative difference of both directions when a run from the reference reaches that KL)."""
    problem = arms(50)
    ref_logp = problem.ref_logits.squeeze(1).log_softmax(-1)
    start = problem._replace(logits=problem.ref_logits)
    path = learn(start, "k2", n=None, steps=150, lr=0.2, beta=beta, rewards=True).logp
    kl, other = reverse_kl(path, ref_logp), forward_kl(path, ref_logp)
    found = []
    for level in LEVELS:
        first = (kl >= level).double().argmax(0)[None]
        share = (other.gather(0, first) / kl.gather(0, first) - 1).abs()[0]
        found.append((level, float(share[kl.max(0).values >= level].mean())))
    return found


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
        low, high = 1e-4, 1e6
        for _ in range(100):
            middle = (low * high) ** 0.5
            above = float(reverse_kl(optimal_policy(r, ref_logp, "reverse_kl", middle).logp, ref_logp)) > kl
            low, high = (middle, high) if above else (low, middle)
        best = optimal_policy(r, ref_logp, "reverse_kl", high).logp
        start = float(ref_logp.exp() @ r)
        right, wrong = float(best.exp() @ r) - start, float(other.exp() @ r) - start
        spent.append(kl)
        behind.append(1 - wrong / right)
        errors.append(apart(best, (ref_logp + r / high).log_softmax(-1)))
    return sum(spent) / len(spent), sum(behind) / len(behind), worst(errors)


@claim("TM-5.1-longrun")
def divergences_part_once_the_policy_moves_far() -> Iterator[Found]:
    """At equal KL, what the other KL's optimum lacks in reward grows from nearly 0 as beta falls to 1."""
    found = [_frontier(beta) for beta in (30.0, 3.0, 1.0)]
    errors = [max(violation(-behind), wrong) for _, behind, wrong in found]
    errors += [less(x[i], y[i]) for x, y in itertools.pairwise(found) for i in (0, 1)]
    errors += [less(found[0][1], 0.01), less(0.05, found[-1][1])]
    text = ", ".join(f"{100 * behind:.1f} % at {kl:.2g}" for kl, behind, _ in found)
    yield from each_form(worst(errors), text=text, number=100 * _frontier(0.3)[1], number_2=_frontier(0.3)[0])


@cache
def reward_at(estimator: str, beta: float) -> torch.Tensor:
    """Reward when the KL first reaches `LEVELS` on the way up from the reference, [levels, worlds].

    Expected gradients, step size 0.2; NaN where a level is not reached.
    """
    problem = arms(50)
    start, ref_logp = (
        problem._replace(logits=problem.ref_logits),
        problem.ref_logits.squeeze(1).log_softmax(-1),
    )
    path = learn(start, estimator, n=None, steps=150, lr=0.2, beta=beta, rewards=True).logp
    kl, reward = reverse_kl(path, ref_logp), (path.exp() * problem.rewards).sum(-1)
    out = []
    for level in LEVELS:
        i = (kl >= level).double().argmax(0).clamp(min=1)[None]
        below, above = kl.gather(0, i - 1), kl.gather(0, i)
        part = (level - below) / (above - below)
        found = reward.gather(0, i - 1) * (1 - part) + reward.gather(0, i) * part
        out.append(found.where(kl.max(0).values >= level, torch.nan)[0])
    return torch.stack(out)


def _together(a: torch.Tensor, b: torch.Tensor, level: int) -> tuple[torch.Tensor, torch.Tensor]:
    both = ~(a[level].isnan() | b[level].isnan())
    return a[level][both], b[level][both]


@claim("TM-5.1-efficient")
def stronger_regularization_is_more_efficient() -> Iterator[Found]:
    """At the same KL the reward rises with beta, and the incorrect vanilla estimate has the least."""
    errors = []
    for level in range(len(LEVELS)):
        paths = [reward_at("k1", 1.0), *(reward_at("k2", beta) for beta in (0.1, 0.3, 1.0))]
        for a, b in itertools.pairwise(paths):
            errors.append(lower_mean(*_together(a, b, level)))
        errors.append(apart(*_together(reward_at("k1", 1.0), reward_at("k1", 0.1), level)))
    yield from each_form(worst(errors))


@claim("TM-5.1-same-curve")
def both_estimates_trace_one_curve_at_low_kl() -> Iterator[Found]:
    """The rewards at equal KL differ by a share that vanishes with the KL."""
    shares: dict[float, list[float]] = {beta: [] for beta in (0.1, 0.3, 1.0)}
    for beta, found in shares.items():
        for level in range(len(LEVELS)):
            right, wrong = _together(reward_at("k2", beta), reward_at("k3", beta), level)
            found.append(float(wrong.mean() / right.mean()) - 1)
    errors = [degree(s) for found in shares.values() for s in found]
    errors += [less(abs(a), abs(b)) for a, b in itertools.pairwise(shares[1.0])]
    pairs = zip(shares[1.0], LEVELS, strict=True)
    text = ", ".join(f"{100 * abs(s):.2g} % at {level:g}" for s, level in pairs)
    yield from each_form(worst(errors), text=text)


HIGHEST = 6  # power of the log-ratio


def _forces(problem: Problem, beta: float) -> dict[str, torch.Tensor]:
    """Gradient at the optimum pi* of each way to add the squared log-ratio to an off-policy problem."""
    ref_logp, r = problem.ref_logits[0].log_softmax(-1), problem.rewards
    best = problem._replace(logits=(ref_logp + r / beta).log_softmax(-1)[None])
    t = terms(best)
    mu, p, score = t.p, t.logp[:, 0].exp(), t.score[:, 0]
    rest = r - beta * t.log_ratio[:, 0]
    powers = torch.stack([t.log_ratio[:, 0] ** k for k in range(1, HIGHEST)])
    return {
        "reward": (p * r) @ score,
        "expected reward": (p * r) @ score - beta * (mu * t.log_ratio[:, 0]) @ score,
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
    found = [_forces(bandit(v, seed=v, off_policy=True), beta) for v in (2, 4, 8) for beta in (0.5, 1.0, 2.0)]
    wanted, moved = float(torch.sigmoid(torch.tensor(1.0).double())), _maximizer(0.5, 0.1)
    inside = [apart(f[k], 0.0) for f in found for k in ("centered", "weighted")]
    powers, reward = (torch.cat([f[k] for f in found]) for k in ("powers", "centered reward"))
    only, rest = torch.linalg.lstsq(powers, reward).solution, HIGHEST - 1
    inside += [apart(only, torch.eye(rest, dtype=only.dtype)[0])]
    inside.append(float(rest - torch.linalg.matrix_rank(powers)))
    yield from each_form(
        worst(float(f["expected reward"].norm() / f["reward"].norm()) for f in found),
        inside=worst(inside),
        wanted=wanted,
        moved=moved,
    )


def _powers(problem: Problem, highest: int) -> torch.Tensor:
    """Expected gradient of each power of the log-ratio, differentiated: [parameters, highest]."""
    fields = [
        mean(terms(problem).p, differentiated(lambda a, b, k=k: (a - b) ** k, problem))  # type: ignore[misc]
        for k in range(1, highest + 1)
    ]
    return torch.stack([f.flatten() for f in fields], dim=1)


@claim("TM-6-unique")
def squared_estimate_is_the_only_correct_loss() -> Iterator[Found]:
    """Among powers of the log-ratio only the square has the KL gradient; the first power has none."""
    near = [two_policies(p, q) for p, q in (((0.6, 0.4), (0.4, 0.6)), ((0.3, 0.7), (0.5, 0.5)))]
    stacked = torch.cat([_powers(p, HIGHEST) for p in (*bandits(), *near)])
    target = torch.cat([exact(reverse_kl, p)[1].flatten() for p in (*bandits(), *near)])
    one_free = stacked[:, 1:]
    solution = torch.linalg.lstsq(one_free, target).solution
    rank = int(torch.linalg.matrix_rank(one_free))
    wanted = torch.zeros_like(solution)
    wanted[0] = 0.5
    inside = max(apart(solution, wanted), apart(stacked[:, 0], 0.0), float(HIGHEST - 1 - rank))

    rivals: dict[str, Formula] = {
        r"$\sg(l) \log\pi$": lambda a, b: (a - b).detach() * a,
        r"$\frac{1}{2} l^2 + 3 l$": lambda a, b: (a - b) ** 2 / 2 + 3 * (a - b),
    }
    rivals |= {n: n for n, e in ESTIMATORS.items() if e.inputs == "sampled" and n != "k2"}
    right = [name for name, rival in rivals.items() if _off_the_kl_gradient(rival) < 1e-9]
    yield from each_form(
        len(right) / len(rivals),
        inside=inside,
        number=len(worlds()),
        number_2=", ".join(right),
        number_of_right=len(right),
        number_of_rivals=len(rivals),
    )


def _off_the_kl_gradient(loss: Formula) -> float:
    """How far the expected gradient of a loss is from that of the KL, over the small worlds."""
    return worst(apart(mean(terms(p).p, differentiated(loss, p)), exact(reverse_kl, p)[1]) for p in worlds())


LLAMA = "Llama 3.1 instruct 8B{}, the 7500 training prompts of MATH and the GPUs to train on them"


@claim("TM-fig7")
def reward_against_kl_with_a_language_model() -> Iterator[Found]:
    """The bandit version is TM-5.1-efficient and TM-5.1-same-curve."""
    yield numbers(needs=LLAMA.format(""))


@claim("TM-fig8")
def distillation_of_a_language_model() -> Iterator[Found]:
    """What can be enumerated of it is in TM-4.1-biased, TM-4.2-LOO-var and TM-4.2-cum-var."""
    yield numbers(needs=LLAMA.format(" and 70B"))


@claim("TM-appE")
def settings_of_the_language_models() -> Iterator[Found]:
    """Section 5.1 says Llama 3, appendix E Llama 3.1: only a run could tell them apart."""
    yield numbers(needs=LLAMA.format(" and 70B"))
