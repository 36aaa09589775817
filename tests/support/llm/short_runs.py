"""Short training runs from a copy of a small model."""

import torch

from kl_companion.llm.models import frozen_copy
from kl_companion.llm.settings import Settings
from kl_companion.llm.training import train

FEW = Settings(steps=3, prompts=2, group=2, seed=1, beta=0.3)


def copy(lm):
    own = frozen_copy(lm)
    own.model.requires_grad_(True)
    return own


def weights(lm):
    return torch.cat([p.detach().cpu().flatten() for p in lm.model.parameters()])


def trained(tiny, task, settings, **options):
    lm = copy(tiny)
    history = train(lm, task, settings, **options)
    return weights(lm), history
