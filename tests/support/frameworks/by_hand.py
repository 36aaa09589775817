"""Two tokens of a vocabulary of two, whose numbers can be checked with a pocket calculator.

First token: policy 0.5, reference 0.25, sampler 0.4. Second: 0.2, 0.8, 0.25. So pi/mu is 1.25 and 0.8.
"""

import torch

from kl_companion import Rollout

POLICY, REFERENCE, SAMPLER = (0.5, 0.2), (0.25, 0.8), (0.4, 0.25)


def rollout(dtype=torch.float64, off_policy=True, policy=POLICY, reference=REFERENCE, sampler=SAMPLER):
    def logits(probabilities):
        p = torch.tensor([probabilities], dtype=dtype)
        return torch.stack([p.log(), (1 - p).log()], -1)

    return Rollout.from_logits(
        torch.zeros(1, len(policy), dtype=torch.long),
        torch.ones(1, len(policy), dtype=dtype),
        logits(policy).requires_grad_(),
        logits(reference),
        behavior_logits=logits(sampler) if off_policy else None,
    )
