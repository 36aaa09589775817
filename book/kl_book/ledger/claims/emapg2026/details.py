"""Appendix A, details of Top-k KL: both estimators written out, on- and off-policy (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import worst
from kl_book.ledger.claims.ground.estimates import score_ratio
from kl_book.ledger.claims.ground.off_policy import rho
from kl_book.ledger.claims.ground.sums import exact, forward_kl, reverse_kl
from kl_book.ledger.claims.ground.top_k import (
    FORWARD,
    REVERSE,
    WrittenSplit,
    bias_of_top_k,
    of_the_reference,
    of_the_sampler,
)
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere, two_policies


def _value(split: WrittenSplit, *, forward: bool) -> float:
    """Largest bias of the value, with every number of likeliest tokens in the head and no clip."""
    truth, heads = (forward_kl, of_the_reference) if forward else (reverse_kl, of_the_sampler)
    off = []
    for problem in [*bandits()[:6], *sampled_elsewhere()[:6]]:
        ratio = rho(problem)
        off += [abs(bias_of_top_k(split, truth, chosen, problem, ratio)[0]) for chosen in heads(problem)]
    return worst(off)


@claim("EMA-appA-sign")
def sampled_part_of_the_reverse_form() -> Iterator[Found]:
    """r sg(log(pi_ref/pi)) is minus K4: the tail is subtracted."""
    printed = WrittenSplit(REVERSE.head, lambda p, q: score_ratio(p) * (q - p).detach())
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    (head,) = (x for x in of_the_sampler(small) if x.sum() == 1)
    off, kl = bias_of_top_k(printed, reverse_kl, head, small)[0], exact(reverse_kl, small)[0]
    yield from each_form(
        _value(printed, forward=False), _value(REVERSE, forward=False), number=kl + off, kl=kl
    )


@claim("EMA-appA-fkl")
def forward_form_written_out() -> Iterator[Found]:
    """Head and tail of algorithm 2, in value; its gradient is another row (EMA-alg2)."""
    yield from each_form(_value(FORWARD, forward=True))
