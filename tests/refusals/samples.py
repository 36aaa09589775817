"""Good input, small: every case spoils one part of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kl_companion.auditing import audit
from kl_companion.losses import kl_loss
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
DISJOINT = torch.tensor([0.5, 0.5, 0.0, 0.0]).log(), torch.tensor([0.0, 0.0, 0.5, 0.5]).log()


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


def audited(loss: Any, **options: Any) -> object:
    return audit(loss, off_policy=False, scale=1.0, **options)


def no_scalar(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss of the wrong shape."""
    return (logp - ref_logp).sum(0)


def no_tensor(logp: torch.Tensor, ref_logp: torch.Tensor) -> float:
    """A loss that left the graph."""
    return (logp - ref_logp).sum().item()


def detached(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss that detaches everything."""
    return (logp - ref_logp).detach()


def constant(rollout: Any) -> torch.Tensor:
    """A loss that ignores its argument."""
    return torch.zeros(())


def not_a_number(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss that is NaN."""
    return (logp - ref_logp).abs().neg().sqrt()


def unread(logp: torch.Tensor, reference_x: torch.Tensor) -> torch.Tensor:
    """A loss with a parameter that does not say which quantity it is."""
    return logp - reference_x


def twice(logp: torch.Tensor, log_probs: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss with two parameters of one meaning."""
    return logp + log_probs - ref_logp


class Unmade:
    """A class that wants what has no default."""

    def __init__(self, size: int) -> None:
        self.weight = torch.ones(size)

    def __call__(self, logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
        """A loss that is never reached."""
        return logp - ref_logp


def loss(rollout: Any) -> torch.Tensor:
    return kl_loss(rollout)
