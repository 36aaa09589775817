"""Good input, small: every case spoils one part of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem, bandit, prefix_tree

BATCH, SEQ, VOCAB = 2, 3, 5
TOKENS = torch.tensor([[0, 1, 2], [3, 4, 0]])
MASK = torch.ones(BATCH, SEQ)
LOGITS = torch.arange(BATCH * SEQ * VOCAB, dtype=torch.float32).reshape(BATCH, SEQ, VOCAB).sin()
REF_LOGITS = LOGITS.flip(-1)
ALL, REF_ALL = LOGITS.log_softmax(-1), REF_LOGITS.log_softmax(-1)
LOGP, REF_LOGP = (x.gather(-1, TOKENS.unsqueeze(-1)).squeeze(-1) for x in (ALL, REF_ALL))
REWARDS, PROMPTS = torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
HEAD = torch.tensor([0, 1])
HIDDEN, WEIGHT = LOGITS, torch.eye(VOCAB)
DISJOINT = torch.tensor([0.5, 0.5, 0.0, 0.0]).log(), torch.tensor([0.0, 0.0, 0.5, 0.5]).log()
FISHER = torch.eye(2)


def rollout(**changes: Any) -> Rollout:
    """Two completions of three tokens with rewards and one prompt, without whole distributions."""
    good: dict[str, Any] = {
        "tokens": TOKENS,
        "completion_mask": MASK,
        "logp": LOGP,
        "ref_logp": REF_LOGP,
        "rewards": REWARDS,
        "prompt_index": PROMPTS,
    }
    return Rollout(**{**good, **changes})


def with_logits(**changes: Any) -> Rollout:
    """The same with whole distributions."""
    return rollout(logits=LOGITS, ref_logits=REF_LOGITS, **changes)


@cache
def world(*, off_policy: bool = False) -> Problem:
    """A bandit of three tokens."""
    return bandit(3, off_policy=off_policy)


@cache
def tree() -> Problem:
    """Nine sequences of two tokens."""
    return prefix_tree(3, 2)
