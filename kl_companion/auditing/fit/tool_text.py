"""A loss on answers with text of a tool inside, which the policy did not write and the mask leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kl_companion.auditing.fit.explanations import COMMON, Seen
from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.fit.observations import Looked, look
from kl_companion.auditing.worlds.trees import Condition, with_tool, worlds
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import Population, population_rollout

_SAME = 1e-9
_OTHER = 1000  # seed of other log-probs of the same text


@dataclass(frozen=True)
class ToolText:
    """A loss on answers with a tool's text inside.

    Attributes:
        finding: See `Finding`; that without the text where the two are the same.
        trained: Whether logits of the text receive gradient.
        lost: Whether tokens of the policy receive none that receive some without the text.
        before, after: Whether log-probs of the text change the gradient of the policy's tokens before it, and
            of those after it.
        same: Whether the loss minimizes the same with and without the text.
    """

    finding: Finding
    trained: bool = False
    lost: bool = False
    before: bool = False
    after: bool = False
    same: bool = True


def tool_text(
    loss_fn: Loss,
    plain: Finding,
    looked: Looked,
    judge: Callable[[Loss, Condition], Finding],
    *,
    head: int,
    group_size: int | None = None,
) -> ToolText | None:
    """Return what a loss does on answers with a tool's text inside; None where it does not run on them.

    Args:
        loss_fn: The loss.
        plain: The loss without the text.
        looked: The loss on the worlds of that condition.
        judge: Audits a loss under a condition.
        head: Of how many likeliest tokens the loss is; 0 of none.
        group_size: Answers per batch; None is the limit of large batches.
    """
    assert plain.condition is not None
    condition = plain.condition._replace(tool=True)
    try:
        with_text = look(loss_fn, condition, group_size=group_size, known={}, head=head)
    except ValueError:
        return None
    pairs = zip(with_text.worlds, looked.worlds, strict=True)
    if with_text.settles and all(_as_without(*pair) for pair in pairs):
        return ToolText(replace(plain, condition=condition))
    finding = judge(loss_fn, condition)
    units = {unit for of in finding.units for unit in of.values()}
    known = bool(finding.matches) and COMMON not in units
    # a divisor such as the padded length is another number there, in the same unit
    if known and (finding.matches, finding.units, finding.sums) == (plain.matches, plain.units, plain.sums):
        return ToolText(finding)
    return _by_experiment(loss_fn, finding, head, group_size or 1)


def _as_without(with_text: Seen, plain: Seen) -> bool:
    own = len(plain.gradient)
    difference = torch.cat([with_text.gradient[:own] - plain.gradient, with_text.gradient[own:]])
    both = with_text.zero and plain.zero
    return both or bool(difference.norm() <= _SAME * plain.gradient.norm())


def _by_experiment(loss_fn: Loss, finding: Finding, head: int, group_size: int) -> ToolText:
    """Compare gradients of single tokens with those without the text, and with another text's log-probs."""
    assert finding.condition is not None
    place = worlds(finding.condition._replace(tool=False), head + 2 if head else 3, headed=head > 0)[1]
    which = place.which
    if group_size > 1:  # groups of different answers
        order = torch.randperm(len(which) * group_size, generator=torch.Generator().manual_seed(0))
        which = which.repeat(group_size)[order]
    plain, with_text, with_other = (
        _gradients(loss_fn, Population(p, which))
        for p in (place.problem, with_tool(place.problem), with_tool(place.problem, _OTHER))
    )
    gradient, mask = with_text
    left = mask.flip(-1).cumsum(-1).flip(-1)  # tokens of the policy that are still to come, this one included
    holes = left.gt(0) & mask.eq(0)
    small = _SAME * gradient.sum()
    changed = (gradient - with_other[0]).abs() > small
    own = mask.bool() & holes.any(-1, keepdim=True)
    silent, before = gradient[mask.bool()] <= small, plain[0][plain[1].bool()]
    return ToolText(
        finding,
        trained=bool((gradient[holes] > small).any()),
        lost=bool((silent & (before > small)).any()),
        before=bool(changed[own & (left > 1)].any()),
        after=bool(changed[own & (left == 1)].any()),
        same=False,
    )


def _gradients(loss_fn: Loss, population: Population) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the size of the gradient of each token's logits, and the mask, [rows, seq] each."""
    rollout = population_rollout(population)
    assert rollout.logits is not None
    (gradient,) = torch.autograd.grad(loss_fn(rollout), rollout.logits, materialize_grads=True)
    return gradient.norm(dim=-1), rollout.completion_mask
