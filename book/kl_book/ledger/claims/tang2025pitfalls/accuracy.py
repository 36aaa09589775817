"""Figure 2 and eq (5): how accurate estimates of the gradient are (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, less, numbers, printed, same
from kl_book.ledger.claims.ground.world import each, two
from kl_book.ledger.claims.ground.worlds import arms, hedge_bandits, worlds
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
    yield printed(float((left >= plain)[:, tried].double().mean()))
    yield at_most(share[first], 1.0, "inside")
    yield at_most(1 - DEGREE, share[last - 1], "inside")
    yield at_most(share[1:], share[:-1], "inside")
    yield numbers(fewest=int(sizes[first]), most=int(sizes[last - 1]), DEGREE=DEGREE)
    yield numbers(worse=int((left >= plain)[:, 2].sum()), bandits=len(left), largest=int(sizes[-1]))
    yield numbers(share_2=share[0], share_4=share[2], share_16=share[14], share_largest=share[-1])


@claim("TM-fig2")
def errors_of_the_gradients_against_the_sample_size() -> Iterator[Found]:
    """The error of vanilla falls like one over root n; the incorrect ones level off at their bias."""
    sizes = 2 ** torch.arange(11)
    vanilla = draw_statistics("k1", arms(), placement="reward").at(sizes)
    right = torch.as_tensor(vanilla.gradient_rmse).mean(0)
    yield same(right * sizes.double().sqrt(), right[0])
    for k in ("k1", "k3"):
        moments = draw_statistics(k, arms(), placement="loss").at(sizes)
        floor, rmse = (
            float(torch.as_tensor(x).mean(0)[-1]) for x in (moments.gradient_bias, moments.gradient_rmse)
        )
        yield less(float(right[-1]), floor)
        yield at_most(floor, rmse)
        yield less(rmse, 1.25 * floor)


@claim("TM-eq5")
def analytic_gradient_is_exact_and_of_less_variance() -> Iterator[Found]:
    """The sum over all outcomes is the gradient; a sample varies where the outcomes do not tie."""
    for w in each(worlds, hedge_bandits)():
        yield same(w.E(w.vanilla()), w.d_kl)
        yield less(0.0, w.var(w.vanilla()))
    root = _second_root()
    tied = two((0.75, 0.25), (1 - root, root))
    yield at_most(tied.var(tied.vanilla()), 1e-12)
    yield numbers(first=1 - root, second=root)


def _second_root(p: float = 0.25) -> float:
    """The other q at which (1 - p) log(p/q) + p log((1 - p)/(1 - q)) = 0: both arms give one gradient."""
    low, high = 1 - p, 1 - 1e-12
    for _ in range(200):
        q = torch.tensor((low + high) / 2, dtype=torch.float64)
        above = (1 - p) * torch.log(p / q) + p * torch.log((1 - p) / (1 - q)) > 0
        low, high = (low, float(q)) if above else (float(q), high)
    return low
