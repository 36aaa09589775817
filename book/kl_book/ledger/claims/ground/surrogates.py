"""Objectives of whole answers and of tokens with importance weights, and the order of what separates them.

Every world here has three policies: the target (``logits``), an older one in the training engine
(``ref_logits``), and the one in the inference engine that samples (``behavior_logits``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from kl_book.ledger.claims.ground import errors, sums, updates, worlds
from kl_book.ledger.claims.ground.sequences import ratios
from kl_book.ledger.claims.ground.world import Enumeration
from kl_companion.tabular import Problem, prefix_tree

LOW, HIGH = 0.2, 0.27  # margins of the clip in zheng2025stabilizing, section 4.2
SMALL = 2.0**-9  # share of the way from the sampler, at which an order is measured
SLACK = 0.05  # of a measured exponent


@cache
def _towards(problem: Problem, share: float) -> Problem:
    """The world with its policy on the line between sampler (0) and policy (1), in logits."""
    start = problem.sampled_from
    return problem._replace(logits=start + share * (problem.logits - start))


class Engines(Enumeration):
    """A world whose reference is the older policy of the training engine, and its sampler another engine.

    A surrogate is a function of such a world and of the policy's logits.
    """

    def replace(self, **changes: Any) -> Engines:
        """The same world with other logits, reference, sampler or rewards."""
        return Engines(self.problem._replace(**changes))

    @property
    def mask(self) -> torch.Tensor:
        """1 on the tokens of every answer, [count, length]."""
        return self.problem.completion_mask

    @property
    def lengths(self) -> torch.Tensor:
        """Number of tokens of every answer, [count]."""
        return self.mask.sum(-1)

    @property
    def even(self) -> bool:
        """Whether all answers have one length."""
        return len(self.lengths.unique()) == 1

    @property
    def ratio(self) -> torch.Tensor:
        """Policy over sampler of every token, 1 outside the mask, [count, length]."""
        return ratios(self.problem)

    @property
    def older_ratio(self) -> torch.Tensor:
        """Older policy over sampler of every token, 1 outside the mask, [count, length]."""
        return (self.t.ref_logp - self.problem.token_logp(self.problem.sampled_from)).exp()

    @property
    def advantage(self) -> torch.Tensor:
        """R minus its mean under the sampler, [count]."""
        return self.R - self.E(self.R)

    @property
    def with_advantages(self) -> Engines:
        """The same world with the advantages as rewards."""
        return self.replace(rewards=self.advantage)

    @property
    def open(self) -> torch.Tensor:
        """M_t: 0 where a ratio has left the margins in the direction of its advantage, [count, length]."""
        ratio, a = self.t.log_ratio.exp(), self.advantage[:, None]
        return (~((a > 0) & (ratio > 1 + HIGH) | (a < 0) & (ratio < 1 - LOW))).double()

    @property
    def expected_reward(self) -> float:
        """Exact E[R] under the policy."""
        return sums.exact(lambda p, q: p.exp() @ self.R, self.problem)[0]

    @property
    def token_terms(self) -> torch.Tensor:
        """What eq (4) averages: sum over tokens of ratio, reward and score, [count, rows, vocab]."""
        return self.tokens(self.ratio * updates.every_token(self.problem, self.R))

    def ratios(self, theta: torch.Tensor) -> torch.Tensor:
        """`ratio` at other logits, differentiable, [count, length]."""
        return (self.problem.token_logp(theta) - self.problem.token_logp(self.problem.sampled_from)).exp()

    def at(self, surrogate: Surrogate) -> float:
        """A surrogate at the policy."""
        return float(surrogate(self, self.problem.logits))

    def gradient(self, surrogate: Surrogate) -> torch.Tensor:
        """Gradient of a surrogate in the policy's logits, by automatic differentiation, [rows, vocab]."""
        return sums.slopes(lambda theta: surrogate(self, theta), self.problem.logits)

    def gap(self, surrogate: Surrogate) -> float:
        """Distance of a surrogate's gradient from that of the expected reward."""
        return float((self.gradient(surrogate) - self.d_reward).norm())

    def relative_gap(self, surrogate: Surrogate) -> float:
        """The same, relative to the gradient of the expected reward."""
        return self.gap(surrogate) / float(self.d_reward.norm())

    def towards(self, share: float) -> Engines:
        """The world with its policy on the line between sampler (0) and policy (1), in logits."""
        return Engines(_towards(self.problem, share))

    def order_of_gradient(self, surrogate: Surrogate) -> float:
        """Power of the distance from the sampler with which `gap` shrinks."""
        return exponent(lambda h: self.towards(h).gap(surrogate))

    def order_of_value(self, surrogate: Surrogate) -> float:
        """Power with which the difference to the expected reward shrinks, beyond that at the sampler."""

        def difference(share: float) -> float:
            there = self.towards(share)
            return there.at(surrogate) - there.expected_reward

        return exponent(lambda h: abs(difference(h) - difference(0.0)))

    def at_the_rollout(self) -> Engines:
        """The target is the older policy; the sampler still differs from it."""
        return self.replace(logits=self.problem.ref_logits)

    def one_engine(self) -> Engines:
        """All three policies equal the sampler."""
        return self.replace(ref_logits=self.problem.sampled_from).at_the_rollout()


Surrogate = Callable[[Engines, torch.Tensor], torch.Tensor]


@cache
def sampled_trees() -> tuple[Engines, ...]:
    """Trees of two to four tokens that another policy samples; the last two have answers of many lengths."""
    return tuple(
        Engines(prefix_tree(vocab, length, seed=seed, off_policy=True, eos=eos, scale=2.0))
        for vocab, length, seed, eos in (
            (3, 2, 5, False),
            (2, 3, 11, False),
            (3, 3, 6, True),
            (2, 4, 7, True),
        )
    )


def sampled_by_the_reference() -> list[Engines]:
    """The trees of the list for hedges, sampled by their reference."""
    return [Engines(p._replace(behavior_logits=p.ref_logits)) for p in worlds.hedge_trees()]


def of_answers(w: Engines, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[ratio of the whole answer times R], the objective with weights of answers."""
    return w.E(w.ratios(theta).prod(-1) * w.R)


def of_tokens(w: Engines, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[sum over tokens of their ratio times R], the objective with weights of tokens."""
    return w.E((w.ratios(theta) * w.mask).sum(-1) * w.R)


def without_weights(w: Engines, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[sum over tokens of their log-prob times R]: no weight at all."""
    return w.E(w.problem.token_logp(theta).sum(-1) * w.R)


def per_length(w: Engines, theta: torch.Tensor) -> torch.Tensor:
    """`of_tokens` with the sum of every answer divided by its number of tokens."""
    return w.E((w.ratios(theta) * w.mask).sum(-1) / w.lengths * w.R)


def exponent(size: Callable[[float], float], at: float = SMALL) -> float:
    """Power of the step with which a remainder shrinks: log2 of its size at a step over that at half."""
    return math.log2(size(at) / size(at / 2))


def not_of_order(power: float, order: float) -> float:
    """Error of "shrinks with this power"."""
    return errors.violation(abs(power - order) - SLACK)


def _with_constants(coefficient: Surrogate) -> Surrogate:
    """E_mu[sum over tokens of a coefficient [count, length], held fixed, times the log-prob]."""
    return lambda w, theta: w.E((coefficient(w, theta).detach() * w.problem.token_logp(theta)).sum(-1))


# MiniRL, eq (7); with M_t = 1; section 4.3, where the weight is that of the older policy, with length
# normalization, and without the weight between the engines
minirl = _with_constants(lambda w, theta: w.open * w.ratios(theta) * w.advantage[:, None])
without_the_mask = _with_constants(lambda w, theta: w.ratios(theta) * w.advantage[:, None])
on_policy = _with_constants(lambda w, theta: w.older_ratio * w.advantage[:, None])
divided_by_length = _with_constants(lambda w, theta: w.older_ratio * (w.advantage / w.lengths)[:, None])
without_correction = _with_constants(lambda w, theta: w.advantage[:, None].expand_as(w.mask))
