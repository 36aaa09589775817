"""The record of an update's audit: its parts, its numbers on every prompt, and the verdict made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.fit.findings import left_out
from kl_companion.auditing.judgment.card import CardBlock, card, html
from kl_companion.auditing.updates.advantages import Advantage
from kl_companion.auditing.updates.effective import Share
from kl_companion.auditing.updates.stationary import Rest, at_rest, optimum
from kl_companion.auditing.updates.step import Step
from kl_companion.auditing.updates.wanted import Wanted
from kl_companion.auditing.updates.worlds import prompt
from kl_companion.tabular import expected_gradient

JUDGED = 8  # answers to a prompt, unless they are said
NEAR, TURNED = 0.2, 5.0  # what passes for the coefficient that was wanted: 20 %, and 5 degrees of rest
MORE = 10.0  # times beta, to see whether it has an effect
FOLLOWED = 4  # answers to a prompt in the groups with which an update is followed to rest
NOTHING = 1e-12


class OnPrompt(NamedTuple):
    """An update on one prompt, with groups of one size.

    Attributes:
        prompt: ``"1 %"`` to ``"99 %"`` of right answers, ``"graded"`` or ``"equal"`` rewards.
        group: Answers per group; None for large groups and batches.
        deviation: Standard deviation of the prompt's rewards.
        share: The update as a sum of gradients.
        grows: How many times as large the update is with ten times the coefficient; NaN where that is not
            known. On equal rewards 10 is a coefficient, and 1 one without effect.
        reward_sign: Whether the rewards move E[R] up (1), down (-1) or not at all (0), see
            `kl_companion.auditing.updates.direction`; NaN where that is not known.
    """

    prompt: str
    group: int | None
    deviation: float
    share: Share
    grows: float
    reward_sign: float


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

    @property
    def headline(self) -> str:
        """One of `kl_companion.auditing.updates.meaning.KINDS`."""
        from kl_companion.auditing.updates.meaning import kind

        return kind(self)

    @property
    def sentence(self) -> str:
        """What it maximizes, in one sentence."""
        from kl_companion.auditing.updates.meaning import headline

        return headline(self)

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
    def misses(self) -> tuple[OnPrompt, ...]:
        """Where the update is not what was wanted, judged by groups of ``group_size``."""
        if self.want is None:
            return ()
        return tuple(s for s in self.seen if s.group == self.group_size and not self._is_wanted(s, self.want))

    @property
    def met(self) -> bool | None:
        """Whether it is what was wanted on every prompt; None where nothing was asked for.

        An update with a wrong sign, see `kl_companion.auditing.updates.meaning.fault`, is never that.
        """
        from kl_companion.auditing.updates.meaning import fault

        if self.want is None:
            return None
        judged = any(s.group == self.group_size for s in self.seen)
        return judged and not (self.misses or fault(self))

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
            return -expected_gradient(self.step.loss, at, logits=logits, group_size=FOLLOWED)

        try:
            found = at_rest(ascent, at), optimum(at, self.beta)
        except (ValueError, RuntimeError):  # RuntimeError: a singular or not finite system of equations
            return None
        return found if all(math.isfinite(x) for r in found for x in (r.reward, r.kl)) else None

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a pickle: where the update comes to rest is computed before."""
        step = self.step._replace(loss=left_out, with_beta=None, moved=None)
        return self.__dict__ | {"rest": self.rest, "step": step}

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
