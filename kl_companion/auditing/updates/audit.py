"""The audit of a whole update: what it makes of rewards and of the KL coefficient, prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.auditor import finding_of
from kl_companion.auditing.fit.findings import Condition, left_out
from kl_companion.auditing.judgment.card import Block, card, html
from kl_companion.auditing.judgment.summary import explanation, terms
from kl_companion.auditing.reading.subject import NOTHING
from kl_companion.auditing.updates.advantages import Advantage
from kl_companion.auditing.updates.direction import reward_sign
from kl_companion.auditing.updates.effective import REWARD, REWARDS, Share, share
from kl_companion.auditing.updates.expected import expected_update, expected_updates
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.auditing.updates.stationary import Rest, at_rest, optimum
from kl_companion.auditing.updates.step import Step, as_step, with_advantages
from kl_companion.auditing.updates.wanted import Wanted, wanted_of
from kl_companion.auditing.updates.worlds import GRADED, prompt
from kl_companion.auditing.worlds.objectives import OBJECTIVES, objectives
from kl_companion.keywords import renamed
from kl_companion.rollout import Rollout
from kl_companion.tabular import expected_gradient
from kl_companion.tabular.populations import Population

SUCCESS = (0.01, 0.1, 0.5, 0.9, 0.99)
GROUPS = (2, 4, 8)
JUDGED = 8  # answers to a prompt, unless they are said
NEAR, TURNED = 0.2, 5.0  # what passes for the coefficient that was wanted: 20 %, and 5 degrees of rest
_MORE = 10.0  # times beta, to see whether it has an effect
_FALLBACK = ("sequence_reverse_kl", "token_reverse_kl", "sequence_forward_kl", "token_forward_kl")
_NOTHING = 1e-12
_LOOKED = Condition(False, True, 1.0)  # fresh samples, answers of several lengths, small log-ratios
_TRIED = partial(objectives, heads=False)


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

    @property
    def beta(self) -> float | None:
        """The coefficient of the step, where it is known."""
        return self.step.beta

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
        return tuple(s for s in self.seen if s.group == self.group_size and not self._is_wanted(s))

    @property
    def met(self) -> bool | None:
        """Whether it is what was wanted on every prompt; None where nothing was asked for.

        An update with a wrong sign, see `kl_companion.auditing.updates.meaning.fault`, is never that.
        """
        from kl_companion.auditing.updates.meaning import fault

        return None if self.want is None else not (self.misses or fault(self))

    def _is_wanted(self, seen: OnPrompt) -> bool:
        wanted = self.want
        if wanted is None:
            return True
        if seen.deviation > 0 and not seen.share.gain > 0:
            return False
        if not wanted.objectives:
            return not self.penalties or abs(seen.share.charge) < _NOTHING
        if len(self.penalties) != 1 or not wanted.objectives >= self.penalties.keys():
            return False
        if math.isnan(seen.share.gain):  # equal rewards: nothing to compare the coefficient with
            return not (seen.grows < _MORE / 2 or seen.share.charge < 0)
        aim = (self.beta or 0.0) if wanted.beta is None else wanted.beta
        return abs(self.effective(seen) - aim) <= NEAR * aim and seen.share.rest <= TURNED

    @cached_property
    def rest(self) -> tuple[Rest, Rest] | None:
        """Where the update comes to rest, and the optimum of E[R] - beta KL of whole answers.

        In groups of 4, from a prompt with half of its answers right; None where the step's beta is not known,
        or is not positive: then there is no optimum.
        """
        if not self.beta or self.beta < 0 or not self.penalties:
            return None
        at = prompt(0.5).problem

        def field(logits: torch.Tensor) -> torch.Tensor:
            return -expected_gradient(self.step.loss, at, logits=logits, group_size=4)

        return at_rest(field, at), optimum(at, self.beta)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for a pickle: where the update comes to rest is computed before."""
        step = self.step._replace(loss=left_out, with_beta=None)
        return self.__dict__ | {"rest": self.rest, "step": step}

    @property
    def name(self) -> str:
        """What was audited."""
        return self.step.name

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

    def blocks(self, *, details: bool = False) -> list[Block]:
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


def prompts(*, off_policy: bool = False) -> dict[str, Population]:
    """The prompts on which an update is looked at, by what the card calls them."""
    binary = {f"{100 * p:g} %": prompt(p, off_policy=off_policy) for p in SUCCESS}
    graded = prompt(0.5, GRADED, off_policy=off_policy)
    return {**binary, "graded": graded, "equal": prompt(0.5, [1.0] * 4, off_policy=off_policy)}


@renamed(map="roles", set="options")
def audit_update(
    step: Recipe | Callable[..., Any],
    *,
    want: str | None = None,
    group_size: int | None = None,
    groups: Sequence[int] = GROUPS,
    advantage: Advantage | None = None,
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
    progress: Callable[[str], None] | None = None,
) -> UpdateAudit:
    """What a whole update maximizes: update = a grad E[R] - b grad KL + rest; its effective beta is b / a.

    The expected update is exact: all groups of the answers to a prompt are enumerated, and in the limit of
    large groups a batch holds every answer in proportion to its probability. Prompts differ in how many of
    their answers are right, from 1 in 100 to 99; one has graded rewards, and one the same reward for all.

    Args:
        step: A `Recipe`; or a loss of answers with rewards or advantages as it stands in a trainer: whatever
            `kl_companion.audit` takes, with all answers of a batch to one prompt.
        want: ``"E[R] - 0.04 * sequence_reverse_kl"``: what it is meant to maximize; ``beta`` for the step's
            own coefficient. Judged on every prompt, within 20 % of the coefficient and 5 degrees.
        group_size: Answers to a prompt by which ``want`` is judged; 8 by default.
        groups: Sizes of groups that are looked at, beside large ones.
        advantage: What to make of the rewards of a group before the step is given them, for a loss that takes
            advantages: see `normalizer`.
        roles: What parameters mean, ``{"x_logps": "ref_logp"}``, where their names do not say it.
        options: Values of options.
        progress: Called with a line of text per prompt.

    Raises:
        ValueError: groups of fewer than two answers; as `kl_companion.audit`; a step that reads no rewards; a
            ``want`` without a number for a step whose coefficient is not known.

    Source: this book; yao2026future, proposition 3.2, for large groups.
    """
    wanted = None if want is None else wanted_of(want)
    size = JUDGED if group_size is None else group_size
    sizes = sorted({*groups, size})
    if not sizes or sizes[0] < 2:
        raise ValueError(f"got groups of {sizes[:1]}, expected at least two answers to a prompt")
    of = as_step(step, roles=roles, options=options)
    if wanted is not None and wanted.objectives and wanted.beta is None and of.beta is None:
        raise ValueError(
            f"want is {want!r}, and the coefficient of {of.name} is not known: expected a number instead of "
            "beta, 'E[R] - 0.04 * sequence_reverse_kl'"
        )
    if advantage is not None:
        of = with_advantages(of, advantage)
    reward, penalties, named = _parts(of)
    found: dict[bool, list[OnPrompt]] = {False: [], True: []}
    for stale in (False, True):
        for title, at in prompts(off_policy=stale).items():
            if progress is not None:
                progress(f"{'stale' if stale else 'fresh'} samples, rewards: {title}")
            for group in (None,) if stale else (*sizes, None):
                found[stale].append(_seen(of, title, at, group, reward, penalties))
    return UpdateAudit(
        of, reward, penalties, named, tuple(found[False]), tuple(found[True]), wanted, size, advantage
    )


def _seen(
    step: Step, title: str, at: Population, group: int | None, reward: str, penalties: Mapping[str, float]
) -> OnPrompt:
    update = _update(step, at, group)
    grows = math.nan
    if title == "equal" and step.with_beta is not None and step.beta and update.norm() > _NOTHING:
        more = _update(step.with_beta(_MORE * step.beta), at, group)
        grows = (more.norm() / update.norm()).item()
    found = share(update, at.problem, penalties, reward=reward)
    sign = reward_sign(found, update, at, None if group is not None else lambda x: _update(step, x, None))
    return OnPrompt(title, group, at.rewards_deviation, found, grows, sign)


def _update(step: Step, at: Population, group: int | None) -> torch.Tensor:
    """The expected update; of a recipe with several updates on one batch, their mean."""
    of = step.recipe
    if of is None or of.updates == 1:
        return expected_update(step.loss, at, group)
    return expected_updates(of.loss, at, group, steps=of.updates, rate=of.rate)


def _parts(step: Step) -> tuple[str, dict[str, float], bool]:
    """What the rewards and the KL term are in large batches of fresh samples, and whether that is exact."""
    names = terms(finding_of(step.loss, _LOOKED, tried=_TRIED, max_terms=2))
    if names and not any(OBJECTIVES[t.objective].rewards for t in names) and not step.reads_rewards:
        said = " and ".join(t.objective for t in names)
        raise ValueError(
            f"{step.name} minimizes {said} and no rewards, expected a loss that reads rewards or advantages; "
            "kl_companion.audit takes a KL term"
        )
    penalty = _penalty(step)
    unknown = penalty is None
    if penalty is None:
        penalty = {t.objective: 1.0 for t in names if OBJECTIVES[t.objective].regularizer}
    named = bool(names)
    at = prompt(0.1)
    update = expected_update(step.loss, at, None)

    def rest(reward: str, parts: Mapping[str, float]) -> float:
        return share(update, at.problem, parts, reward=reward).rest

    if unknown and not penalty and not named:
        penalty = {min(_FALLBACK, key=lambda n: rest(REWARD, {n: 1.0})): 1.0}
    return min(REWARDS, key=lambda r: round(rest(r, penalty), 6)), penalty, named


def _penalty(step: Step) -> dict[str, float] | None:
    """What is left where all rewards are 0, {objective: weight}, the first of which is 1.

    {} where nothing is left; None where it is not known.
    """

    def unrewarded(rollout: Rollout) -> torch.Tensor:
        return step.loss(replace(rollout, rewards=torch.zeros_like(rollout.logp[:, 0]).detach()))

    finding = finding_of(unrewarded, _LOOKED, tried=_TRIED, max_terms=2)
    if finding.zero:
        return {}
    i = explanation(finding)
    if i is None or any(t.sign == 0 for t in terms(finding)):
        return None
    if not any(OBJECTIVES[t.objective].regularizer for t in terms(finding)):
        return {}
    found = {t.objective: finding.matches[i][t.objective] for t in terms(finding)}
    first = next(iter(found.values()))
    return {n: c / first for n, c in found.items()}
