"""Log-probs of given tokens and entropies on a GPU, in Triton; see `kl_companion.kernels.tokens`."""

import triton
import triton.language as tl

from kl_companion.kernels.triton_math import log1p
from kl_companion.kernels.triton_rows import LOWEST, cooled, finite, is_inside, load, of_pieces, store

_INF = tl.constexpr(float("inf"))


@triton.jit
def token_sums(sums, inside, x, x_row, cap, cool, vocab, pieces, count, BLOCK: tl.constexpr):
    """Write four numbers of every piece, [4, rows x pieces]: largest logit, masses, sum of surprises."""
    at = tl.program_id(0)
    row = at // pieces
    if is_inside(inside, row):
        cols = (at % pieces) * BLOCK + tl.arange(0, BLOCK)
        logits = load(x, row, x_row, cols, cols < vocab, None, cap)
        peak = tl.max(logits, 0)
        scaled = cooled(logits - finite(peak), cool)
        e, below = tl.exp(scaled), scaled < 0.0
        tl.store(sums + at, peak)
        tl.store(sums + count + at, tl.sum(tl.where(below, e, 0.0), 0))
        tl.store(sums + 2 * count + at, tl.sum(tl.where(below, 0.0, e), 0))
        tl.store(sums + 3 * count + at, tl.sum(tl.where(below, e * finite(scaled), 0.0), 0))


@triton.jit
def token_numbers(
    sums, inside, kept, kept_step, logp, entropy, tokens, k, x, x_row, cap,
    cool, vocab, pieces, count, PIECES: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Put pieces together: `LogProbNumbers`, log-probs [rows, k], NaN for ids outside, and entropies."""
    row = tl.program_id(0)
    if is_inside(inside, row):
        lane = tl.arange(0, PIECES)
        there = lane < pieces
        at = sums + row * pieces + lane
        peak = of_pieces(at, there, -_INF)
        below = of_pieces(at + count, there, 0.0)
        equal = of_pieces(at + 2 * count, there, 0.0)
        surprise = of_pieces(at + 3 * count, there, 0.0)
        top = tl.max(peak, 0)
        highest, moved = peak == top, cooled(peak - finite(top), cool)
        share = tl.exp(moved)
        others = share * below + tl.where(highest, equal - 1.0, share * equal)
        rest = tl.sum(others, 0) + (tl.sum(highest.to(tl.float64), 0) - 1.0)
        rest = tl.where(top > LOWEST, rest, float("nan"))
        moved = tl.where(share > 0.0, moved, 0.0)
        surprise = tl.sum(share * (surprise + moved * (below + equal)), 0) / (1.0 + rest)
        tl.store(kept + row, top.to(tl.float32))
        tl.store(kept + kept_step + row, rest.to(tl.float32))
        if entropy is not None:
            tl.store(kept + 2 * kept_step + row, surprise.to(tl.float32))
            tl.store(entropy + row, (log1p(rest) - surprise).to(tl.float32))
        each = tl.arange(0, K)
        ids = tl.load(tokens + row.to(tl.int64) * k + each, mask=each < k, other=0)
        known = (ids >= 0) & (ids < vocab)
        of_token = load(x, row, x_row, ids, known, None, cap).to(tl.float64)
        found = tl.where(known, cooled(of_token - top, cool) - log1p(rest), float("nan"))
        tl.store(logp + row.to(tl.int64) * k + each, found.to(tl.float32), mask=each < k)


@triton.jit
def token_gradient(
    out, out_row, weights, total_weight, of_entropy, tokens, k, inside, kept, kept_step,
    x, x_row, cap, cool, vocab, pieces, BLOCK: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Write a piece of the gradient; zeros where a row does not count.

    weights: of every token that a row names, [rows, k], see `tokens.of_same`; total_weight: of the row.
    """
    at = tl.program_id(0)
    row, piece = at // pieces, at % pieces
    cols = piece * BLOCK + tl.arange(0, BLOCK)
    each = tl.arange(0, K)
    place = row.to(tl.int64) * k + each
    weight = tl.load(weights + place, mask=each < k, other=0.0).to(tl.float32)
    total, bend = tl.load(total_weight + row).to(tl.float32), 0.0
    if of_entropy is not None:
        bend = tl.load(of_entropy + row).to(tl.float32)
    if is_inside(inside, row) & (tl.sum(tl.abs(weight), 0) + tl.abs(bend) != 0.0):
        peak, rest = tl.load(kept + row), tl.load(kept + kept_step + row)
        mass = 1.0 + rest
        logits = load(x, row, x_row, cols, cols < vocab, None, cap)
        ids = tl.load(tokens + place, mask=each < k, other=-1)
        here = (ids >= piece * BLOCK) & (ids < (piece + 1) * BLOCK) & (ids < vocab)
        of_token = load(x, row, x_row, ids, here, None, cap)
        scaled, token_scaled = cooled(logits - peak, cool), cooled(of_token - peak, cool)
        factor, p = cooled(total / mass, cool), tl.exp(token_scaled) / mass
        entry = tl.where(token_scaled == 0.0, (weight - total) + total * (rest / mass), weight - total * p)
        if of_entropy is not None:
            surprise = tl.load(kept + 2 * kept_step + row)
            factor += cooled(bend / mass, cool) * (finite(scaled) - surprise)
            entry -= bend * (finite(token_scaled) - surprise) * p
        # the gradient may take the memory of the logits: all are read before it is written
        tl.debug_barrier()
        store(out, row, out_row, cols, cols < vocab, -tl.exp(scaled) * factor, logits, cap)
        tl.debug_barrier()
        store(out, row, out_row, ids, here, cooled(entry, cool), of_token, cap)
    else:
        store(out, row, out_row, cols, cols < vocab, tl.zeros([BLOCK], tl.float32), 0.0, None)
