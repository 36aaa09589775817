"""Appendix K: the optimal policy as a target, and the weights that f-divergences to it give (emapg2026).

The target is pi* = pi_ref e^R / Z; w = pi*/pi. Every weight is compared with the gradient of the divergence
by automatic differentiation, and with f in symbols.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.divergences import GENERATORS, Pair, arguments_exchanged, divergence
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.groups import groups
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    field,
    mean,
    ref_ratio,
    reverse_kl,
    terms,
    values,
)
from kl_book.ledger.claims.ground.targets import at_optimum, target, targets
from kl_book.ledger.claims.ground.worlds import bandits, two_policies
from kl_companion.tabular import Problem

Function = Callable[[torch.Tensor], torch.Tensor]


def derivative(f: Function, x: torch.Tensor) -> torch.Tensor:
    """f'(x), entry by entry."""
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
    return slope


def phi_weight(f: Function, w: torch.Tensor) -> torch.Tensor:
    """phi_f(w) = f'(1/w)."""
    return derivative(f, 1 / w)


def psi_weight(f: Function, w: torch.Tensor) -> torch.Tensor:
    """psi_f(w) = f(w) - w f'(w)."""
    return f(w) - w * derivative(f, w)


@claim("EMA-K-logZ")
def log_partition_function_is_the_best_value() -> Iterator[Found]:
    """log Z = max of E[R] - KL(pi||ref), reached at pi*; the expected reward alone is another number."""
    always, printed = [], []
    for problem in bandits():
        t = terms(problem)
        log_z = float((t.ref_logp.sum(-1) + problem.rewards).logsumexp(0))
        best = at_optimum(problem)
        for world, margin in ((best, 0.0), (problem, 1e-6)):
            p = terms(world).p
            regularized = float(mean(p, problem.rewards)) - exact(reverse_kl, world)[0]
            always.append(violation(regularized - log_z + margin))
            printed.append(apart(mean(p, problem.rewards), log_z))
        p = terms(best).p
        always.append(apart(mean(p, problem.rewards) - exact(reverse_kl, best)[0], log_z))
    small = two_policies((0.5, 0.5), (0.5, 0.5))._replace(rewards=torch.tensor([1.0, 0.0]).double())
    log_z = float((terms(small).ref_logp.sum(-1) + small.rewards).logsumexp(0))
    yield from each_form(
        worst([*always, *printed]), inside=worst(always), log_z=log_z, number=1 / (1 + math.exp(-1))
    )


def dual(f: Function) -> Function:
    """g_f(w) = w f(1/w)."""
    return lambda w: w * f(1 / w)


def of_ratio(f: Function) -> Pair:
    """f(w) of one sample."""
    return lambda p, q: f((q - p).exp())


@claim("EMA-eq153-157")
def policy_first() -> Iterator[Found]:
    """D_f(pi||pi*) = E[w f(1/w)]; grad w = -w s; weight g - w g' = f'(1/w), which -phi ascends."""
    errors = []
    for problem in targets():
        t, w = terms(problem), ref_ratio(problem)
        errors += [apart(differentiated(of_ratio(torch.log), problem), -t.score)]
        errors += [apart(differentiated(of_ratio(torch.clone), problem), -w[:, None, None] * t.score)]
        for f in GENERATORS.values():
            g = dual(f)
            value, slope = exact(divergence(f), problem)
            phi = g(w) - w * derivative(g, w)
            errors += [apart(mean(t.p, g(w)), value), apart(phi, phi_weight(f, w))]
            errors += [apart(field(phi, problem), slope), _descends(divergence(f), -phi, problem)]
    yield from each_form(worst(errors))


@claim("EMA-eq158-160")
def target_first() -> Iterator[Found]:
    """D_f(pi*||pi) = E[f(w)] with the gradient E[(f(w) - w f'(w)) s]."""
    errors = []
    for problem in targets():
        t, w = terms(problem), ref_ratio(problem)
        for f in GENERATORS.values():
            value, slope = exact(arguments_exchanged(divergence(f)), problem)
            estimator = of_ratio(f)
            by_parts = values(estimator, problem)[:, None, None] * t.score + differentiated(
                estimator, problem
            )
            errors += [apart(mean(t.p, f(w)), value), apart(field(psi_weight(f, w), problem), slope)]
            errors += [apart(mean(t.p, by_parts), slope)]
    yield from each_form(worst(errors))


@claim("EMA-eq161-162")
def both_orders() -> Iterator[Found]:
    """E[phi s] and E[psi s] are the gradients, against differences of the divergences themselves."""
    errors = []
    for problem in targets()[:6]:
        w = ref_ratio(problem)
        for f in GENERATORS.values():
            for d, weight in (
                (divergence(f), phi_weight(f, w)),
                (arguments_exchanged(divergence(f)), psi_weight(f, w)),
            ):
                found = field(weight, problem)
                differences = torch.zeros_like(found)
                for place in itertools.product(*map(range, found.shape)):
                    step = torch.zeros_like(found)
                    step[place] = 1e-5
                    up, down = (
                        exact(d, problem._replace(logits=problem.logits + s * step))[0] for s in (1, -1)
                    )
                    differences[place] = (up - down) / 2e-5
                errors.append(violation(apart(found, differences) / (1 + apart(found, 0.0)) - 1e-7))
    yield from each_form(worst(errors))


def _descends(d: Pair, ascended: torch.Tensor, problem: Problem) -> float:
    """Error of "a small step along E[weight s] lowers the divergence", by the step's first-order gain."""
    step = field(ascended, problem)
    moved = problem._replace(logits=problem.logits + 1e-4 * step / (1 + step.norm()))
    return less(exact(d, moved)[0], exact(d, problem)[0], 1e-12)


def _figure(d: Callable[[Function], Pair], weight: Callable[..., torch.Tensor]) -> Evidence:
    """The printed weight, ascended: it is minus the gradient, and a small step lowers the divergence."""
    errors = []
    for problem in targets():
        for f in GENERATORS.values():
            ascended = -weight(f, ref_ratio(problem))
            errors.append(apart(field(ascended, problem), -exact(d(f), problem)[1]))
            errors.append(_descends(d(f), ascended, problem))
    return Evidence(worst(errors), note="of the formula in the caption; the curves are not read off")


@claim("EMA-fig10")
def weights_with_the_policy_first() -> Evidence:
    """REINFORCE with the weight -f'(1/w) descends D_f(pi||pi*)."""
    return _figure(divergence, phi_weight)


@claim("EMA-fig11")
def weights_with_the_target_first() -> Evidence:
    """REINFORCE with the weight -f(w) + w f'(w) descends D_f(pi*||pi)."""
    return _figure(lambda f: arguments_exchanged(divergence(f)), psi_weight)


def estimated(problem: Problem, size: int, weight: Function, *, left_out: bool = False) -> torch.Tensor:
    """Mean gradient with the weight of the estimated w, over all groups; ``problem`` is a target.

    ``left_out``: Z of each rollout comes from the others of its group.
    """
    t = terms(problem)
    chance, drawn = groups(problem, size)
    w = ref_ratio(problem)[drawn]
    z = (w.sum(-1, keepdim=True) - w) / (size - 1) if left_out else w.mean(-1, keepdim=True)
    coefficient = weight(w / z)
    return torch.einsum("g,gi,girv->rv", chance, coefficient, t.score[drawn]) / size


def relative_bias(problem: Problem, size: int, weight: Function, **how: bool) -> float:
    """Bias of `estimated`, relative to the gradient that the true Z gives."""
    right = field(weight(ref_ratio(problem)), problem)
    return float((estimated(problem, size, weight, **how) - right).norm() / right.norm())


def estimated_by_counts(problem: Problem, size: int, weight: Function) -> torch.Tensor:
    """`estimated` for two tokens, by the number of firsts in the group, so that groups may be large."""
    t, w = terms(problem), ref_ratio(problem)
    n = torch.arange(size + 1, dtype=torch.float64)
    log_count = (
        torch.lgamma(torch.tensor(size + 1.0).double()) - torch.lgamma(n + 1) - torch.lgamma(size - n + 1)
    )
    chance = (log_count + n * t.p[0].log() + (size - n) * t.p[1].log()).exp()
    share = torch.stack([n, size - n], -1) / size
    coefficient = weight(w / (share @ w)[:, None])
    return torch.einsum("n,ni,irv->rv", chance, share * coefficient, t.score)


@claim("EMA-EM")
def z_from_the_group() -> Iterator[Found]:
    """The group's Z is unbiased; the weights of w with it are biased, by a share that falls like 1/N."""
    always = []
    for problem in targets()[:6]:
        for size in (1, 2, 3):
            chance, drawn = groups(problem, size)
            always.append(apart((chance * ref_ratio(problem)[drawn].mean(-1)).sum(), 1.0))  # Z-hat over Z
        for size in (2, 3):
            always += [
                relative_bias(problem, size, partial(phi_weight, GENERATORS[f]), left_out=True)
                for f in ("reverse_kl", "pearson")
            ]
    small = target(bandits()[1])
    right = field(psi_weight(GENERATORS["reverse_kl"], ref_ratio(small)), small)
    shares = {n: _share(small, n, right) for n in (2, 8, 256, 512)}
    always.append(apart(estimated_by_counts(small, 3, _minus), estimated(small, 3, _minus)))
    always.append(violation(abs(shares[256] / shares[512] / 2 - 1) - 0.02))
    yield from each_form(worst(always), shares_2=shares[2], shares_8=shares[8], shares_256=shares[256])


def _minus(w: torch.Tensor) -> torch.Tensor:
    return -w


def _share(problem: Problem, size: int, right: torch.Tensor) -> float:
    return float((estimated_by_counts(problem, size, _minus) - right).norm() / right.norm())
