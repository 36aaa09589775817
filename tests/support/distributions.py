"""Rows of log-probs for tests: typed in, or drawn from a seed."""

import torch


def logs(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


def reference(seed, vocab):
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(vocab, generator=generator, dtype=torch.float64)).log_softmax(-1)
