"""The whole default recipes of frameworks, and what beta is worth in them beside a reward.

A recipe is an RL algorithm of a framework with one of its KL settings. Its expected update is enumerated,
with the framework's own functions where it is installed, on prompts that are solved with a given chance. It
is written as a grad E[reward] - b grad KL + rest, where KL is what the setting's own term has the gradient
of. Beside a reward beta is then b / a: what the phrase of `Worth` says is read off these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.updates.effective import Share
from kl_companion.auditing.updates.expected import expected_update
from kl_companion.auditing.updates.worlds import equal_rewards, prompt
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import ratio
from kl_companion.frameworks.records import Setting
from kl_companion.frameworks.registry import framework, settings
from kl_companion.rollout import Aggregate, Rollout, aggregate, masked
from kl_companion.tabular import expected_gradient
from kl_companion.tabular.groups import multisets
from kl_companion.tabular.populations import Population

SUCCESS = (0.01, 0.1, 0.5)
GROUP = 8
LARGE, SMALL = 0.1, 0.001  # the two coefficients that are compared
LINEAR = LARGE / SMALL
REWARD, TERM = "reward", "term"
CASES = "prompts solved 1 in 100, 1 in 10, 1 in 2 times"
_FEW = 4  # answers of the groups that are looked at one by one
_NOTHING = 1e-12  # of an update that has no expected gradient


class FrameworkRecipe(NamedTuple):
    """An algorithm of a framework with one of its KL settings.

    Attributes:
        setting: The KL term.
        algorithm: Advantages and policy loss.
    """

    setting: Setting
    algorithm: Algorithm

    @property
    def option(self) -> str:
        """What a user writes: the choice of the algorithm, if it is not the default, and that of the KL."""
        return "; ".join(x for x in (self.algorithm.when, self.setting.option) if x)

    @property
    def where(self) -> str:
        """Where advantages are made: ``file:line, function``, or file and function of a formula."""
        return self.setting.framework.located(self.algorithm.place)

    def advantages(self, rollout: Rollout, beta: float, charged: torch.Tensor | None = None) -> torch.Tensor:
        """Of every token, [batch, seq], detached, with a penalty in the reward where it belongs.

        Args:
            rollout: The answers to one prompt, with rewards.
            beta: The coefficient.
            charged: What `charged_with` finds, if it is known.

        Raises:
            ValueError: the rollout has no rewards.
        """
        recipe = self.algorithm.recipe
        if self.setting.placement == "loss" or beta == 0:
            return recipe.advantages(rollout)
        cost = beta * (charged_with(self.setting, rollout) if charged is None else charged)
        if self.algorithm.after:
            return masked(recipe.advantages(rollout) - cost, rollout.completion_mask)
        if recipe.of_tokens:  # every token has a return of its own; there is no critic
            return replace(recipe, critic=lambda _: cost).advantages(rollout)
        assert rollout.rewards is not None
        return recipe.advantages(replace(rollout, rewards=rollout.rewards - cost[:, 0]))

    def loss(self, rollout: Rollout, beta: float, charged: torch.Tensor | None = None) -> torch.Tensor:
        """The whole loss, a scalar; arguments and errors as `advantages`."""
        total = self.algorithm.policy_loss(rollout, self.advantages(rollout, beta, charged))
        added = self.setting.placement == "loss" and beta != 0
        return total + beta * self.setting.exact(rollout) if added else total


def charged_with(setting: Setting, rollout: Rollout) -> torch.Tensor:
    """What a setting in the reward charges every token with, [batch, seq]: its factor of the score.

    The loss is read on the policy's own samples.
    """
    logp = rollout.logp.detach().requires_grad_()
    alone = Rollout(rollout.tokens, rollout.completion_mask, logp, rollout.ref_logp)
    (cost,) = torch.autograd.grad(setting.exact(alone), logp)
    return cost * len(cost)


def default_recipes(framework_name: str | None = None) -> tuple[FrameworkRecipe, ...]:
    """Every default KL setting of RL with every algorithm that it is used with; ValueError for a bad name."""
    return tuple(
        FrameworkRecipe(s, a) for s in settings(framework_name) if s.beta is not None for a in s.algorithms
    )


@cache
def world(success: float | None) -> Population:
    """The prompt that is solved with this chance; None for one whose answers have equal rewards."""
    return equal_rewards() if success is None else prompt(success)


@cache
def update(recipe: FrameworkRecipe, beta: float, at: Population, group: int | None) -> torch.Tensor:
    """The expected update of a recipe, [rows, vocab]; see `expected_update`.

    A recipe does not depend on the order of answers, so that groups are counted without it. (What is divided
    by a small deviation does by its rounding, so that no test would say so.)
    """
    if group is None:
        return expected_update(lambda rollout: recipe.loss(rollout, beta), at, None)
    problem = at.problem
    drawn, chance = multisets(problem.probabilities(), group)
    logits = problem.logits.clone().requires_grad_()
    every = problem.rollout(logits)
    cost = charged_with(recipe.setting, every) if recipe.setting.placement == "reward" and beta else None
    pairs = zip(drawn, every.batches(drawn.tolist()), strict=True)
    losses = [recipe.loss(batch, beta, None if cost is None else cost[which]) for which, batch in pairs]
    (gradient,) = torch.autograd.grad((chance * torch.stack(losses)).sum(), logits)
    return -gradient


def _fields(recipe: FrameworkRecipe, at: Population) -> dict[str, torch.Tensor]:
    """What the parts of an update are multiples of where nothing is divided, [rows x vocab] each.

    That is the gradient of the policy loss whose advantages are the rewards, that of the KL term (in the
    reward: of the same policy loss, whose advantages are what is charged), and where an answer counts by the
    mean over its tokens that of E[1 / length], which a baseline adds there.
    """
    answers = recipe.algorithm.recipe.aggregate == "sequence_mean"
    how: Aggregate = "sequence_mean" if answers else "sum"

    def along(advantages: Callable[[Rollout], torch.Tensor]) -> torch.Tensor:
        def loss(rollout: Rollout) -> torch.Tensor:
            return aggregate(advantages(rollout) * ratio(rollout), rollout.completion_mask, how)

        return expected_gradient(loss, at.problem).flatten()

    def rewards(rollout: Rollout) -> torch.Tensor:
        assert rollout.rewards is not None
        return rollout.rewards.unsqueeze(-1)

    def cost(rollout: Rollout) -> torch.Tensor:
        return charged_with(recipe.setting, rollout)

    in_loss = recipe.setting.placement == "loss"
    term = expected_gradient(recipe.setting.exact, at.problem).flatten() if in_loss else along(cost)
    lengths = {"lengths": along(lambda rollout: torch.ones_like(rollout.ref_logp))} if answers else {}
    return {REWARD: along(rewards), TERM: term, **lengths}


def shared(
    recipe: FrameworkRecipe, at: Population, group: int | None, betas: tuple[float, ...] = (SMALL, LARGE)
) -> dict[float, Share]:
    """The update at every beta as a E[reward] - b KL + rest: {beta: share}, with b the charge `TERM`.

    The reward's part is that of the update without the KL, and what the KL changes in it. The rest is the
    angle between what the KL changes and its fit.

    Args:
        recipe: The recipe.
        at: A prompt.
        group: Answers per batch; None for the limit of large batches.
        betas: Coefficients.
    """
    fields = _fields(recipe, at)
    without = update(_without(recipe), 0.0, at, group).flatten()
    gain = _multiples(without, {n: f for n, f in fields.items() if n != TERM})[0].get(REWARD, math.nan)
    found = {}
    for beta in betas:
        if recipe.setting.placement == "loss":  # beside whatever the rewards do
            change, basis = -beta * fields[TERM], {TERM: fields[TERM]}
        else:
            change, basis = update(recipe, beta, at, group).flatten() - without, fields
        factors, rest = _multiples(change, basis)
        more, charge = factors.get(REWARD, 0.0), -factors.get(TERM, math.nan)
        found[beta] = Share(gain + more, charge, rest, change.norm().item())
    return found


def _multiples(x: torch.Tensor, fields: dict[str, torch.Tensor]) -> tuple[dict[str, float], float]:
    """The sum of multiples of fields, [count] each, that is nearest to x: {name: factor}, degrees apart.

    A field of zero has no factor; the degrees are NaN where x is zero.
    """
    size = x.norm().item()
    held = {n: f for n, f in fields.items() if f.norm() > _NOTHING}
    if not held or not size > _NOTHING:
        return dict.fromkeys(held, 0.0), math.nan
    columns = torch.stack([f / f.norm() for f in held.values()], 1)
    solution = torch.linalg.lstsq(columns, (x / size).unsqueeze(-1), driver="gelsd").solution[:, 0]
    missed = min(1.0, (columns @ solution - x / size).norm().item())
    factors = {n: (c * size / f.norm()).item() for (n, f), c in zip(held.items(), solution, strict=True)}
    return factors, math.degrees(math.asin(missed))


def _without(recipe: FrameworkRecipe) -> FrameworkRecipe:
    """The same for all settings of an algorithm, so that it is enumerated once."""
    first = recipe.setting.framework.settings[0]
    return recipe._replace(setting=first)


class Worth(NamedTuple):
    """What beta is worth in a recipe, exact.

    Attributes:
        recipe: The recipe.
        weak: {(success, group): effective beta / beta at beta = 0.001}; group None for large batches.
        strong: The same at beta = 0.1.
        rest: The largest angle in degrees, in large batches, between what the term changes in the update and
            a multiple of the gradients of reward and term; NaN where it changes nothing.
        equal: With equal rewards in groups of eight: how many times more the term changes the update at beta
            = 0.1 than at 0.001. 100 where beta is a coefficient, 1 where it cancels, NaN where it changes
            nothing.
        silent: The numbers of right answers among four with which beta has no effect on the advantages.
    """

    recipe: FrameworkRecipe
    weak: dict[tuple[float, int | None], float]
    strong: dict[tuple[float, int | None], float]
    rest: float
    equal: float
    silent: tuple[int, ...]

    @property
    def nothing(self) -> bool:
        """Whether the term has no expected gradient at all."""
        return all(math.isnan(x) for x in self.weak.values())

    @property
    def keeps_beta(self) -> bool:
        """Whether beta is a coefficient in every group."""
        return not self.nothing and not self.silent

    def __str__(self) -> str:
        return what_beta_means(self)


def worth(recipe: FrameworkRecipe, *, groups: tuple[int | None, ...] = (GROUP, None)) -> Worth:
    """What beta is worth in a recipe.

    Args:
        recipe: The recipe.
        groups: Answers per batch; None for large ones.

    Raises:
        ValueError: as `kl_companion.frameworks.installed.Unavailable`, a framework that is not installed.
    """
    shares = {(p, n): shared(recipe, world(p), n) for p in SUCCESS for n in groups}
    weak, strong = (
        {at: share[beta].effective_beta / beta for at, share in shares.items()} for beta in (SMALL, LARGE)
    )
    rest = max(share[SMALL].rest for (_, n), share in shares.items() if n == groups[-1])
    return Worth(recipe, weak, strong, rest, equal_ratio(recipe), silent(recipe))


def equal_ratio(recipe: FrameworkRecipe) -> float:
    """How many times more the KL changes an update at beta = 0.1 than at 0.001 where rewards are equal."""
    at = world(None)
    if recipe.setting.placement == "loss":
        return LINEAR if _fields(recipe, at)[TERM].norm() > _NOTHING else math.nan
    none, small, large = (update(recipe, beta, at, GROUP) for beta in (0.0, SMALL, LARGE))
    changes = [(x - none).norm().item() for x in (small, large)]
    return changes[1] / changes[0] if changes[0] > _NOTHING else math.nan


def silent(recipe: FrameworkRecipe) -> tuple[int, ...]:
    """Numbers of right answers, among four, with which advantages hardly depend on beta.

    That is: at beta = 0.1 they differ from those without a penalty by less than fifty times as much as at
    0.001, in the sum over all groups of four with so many right answers. () for a term in the loss, which is
    added to whatever the advantages are.
    """
    if recipe.setting.placement == "loss":
        return ()
    problem = world(0.5).problem
    every = problem.rollout(problem.logits)
    changes: dict[int, tuple[float, float]] = {}
    for group in every.batches(multisets(problem.probabilities(), _FEW)[0].tolist()):
        assert group.rewards is not None
        none, small, large = (recipe.advantages(group, beta) for beta in (0.0, SMALL, LARGE))
        right = int(group.rewards.sum().item())
        before = changes.get(right, (0.0, 0.0))
        changes[right] = (
            before[0] + (small - none).norm().item(),
            before[1] + (large - none).norm().item(),
        )
    return tuple(m for m, (small, large) in sorted(changes.items()) if large < small * LINEAR / 2)


def no_effect(found: Worth) -> str:
    """Where beta has no effect, in words; "" for nowhere."""
    if found.nothing:
        return "anywhere"
    if not found.silent:
        return ""
    if found.silent == (0, _FEW):
        return f"where all rewards of a {found.recipe.algorithm.over or 'group'} are equal"
    return f"where {' or '.join(map(str, found.silent))} of {_FEW} answers are right"


def what_to_set(found: Worth) -> str:
    """A sentence: the framework's option with which beta is a coefficient in every group; "" where it is."""
    algorithm = found.recipe.algorithm
    if found.nothing or not found.silent:
        return ""
    if algorithm.instead:
        return f"To divide nothing: set {algorithm.instead}."
    return "To divide nothing: no option turns it off."


def _near(x: dict[float, float], y: dict[float, float], within: float = 0.01) -> bool:
    return all(abs(x[p] - y[p]) <= within * abs(y[p]) for p in SUCCESS)


def _listed(values: dict[float, float], unit: str = "") -> str:
    first = values[SUCCESS[0]]
    if _near(values, dict.fromkeys(SUCCESS, first)):
        return f"{first:.3g}{unit}"
    return ", ".join(f"{values[p]:.2g}{unit}" for p in SUCCESS)


def what_beta_means(found: Worth) -> str:
    """One phrase in plain words, made of the numbers alone."""
    if found.nothing:
        return "nothing: the term has no expected gradient, whatever β is"
    over = found.recipe.algorithm.over or "group"
    large = {p: x for (p, n), x in found.weak.items() if n is None}
    said = [_in_large(large, over)] if large else []
    for n in dict.fromkeys(n for _, n in found.weak if n is not None):
        of = f"in {'groups' if over == 'group' else 'batches'} of {n}"
        weak, strong = ({p: x[p, n] for p in SUCCESS} for x in (found.weak, found.strong))
        if not _near(strong, weak):
            acts = {p: SMALL * x for p, x in weak.items()}
            said.append(f"{of} it is no coefficient: β = {SMALL} acts like {_listed(acts)}")
            said[0] += f" in large {'groups' if over == 'group' else 'batches'}" if large else ""
        elif not _near(weak, large, 0.05):
            said.append(f"{of} {_listed(weak, ' β')}")
    if silence := no_effect(found):
        said.append(f"no effect {silence}")
    each = f" ({CASES})" if any(", " in part for part in said) else ""  # numbers, one for each prompt
    return "; ".join(said) + each


def _in_large(factors: dict[float, float], over: str) -> str:
    """What becomes of beta in large groups or batches, by name where it is a known number."""
    spread, by_tokens, length = {}, {}, {}
    for p in SUCCESS:
        at = world(p)
        tokens, rewards = at.problem.completion_mask.sum(-1)[at.which], at.problem.rewards[at.which]
        right = ((tokens * rewards).sum() / tokens.sum()).item()  # share of the tokens with a reward of 1
        spread[p], by_tokens[p] = at.rewards_deviation, math.sqrt(right * (1 - right))
        length[p] = at.tokens_per_answer
    of = f"the spread of the {over}'s rewards"
    known = {
        "β as written": dict.fromkeys(SUCCESS, 1.0),
        f"β × {of}": spread,
        f"β × {of} counted by tokens": by_tokens,
        "β × the mean answer length": length,
        f"β × the mean answer length × {of}": {p: length[p] * spread[p] for p in SUCCESS},
        f"β × the mean answer length × {of} counted by tokens": {
            p: length[p] * by_tokens[p] for p in SUCCESS
        },
    }
    for words, numbers in known.items():
        if _near(factors, numbers):
            return words if "×" not in words else f"{words}: {_listed(factors, ' β')}"
    return _listed(factors, " β")


def recipe_rows(framework_name: str) -> Iterator[dict[str, Any]]:
    """A row for every default recipe of a framework; one that says why, for a framework without.

    The columns ``large_...`` and ``eight_...`` are effective beta / beta at beta = 0.001, in large batches
    and in groups of eight, on prompts solved once in 100, 10 and 2 times; ``strong_...`` the latter at 0.1.
    """
    known = framework(framework_name)
    named = {"framework": known.name, "title": known.title, "version": known.version}
    found = [worth(recipe) for recipe in default_recipes(framework_name)]
    if not found:
        nothing = ("algorithm", "setting", "placement", "option", "where", "divided", "no_effect", "instead")
        yield {**named, **dict.fromkeys(nothing, "none"), "meaning": f"no recipe: {known.without}"}
    for each in found:
        chosen, algorithm = each.recipe
        yield {
            **named,
            "algorithm": algorithm.name,
            "setting": chosen.name,
            "placement": chosen.placement,
            "option": each.recipe.option,
            "where": each.recipe.where,
            "beta": chosen.beta,
            "divided": f"{chosen.divides(algorithm)}, by the {algorithm.over}"
            if algorithm.over
            else "nothing",
            "meaning": str(each),
            "no_effect": no_effect(each) or "none",
            "instead": what_to_set(each) or "none",
            "equal_ratio": each.equal,
            "rest": each.rest,
            **{f"large_{round(1 / p)}": each.weak[p, None] for p in SUCCESS},
            **{f"eight_{round(1 / p)}": each.weak[p, GROUP] for p in SUCCESS},
            **{f"strong_{round(1 / p)}": each.strong[p, GROUP] for p in SUCCESS},
        }
