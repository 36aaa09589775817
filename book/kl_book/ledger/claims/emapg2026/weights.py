"""Appendix K: the optimal policy as a target, and the weights that f-divergences to it give (emapg2026).

The target is pi* = pi_ref e^R / Z; w = pi*/pi. Every weight is compared with the gradient of the divergence
by automatic differentiation, and with f in symbols.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import Found, Shortfall, at_most, less, printed, same
from kl_book.ledger.claims.ground import errors, worlds
from kl_book.ledger.claims.ground.divergences import GENERATORS, Pair, arguments_exchanged, divergence
from kl_book.ledger.claims.ground.groups import groups
from kl_book.ledger.claims.ground.sums import exact, ref_ratio, slopes
from kl_book.ledger.claims.ground.targets import at_optimum, target, targets
from kl_book.ledger.claims.ground.world import Enumeration, each

Function = Callable[[torch.Tensor], torch.Tensor]


def phi_weight(f: Function, w: torch.Tensor) -> torch.Tensor:
    """phi_f(w) = f'(1/w)."""
    return slopes(f, 1 / w)


def psi_weight(f: Function, w: torch.Tensor) -> torch.Tensor:
    """psi_f(w) = f(w) - w f'(w)."""
    return f(w) - w * slopes(f, w)


def policy_first(f: Function) -> Pair:
    """D_f(pi||pi*)."""
    return divergence(f)


def target_first(f: Function) -> Pair:
    """D_f(pi*||pi)."""
    return arguments_exchanged(divergence(f))


ORDERS = ((policy_first, phi_weight), (target_first, psi_weight))


@claim("EMA-K-logZ", over=each(worlds.bandits))
def log_partition_function_is_the_best_value(w: Enumeration) -> Iterator[Found]:
    """log Z = max of E[R] - KL(pi||ref), reached at pi*; the expected reward alone is another number."""
    best = Enumeration(at_optimum(w.problem))
    yield at_most(best.E(best.R) - best.kl, w.log_z, "inside")
    yield at_most(w.E(w.R) - w.kl, w.log_z - 1e-6, "inside")
    yield same(best.E(best.R) - best.kl, w.log_z, "inside")
    yield same(best.E(best.R), w.log_z)
    yield same(w.E(w.R), w.log_z)


@words("EMA-K-logZ")
def two_even_answers() -> dict[str, Any]:
    """Rewards 1 and 0: log Z, and the expected reward of the optimal policy."""
    even = worlds.two_policies((0.5, 0.5), (0.5, 0.5))._replace(rewards=torch.tensor([1.0, 0.0]).double())
    best = Enumeration(at_optimum(even))
    return {"log_z": float(Enumeration(even).log_z), "reward": float(best.E(best.R))}


def dual(f: Function) -> Function:
    """g_f(w) = w f(1/w)."""
    return lambda w: w * f(1 / w)


def of_ratio(f: Function) -> Pair:
    """f(w) of one sample."""
    return lambda p, q: f((q - p).exp())


def descends(d: Pair, ascended: torch.Tensor, w: Enumeration) -> Shortfall:
    """A small step along E[weight s] lowers the divergence."""
    step = w.Es(ascended)
    moved = w.replace(logits=w.problem.logits + 1e-4 * step / (1 + step.norm()))
    return less(exact(d, moved.problem)[0], exact(d, w.problem)[0], by=1e-12)


@claim("EMA-eq153-157", over=each(targets))
def with_the_policy_first(w: Enumeration) -> Iterator[Found]:
    """D_f(pi||pi*) = E[w f(1/w)]; grad w = -w s; weight g - w g' = f'(1/w), which -phi ascends."""
    ratio = ref_ratio(w.problem)
    yield same(w.slope(of_ratio(torch.log)), -w.s)
    yield same(w.slope(of_ratio(torch.clone)), -ratio[:, None, None] * w.s)
    for f in GENERATORS.values():
        g = dual(f)
        value, slope = exact(policy_first(f), w.problem)
        phi = g(ratio) - ratio * slopes(g, ratio)
        yield same(w.E(g(ratio)), value)
        yield same(phi, phi_weight(f, ratio))
        yield same(w.Es(phi), slope)
        yield descends(policy_first(f), -phi, w)


@claim("EMA-eq158-160", over=each(targets))
def with_the_target_first(w: Enumeration) -> Iterator[Found]:
    """D_f(pi*||pi) = E[f(w)] with the gradient E[(f(w) - w f'(w)) s]."""
    ratio = ref_ratio(w.problem)
    for f in GENERATORS.values():
        value, slope = exact(target_first(f), w.problem)
        by_parts = w.value(of_ratio(f))[:, None, None] * w.s + w.slope(of_ratio(f))
        yield same(w.E(f(ratio)), value)
        yield same(w.Es(psi_weight(f, ratio)), slope)
        yield same(w.E(by_parts), slope)


def differences(d: Pair, w: Enumeration) -> torch.Tensor:
    """Central differences of a divergence in every logit, [rows, vocab]."""
    quotients = torch.zeros_like(w.problem.logits)
    for place in itertools.product(*map(range, quotients.shape)):
        step = torch.zeros_like(quotients)
        step[place] = 1e-5
        up, down = (exact(d, w.replace(logits=w.problem.logits + s * step).problem)[0] for s in (1, -1))
        quotients[place] = (up - down) / 2e-5
    return quotients


@claim("EMA-eq161-162", over=each(lambda: targets()[:6]))
def both_orders(w: Enumeration) -> Iterator[Found]:
    """E[phi s] and E[psi s] are the gradients, against differences of the divergences themselves."""
    for f, (d, weight) in itertools.product(GENERATORS.values(), ORDERS):
        slope = w.Es(weight(f, ref_ratio(w.problem)))
        error = (slope - differences(d(f), w)).abs().max() / (1 + slope.abs().max())
        yield at_most(error, 1e-7)


def ascended(order: tuple[Callable[[Function], Pair], Callable[..., torch.Tensor]]) -> Iterator[Found]:
    """REINFORCE with minus the printed weight: minus the gradient, and a small step lowers the divergence."""
    d, weight = order
    for w in each(targets)():
        for f in GENERATORS.values():
            minus = -weight(f, ref_ratio(w.problem))
            yield same(w.Es(minus), -exact(d(f), w.problem)[1])
            yield descends(d(f), minus, w)


claim_rows(ascended, {"EMA-fig10": [ORDERS[0]], "EMA-fig11": [ORDERS[1]]})


def estimated(w: Enumeration, size: int, weight: Function, *, left_out: bool = False) -> torch.Tensor:
    """Mean gradient with the weight of the estimated w, over all groups; ``w`` is a target.

    ``left_out``: Z of each rollout comes from the others of its group.
    """
    chance, drawn = groups(w.problem, size)
    ratio = ref_ratio(w.problem)[drawn]
    total = ratio.sum(-1, keepdim=True)
    z = (total - ratio) / (size - 1) if left_out else total / size
    return torch.einsum("g,gi,girv->rv", chance, weight(ratio / z), w.s[drawn]) / size


def estimated_by_counts(w: Enumeration, size: int, weight: Function) -> torch.Tensor:
    """`estimated` for two tokens, by the number of firsts in the group, so that groups may be large."""
    n = torch.arange(size + 1, dtype=torch.float64)
    log_count = torch.lgamma(n.new_tensor(size + 1)) - torch.lgamma(n + 1) - torch.lgamma(size - n + 1)
    chance = (log_count + n * w.p[0].log() + (size - n) * w.p[1].log()).exp()
    share, ratio = torch.stack([n, size - n], -1) / size, ref_ratio(w.problem)
    return torch.einsum("n,ni,irv->rv", chance, share * weight(ratio / (share @ ratio)[:, None]), w.s)


def small_target() -> Enumeration:
    """Two answers, so that groups may be large."""
    return Enumeration(target(worlds.bandits()[1]))


def share_of_the_bias(size: int) -> float:
    """Bias of the weight -w in a group of this size, relative to the gradient that the true Z gives."""
    w = small_target()
    right = w.Es(psi_weight(GENERATORS["reverse_kl"], ref_ratio(w.problem)))
    return errors.relative(estimated_by_counts(w, size, torch.neg), right)


@claim("EMA-EM")
def z_from_the_group() -> Iterator[Found]:
    """The group's Z is unbiased; the weights of w with it are biased, by a share that falls like 1/N."""
    for w in each(*targets()[:6])():
        for size in (1, 2, 3):
            chance, drawn = groups(w.problem, size)
            yield same((chance * ref_ratio(w.problem)[drawn].mean(-1)).sum(), 1.0)  # Z-hat over Z
        for size, f in itertools.product((2, 3), ("reverse_kl", "pearson")):
            weight = partial(phi_weight, GENERATORS[f])
            right = w.Es(weight(ref_ratio(w.problem)))
            yield same(estimated(w, size, weight, left_out=True), right, by=errors.relative)
    w = small_target()
    yield same(estimated_by_counts(w, 3, torch.neg), estimated(w, 3, torch.neg))
    yield printed(errors.violation(abs(share_of_the_bias(256) / share_of_the_bias(512) / 2 - 1) - 0.02))


@words("EMA-EM")
def shares_of_the_bias() -> dict[str, Any]:
    """Of groups of 2, 8 and 256."""
    return {f"share_{size}": share_of_the_bias(size) for size in (2, 8, 256)}
