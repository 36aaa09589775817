"""Table 1: every estimator with its value, its gradient and its memory, as printed (emapg2026).

The expressions are written out from the table; of the package only the worlds take part. A position is a
world of one token, because the table speaks of one token at a given prefix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch

from kl_companion.claims.ledger import Evidence, claim
from kl_companion.claims.off_policy import half_square
from kl_companion.claims.worlds import (
    STRICT,
    apart,
    bandits,
    differs,
    exact,
    forward_kl,
    reverse_kl,
    terms,
    two_policies,
    worst,
)
from kl_companion.tabular import Problem, bandit

Estimate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SEEN = 1e-8  # a bias in every single world, the nearest to the reference included, is at least this large
STEP = 2.0**-13  # of a log-prob, to see whether an estimate reads it


def score_ratio(logp: torch.Tensor) -> torch.Tensor:
    """r = pi / sg(pi)."""
    return (logp - logp.detach()).exp()


def k1(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """-log w."""
    return -(ref_logp - logp)


def k2(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """(log w)^2 / 2."""
    return (ref_logp - logp) ** 2 / 2


def k3(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """-log w + w - 1."""
    return -(ref_logp - logp) + (ref_logp - logp).exp() - 1


def k3_plus_plus(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """r (-log w + w - 1)."""
    return score_ratio(logp) * k3(logp, ref_logp)


def k4(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """r sg(-log w)."""
    return score_ratio(logp) * k1(logp, ref_logp).detach()


def k5(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """sg(w) log w + log r."""
    log_w = ref_logp - logp
    return log_w.exp().detach() * log_w + score_ratio(logp).log()


SAMPLED: dict[str, Estimate] = {"K1": k1, "K2": k2, "K3": k3, "K3++": k3_plus_plus, "K4": k4, "K5": k5}


def exact_reverse(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """The whole sum, whatever was sampled."""
    return (logp.exp() * (logp - ref_logp)).sum().expand_as(logp)


def exact_forward(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """The whole sum, whatever was sampled."""
    return (ref_logp.exp() * (ref_logp - logp)).sum().expand_as(logp)


def with_head(
    logp: torch.Tensor, ref_logp: torch.Tensor, *, k: int, forward: bool = False, bregman: bool = False
) -> torch.Tensor:
    """Algorithms 1 and 2 on-policy; ``bregman`` adds to head and tail what makes every entry convex."""
    chosen = (ref_logp if forward else logp).detach().topk(k).indices
    inside = torch.zeros(len(logp), dtype=torch.bool).index_fill(0, chosen, True)
    p, q = logp.exp(), ref_logp.exp()
    head = q * (ref_logp - logp) if forward else p * (logp - ref_logp)
    tail = (k5 if forward else k4)(logp, ref_logp)
    if bregman:
        head = head + (p - q if forward else q - p)
        w, r = q.detach() / p.detach(), score_ratio(logp)
        tail = w * (ref_logp - logp) + r - w if forward else k3_plus_plus(logp, ref_logp)
    return head[inside].sum() + tail.where(~inside, 0.0)


OBJECTIVES = {
    "reverse": reverse_kl,
    "forward": forward_kl,
    "half square": half_square,
    "zero": lambda logp, ref_logp: 0 * logp.sum(),
}


class Row(NamedTuple):
    """A line of the table. ``estimate`` takes k where ``memory`` is "k"; values and gradients are names.

    Attributes:
        estimate: (logp, ref_logp) of all tokens -> the estimate of every token that may be sampled.
        target: The divergence that it is listed under.
        value, value_unbiased: The columns of the value, and its check mark.
        gradient, gradient_unbiased: The columns of the gradient, and its check mark.
        memory: "1", "k" or "V".
        overall: The last check mark.
    """

    estimate: Callable[..., torch.Tensor]
    target: str
    value: str
    value_unbiased: bool
    gradient: str
    gradient_unbiased: bool
    memory: str
    overall: bool


TABLE: dict[str, Row] = {
    "Reverse KL: exact": Row(exact_reverse, "reverse", "reverse", True, "reverse", True, "V", False),
    "K1": Row(k1, "reverse", "reverse", True, "zero", False, "1", False),
    "K2": Row(k2, "reverse", "half square", False, "reverse", True, "1", False),
    "K3": Row(k3, "reverse", "reverse", True, "forward", False, "1", False),
    "K3++": Row(k3_plus_plus, "reverse", "reverse", True, "reverse", True, "1", True),
    "K4": Row(k4, "reverse", "reverse", True, "reverse", True, "1", True),
    "TopkReverseKL": Row(with_head, "reverse", "reverse", True, "reverse", True, "k", True),
    "Forward KL: exact": Row(exact_forward, "forward", "forward", True, "forward", True, "V", False),
    "K5": Row(k5, "forward", "forward", True, "forward", True, "1", True),
    "TopkForwardKL": Row(
        partial(with_head, forward=True), "forward", "forward", True, "forward", True, "k", True
    ),
}


def off_by(found: torch.Tensor, right: torch.Tensor) -> float:
    """Relative difference: the norm of the difference over that of the right one; NaN becomes infinite."""
    share = float((found - right).norm() / right.norm())
    return math.inf if math.isnan(share) else share


@cache
def positions() -> tuple[Problem, ...]:
    """One token at a given prefix: near to and far from the reference, and with many tokens."""
    far = two_policies((0.999, 0.001), (0.5, 0.5))
    return (*bandits(), far, bandit(12, seed=3, scale=4.0), bandit(40, seed=5))


@cache
def equals() -> tuple[Problem, ...]:
    """One token, policy = reference."""
    return two_policies((0.75, 0.25), (0.75, 0.25)), bandit(6, seed=8, scale=0.0)


def moments(estimate: Estimate, problem: Problem) -> tuple[float, torch.Tensor]:
    """Mean of an estimate and of its gradient over the sampled token; the gradient like the logits."""
    t = terms(problem)
    leaf = t.logp[:, 0].clone().requires_grad_()
    x = estimate(leaf, t.ref_logp[:, 0])
    (c,) = torch.autograd.grad((t.p * x).sum(), leaf)
    return float(t.p @ x.detach()), torch.einsum("j,jrv->rv", c, t.scores[:, 0])


def reads(estimate: Estimate, problem: Problem) -> int:
    """How many of the reference's log-probs the estimate of one sampled token depends on, at most.

    The step is too small to change a head: choosing it looks at all V logits, but keeps k.
    """
    t = terms(problem)
    logp, ref = t.logp[:, 0], t.ref_logp[:, 0]
    moved = torch.stack([estimate(logp, r) for r in ref + STEP * torch.eye(len(ref), dtype=ref.dtype)])
    return int((moved != estimate(logp, ref)).sum(0).max())


def forms(row: Row, problem: Problem, **options: bool) -> list[Estimate]:
    """The estimator of a row for this vocabulary: one, or one for every k from 0 to V."""
    if row.memory != "k":
        return [row.estimate]
    return [partial(row.estimate, k=k, **options) for k in range(problem.logits.shape[-1] + 1)]


def memory_error(row: Row, problem: Problem, **options: bool) -> float:
    """How far the number of reference log-probs read is from 1, from V, or above k + 1."""
    vocab, errors = problem.logits.shape[-1], []
    for k, form in enumerate(forms(row, problem, **options)):
        found = reads(form, problem)
        wanted = {"1": 1, "V": vocab, "k": min(k + 1, vocab)}[row.memory]
        errors.append(float(max(0, found - wanted) if row.memory == "k" else abs(found - wanted)))
    return worst(errors)


def flags(row: Row, problem: Problem, **options: bool) -> tuple[bool, bool]:
    """Whether value and gradient are unbiased for the row's target, for every k."""
    value, gradient = exact(OBJECTIVES[row.target], problem)
    means = [moments(form, problem) for form in forms(row, problem, **options)]
    return (
        all(apart(v, value) < STRICT for v, _ in means),
        all(apart(g, gradient) < STRICT for _, g in means),
    )


def as_printed(name: str, **options: bool) -> float:
    """Error of a row: the means are what its columns name, the marks are right, the memory is as said."""
    row, errors = TABLE[name], []
    for problem in positions() + equals():
        value, gradient = (
            exact(OBJECTIVES[row.value], problem)[0],
            exact(OBJECTIVES[row.gradient], problem)[1],
        )
        for form in forms(row, problem, **options):
            v, g = moments(form, problem)
            errors += [apart(v, value), apart(g, gradient)]
    # what is read does not depend on the probabilities: a few vocabularies will do
    errors += [memory_error(row, problem, **options) for problem in positions()[::4] + equals()]
    for problem in positions():
        value, gradient = exact(OBJECTIVES[row.target], problem)
        for form in forms(row, problem, **options):
            v, g = moments(form, problem)
            errors.append(apart(v, value) if row.value_unbiased else differs(v, value, by=SEEN))
            errors.append(apart(g, gradient) if row.gradient_unbiased else differs(g, gradient, by=SEEN))
    return worst(errors)


@claim("EMA-tab1-RKL")
def exact_reverse_row() -> Evidence:
    """Value and gradient of KL(pi || pi_ref), V numbers."""
    return Evidence(as_printed("Reverse KL: exact"))


@claim("EMA-tab1-K1")
def k1_row() -> Evidence:
    """Unbiased value, gradient of mean zero, one number."""
    return Evidence(as_printed("K1"))


@claim("EMA-tab1-K2")
def k2_row() -> Evidence:
    """Value E[(log w)^2 / 2], gradient of the reverse KL, one number."""
    return Evidence(as_printed("K2"))


@claim("EMA-tab1-K3")
def k3_row() -> Evidence:
    """Unbiased value, gradient of the forward KL, one number."""
    return Evidence(as_printed("K3"))


@claim("EMA-tab1-K3pp")
def k3_plus_plus_row() -> Evidence:
    """Value and gradient of the reverse KL, one number."""
    return Evidence(as_printed("K3++"))


@claim("EMA-tab1-K4")
def k4_row() -> Evidence:
    """Value and gradient of the reverse KL, one number."""
    return Evidence(as_printed("K4"))


@claim("EMA-tab1-FKL")
def exact_forward_row() -> Evidence:
    """Value and gradient of KL(pi_ref || pi), V numbers."""
    return Evidence(as_printed("Forward KL: exact"))


@claim("EMA-tab1-K5")
def k5_row() -> Evidence:
    """Value and gradient of the forward KL, one number."""
    return Evidence(as_printed("K5"))
