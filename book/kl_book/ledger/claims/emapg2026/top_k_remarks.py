"""Section 6 and figure 8: remarks on what head and tail of Top-k KL are good for (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.estimates import k4, k5, top_k_estimate
from kl_book.ledger.claims.ground.off_policy import rho
from kl_book.ledger.claims.ground.positions import SMALLEST_BIAS
from kl_book.ledger.claims.ground.sums import differentiated, exact, forward_kl, reverse_kl, terms, values
from kl_book.ledger.claims.ground.synthetic_task import HEADS, SyntheticTask, forms, tasks
from kl_book.ledger.claims.ground.top_k import PUBLISHED, bias_of_top_k, of_the_reference, of_the_sampler
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere, three_policies
from kl_companion.tabular import Problem


@claim("EMA-6-positive-k")
def without_a_head_nothing_changes() -> Iterator[Found]:
    """k = 0 is K4 (forward: K5) sample by sample; each k of appendix G lowers the noise of every task."""
    errors = []
    for problem in bandits():
        for forward, sampled, truth in ((False, k4, reverse_kl), (True, k5, forward_kl)):
            everything = partial(top_k_estimate, k=len(terms(problem).p), forward=forward)
            errors.append(apart(values(everything, problem), exact(truth, problem)[0]))  # no noise is left
            none = partial(top_k_estimate, k=0, forward=forward)
            errors.append(apart(differentiated(none, problem), differentiated(sampled, problem)))
            errors.append(apart(values(none, problem), values(sampled, problem)))
    kept = {k: [_noise(x, k) for x in tasks()] for k in HEADS}
    errors += [less(share, 1.0) for shares in kept.values() for share in shares]
    first, last = (kept[k] for k in (HEADS[0], HEADS[-1]))
    yield from each_form(
        worst(errors),
        min_first=min(first),
        max_first=max(first),
        HEADS_0=HEADS[0],
        min_last=min(last),
        max_last=max(last),
        HEADS_1=HEADS[-1],
    )


def _noise(x: SyntheticTask, k: int) -> float:
    """Standard deviation of one draw of the published form, as a share of that of the sampled one."""
    return forms(x, k)["published"].noise / forms(x, k)["sampled"].noise


def _tails(problem: Problem, direction: str, chosen: torch.Tensor) -> tuple[float, float, float]:
    """Bias of the value: with the tail corrected by pi/mu, as it is sampled, and without a tail."""
    split, truth, _ = PUBLISHED[direction]
    without = split._replace(tail=lambda p, q: 0 * p)
    corrected = bias_of_top_k(split, truth, chosen, problem, rho(problem))
    left, dropped = (bias_of_top_k(x, truth, chosen, problem) for x in (split, without))
    return abs(corrected[0]), abs(left[0]), abs(dropped[0])


def _outside(problem: Problem, direction: str, chosen: torch.Tensor) -> float:
    """The part of the KL that the tokens outside the head hold, by its definition."""
    p, q = problem.logits[0].log_softmax(-1), problem.ref_logits[0].log_softmax(-1)
    a, b = (p, q) if direction == "reverse" else (q, p)
    return abs((a.exp() * (a - b))[~chosen].sum().item())


@claim("EMA-fig8-tail")
def an_uncorrected_tail() -> Iterator[Found]:
    """Corrected it is right; as it is sampled, and dropped, it misses the KL."""
    errors, count, worse = [], 0, {"reverse": 0, "forward": 0}
    near = three_policies((0.5, 0.3, 0.2), (0.2, 0.35, 0.45), (0.48, 0.33, 0.19))
    for problem in (*sampled_elsewhere()[:6], near):
        for direction, heads_of in (("reverse", of_the_sampler), ("forward", of_the_reference)):
            for chosen in [*heads_of(problem)][1:-1]:
                corrected, left, dropped = _tails(problem, direction, chosen)
                errors += [corrected, violation(SMALLEST_BIAS - left), violation(SMALLEST_BIAS - dropped)]
                errors.append(apart(dropped, _outside(problem, direction, chosen)))
                count += 1
                worse[direction] += left > dropped
    example = _tails(near, "reverse", torch.tensor([True, False, False]))
    yield from each_form(
        worst(errors),
        worse_reverse=worse["reverse"],
        worse_forward=worse["forward"],
        number=count // 2,
        example_1=example[1],
        example_2=example[2],
    )
