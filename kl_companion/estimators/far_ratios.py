"""Entries Q f(P/Q) whose factors the dtype does not hold: a mass that is 0 times a power that is infinite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import sympy
import torch

from kl_companion.divergences import Divergence, T, torch_function


@cache
def _terms(d: Divergence, slope: bool) -> list[tuple[float, Callable[[torch.Tensor], torch.Tensor]]]:
    """f(t), or t f'(t), as a sum of t^k times what grows slower, functions of log t: the k and these."""
    u = sympy.Symbol("u", real=True)
    found = []
    for term in sympy.Add.make_args(sympy.expand(sympy.powsimp(sympy.expand(d.f.subs(T, sympy.exp(u)))))):
        power, rest = sympy.S.Zero, sympy.S.One
        for factor in sympy.Mul.make_args(term):
            k = factor.exp.coeff(u) if isinstance(factor, sympy.exp) else sympy.S.Zero
            power, rest = power + k, rest * (factor if k == 0 else sympy.exp(factor.exp - k * u))
        found.append((float(power), torch_function(rest.diff(u) + power * rest if slope else rest, u)))
    return found


def far_entries(
    d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor, *, slope: bool = False
) -> torch.Tensor:
    """Q f(P/Q) of every entry, from finite log-probs that lie far apart: powers and masses in one exponent.

    With ``slope`` its derivative by log P, which is P f'(P/Q).

    Where the two are near, its terms cancel.
    """
    u = log_p - log_q
    # (1 - k) log Q + k log P and not log Q + k u: an infinite slope must not be taken from another
    each = [((1 - k) * log_q + k * log_p).exp() * rest(u) for k, rest in _terms(d, slope)]
    return torch.stack(each).sum(0)


def held_entries(
    inside: Callable[..., torch.Tensor], d: Divergence, log_p: torch.Tensor, log_q: torch.Tensor
) -> torch.Tensor:
    """``inside(d, log_p, log_q)``, and where that is not finite, `far_entries`."""
    found = inside(d, log_p, log_q)
    if found.detach().sum().isfinite():
        return found
    far = ~found.detach().isfinite()
    near = inside(d, log_p.masked_fill(far, 0.0), log_q.masked_fill(far, 0.0))
    return near.masked_scatter(far, far_entries(d, log_p[far], log_q[far]))
