"""Inputs at and beyond the edges of what a public function takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from kl_companion import Rollout, bandit, prefix_tree
from kl_companion.tabular import Problem
from tests.numerics.bounds import DTYPES, log_ratios, logits

EDGES = [0.0, -0.0, -1.0, 1.0, 1e-300, 1e300, math.inf, -math.inf, math.nan]


class Draw:
    """One example: a source of numbers, with names for the kinds that the functions take."""

    def __init__(self, data: Any) -> None:
        self.of: Callable[[Any], Any] = data.draw
        self.leaves: list[torch.Tensor] = []
        self.dtype: torch.dtype = self.of(st.sampled_from(DTYPES))

    def leaf(self, x: torch.Tensor) -> torch.Tensor:
        """The same numbers as a leaf that takes a gradient, remembered."""
        self.leaves.append(x.detach().clone().requires_grad_())
        return self.leaves[-1]

    def one(self, *choices: Any) -> Any:
        """One of these."""
        return self.of(st.sampled_from(choices))

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high."""
        return int(self.of(st.integers(low, high)))

    def scalar(self) -> float:
        """Any positive size, and what no beta, rate or bound should be."""
        return float(self.of(st.one_of(st.floats(-8, 8).map(lambda x: 10.0**x), st.sampled_from(EDGES))))

    def share(self) -> float:
        """A number from 0 to 1, and what is none."""
        return float(self.of(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, -0.1, 1.1, math.nan]))))

    def tensor(self, *shape: int, low: float = -1e4, high: float = 1e4) -> torch.Tensor:
        """Finite numbers."""
        some = st.one_of(st.floats(low, high), st.sampled_from([0.0, low, high]).filter(math.isfinite))
        size = math.prod(shape)
        values = self.of(st.lists(some, min_size=size, max_size=size))
        return torch.tensor(values, dtype=self.dtype).reshape(shape)

    def rows(self, *lead: int, vocab: int) -> torch.Tensor:
        """Logits [..., vocab], some of them -inf."""
        values = [self.of(logits(vocab)) for _ in range(math.prod(lead))]
        return torch.tensor(values, dtype=self.dtype).reshape(*lead, vocab)

    def log_probs(self, *shape: int) -> torch.Tensor:
        """Log-probs of sampled tokens, from -1e4 to 0."""
        some = st.one_of(st.floats(-1e4, 0), st.floats(-5, 0))
        size = math.prod(shape)
        return torch.tensor(self.of(st.lists(some, min_size=size, max_size=size)), dtype=self.dtype).reshape(
            shape
        )

    def near(self, x: torch.Tensor) -> torch.Tensor:
        """Log-probs that differ from these by ratios of every size."""
        moved = torch.tensor([self.of(log_ratios()) for _ in range(x.numel())], dtype=x.dtype)
        return (x + moved.reshape(x.shape)).clamp(max=0.0)

    def groups(self, batch: int) -> torch.Tensor:
        """Which prompt each sequence answers."""
        return torch.tensor([self.whole(0, 1) for _ in range(batch)])

    def rollout(self, *, rewards: bool = True) -> Rollout:
        """A batch of up to three sequences of up to three tokens; the policy's log-probs carry a gradient."""
        batch, seq = self.whole(1, 3), self.whole(1, 3)
        mask = torch.zeros(batch, seq)
        for row in mask:
            row[: self.whole(1, seq)] = 1
        logp = self.log_probs(batch, seq)
        return Rollout(
            tokens=torch.zeros(batch, seq, dtype=torch.int64),
            completion_mask=mask,
            logp=self.leaf(logp),
            ref_logp=self.near(logp),
            behavior_logp=self.near(logp) if self.one(True, False) else None,
            rewards=self.tensor(batch) if rewards else None,
            prompt_index=self.groups(batch) if self.one(True, False) else None,
        )

    def problem(self, *, rewards: bool = True) -> Problem:
        """A bandit of up to three arms, or a tree of two tokens, with extreme or masked logits."""
        vocab = self.whole(2, 3)
        world = bandit(vocab) if self.one(True, False) else prefix_tree(vocab, 2)
        shape = world.logits.shape
        self.dtype = torch.float64
        policy = self.rows(*shape[:-1], vocab=vocab)
        other = self.rows(*shape[:-1], vocab=vocab)
        masked = torch.where(policy.isneginf(), policy, other)
        masked = torch.where(masked.isneginf().all(-1, keepdim=True), policy, masked)
        found = world._replace(logits=policy, ref_logits=self.one(other, masked))
        return found._replace(rewards=self.tensor(*world.rewards.shape)) if rewards else found
