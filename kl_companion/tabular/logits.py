"""Exact bias and variance of an estimator on the raw logits of a model, token by token.

Rows are worked off a few at a time in float64, whatever the logits are kept in: beyond the logits
themselves the memory is that of some rows, and what is returned is one number per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from kl_companion.checks import check_floating, check_shape, check_temperature
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.tabular.draws import Draws, SinglePlacement
from kl_companion.tabular.rows import choices_of, draws_of_rows, normalized
from kl_companion.tabular.tokens import check_options

_ENTRIES = {"cpu": 2**17}  # in a block of rows, so that its float64 copy stays in the cache
_ENTRIES_ELSEWHERE = 2**23  # enough to keep an accelerator busy


class LogitMoments(NamedTuple):
    """Exact moments of an estimate at every token, [...]; [..., sizes] for several n.

    Gradients are with respect to the logits of the token's row. Ratios are NaN where both numbers are 0.

    Attributes:
        value: Expected value.
        value_bias: Expected value minus the target divergence.
        value_variance: Variance of the value.
        gradient_norm: Norm of the expected gradient.
        gradient_bias: Norm of the expected gradient minus that of the target divergence.
        gradient_variance: Trace of the covariance of the gradient.
        divergence: The target divergence, exact.
        divergence_gradient_norm: Norm of its gradient, exact.
    """

    value: torch.Tensor
    value_bias: torch.Tensor
    value_variance: torch.Tensor
    gradient_norm: torch.Tensor
    gradient_bias: torch.Tensor
    gradient_variance: torch.Tensor
    divergence: torch.Tensor
    divergence_gradient_norm: torch.Tensor

    @property
    def value_rmse(self) -> torch.Tensor:
        """Root of E (estimate - target)^2."""
        return (self.value_bias**2 + self.value_variance).sqrt()

    @property
    def gradient_rmse(self) -> torch.Tensor:
        """Root of E |estimate - gradient of the target|^2 (tang2025pitfalls, appendix C)."""
        return (self.gradient_bias**2 + self.gradient_variance).sqrt()

    @property
    def relative_gradient_bias(self) -> torch.Tensor:
        """`gradient_bias` in units of the exact gradient: 1 for an estimate that pulls on nothing."""
        return self.gradient_bias / self.divergence_gradient_norm

    @property
    def signal_to_noise(self) -> torch.Tensor:
        """Norm of the expected gradient over the root of its variance; infinite without noise."""
        return self.gradient_norm / self.gradient_variance.sqrt()


def logit_moments(
    estimator: str | Estimator,
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    n: int | torch.Tensor = 1,
    *,
    placement: SinglePlacement = "loss",
    temperature: float = 1.0,
    behavior_logits: torch.Tensor | None = None,
    weighted: bool = True,
    clip: tuple[float, float] | None = None,
    target: str | Divergence | None = None,
) -> LogitMoments:
    """Bias and variance of value and gradient of an estimate, exact, at every token of a model's logits.

    Args:
        estimator: Any registered estimator or `Estimator`: sampled, exact or top-k.
        logits: Of the policy, [..., vocab], raw: float64, float32, float16 or bfloat16, in any layout.
            -inf is a masked token.
        ref_logits: Of the reference, the same shape, any floating dtype.
        n: Independent tokens averaged, drawn at the same row; or several sizes, [sizes].
        placement: ``"loss"`` or ``"reward"``, see `token_moments`.
        temperature: Divides all logits; the gradient is by the logits before it.
        behavior_logits: Of the policy that samples, the same shape; None means the policy itself.
        weighted: Multiply what is sampled by pi/mu of the token (off-policy only), see `token_moments`.
        clip: (lowest, highest) pi/mu.
        target: The divergence that bias is measured against; the estimator's own target by default.

    Returns:
        `LogitMoments` of float64 tensors [...], or [..., sizes]. Nothing carries a gradient.

    Raises:
        ValueError: unknown name or placement, shapes that differ, NaN or +inf, a row of -inf only, a clip
            out of order or without a weight, n below 1, a temperature that is not positive, or an infinite
            divergence or estimate.

    Source: emapg2026, appendix G.2 (which estimates these by simulation).
    """
    entry = get_estimator(estimator)
    against = get_divergence(entry.target if target is None else target)
    given = {"logits": logits, "ref_logits": ref_logits}
    if behavior_logits is not None:
        given["behavior_logits"] = behavior_logits
    _check_logits(given)
    check_options(placement, weighted, clip)
    temperature = check_temperature(temperature)
    lead, vocab = logits.shape[:-1], logits.shape[-1]
    heads = _given_heads(entry, logits)
    size = n.to(logits.device) if isinstance(n, torch.Tensor) else n

    def block(rows: slice | int) -> torch.Tensor:
        parts = []
        for name, x in given.items():
            scores = _rows(x.detach(), rows)
            parts.append(normalized(scores, torch.float64, temperature))
            if parts[-1].missing.isnan().any():
                raise _no_distribution(name, scores)
        draws = draws_of_rows(
            entry if heads is None else _with_heads(entry, _rows(heads, rows)),
            parts[0],
            parts[1],
            parts[0] if behavior_logits is None else parts[2],
            target=against,
            placement=placement,
            weighted=weighted,
            clip=clip,
        )
        return _numbers(draws, size, temperature)

    with torch.no_grad():
        step = max(1, _ENTRIES.get(logits.device.type, _ENTRIES_ELSEWHERE) // vocab)
        _keep_pages(logits.device, 16 * min(step, lead.numel()) * vocab)
        found = None
        for start in range(0, max(1, lead.numel()), step):
            rows = slice(start, min(start + step, lead.numel()))
            try:
                part = block(rows)
            except ValueError:
                block(slice(0, 0))  # errors that do not depend on the rows are raised without a place
                for i in range(rows.start, rows.stop):
                    _at_row(block, i, lead)
                raise
            if found is None:
                found = part.new_empty(len(part), lead.numel(), *part.shape[2:])
            found[:, rows] = part
    assert found is not None
    return LogitMoments(*found.reshape(len(found), *lead, *found.shape[2:]))


def _check_logits(given: dict[str, torch.Tensor]) -> None:
    first = given["logits"]
    check_floating("logits", first)
    if first.ndim == 0 or first.shape[-1] == 0:
        raise ValueError(f"logits has shape {list(first.shape)}, expected [..., vocab], vocab at least 1")
    for name, x in given.items():
        check_floating(name, x)
        check_shape(name, x, first.shape, "logits [..., vocab]")


def _keep_pages(device: torch.device, entries: int) -> None:
    """Free a block that was never touched: the C library then keeps what is freed, up to about its size.

    By default it hands the memory of every row back to the system, and asks for it again page by page.
    """
    if device.type == "cpu":  # the C library adapts its limit up to 32 MB only
        torch.empty(min(entries, 2**22 - 2**10), dtype=torch.float64)


def _rows(x: torch.Tensor, rows: slice | int) -> torch.Tensor:
    """Some rows of [..., last] as [rows, last], or one as [last]; the whole is never copied."""
    if x.ndim == 1:
        x = x.unsqueeze(0)
    elif x.is_contiguous():
        x = x.view(-1, x.shape[-1])
    elif x.ndim > 2:
        first, last = (rows, rows + 1) if isinstance(rows, int) else (rows.start, rows.stop)
        count = x.shape[:-1].numel()
        x = x[torch.unravel_index(torch.arange(first, min(last, count), device=x.device), x.shape[:-1])]
        return x[0] if isinstance(rows, int) else x
    return x[rows]


def _numbers(draws: Draws, n: int | torch.Tensor, temperature: float) -> torch.Tensor:
    """The fields of `LogitMoments` of some rows, [fields, ...]; ValueError unless all are finite."""
    moments = draws.at(n)
    variance = torch.as_tensor(moments.gradient_variance)
    like = torch.zeros_like(variance)  # [...] or [..., sizes]

    def norm(gradient: torch.Tensor) -> torch.Tensor:
        size = gradient.norm(dim=(-2, -1))
        return size.unsqueeze(-1) + like if like.ndim > size.ndim else size

    exact = draws.target_value
    found = torch.stack(
        [
            torch.as_tensor(moments.value).expand_as(variance),
            torch.as_tensor(moments.value_bias).expand_as(variance),
            torch.as_tensor(moments.value_variance).expand_as(variance),
            norm(draws.gradient) / temperature,
            moments.gradient_bias / temperature + like,
            variance / temperature**2,
            exact.unsqueeze(-1) + like if like.ndim > exact.ndim else exact,
            norm(draws.target_gradient) / temperature,
        ]
    )
    if not found.isfinite().all():
        raise ValueError("the moments are beyond float64, expected a reference closer to the policy")
    return found


def _no_distribution(name: str, scores: torch.Tensor) -> ValueError:
    """Why the softmax of some rows of scores is NaN."""
    for what, bad in (("NaN", scores.isnan()), ("inf", scores.isposinf())):
        if bad.any():
            return ValueError(f"{name} is {what} at {bad.nonzero()[0].tolist()}, expected numbers or -inf")
    return ValueError(f"{name} is -inf for the whole vocabulary, expected a token that can be said")


def _at_row(block: Callable[[int], torch.Tensor], row: int, lead: torch.Size) -> None:
    """Raise what is wrong with one row, with its place in front where there is more than one."""
    if not lead:
        block(row)
        return
    try:
        block(row)
    except ValueError as error:
        where = [int(x) for x in torch.unravel_index(torch.tensor(row), lead)]
        raise ValueError(f"row {where}: {error}") from None


def _given_heads(entry: Estimator, logits: torch.Tensor) -> torch.Tensor | None:
    """The head that a top-k estimator was given, checked, [..., k]; None where the rows decide."""
    if entry.inputs != "top_k" or choices_of(entry).indices is None:
        return None
    return choices_of(entry).head_indices(logits, logits)


def _with_heads(entry: Estimator, heads: torch.Tensor) -> Estimator:
    return entry._replace(fn=replace(choices_of(entry), indices=heads))
