"""Checks of arguments that the functions of logits and of hidden states share.

Type, shape, dtype and device are checked always. Values are read only with ``validate=True``: on a GPU a read
waits for all work that was asked of it before.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import NamedTuple

import torch

from kl_companion.checks import check_floating, check_shape, check_temperature
from kl_companion.kernels.compiling import Backend, compiles
from kl_companion.kernels.logit_transform import LogitTransform


class RowSelection(NamedTuple):
    """Which rows count, and the weights of the loss where they are known up front."""

    inside: torch.Tensor | None  # [rows] bool: in the mask, and with a weight that is not 0
    weights: torch.Tensor | None = None
    mask: torch.Tensor | None = None  # [rows] bool

    def shaped(self, *shape: int) -> RowSelection:
        """The same with weights of another shape."""
        return self if self.weights is None else self._replace(weights=self.weights.reshape(shape))

    def ids(self, index: torch.Tensor, vocab: int) -> torch.Tensor:
        """Ids [rows, k], in rows outside those of some token: no logit has the id -100 of padding."""
        if self.inside is None:
            return index
        return index.where(self.inside.unsqueeze(-1), index.clamp(0, vocab - 1))


class Doubt(NamedTuple):
    """Entries that must not occur, and the message about one of them."""

    bad: torch.Tensor
    message: Callable[[list[int]], str]


def refuse(*doubts: Doubt | None) -> None:
    """Raise ValueError for the first doubt with an entry that is True; one read where there is none."""
    open_ones = [doubt for doubt in doubts if doubt is not None and not doubt.bad.is_meta]
    if open_ones and bool(torch.stack([doubt.bad.any() for doubt in open_ones]).any()):
        first = next(doubt for doubt in open_ones if doubt.bad.any())
        raise ValueError(first.message(first.bad.nonzero()[0].tolist()))


def check_plain(name: str, x: object) -> None:
    """Raise ValueError for a DTensor, whose rows or columns are spread over devices."""
    if type(x).__name__ == "DTensor":
        raise ValueError(
            f"{name} is a DTensor, expected a plain tensor: pass {name}.full_tensor(), or {name}.to_local() "
            "where each device has rows of its own"
        )


def check_array(name: str, x: torch.Tensor) -> None:
    """Raise ValueError unless ``x`` is a plain tensor of floating numbers."""
    check_plain(name, x)
    check_floating(name, x)


def check_logits(name: str, x: torch.Tensor) -> None:
    """Raise ValueError unless ``x`` is a plain floating tensor [..., vocab] with a vocabulary."""
    check_array(name, x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} has shape {list(x.shape)}, expected [..., vocab] with vocab of at least 1")


def check_device(name: str, x: torch.Tensor, like: torch.Tensor, whose: str) -> None:
    """Raise ValueError unless ``x`` is on the device of ``like``."""
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device}, expected {like.device} like {whose}")


def check_overwritable(logits: torch.Tensor, inplace: bool) -> None:
    """Raise ValueError where ``inplace=True`` would write to a parameter or several times to one place."""
    if not inplace or not logits.numel():
        return
    if any(size > 1 and step == 0 for size, step in zip(logits.shape, logits.stride(), strict=True)):
        raise ValueError(
            "inplace=True got expanded logits, several of whose entries share one place in memory: expected "
            "a place per entry for the gradient (call .contiguous() first, or leave inplace out)"
        )
    if torch.compiler.is_compiling():  # nothing is overwritten there
        return
    base = logits._base if logits._is_view() else logits
    if torch.is_grad_enabled() and base is not None and base.is_leaf and base.requires_grad:
        what = "a view of a leaf" if base is not logits else "a leaf"
        raise ValueError(
            f"inplace=True got logits that are {what} that requires grad, whose values its gradient would "
            "overwrite: expected the output of a model (or leave inplace out)"
        )


def rows_that_count(
    mask: torch.Tensor | None,
    weights: torch.Tensor | None,
    logits: torch.Tensor,
    lead: torch.Size,
    like: str,
    *,
    ids: torch.Size | None = None,
    validate: bool = False,
) -> RowSelection:
    """Check ``mask`` [...] and ``weights``, and return what they leave: rows of weight 0 do not count.

    Args:
        mask: 1 or True in rows that count, or None.
        weights: By which the loss multiplies the results, or None.
        logits: A tensor on the device of the logits.
        lead: The leading axes of the logits.
        like: What has these axes, for messages.
        ids: The shape of token ids where the weights have this one.
        validate: Whether values are read.

    Raises:
        ValueError: another type, shape, dtype or device, and with ``validate`` a mask that holds another
            number than 0 and 1, or weights that are not finite.
    """
    inside, doubts = None, []
    if mask is not None:
        if not isinstance(mask, torch.Tensor) or mask.is_complex():
            got = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise ValueError(f"mask is {got}, expected a tensor of truth values, or of 0 and 1")
        check_plain("mask", mask)
        check_shape("mask", mask, lead, like)
        check_device("mask", mask, logits, "the logits")
        if validate:
            numbers = mask
            doubts.append(
                Doubt(
                    (mask != 0) & (mask != 1),
                    lambda at: f"mask is {numbers[tuple(at)].item()} at {at}, expected 0 or 1",
                )
            )
        inside = mask = (mask.detach() != 0).reshape(-1)
    if weights is not None:
        check_array("weights", weights)
        check_shape("weights", weights, lead if ids is None else ids, like if ids is None else "tokens")
        check_device("weights", weights, logits, "the logits")
        weights = weights.detach()
        if validate:
            doubts.append(
                Doubt(
                    ~weights.isfinite(),
                    lambda at: f"weights is NaN or infinite at {at}, expected finite numbers",
                )
            )
        if lead.numel():
            some = (weights != 0).reshape(lead.numel(), -1).any(-1)
            inside = some if inside is None else inside & some
    refuse(*doubts)
    return RowSelection(inside, weights, mask)


def check_tokens(
    name: str,
    tokens: torch.Tensor,
    logits: torch.Size,
    rows: RowSelection | None = None,
    *,
    validate: bool = False,
) -> torch.Tensor:
    """Ids as [rows, k] for logits [..., vocab]; ValueError for another shape or dtype.

    With ``validate`` also for an id outside the vocabulary in a row that counts.
    """
    lead, vocab = logits[:-1], logits[-1]
    check_plain(name, tokens)
    if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.int64:
        got = tokens.dtype if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise ValueError(f"{name} is {got}, expected int64 ids")
    if tokens.shape != lead and (tokens.ndim == 0 or tokens.shape[:-1] != lead):
        raise ValueError(
            f"{name} has shape {list(tokens.shape)}, expected {list(lead)} or {[*lead, 'k']} "
            "like logits [..., vocab]"
        )
    count = 1 if tokens.shape == lead else tokens.shape[-1]
    if count == 0:
        raise ValueError(f"{name} has shape {list(tokens.shape)}, expected at least one id per row")
    index = tokens.reshape(lead.numel(), count)
    index = index if rows is None else rows.ids(index, vocab)
    if validate:
        refuse(
            Doubt(
                (index < 0) | (index >= vocab),
                lambda at: f"{name} holds the id {index[tuple(at)].item()}, expected 0 to {vocab - 1}",
            )
        )
    return index


def how_of(
    logits: torch.Tensor,
    entries: int,
    backend: Backend,
    *,
    temperature: float,
    ref_temperature: float | None = None,
    logit_scale: float = 1.0,
    ref_logit_scale: float = 1.0,
    soft_cap: float | None = None,
    ref_soft_cap: float | None = None,
) -> LogitTransform:
    """Check the numbers that logits go through; ValueError for one that is no positive float32 number."""
    ref_temperature = (
        temperature if ref_temperature is None else _positive("ref_temperature", ref_temperature)
    )
    how = LogitTransform(
        check_temperature(temperature),
        float(ref_temperature),
        None if soft_cap is None else _positive("soft_cap", soft_cap),
        None if ref_soft_cap is None else _positive("ref_soft_cap", ref_soft_cap),
        _positive("logit_scale", logit_scale),
        _positive("ref_logit_scale", ref_logit_scale),
        compiles(backend, entries, logits.device),
    )
    _positive("logit_scale / temperature", how.scale / how.temperature)
    _positive("the reference's factor over the policy's", how.ratio)
    return how


def _positive(name: str, number: float) -> float:
    single = torch.finfo(torch.float32)
    real = isinstance(number, Real) and not isinstance(number, bool)
    if not real or not single.tiny <= float(number) <= single.max:
        raise ValueError(f"{name} is {number!r}, expected a positive number that float32 holds")
    return float(number)
