"""Two sequences small enough to compute every loss by hand."""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.rollout import Rollout
from tests.support import rollouts
from tests.support.rollouts import NAN, doubles

MASK = torch.tensor([[0, 1, 1], [1, 1, 1]])
LOGP = [[NAN, -1.0, -2.0], [-0.5, -0.25, -3.0]]
REF = [[NAN, -1.5, -1.0], [-0.5, -1.25, -2.0]]
MU = [[NAN, -0.8, -2.2], [-0.5, -0.75, -2.5]]
# log pi - log pi_ref: (1/2, -1) and (0, 1, -1); log pi - log mu: (-1/5, 1/5) and (0, 1/2, -1/2)


def rollout(**changes: Any) -> Rollout:
    """The two sequences; the first begins with a token of the prompt."""
    fields = {
        "logp": doubles(*LOGP).requires_grad_(),
        "ref_logp": doubles(*REF),
        "behavior_logp": doubles(*MU),
    }
    return rollouts.rollout(mask=MASK, **{**fields, **changes})


def slope(loss: torch.Tensor, ro: Rollout) -> list[float]:
    """Gradient with respect to log pi, completion tokens only."""
    (gradient,) = torch.autograd.grad(loss, ro.logp)
    values: list[float] = gradient[MASK.bool()].tolist()
    return values
