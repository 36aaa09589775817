"""What the source says of the work of others, as far as it can be computed (emapg2026)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, differs, printed, same
from kl_book.ledger.claims.ground import best_policies, sequences, sums, targets
from kl_book.ledger.claims.ground.divergences import GENERATORS, NAMED, divergence
from kl_book.ledger.claims.ground.errors import apart, worst
from kl_book.ledger.claims.ground.estimates import SAMPLED
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere


@claim("EMA-intro-objectives")
def two_ways_of_adding_a_kl() -> Iterator[Found]:
    """K1 of sequences in the reward follows the KL's gradient, K3 per token in the loss another field."""
    for w in each(sequences.longer_trees)():
        added = w.Es(w.l)
        of_k2, of_k3 = (w.grad(SAMPLED[name], per_token=True) for name in ("K2", "K3"))
        yield same(added, w.d_kl)
        yield same(of_k3, w.partial(forward=True))
        yield differs(of_k2, added)  # the level by itself is enough
        yield differs(of_k3, added)
    for w in each(bandits)():  # and so is the direction, with one token
        yield differs(w.grad(SAMPLED["K3"]), w.Es(w.l))


def with_discriminator(f: str, at: torch.Tensor, w: Enumeration) -> float:
    """E_P[T] - E_Q[f*(T)], T = f'(at), which f-GAN's discriminator maximizes; f*(f'(t)) = t f'(t) - f(t)."""
    conjugate = at * sums.slopes(GENERATORS[f], at) - GENERATORS[f](at)
    return float(w.E(sums.slopes(GENERATORS[f], at)) - w.ref @ conjugate)


def implied_rewards(name: str, w: Enumeration, beta: float) -> float:
    """Error of "beta f'(pi*/ref) are the rewards up to one number", at the optimum under a divergence."""
    tilt = best_policies.best_policy(name, w.problem, beta).policy / w.ref
    derivative = sums.slopes(best_policies.case(name).f, tilt)
    rest = beta * derivative - w.R
    return apart(rest, rest[0]) / (1 + beta * float(derivative.abs().max()))


@claim("EMA-K-generalize", over=each(bandits))
def special_cases_of_f_divergences(w: Enumeration) -> Iterator[Found]:
    """GAN is f-GAN with Jensen-Shannon, DPO is f-DPO with t log t, and every f has its own."""
    p, q = w.p, w.ref
    gan = w.E((p / (p + q)).log()) + q @ (q / (p + q)).log()
    yield same(gan, 2 * sums.exact(NAMED["Jensen-Shannon"], w.problem)[0] - 2 * math.log(2))
    for name, f in GENERATORS.items():
        value = sums.exact(divergence(f), w.problem)[0]
        yield same(with_discriminator(name, p / q, w) / (1 + value), value / (1 + value))
        for other in (
            torch.ones_like(p),
            (p / q).sqrt(),
            (p / q).flip(0),
        ):  # any other discriminator is below
            yield at_most(with_discriminator(name, other, w), value + 1e-12 * (1 + value))
    dpo = sums.slopes(GENERATORS["reverse_kl"], w.l.exp()) - w.l
    yield same(dpo, dpo[0])  # DPO's implicit reward, up to a number that cancels in pairs
    for beta in best_policies.BETAS:
        for name in ("Reverse KL", "Forward KL", "Jensen-Shannon", "Squared Hellinger"):
            yield printed(implied_rewards(name, w, beta))


@words("EMA-J4-offpolicy+prior")
def rest_points() -> dict[str, Any]:
    """Losses whose gradients vanish at the optimum sample by sample, whoever samples, and the others."""
    at_the_optimum = [Enumeration(targets.at_optimum(p)) for p in sampled_elsewhere() if p.rows.shape[1] == 1]
    size = {name: worst(apart(w.at_target(fn), 0.0) for w in at_the_optimum) for name, fn in SAMPLED.items()}
    return {
        "at_rest": [name for name, x in size.items() if x < 1e-9],
        "moving": [name for name, x in size.items() if x >= 1e-9],
        "bandits": len(at_the_optimum),
    }
