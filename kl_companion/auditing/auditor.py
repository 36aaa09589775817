"""Which objective does a loss really minimize? Enumerate, differentiate, and solve for the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kl_companion.auditing.fit.fit import fit
from kl_companion.auditing.judgment.conclusion import judge
from kl_companion.auditing.judgment.summary import row
from kl_companion.auditing.judgment.verdict import Audit
from kl_companion.auditing.reading.admission import NoGradient, read
from kl_companion.auditing.reading.request import NOTHING, AuditRequest
from kl_companion.auditing.repair.advice import repair, with_cause
from kl_companion.auditing.worlds.plan import plan
from kl_companion.keywords import renamed
from kl_companion.kl_term import EstimatorLike, KLTerm
from kl_companion.tabular import Problem


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
    of = (loss, placement, level, problems, group_size, want, max_terms, off_policy, scale)
    request = AuditRequest(*of, roles, options, progress)
    try:
        return _audited(request)
    except NoGradient as error:
        raise with_cause(error, lambda: row(_audited(request).main)) from None


def _audited(request: AuditRequest) -> Audit:
    """Take a loss through the five stages; the record of each contains that of the one before."""
    subject = read(request)
    planned = plan(subject)
    fitted = fit(planned)
    verdict = judge(fitted)
    return repair(verdict)
