"""What an objective is, the registry of those that have a name, and their exact gradients on a world.

Most are products (`Product`): whose visits, summed over what, of which function, to which policy.
`kl_companion.auditing.worlds.objectives` has registered all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch

from kl_companion.checks import described, unknown_name
from kl_companion.estimators.record import same_function
from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem

T = TypeVar("T")
Scalar = Callable[[Rollout], torch.Tensor]
ValueAndField = tuple[float, torch.Tensor]
_NONE: Mapping[str, Any] = MappingProxyType({})
AWAY = "The policy is pushed away from the reference by {}."


class Objective(NamedTuple):
    """A named objective.

    Attributes:
        name: The registered name.
        scalar: Its exact value from the rollout that lists *every* sequence once; differentiable.
        words: What it is, in a sentence.
        source: Bib key and place.
        short: The same in a few words, for a row of a table.
        effect: What minimizing it does to the policy, in a sentence; "" where no short one is true.
        regularizer: Whether it measures a distance to the reference (rewards and entropies do not).
        off_policy_only: On-policy it coincides with another objective, so it is tried off-policy only.
        lengths_only: It is tried only where the lengths of sequences vary: elsewhere it is constant, or
            another objective divided by the length.
        heads_only: It is tried only for losses that read more of a distribution than the sampled token.
        rewards: Whether it is of the rewards: one such may stand beside any sum.
        cut: It is of a part of the vocabulary, or divided by the length of an answer: of those that read more
            than the sampled token, it is tried for losses that nothing else explains.
        opposite: What maximizing it does; of a distance to the reference `AWAY` by default.
        sampler: Whether it is anchored to the policy that sampled: it is tried only for losses that read
            that policy's log-probs.
    """

    name: str
    scalar: Scalar
    words: str
    source: str
    short: str = ""
    effect: str = ""
    regularizer: bool = True
    off_policy_only: bool = False
    lengths_only: bool = False
    heads_only: bool = False
    rewards: bool = False
    cut: bool = False
    opposite: str = ""
    sampler: bool = False


class Registry(dict[str, Objective]):
    """Objectives by name. One that is not registered is made from what its name says, and is not kept.

    So ``OBJECTIVES["token_bucketed_reverse_kl_policy_top_2"]`` is the same whatever was audited before.

    Attributes:
        makers: Functions that return the objective of a name, or None.
    """

    makers: ClassVar[list[Callable[[str], Objective | None]]] = []

    def __missing__(self, name: str) -> Objective:
        found = next((o for make in self.makers if (o := make(name)) is not None), None)
        if found is None:
            raise KeyError(name)
        return found


OBJECTIVES = Registry()


def get_objective(name: str) -> Objective:
    """The objective of that name, registered or not; ValueError for an unknown one."""
    try:
        return OBJECTIVES[name]
    except KeyError:
        raise unknown_name("objective", name, OBJECTIVES) from None


def make_objective(name: str, scalar: Scalar, *, opposite: str | None = None, **fields: Any) -> Objective:
    """Return an objective with what follows from its other fields."""
    new = Objective(name, scalar, **fields)
    new = new._replace(short=new.short or new.words)
    return new._replace(opposite=AWAY.format(new.short) * new.regularizer if opposite is None else opposite)


def register_objective(
    name: str, *, words: str, source: str, overwrite: bool = False, **fields: Any
) -> Callable[[Scalar], Scalar]:
    """Register a scalar of an enumerated rollout as the objective ``name`` and return it untouched.

    Args:
        name: A new name.
        words: See `Objective`, as of the other ``fields``.
        source: See `Objective`.
        overwrite: Whether it replaces another one of that name.
        fields: Other fields of `Objective`.

    Raises:
        ValueError: the name is taken by another function or other words, or what is registered is no
            function. A function that is defined again may replace itself, see
            `kl_companion.register_estimator`.
    """

    def decorate(fn: Scalar) -> Scalar:
        if not callable(fn):
            raise ValueError(f"the objective {name!r} is {described(fn)}, expected a function of a Rollout")
        taken = None if overwrite else OBJECTIVES.get(name)
        if taken is not None and not (taken.words == words and same_function(taken.scalar, fn)):
            raise ValueError(
                f"objective {name!r} is registered already ({taken.words}): expected a new name, or "
                "overwrite=True"
            )
        OBJECTIVES[name] = make_objective(name, fn, words=words, source=source, **fields)
        return fn

    return decorate


def field(objective: Objective, problem: Problem, logits: torch.Tensor | None = None) -> torch.Tensor:
    """Exact gradient of the objective with respect to the policy's logits, [rows, vocab]."""
    theta = (problem.logits if logits is None else logits).detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective.scalar(problem.rollout(theta)), theta)
    return gradient


def value(objective: Objective, problem: Problem) -> float:
    """Exact value of the objective."""
    with torch.no_grad():
        return objective.scalar(problem.rollout(problem.logits)).item()


class Computed(Mapping[str, T]):
    """A dict of names, each of whose values is computed when it is read first: few of many are.

    Args:
        names: The keys.
        compute: The value of a name.
        known: Values that need not be computed.
    """

    def __init__(
        self, names: Iterable[str], compute: Callable[[str], T], known: Mapping[str, T] = _NONE
    ) -> None:
        self._names, self._compute, self._values = dict.fromkeys(names), compute, dict(known)

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._values:
            self._values[name] = self._compute(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def fields_and_values(
    known: Mapping[str, Objective], problem: Problem, recorded: Mapping[str, ValueAndField] = _NONE
) -> Mapping[str, ValueAndField]:
    """Of many objectives, exact value and gradient [rows, vocab], from one listing of the sequences.

    Args:
        known: The objectives.
        problem: The world.
        recorded: What was computed before.
    """
    theta = problem.logits.detach().clone().requires_grad_()
    rollout = problem.rollout(theta)

    def compute(name: str) -> ValueAndField:
        value = known[name].scalar(rollout)
        (gradient,) = torch.autograd.grad(value, theta, retain_graph=True)
        return value.item(), gradient

    return Computed(known, compute, recorded)


def total(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Sum of [count, seq] over the tokens of each sequence, [count]."""
    return (x * rollout.completion_mask).sum(-1)


_VISITS: dict[str, Scalar] = {
    "sampler": lambda rollout: total(rollout.sampled_from, rollout).exp().detach(),
    "policy": lambda rollout: total(rollout.logp, rollout).exp().detach(),
    "own": lambda rollout: total(rollout.logp, rollout).exp(),
}
# of sampled tokens, and of whole distributions
_ANCHORS: dict[str, tuple[Scalar, Scalar]] = {
    "reference": (lambda rollout: rollout.ref_logp, lambda rollout: rollout.ref_logp_all),
    "sampler": (lambda rollout: rollout.sampled_from, lambda rollout: rollout.behavior_logp_all),
}
EACH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one": torch.ones_like,
    "log": lambda u: u,
    "minus log": lambda u: -u,
    "squared log / 2": lambda u: u**2 / 2,
    "inverse ratio": lambda u: (-u).exp(),
    "ratio": lambda u: u.exp(),
    # f(ratio) with f(1) = f'(1) = 0, whose mean under the anchor is a divergence to it
    "reverse_kl": lambda u: u.exp() * (u - 1) + 1,
    "forward_kl": lambda u: u.exp() - 1 - u,
    "total_variation": lambda u: (u.exp() - 1).abs() / 2,
    "pearson": lambda u: (u.exp() - 1) ** 2,
    "neyman": lambda u: (u.exp() - 1) ** 2 * (-u).exp(),
    "ratio x squared log / 2": lambda u: u.exp() * u**2 / 2,
}


class Product(NamedTuple):
    """A sum over all sequences: of a probability, times a function of log-ratios.

    Attributes:
        visits: ``"sampler"`` or ``"policy"``, whose probability of the sequence is held fixed, or ``"own"``,
            the policy's, which is differentiated.
        over: ``"sum"`` over the sampled tokens, ``"answer"`` of their summed log-ratio, or ``"next"``: the
            sum over tokens of a mean under the policy's whole distribution.
        each: A name of `EACH`, the function of a log-ratio u, or of log p without an anchor. Of whole
            distributions (``over`` is ``"next"``) also a function of two, [..., vocab] -> [...].
        anchor: ``"reference"``, ``"sampler"`` or "".
        per_length: Whether it is divided by the number of tokens of the sequence.
        rewarded: Whether it is multiplied by the reward.
        centered: Whether the mean over the samples is subtracted: from the reward, else from the log-ratio.
    """

    visits: str
    over: str
    each: str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    anchor: str = "reference"
    per_length: bool = False
    rewarded: bool = False
    centered: bool = False

    def scalar(self, rollout: Rollout) -> torch.Tensor:
        """Return its exact value from the rollout that lists every sequence once."""
        whole = self.over == "next"
        anchor = _ANCHORS[self.anchor][whole](rollout) if self.anchor else torch.zeros(())
        logp = rollout.logp_all if whole else rollout.logp
        if callable(self.each):
            x = total(self.each(logp, anchor), rollout)
        elif whole:
            x = total((logp.exp() * EACH[self.each](logp - anchor)).sum(-1), rollout)
        elif self.over == "sum":
            x = total(EACH[self.each](logp - anchor), rollout)
        else:
            u = total(logp - anchor, rollout)
            x = EACH[self.each](_centered(u, rollout) if self.centered and not self.rewarded else u)
        if self.rewarded:
            x = x * self._rewards(rollout)
        if self.per_length:
            x = x / rollout.completion_mask.sum(-1)
        return (_VISITS[self.visits](rollout) * x).sum()

    def _rewards(self, rollout: Rollout) -> torch.Tensor:
        if rollout.rewards is None:
            raise ValueError("the expected reward needs rewards; this Rollout holds none")
        return _centered(rollout.rewards, rollout) if self.centered else rollout.rewards


def _centered(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    return x - (_VISITS["sampler"](rollout) * x).sum()
