"""Appendix A, details of Top-k KL: both estimators written out, on- and off-policy (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, same
from kl_book.ledger.claims.ground import estimates, top_k, worlds
from kl_book.ledger.claims.ground.world import Enumeration, each, two

PRINTED = top_k.WrittenSplit(top_k.REVERSE.head, lambda p, q: estimates.score_ratio(p) * (q - p).detach())
decisions = each(*worlds.bandits()[:6], *worlds.sampled_elsewhere()[:6])


@claim("EMA-appA-sign", over=decisions)
def sampled_part_of_the_reverse_form(w: Enumeration) -> Iterator[Found]:
    """r sg(log(pi_ref/pi)) is minus K4: the tail is subtracted."""
    for head in top_k.of_the_sampler(w.problem):
        yield same(top_k.mean_of_top_k(PRINTED, head, w.problem, w.rho)[0], w.kl)
        yield same(top_k.mean_of_top_k(top_k.REVERSE, head, w.problem, w.rho)[0], w.kl, "corrected")


@words("EMA-appA-sign")
def likelier_token_in_the_top_k_part() -> dict[str, Any]:
    """Mean of the printed form, and the KL."""
    w = two((0.75, 0.25), (0.5, 0.5))
    return {"mean": top_k.mean_of_top_k(PRINTED, torch.tensor([True, False]), w.problem)[0], "kl": w.kl}


@claim("EMA-appA-fkl", over=decisions)
def forward_form_written_out(w: Enumeration) -> Iterator[Found]:
    """Head and tail of algorithm 2, in value; its gradient is another row (EMA-alg2)."""
    for head in top_k.of_the_reference(w.problem):
        yield same(top_k.mean_of_top_k(top_k.FORWARD, head, w.problem, w.rho)[0], w.forward)
