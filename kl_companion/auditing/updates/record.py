"""The record of an update's audit: its parts, its numbers on every prompt, and the verdict made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from kl_companion.auditing.fit.findings import left_out
from kl_companion.auditing.judgment.card import CardBlock, card, html
from kl_companion.auditing.updates.advantages import Advantage
from kl_companion.auditing.updates.effective import (
    DISTORTED,
    IDLE,
    LOWERS,
    MORE,
    MOSTLY,
    NONE,
    NOTHING,
    OTHER,
    REPELS,
    SAME,
    SPREAD,
    WRITTEN,
    OnPrompt,
    known_signs,
    of_size,
)
from kl_companion.auditing.updates.stationary import Rest, at_rest, optimum
from kl_companion.auditing.updates.step import Step
from kl_companion.auditing.updates.wanted import Wanted
from kl_companion.auditing.updates.worlds import prompt
from kl_companion.tabular import expected_gradient

JUDGED = 8  # answers to a prompt, unless they are said
NEAR, TURNED = 0.2, 5.0  # what passes for the coefficient that was wanted: 20 %, and 5 degrees of rest
FOLLOWED = 4  # answers to a prompt in the groups with which an update is followed to rest


@dataclass(frozen=True)
class UpdateAudit:
    """The verdict on a whole update; ``str()`` is the card that the command line prints.

    A pickle contains every number and sentence, and not the loss of its step.

    Attributes:
        step: What was audited.
        reward: What its rewards are of, one of `REWARDS`.
        penalties: What its KL term is, in large batches: objectives and their weights, the first of which is
            1; empty where nothing acts.
        named: Whether those were found exactly; else they are what comes nearest.
        seen: Fresh samples: every prompt with every size of group, and large ones.
        stale: Large groups of samples of an older policy.
        want: What was asked for, or None.
        group_size: Answers per group by which ``want`` is judged.
        advantage: What was made of the rewards before the step saw them, where that was asked for.
        refused: Why the step did not run on groups of a size, {size: message}; None is large groups.
        off: Degrees between the update without rewards and the gradient of ``penalties``, where that is not
            all of it; NaN where it is not known.
        order: 1 where the coefficient grows in proportion to the number of answers in a batch, -1 where it
            shrinks so, else 0. Then the numbers of large groups are those of one answer: times the number of
            answers, or divided by it.
        inside: Where numbers outside the mask change the update: what it minimizes where they are 0, "" for
            nothing known; None where they do not.
        warnings: Sentences on a clip that is on the wrong side.
    """

    step: Step
    reward: str
    penalties: Mapping[str, float]
    named: bool
    seen: tuple[OnPrompt, ...]
    stale: tuple[OnPrompt, ...]
    want: Wanted | None = None
    group_size: int = JUDGED
    advantage: Advantage | None = None
    refused: Mapping[int | None, str] = field(default_factory=dict)
    off: float = 0.0
    order: int = 0
    inside: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What was audited."""
        return self.step.name

    @property
    def beta(self) -> float | None:
        """The coefficient of the step, where it is known and is a number."""
        beta = self.step.beta
        return None if beta is None or not math.isfinite(beta) else beta

    def effective(self, seen: OnPrompt) -> float:
        """The coefficient of the penalty on a prompt, where the reward has 1; see `Share.effective_beta`."""
        return seen.share.effective_beta if self.penalties else 0.0

    def ratio(self, seen: OnPrompt) -> float:
        """The effective coefficient over the step's own; NaN where that is not known."""
        return self.effective(seen) / self.beta if self.beta else math.nan

    def at(self, prompt: str, group: int | None) -> OnPrompt | None:
        """The finding of a prompt and a group size; None where the step refused it."""
        return next((s for s in self.seen if s.prompt == prompt and s.group == group), None)

    @property
    def largest(self) -> list[OnPrompt]:
        """The prompts in large groups, else in the largest on which the step runs."""
        return of_size(self.seen, max)

    @property
    def judged(self) -> list[OnPrompt]:
        """The prompts in groups of the size that ``want`` is judged by."""
        return [s for s in self.seen if s.group == self.group_size]

    @property
    def equal(self) -> OnPrompt | None:
        """The prompt on which all rewards are equal, in groups of that size."""
        return self.at("equal", self.group_size)

    @property
    def headline(self) -> str:
        """One of `KINDS`: what is wrong with its signs, else what its coefficient is."""
        return self.fault or self.coefficient

    @property
    def fault(self) -> str:
        """`LOWERS`, `IDLE` or `REPELS` where the update has a sign that nobody wants; else ""."""
        # stale samples on one prompt alone are no wrong sign: a clip without a baseline may turn it there
        if min(known_signs(self.seen), default=1.0) < 0 or max(known_signs(self.stale), default=1.0) < 0:
            return LOWERS
        # of groups whose rewards are exchanged: the sign of a fit alone does not show that rewards count
        if max(known_signs(of_size((*self.seen, *self.stale), min)), default=1.0) <= 0:
            return IDLE
        return REPELS if self.leaves_reference and all(w > 0 for w in self.penalties.values()) else ""

    @property
    def leaves_reference(self) -> bool:
        """Whether the KL is maximized, on every prompt in large groups on which it can be told."""
        shares = [s.share for s in self.largest]
        charges = [s.charge for s in shares if s.rest < MOSTLY and not math.isnan(s.charge)]
        return bool(charges and self.penalties) and max(charges) < 0

    @property
    def coefficient(self) -> str:
        """What the size of the coefficient is, of groups of the size that is judged and of large ones."""
        if not self.penalties:
            return NONE
        sign = -1 if self.leaves_reference else 1  # the sign is told by `fault`
        large = [(s.deviation, sign * self.effective(s)) for s in self.largest if s.deviation > 0]
        if not large or self.order:
            return OTHER
        aim = self.beta if self.beta else large[0][1] / large[0][0]
        if not aim or not math.isfinite(aim):
            return OTHER
        if all(abs(x / aim - 1) <= SAME for _, x in large):
            small = [sign * self.effective(s) / aim for s in self.judged if s.deviation > 0]
            return WRITTEN if all(0.8 <= x <= 1.25 for x in small) else DISTORTED
        return SPREAD if all(abs(x / aim - d) <= SAME * d for d, x in large) else OTHER

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest effective coefficient in the judged groups, in units of a known beta."""
        found = [self.effective(s) / (self.beta or 1.0) for s in self.judged if s.deviation > 0]
        return min(found, default=math.nan), max(found, default=math.nan)

    @property
    def unknown(self) -> bool:
        """Whether the KL term has no name: that of the nearest is too far from it."""
        return not self.named and not self.off <= MOSTLY

    @property
    def misses(self) -> tuple[OnPrompt, ...]:
        """Where the update is not what was wanted, judged by groups of ``group_size``."""
        want = self.want
        return () if want is None else tuple(s for s in self.judged if not self._is_wanted(s, want))

    @property
    def met(self) -> bool | None:
        """Whether it is what was wanted on every prompt; None where nothing was asked for.

        An update with a wrong sign, see `fault`, is never that.
        """
        return None if self.want is None else bool(self.judged) and not (self.misses or self.fault)

    def _is_wanted(self, seen: OnPrompt, wanted: Wanted) -> bool:
        if seen.deviation > 0 and not seen.share.gain > 0:
            return False
        if not wanted.objectives:
            return not self.penalties or abs(seen.share.charge) < NOTHING
        if len(self.penalties) != 1 or not wanted.objectives >= self.penalties.keys():
            return False
        if math.isnan(seen.share.gain):  # equal rewards: nothing to compare the coefficient with
            return not (seen.grows < MORE / 2 or seen.share.charge < 0)
        aim = (self.beta or 0.0) if wanted.beta is None else wanted.beta
        return abs(self.effective(seen) - aim) <= NEAR * aim and seen.share.rest <= TURNED

    @cached_property
    def rest(self) -> tuple[Rest, Rest] | None:
        """Where the update comes to rest, and the optimum of E[R] - beta KL of whole answers.

        In groups of 4, from a prompt with half of its answers right. None where the step's beta is not known,
        or is not positive: then there is no optimum; and where the step cannot be followed, because it does
        not run on such groups or is not finite on the way.
        """
        if not self.beta or self.beta < 0 or not self.penalties or FOLLOWED in self.refused:
            return None
        at = prompt(0.5).problem

        def ascent(logits: torch.Tensor) -> torch.Tensor:
            loss = self.step.on(at._replace(logits=logits))
            return -expected_gradient(loss, at, logits=logits, group_size=FOLLOWED)

        try:
            found = at_rest(ascent, at), optimum(at, self.beta)
        except (ValueError, RuntimeError):  # RuntimeError: a singular or not finite system of equations
            return None
        return found if all(math.isfinite(x) for r in found for x in (r.reward, r.kl)) else None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a pickle: where the update comes to rest is computed before."""
        step = self.step._replace(loss=left_out, with_beta=None, moved=None)
        return self.__dict__ | {"rest": self.rest, "step": step}

    @property
    def sentence(self) -> str:
        """What it maximizes, in one sentence."""
        from kl_companion.auditing.updates.meaning import sentence

        return sentence("update", self)

    def blocks(self, *, details: bool = False) -> list[CardBlock]:
        """Blocks of its card."""
        from kl_companion.auditing.updates.blocks import blocks

        return blocks(self, details=details)

    def __str__(self) -> str:
        return card(self)

    def _repr_html_(self) -> str:
        return html(self)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data, see `kl_companion.auditing.updates.data`."""
        from kl_companion.auditing.updates.data import to_dict

        return to_dict(self)
