"""One pass over logits, block by block: values, numbers to keep for the backward pass, and gradients.

Nothing here knows autograd: `kl_companion.kernels.autograd` calls it on logits that exist,
`kl_companion.kernels.linear_tasks` its kernels on tiles of logits that nobody else sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kl_companion.divergences import Divergence, entries_of
from kl_companion.kernels import gpu, ratios, row_numbers, rows, tokens
from kl_companion.kernels.blocks import blocks, by_piece, exact_dtype, new_like, pieces, rows_per_block
from kl_companion.kernels.careful import careful_rows
from kl_companion.kernels.compiling import Kernel
from kl_companion.kernels.lanes import PAIRS, cooled, in_pairs, load, past_cap
from kl_companion.kernels.logit_transform import LogitTransform, Scalars
from kl_companion.kernels.row_numbers import (
    MASS,
    ORDINARY,
    KLNumbers,
    RatioNumbers,
    fill_ratio_numbers,
    value_and_mean,
)

FIRST_SUMS, KL_GRADIENT = Kernel(rows.first_sums), Kernel(rows.kl_gradient)
DIVERGENCE_SUMS, DIVERGENCE_GRADIENT = Kernel(ratios.divergence_sums), Kernel(ratios.divergence_gradient)
TOKEN_SUMS, TOKEN_GRADIENT = Kernel(tokens.token_sums), Kernel(tokens.token_gradient)
KL_NUMBERS = Kernel(row_numbers.kl_numbers, whole=True)
RATIO_NUMBERS = Kernel(row_numbers.ratio_numbers, whole=True)

_PLAIN, REVERSE_KL = LogitTransform(), "reverse_kl"
_COPIED = 4  # of a block, rows that count among others are copied a quarter at a time


def room_for_tokens(logp: torch.Tensor) -> torch.Tensor:
    """[numbers, rows] for what the backward pass of log-probs [rows, k] needs."""
    return logp.new_zeros(len(tokens.LogProbNumbers._fields), logp.shape[0])


def rows_dtype(d: Divergence, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that rows are worked on in, for values of a dtype."""
    return dtype if entries_of(d).narrow else torch.float64


def room_for_kept(d: Divergence, value: torch.Tensor) -> torch.Tensor:
    """[numbers, rows] for what a backward pass needs, in the dtype that rows are worked on in."""
    numbers = KLNumbers if d.name == REVERSE_KL else RatioNumbers
    return value.new_zeros(len(numbers._fields), len(value), dtype=rows_dtype(d, value.dtype))


class RowPart(NamedTuple):
    """The rows of a block that count."""

    rows: slice | torch.Tensor  # their numbers
    size: int
    logits: tuple[torch.Tensor, ...]  # [size, vocab] each
    out: torch.Tensor | None  # contiguous memory for their gradient


def parts(
    size: int, logits: tuple[torch.Tensor, ...], gradient: torch.Tensor | None, inside: torch.Tensor | None
) -> Iterator[RowPart]:
    """Blocks of ``size`` rows of logits [..., vocab], without those that are not ``inside`` [rows].

    The gradient of a part is written to where it belongs when the next part is asked for, and is zero in
    rows outside. Only the rows inside are read.
    """
    for start, stop, views in blocks(size, *logits, *([] if gradient is None else [gradient])):
        place = None if gradient is None else views[-1]
        within = None if inside is None else inside[start:stop].nonzero().squeeze(-1)
        if within is None or len(within) == stop - start:
            out = None if place is None else place if place.is_contiguous() else new_like(place)
            yield RowPart(slice(start, stop), stop - start, views[: len(logits)], out)
            if place is not None and out is not None and out is not place:
                place.copy_(out)
            continue
        for some in within.split(max(2, size // _COPIED)) if len(within) else ():
            # copies, so that the gradient may be written over the policy's
            picked = tuple(view.index_select(0, some) for view in views[: len(logits)])
            yield RowPart(start + some, len(some), picked, None if place is None else picked[0])
            if place is not None:
                place.index_copy_(0, some, picked[0])
        if place is not None and inside is not None:
            place.index_fill_(0, (~inside[start:stop]).nonzero().squeeze(-1), 0.0)


def _inside(inside: torch.Tensor | None, reads: bool, *weights: torch.Tensor | None) -> torch.Tensor | None:
    """Rows that count, [rows]: of ``inside`` those with a weight that is not zero; None for all."""
    some = [(w != 0).view(len(w), -1).any(-1) for w in weights if w is not None and w.numel()]
    if not reads or not some:
        return inside
    counted = torch.stack(some).any(0)
    return counted if inside is None else inside & counted


def _blank(inside: torch.Tensor | None, *tensors: torch.Tensor | None) -> None:
    """Write zeros to the rows outside: on a device that is not waited for, which has worked on all rows."""
    for tensor in tensors:
        if inside is not None and tensor is not None:
            lead = tensor.shape[:1] if tensor.shape[:1] == inside.shape else tensor.shape[:-1]
            outside = ~inside.view(lead)
            tensor.masked_fill_(outside.view(*lead, *[1] * (tensor.ndim - len(lead))), 0.0)


def walk_divergence(
    d: Divergence,
    x: torch.Tensor,
    y: torch.Tensor,
    kept: torch.Tensor,
    *,
    value: torch.Tensor | None = None,
    loss_weight: torch.Tensor | None = None,
    gradient: torch.Tensor | None = None,
    how: LogitTransform = _PLAIN,
    inside: torch.Tensor | None = None,
) -> None:
    """Fill value and gradient, whichever is given, row by row.

    A row with NaN, with +inf or without a token is NaN, and one whose divergence is infinite is infinite.
    On a GPU such a row is not finite.

    Args:
        d: The divergence.
        x: Raw logits of the policy, [..., vocab].
        y: Raw logits of the reference, the same shape.
        kept: `room_for_kept`: filled with ``value``, read without. Its dtype is the one worked in.
        value: [rows], zeros, filled with D_f; None in a backward pass.
        loss_weight: [rows], by which the gradient is multiplied.
        gradient: [..., vocab], any floating dtype, filled with the gradient by x; may be x itself.
        how: Temperatures, scales, soft caps, form.
        inside: [rows] bool: the others are not read, their value and gradient are 0.
    """
    if how.compiled and gpu.walk_divergence(d, x, y, kept, value, loss_weight, gradient, how, inside):
        return
    dtype, reads = kept.dtype, x.device.type == "cpu"
    counted = _inside(inside, reads, loss_weight if value is None else None)
    scalars, of_row = how.scalars(dtype), pieces(x.shape[-1], x.device)
    # small blocks where they are copied, because both sides have factors of their own
    size = rows_per_block(x.shape[-1], dtype, x.device, bool(how.compiled) and how.ratio == 1.0)
    writes = gradient if loss_weight is not None else None
    for part in parts(size, (x, y), writes, counted if reads else None):
        weight = None if loss_weight is None else loss_weight[part.rows].to(dtype)
        compiled, numbers = how.compiles(part.size), kept[:, part.rows]
        x_raw, y_raw = part.logits
        raw = how.comparable(x_raw, y_raw, dtype)
        (cut_x, cut_y), to = _cut(compiled, part.size * of_row, raw, part.out)
        block = _Block(cut_x, cut_y, to, part.size, scalars, compiled)
        if value is None:
            found, good = numbers[MASS], numbers[MASS].isfinite()
        else:
            found, good = (_kl if d.name == REVERSE_KL else _general)(d, block, numbers)
        careful = bad = None
        if reads and not bool(good.all()):
            bad = (~good).nonzero().squeeze(-1)
            exact = dtype if value is None else value.dtype
            careful = careful_rows(d, x_raw[bad], y_raw[bad], how, exact)
            if value is not None:
                found[bad] = careful.value.to(found.dtype)
                numbers[MASS, bad] = torch.nan
        if value is not None:
            value[part.rows], kept[:, part.rows] = found, numbers
        if weight is not None and part.out is not None:
            _write(d, block, numbers, weight)
            if careful is not None:
                part.out[bad] = (careful.gradient * weight[bad].unsqueeze(-1)).to(part.out.dtype)
    if not reads:
        _blank(inside, value, writes)


def _cut(
    compiled: bool, count: int, logits: tuple[torch.Tensor, ...], out: torch.Tensor | None
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Rows cut into ``count`` pieces, pairs where that is faster; ``out`` is None for the first's memory."""
    cut = [t.contiguous().view(count, -1) for t in logits]
    apart = [] if out is None or out.data_ptr() == cut[0].data_ptr() else [out.view(count, -1)]
    if compiled and cut[0].device.type == "cpu" and in_pairs(*cut, *apart):
        cut, apart = ([t.view(PAIRS) for t in ts] for ts in (cut, apart))
    return cut, apart[0] if apart else None


class _Block(NamedTuple):
    """Some rows, cut into pieces of equal length."""

    x: torch.Tensor  # [rows x pieces, length]
    y: torch.Tensor
    out: torch.Tensor | None  # for the gradient; None: it goes over x
    rows: int
    scalars: Scalars
    compiled: bool

    def of_rows(self, number: torch.Tensor) -> torch.Tensor:
        """[rows, pieces] of numbers per piece."""
        return number.view(self.rows, -1)

    def of_pieces(self, numbers: torch.Tensor) -> torch.Tensor:
        """Numbers per row [..., rows], repeated for every piece."""
        return by_piece(numbers, len(self.x) // self.rows)


Found = tuple[torch.Tensor, torch.Tensor]


def _kl(d: Divergence, block: _Block, kept: torch.Tensor) -> Found:
    """Values, and which rows are done; ``kept`` is filled."""
    sums = FIRST_SUMS(block.compiled, block.x, block.y, *block.scalars, dtype=kept.dtype, kl=True)
    found, numbers = KL_NUMBERS(block.compiled, *map(block.of_rows, sums), block.scalars[0])
    kept.copy_(numbers)
    return found, found < ORDINARY[kept.dtype]


def _general(d: Divergence, block: _Block, kept: torch.Tensor) -> Found:
    """The same for any divergence."""
    dtype, given = kept.dtype, (block.compiled, block.x, block.y, *block.scalars)
    sums = map(block.of_rows, FIRST_SUMS(*given, dtype=dtype, kl=False))
    fill_ratio_numbers(d, kept, RATIO_NUMBERS(block.compiled, *sums, block.scalars[0]))
    parts = DIVERGENCE_SUMS(*given, *block.of_pieces(kept), entries=entries_of(d), dtype=dtype)
    return value_and_mean(kept, *map(block.of_rows, parts))


def _write(d: Divergence, block: _Block, kept: torch.Tensor, weight: torch.Tensor) -> None:
    """The gradient, into memory that may be the logits' own."""
    factor, dtype = cooled(weight / kept[MASS], block.scalars[0]), kept.dtype
    given = (block.compiled, block.x, block.y, *block.scalars)
    if d.name == REVERSE_KL:
        peak, base, _, mean = block.of_pieces(kept)
        KL_GRADIENT(*given, peak, base, mean, block.of_pieces(-factor), block.out, dtype=dtype)
    else:
        numbers = (block.of_pieces(factor), block.out, *block.of_pieces(kept))
        DIVERGENCE_GRADIENT(*given, *numbers, entries=entries_of(d), dtype=dtype)


def walk_tokens(
    x: torch.Tensor,
    tokens_of_rows: torch.Tensor,
    kept: torch.Tensor,
    *,
    logp: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    loss_weight: torch.Tensor | None = None,
    of_entropy: torch.Tensor | None = None,
    gradient: torch.Tensor | None = None,
    how: LogitTransform = _PLAIN,
    inside: torch.Tensor | None = None,
) -> None:
    """Fill log-probs, entropies and gradient, whichever is given, row by row.

    Rows with NaN, with +inf or without a token are NaN.

    Args:
        x: Raw logits, [..., vocab].
        tokens_of_rows: [rows, k] int64.
        kept: `room_for_tokens`: filled with ``logp``, read without.
        logp: [rows, k], zeros, filled with the log-probs of the tokens; None in a backward pass.
        entropy: [rows], zeros, filled.
        loss_weight: [rows, k], the weights of the log-probs in the gradient.
        of_entropy: [rows], the weights of the entropies in the gradient.
        gradient: [..., vocab], any floating dtype; may be x itself.
        how: Temperature, scale, soft cap, form.
        inside: [rows] bool: the others are not read, their values and gradient are 0.
    """
    tensors = (x, tokens_of_rows, kept, logp, entropy, loss_weight, of_entropy, gradient)
    if how.compiled and gpu.walk_tokens(*tensors, how, inside):
        return
    dtype, reads = exact_dtype(x), x.device.type == "cpu"
    counted = inside
    if logp is None and loss_weight is not None:
        counted = _inside(inside, reads, loss_weight, of_entropy)
    cool, cap, _ = how.scalars(dtype)
    size = rows_per_block(x.shape[-1], dtype, x.device, bool(how.compiled))
    of_row = pieces(x.shape[-1], x.device)
    writes = gradient if loss_weight is not None else None
    for part in parts(size, (x,), writes, counted if reads else None):
        compiled, ids, here = how.compiles(part.size), tokens_of_rows[part.rows], part.rows
        raw = part.logits[0].contiguous()
        (cut,), to = _cut(compiled, part.size * of_row, (raw,), part.out)
        loaded = load(raw.gather(-1, ids), dtype, cap)
        if logp is None:
            numbers = tokens.LogProbNumbers(*kept[:, here])
        else:
            sums = TOKEN_SUMS(compiled, cut, cool, cap, dtype=dtype, entropy=entropy is not None)
            numbers = tokens.token_numbers(tuple(s.view(part.size, -1) for s in sums), cool)
            for row, number in enumerate(numbers):
                if number is not None:
                    kept[row, here] = number
            logp[here] = tokens.log_probs(loaded, numbers, cool)
        if entropy is not None and numbers.surprise is not None:
            entropy[here] = numbers.rest.log1p() - numbers.surprise
        if part.out is not None and loss_weight is not None:
            of_logp = loss_weight[here].to(dtype)
            bend = None if of_entropy is None else of_entropy[here].to(dtype)
            entries = tokens.token_entries(loaded, numbers, cool, of_logp, bend, ids)
            by_row = tokens.gradient_numbers(numbers, cool, of_logp, bend)
            of_pieces = (None if n is None else by_piece(n, of_row) for n in by_row)
            TOKEN_GRADIENT(compiled, cut, cool, cap, *of_pieces, to, dtype=dtype)
            # scatter_ would copy narrow memory as a whole
            part.out[torch.arange(part.size, device=ids.device).unsqueeze(-1), ids] = past_cap(
                entries, loaded, cap
            ).to(part.out.dtype)
    if not reads:
        _blank(inside, logp, entropy, writes)


def scale_rows(gradient: torch.Tensor, loss_weight: torch.Tensor) -> torch.Tensor:
    """Multiply every row of [..., vocab] by its weight [rows], in place, rounding once."""
    dtype = torch.promote_types(loss_weight.dtype, torch.float32)
    size = rows_per_block(gradient.shape[-1], dtype, gradient.device)
    for start, stop, (part,) in blocks(size, gradient):
        scale = loss_weight[start:stop].unsqueeze(-1)
        if part.dtype == loss_weight.dtype:
            part.mul_(scale)
        else:
            part.copy_(part.to(dtype).mul_(scale))
        part.index_fill_(0, (scale == 0).squeeze(-1).nonzero().squeeze(-1), 0.0)  # 0 times NaN is NaN
    return gradient
