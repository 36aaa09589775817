"""Tables 3 and 4 and section 6.2.1: values and gradients of estimates of one token (yao2026future)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch

from kl_book.ledger.claims.checks import claim, claim_rows
from kl_book.ledger.claims.comparisons import Found, at_most, differs, numbers, rises, same
from kl_book.ledger.claims.ground.estimates import Estimate, exact_forward, exact_reverse, k1, k2, k3
from kl_book.ledger.claims.ground.positions import moments, positions
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere

BIASED = 1e-8  # at least, in every single world


def k3_plus(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """The value of k3 and the gradient of k2."""
    square = k2(logp, ref_logp)
    return square - square.detach() + k3(logp, ref_logp).detach()


def exchanged(estimate: Estimate) -> Estimate:
    """The same estimate with policy and reference exchanged: of the forward KL."""
    return lambda logp, ref_logp: estimate(ref_logp, logp)


class EstimateRow(NamedTuple):
    """A row of table 3 or 4: whether an estimate is unbiased in value and gradient, and never negative."""

    estimate: Estimate
    value: bool
    gradient: bool
    positive: bool
    target: Literal["reverse", "forward"] = "reverse"


def _positions(row: EstimateRow) -> Iterator[Enumeration]:
    """One token, sampled from the policy, or of the forward KL from the reference."""
    for w in each(positions)():
        yield w if row.target == "reverse" else w.replace(behavior_logits=w.problem.ref_logits)


def _truth(w: Enumeration, target: str = "reverse") -> tuple[float, torch.Tensor]:
    """Value and gradient of the divergence."""
    return (w.forward, w.d_forward) if target == "forward" else (w.kl, w.d_kl)


def row_of_a_table(row: EstimateRow) -> Iterator[Found]:
    """Unbiased or not in value and gradient, never negative or negative somewhere."""
    least = math.inf
    for w in _positions(row):
        (value, gradient), (kl, d_kl) = moments(row.estimate, w.problem), _truth(w, row.target)
        yield same(value, kl) if row.value else differs(value, kl, by=BIASED)
        yield same(gradient, d_kl) if row.gradient else differs(gradient, d_kl, by=BIASED)
        least = min(least, float(row.estimate(w.t.logp[:, 0], w.t.ref_logp[:, 0]).min()))
    yield at_most(-1e-12, least) if row.positive else at_most(least, -1e-6)


FORWARD_K1 = EstimateRow(exchanged(k1), value=True, gradient=True, positive=False, target="forward")
FORWARD_K2 = EstimateRow(exchanged(k2), value=False, gradient=False, positive=True, target="forward")
FORWARD_K3 = EstimateRow(exchanged(k3), value=True, gradient=True, positive=True, target="forward")
ROWS = {
    "FRPO-tab3-k1": [EstimateRow(k1, value=True, gradient=False, positive=False)],
    "FRPO-tab3-k2": [EstimateRow(k2, value=False, gradient=True, positive=True)],
    "FRPO-tab3-k3": [EstimateRow(k3, value=True, gradient=False, positive=True)],
    "FRPO-tab3-k3plus": [EstimateRow(k3_plus, value=True, gradient=True, positive=True)],
    "FRPO-tab3-full": [EstimateRow(exact_reverse, value=True, gradient=True, positive=True)],
    "FRPO-tab4-k1": [FORWARD_K1],
    "FRPO-tab4-k3": [FORWARD_K3],
    "FRPO-tab4-full": [
        EstimateRow(exact_forward, value=True, gradient=True, positive=True, target="forward")
    ],
    "FRPO-B2-values": [FORWARD_K1, FORWARD_K2, FORWARD_K3],
}
claim_rows(row_of_a_table, ROWS)


@claim("FRPO-tab4-k2")
def row_of_forward_k2() -> Iterator[Found]:
    """Biased in both, never negative; the value is half the variance and half the square of the KL."""
    yield from row_of_a_table(FORWARD_K2)
    for w in _positions(FORWARD_K2):
        yield same(moments(exchanged(k2), w.problem)[0], (w.var(w.l) + w.forward**2) / 2)


@claim("FRPO-tab3-off", over=each(lambda: (p for p in sampled_elsewhere() if p.rows.shape[1] == 1)))
def older_samples_bias_every_estimate(w: Enumeration) -> Iterator[Found]:
    """What is right under the policy itself is off under another sampler, in value and in gradient."""
    own = w.replace(behavior_logits=None)
    for id in ("FRPO-tab3-k1", "FRPO-tab3-k2", "FRPO-tab3-k3", "FRPO-tab3-k3plus"):
        estimate, *unbiased, _, _ = ROWS[id][0]
        estimates = (moments(estimate, x.problem) for x in (own, w))
        for here, there, right, was_right in zip(*estimates, _truth(own), unbiased, strict=True):
            if was_right:
                yield same(here, right)
            yield differs(there, right, by=BIASED)


@claim("FRPO-6.2.1-modes")
def what_each_direction_punishes() -> Iterator[Found]:
    """The forward KL of a token that the policy drops has no bound, nor the reverse KL of one that is new."""
    half, costs = (0.5, 0.5), []
    for rare in (1e-3, 1e-6, 1e-12):
        dropped, unlikely = two((rare, 1 - rare), half), two(half, (rare, 1 - rare))
        costs.append((dropped.forward, unlikely.kl))
        yield at_most(max(dropped.kl, unlikely.forward), math.log(2))
    yield from (rises(of_one, by=1.0) for of_one in zip(*costs, strict=True))
    yield numbers(nats=costs[-1][0])
