"""The fourth stage of an audit: judge a loss by what was wanted, or by what its name says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.fit.fit import LossFit, finding_of, pieces
from kl_companion.auditing.fit.parts import without_rewards
from kl_companion.auditing.judgment.inputs import OUTSIDE, said_as, without_padding
from kl_companion.auditing.judgment.summary import minimizes_rewards, of_sampler, stale_finding
from kl_companion.auditing.judgment.verdict import Audit, accepts, said_by_name
from kl_companion.auditing.worlds.distillation import is_kind_of
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.auditing.worlds.targets import wanted_objectives
from kl_companion.estimators.registry import get_estimator


def judge(fit: LossFit) -> Audit:
    """Return the verdict on a loss: what it minimizes, and whether that is what was meant."""
    plan, subject = fit.plan, fit.plan.subject
    audit = Audit(
        subject.title,
        fit.findings,
        subject.placement,
        fit.same_as,
        reading=subject.reading,
        group_size=plan.group_size,
        group_source=plan.group.source if plan.group is not None else "",
        head=subject.head,
        fitted=fit,
    )
    main = audit.main
    if main.condition is not None and not (main.matches or main.zero):
        inside = None
        if said_as(OUTSIDE, audit.inputs):
            inside = fit.of(without_padding(subject.loss), main.condition)
        audit = replace(audit, parts=pieces(fit, main), inside=inside)
    if plan.options.sampler:
        audit = replace(audit, unrewarded=_unrewarded(audit, fit))
    want = subject.request.want
    intent = _meant_by_name(fit) if want is None else (f"was wanted ({want})", want)
    if intent is None:
        return audit
    audit = replace(audit, want=want, meant=intent)
    as_meant = has_wanted_kl(audit) and not any(map(minimizes_rewards, audit.judged))
    return replace(audit, met=None if want is None else as_meant, as_meant=as_meant)


def has_wanted_kl(audit: Audit) -> bool:
    """Return whether the term that holds the policy is the one that was meant."""
    findings, objectives = _measure(audit)
    return all(accepts(finding, objectives) for finding in findings)


def _measure(audit: Audit) -> tuple[Sequence[Finding], set[str]]:
    """Return the findings that count and the objectives that are right in them."""
    assert audit.meant is not None
    divergence = audit.meant[1]
    if audit.want is not None:
        return audit.judged_for(divergence), wanted_objectives(divergence)
    if audit.stale_only:
        names = {f"{level}{divergence}_to_sampler" for level in ("token_", "sequence_", "sampled_mean_", "")}
        return audit.stale, names & OBJECTIVES.keys()
    # a name such as forward_kl says neither a temperature nor the share of a mixture
    names = {n for finding in audit.findings for match in finding.matches for n in match}
    return audit.judged, wanted_objectives(divergence) | {n for n in names if is_kind_of(n, divergence)}


def _meant_by_name(fit: LossFit) -> tuple[str, str] | None:
    """Return what the name of a loss, or of the estimator that it is, says; None of a loss in the reward."""
    entry, subject = fit.plan.subject.entry, fit.plan.subject
    if subject.placement == "reward":
        return None
    if entry is not None:  # an estimator's target is not read from its name
        return said_by_name("", entry)
    return said_by_name(subject.title, get_estimator(fit.same_as[0]) if fit.same_as is not None else None)


def _unrewarded(audit: Audit, fit: LossFit) -> Finding | None:
    """Fit a loss that is unknown on stale samples where rewards are 0; None unless the sampler holds it."""
    stale = stale_finding(audit.findings)
    if stale is None or stale.condition is None or stale.matches or stale.zero:
        return None
    options = fit.plan.options._replace(group_size=fit.plan.group_size)
    try:
        finding = finding_of(without_rewards(fit.plan.subject.loss), stale.condition, options)
    except ValueError:  # a standard deviation of equal rewards, say
        return None
    return finding if of_sampler(finding).matches else None
