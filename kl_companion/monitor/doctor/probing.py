"""The experiments: a trainer's code is run on worlds that differ in one thing, and the gradients compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from kl_companion.monitor.doctor.readings import (
    NOTHING,
    ScoredRow,
    TermForm,
    factor,
    fit_change,
    fit_divergence,
    fit_reward,
    fit_slope,
    read_row,
    same,
    slope,
    value,
)
from kl_companion.monitor.doctor.step import ExaminedStep
from kl_companion.monitor.doctor.subject import Examined, WorldGradients
from kl_companion.monitor.doctor.tracing import Trace
from kl_companion.monitor.doctor.world import REWARDS, SmallWorld, world

ROW, POSITION = 3, 1  # the token whose reference is moved: inside an answer with an advantage
NEAR = (-1.5, -0.6, -0.2, 0.3, 0.8, 1.4)  # by which the reference's logit is moved
_FAR = (2.5, 4.5, 9.0, 14.0, 19.0, 26.0)
_HALVINGS = 7  # of an interval at whose end a limit is
SMALL = 0.4
_CALLS = 4
_TEMPERATURES = (0.5, 0.7, 1.5, 2.0, 3.0, 4.0)  # of a distillation


class Curve(NamedTuple):
    """What moving the reference's log-prob of one token does.

    Attributes:
        delta: Log-ratio of policy and reference there, [n].
        own: Coefficient of that token's score, [n].
        elsewhere: That of every other token: the largest change, [n].
        before: Coefficient of the answer's token before it, [n].
        loss: The loss, [n].
    """

    delta: torch.Tensor
    own: torch.Tensor
    elsewhere: torch.Tensor
    before: torch.Tensor
    loss: torch.Tensor


class CutPoint(NamedTuple):
    """Where a KL term is cut.

    Attributes:
        delta: The log-ratio.
        own: The coefficient beyond it.
    """

    delta: float
    own: float


@dataclass
class Probe:
    """A subject with what has been measured of it; everything is measured once, when it is asked for."""

    subject: Examined
    _trace: Trace = field(default_factory=Trace)

    @property
    def step(self) -> ExaminedStep | None:
        """The subject, if it is a step that keeps a state and whose seed can be set."""
        return self.subject if isinstance(self.subject, ExaminedStep) else None

    def run(self, *, trace: Trace | None = None, **changes: Any) -> WorldGradients:
        """Run the subject on a world with these changes."""
        return self.subject.run(self.world(**changes), trace=trace)

    @cached_property
    def reseeded(self) -> WorldGradients:
        """Unequal rewards, and another seed."""
        assert self.step is not None
        self.step.seed += 1
        try:
            return self.run(rewards=REWARDS)
        finally:
            self.step.seed -= 1

    @property
    def random(self) -> bool:
        """Whether the gradient depends on the seed."""
        return self.step is not None and not same(self.rewarded.completion, self.reseeded.completion)

    @cached_property
    def rounded(self) -> tuple[WorldGradients, WorldGradients]:
        """Equal and unequal rewards, with the casts to bfloat16 that the step makes."""
        assert self.step is not None
        self.step.exact = False
        try:
            return self.run(), self.run(rewards=REWARDS)
        finally:
            self.step.exact = True

    @cached_property
    def in_a_row(self) -> list[tuple[WorldGradients, float]]:
        """Several calls with equal rewards, and the state that the step keeps."""
        assert self.step is not None
        return self.step.in_a_row([self.world()] * _CALLS)

    @cached_property
    def last_of_a_row(self) -> list[float | None]:
        """The gradient after other calls, by that of the first: with a KL of 0, and with large ones."""
        assert self.step is not None
        out, base = [], self.world()
        for apart in (0.0, 0.6, 30.0, -30.0):
            between = self.world(apart=apart)
            (first, _), *_, (last, _) = self.step.in_a_row([base, *[between] * (_CALLS - 2), base])
            out.append(factor(first.completion, last.completion))
        return out

    @cached_property
    def scores(self) -> torch.Tensor:
        """Gradients of the sampled tokens' log-probs by the logits, [answers, seq, live]."""
        rollout, t = self.world().rollout, self.temperature
        sampled = torch.nn.functional.one_hot(rollout.tokens, self.policy_logits.shape[-1])
        return (sampled - (self.policy_logits / t).softmax(-1)) / t * rollout.completion_mask.unsqueeze(-1)

    def world(self, **changes: object) -> SmallWorld:
        """A world with the subject's ids."""
        return world(self.subject.ids, **changes)  # type: ignore[arg-type]

    @cached_property
    def plain(self) -> WorldGradients:
        """Equal rewards: nothing but the KL acts. Its run is traced."""
        return self.subject.run(self.world(), trace=self._trace)

    @property
    def trace(self) -> Trace:
        """Of that run."""
        _ = self.plain
        return self._trace

    @cached_property
    def rewarded(self) -> WorldGradients:
        """Unequal rewards."""
        return self.subject.run(self.world(rewards=REWARDS))

    @cached_property
    def exchanged(self) -> WorldGradients:
        """Unequal rewards, the best in the place of the worst."""
        return self.subject.run(self.world(rewards=REWARDS.max() + REWARDS.min() - REWARDS))

    @cached_property
    def alike(self) -> WorldGradients:
        """Equal rewards, and a reference that is equal to the policy."""
        return self.subject.run(self.world(apart=0.0))

    @cached_property
    def elsewhere(self) -> WorldGradients:
        """Equal rewards, and another reference."""
        return self.subject.run(self.world(apart=-0.9))

    @cached_property
    def stale(self) -> tuple[WorldGradients, WorldGradients]:
        """Samples of an older policy, with equal and with unequal rewards."""
        return (
            self.subject.run(self.world(stale=0.1)),
            self.subject.run(self.world(stale=0.1, rewards=REWARDS)),
        )

    @cached_property
    def halves(self) -> tuple[WorldGradients, WorldGradients]:
        """One batch, and the same in two micro-batches."""
        at = self.world(rewards=REWARDS)
        return self.subject.run(at), self.subject.run(at, parts=2)

    @cached_property
    def reads_reference(self) -> bool:
        """Whether anything depends on the reference's logits."""
        if not same(self.plain.completion, self.elsewhere.completion):
            return True
        moved = self.subject.run(self.world(apart=-0.9, rewards=REWARDS))
        return not same(self.rewarded.completion, moved.completion)

    def rows(self, seen: WorldGradients) -> dict[tuple[int, int], ScoredRow | None]:
        """What the gradients at the tokens of the answers say, by (answer, position)."""
        rollout = self.world().rollout
        assert rollout.logits is not None
        return {
            (int(i), int(t)): read_row(seen.completion[i, t], rollout.logits[i, t])
            for i, t in rollout.completion_mask.nonzero()
        }

    @cached_property
    def reward_term(self) -> dict[tuple[int, int], ScoredRow | None]:
        """What unequal rewards add."""
        difference = self.rewarded.completion - self.plain.completion
        return self.rows(self.plain._replace(completion=difference))

    @cached_property
    def temperature(self) -> float:
        """Of the policy's log-probs, from the scores of tokens; the declared one where none is scored."""
        found = [r.temperature for r in self.reward_term.values() if r is not None and r.token >= 0]
        found = found or [r.temperature for r in self.rows(self.plain).values() if r and r.token >= 0]
        return sorted(found)[len(found) // 2] if found else self.subject.declared.temperature

    def curve(
        self,
        moves: tuple[float, ...] = NEAR,
        *,
        rewarded: bool = False,
        both: bool = False,
        lowered: float = 0.0,
    ) -> Curve:
        """Move the reference's log-prob of one token; ``both``: where the policy's moves, with it."""
        rewards = REWARDS if rewarded else 0.0
        delta, own, loss, gradients, before = [], [], [], [], []
        for by in moves:
            at = self.world(
                bumped=(ROW, POSITION, by), apart=SMALL, rewards=rewards, both=both, lowered=lowered
            )
            found = self.subject.run(at)
            delta.append(self._log_ratio(at))
            row = self._coefficient(found, at)
            own.append(row)
            before.append(self.coefficients(found)[ROW, POSITION - 1].item())
            loss.append(found.loss)
            gradients.append(found.completion)
        moved = (torch.stack(gradients) - gradients[0]).abs().amax(-1)
        others = moved.clone()
        others[:, ROW, POSITION] = 0.0
        return Curve(
            torch.tensor(delta, dtype=torch.float64),
            torch.tensor(own, dtype=torch.float64),
            others.flatten(1).amax(-1),
            torch.tensor(before, dtype=torch.float64),
            torch.tensor(loss, dtype=torch.float64),
        )

    def _log_ratio(self, at: SmallWorld) -> float:
        y, t = at.rollout.tokens[ROW, POSITION], self.temperature
        logits, ref_logits = at.rollout.logits, at.rollout.ref_logits
        assert logits is not None
        assert ref_logits is not None
        both = [(x[ROW, POSITION] / t).log_softmax(-1)[y] for x in (logits, ref_logits)]
        return (both[0] - both[1]).item()

    def _coefficient(self, found: WorldGradients, at: SmallWorld) -> float:
        """Of the score of the token whose reference is moved; by its own entry of the gradient."""
        y, t = at.rollout.tokens[ROW, POSITION], self.temperature
        assert at.rollout.logits is not None
        p = (at.rollout.logits[ROW, POSITION] / t).softmax(-1)[y]
        return (found.completion[ROW, POSITION, y] * t / (1 - p)).item()

    @cached_property
    def near(self) -> Curve:
        """The curve of small log-ratios, with equal rewards."""
        return self.curve()

    @cached_property
    def near_rewarded(self) -> Curve:
        """The same with unequal rewards."""
        return self.curve(rewarded=True)

    @cached_property
    def limits(self) -> tuple[CutPoint, ...]:
        """Where the KL term stops being what it is for small log-ratios, on either side; () if nowhere."""
        form = self.form
        if form is None or self.scaled_by:
            return ()

        def off(moves: tuple[float, ...]) -> tuple[Curve, torch.Tensor]:
            seen = self.curve(moves)
            # what else acts there may depend on the policy's log-prob: it is seen at a small log-ratio
            alone = self.curve(moves, both=True)
            wanted = self.expected(seen.delta) + alone.own - self.expected(alone.delta)
            # exp(-log-ratio), which cancels in K3 times a ratio, is known to the accuracy of float32
            rounding = 1e-6 * abs(form.weight) * (-seen.delta).clamp(min=0).exp()
            return seen, (wanted - seen.own).abs() > 1e-3 * (wanted.abs() + abs(form.weight)) + rounding

        limits = []
        for side in (-1.0, 1.0):
            moves = tuple(side * x for x in _FAR)
            seen, is_off = off(moves)
            if not is_off.any():
                continue
            k = int(is_off.nonzero()[0])
            inside, outside = (side * _FAR[k - 1] if k else 0.0), moves[k]
            last = seen.own[k].item(), seen.delta[k].item()
            for _ in range(_HALVINGS):
                middle = (inside + outside) / 2
                at, beyond = off((middle,))
                if beyond.item():
                    outside, last = middle, (at.own.item(), at.delta.item())
                else:
                    inside = middle
            limits.append(CutPoint(last[1], last[0]))
        return tuple(sorted(limits))

    def expected(self, delta: torch.Tensor) -> torch.Tensor:
        """The coefficient that the form has at a log-ratio, up to a constant in the reward."""
        form = self.form
        assert form is not None
        how = value if self.placement == "reward" else partial(slope, ratio=form.ratio)
        return form.weight * how(form.name, delta, exchanged=form.exchanged)

    @cached_property
    def placement(self) -> str:
        """Where the KL acts: "loss", "reward", "whole" (the gradient of a whole distribution) or ""."""
        if not self.reads_reference and not self._constant:
            return ""
        # what no reference changes, such as an entropy bonus, says nothing of the KL
        rest = self.elsewhere.completion if self.reads_reference else torch.zeros(())
        row = read_row((self.plain.completion - rest)[ROW, POSITION], self.policy_logits[ROW, POSITION])
        if row is not None and row.token < 0:
            return "whole"
        return "reward" if self._spreads(self.near) or self._spreads(self.near_rewarded) else "loss"

    @property
    def policy_logits(self) -> torch.Tensor:
        """Of the world, [answers, seq, live]."""
        logits = self.world().rollout.logits
        assert logits is not None
        return logits

    @cached_property
    def _constant(self) -> bool:
        """A gradient with equal rewards that no reference changes: that of K1 in the loss."""
        return bool(self.plain.completion.abs().max() > NOTHING)

    @staticmethod
    def _spreads(curve: Curve) -> bool:
        return bool(curve.elsewhere.max() > 1e-7)

    @cached_property
    def log_ratios(self) -> torch.Tensor:
        """Of policy and reference at the sampled tokens, [answers, seq]."""
        rollout, t = self.world().rollout, self.temperature
        assert rollout.ref_logits is not None
        pick = rollout.tokens.unsqueeze(-1)
        both = [(x / t).log_softmax(-1).gather(-1, pick) for x in (self.policy_logits, rollout.ref_logits)]
        return (both[0] - both[1]).squeeze(-1)

    def coefficients(self, seen: WorldGradients) -> torch.Tensor:
        """Of the sampled tokens' log-probs in the loss, [answers, seq]; of a gradient that scores them."""
        squares = self.scores.square().sum(-1)
        return (seen.completion * self.scores).sum(-1) / squares.clamp(min=NOTHING)

    def one_coefficient(self, seen: WorldGradients) -> bool:
        """Whether all tokens are scored with one coefficient, or one divided by the answer's length."""
        inside = self.world().rollout.completion_mask.bool()
        found = self.coefficients(seen)
        if not same(found.unsqueeze(-1) * self.scores, seen.completion, 1e-4):
            return False
        lengths = inside.sum(-1, keepdim=True)
        return any(same(x[inside], x[inside].mean(), 1e-4) for x in (found, found * lengths))

    @property
    def takes_reference(self) -> bool:
        """Whether the step is given a reference."""
        return self.step is not None and self.step.takes_reference

    @cached_property
    def scaled_by(self) -> str:
        """For a sentence: whether a deviation divides rewards and KL together."""
        if self.placement != "reward" or fit_change(self.near.delta, self.near.own) is not None:
            return ""
        form = self.form
        assert form is not None
        return f", {form.weight:.3g} of it for one of reward before advantages are shifted and scaled"

    @cached_property
    def divergence(self) -> tuple[str, float]:
        """The divergence whose gradient a whole distribution has, "" for none, and at which temperature."""
        ref_logits = self.world().rollout.ref_logits
        assert ref_logits is not None
        for t in dict.fromkeys((self.temperature, 1.0, *_TEMPERATURES)):
            both = [x[ROW, POSITION] / t for x in (self.policy_logits, ref_logits)]
            name = fit_divergence(self.plain.completion[ROW, POSITION], *both)
            if name:
                return name, t
        return "", self.temperature

    @cached_property
    def form(self) -> TermForm | None:
        """The estimator that the KL term of a token is."""
        if self.placement == "loss":
            return fit_slope(self.near.delta, self.near.own, self.near.loss)
        if self.placement == "reward":
            simple = fit_change(self.near.delta, self.near.own)
            lengths = self.world().rollout.completion_mask.sum(-1).long()
            found = self.coefficients(self.rewarded)
            return simple or fit_reward(found, self.log_ratios, REWARDS, lengths)
        return None
