"""Worlds small enough to enumerate: bandits and trees of prefixes, with exact expectations.

Every prefix has its own row of logits, so the policy is a table. Because all sequences are listed,
the expected value and the expected gradient of any loss are sums, not averages of samples. All of it
is float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kl_companion.rollout import Rollout

MAX_EVALUATIONS = 100_000
NEVER = -1e30  # log-prob of what is never sampled: finite, and its exponential is exactly 0


class Problem(NamedTuple):
    """An enumerated world, or a stack of worlds that list the same sequences (see `stack`).

    Attributes:
        logits: Policy, [rows, vocab] float64; one row per prefix. A stack has a leading axis [worlds].
        ref_logits: Reference, like ``logits``.
        behavior_logits: Sampling policy, like ``logits``; None means on-policy. A token that it never
            samples has -inf.
        sequences: Every sequence, [count, length] int64, padded with 0 after end-of-sequence.
        completion_mask: [count, length].
        rows: The prefix row that scores each token, [count, length] int64.
        rewards: [count], with a leading axis in a stack.
    """

    logits: torch.Tensor
    ref_logits: torch.Tensor
    behavior_logits: torch.Tensor | None
    sequences: torch.Tensor
    completion_mask: torch.Tensor
    rows: torch.Tensor
    rewards: torch.Tensor

    @property
    def sampled_from(self) -> torch.Tensor:
        """Logits of the policy that samples: ``behavior_logits``, or ``logits`` on-policy."""
        return self.logits if self.behavior_logits is None else self.behavior_logits

    def token_logp(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-prob of every listed token, [..., count, length], 0 outside the mask."""
        logp = logits.log_softmax(-1)[..., self.rows, self.sequences]
        return torch.where(self.completion_mask.bool(), logp, 0.0)

    def rollout(self, logits: torch.Tensor, which: torch.Tensor | None = None) -> Rollout:
        """The sequences ``which`` (all by default) as a batch, scored by the policy ``logits``.

        Sequences that are never sampled are listed too; their behavior log-prob is about -1e30. The
        worlds of a stack follow one another, [worlds * count, ...], and ``which`` is not for them.
        """
        behavior = logits.detach() if self.behavior_logits is None else self.behavior_logits
        every = torch.arange(len(self.sequences)) if which is None else which
        copies = math.prod(logits.shape[:-2])
        scored, ref_scored, behavior_scored = (
            scores[..., self.rows[every], :].flatten(0, -3)
            for scores in (logits, self.ref_logits, behavior.clamp(min=NEVER))
        )
        return Rollout.from_logits(
            self.sequences[every].repeat(copies, 1),
            self.completion_mask[every].repeat(copies, 1),
            scored,
            ref_scored,
            behavior_logits=behavior_scored,
            rewards=self.rewards[..., every].flatten(),
        )

    def probabilities(self, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Probability that each sequence is *sampled*, [..., count], detached.

        On-policy the sampling policy is ``logits`` (the problem's own by default).
        """
        policy = self.logits if logits is None else logits
        behavior = policy if self.behavior_logits is None else self.behavior_logits
        return self.token_logp(behavior.detach()).sum(-1).exp()


def stack(problems: Sequence[Problem]) -> Problem:
    """Several worlds as one `Problem` with a leading axis [worlds], for moments, samples and learning.

    Raises:
        ValueError: no world, a stack among them, or worlds that list other sequences than the first or
            differ in whether they are on-policy.
    """
    if not problems:
        raise ValueError("got no problem to stack, expected at least one")
    first = problems[0]
    for i, p in enumerate(problems):
        if p.logits.ndim != 2:
            raise ValueError(f"problem {i} is a stack of {len(p.logits)} worlds already, expected one world")
        same = p.sequences.shape == first.sequences.shape and all(
            torch.equal(getattr(p, n), getattr(first, n)) for n in ("sequences", "completion_mask", "rows")
        )
        if not same or (p.behavior_logits is None) != (first.behavior_logits is None):
            raise ValueError(
                f"problem {i} lists other sequences than problem 0, or differs in being on-policy; "
                "expected worlds of the same vocab, length, eos and off_policy"
            )
    return first._replace(
        logits=torch.stack([p.logits for p in problems]),
        ref_logits=torch.stack([p.ref_logits for p in problems]),
        behavior_logits=None
        if first.behavior_logits is None
        else torch.stack([p.behavior_logits for p in problems if p.behavior_logits is not None]),
        rewards=torch.stack([p.rewards for p in problems]),
    )


def truncate(problem: Problem, *, top_k: int | None = None, top_p: float | None = None) -> Problem:
    """The same world, sampled from its policy cut to the likeliest tokens of every row.

    Args:
        problem: The world; its own sampling policy is replaced.
        top_k: Keep the k likeliest tokens.
        top_p: Keep the smallest head whose probability is at least ``top_p``.

    Returns:
        A `Problem` whose ``behavior_logits`` are -inf outside the head.

    Raises:
        ValueError: not exactly one of the two, or out of range.
    """
    return problem._replace(behavior_logits=truncated(problem.logits, top_k=top_k, top_p=top_p))


def truncated(logits: torch.Tensor, *, top_k: int | None = None, top_p: float | None = None) -> torch.Tensor:
    """Logits [..., vocab] with -inf outside the head of every row; arguments and errors as `truncate`."""
    vocab = logits.shape[-1]
    if (top_k is None) == (top_p is None):
        raise ValueError(f"top_k={top_k}, top_p={top_p}: expected exactly one of them")
    if top_k is not None and not 1 <= top_k <= vocab:
        raise ValueError(f"top_k is {top_k}, expected 1 to {vocab}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}, expected more than 0 and at most 1")
    probability, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = probability.cumsum(-1) - probability
    kept = before < top_p if top_p is not None else torch.arange(vocab) < (top_k or vocab)
    head = torch.zeros_like(probability).scatter(-1, order, kept.to(probability.dtype).expand_as(probability))
    return logits.masked_fill(head == 0, -math.inf)


def bandit(vocab: int = 100, *, seed: int = 0, scale: float = 1.0, off_policy: bool = False) -> Problem:
    """One token. Logits of the reference are unit Gaussian; the policy adds ``scale`` times another.

    Rewards are unit Gaussian; off-policy, the sampling policy adds a third Gaussian to the policy.

    Raises:
        ValueError: fewer than two tokens, or a negative scale.

    Source: tang2025pitfalls, appendix C.
    """
    if not isinstance(vocab, int) or vocab < 2:
        raise ValueError(f"vocab is {vocab}, expected a whole number, at least 2")
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale is {scale}, expected 0 or more, and finite")
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(vocab, generator=generator, dtype=torch.float64)

    reference, shift, rewards, other = normal(), normal(), normal(), normal()
    policy = (reference + scale * shift).unsqueeze(0)
    return Problem(
        policy,
        reference.unsqueeze(0),
        policy + scale * other if off_policy else None,
        torch.arange(vocab).unsqueeze(-1),
        torch.ones(vocab, 1, dtype=torch.float64),
        torch.zeros(vocab, 1, dtype=torch.long),
        rewards,
    )


def prefix_tree(
    vocab: int = 3,
    length: int = 2,
    *,
    seed: int = 0,
    eos: bool = False,
    off_policy: bool = False,
    scale: float = 1.0,
) -> Problem:
    """All sequences of up to ``length`` tokens; with ``eos``, token 0 ends a sequence early.

    Logits differ between policy and reference by ``scale`` times numbers in [-1, 1], so that no
    log-ratio of a token is larger than ``2 * scale``. Off-policy, the sampling policy differs from the policy
    by half of that.

    Raises:
        ValueError: fewer than two tokens, a length below 1, a negative scale, or more sequences than
            can be enumerated.
    """
    if vocab < 2 or length < 1 or not 0 <= scale < math.inf:
        raise ValueError(
            f"vocab={vocab}, length={length}, scale={scale}: expected vocab of at least 2, "
            "length of at least 1, scale of 0 or more, and finite"
        )
    if vocab**length > MAX_EVALUATIONS:
        raise ValueError(f"{vocab}^{length} sequences, expected at most {MAX_EVALUATIONS} to enumerate")
    prefixes = [
        p for n in range(length) for p in itertools.product(range(vocab), repeat=n) if not (eos and 0 in p)
    ]
    row_of = {p: i for i, p in enumerate(prefixes)}
    ends = [_cut(s) if eos else s for s in itertools.product(range(vocab), repeat=length)]
    sequences = sorted(set(ends))
    tokens = torch.zeros(len(sequences), length, dtype=torch.long)
    rows, mask = torch.zeros_like(tokens), torch.zeros(len(sequences), length, dtype=torch.float64)
    for i, s in enumerate(sequences):
        for t, token in enumerate(s):
            tokens[i, t], rows[i, t], mask[i, t] = token, row_of[s[:t]], 1.0
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return 2 * torch.rand(len(prefixes), vocab, generator=generator, dtype=torch.float64) - 1

    reference = torch.randn(len(prefixes), vocab, generator=generator, dtype=torch.float64)
    policy = reference + scale * uniform()
    behavior = policy + scale / 2 * uniform()
    rewards = torch.randn(len(sequences), generator=generator, dtype=torch.float64)
    return Problem(policy, reference, behavior if off_policy else None, tokens, mask, rows, rewards)


def _cut(sequence: tuple[int, ...]) -> tuple[int, ...]:
    return sequence[: sequence.index(0) + 1] if 0 in sequence else sequence
