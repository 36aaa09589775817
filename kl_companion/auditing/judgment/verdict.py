"""What an audit returns, and how it is judged against what was wanted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kl_companion.auditing.fit.findings import Finding, left_out
from kl_companion.auditing.fit.fit import LossFit
from kl_companion.auditing.fit.least_squares import TOLERANCE
from kl_companion.auditing.fit.parts import Piece
from kl_companion.auditing.fit.tool_text import ToolText
from kl_companion.auditing.judgment.card import CardBlock, card
from kl_companion.auditing.judgment.distances import Distance, distances, order
from kl_companion.auditing.judgment.inputs import Input, inputs
from kl_companion.auditing.judgment.summary import (
    UNREGULARIZED,
    explanation,
    headline,
    level,
    main_finding,
    minimizes_rewards,
    of_sampler,
    stale_finding,
    unit_of,
)
from kl_companion.auditing.judgment.words import divergence_words
from kl_companion.auditing.reading.subject import Reading
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.auditing.worlds.targets import is_to_sampler
from kl_companion.auditing.worlds.targets import wanted_objectives as wanted_objectives
from kl_companion.estimators.registry import Estimator
from kl_companion.tabular import Loss


@dataclass(frozen=True)
class Audit:
    """The verdict on a loss; ``str()`` is the card that the command line prints.

    A pickle, which takes as long as an audit, contains every number and sentence and not ``fitted``: `figure`
    of the copy is a ValueError.

    Attributes:
        name: What was audited.
        findings: One per condition; the first is of fresh samples, small ratios, one length.
        placement: ``"loss"`` or ``"reward"``.
        same_as: (estimator, coefficient) when a function is one of the registered estimators, sample
            by sample.
        want: The objective that was asked for, or None.
        met: Whether it is what the loss minimizes; None when nothing was asked for.
        remedy: A few lines of PyTorch where the loss is not what was asked for or what its name says: a
            change of the reader's own function where one passes the audit, else a term, see `remedy`.
        reading: How the parameters of a function were read; None for an estimator.
        meant: What it is judged by: who says so, and a divergence or objective; None where nobody does.
        as_meant: Whether it is that.
        group_size: Answers per batch; None for the limit of large batches.
        group_source: The name or the expression of the loss that says so; "" where the caller did.
        head: Of how many likeliest tokens it is; 0 of none. Then the worlds have two tokens more.
        parts: What is known of a loss that is no known objective.
        inside: What it is with zeros outside the mask, where numbers there change a loss that is unknown.
        unrewarded: What a loss of no known objective on stale samples is there where all rewards are 0, if it
            has a distance to the sampler.
        fitted: The loss with its request, its worlds and its fit; None of a copy, and of a verdict by hand.
    """

    name: str
    findings: tuple[Finding, ...]
    placement: str = "loss"
    same_as: tuple[str, float] | None = None
    want: str | None = None
    met: bool | None = None
    remedy: str | None = None
    reading: Reading | None = None
    meant: tuple[str, str] | None = None
    as_meant: bool | None = None
    group_size: int | None = None
    head: int = 0
    parts: tuple[Piece, ...] = ()
    group_source: str = ""
    inside: Finding | None = None
    unrewarded: Finding | None = None
    fitted: LossFit | None = field(default=None, repr=False, compare=False)

    @property
    def loss_fn(self) -> Loss:
        """The loss as a function of a rollout; ValueError where it is called without ``fitted``."""
        return left_out if self.fitted is None else self.fitted.plan.subject.loss

    @property
    def main(self) -> Finding:
        """The finding that the headline is about: fresh samples, small ratios, lengths that vary."""
        return main_finding(self.findings)

    @property
    def headline(self) -> str:
        """One of ``summary.HEADLINES``."""
        return headline(self.main)

    @property
    def matches(self) -> dict[str, float]:
        """The explanation that the headline is about; empty if zero or unknown."""
        i = explanation(self.main)
        return {} if i is None else self.main.matches[i]

    @property
    def residual(self) -> float:
        """Residual of the explanation that the headline is about."""
        return self.main.residual

    @property
    def curl(self) -> float:
        """Curl of the explanation that the headline is about."""
        return self.main.curl

    @property
    def zero(self) -> bool:
        """Whether the expected gradient vanishes, where the headline is about it."""
        return self.main.zero

    @property
    def value_matches(self) -> dict[str, float]:
        """Whose value the loss estimates under the condition of the headline."""
        return self.main.value_matches

    def minimizes(self, want: str) -> bool:
        """Return whether the loss minimizes a divergence (``"reverse_kl"``, at either level) or an objective.

        Rewards and entropies may stand beside it, rewards with the right sign. Fresh samples count, where
        they were looked at.

        Raises:
            ValueError: an unknown name.

        Example:
            >>> audit("k2", scale=1.0).minimizes("reverse_kl")
            True
        """
        wanted = wanted_objectives(want)
        return all(accepts(f, wanted) and not minimizes_rewards(f) for f in self.judged_for(want))

    def judged_for(self, want: str) -> tuple[Finding, ...]:
        """The findings by which a wanted objective is judged: stale samples for a distance to the sampler."""
        return (self.stale if is_to_sampler(want) else ()) or self.judged

    @property
    def judged(self) -> tuple[Finding, ...]:
        """The findings that it is judged by: of fresh samples, where there are some."""
        fresh = tuple(f for f in self.findings if f.condition is None or not f.condition.off_policy)
        return fresh or self.findings

    @property
    def stale(self) -> tuple[Finding, ...]:
        """The findings of stale samples."""
        return tuple(f for f in self.findings if f.condition is not None and f.condition.off_policy)

    @property
    def anchored(self) -> Finding | None:
        """The distances to the policy that sampled, which act on stale samples only; None without one."""
        found = (of_sampler(f) for f in (stale_finding(self.findings), self.unrewarded) if f is not None)
        return next((f for f in found if f.matches), None)

    @property
    def stale_only(self) -> bool:
        """Whether such distances are all that acts."""
        return self.main.zero and self.anchored is not None

    @property
    def compared(self) -> str:
        """The objective that the gradient is held against: the one that was meant, else the reverse KL."""
        wanted = self.meant[1] if self.meant else "reverse_kl"
        if wanted.startswith(("token_", "sequence_")):
            return wanted
        return f"{'sequence' if level(self.main) == 'sequence' else 'token'}_{wanted}"

    @property
    def coefficient(self) -> tuple[str, float | None]:
        """Name and value of the loss's KL coefficient; ("", None) where it has not one such number."""
        return self.reading.coefficient if self.reading else ("", None)

    @cached_property
    def distances(self) -> tuple[Distance, ...]:
        """How far the gradient is from that of ``compared``; empty where it is the same or unknown.

        Of the likeliest tokens it is not known: that depends on what a vocabulary has beside them.
        """
        small = self.group_size is not None  # the gradient of large batches is another
        unregularized = self.headline == UNREGULARIZED and self.residual < TOLERANCE  # an entropy may be left
        no_world = self.main.condition is None or self.head > 0
        no_world = no_world or is_to_sampler(self.compared)  # which is 0 on fresh samples
        if self.fitted is None or self.as_meant or no_world or small or unregularized:
            return ()
        size, unit = abs(self.coefficient[1] or 1.0), unit_of(self.main)
        compared = distances(self.loss_fn, self.compared, coefficient=size, unit=unit)
        same = all(d.degrees < 0.05 and abs(d.percent - 100) < 0.1 for d in compared)
        return () if same else compared

    @cached_property
    def tool(self) -> ToolText | None:
        """The loss on answers with a tool's text inside; None of a loss that takes no mask."""
        return self.fitted.with_tool() if self.fitted is not None else None

    @cached_property
    def first_update(self) -> Finding | None:
        """The loss where its old policy is the policy itself and another has sampled; None without both."""
        return self.fitted.of_first_update() if self.fitted is not None else None

    @cached_property
    def order(self) -> float:
        """The power of the log-ratio with which the gradient vanishes; NaN where ``distances`` are empty."""
        return order(self.loss_fn) if self.fitted is not None and self.distances else math.nan

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """What every input of a function does, see `kl_companion.auditing.judgment.inputs`."""
        if self.fitted is None:
            return ()
        group = self.fitted.plan.group
        size = 1 if group is None else group.size
        return inputs(self.fitted.plan.subject.moved, self.reading, self.head, size)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a pickle: what the loss is needed for is computed before it is left out."""
        names = ("distances", "order", "inputs", "tool", "first_update")
        return self.__dict__ | {n: getattr(self, n) for n in names} | {"fitted": None}

    @property
    def sentence(self) -> str:
        """What it minimizes, in one sentence."""
        from kl_companion.auditing.judgment.sentences import minimizes

        return minimizes(self)

    def blocks(self, *, details: bool = False) -> list[CardBlock]:
        """Blocks of its card."""
        from kl_companion.auditing.judgment.term import blocks

        return blocks(self, details=details)

    def __str__(self) -> str:
        return card(self)

    def _repr_html_(self) -> str:
        from kl_companion.auditing.judgment.pictures import html

        return html(self)

    def figure(self) -> Any:
        """The gradient on the simplex of three tokens beside that of ``compared``, in Matplotlib."""
        from kl_companion.auditing.judgment.pictures import figure

        return figure(self)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data, see `kl_companion.auditing.judgment.data`."""
        from kl_companion.auditing.judgment.data import to_dict

        return to_dict(self)


def accepts(finding: Finding, wanted: set[str]) -> bool:
    """Whether some explanation is the wanted regularizer, alone or beside rewards and entropies."""
    for match in finding.matches:
        kept = {n: c for n, c in match.items() if OBJECTIVES[n].regularizer or n in wanted}
        if len(kept) == 1 and all(n in wanted and c > 0 for n, c in kept.items()):
            return True
    return False


_NAMED = {
    "reverse_?kl|rkl": "reverse_kl",
    "forward_?kl|fkl": "forward_kl",
    "jsd|jensen": "jensen_shannon",
}


def said_by_name(title: str, entry: Estimator | None) -> tuple[str, str] | None:
    """(who says so, divergence) where the name of a loss, or of the estimator that it is, says what it is."""
    for pattern, divergence in _NAMED.items():
        if re.search(rf"(?<![a-z])(?:{pattern})", title.lower()):
            return f"its name says ({divergence_words(divergence)})", divergence
    if entry is not None:
        return f"{entry.name} estimates ({divergence_words(entry.target)})", entry.target
    return None
