"""One pass over logits, block by block: values, numbers to keep for the backward pass, and gradients.

Nothing here knows autograd: `kl_companion.kernels.autograd` calls it on logits that exist,
`kl_companion.kernels.linear_tasks` its kernels on tiles of logits that nobody else sees.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.divergences import Divergence, entries_of
from kl_companion.kernels import ratios, row_numbers, rows, tokens
from kl_companion.kernels.blocks import blocks, by_piece, exact_dtype, new_like, pieces, rows_per_block
from kl_companion.kernels.careful import RowIndex, careful_rows, check_finite
from kl_companion.kernels.compiling import Kernel
from kl_companion.kernels.lanes import PAIRS, cooled, in_pairs, load, past_cap
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

Scalars = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class How(NamedTuple):
    """What the policy's and the reference's logits go through, and which form of the kernels does it."""

    temperature: float = 1.0
    cap: float | None = None
    ref_cap: float | None = None
    compiled: bool = False

    def compiles(self, rows: int) -> bool:
        """Whether the compiled form runs: a single row would be a compilation of its own."""
        return self.compiled and rows > 1

    def scalars(self, dtype: torch.dtype) -> Scalars:
        """One over the temperature (None for 1) and the soft caps; tensors: kernels depend on no value."""
        cool = None if self.temperature == 1.0 else torch.tensor(1 / self.temperature, dtype=dtype)
        cap, ref_cap = (None if c is None else torch.tensor(c, dtype=dtype) for c in (self.cap, self.ref_cap))
        return cool, cap, ref_cap


_PLAIN, REVERSE_KL = How(), "reverse_kl"


def room_for_tokens(logp: torch.Tensor) -> torch.Tensor:
    """[numbers, rows] for what the backward pass of log-probs [rows, k] needs."""
    return logp.new_zeros(len(tokens.LogProbNumbers._fields), len(logp))


def room_for_kept(d: Divergence, value: torch.Tensor) -> torch.Tensor:
    """[numbers, rows] for what a backward pass needs, in the dtype that rows are worked on in."""
    dtype = value.dtype if entries_of(d).narrow else torch.float64
    numbers = KLNumbers if d.name == REVERSE_KL else RatioNumbers
    return value.new_zeros(len(numbers._fields), len(value), dtype=dtype)


def walk_divergence(
    d: Divergence,
    x: torch.Tensor,
    y: torch.Tensor,
    kept: torch.Tensor,
    *,
    value: torch.Tensor | None = None,
    loss_weight: torch.Tensor | None = None,
    gradient: torch.Tensor | None = None,
    how: How = _PLAIN,
    row_index: RowIndex | None = None,
) -> None:
    """Fill value and gradient, whichever is given, row by row.

    Args:
        d: The divergence.
        x: Raw logits of the policy, [..., vocab].
        y: Raw logits of the reference, the same shape.
        kept: `room_for_kept`: filled with ``value``, read without. Its dtype is the one worked in.
        value: [rows], filled with D_f; None in a backward pass.
        loss_weight: [rows], by which the gradient is multiplied.
        gradient: [..., vocab], any floating dtype, filled with the gradient by x; may be x itself.
        how: Temperature, soft caps, form.
        row_index: Where the rows stand, for messages; the leading axes of x by default.

    Raises:
        ValueError: NaN, +inf or only -inf in a row, or an infinite divergence. Nothing of that row's
            block has been written then. On a GPU nothing is raised: such a row's value is not finite.
    """
    row_index = RowIndex(x.shape[:-1]) if row_index is None else row_index
    dtype, looks = kept.dtype, x.device.type == "cpu"
    scalars, of_row = how.scalars(dtype), pieces(x.shape[-1], x.device)
    size = rows_per_block(x.shape[-1], dtype, x.device, how.compiled)
    for start, stop, (raw_x, raw_y, *out) in blocks(size, x, y, *([] if gradient is None else [gradient])):
        here, count = slice(start, stop), stop - start
        weight = None if loss_weight is None or not out else loss_weight[here].to(dtype)
        into = None if weight is None else _in_one_piece(out[0])
        compiled = how.compiles(count)
        (cut_x, cut_y), to = _cut(compiled, count * of_row, (raw_x, raw_y), into)
        block = _Block(cut_x, cut_y, to, count, scalars, compiled)
        if value is None:
            found, good = kept[MASS, here], kept[MASS, here].isfinite()
        else:
            found, good = (_kl if d.name == REVERSE_KL else _general)(d, block, kept[:, here])
        careful = bad = None
        if looks and not bool(good.all()):
            bad = (~good).nonzero().squeeze(-1)
            careful = careful_rows(
                d, raw_x, raw_y, bad, how, row_index, start, dtype if value is None else value.dtype
            )
            if value is not None:
                found[bad] = careful.value.to(found.dtype)
                kept[MASS, here][bad] = torch.nan
        if value is not None:
            value[here] = found
        if weight is not None and into is not None:
            _write(d, block, kept[:, here], weight)
            if careful is not None:
                into[bad] = (careful.gradient * weight[bad].unsqueeze(-1)).to(into.dtype)
            if into is not out[0]:
                out[0].copy_(into)


def _in_one_piece(out: torch.Tensor) -> torch.Tensor:
    """Memory to write to: the rows' own where it is contiguous, else new memory that is copied there."""
    return out if out.is_contiguous() else new_like(out)


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
    how: How = _PLAIN,
    row_index: RowIndex | None = None,
) -> None:
    """Fill log-probs, entropies and gradient, whichever is given, row by row.

    Args:
        x: Raw logits, [..., vocab].
        tokens_of_rows: [rows, k] int64.
        kept: `room_for_tokens`: filled with ``logp``, read without.
        logp: [rows, k], filled with the log-probs of the tokens; None in a backward pass.
        entropy: [rows], filled.
        loss_weight: [rows, k], the weights of the log-probs in the gradient.
        of_entropy: [rows], the weights of the entropies in the gradient.
        gradient: [..., vocab], any floating dtype; may be x itself.
        how: Temperature, soft cap, form.
        row_index: Where the rows stand, for messages.

    Raises:
        ValueError: NaN, +inf or only -inf in a row; not on a GPU.
    """
    row_index = RowIndex(x.shape[:-1]) if row_index is None else row_index
    dtype, looks = exact_dtype(x), x.device.type == "cpu"
    cool, cap, _ = how.scalars(dtype)
    size = rows_per_block(x.shape[-1], dtype, x.device, how.compiled)
    of_row = pieces(x.shape[-1], x.device)
    for start, stop, (raw, *out) in blocks(size, x, *([] if gradient is None else [gradient])):
        here = slice(start, stop)
        compiled = how.compiles(stop - start)
        raw, ids = raw.contiguous(), tokens_of_rows[here]
        into = _in_one_piece(out[0]) if out and loss_weight is not None else None
        (cut,), to = _cut(compiled, len(raw) * of_row, (raw,), into)
        if logp is None:
            numbers = tokens.LogProbNumbers(*kept[:, here])
        else:
            sums = TOKEN_SUMS(compiled, cut, cool, cap, dtype=dtype, entropy=entropy is not None)
            numbers = tokens.token_numbers(tuple(s.view(len(raw), -1) for s in sums), cool)
            for number, room in zip(numbers, kept[:, here], strict=True):
                if number is not None:
                    room.copy_(number)
        loaded = load(raw.gather(-1, ids), dtype, cap)
        if logp is not None:
            found = tokens.log_probs(loaded, numbers, cool)
            if looks and bool(found.isnan().any()):
                whole = {"logits": load(raw, dtype, cap)}
                check_finite("log-prob", found, whole, row_index, [*range(start, stop)])
            logp[here] = found
        if entropy is not None and numbers.surprise is not None:
            entropy[here] = numbers.rest.log1p() - numbers.surprise
        if into is not None and loss_weight is not None:
            of_logp = loss_weight[here].to(dtype)
            bend = None if of_entropy is None else of_entropy[here].to(dtype)
            entries = tokens.token_entries(loaded, numbers, cool, of_logp, bend, ids)
            by_row = tokens.gradient_numbers(numbers, cool, of_logp, bend)
            of_pieces = (None if n is None else by_piece(n, of_row) for n in by_row)
            TOKEN_GRADIENT(compiled, cut, cool, cap, *of_pieces, to, dtype=dtype)
            # scatter_ would copy narrow memory as a whole
            into[torch.arange(len(ids), device=ids.device).unsqueeze(-1), ids] = past_cap(
                entries, loaded, cap
            ).to(into.dtype)
            if into is not out[0]:
                out[0].copy_(into)


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
    return gradient
