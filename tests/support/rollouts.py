"""The small batch that the tests of rollouts share."""

import torch

from kl_companion.rollout import Rollout

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])


def doubles(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def sampled(**changes):
    """Two sequences, of two and of four tokens; NaN wherever the mask is 0."""
    fields = {
        "tokens": torch.zeros(2, 4, dtype=torch.long),
        "completion_mask": MASK,
        "logp": doubles([NAN, -1.0, -2.0, NAN], [-0.5, -0.25, -3.0, -1.5]),
        "ref_logp": doubles([NAN, -1.5, -1.0, NAN], [-0.5, -1.25, -2.0, -1.0]),
        "behavior_logp": doubles([NAN, -0.9, -2.3, NAN], [-0.7, -0.25, -2.5, -1.6]),
    }
    return Rollout(**{**fields, **changes})
