"""Figure 2 and eq (5): how accurate estimates of the gradient are (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.groups import vanilla
from kl_book.ledger.claims.ground.sums import exact, mean, reverse_kl, terms, variance
from kl_book.ledger.claims.ground.worlds import arms, hedge_bandits, two_policies, worlds
from kl_book.ledger.claims.standard import DEGREE
from kl_companion.tabular import draw_statistics


@claim("TM-fig2-LOO")
def leave_one_out_has_marginally_smaller_variance() -> Iterator[Found]:
    """On average over bandits of appendix C it loses for few samples and wins for many."""
    sizes = torch.arange(2, 1025)
    plain, left = (
        torch.as_tensor(
            draw_statistics("k1", arms(), placement="reward", baseline=b).at(sizes).gradient_variance
        )
        for b in (None, "leave_one_out")
    )
    share = left.mean(0) / plain.mean(0)  # falls with n
    first, last = int((share >= 1).sum()), int((share >= 1 - DEGREE).sum())
    tried = 2 ** torch.arange(1, 11) - 2  # places of n = 2, 4, ..., 1024
    against, own = (left >= plain)[:, tried].double().mean(), int((left >= plain)[:, 2].sum())
    yield from each_form(
        float(against),
        inside=violation(
            float(share[first]) - 1,
            1 - DEGREE - float(share[last - 1]),
            float((share[1:] - share[:-1]).max()),
        ),
        int=int(sizes[first]),
        int_2=int(sizes[last - 1]),
        DEGREE=DEGREE,
        float=float(share[2]),
        own=own,
        number_of_left=len(left),
        float_2=float(share[0]),
        float_3=float(share[14]),
        float_4=float(share[-1]),
        int_3=int(sizes[-1]),
    )


@claim("TM-fig2")
def errors_of_the_gradients_against_the_sample_size() -> Iterator[Found]:
    """The error of vanilla falls like one over root n; the incorrect ones level off at their bias."""
    sizes = 2 ** torch.arange(11)
    found = {
        (name, placement): draw_statistics(name, arms(), placement=placement).at(sizes)  # type: ignore[arg-type]
        for name, placement in (("k1", "reward"), ("k1", "loss"), ("k3", "loss"))
    }
    rmse = {key: torch.as_tensor(m.gradient_rmse).mean(0) for key, m in found.items()}
    right = rmse["k1", "reward"]
    errors = [apart(right * sizes.double().sqrt(), right[0])]
    for key in (("k1", "loss"), ("k3", "loss")):
        floor = float(torch.as_tensor(found[key].gradient_bias).mean(0)[-1])
        errors += [less(float(right[-1]), floor), less(floor, float(rmse[key][-1]), by=0.0)]
        errors.append(less(float(rmse[key][-1]), 1.25 * floor))
    yield from each_form(worst(errors))


@claim("TM-eq5")
def analytic_gradient_is_exact_and_of_less_variance() -> Iterator[Found]:
    """The sum over all outcomes is the gradient; a sample varies where the outcomes do not tie."""
    errors = []
    for problem in (*worlds(), *hedge_bandits()):
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        errors += [
            apart(mean(t.p, vanilla(problem)), gradient),
            less(0.0, variance(t.p, vanilla(problem))),
        ]
    other = two_policies((0.75, 0.25), (1 - _second_root(), _second_root()))
    tied = variance(terms(other).p, vanilla(other))
    yield from each_form(
        max(worst(errors), violation(tied - 1e-12)), number=1 - _second_root(), second_root=_second_root()
    )


def _second_root(p: float = 0.25) -> float:
    """The other q at which (1 - p) log(p/q) + p log((1 - p)/(1 - q)) = 0: both arms give one gradient."""
    low, high = 1 - p, 1 - 1e-12
    for _ in range(200):
        q = torch.tensor((low + high) / 2, dtype=torch.float64)
        above = (1 - p) * torch.log(p / q) + p * torch.log((1 - p) / (1 - q)) > 0
        low, high = (low, float(q)) if above else (float(q), high)
    return low
