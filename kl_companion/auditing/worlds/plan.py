"""The second stage of an audit: decide on which worlds a loss is evaluated, beside which objectives."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch

from kl_companion.auditing.reading.groups import GroupSize
from kl_companion.auditing.reading.subject import Subject
from kl_companion.auditing.worlds.objectives import Objective, objectives
from kl_companion.auditing.worlds.targets import divergence_wanted, is_to_sampler, wanted_objectives
from kl_companion.auditing.worlds.trees import Condition, worlds
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.registry import Estimator
from kl_companion.tabular import Loss, expected_gradient, prefix_tree
from kl_companion.tabular.populations import Population, batch_gradient, large_batches, population_tree

SCALES = (1.0, 4.0)
Samples = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
_SCORE = 1e-10  # distance of a gradient from a multiple of the score, relatively
_COUPLED = 1e-9


class FitOptions(NamedTuple):
    """Objectives that a loss is compared with, and batches on which it is evaluated.

    Attributes:
        max_terms: The longest sum of objectives.
        heads: Whether objectives of more than the sampled token are tried.
        sampler: Whether objectives of the policy that sampled are tried.
        members: Divergences that are tried beside the registered ones.
        head: Number of the likeliest tokens that the loss reads; 0 for none.
        group_size: Answers per batch; None is the limit of large batches.
    """

    max_terms: int = 3
    heads: bool = False
    sampler: bool = False
    members: tuple[Divergence, ...] = ()
    head: int = 0
    group_size: int | None = None

    def objectives(self, *, off_policy: bool, lengths: bool) -> dict[str, Objective]:
        """Return the objectives by name, see `kl_companion.auditing.worlds.objectives.objectives`."""
        return objectives(
            off_policy=off_policy,
            lengths=lengths,
            heads=self.heads,
            sampler=self.sampler,
            members=self.members,
        )

    def under(self, condition: Condition) -> dict[str, Objective]:
        """Return the objectives for the worlds of a condition."""
        return self.objectives(off_policy=condition.off_policy, lengths=condition.eos)


class AuditPlan(NamedTuple):
    """A loss with the worlds on which it is evaluated.

    Attributes:
        subject: See `Subject`.
        options: See `FitOptions`; of experiments beyond the conditions, which take whole groups only where
            the loss runs on nothing else.
        conditions: Default worlds; empty where the request has problems.
        group_size: Answers per batch under the conditions; None is the limit of large batches.
        group: The size that the loss's own text names, where it is the one that is used.
        couples: Whether answers of a large batch enter each other's gradient.
        samples: See `single_tokens`.
    """

    subject: Subject
    options: FitOptions
    conditions: tuple[Condition, ...]
    group_size: int | None
    group: GroupSize | None
    couples: bool
    samples: Samples | None

    @property
    def single(self) -> bool:
        """Whether answers are evaluated without a group."""
        return self.group_size in (None, 1)


def plan(subject: Subject) -> AuditPlan:
    """Return the worlds for a loss, by its request and by what it reads in small experiments.

    Raises:
        ValueError: an unknown divergence is wanted.
    """
    request, loss_fn, entry, head = subject.request, subject.loss, subject.entry, subject.head
    # members of families, which may be no registered divergences
    members = [get_divergence(entry.target)] if entry is not None else []
    if request.want is not None and not (is_to_sampler(request.want) and wanted_objectives(request.want)):
        members.append(divergence_wanted(request.want))
    group_size = request.group_size
    if group_size is None and subject.group is not None:
        group_size = subject.group.size
    group = subject.group if subject.group is not None and subject.group.size == group_size else None
    single = group_size in (None, 1)
    samples = single_tokens(loss_fn) if entry is None and single else None
    options = FitOptions(
        request.max_terms,
        head > 0 or ((entry is not None or single) and reads_heads(entry, samples)),
        entry is None and request.off_policy is not False and reads_sampler(loss_fn, head),
        tuple(members),
        head,
        group_size if subject.group is not None else None,
    )
    if request.problems is not None:
        return AuditPlan(subject, options, (), group_size or 1, group, False, samples)
    chosen = tuple(conditions(request.off_policy, request.scale))
    coupled = entry is None and group_size is None and couples(loss_fn, chosen[-1], head)
    return AuditPlan(subject, options, chosen, group_size, group, coupled, samples)


def conditions(off_policy: bool | None = None, scale: float | None = None) -> list[Condition]:
    """Return all eight conditions, or those with the samples and the scale that are asked for."""
    return [
        Condition(off, eos, s)
        for off in ((False, True) if off_policy is None else (off_policy,))
        for s in (SCALES if scale is None else (scale,))
        for eos in (False, True)
    ]


def single_tokens(loss_fn: Loss) -> Samples | None:
    """Return log-probs of single tokens, and the value and the gradient weight of each; None without one."""
    rows: list[tuple[float, float, float, float]] = []
    for seed in (0, 1):
        problem = prefix_tree(4, 1, seed=seed)
        for i in range(len(problem.sequences)):
            theta = problem.logits.clone().requires_grad_()
            rollout = problem.rollout(theta, torch.tensor([i]))
            (score,) = torch.autograd.grad(rollout.logp.sum(), theta, retain_graph=True)
            try:
                loss = loss_fn(rollout)
            except ValueError:  # the loss needs a batch
                return None
            if not loss.requires_grad or loss.isnan():
                return None
            (gradient,) = torch.autograd.grad(loss, theta)
            weight = (gradient * score).sum() / (score * score).sum()
            if (gradient - weight * score).norm() > _SCORE * (1 + gradient.norm()):
                return None  # not a multiple of the score: the loss reads more than the sampled token
            rows.append((rollout.logp.item(), rollout.ref_logp.item(), loss.item(), weight.item()))
    logp, ref_logp, values, weights = torch.tensor(rows, dtype=torch.float64).T
    return logp, ref_logp, values, weights


def reads_heads(entry: Estimator | None, samples: Samples | None) -> bool:
    """Return whether the gradient of one sample is more than a multiple of its score.

    Args:
        entry: The estimator that was named, which says so itself.
        samples: Of a function: the result of `single_tokens`.
    """
    return samples is None if entry is None else entry.inputs == "top_k"


def couples(loss_fn: Loss, condition: Condition, head: int = 0) -> bool:
    """Return whether a batch of many answers has another expected gradient than one answer at a time."""
    place = worlds(condition, head + 2 if head else 3, headed=head > 0)[1]
    limit = large_batches(loss_fn, place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a standard deviation without a second answer
            alone = expected_gradient(loss_fn, place.problem)
    except ValueError:  # a standard deviation of one answer, say
        return True
    return bool((limit.gradient - alone).norm() > _COUPLED * max(limit.contributions, alone.norm().item()))


def reads_sampler(loss_fn: Loss, head: int = 0) -> bool:
    """Return whether a loss depends on the log-probs of the policy that sampled, for the same samples."""
    place = population_tree(head + 2 if head else 3, 2, parts=12, seed=5, eos=True, off_policy=True)
    other = place.problem._replace(behavior_logits=place.problem.ref_logits.flip(-1))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pair = [batch_gradient(loss_fn, Population(p, place.which)) for p in (place.problem, other)]
    except ValueError:
        return False
    (value, gradient, size), (other_value, other_gradient, other_size) = pair
    moved = (gradient - other_gradient).norm() > _COUPLED * max(size, other_size)
    return bool(moved) or not math.isclose(value, other_value, rel_tol=_COUPLED)
