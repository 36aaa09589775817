"""Divergences of a few rows of raw logits and their gradients, in the cache.

One block is a handful of rows [rows, vocab], small enough to stay in the cache while a dozen operations
pass over it; `kl_companion.kernels.block_walks` walks blocks over whole logits. For logits x and y of
policy P and reference Q let z = (y - x) - E_P[y - x], which is log(Q/P) up to a constant. Then

    log t = log(1 + A) - z,      A = E_P[e^z - 1] = E_P[e^z - 1 - z],
    gradient of D_f(P || Q) by x  =  P (f'(t) - E_P f'(t)),

so no normalizer of either row is needed. A is a sum of terms that are never negative, and near the reference
a constant error of log t changes the value of an f-divergence by a share of itself only: nothing cancels, and
policies a thousandth apart are as accurate as distant ones (log P - log Q in float32 is not).

The formula needs e^z within reach of the dtype. Where it is not, float64 takes over, and where a token is
masked in one of the two rows only, `general_rows`: slower, for every f and every mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch

from kl_companion.divergences import (
    DIVERGENCES,
    Divergence,
    T,
    function_of_log,
    generator_of_log,
    make_divergence,
    tidy,
)
from kl_companion.estimators.vocabulary import far_entries
from kl_companion.kernels.blocks import softmax_at

_REACHES = (40.0, 20.0, 10.0, 5.0)  # |z| up to which the formula may be allowed
_NEGLIGIBLE = 1e-15  # what the tokens below float32's smallest probability may add to a divergence
_NEAR = 0.05  # excess below which z + e^-z - 1 loses digits that matter
_HEAVY = 1e-5  # probability above which a token gets them back; the errors of the others average out


class Centered(NamedTuple):
    """The policy and z of a block; ``spare`` is scratch of the same shape."""

    p: torch.Tensor  # of which the sum of a row is ``mass``, 1 up to rounding
    z: torch.Tensor
    spare: torch.Tensor
    mass: torch.Tensor  # [rows]


def mean_of(a: torch.Tensor, rows: Centered) -> torch.Tensor:
    """E_P a of every row, [rows], in ``rows.spare``; torch.sum adds in pairs, a dot product would not."""
    return torch.mul(rows.p, a, out=rows.spare).sum(-1).div_(rows.mass)


def _offset_difference(y: torch.Tensor, x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """(y - x) - offset, offset [rows, 1], without the rounding of y - x where rows lie far apart."""
    difference = y - x
    back = y - difference
    lost = (y - (difference + back)) + (back - x)  # what the rounding took, exactly
    return (difference - offset) + lost


def _center(rows: Centered, z: torch.Tensor) -> torch.Tensor:
    """Take E_P z from z, in place, twice: after the first the rest is small and exact where P is near 1."""
    shift = mean_of(z, rows)
    z.sub_(shift.unsqueeze(-1))
    z.sub_(mean_of(z, rows).unsqueeze(-1))
    return shift


def center_rows(
    x: torch.Tensor,
    y: torch.Tensor,
    scratch: Sequence[torch.Tensor],
    reach: float,
    temperature: float = 1.0,
    *,
    both_sides: bool = True,
) -> Centered | None:
    """A block of raw logits in scratch (three of [rows, vocab]), or None where e^z is out of reach.

    Of both sides of z, or of the upper one only: below, e^z vanishes, which troubles neither KL.

    Tokens that are -inf in both rows get P = 0 and z = 0. The temperature divides the difference of the
    logits: dividing each first would round them by more than near policies differ.
    """
    p, z = softmax_at(x, temperature, scratch[0]), scratch[1]
    rows = Centered(p, z, scratch[2], p.sum(-1))
    reach = reach * temperature
    torch.sub(y, x, out=z)
    shift = _center(rows, z)
    width = torch.maximum(-z.amin(-1), z.amax(-1)) if both_sides else z.amax(-1)
    # the second: the rounding of y - x must not be seen in what tells the tokens apart
    if bool(((width < reach) & (shift.abs() <= 2 * width)).all()):
        return rows if temperature == 1.0 else rows._replace(z=z.div_(temperature))
    dead = x.isneginf()
    if not torch.equal(dead, y.isneginf()) or not p.isfinite().all():
        return None
    torch.sub(y, x, out=z).masked_fill_(dead, 0.0)
    shift = mean_of(z, rows).unsqueeze(-1)
    z.copy_(_offset_difference(y, x, shift)).masked_fill_(dead, 0.0)
    _center(rows, z)
    z.masked_fill_(dead, 0.0)
    return rows._replace(z=z.div_(temperature)) if bool((z.abs().amax(-1) < reach).all()) else None


@cache
def _functions(d: Divergence) -> tuple[Callable[[torch.Tensor], torch.Tensor], ...]:
    """f(t)/t by log 1/t, and f'(t) by log t: values and fields within reach."""
    return generator_of_log(d, dual=True), function_of_log(d.derivative)


@cache
def reach_of(d: Divergence) -> float:
    """The largest |z| for which no entry overflows float32 and no entry lost by underflow matters."""
    value, field = _functions(d)
    smallest = torch.finfo(torch.float32).tiny
    for reach in _REACHES:
        ends = torch.tensor([-reach, reach])  # of log t
        found = torch.stack([value(-ends), field(ends)])
        if (found[:, 0].abs() * smallest < _NEGLIGIBLE).all() and found.isfinite().all():
            return reach
    return 0.0


def _mean(
    rows: Centered, z: torch.Tensor, plain: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor] | None
) -> torch.Tensor:
    """E_P fn(z) of every row, [rows], from ``plain``, which is fn(z) as float32 has it and is overwritten.

    With fn, the heavy tokens' fn is computed again in float64: near policies lose digits in it.
    """
    p, gained = rows.p, None
    if fn is not None:
        row, token = (p > _HEAVY).nonzero(as_tuple=True)
        lost = fn(z[row, token].double()) - plain[row, token]
        gained = torch.zeros(p.shape[0], dtype=torch.float64, device=p.device)
        gained.index_add_(0, row, p[row, token] * lost)
    total = plain.mul_(p).sum(-1)
    return (total if gained is None else total + gained.to(p.dtype)).div_(rows.mass)


def _bregman(z: torch.Tensor) -> torch.Tensor:
    return torch.expm1(z) - z


def excess_of(rows: Centered) -> torch.Tensor:
    """A = E_P[e^z - 1 - z] of every row, [rows]; overwrites ``rows.spare``."""
    z, spare = rows.z, rows.spare
    excess = _mean(rows, z, torch.exp(z, out=spare).sub_(1.0), None)
    if bool((excess >= _NEAR).all()):
        return excess
    narrow = z.dtype == torch.float32
    return _mean(rows, z, torch.expm1(z, out=spare).sub_(z), _bregman if narrow else None)


def value_of(d: Divergence, rows: Centered, excess: torch.Tensor) -> torch.Tensor:
    """D_f(P || Q) of every row, [rows]; overwrites ``rows.spare``, and for forward KL ``rows.z``."""
    if d.name == "reverse_kl":
        return excess.log1p()
    if d.name == "forward_kl":
        tilted = _tilt(rows, excess)
        return rows.z.mul_(tilted).sum(-1) / (rows.mass * (1 + excess)) - excess.log1p()
    fn = _functions(d)[0]
    minus_u = rows.z - excess.log1p().unsqueeze(-1)
    near = rows.p.dtype == torch.float32 and bool((excess < _NEAR).any())
    return _mean(rows, minus_u, fn(minus_u), fn if near else None)


def _tilt(rows: Centered, excess: torch.Tensor) -> torch.Tensor:
    """P (e^z - 1 - A) = (1 + A) (Q - P), in ``rows.spare``."""
    return torch.expm1(rows.z, out=rows.spare).sub_(excess.unsqueeze(-1)).mul_(rows.p)


def gradient_of(
    d: Divergence,
    rows: Centered,
    excess: torch.Tensor,
    loss_weight: torch.Tensor,
    *,
    after_value: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """loss_weight [rows] times the gradient of D_f(P || Q) by the logits of P, as a product.

    May overwrite every part of rows; ``after_value`` says that `value_of` has just run on them.

    Returns:
        [rows, vocab] and [rows, vocab] or [rows, 1], two factors; who stores the product multiplies them.
    """
    scale = (loss_weight / rows.mass).unsqueeze(-1)
    if d.name == "reverse_kl":
        return rows.z, rows.p.mul_(-scale)
    if d.name == "forward_kl":
        return rows.spare if after_value else _tilt(rows, excess), -scale / (1 + excess).unsqueeze(-1)
    field = _functions(d)[1](excess.log1p().unsqueeze(-1) - rows.z)
    _center(rows, field)
    return field, rows.p.mul_(scale)


@cache
def swapped(d: Divergence) -> Divergence:
    """The divergence with its arguments exchanged: its gradient by the first is that of d by the second."""
    for other in (d, *DIVERGENCES.values()):
        if tidy(other.f - d.dual) == 0:
            return other
    return make_divergence(f"swapped {d.name}", d.dual, source=d.source)


@cache
def _masses_and_slopes(d: Divergence) -> tuple[Callable[[torch.Tensor], torch.Tensor], ...]:
    """f(t), t f'(t) by log t, for t <= 1; and f(t)/t, f'(t) by -log t, for t >= 1."""
    dual = d.dual
    return (
        generator_of_log(d),
        function_of_log(tidy(T * d.derivative)),
        generator_of_log(d, dual=True),
        function_of_log(tidy(dual - T * dual.diff(T))),
    )


class General(NamedTuple):
    """What `general_rows` found: value [rows], gradient [rows, vocab], and where a row is no distribution."""

    value: torch.Tensor
    gradient: torch.Tensor
    only_policy: torch.Tensor  # [rows, vocab], tokens that the policy alone can draw
    only_reference: torch.Tensor


def general_rows(d: Divergence, x: torch.Tensor, y: torch.Tensor) -> General:
    """D_f and its gradient by x, for any finite or masked float64 logits [rows, vocab], without scratch.

    Every entry is computed from the larger of its two probabilities, so that no power of t overflows where
    the product does not; of tokens that neither can draw in float64 (log-prob below -745) those count nothing
    whose ratio has no infinite power either.
    """
    p, q = x.softmax(-1), y.softmax(-1)
    no_p, no_q = x.isneginf(), y.isneginf()
    both = ~(no_p | no_q)
    tops = [row.amax(-1, keepdim=True) for row in (x, y, p, q)]
    normalizers = tops[2].log() - tops[3].log()  # log t = log P - log Q, each its logit less a normalizer
    u = ((x - tops[0]) - (y - tops[1]) + normalizers).where(both, 0.0)
    only_p, only_q = p.where(no_q, 0.0), q.where(no_p, 0.0).sum(-1)
    above, low, high = u > 0, u.clamp(max=0.0), -u.clamp(min=0.0)
    f, t_slope, dual, slope = _masses_and_slopes(d)
    larger = torch.where(above, p, q)
    alive = both & (larger != 0)
    of_larger = torch.where(above, dual(high), f(low))
    value = (larger * of_larger).where(alive, 0.0).sum(-1)
    field = (larger * torch.where(above, slope(high), t_slope(low))).where(alive, 0.0)
    far = both & ~alive & ~of_larger.isfinite()
    if far.any():  # masses of 0, but a ratio whose power may be larger still
        log_p, log_q = (a - top + p_top.log() for a, top, p_top in zip((x, y), tops, tops[2:], strict=False))
        at = log_p[far], log_q[far]
        value = value + torch.zeros_like(field).masked_scatter(far, far_entries(d, *at)).sum(-1)
        field = field.masked_scatter(far, far_entries(d, *at, slope=True))
    if d.at_zero.is_finite:
        value = value + float(d.at_zero) * only_q
    if d.at_infinity.is_finite:
        value = value + float(d.at_infinity) * only_p.sum(-1)
        field = field + float(d.at_infinity) * only_p
    peak = p.argmax(-1, keepdim=True)  # from the field of the likeliest token: exact where P is near 1
    field = field - p * (field.gather(-1, peak) / tops[2])
    gradient = field - p * field.sum(-1, keepdim=True)
    value = value + 0 * (p.sum(-1) + q.sum(-1))  # NaN where a row is no distribution
    return General(value, gradient, ~no_p & no_q, no_p & ~no_q)
