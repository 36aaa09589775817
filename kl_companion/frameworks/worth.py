"""What beta is worth beside a reward in a framework's recipe, exact.

The expected update is enumerated, with the framework's own functions where it is installed, on prompts that
are solved with a given chance. It is written as a grad E[reward] - b grad KL + rest, where KL is what the
setting's own term has the gradient of. Beside a reward beta is then b / a.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from kl_companion.auditing.updates.effective import Share, multiples
from kl_companion.auditing.updates.expected import expected_update
from kl_companion.auditing.updates.worlds import equal_rewards, prompt
from kl_companion.frameworks.formulas import ratio
from kl_companion.frameworks.recipes import FrameworkRecipe, charged_with
from kl_companion.frameworks.registry import settings
from kl_companion.rollout import Aggregate, Rollout, aggregate
from kl_companion.tabular import expected_gradient
from kl_companion.tabular.expectations import multisets
from kl_companion.tabular.populations import Population, large_batches

SUCCESS = (0.01, 0.1, 0.5)
GROUP = 8
LARGE, SMALL = 0.1, 0.001  # the two coefficients that are compared
LINEAR = LARGE / SMALL
REWARD, TERM = "reward", "term"
FEW = 4  # answers of the groups that are looked at one by one
_NOTHING = 1e-12  # of an update that has no expected gradient


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

        return large_batches(loss, at).gradient.flatten()  # what is charged may depend on the batch

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
    gain = multiples(without, {n: f for n, f in fields.items() if n != TERM})[0].get(REWARD, math.nan)
    found = {}
    for beta in betas:
        if recipe.setting.placement == "loss":  # beside whatever the rewards do
            change, basis = -beta * fields[TERM], {TERM: fields[TERM]}
        else:
            change, basis = update(recipe, beta, at, group).flatten() - without, fields
        factors, rest = multiples(change, basis)
        more, charge = factors.get(REWARD, 0.0), -factors.get(TERM, math.nan)
        found[beta] = Share(gain + more, charge, rest, change.norm().item())
    return found


def _without(recipe: FrameworkRecipe) -> FrameworkRecipe:
    """The same for all settings of an algorithm, so that it is enumerated once."""
    first = settings(recipe.setting.framework.name)[0]
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
    for group in every.batches(multisets(problem.probabilities(), FEW)[0].tolist()):
        assert group.rewards is not None
        none, small, large = (recipe.advantages(group, beta) for beta in (0.0, SMALL, LARGE))
        right = int(group.rewards.sum().item())
        before = changes.get(right, (0.0, 0.0))
        changes[right] = (
            before[0] + (small - none).norm().item(),
            before[1] + (large - none).norm().item(),
        )
    return tuple(m for m, (small, large) in sorted(changes.items()) if large < small * LINEAR / 2)
