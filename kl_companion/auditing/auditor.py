"""Which objective does a loss really minimize? Enumerate, differentiate, and solve for the answer."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kl_companion.auditing.fit.explanations import Explanation, matched, value_matches
from kl_companion.auditing.fit.findings import Finding, GroupGap
from kl_companion.auditing.fit.least_squares import curl, curl_of
from kl_companion.auditing.fit.observations import (
    Looked,
    beside_others,
    couples,
    gaps,
    look,
    look_at,
    reads_sampler,
)
from kl_companion.auditing.fit.parts import parts, without_rewards
from kl_companion.auditing.fit.recognition import reads_heads, recognize, single_tokens
from kl_companion.auditing.fit.tool_text import tool_text
from kl_companion.auditing.judgment.inputs import OUTSIDE, said_as, without_padding
from kl_companion.auditing.judgment.sampler import acts_alone, held, meant_by, stale_finding
from kl_companion.auditing.judgment.signs import minimizes_rewards
from kl_companion.auditing.judgment.summary import main_finding, row
from kl_companion.auditing.judgment.verdict import (
    Audit,
    accepts,
    divergence_wanted,
    said_by_name,
    wanted_objectives,
)
from kl_companion.auditing.reading.functions import check_rows
from kl_companion.auditing.reading.groups import check_group
from kl_companion.auditing.reading.repairs import readable
from kl_companion.auditing.reading.subject import NOTHING, Subject, as_subject, probe
from kl_companion.auditing.repair.patches import instead, without_block
from kl_companion.auditing.worlds.distillation import Search, is_kind_of
from kl_companion.auditing.worlds.objectives import OBJECTIVES, Objective, by_the_sampler, field, objectives
from kl_companion.auditing.worlds.trees import SHORT, Condition, worlds
from kl_companion.auditing.worlds.truncations import cut_objectives
from kl_companion.checks import check_scalar, described
from kl_companion.divergences import get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.keywords import renamed
from kl_companion.kl_term import EstimatorLike, KLTerm
from kl_companion.tabular import Loss, Problem
from kl_companion.tabular.expectations import check_differentiable

SCALES = (1.0, 4.0)


def _finding(
    condition: Condition | None,
    looked: Looked,
    max_terms: int,
    measure_curl: Callable[[dict[str, float]], float] = lambda _: math.nan,
    measure_gaps: Callable[[], tuple[GroupGap, ...]] | None = None,
    further: Sequence[Callable[[Looked], Looked | None]] = (),
    sampler: bool = False,
) -> Finding:
    """What a loss does: by the objectives that it was looked at beside, else by further ones."""
    zeros = [w.zero for w in looked.worlds]
    zero = all(zeros) and looked.settles
    explained: tuple[Explanation, ...] = ()
    residual = 0.0 if zero else 1.0
    if looked.settles and not any(zeros):
        beside = [n for n in looked.worlds[0].fields if OBJECTIVES[n].rewards]
        explained, residual = matched(
            looked.worlds, max_terms=max_terms, beside=beside, may_vary=condition is not None
        )
        for more in further:
            if explained or (looked_further := more(looked)) is None:
                continue
            # so many more that sums of three of them would take minutes
            explained, least = matched(
                looked_further.worlds,
                max_terms=min(max_terms, 2),
                beside=beside,
                may_vary=condition is not None,
            )
            residual = least if explained else min(residual, least)
            looked = looked_further
    pairs = [(e.coefficients, e.units) for e in explained]
    pairs = [by_the_sampler(*pair) for pair in pairs] if sampler else pairs
    same_length = looked.worlds if condition is None else looked.worlds[-SHORT:]
    return Finding(
        condition,
        tuple(match for match, _ in pairs),
        residual,
        zero,
        value_matches(same_length),
        lambda: measure_curl(explained[0].coefficients if explained else {}),
        tuple(units for _, units in pairs),
        looked.sums,
        looked.settles,
        measure_gaps,
    )


def _further(
    where: Condition | Sequence[Problem], known: dict[str, Objective], head: int, search: Search
) -> tuple[Callable[[Looked], Looked | None], ...]:
    """Return the same loss beside objectives that are cut, and beside those of distillation that may fit."""
    lengths = where.eos if isinstance(where, Condition) else any(o.lengths_only for o in known.values())

    def cut(looked: Looked) -> Looked:
        return beside_others(looked, where, known | cut_objectives(head, lengths=lengths), head)

    def distilled(looked: Looked) -> Looked | None:
        vocab = head + 2 if head else 3
        small = min(1, len(looked.worlds) - 1)
        if isinstance(where, Condition):
            place = worlds(where, vocab, headed=head > 0)[small].problem
        else:
            place = where[small]
        seen = looked.worlds[small]
        fields = {n: f for n, f in seen.fields.items() if n in known}
        beside = [n for n in fields if known[n].rewards]
        more = search.objectives(seen.gradient, place, fields, beside, lengths=lengths)
        return beside_others(looked, where, known | more, head) if more else None

    return cut, distilled


def _curl(
    loss_fn: Loss, problem: Problem, group_size: int | None, coupled: bool, matches: dict[str, float]
) -> float:
    """Of a loss; where it couples a large batch, of the sum that it was found to be, NaN without one."""
    if not coupled:
        return curl(loss_fn, problem, group_size=group_size or 1)
    if not matches:
        return math.nan

    def gradient(logits: torch.Tensor) -> torch.Tensor:
        return sum((c * field(OBJECTIVES[n], problem, logits) for n, c in matches.items()), torch.zeros(()))

    return curl_of(gradient, problem.logits)


@renamed(map="roles", set="options")
def audit(
    loss: EstimatorLike | KLTerm | Callable[..., Any],
    *,
    placement: str = "loss",
    level: str | None = None,
    problems: Sequence[Problem] | None = None,
    group_size: int | None = None,
    want: str | None = None,
    max_terms: int = 3,
    off_policy: bool | None = None,
    scale: float | None = None,
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Say which objective a loss minimizes, with its coefficient, or that there is none.

    The loss is evaluated on batches that hold every answer of small trees in exact proportion to its
    probability, so that a mean over the batch has its population value; its gradient is compared with the
    exact gradients of the registered objectives. By default eight conditions are looked at: fresh and
    stale samples, with and without end-of-sequence, small and large log-ratios. A sum of objectives has to
    explain a tree of three tokens and three trees of two, with coefficients that are constants or, such
    as one over the mean number of tokens, in a known unit.

    Args:
        loss: A registered estimator's name, a `KLTerm` (which says placement and level itself), or a loss as
            it stands in a trainer: a function, a method, a class or a module, see `as_loss`.
        placement: ``"loss"`` differentiates it, ``"reward"`` subtracts its detached value from the reward.
        level: ``"token"`` or ``"sequence"``, for estimators; None is tokens in the loss and sums over
            sequences in the reward.
        problems: Worlds to use instead of the default ones; they make one finding, and neither ``off_policy``
            nor ``scale`` can be asked for.
        group_size: Answers per batch, enumerated, instead of the limit of large batches (with
            ``problems``, 1 by default), or instead of the size of group that the loss's own text names. At
            most three is practical; larger groups are looked at on trees of two tokens only.
        want: A divergence (``"reverse_kl"``, at either level) or an objective; fills ``met`` and ``remedy``.
        max_terms: The longest sum of objectives to try.
        off_policy: Look at, and judge ``want`` by, off- or on-policy samples only; None looks at both
            and judges on-policy.
        scale: One size of log-ratios instead of small (1) and large (4).
        roles: What parameters mean, ``{"x_logps": "ref_logp"}``, where their names do not say it.
        options: Values of options: of parameters, of a constructor, of fields of a configuration.
        progress: Called with a line of text per condition.

    While it runs, torch's default dtype is float64 in the whole process, for other threads too.

    Raises:
        ValueError: unknown names, no problems, a loss that returns no scalar, is NaN or has no gradient, a
            scale that is not positive, ``off_policy`` or ``scale`` beside problems, or too many evaluations.
    """
    subject = readable(loss, placement, level, roles=roles, options=options, group_size=group_size)
    loss_fn, entry = subject.loss, subject.entry
    again = partial(as_subject, loss, placement, level, roles=roles, group_size=group_size)
    if entry is None:
        given: dict[str, Any] = {"placement": placement, "level": level, "roles": roles, "options": options}
        then = partial(without_block, loss, again, options, lambda: row(audit(loss, **given).main))
        _check_gradient(loss_fn, then)
    # members of families, which may be no registered divergences; an unknown name is refused before any work
    members = [get_divergence(entry.target)] if entry is not None else []
    members += [divergence_wanted(want)] if want is not None else []
    if group_size is None and problems is None and entry is None and subject.group is None:
        check_rows(loss_fn)
    if scale is not None:
        check_scalar("scale", scale, positive=True)
    if problems is not None:
        _check_problems(problems)
    if problems is not None and (scale is not None or off_policy is not None):
        raise ValueError(
            f"problems got scale={scale}, off_policy={off_policy}, expected None: they choose the default "
            "worlds, and problems say themselves who samples"
        )
    if max_terms < 1:
        raise ValueError(f"max_terms is {max_terms}, expected at least 1")
    group = subject.group
    if group is not None and group_size is None:
        check_group(group, lambda more: as_subject(loss, roles=roles, options={**options, **more}).group)
        group_size = group.size
    single = group_size in (None, 1)
    found = single_tokens(loss_fn) if entry is None and single else None
    head = subject.head
    heads = head > 0 or (reads_heads(entry, found) if entry is not None or single else False)
    sampler = entry is None and off_policy is not False and reads_sampler(loss_fn, head)
    tried = partial(objectives, heads=heads, sampler=sampler, members=members)
    same_as = recognize(found) if subject.placement == "loss" else None
    search = Search(subject.numbers)
    measure_tool = None
    only = group_size if group is not None else None  # it runs on no other batch
    judge = partial(finding_of, tried=tried, max_terms=max_terms, head=head, group_size=only, sampler=sampler)
    if problems is not None:
        size = 1 if group_size is None else group_size
        known = tried(
            off_policy=any(p.behavior_logits is not None for p in problems),
            lengths=any(len(p.completion_mask.sum(-1).unique()) > 1 for p in problems),
        )
        looked = look_at(loss_fn, problems, group_size=size, known=known)
        measure = partial(_curl, loss_fn, problems[0], size, False)
        further = _further(problems, known, head, search) if heads and entry is None else ()
        findings = [_finding(None, looked, max_terms, measure, None, further, sampler)]
    else:
        findings = []
        todo = conditions(off_policy, scale)
        coupled = entry is None and group_size is None and couples(loss_fn, todo[-1], head)
        for i, condition in enumerate(todo):
            if progress is not None:
                sampling = "off" if condition.off_policy else "on"
                progress(f"{i + 1}/{len(todo)}: {sampling}-policy, scale {condition.scale:g}")
            known = tried(off_policy=condition.off_policy, lengths=condition.eos)
            looked = look(loss_fn, condition, group_size=group_size, known=known, head=head)
            apart = partial(gaps, loss_fn, condition, head) if coupled else None
            vocab = head + 2 if head else 3 if single else 2
            place = worlds(condition, vocab, headed=head > 0)[1].problem
            measure = partial(_curl, loss_fn, place, group_size, coupled)
            reads_more = entry is None and heads and group_size is None
            further = _further(condition, known, head, search) if reads_more else ()
            findings.append(_finding(condition, looked, max_terms, measure, apart, further, sampler))
            if subject.masked and group_size == only and findings[-1] is main_finding(findings):
                measure_tool = partial(
                    tool_text, loss_fn, findings[-1], looked, judge, head=head, group_size=group_size
                )
    said = Audit(
        subject.title,
        tuple(findings),
        subject.placement,
        same_as,
        reading=subject.reading,
        group_size=1 if problems is not None and group_size is None else group_size,
        group_source=group.source if group is not None and group.size == group_size else "",
        loss_fn=loss_fn,
        head=head,
        measure_tool=measure_tool,
        measure_first=_first_update(subject, judge, off_policy, group_size) if problems is None else None,
        moved=subject.moved,
    )
    main = said.main
    if main.condition is not None and not (main.matches or main.zero):
        known = tried(off_policy=main.condition.off_policy, lengths=main.condition.eos)
        at = partial(look, condition=main.condition, group_size=group_size, known=known, head=head)
        explain = partial(_finding, main.condition, max_terms=max_terms)
        large = None if single or only else partial(judge, loss_fn, main.condition)
        inside = None
        if said_as(OUTSIDE, said.inputs):
            inside = judge(without_padding(loss_fn), main.condition)
        said = replace(said, parts=parts(loss_fn, at, explain, large), inside=inside)
    said = replace(said, unrewarded=_unrewarded(said, judge) if sampler else None)
    title = subject.title if entry is None else ""  # an estimator's target is not read from its name
    meant = None if subject.placement == "reward" else said_by_name(title, named(entry, same_as))
    if want is not None:
        meant = (f"was wanted ({want})", want)
    if meant is None:
        return said
    objectives_meant = wanted_objectives(meant[1])
    if want is None:  # a name such as forward_kl says neither a temperature nor the share of a mixture
        names = {n for finding in findings for match in finding.matches for n in match}
        objectives_meant |= {n for n in names if is_kind_of(n, meant[1])}
    of_sampler = want is None and acts_alone(said)
    judged = said.stale if of_sampler else said.judged
    objectives_meant = meant_by(meant[1]) if of_sampler else objectives_meant
    of_kl = all(accepts(f, objectives_meant) for f in judged)
    lowers = any(map(minimizes_rewards, said.judged))
    as_meant = of_kl and not lowers
    met = None if want is None else as_meant
    text = None
    if not as_meant and (of_kl or not of_sampler):
        text = instead(loss, said, meant[1], judge, remake=again, options=options, judged=said.judged)
    return replace(said, want=want, met=met, remedy=text, meant=meant, as_meant=as_meant)


def _check_gradient(loss_fn: Loss, cause: Callable[[], str]) -> None:
    """Raise ValueError for a loss without a gradient, with what takes it away."""
    try:
        out = loss_fn(probe())
    except ValueError:  # a loss that wants other batches says so there
        return
    try:
        check_differentiable(out)
    except ValueError as error:
        raise ValueError(f"{error}\n{textwrap.indent(cause(), '  ')}".strip()) from None


def _check_problems(problems: Sequence[Problem]) -> None:
    """Raise ValueError unless there is at least one world, in a list: a `Problem` itself is a tuple."""
    if not len(problems):
        raise ValueError("problems is an empty list, expected at least one Problem, or None")
    single = isinstance(problems, Problem)
    if single or not all(isinstance(p, Problem) for p in problems):
        got = "one Problem" if single else f"[{', '.join(described(p) for p in problems)}]"
        raise ValueError(f"problems is {got}, expected a list of them: problems=[prefix_tree(3, 2)]")


def conditions(off_policy: bool | None = None, scale: float | None = None) -> list[Condition]:
    """What a loss is looked at under: all eight, or those with the samples and the scale asked for."""
    return [
        Condition(off, eos, s)
        for off in ((False, True) if off_policy is None else (off_policy,))
        for s in (SCALES if scale is None else (scale,))
        for eos in (False, True)
    ]


def finding_of(
    loss_fn: Loss,
    condition: Condition,
    *,
    tried: Callable[..., dict[str, Objective]] = objectives,
    max_terms: int,
    head: int = 0,
    sampler: bool = False,
    group_size: int | None = None,
) -> Finding:
    """Audit a loss under one condition, without objectives that are cut; by default in large batches."""
    known = tried(off_policy=condition.off_policy, lengths=condition.eos)
    looked = look(loss_fn, condition, group_size=group_size, known=known, head=head)
    return _finding(condition, looked, max_terms, sampler=sampler)


def _unrewarded(audit: Audit, judge: Callable[..., Finding]) -> Finding | None:
    """Audit a loss that is unknown on stale samples where rewards are 0; None unless the sampler holds it."""
    stale = stale_finding(audit.findings)
    if stale is None or stale.matches or stale.zero or audit.loss_fn is None:
        return None
    try:
        finding = judge(without_rewards(audit.loss_fn), stale.condition, group_size=audit.group_size)
    except ValueError:  # a standard deviation of equal rewards, say
        return None
    return finding if held(finding).matches else None


def _first_update(
    subject: Subject, judge: Callable[..., Finding], off_policy: bool | None, group_size: int | None
) -> Callable[[], Finding] | None:
    """Return what audits a loss where the old policy is the policy itself and another one has sampled."""
    if subject.first_update is None or off_policy is False or group_size is not None:
        return None
    return partial(judge, subject.first_update, Condition(True, True, 1.0))


def named(entry: Estimator | None, same_as: tuple[str, float] | None) -> Estimator | None:
    """The estimator that was handed in or recognized."""
    return get_estimator(same_as[0]) if entry is None and same_as is not None else entry
