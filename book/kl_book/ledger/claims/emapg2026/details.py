"""Appendix A, details of Top-k KL: both estimators written out, on- and off-policy (emapg2026)."""

from __future__ import annotations

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
from kl_book.ledger.claims.ledger import Evidence, claim


def _value(split: WrittenSplit, *, forward: bool) -> float:
    """Largest bias of the value, with every number of likeliest tokens in the head and no clip."""
    truth, heads = (forward_kl, of_the_reference) if forward else (reverse_kl, of_the_sampler)
    off = []
    for problem in [*bandits()[:6], *sampled_elsewhere()[:6]]:
        ratio = rho(problem)
        off += [abs(bias_of_top_k(split, truth, chosen, problem, ratio)[0]) for chosen in heads(problem)]
    return worst(off)


@claim("EMA-appA-sign")
def sampled_part_of_the_reverse_form() -> Evidence:
    """r sg(log(pi_ref/pi)) is minus K4: the tail is subtracted."""
    printed = WrittenSplit(REVERSE.head, lambda p, q: score_ratio(p) * (q - p).detach())
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    (head,) = (x for x in of_the_sampler(small) if x.sum() == 1)
    off, kl = bias_of_top_k(printed, reverse_kl, head, small)[0], exact(reverse_kl, small)[0]
    return Evidence(
        _value(printed, forward=False),
        _value(REVERSE, forward=False),
        agrees_with="EMA-eq23",
        correction=r"$r\,\sg(\log(\pi/\pref))$, which is K4; for the gradient see EMA-alg1",
        counterexample=(
            "policy (3/4, 1/4), reference (1/2, 1/2), the first token in the top-k part: the mean is "
            f"{kl + off:.4f}, the KL is {kl:.4f}"
        ),
        practice=(
            "none for code that follows eq (23) or algorithm 1. Written by the details, the sampled rest is "
            "subtracted: a logged KL is off by twice the rest, and tokens outside the top k are pushed away "
            "from the reference"
        ),
        unit="difference",
    )


@claim("EMA-appA-fkl")
def forward_form_written_out() -> Evidence:
    """Head and tail of algorithm 2, in value; its gradient is another row (EMA-alg2)."""
    return Evidence(_value(FORWARD, forward=True))
