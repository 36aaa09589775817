"""What a clip does with a token outside its band, per sign of the advantage, tried on single tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import torch

from kl_companion.auditing.judgment.experiments import Key, Lab, kind_of
from kl_companion.auditing.judgment.templates import filled
from kl_companion.rollout import Rollout

_LARGEST = 50.0  # ratio that is tried, and one over the smallest
_PROBABILITY = 0.01  # of the token under the policy: of the sampler it is at most a half
_OTHER = 0.005  # to see whether a bound is one of the ratio alone
_LIKELY = 0.5  # of a token that stops at another ratio where a bound is one of probabilities
_ADVANTAGE = 10.0  # a penalty in the reward does not change its sign
_NOTHING = 1e-9  # of a gradient, relatively
_FLAT = 1e-6
_SMALL = 1e-4
_CLOSE = 1e-3  # between two bounds that are one, relatively
_ROUNDS = 4  # of narrowing a bound: each has the bracket divided by the number of its points
_NEAR = 2.0  # a clip at a ratio beyond it, or below its inverse, is a guard against overflow
_RATIOS = ("importance_ratio", "log_importance_ratio")


class _Ends(NamedTuple):
    """Ratios below and above which a token has no gradient, for one sign; None where it has one."""

    below: float | None = None
    above: float | None = None

    def words(self, *, numbers: bool) -> str:
        """Say where tokens stop; "" for nowhere."""
        sides = zip(("below", "above"), self, strict=True)
        return " and ".join(f"{side} {_number(x) if numbers else 'it'}" for side, x in sides if x is not None)

    def near(self, other: _Ends) -> bool:
        """Return whether tokens stop at the same ratios."""
        pairs = list(zip(self, other, strict=True))
        return all(a == b or (a and b and math.isclose(a, b, rel_tol=_CLOSE)) for a, b in pairs)

    def wrong(self, *, good: bool) -> str:
        """Say on which side tokens of one sign stop that should go back; "" where that is none.

        A clip far from 1 is a guard against overflow.
        """
        back, forth = self if good else self[::-1]
        if back is None or forth is not None or not 1 / _NEAR <= back <= _NEAR:
            return ""
        return filled("wrong_side", good=good, back=_number(back))


def clips(lab: Lab, acting: Collection[Key]) -> Iterator[tuple[Key, str, bool]]:
    """Yield what the clip of every ratio to a policy that sampled does.

    Args:
        lab: The loss.
        acting: The inputs that change its gradient.

    Yields:
        The input with the log-probs of that policy, or with the ratio; a sentence; and whether answers stop
        on the side to which their advantage does not push them.

    Raises:
        ValueError: the loss does not run on 64 answers of one token.
    """
    ratios = [k for k in acting if k[1] in _RATIOS or kind_of(k[1]) == "behavior"]
    for key in ratios:
        of = f" of the ratio to {key[0]}" if len(ratios) > 1 else ""
        whole, net = _Tokens(lab, key, False), _Tokens(lab, key, True)
        # a penalty in the reward is no rest that can be subtracted
        text, wrong = next((x for x in (whole.clip(of), net.clip(of)) if x[0]), (net.capped(), False))
        if text:
            yield key, text, wrong


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

    def clip(self, of: str) -> tuple[str, bool]:
        """Return the sentence on a clip, "" without one, and whether it is on the wrong side."""
        ends = self.ends(_PROBABILITY)
        if ends == [_Ends(), _Ends()]:
            return "", False
        likely = self.stops(self.sizes(self.filled_up([1.0, _LARGEST]), _LIKELY))[:, 1].tolist()
        pairs = list(zip(ends, likely, self.ends(_OTHER), strict=True))
        exact = all((e.above is not None) is stops and e.near(other) for e, stops, other in pairs)
        if not exact:  # some bounds are reached by likely tokens only
            ends = [e._replace(above=_LARGEST) if stops else e for e, stops, _ in pairs]
        good, bad = (x.words(numbers=exact) for x in ends)
        *first, last = map(_number, sorted({x for pair in ends for x in pair if x is not None}))
        wrong = [x for good, pair in zip((True, False), ends, strict=True) if (x := pair.wrong(good=good))]
        bounds = f"{', '.join(first)} and {last}" if first else last
        facts = {"exact": exact, "wrong": "; ".join(wrong), "same": ends[0] == ends[1], "bounds": bounds}
        per = " per answer" if self.stops_answers(ends) else ""
        return filled("clip", of=of, per=per, good=good, bad=bad, **facts), exact and bool(wrong)

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
            there = dict.fromkeys(rewards, base.unchecked(rewards=size * signs))
            return self.lab.run(base, {self.key: far, **there}).gradient

        found = with_rewards(_ADVANTAGE)
        with suppress(ValueError):  # a standard deviation of equal rewards
            found = found - with_rewards(0.0) if self.net else found
        return found.norm(dim=-1)

    def stops(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return where a gradient vanishes beside the largest."""
        return sizes <= _NOTHING * sizes.max()

    def ends(self, probability: float) -> list[_Ends]:
        """Return where good and bad tokens stop; a band that is left again on both sides is none."""
        grid = _between(1 / _LARGEST, _LARGEST, self.rows)
        ends = []
        for sign, stops in enumerate(self.stops(self.sizes(grid, probability)).tolist()):
            changes = [i for i, (a, b) in enumerate(pairwise(stops)) if a != b]
            below, above = (
                self.narrowed(sign, grid[i : i + 2], probability) if changes and stops[end] else None
                for end, i in ((0, min(changes, default=0)), (-1, max(changes, default=0)))
            )
            ends.append(_Ends(below, above))
        return ends

    def narrowed(self, sign: int, between: torch.Tensor, probability: float) -> float:
        """Return the ratio between two others at which the gradient begins or ends."""
        for _ in range(_ROUNDS):
            points = _between(between[0].item(), between[1].item(), self.rows)
            stops = self.stops(self.sizes(points, probability))[sign].tolist()
            i = next((i for i, (a, b) in enumerate(pairwise(stops)) if a != b), None)
            if i is None:  # the other sign has nothing that a gradient could be compared with
                break
            between = points[i : i + 2]
        return float(f"{between.prod().sqrt().item():.5g}")

    def filled_up(self, ratios: Sequence[float]) -> torch.Tensor:
        """Return these ratios, and ones to fill the batch."""
        return torch.tensor([*ratios, *[1.0] * (self.rows - len(ratios))], dtype=torch.float64)

    def stops_answers(self, ends: Sequence[_Ends]) -> bool:
        """Return whether a token far outside stops the other token of its answer, whose ratio is 1."""
        sign = 0 if any(ends[0]) else 1
        ratio = 1 / _LARGEST if ends[sign].below else _LARGEST
        ones = torch.ones(2 * self.rows, dtype=torch.float64)
        base, outside = (_batch(x * ones, 2, _PROBABILITY) for x in (1.0, ratio))
        return bool(self.stops(self.policy_gradient(base, outside))[sign::2, 1].all())

    def capped(self) -> str:
        """Return the sentence on a weight that stays the same beyond a ratio, while gradients go on."""
        ratios = [1 / _LARGEST, 1.1 / _LARGEST, 1.0, 1 + _SMALL, _LARGEST / 1.1, _LARGEST]
        low, lower, one, above, higher, high = self.sizes(torch.tensor(ratios, dtype=torch.float64)).unbind(1)
        if bool((((above / one - 1) / _SMALL - 1).abs() > _FLAT).any()):  # the weight is not the ratio
            return ""
        caps = [
            f"at {least} {_number(float(end[0] / one[0]))}"
            for least, end, beside in (("least", low, lower), ("most", high, higher))
            if bool(((end / beside - 1).abs() < _FLAT).all())
            and bool((end / one - end[0] / one[0]).abs().max() < _FLAT)
        ]
        return filled("capped", name=self.key[0], caps=" and ".join(caps))


def _between(low: float, high: float, count: int) -> torch.Tensor:
    """Return ratios in equal steps of the logarithm, [count]."""
    return torch.linspace(math.log(low), math.log(high), count, dtype=torch.float64).exp()


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
