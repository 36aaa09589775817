"""Rows of raw logits on a GPU, forward and backward, in Triton: a program works on a piece of a row.

A piece stays in registers, so that a reading takes every logit from memory once. The KL and the forward KL
read policy and reference once for the value and once more for the gradient, which is then written: five
passes over memory of the size of the logits, the fewest there can be. Any other divergence needs the
normalizers before its values, and two passes more. Log-probs and entropies take three.

The formulas and what keeps their digits are those of `kl_companion.kernels.rows` and `ratios`; sums of pieces
are put together in float64. Pieces whose ratios leave float32 are summed apart, from the reference's largest
logit. Logits are given as pointer, stride of rows, factor and soft cap (None where there is none).
"""

import triton
import triton.language as tl

from kl_companion.kernels import lanes
from kl_companion.kernels.triton_math import NEAR_EXCESS, excess, exp, expm1, log1p, tanh

LOWEST = tl.constexpr(lanes.LOWEST)
_INF = tl.constexpr(float("inf"))
_TINY = tl.constexpr(1e-37)
_SMALL = tl.constexpr(1e-30)  # smaller shares of the policy say nothing of the reference's
_PLAIN = tl.constexpr(30.0)  # nats from which cancellation is no matter
_CLOSE = tl.constexpr(0.4)


@triton.jit
def cooled(x, cool):
    """Logits over the temperature; see `lanes.cooled`."""
    if cool is None:
        return x
    else:
        return x * cool


@triton.jit
def finite(x):
    """Logits with -inf replaced; NaN stays."""
    return tl.where(x < LOWEST, LOWEST, x)


@triton.jit
def is_inside(inside, row):
    """Whether a row counts."""
    if inside is None:
        return row >= 0
    else:
        return tl.load(inside + row) != 0


@triton.jit
def load(raw, row, stride, cols, within, factor, cap):
    """A piece of a row as float32 logits past factor and soft cap; -inf beyond the vocabulary."""
    x = tl.load(raw + row.to(tl.int64) * stride + cols, mask=within, other=-_INF).to(tl.float32)
    if factor is not None:
        x = x * factor
    if cap is not None:
        x = tl.where(within, cap * tanh(x / cap), -_INF)
    return x


@triton.jit
def store(out, row, stride, cols, within, gradient, x, cap):
    """Write the gradient by the raw logits, from that by the loaded ones, x."""
    if cap is not None:
        gradient = gradient * (1.0 - (x / cap) * (x / cap))
    tl.store(out + row.to(tl.int64) * stride + cols, gradient, mask=within)


@triton.jit
def of_pieces(at, there, other):
    """One number of every piece of a row, as float64; ``other`` beyond the last piece."""
    return tl.load(at, mask=there, other=other).to(tl.float64)


@triton.jit
def lost(x, y, difference):
    """What the rounding of y - x lost."""
    back = y - difference
    return (y - (difference + back)) + (back - x)


@triton.jit
def differences(x, y, offset, EXACT: tl.constexpr):
    """(y - x) - offset, rounded once."""
    difference = y - x
    rest = difference - offset
    if EXACT:
        return rest
    else:
        return rest + lost(x, y, difference)


@triton.jit
def kl_sums(
    sums, inside, x, x_row, x_factor, x_cap, y, y_row, y_factor, y_cap,
    cool, vocab, pieces, count, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write six numbers of every piece, [6, rows x pieces]: what `row_numbers` needs of a KL."""
    at = tl.program_id(0)
    row = at // pieces
    if is_inside(inside, row):
        cols = (at % pieces) * BLOCK + tl.arange(0, BLOCK)
        within = cols < vocab
        a = load(x, row, x_row, cols, within, x_factor, x_cap)
        b = load(y, row, y_row, cols, within, y_factor, y_cap)
        peak, ref_peak = tl.max(a, 0), tl.max(b, 0)
        top, start = finite(peak), tl.where(ref_peak > LOWEST, ref_peak, finite(peak))
        u, v = a - top, b - start
        if EXACT:
            d = cooled(v - u, cool)
        else:
            d = cooled(differences(a, b, start - top, EXACT) - lost(top, start, start - top), cool)
        e, r = exp(cooled(u, cool)), exp(cooled(v, cool))
        moment = e * d
        growth = tl.where(tl.abs(d) < NEAR_EXCESS, moment * d * excess(d), r - (e + moment))
        tl.store(sums + at, peak)
        tl.store(sums + count + at, ref_peak)
        tl.store(sums + 2 * count + at, tl.sum(e, 0))
        tl.store(sums + 3 * count + at, tl.sum(r, 0))
        mean, grown = tl.sum(moment, 0), tl.sum(growth, 0)
        if not (tl.abs(mean) + tl.abs(grown) < _INF):  # masked tokens, or no numbers: read the piece again
            a = load(x, row, x_row, cols, within, x_factor, x_cap)
            b = load(y, row, y_row, cols, within, y_factor, y_cap)
            drawn = a != -_INF
            d = differences(a, b, start - top, EXACT)
            if not EXACT:
                d = d - lost(top, start, start - top)
            d = tl.where(drawn, tl.where(b == -_INF, -_INF, cooled(d, cool)), 0.0)
            e, r = exp(cooled(a - top, cool)), exp(cooled(b - start, cool))
            moment = tl.maximum(e, _TINY) * d  # a share that float32 rounds to 0 may cost infinitely much
            near = drawn & (tl.abs(d) < NEAR_EXCESS)
            growth = tl.where(near, moment * d * excess(d), r - (e + moment))
            mean, grown = tl.sum(moment, 0), tl.sum(growth, 0)
        tl.store(sums + 4 * count + at, grown)
        tl.store(sums + 5 * count + at, mean)


@triton.jit
def first_sums(
    sums, inside, x, x_row, x_factor, x_cap, y, y_row, y_factor, y_cap,
    cool, vocab, pieces, count, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write seven numbers of every piece, [7, rows x pieces]: for `row_numbers` of other divergences."""
    at = tl.program_id(0)
    row = at // pieces
    if is_inside(inside, row):
        cols = (at % pieces) * BLOCK + tl.arange(0, BLOCK)
        within = cols < vocab
        a = load(x, row, x_row, cols, within, x_factor, x_cap)
        b = load(y, row, y_row, cols, within, y_factor, y_cap)
        peak = tl.max(a, 0)
        ref_peak = tl.max(b, 0)
        base = tl.max(tl.where(a == peak, b, -_INF), 0)
        top = finite(peak)
        start = tl.where(base > LOWEST, base, top)
        offset = start - top
        e = exp(cooled(a - top, cool))
        r = exp(cooled(b - finite(ref_peak), cool))
        d = differences(a, b, offset, EXACT)
        if not EXACT:
            d = d - lost(top, start, offset)
            d = tl.where(b == -_INF, -_INF, d)
        d = tl.where(a == -_INF, 0.0, cooled(d, cool))
        near = (tl.abs(d) < NEAR_EXCESS) & (e > _SMALL)
        moment = e * d
        tl.store(sums + at, peak)
        tl.store(sums + count + at, ref_peak)
        tl.store(sums + 2 * count + at, tl.sum(e, 0))
        tl.store(sums + 3 * count + at, tl.sum(r, 0))
        tl.store(sums + 4 * count + at, tl.sum(tl.where(near, moment + moment * d * excess(d), -e), 0))
        tl.store(sums + 5 * count + at, base)
        tl.store(sums + 6 * count + at, tl.sum(tl.where(near, 0.0, r), 0))


@triton.jit
def _times(factor, number):
    """Their product, 0 where the number is, whatever the factor."""
    return tl.where(number == 0.0, 0.0, factor * number)


@triton.jit
def per_logit(scaled, cool):
    """The inverse of `cooled`."""
    if cool is None:
        return scaled
    else:
        return scaled / cool


@triton.jit
def row_numbers(
    sums, inside, kept, kept_step, value, cool, pieces, count,
    KL: tl.constexpr, OF: tl.constexpr, AT_INFINITY: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Put pieces together: the KL if ``value`` is given, and `KLNumbers` or `RatioNumbers` without mean.

    See `kl_companion.kernels.row_numbers`. OF is the divergence's `of_larger`, for the slope. Without KL a
    ``value`` is that of the forward KL, from sums that were made with policy and reference exchanged.
    """
    row = tl.program_id(0)
    if is_inside(inside, row):
        lane = tl.arange(0, PIECES)
        there = lane < pieces
        at = sums + row * pieces + lane
        peak = of_pieces(at, there, -_INF)
        ref_peak = of_pieces(at + count, there, -_INF)
        mass = of_pieces(at + 2 * count, there, 0.0)
        ref_mass = of_pieces(at + 3 * count, there, 0.0)
        growth = of_pieces(at + 4 * count, there, 0.0)
        top, ref_top = finite(tl.max(peak, 0)), finite(tl.max(ref_peak, 0))
        if value is not None:
            moment = of_pieces(at + 5 * count, there, 0.0)
            base, top_base = ref_peak, ref_top
        else:
            base = of_pieces(at + 5 * count, there, -_INF)
            top_base = tl.max(tl.where(peak == top, base, -_INF), 0)

        masked = top_base <= LOWEST
        row_start = tl.where(masked, top, top_base)
        start = tl.where(base > LOWEST, base, finite(peak))
        share = tl.exp(cooled(peak - top, cool))
        ref_share = tl.exp(cooled(start - row_start, cool))
        drawn = share > 0.0
        moved = tl.where(drawn, cooled((start - finite(peak)) - (row_start - top), cool), 0.0)
        total = tl.sum(share * mass, 0)

        # the reference's masses, measured from the piece's base
        lift = tl.exp(cooled(finite(ref_peak) - start, cool))
        if value is None:
            growth += _times(lift, of_pieces(at + 6 * count, there, 0.0))
        alone = _times(ref_share, _times(lift, ref_mass))
        ref_total = tl.sum(tl.exp(cooled(finite(ref_peak) - ref_top, cool)) * ref_mass, 0)
        total = tl.where(ref_total > 0.0, total, float("nan"))
        # log(policy/reference) of the likeliest token
        likeliest = tl.log(ref_total) - tl.log(total) + cooled(ref_top - row_start, cool)

        if value is not None:
            mean = tl.sum(tl.where(drawn, share * (moment + mass * moved), 0.0), 0) / total
            centered = moved - mean
            grown = expm1(centered)
            together = share * ((1.0 + grown) * growth + grown * moment + mass * (grown - centered))
            small = log1p(tl.sum(tl.where(drawn, together, alone * tl.exp(-mean)), 0) / total)
            found = tl.where(small < _PLAIN, small, likeliest - mean)
            tl.store(value + row, found.to(tl.float32))
            total = tl.where(tl.abs(found) < _INF, total, float("nan"))
        offset = row_start - top
        if KL:
            rounded = row_start.to(tl.float32) - top.to(tl.float32)
            tl.store(kept + kept_step + row, row_start.to(tl.float32))
            mean = mean + cooled(offset - rounded.to(tl.float64), cool)
            tl.store(kept + 3 * kept_step + row, mean.to(tl.float32))
        else:
            if value is not None:
                growth += moment
            together = share * (tl.exp(moved) * growth + expm1(moved) * mass)
            close = drawn & (tl.abs(moved) < 1.0)
            less = tl.sum(tl.where(close, together, alone - share * mass), 0) / total
            likeliest = tl.where(tl.abs(likeliest) < _CLOSE, log1p(less), likeliest)
            shift, ref = offset + per_logit(likeliest, cool), row_start + per_logit(likeliest, cool)
            base, slope = tl.where(masked, LOWEST, row_start), tl.zeros([], tl.float64)
            if value is not None:  # the forward KL: numbers of the policy, with slopes P - Q, whose sum is 0
                ref = top + per_logit(tl.log(total) - tl.log(ref_total), cool)
                shift, base, top = -shift, tl.zeros([], tl.float64) + LOWEST, ref_top
                total = tl.where(total == total, ref_total, float("nan"))
            else:
                _, slope_below, _, slope_above, _ = OF(-tl.abs(likeliest))
                slope = tl.where(likeliest < 0.0, slope_below * tl.exp(-likeliest), slope_above)
                slope = tl.where(masked, AT_INFINITY, slope)
            for_shift, for_ref = shift.to(tl.float32), ref.to(tl.float32)
            tl.store(kept + kept_step + row, base.to(tl.float32))
            tl.store(kept + 3 * kept_step + row, for_shift)
            tl.store(kept + 4 * kept_step + row, cooled(shift - for_shift.to(tl.float64), cool))
            tl.store(kept + 5 * kept_step + row, for_ref)
            tl.store(kept + 6 * kept_step + row, cooled(ref - for_ref.to(tl.float64), cool))
            tl.store(kept + 7 * kept_step + row, slope.to(tl.float32))
            tl.store(kept + 8 * kept_step + row, 0.0)
        tl.store(kept + row, top.to(tl.float32))
        tl.store(kept + 2 * kept_step + row, total.to(tl.float32))


@triton.jit
def ratios(a, b, kept, kept_step, row, cool, EXACT: tl.constexpr):
    """Entries seen from the larger of their probabilities: log t, and the larger one times mass."""
    peak = tl.load(kept + row)
    shift, shift_rest = tl.load(kept + 3 * kept_step + row), tl.load(kept + 4 * kept_step + row)
    ref, ref_rest = tl.load(kept + 5 * kept_step + row), tl.load(kept + 6 * kept_step + row)
    u = shift_rest - cooled(differences(a, b, shift, EXACT), cool)
    larger = tl.exp(tl.where(u < 0.0, cooled(b - ref, cool) - ref_rest, cooled(a - peak, cool)))
    return u, larger


@triton.jit
def slopes_of(a, b, u, larger, kept, kept_step, row, OF: tl.constexpr):
    """P times mass, P (f'(t) - slope) times mass, and the values of the larger probability's unit."""
    peak, base, slope = (tl.load(kept + row), tl.load(kept + kept_step + row),
                         tl.load(kept + 7 * kept_step + row))  # fmt: skip
    value_below, slope_below, value_above, slope_above, ratio = OF(-tl.abs(u))
    below = u < 0.0
    e = tl.where(below, larger * ratio, larger)
    slopes = larger * tl.where(below, slope_below, slope_above) - e * slope
    slopes = tl.where((larger == 0.0) | ((a == peak) & (b == base)), 0.0, slopes)
    return e, slopes, tl.where(below, value_below, value_above)


@triton.jit
def divergence_sums(
    sums, inside, kept, kept_step, x, x_row, x_factor, x_cap, y, y_row, y_factor, y_cap,
    cool, vocab, pieces, count, NO_P: tl.constexpr, NO_Q: tl.constexpr, NEAR: tl.constexpr,
    OF: tl.constexpr, SERIES: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write of every piece the sums of f's values and of slopes, times mass, [2, rows x pieces].

    NO_P (NO_Q): whether a token that the policy (reference) alone has masked costs infinitely much.
    """
    at = tl.program_id(0)
    row = at // pieces
    if is_inside(inside, row):
        cols = (at % pieces) * BLOCK + tl.arange(0, BLOCK)
        within = cols < vocab
        raw_a = load(x, row, x_row, cols, within, x_factor, x_cap)
        raw_b = load(y, row, y_row, cols, within, y_factor, y_cap)
        a, b = finite(raw_a), finite(raw_b)
        u, larger = ratios(a, b, kept, kept_step, row, cool, EXACT)
        e, slopes, value = slopes_of(a, b, u, larger, kept, kept_step, row, OF)
        value = tl.where(larger == 0.0, 0.0, larger * value)
        if SERIES is not None:
            value = tl.where(tl.abs(u) < NEAR, e * (u * u * SERIES(u)), value)
        if NO_P:
            value = tl.where((raw_a == -_INF) & (raw_b > -_INF), _INF, value)
        if NO_Q:
            value = tl.where((raw_a > -_INF) & (raw_b == -_INF), _INF, value)
        tl.store(sums + at, tl.sum(value, 0))
        tl.store(sums + count + at, tl.sum(slopes, 0))


@triton.jit
def value_and_mean(sums, inside, kept, kept_step, value, pieces, count, PIECES: tl.constexpr):
    """Put the sums of pieces together: the value and the mean of `RatioNumbers`."""
    row = tl.program_id(0)
    if is_inside(inside, row):
        lane = tl.arange(0, PIECES)
        at = sums + row * pieces + lane
        values = of_pieces(at, lane < pieces, 0.0)
        slopes = of_pieces(at + count, lane < pieces, 0.0)
        mass = tl.load(kept + 2 * kept_step + row)
        found = (tl.sum(values, 0) / mass.to(tl.float64)).to(tl.float32)
        tl.store(value + row, found)
        tl.store(kept + 8 * kept_step + row, tl.sum(slopes, 0) / mass.to(tl.float64))
        tl.store(kept + 2 * kept_step + row, tl.where(tl.abs(found) < _INF, mass, float("nan")))


@triton.jit
def gradient(
    out, out_row, weights, inside, kept, kept_step,
    x, x_row, x_factor, x_cap, y, y_row, y_factor, y_cap,
    cool, vocab, pieces, KL: tl.constexpr, OF: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a piece of the gradient, or zeros, times the row's weight: the KL's, OF's, without both P - Q."""
    at = tl.program_id(0)
    row = at // pieces
    cols = (at % pieces) * BLOCK + tl.arange(0, BLOCK)
    within = cols < vocab
    weight = tl.load(weights + row).to(tl.float32)
    if is_inside(inside, row) & (weight != 0.0):
        factor = cooled(weight / tl.load(kept + 2 * kept_step + row), cool)
        a = load(x, row, x_row, cols, within, x_factor, x_cap)
        b = load(y, row, y_row, cols, within, y_factor, y_cap)
        if KL:
            peak, base, mean = (tl.load(kept + row), tl.load(kept + kept_step + row),
                                tl.load(kept + 3 * kept_step + row))  # fmt: skip
            z = cooled(differences(a, b, base - peak, EXACT), cool) - mean
            entry = tl.where(a == -_INF, 0.0, -z) * exp(cooled(a - peak, cool))
            store(out, row, out_row, cols, within, entry * factor, a, x_cap)
        else:
            a, b = finite(a), finite(b)
            u, larger = ratios(a, b, kept, kept_step, row, cool, EXACT)
            if OF is None:
                less = larger * expm1(-tl.abs(u))
                entry = tl.where(u < 0.0, less, -less)
            else:
                e, slopes, _ = slopes_of(a, b, u, larger, kept, kept_step, row, OF)
                entry = slopes - e * tl.load(kept + 8 * kept_step + row)
            store(out, row, out_row, cols, within, entry * factor, a, x_cap)
    else:
        store(out, row, out_row, cols, within, tl.zeros([BLOCK], tl.float32), 0.0, None)
