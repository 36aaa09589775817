"""Rewards and costs compared within the group of sequences that answers one prompt."""

from __future__ import annotations

from typing import Literal

import torch

from kl_companion import checks
from kl_companion.rollout.flags import Flags

Centering = Literal["none", "mean", "leave_one_out", "standardized"]
CENTERINGS: tuple[Centering, ...] = ("none", "mean", "leave_one_out", "standardized")


def center(
    x: torch.Tensor, prompt_index: torch.Tensor, how: Centering = "leave_one_out", *, eps: float = 1e-4
) -> torch.Tensor:
    """Return rewards or costs of sequences, centered within the group that answers the same prompt, [batch].

    Args:
        x: [batch].
        prompt_index: [batch], any integers.
        how: ``"none"``: as they are. ``"mean"``: minus the mean of the group, itself included.
            ``"leave_one_out"``: minus the mean of the others. ``"standardized"``: minus the mean, divided
            by the group's standard deviation (n - 1 in its denominator) plus ``eps``.
        eps: Added to the standard deviation; a group whose values all agree gets zeros, with 0 too.

    Raises:
        ValueError: unknown ``how``, a negative or infinite ``eps``, an empty batch, shapes that differ, a
            group with fewer than two sequences for ``"leave_one_out"`` and ``"standardized"``, or (but for
            ``"none"``) numbers that are not finite or whose sums or squares the dtype does not hold.

    Source: wang2025choosing, section 8.1; tang2025pitfalls, section 3.
    """
    checks.check_choice("how", how, CENTERINGS)
    checks.check_scalar("eps", eps, least=0.0)
    checks.check_tensor("x", x)
    checks.check_shape("prompt_index", prompt_index, x.shape, "x [batch]")
    if x.ndim != 1 or not len(x):
        raise ValueError(f"x has shape {list(x.shape)}, expected [batch] with at least one sequence")
    group = numbered(prompt_index)
    n, flags = sizes(group), Flags()

    def complain_of_one() -> None:
        raise ValueError(
            f"prompt {prompt_index[n < 2][0].item()} has one sequence, expected at least two: nothing is "
            f"left to compare it with (how={how!r})"
        )

    if how in ("leave_one_out", "standardized"):
        flags.add(n < 2, complain_of_one)
    if how != "none":
        flags.add(~x.isfinite(), lambda: checks.check_finite("x", x))
    centered = _centered(x, group, n.to(x.dtype), how, eps, flags)
    flags.settle()
    return centered


def numbered(prompt_index: torch.Tensor) -> torch.Tensor:
    """Return the number of each sequence's group, [batch] int64: 0, 1, ... in the order of ``prompt_index``.

    `torch.unique` would read the number of groups on the host.
    """
    ordered, order = prompt_index.sort(stable=True)
    new = torch.zeros_like(order)
    new[1:] = (ordered[1:] != ordered[:-1]).long()
    return torch.zeros_like(order).scatter(0, order, new.cumsum(0))


def sizes(group: torch.Tensor) -> torch.Tensor:
    """Return how many sequences the group of each one has, [batch] int64; groups are `numbered`."""
    return torch.zeros_like(group).index_add(0, group, torch.ones_like(group))[group]


def _centered(
    x: torch.Tensor, group: torch.Tensor, n: torch.Tensor, how: Centering, eps: float, flags: Flags
) -> torch.Tensor:
    """Return `center` of sequences whose groups are numbered, [batch]; ``n`` counts their groups."""

    def total(y: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(y).index_add(0, group, y)[group]

    if how == "none":
        return x
    if how == "leave_one_out":
        return _finite(x - (total(x) - x) / (n - 1), flags)
    centered = _finite(x - total(x) / n, flags)
    if how == "mean":
        return centered
    variance = _finite(total(centered**2) / (n - 1), flags)
    # the root has no slope at 0: without the first `where` its gradient is infinite times zero
    root = variance.where(variance > 0, 1.0).sqrt().where(variance > 0, 0.0)
    spread = root + eps
    return centered / spread.where(spread > 0, 1.0)


def _finite(x: torch.Tensor, flags: Flags) -> torch.Tensor:
    """Return x unchanged, which must not have overflowed its dtype."""

    def complain() -> None:
        raise ValueError(
            f"the mean or the spread of x is beyond {x.dtype}, expected smaller numbers or a wider dtype"
        )

    flags.add(~x.detach().isfinite(), complain)
    return x


def leave_one_out(x: torch.Tensor, prompt_index: torch.Tensor) -> torch.Tensor:
    """Return each value minus the mean of the *others* that answer the same prompt, [batch].

    Raises:
        ValueError: shapes differ, an empty batch, or a prompt has fewer than two sequences.

    Source: tang2025pitfalls, section 3.
    """
    return center(x, prompt_index, "leave_one_out")
