"""The last stage of an audit: lines to write where a loss is not what was meant, or has no gradient."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace

from kl_companion.auditing.judgment.conclusion import has_wanted_kl
from kl_companion.auditing.judgment.verdict import Audit
from kl_companion.auditing.reading.admission import NoGradient
from kl_companion.auditing.repair.patches import WORDS, instead, without_block
from kl_companion.auditing.worlds.targets import is_to_sampler


def repair(audit: Audit) -> Audit:
    """Return a verdict with its remedy, where the loss is not what was meant.

    A term to the sampler alone is not made a term to the reference because of its name.
    """
    if audit.meant is None or audit.fitted is None or audit.as_meant:
        return audit
    if audit.want is None and audit.stale_only and not has_wanted_kl(audit):
        return audit
    if is_to_sampler(audit.meant[1]):
        return replace(audit, remedy=f"# {WORDS['to_sampler']}")
    return replace(audit, remedy=instead(audit, audit.fitted, audit.meant[1]))


def with_cause(error: NoGradient, after: Callable[[], str]) -> ValueError:
    """Return the refusal of a loss without a gradient, with the line that takes the gradient away.

    Args:
        error: The refusal.
        after: Says what the loss minimizes; called where the line is repaired.
    """
    cause = without_block(error.subject, after)
    return ValueError(f"{error}\n{textwrap.indent(cause, '  ')}".strip())
