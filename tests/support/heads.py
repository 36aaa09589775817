"""Small worlds for top-k estimators, and an estimate at every token of one."""

import torch

from kl_companion.estimators.top_k import top_k_f_divergence


def world(seed, vocab):
    """Logits of policy, reference and sampler."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, vocab, generator=generator, dtype=torch.float64)


def every_sample(name, form, theta, ref, *, mu=None, weight=None, **choice):
    """The estimate at every token of the vocabulary, [vocab]; one row per token."""
    vocab = len(theta)

    def rows(x):
        return x.log_softmax(-1).expand(vocab, -1)

    return top_k_f_divergence(
        name,
        rows(theta),
        rows(ref),
        torch.arange(vocab),
        form=form,
        tail_weight=weight,
        behavior_logp_all=None if mu is None else rows(mu),
        **choice,
    )
