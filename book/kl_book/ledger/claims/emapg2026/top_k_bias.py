"""The bias of the top-k estimators: abstract, section 5.3, algorithms 1 and 2, table 1, figure 2 (emapg2026).

All of these rows have one cause, and one worked example: `numbers_of_the_pull`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import torch

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import Found, corrected, printed, same
from kl_book.ledger.claims.ground import errors, sums, table_one, top_k, worlds
from kl_book.ledger.claims.ground.positions import equal_policies, moments, positions, reference_logps_read
from kl_book.ledger.claims.ground.top_k import PUBLISHED, REPAIRED, bias_of_top_k, mass_gradient
from kl_book.ledger.claims.ground.world import Enumeration
from kl_companion.tabular import Problem

Sets = Callable[[Problem], Iterator[torch.Tensor]]


class Case(NamedTuple):
    """A form with the sets of tokens that are summed; sampled elsewhere or not, held to where it stops."""

    direction: str
    sets: Sets
    elsewhere: bool = False
    stops: bool = False


LIKELIEST = 10  # tokens in the top-k part, of a hundred
MASS = 0.9  # of a top-k part under the reference, for the example of where training stops


@cache
def at_the_reference() -> Problem:
    """Four tokens, policy and reference equal."""
    p = torch.tensor([1.0, 0.5, 0.0, -0.5]).double().softmax(-1).tolist()
    return worlds.two_policies(p, p)


def size_of_the_pull(problem: Problem, k: int) -> float:
    """|grad pi(S)| over |grad KL| for the policy's k likeliest of one softmax, in closed form."""
    p = problem.logits[0].softmax(-1)
    log_ratio = p.log() - problem.ref_logits[0].log_softmax(-1)
    inside = torch.zeros_like(p).index_fill(0, p.topk(k).indices, 1.0)
    pull, right = (p * (x - p @ x) for x in (inside, log_ratio))
    return float(pull.norm() / right.norm())


def stops_at(direction: str, chosen: torch.Tensor, problem: Problem) -> Problem:
    """The policy at which the published form with this fixed set has no expected gradient."""
    q = problem.ref_logits[0].log_softmax(-1)
    inside = chosen.to(q)
    pull = inside if direction == "reverse" else (1 + (q.exp() @ inside).sqrt() - inside).log()
    return problem._replace(logits=(q - pull)[None])


@words(
    *("EMA-abstract-topk", "EMA-eq25-26", "EMA-eq27", "EMA-alg1", "EMA-alg2", "EMA-5.3-anyset"),
    *("EMA-tab1-TopkR", "EMA-tab1-TopkF", "EMA-tab1-TopkF+overall", "EMA-G2-unbiased"),
)
@cache
def numbers_of_the_pull() -> dict[str, Any]:
    """A counterexample at the reference, how large the bias is beside the KL, and where training stops."""
    first, small = torch.tensor([True, False, False, False]), at_the_reference()
    pulls = {
        direction: top_k.mean_of_top_k(PUBLISHED[direction][0], first, small)[1] for direction in PUBLISHED
    }
    several = [p for p in worlds.hedge_bandits() if len(p.sequences) == 100]
    near, _, far = (median(size_of_the_pull(p, LIKELIEST) for p in several[i : i + 10]) for i in (0, 10, 20))
    pair, head = worlds.two_policies((0.5, 0.5), (MASS, 1 - MASS)), torch.tensor([True, False])
    ends = {f"{d}_end": float(stops_at(d, head, pair).logits.softmax(-1)[0, 0]) for d in PUBLISHED}
    return {**pulls, **ends, "near": near, "far": far, "k": LIKELIEST, "mass": MASS}


def algorithm(x: Case) -> Iterator[Found]:
    """Whether the gradient is unbiased for every set, as published and as repaired.

    The corrected error holds what is said of the published form too: its value is unbiased, and its
    gradient is off by plus (reverse) or minus (forward) the gradient of the policy's probability of the set.
    """
    split, truth, sign = PUBLISHED[x.direction]
    for problem in worlds.sampled_elsewhere()[:6] if x.elsewhere else worlds.bandits():
        ratio, right = Enumeration(problem).rho if x.elsewhere else None, sums.exact(truth, problem)
        for chosen in x.sets(problem):
            value, gradient = bias_of_top_k(split, right, chosen, problem, ratio)
            yield same(gradient + right[1], right[1], by=errors.relative)
            yield corrected(abs(value))
            yield same(gradient, sign * mass_gradient(chosen, problem), "corrected")
            for repaired in REPAIRED[x.direction]:
                value, gradient = bias_of_top_k(repaired, right, chosen, problem, ratio)
                yield corrected(abs(value))
                yield same(gradient, 0.0, "corrected")
    small = at_the_reference()
    for repaired in REPAIRED[x.direction]:
        for chosen in x.sets(small):
            yield same(bias_of_top_k(repaired, truth, chosen, small)[1], 0.0, "corrected")
    if x.stops:
        yield from stopping(x)


def stopping(x: Case) -> Iterator[Found]:
    """No expected gradient where the published form is said to stop, for sets that are held fixed."""
    for problem in worlds.bandits()[:6]:
        for chosen in x.sets(problem):
            end = stops_at(x.direction, chosen, problem)
            yield same(top_k.mean_of_top_k(PUBLISHED[x.direction][0], chosen, end)[1], 0.0, "corrected")
            if x.direction == "forward":
                p, q = end.logits[0].softmax(-1), problem.ref_logits[0].softmax(-1)
                yield same(p[chosen].sum(), q[chosen].sum().sqrt(), "corrected")


claim_rows(
    algorithm,
    {
        "EMA-abstract-topk": [Case("reverse", top_k.of_the_policy), Case("forward", top_k.of_the_reference)],
        "EMA-eq25-26": [Case("reverse", top_k.of_the_policy, stops=True)],
        "EMA-eq27": [Case("forward", top_k.of_the_reference, stops=True)],
        "EMA-alg1": [Case("reverse", top_k.of_the_sampler, elsewhere) for elsewhere in (False, True)],
        "EMA-alg2": [Case("forward", top_k.of_the_reference, elsewhere) for elsewhere in (False, True)],
        "EMA-5.3-anyset": [Case(direction, top_k.every_set) for direction in PUBLISHED],
    },
)


# table 1


def _head_mass(problem: Problem, k: int, direction: str) -> torch.Tensor:
    """Gradient of the policy's mass on the top-k part, sum over S of pi s, [rows, vocab]."""
    t = sums.terms(problem)
    chosen = (t.ref_logp if direction == "forward" else t.logp)[:, 0].topk(k).indices
    p = problem.logits[0].softmax(-1)
    return torch.einsum("j,jrv->rv", p[chosen], t.scores[chosen, 0])


def top_k_row(direction: str) -> Iterator[Found]:
    """A row of the table: its gradient fails unless k is 0 or V; value, memory and repair do not."""
    name = {"reverse": "TopkReverseKL", "forward": "TopkForwardKL"}[direction]
    row, (_, truth, sign) = table_one.TABLE_1[name], PUBLISHED[direction]
    yield corrected(table_one.error_of_row(name, bregman=True))
    for number, problem in enumerate(positions() + equal_policies()):
        value, gradient = sums.exact(truth, problem)
        for k, form in enumerate(table_one.estimators_of_row(row, problem)):
            mean, slope = moments(form, problem)
            yield same(mean, value, "corrected")
            yield same(slope - gradient, sign * _head_mass(problem, k, direction), "corrected")
            if number < len(positions()):
                yield same(slope, gradient, by=errors.relative)
    for problem in positions()[::4]:
        yield corrected(table_one.memory_error(row, problem))


claim_rows(top_k_row, {"EMA-tab1-TopkR": ["reverse"], "EMA-tab1-TopkF": ["forward"]})


def _marks(name: str, **options: bool) -> tuple[bool, bool, bool]:
    """The three check marks of a row, computed: value, gradient, overall."""
    row, several = table_one.TABLE_1[name], positions()
    flags = [table_one.unbiased_flags(row, p, **options) for p in several]
    value, gradient = (all(f[i] for f in flags) for i in (0, 1))
    size = several[-1].logits.shape[-1]
    form = table_one.estimators_of_row(row, several[-1], **options)[2 if row.memory == "k" else 0]
    return value, gradient, value and gradient and reference_logps_read(form, several[-1]) < size


@claim("EMA-tab1-TopkF+overall")
def overall_column() -> Iterator[Found]:
    """The last column is earned by unbiased values, unbiased gradients and less than O(V): counted."""

    def wrong(**options: bool) -> float:
        count = 0
        for name, row in table_one.TABLE_1.items():
            marks = _marks(name, **(options if row.memory == "k" else {}))
            count += marks != (row.value_unbiased, row.gradient_unbiased, row.overall)
        return count / len(table_one.TABLE_1)

    yield printed(wrong())
    yield corrected(wrong(bregman=True))
