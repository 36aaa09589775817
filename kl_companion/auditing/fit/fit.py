"""The third stage of an audit: fit the expected gradient of a loss by named objectives, world by world."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.explanations import Explanation, matched, value_matches
from kl_companion.auditing.fit.findings import Finding, GroupGap
from kl_companion.auditing.fit.least_squares import curl, curl_of
from kl_companion.auditing.fit.observations import Looked, beside_others, gaps, look, look_at
from kl_companion.auditing.fit.parts import Piece, parts
from kl_companion.auditing.fit.recognition import recognize
from kl_companion.auditing.fit.tool_text import ToolText, tool_text
from kl_companion.auditing.worlds.distillation import Search
from kl_companion.auditing.worlds.objectives import OBJECTIVES, Objective, by_the_sampler, field
from kl_companion.auditing.worlds.plan import AuditPlan, FitOptions
from kl_companion.auditing.worlds.trees import SHORT, Condition, worlds
from kl_companion.auditing.worlds.truncations import cut_objectives
from kl_companion.tabular import Loss, Problem

Further = Callable[[Looked], Looked | None]
_FIRST_UPDATE = Condition(True, True, 1.0)  # the sampler is not the policy even before the first step


class LossFit(NamedTuple):
    """A loss with what explains it on every world.

    Attributes:
        plan: See `AuditPlan`.
        findings: One per condition; or one for all problems of the request.
        observations: The loss on the worlds of each.
        same_as: (estimator, coefficient) where the loss is a registered estimator, sample by sample.
    """

    plan: AuditPlan
    findings: tuple[Finding, ...]
    observations: tuple[Looked, ...]
    same_as: tuple[str, float] | None

    def of(self, loss_fn: Loss, condition: Condition) -> Finding:
        """Fit another loss in the same way under one condition."""
        options = self.plan.options
        return _finding(condition, self.observe(loss_fn, condition, options.group_size), options)

    def observe(self, loss_fn: Loss, condition: Condition, group_size: int | None) -> Looked:
        """Evaluate a loss on the worlds of a condition, unless the plan had it evaluated there."""
        plan, options = self.plan, self.plan.options
        if condition in plan.conditions and (loss_fn, group_size) == (plan.subject.loss, plan.group_size):
            return self.observations[plan.conditions.index(condition)]
        objectives = options.under(condition)
        return look(loss_fn, condition, group_size=group_size, known=objectives, head=options.head)

    def of_first_update(self) -> Finding | None:
        """Fit the loss where the old policy is the policy itself; None unless it reads a sampler too."""
        loss_fn, request = self.plan.subject.first_update, self.plan.subject.request
        if loss_fn is None or not self.plan.conditions:
            return None
        if request.off_policy is False or self.plan.group_size is not None:
            return None
        return self.of(loss_fn, _FIRST_UPDATE)

    def with_tool(self) -> ToolText | None:
        """Fit the loss on answers with a tool's text inside; None for a loss that takes no mask."""
        plan = self.plan
        if not plan.subject.masked or plan.group_size != plan.options.group_size or not plan.conditions:
            return None
        i = next(i for i, condition in enumerate(plan.conditions) if condition.eos)
        return tool_text(
            plan.subject.loss,
            self.findings[i],
            self.observations[i],
            self.of,
            head=plan.options.head,
            group_size=plan.group_size,
        )


def fit(plan: AuditPlan) -> LossFit:
    """Return what the loss of a plan minimizes under every condition, or on the problems of the request."""
    subject = plan.subject
    say = subject.request.progress or str
    search = Search(subject.numbers)
    pairs = []
    if not plan.conditions:
        pairs.append(_on_problems(plan, search))
    for i, condition in enumerate(plan.conditions):
        sampling = "off" if condition.off_policy else "on"
        say(f"{i + 1}/{len(plan.conditions)}: {sampling}-policy, scale {condition.scale:g}")
        pairs.append(_under(condition, plan, search))
    same_as = recognize(plan.samples) if subject.placement == "loss" else None
    findings, observations = zip(*pairs, strict=True)
    return LossFit(plan, findings, observations, same_as)


def pieces(fit: LossFit, main: Finding) -> tuple[Piece, ...]:
    """Return the parts of a loss of no known objective, see `parts`.

    Args:
        fit: The loss.
        main: Its finding under the condition that counts.
    """
    plan, condition = fit.plan, main.condition
    assert condition is not None
    loss_fn, options = plan.subject.loss, plan.options
    observe = partial(fit.observe, condition=condition, group_size=plan.group_size)
    explain = partial(_finding, condition, options=options._replace(sampler=False))
    in_large_batches = None
    if not plan.single and options.group_size is None:
        in_large_batches = partial(fit.of, loss_fn, condition)
    return parts(loss_fn, observe, explain, in_large_batches)


def finding_of(loss_fn: Loss, condition: Condition, options: FitOptions) -> Finding:
    """Fit a loss under one condition, without objectives that are cut."""
    group_size, head = options.group_size, options.head
    observation = look(loss_fn, condition, group_size=group_size, known=options.under(condition), head=head)
    return _finding(condition, observation, options)


def _on_problems(plan: AuditPlan, search: Search) -> tuple[Finding, Looked]:
    """Fit a loss on the problems of its request."""
    subject, options = plan.subject, plan.options
    problems, group_size = subject.request.problems, plan.group_size or 1
    assert problems is not None
    objectives = options.objectives(
        off_policy=any(p.behavior_logits is not None for p in problems),
        lengths=any(len(p.completion_mask.sum(-1).unique()) > 1 for p in problems),
    )
    observation = look_at(subject.loss, problems, group_size=group_size, known=objectives)
    measure_curl = partial(_curl, subject.loss, problems[0], group_size, False)
    reads_more = options.heads and subject.entry is None
    further = _further(problems, objectives, options.head, search) if reads_more else ()
    return _finding(None, observation, options, measure_curl, further=further), observation


def _under(condition: Condition, plan: AuditPlan, search: Search) -> tuple[Finding, Looked]:
    """Fit a loss under one condition of its plan."""
    subject, options, group_size = plan.subject, plan.options, plan.group_size
    head, objectives = options.head, options.under(condition)
    observation = look(subject.loss, condition, group_size=group_size, known=objectives, head=head)
    vocab = head + 2 if head else 3 if plan.single else 2
    place = worlds(condition, vocab, headed=head > 0)[1].problem
    measure_curl = partial(_curl, subject.loss, place, group_size, plan.couples)
    measure_gaps = partial(gaps, subject.loss, condition, head) if plan.couples else None
    reads_more = options.heads and subject.entry is None and group_size is None
    further = _further(condition, objectives, head, search) if reads_more else ()
    return _finding(condition, observation, options, measure_curl, measure_gaps, further), observation


def _finding(
    condition: Condition | None,
    observation: Looked,
    options: FitOptions,
    measure_curl: Callable[[dict[str, float]], float] = lambda _: math.nan,
    measure_gaps: Callable[[], tuple[GroupGap, ...]] | None = None,
    further: Sequence[Further] = (),
) -> Finding:
    """Explain a loss by the objectives that it was evaluated beside, else by further ones."""
    zeros = [w.zero for w in observation.worlds]
    zero = all(zeros) and observation.settles
    explained: tuple[Explanation, ...] = ()
    residual = 0.0 if zero else 1.0
    if observation.settles and not any(zeros):
        beside = [n for n in observation.worlds[0].fields if OBJECTIVES[n].rewards]
        explain = partial(matched, beside=beside, may_vary=condition is not None)
        explained, residual = explain(observation.worlds, max_terms=options.max_terms)
        for more in further:
            if explained or (beside_more := more(observation)) is None:
                continue
            # so many more that sums of three of them would take minutes
            explained, least = explain(beside_more.worlds, max_terms=min(options.max_terms, 2))
            residual = least if explained else min(residual, least)
            observation = beside_more
    pairs = [(e.coefficients, e.units) for e in explained]
    pairs = [by_the_sampler(*pair) for pair in pairs] if options.sampler else pairs
    same_length = observation.worlds if condition is None else observation.worlds[-SHORT:]
    return Finding(
        condition,
        tuple(match for match, _ in pairs),
        residual,
        zero,
        partial(value_matches, same_length),
        lambda: measure_curl(explained[0].coefficients if explained else {}),
        tuple(units for _, units in pairs),
        observation.sums,
        observation.settles,
        measure_gaps,
    )


def _further(
    where: Condition | Sequence[Problem], known: dict[str, Objective], head: int, search: Search
) -> tuple[Further, ...]:
    """Return the same loss beside objectives that are cut, and beside those of distillation that may fit."""
    lengths = where.eos if isinstance(where, Condition) else any(o.lengths_only for o in known.values())

    def cut(observation: Looked) -> Looked:
        return beside_others(observation, where, known | cut_objectives(head, lengths=lengths), head)

    def distilled(observation: Looked) -> Looked | None:
        vocab = head + 2 if head else 3
        small = min(1, len(observation.worlds) - 1)
        if isinstance(where, Condition):
            place = worlds(where, vocab, headed=head > 0)[small].problem
        else:
            place = where[small]
        world = observation.worlds[small]
        fields = {n: f for n, f in world.fields.items() if n in known}
        beside = [n for n in fields if known[n].rewards]
        more = search.objectives(world.gradient, place, fields, beside, lengths=lengths)
        return beside_others(observation, where, known | more, head) if more else None

    return cut, distilled


def _curl(
    loss_fn: Loss, problem: Problem, group_size: int | None, coupled: bool, matches: dict[str, float]
) -> float:
    """Return the curl of a loss; in large batches that it couples, of its explanation, NaN without one."""
    if not coupled:
        return curl(loss_fn, problem, group_size=group_size or 1)
    if not matches:
        return math.nan

    def gradient(logits: torch.Tensor) -> torch.Tensor:
        return sum((c * field(OBJECTIVES[n], problem, logits) for n, c in matches.items()), torch.zeros(()))

    return curl_of(gradient, problem.logits)
