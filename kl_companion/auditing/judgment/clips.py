"""What a clip does with a token outside its band, per sign of the advantage, tried on single tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import torch

from kl_companion.auditing.judgment.experiments import Key, Lab, changed, kind_of
from kl_companion.rollout import Rollout

_LARGEST = 50.0  # ratio that is tried, and one over the smallest
_PROBABILITY = 0.01  # of the token under the policy: of the sampler it is at most a half
_OTHER = 0.02  # to see whether a bound is one of the ratio alone
_ADVANTAGE = 10.0  # a penalty in the reward does not change its sign
_NOTHING = 1e-9  # of a gradient, relatively
_FLAT = 1e-6
_SMALL = 1e-4
_CLOSE = 1e-3  # beside a bound, relatively
_LIKELY = 0.5  # probability of a token that stops at another ratio where a bound is one of probabilities
_ROUNDS = 5  # of narrowing a bound: each has the bracket divided by the number of its points
_NEAR = 2.0  # a clip at a ratio beyond it, or below its inverse, is a guard against overflow
_RATIOS = ("importance_ratio", "log_importance_ratio")


class Clip(NamedTuple):
    """A clip of the ratio to one input.

    Attributes:
        name: The input with the log-probs of the policy that sampled, or the ratio.
        role: How it was read.
        sentence: What stops where.
        wrong: Whether answers stop on the side to which their advantage does not push them.
    """

    name: str
    role: str
    sentence: str
    wrong: bool


class _Bounds(NamedTuple):
    """Ratios below and above which a token has no gradient, for one sign; None where it has one."""

    below: float | None = None
    above: float | None = None

    def words(self, *, numbers: bool) -> str:
        """Say where tokens stop."""
        ends = [
            f"{side} {_number(x) if numbers else 'it'}"
            for side, x in zip(("below", "above"), self, strict=True)
            if x is not None
        ]
        return " and ".join(ends)

    def wrong(self, sign: int) -> str:
        """Say on which side tokens of one sign stop that should go back; "" where that is none.

        A clip far from 1 is a guard against overflow.
        """
        back, forth = (self.above, self.below) if sign else (self.below, self.above)
        if back is None or forth is not None or not 1 / _NEAR <= back <= _NEAR:
            return ""
        if sign:
            return f"bad answers stop above {_number(back)} and are pushed down without bound below"
        return f"good answers stop below {_number(back)} and are raised without bound above"


def clips(lab: Lab, acting: Collection[Key]) -> Iterator[Clip]:
    """Yield what the clip of every ratio to a policy that sampled does.

    Args:
        lab: The loss.
        acting: The inputs that change its gradient.

    Raises:
        ValueError: the loss does not run on 64 answers of one token.
    """
    ratios = [k for k in acting if k[1] in _RATIOS or kind_of(k[1]) == "behavior"]
    for key in ratios:
        of = f" of the ratio to {key[0]}" if len(ratios) > 1 else ""
        whole, net = _Tokens(lab, key, False), _Tokens(lab, key, True)
        # a penalty in the reward is no rest that can be subtracted
        found = whole.clip(of) or net.clip(of) or net.capped()
        if found is not None:
            yield Clip(*key, *found)


class _Tokens(NamedTuple):
    """Single tokens with a ratio to one input.

    Attributes:
        lab: The loss.
        key: The input.
        net: Whether the gradient where all rewards are 0 is subtracted.
    """

    lab: Lab
    key: Key
    net: bool

    @property
    def rows(self) -> int:
        """Answers with each sign of the advantage: two times as many fill whole groups."""
        return len(self.lab.place().which) // 2

    def clip(self, of: str) -> tuple[str, bool] | None:
        """Return the sentence on a clip and whether it is on the wrong side; None without one."""
        grid = torch.linspace(-math.log(_LARGEST), math.log(_LARGEST), self.rows, dtype=torch.float64).exp()
        sizes = self.sizes(grid)
        bounds = [self.bounds(grid, sizes, sign) for sign in (0, 1)]
        if bounds[0] == bounds[1] == _Bounds():
            return None
        per = " per answer" if self.stops_answers(bounds) else ""
        exact = self.is_of_the_ratio(bounds)
        if not exact:
            bounds = [self.sides(x, sign) for sign, x in enumerate(bounds)]
        elif wrong := [x for sign, bound in enumerate(bounds) if (x := bound.wrong(sign))]:
            return f"Check the clip{of}{per}, which is on the wrong side: {'; '.join(wrong)}.", True
        *first, last = map(_number, sorted({x for ends in bounds for x in ends if x is not None}))
        where = f"at {', '.join(first)} and {last}" if first else f"at {last}"
        where = where if exact else "at a bound that is none of the ratio alone"
        parts = [
            f"{who} {x.words(numbers=exact)}"
            for who, x in zip(("good answers stop", "bad ones"), bounds, strict=True)
        ]
        if bounds[0] == bounds[1]:
            parts = [f"good and bad answers stop {bounds[0].words(numbers=exact)}"]
        elif bounds[0] == _Bounds():
            parts = [f"bad answers stop {bounds[1].words(numbers=exact)}"] + ["good ones never"] * exact
        elif bounds[1] == _Bounds():
            parts = parts[:1] + ["bad ones never"] * exact
        return f"Clip{of}{per} {where}: {', '.join(parts)}.", False

    def sizes(self, ratios: torch.Tensor, probability: float = _PROBABILITY) -> torch.Tensor:
        """Return the length of the policy gradient of single tokens with these ratios, [2, ratios].

        Advantages are positive in the first row, and negative in the second.
        """
        n = len(ratios)
        base = _batch(torch.ones(2 * n, dtype=torch.float64), 1, probability)
        far = _batch(ratios.repeat_interleave(2), 1, probability)
        return self.policy_gradient(base, far)[:, 0].view(n, 2).T

    def policy_gradient(self, base: Rollout, far: Rollout) -> torch.Tensor:
        """Return the length of what rewards add to the gradient of every token, [batch, seq].

        The reference equals the policy, and signs of advantages alternate, so that centering keeps them.
        """
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(len(base) // 2)
        rewards = self.lab.of_kind("rewards")

        def with_rewards(size: float) -> torch.Tensor:
            there = dict.fromkeys(rewards, changed(base, rewards=size * signs))
            return self.lab.run(base, {self.key: far, **there}).gradient

        found = with_rewards(_ADVANTAGE)
        with suppress(ValueError):  # a standard deviation of equal rewards
            found = found - with_rewards(0.0) if self.net else found
        return found.norm(dim=-1)

    def stops(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return where a gradient vanishes beside the largest."""
        return sizes <= _NOTHING * sizes.max()

    def bounds(self, grid: torch.Tensor, sizes: torch.Tensor, sign: int) -> _Bounds:
        """Return where tokens stop; a band inside which they stop, with gradients on both sides, is none."""
        stops = self.stops(sizes)[sign]
        changes = [i for i in range(len(grid) - 1) if stops[i] != stops[i + 1]]
        if not changes:
            return _Bounds()
        below, above = (self.narrowed(sign, grid[i], grid[i + 1]) for i in (changes[0], changes[-1]))
        return _Bounds(below if stops[0] else None, above if stops[-1] else None)

    def narrowed(self, sign: int, low: torch.Tensor, high: torch.Tensor) -> float:
        """Return the ratio between two others at which the gradient begins or ends."""
        for _ in range(_ROUNDS):
            points = torch.linspace(low.log().item(), high.log().item(), self.rows, dtype=torch.float64).exp()
            stops = self.stops(self.sizes(points))[sign]
            i = next((i for i, (a, b) in enumerate(pairwise(stops.tolist())) if a != b), None)
            if i is None:  # the other sign has nothing that a gradient could be compared with
                break
            low, high = points[i], points[i + 1]
        return float(f"{(low * high).sqrt().item():.5g}")

    def sides(self, bounds: _Bounds, sign: int) -> _Bounds:
        """Return the bounds with those that only a likely token reaches."""
        likely = self.stops(self.sizes(_points(self.rows, 1.0, _LARGEST), _LIKELY))[sign]
        return bounds._replace(above=_LARGEST) if likely[1] else bounds

    def is_of_the_ratio(self, bounds: Sequence[_Bounds]) -> bool:
        """Return whether tokens of other probabilities stop at the same ratios."""
        for sign, ends in enumerate(bounds):
            if self.sides(_Bounds(), sign).above is None and ends.above is not None:
                return False
            if self.sides(ends, sign) != ends and ends.above is None:
                return False
            for inward, end in zip((1, -1), ends, strict=True):
                if end is not None:
                    points = _points(self.rows, 1.0, end * (1 - inward * _CLOSE), end * (1 + inward * _CLOSE))
                    stops = self.stops(self.sizes(points, _OTHER))[sign, :3].tolist()
                    if stops != [False, True, False]:
                        return False
        return True

    def stops_answers(self, bounds: Sequence[_Bounds]) -> bool:
        """Return whether a token far outside stops the other token of its answer, whose ratio is 1."""
        for sign, ends in enumerate(bounds):
            for end, ratio in zip(ends, (1 / _LARGEST, _LARGEST), strict=True):
                if end is not None:
                    ones = torch.ones(2 * self.rows, dtype=torch.float64)
                    base, far = (_batch(x * ones, 2, _PROBABILITY) for x in (1.0, ratio))
                    return bool(self.stops(self.policy_gradient(base, far))[sign::2, 1].all())
        return False

    def capped(self) -> tuple[str, bool] | None:
        """Return the sentence on a weight that stays the same beyond a ratio, while gradients go on."""
        far = [_LARGEST / 1.1, _LARGEST]
        points = torch.tensor([*(1 / x for x in reversed(far)), 1.0, 1 + _SMALL, *far], dtype=torch.float64)
        low, lower, one, above, higher, high = self.sizes(points).unbind(1)
        if bool((((above / one - 1) / _SMALL - 1).abs() > _FLAT).any()):  # the weight is not the ratio
            return None
        caps = [
            f"at {least} {_number(float(end[0] / one[0]))}"
            for least, end, beside in (("least", low, lower), ("most", high, higher))
            if bool(((end / beside - 1).abs() < _FLAT).all())
            and bool((end / one - end[0] / one[0]).abs().max() < _FLAT)
        ]
        text = f"The ratio to {self.key[0]} is a weight of {' and '.join(caps)}: no token stops."
        return (text, False) if caps else None


def _points(rows: int, *ratios: float) -> torch.Tensor:
    """Return these ratios, and ones to fill the batch."""
    return torch.tensor([*ratios, *[1.0] * (rows - len(ratios))], dtype=torch.float64)


def _batch(ratios: torch.Tensor, tokens: int, probability: float) -> Rollout:
    """Return answers of one or two tokens; the first has these ratios to the policy that sampled, [batch]."""
    n = len(ratios)
    p = torch.full((n, 2), probability, dtype=torch.float64)
    logits = _logits(p).requires_grad_()
    mask = torch.ones(n, 2, dtype=torch.float64)
    mask[:, tokens:] = 0
    p[:, 0] = probability / ratios
    return Rollout.from_logits(
        torch.zeros(n, 2, dtype=torch.long),
        mask,
        logits,
        logits.detach(),
        behavior_logits=_logits(p),
        rewards=torch.zeros(n, dtype=torch.float64),
        validate=False,
    )


def _logits(p: torch.Tensor) -> torch.Tensor:
    """Return logits [batch, seq, 3] of policies whose first token has these probabilities."""
    rest = (1 - p) / 2
    return torch.stack([p, rest, rest], -1).log()


def _number(x: float) -> str:
    return f"{x:.5g}"
