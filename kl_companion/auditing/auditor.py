"""Which objective does a loss really descend? Enumerate, differentiate, and solve for the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.adapt import as_subject
from kl_companion.auditing.findings import Condition, Finding
from kl_companion.auditing.objectives import Objective, field, objectives, value
from kl_companion.auditing.recognize import reads_heads, recognize, single_tokens
from kl_companion.auditing.solve import TOLERANCE, ZERO, curl, explain, short, still_hold
from kl_companion.auditing.verdict import Audit, accepts, remedy_for, wanted_objectives
from kl_companion.kl_term import EstimatorLike, KLTerm
from kl_companion.tabular import Loss, Problem, expectation, prefix_tree

SCALES = (1.0, 4.0)
_SEEDS = (0, 1, 2)
_LARGEST_GROUP = 3  # whose draws from a tree of three tokens can be enumerated
_NOTHING = 1e-14  # rounding, for a loss whose own value is zero


@cache
def _problems(condition: Condition, vocab: int) -> tuple[Problem, ...]:
    """Trees of two tokens, where every sum of objectives is looked for."""
    off_policy, eos, scale = condition
    return tuple(prefix_tree(vocab, 2, seed=s, eos=eos, off_policy=off_policy, scale=scale) for s in _SEEDS)


@cache
def _longer(condition: Condition, vocab: int) -> Problem:
    """A tree of three tokens, where what was found has to hold: two have but one past and one future."""
    off_policy, eos, scale = condition
    return prefix_tree(vocab, 3, seed=len(_SEEDS), eos=eos, off_policy=off_policy, scale=scale)


def _fields(problems: Sequence[Problem], known: dict[str, Objective]) -> dict[str, torch.Tensor]:
    return {n: torch.cat([field(o, p).flatten() for p in problems]) for n, o in known.items()}


def _values(problems: Sequence[Problem], known: dict[str, Objective]) -> dict[str, torch.Tensor]:
    return {n: torch.tensor([value(o, p) for p in problems], dtype=torch.float64) for n, o in known.items()}


@cache
def _known(
    condition: Condition, vocab: int, names: tuple[str, ...]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Fields and values of the objectives on the default problems, fields on the longer: for every loss."""
    problems = _problems(condition, vocab)
    every = objectives(off_policy=condition.off_policy, lengths=condition.eos)
    known = {n: o for n, o in every.items() if n in names}
    return _fields(problems, known), _values(problems, known), _fields([_longer(condition, vocab)], known)


def _value_matches(got: torch.Tensor, known: dict[str, torch.Tensor]) -> dict[str, float]:
    """Objectives that are proportional to the expected loss over several problems."""
    if len(got) < 2 or got.norm() < _NOTHING:
        return {}
    found = {}
    for name, theirs in known.items():
        factor = (got @ theirs / (theirs @ theirs).clamp_min(ZERO)).item()
        if (got - factor * theirs).norm() < TOLERANCE * got.norm():
            found[name] = short(factor)
    return found


class _Seen(NamedTuple):
    """What a loss does on several problems: its value on each, its gradient, whether that vanishes."""

    values: torch.Tensor
    gradient: torch.Tensor
    zero: bool


def _look(loss_fn: Loss, problems: Sequence[Problem], group_size: int) -> _Seen:
    seen = [expectation(loss_fn, p, group_size=group_size) for p in problems]
    gradient = torch.cat([e.gradient.flatten() for e in seen])
    # measured against the size of the loss, so that a small beta is not taken for none
    zero = bool(gradient.norm() < max(ZERO * sum(e.magnitude for e in seen), _NOTHING))
    return _Seen(torch.tensor([e.value for e in seen], dtype=torch.float64), gradient, zero)


def _finding(
    loss_fn: Loss,
    problems: Sequence[Problem],
    condition: Condition | None,
    group_size: int,
    max_terms: int,
    heads: bool,
) -> Finding:
    known = objectives(
        off_policy=any(p.behavior_logits is not None for p in problems),
        lengths=any(len(p.completion_mask.sum(-1).unique()) > 1 for p in problems),
        heads=heads,
    )
    vocab = problems[0].logits.shape[-1]
    if condition is None:
        fields, values = _fields(problems, known), _values(problems, known)
    else:
        fields, values, on_longer = _known(condition, vocab, tuple(known))
    here = _look(loss_fn, problems, group_size)
    zero = here.zero
    matches, residual = ((), 0.0) if zero else explain(here.gradient, fields, max_terms=max_terms)
    if condition is not None and group_size <= _LARGEST_GROUP and (zero or matches):
        there = _look(loss_fn, (_longer(condition, vocab),), group_size)
        if zero != there.zero:
            zero, matches, residual = False, (), 1.0
        elif not zero:
            matches, residual = still_hold(there.gradient, on_longer, matches)
    matched = _value_matches(here.values, values)
    return Finding(
        condition, matches, residual, zero, matched, lambda: curl(loss_fn, problems[0], group_size=group_size)
    )


def audit(
    loss: EstimatorLike | KLTerm | Callable[..., Any],
    *,
    placement: str = "loss",
    level: str | None = None,
    problems: Sequence[Problem] | None = None,
    group_size: int = 1,
    want: str | None = None,
    max_terms: int = 3,
    off_policy: bool | None = None,
    scale: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Say which objective a loss descends, with its coefficient, or that it descends none.

    The loss is evaluated on every sequence of small trees; its expected gradient is compared with the
    exact gradient fields of the registered objectives. By default eight conditions are looked at: on-
    and off-policy, with and without end-of-sequence, small and large log-ratios. What is found on trees of
    two tokens has to hold on one of three, with coefficients of its own (a mean over tokens has others
    there).

    Args:
        loss: A registered estimator's name, a `KLTerm` (which says placement and level itself), a function
            of named fields of a rollout that returns a scalar or one value per token, or a function of one
            `Rollout` that returns a scalar.
        placement: ``"loss"`` differentiates it, ``"reward"`` subtracts its detached value from the reward.
        level: ``"token"`` or ``"sequence"``, for estimators; None is tokens in the loss and sums over
            sequences in the reward.
        problems: Worlds to use instead of the default ones; they make one finding.
        group_size: Sequences per batch, for losses that couple a group (at most three is practical; larger
            groups are looked at on trees of two tokens only).
        want: A divergence (``"reverse_kl"``, at either level) or an objective; fills ``met`` and ``remedy``.
        max_terms: The longest sum of objectives to try.
        off_policy: Look at, and judge ``want`` by, off- or on-policy samples only; None looks at both
            and judges on-policy.
        scale: One size of log-ratios instead of small (1) and large (4).
        progress: Called with a line of text per condition.

    Raises:
        ValueError: unknown names, no problems, a loss that returns no scalar, is NaN or has no gradient, a
            scale that is not positive, or too many evaluations.
    """
    subject = as_subject(loss, placement, level)
    loss_fn, entry = subject.loss, subject.entry
    wanted = None if want is None else wanted_objectives(want)
    if scale is not None and not scale > 0:
        raise ValueError(f"scale is {scale}, expected a positive number")
    if problems is not None and not len(problems):
        raise ValueError("problems is an empty list, expected at least one Problem, or None")
    if max_terms < 1:
        raise ValueError(f"max_terms is {max_terms}, expected at least 1")
    found = single_tokens(loss_fn) if entry is None and group_size == 1 else None
    heads = reads_heads(entry, found) if entry is not None or group_size == 1 else False
    same_as = recognize(found) if subject.placement == "loss" else None
    if problems is not None:
        findings = [_finding(loss_fn, problems, None, group_size, max_terms, heads)]
    else:
        findings = []
        todo = [
            Condition(off, eos, s)
            for off in ((False, True) if off_policy is None else (off_policy,))
            for s in (SCALES if scale is None else (scale,))
            for eos in (False, True)
        ]
        for i, condition in enumerate(todo):
            if progress is not None:
                sampling = "off" if condition.off_policy else "on"
                progress(f"{i + 1}/{len(todo)}: {sampling}-policy, scale {condition.scale:g}")
            worlds = _problems(condition, 3 if group_size == 1 else 2)
            findings.append(_finding(loss_fn, worlds, condition, group_size, max_terms, heads))
    said = Audit(subject.title, tuple(findings), subject.placement, same_as)
    if wanted is None or want is None:
        return said
    judged = [
        c for c in findings if c.condition is None or off_policy is not None or not c.condition.off_policy
    ]
    met = all(accepts(c, wanted) for c in judged)
    return replace(said, want=want, met=met, remedy=None if met else remedy_for(want, findings, same_as))
