"""What to write instead of a loss that is not what was meant, each proposal audited before it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kl_companion.auditing.adapt import as_subject, probe
from kl_companion.auditing.calling import Given
from kl_companion.auditing.constructing import Chosen, callable_of, parameters_of
from kl_companion.auditing.findings import Condition, Finding
from kl_companion.auditing.rewriting import Rewritten, names_inside, repaired
from kl_companion.auditing.summary import is_beside
from kl_companion.auditing.verdict import accepts, remedy_for, rewrite, term_lines, wanted_objectives

if TYPE_CHECKING:
    from kl_companion.auditing.verdict import Audit


def instead(
    loss: Any,
    found: Audit,
    want: str,
    look: Callable[..., Finding],
    *,
    mapped: Mapping[str, str],
    settings: Mapping[str, Any],
    off_policy: bool,
) -> str:
    """A change of the reader's own function if one passes the audit, else a term in plain PyTorch.

    Args:
        loss: What was audited.
        found: Its verdict.
        want: The divergence or objective that was meant.
        look: Audits a loss under one condition.
        mapped: See `as_loss`.
        settings: See `as_loss`.
        off_policy: Whether stale samples are judged.
    """
    wanted = wanted_objectives(want)
    condition = Condition(off_policy, True, 1.0)
    for proposal in _proposals(loss, found, want, mapped, settings):
        taken = {p.name for p in parameters_of(proposal.function, "")}
        roles = {r.name: r.role for r in found.reading.reads} if found.reading else {}
        try:
            again = as_subject(
                proposal.function,
                mapped={**{n: r for n, r in roles.items() if n in taken}, **mapped},
                settings={n: v for n, v in settings.items() if n in taken},
            )
            after = look(again.loss, condition)
        except ValueError:
            continue
        if accepts(after, wanted) and _beside(after) == _beside(found.main):
            return proposal.diff
    return remedy_for(want, found.findings, found.same_as)


def _beside(finding: Finding) -> set[str]:
    """The objectives beside the KL term, rewards and entropies, which a remedy leaves alone."""
    return {n for n in (finding.matches[0] if finding.matches else {}) if is_beside(n)}


def _proposals(
    loss: Any, found: Audit, want: str, mapped: Mapping[str, str], settings: Mapping[str, Any]
) -> Iterator[Rewritten]:
    if found.reading is None or found.loss_fn is None:
        return
    whole = rewrite(loss, found.reading, want, found.findings, found.same_as)
    if whole is not None:
        yield whole
    body = term_lines(want, found.findings)
    if any("mask" in line for line in body):  # of whole answers: no term of a token to put in its place
        return
    bound = callable_of(loss, Chosen(settings))
    function = loss if not hasattr(bound, "__func__") else bound.__func__
    rollout, loss_fn = probe(), found.loss_fn
    # what a loss computes of logits has no column for the prompt, whether or not what it is given has
    for layout in dict.fromkeys((found.reading.layout._replace(wide=False), found.reading.layout)):
        given = Given(rollout, layout)
        values = {n: given.of(n).detach() for n in ("logp", "ref_logp", "behavior_logp")}
        yield from repaired(function, bound, names_inside(function, lambda: loss_fn(rollout), values), body)
