"""One pass over logits, block by block: values, numbers to keep for the backward pass, and gradients.

Nothing here knows autograd: `kl_companion.kernels.fused` calls it on logits that exist,
`kl_companion.kernels.linear` on one chunk of logits after another.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.divergences import SUPPORT, Divergence
from kl_companion.kernels.blocks import NO_CAP, SoftCap, blocks, exact_dtype, rows_per_block
from kl_companion.kernels.rows import (
    center_rows,
    excess_of,
    general_rows,
    gradient_of,
    reach_of,
    value_of,
)
from kl_companion.kernels.tokens import token_gradient, token_rows

_SHARP = 6.0  # up to this log-ratio, f and f' computed in float32 have an error of at most 1e-6
_WIDER = 4.0  # how much further e^z reaches in float64


class RowIndex(NamedTuple):
    """Turns the number of a row into its place in the leading axes; ``first`` is the number of row 0."""

    lead: torch.Size
    first: int = 0

    def __call__(self, row: int) -> list[int]:
        """Indices of a row."""
        at = torch.unravel_index(torch.tensor(self.first + row), self.lead) if self.lead else ()
        return [int(i) for i in at]


def walk_divergence(
    d: Divergence,
    x: torch.Tensor,
    y: torch.Tensor,
    excess: torch.Tensor,
    *,
    value: torch.Tensor | None = None,
    loss_weight: torch.Tensor | None = None,
    gradient: torch.Tensor | None = None,
    temperature: float = 1.0,
    soft_caps: tuple[SoftCap, SoftCap] = (NO_CAP, NO_CAP),
    row_index: RowIndex | None = None,
) -> None:
    """Fill value and gradient, whichever is given, row by row.

    Args:
        d: The divergence.
        x: Raw logits of the policy, [..., vocab].
        y: Raw logits of the reference, the same shape.
        excess: [rows], a number per token that the gradient needs: filled with ``value``, read without. Its
            dtype is the one that is worked in.
        value: [rows], filled with D_f; None in a backward pass.
        loss_weight: [rows], by which the gradient is multiplied.
        gradient: [..., vocab], any floating dtype, filled with the gradient by x; may be x itself.
        temperature: By which both rows are divided.
        soft_caps: Soft caps of policy and reference.
        row_index: Where the rows stand, for messages; the leading axes of x by default.

    Raises:
        ValueError: NaN, +inf or only -inf in a row, or an infinite divergence. Nothing of that row's
            block has been written then.
    """
    row_index = RowIndex(x.shape[:-1]) if row_index is None else row_index
    dtype = excess.dtype
    size = min(rows_per_block(x.shape[-1], dtype, x.device), max(1, excess.numel()))
    scratch = torch.empty(5, size, x.shape[-1], dtype=dtype, device=x.device)
    whole = scratch.unbind()
    both_sides = d.name not in ("reverse_kl", "forward_kl")
    reach = min(reach_of(d), _SHARP) if both_sides and dtype == torch.float32 else reach_of(d)
    scales = None if gradient is None or loss_weight is None else loss_weight.to(dtype) / temperature
    for start, stop, (raw_x, raw_y, *out) in blocks(size, x, y, *([] if gradient is None else [gradient])):
        here = slice(start, stop)
        buffers = whole if stop - start == size else scratch[:, : stop - start].unbind()
        a, b = soft_caps[0].load(raw_x, buffers[3]), soft_caps[1].load(raw_y, buffers[4])
        scale = None if scales is None else scales[here]
        known = excess[here] if value is None else None
        centered = center_rows(a, b, buffers, reach, temperature, both_sides=both_sides)
        # where the forward pass took float64, so does the backward pass, whatever its blocks
        if centered is None or (known is not None and known.isnan().any()):
            found, made = _wide_block(d, a, b, temperature, scale, row_index, start)
            rows_excess = torch.full_like(excess[here], torch.nan)
        else:
            rows_excess = excess_of(centered) if known is None else known
            found = value_of(d, centered, rows_excess) if known is None else known
            made = None
            if scale is not None:
                made = gradient_of(d, centered, rows_excess, scale, after_value=known is None)
        if value is not None:
            value[here], excess[here] = found, rows_excess
        if made is not None:
            _store(*made, out[0], soft_caps[0], a)


def _wide_block(
    d: Divergence,
    x: torch.Tensor,
    y: torch.Tensor,
    temperature: float,
    scale: torch.Tensor | None,
    row_index: RowIndex,
    start: int,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """Value and gradient (two factors) of a block that needs float64, in x's dtype.

    By the same formula where its reach, wider in float64, is enough, else by `general_rows`.
    """
    wide_x, wide_y = x.double(), y.double()
    scratch = torch.empty(3, *x.shape, dtype=torch.float64, device=x.device).unbind()
    centered = center_rows(wide_x, wide_y, scratch, _WIDER * reach_of(d), temperature)
    if centered is not None:
        excess = excess_of(centered)
        value = value_of(d, centered, excess).to(x.dtype)
        _check_finite(d.name, value, {"logits": x, "ref_logits": y}, row_index, start)
        if scale is None:
            return value, None
        factor, by = gradient_of(d, centered, excess, scale.double(), after_value=True)
        return value, (factor.mul_(by).to(x.dtype), torch.ones_like(scale).unsqueeze(-1))
    general = general_rows(d, wide_x / temperature, wide_y / temperature)
    value = general.value.to(x.dtype)
    _check_finite(d.name, value, {"logits": x, "ref_logits": y}, row_index, start)
    _check_support(d, general.only_policy, general.only_reference, row_index, start)
    return value, None if scale is None else (general.gradient.to(x.dtype), scale.unsqueeze(-1))


def _store(
    factor: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, soft_cap: SoftCap, loaded: torch.Tensor
) -> None:
    """factor times scale into out, past the soft cap; straight where nothing has to be converted."""
    if soft_cap.cap is None and out.dtype == factor.dtype:
        torch.mul(factor, scale, out=out)
    else:
        out.copy_(soft_cap.chain(factor.mul_(scale), loaded))


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


def walk_tokens(
    x: torch.Tensor,
    tokens: torch.Tensor,
    *,
    logp: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    loss_weight: torch.Tensor | None = None,
    of_entropy: torch.Tensor | None = None,
    gradient: torch.Tensor | None = None,
    temperature: float = 1.0,
    soft_cap: SoftCap = NO_CAP,
    row_index: RowIndex | None = None,
) -> None:
    """Fill log-probs, entropies and gradient, whichever is given, row by row.

    Args:
        x: Raw logits, [..., vocab].
        tokens: [rows, k] int64.
        logp: [rows, k], filled with the log-probs of the tokens.
        entropy: [rows], filled.
        loss_weight: [rows, k], the weights of the log-probs in the gradient.
        of_entropy: [rows], the weights of the entropies in the gradient.
        gradient: [..., vocab], any floating dtype; may be x itself.
        temperature: By which the logits are divided.
        soft_cap: Their soft cap.
        row_index: Where the rows stand, for messages.

    Raises:
        ValueError: NaN, +inf or only -inf in a row.
    """
    row_index = RowIndex(x.shape[:-1]) if row_index is None else row_index
    dtype = exact_dtype(x)
    size = min(rows_per_block(x.shape[-1], dtype, x.device), max(1, tokens.shape[0]))
    scratch = torch.empty(4, size, x.shape[-1], dtype=dtype, device=x.device)
    curved = entropy is not None or of_entropy is not None
    for start, stop, (raw, *out) in blocks(size, x, *([] if gradient is None else [gradient])):
        here, buffers = slice(start, stop), scratch[:, : stop - start]
        a = soft_cap.load(raw, buffers[3])
        rows = token_rows(a, tokens[here], buffers, temperature, entropy=curved)
        if logp is not None:
            if rows.logp.isnan().any():
                _check_finite("log-prob", rows.logp, {"logits": a}, row_index, start)
            logp[here] = rows.logp
        if entropy is not None and rows.entropy is not None:
            entropy[here] = rows.entropy
        if gradient is not None and loss_weight is not None:
            scale = loss_weight[here].to(dtype) / temperature
            bend = None if of_entropy is None else of_entropy[here].to(dtype) / temperature
            out[0].copy_(soft_cap.chain(token_gradient(rows, tokens[here], scale, bend), a))


def _check_support(
    d: Divergence, only_policy: torch.Tensor, only_reference: torch.Tensor, row_index: RowIndex, start: int
) -> None:
    for cost, where, who, other in (
        (d.at_infinity, only_policy, "policy", "reference"),
        (d.at_zero, only_reference, "reference", "policy"),
    ):
        if not cost.is_finite and where.any():
            row, token = where.nonzero()[0].tolist()
            raise ValueError(
                f"{d.name} is infinite at {[*row_index(start + row), token]}: the {who} has probability "
                f"where the {other} has none, {SUPPORT}"
            )


def _check_finite(
    what: str, found: torch.Tensor, raw: dict[str, torch.Tensor], row_index: RowIndex, start: int
) -> None:
    """ValueError that names the reason and the place where a result is not finite."""
    good = found.isfinite()
    if good.all():
        return
    for name, x in raw.items():
        for says, bad in (
            ("is NaN", x.isnan()),
            ("is +inf", x.isposinf()),
            ("is -inf for every token", x.isneginf().all(-1, keepdim=True)),
        ):
            if bad.any():
                where = row_index(start + int(bad.any(-1).nonzero()[0]))
                raise ValueError(f"{name} {says} at {where}: expected finite numbers, -inf where masked")
    where = row_index(start + int((~good).nonzero()[0, 0]))
    raise ValueError(f"{what} at {where} is beyond {found.dtype}: its largest ratios overflow")
