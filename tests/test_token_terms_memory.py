"""Terms by the kernels: beside the logits their gradient and little scratch, whatever the mask leaves out."""

from __future__ import annotations

import pytest
import torch

from kl_companion.kernels import blocks, compiling
from kl_companion.kl_term import KLTerm
from kl_companion.losses import term_loss
from kl_companion.rollout import Rollout
from kl_companion.token_terms import kernel_estimates, token_terms
from tests.support.allocations import Allocations

BATCH, SEQ, VOCAB = 4, 12, 5000
MASKS = {
    "all": torch.ones(BATCH, SEQ, dtype=torch.int64),
    "padding": (torch.arange(SEQ) < torch.arange(5, 5 + BATCH).unsqueeze(-1)).long(),
    "tools": torch.arange(BATCH * SEQ).view(BATCH, SEQ) % 3 % 2,
}
TERMS = {
    "exact_kl": KLTerm("exact_kl"),
    "exact_forward_kl": KLTerm("exact_forward_kl"),
    "jensen_shannon": KLTerm("f_divergence(jensen_shannon)"),
    "top_k": KLTerm("top_k_reverse_kl(4)", importance=None),
    "top_k, forward": KLTerm("top_k_forward_kl(4)", importance=None),
    "top_k, weighted": KLTerm("top_k_f_divergence(jensen_shannon, 4)"),
    "charged": KLTerm("exact_kl", "score", credit=0.5),
}


def rollout(mask, dtype=torch.float32, spoiled=False):
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(BATCH, SEQ, VOCAB, generator=draw, dtype=dtype) for _ in range(2))
    tokens = torch.randint(VOCAB, (BATCH, SEQ), generator=draw)
    logp, ref_logp = (t.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) for t in (x, y))
    if spoiled:
        outside = mask == 0
        for t in (x, y, logp, ref_logp):
            t[outside] = float("nan")
        tokens[outside] = -100
    given = {"logits": x.requires_grad_(), "ref_logits": y}
    return Rollout(tokens, mask, logp.requires_grad_(), ref_logp, **given)


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("name", list(TERMS))
def test_peak_of_memory(name, mask, monkeypatch):
    """Logits of 1 MB: the gradient is as large, and everything else together less than a third of it."""
    monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", 4 * VOCAB)
    monkeypatch.setattr(compiling, "_PART", 2048)
    made, term = rollout(MASKS[mask]), TERMS[name]
    losses = {
        "terms": lambda: token_terms(term, made).sum(),
        "loss": lambda: term_loss(made, term, beta=0.1, how="token_mean", estimate=kernel_estimates),
    }
    for kind, loss in losses.items():
        with Allocations() as seen:
            loss().backward()
        assert seen.peak <= 1.3 * made.logits.nbytes, (kind, seen.peak / made.logits.nbytes)
        made.logits.grad = None
