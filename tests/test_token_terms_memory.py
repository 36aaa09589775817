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
from tests.support.rollouts import drawn

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


def rollout(mask):
    """A batch in float32 without a sampler, whose log-probs and logits take a gradient."""
    given = drawn(mask, VOCAB, torch.float32)
    leaves = {x: given[x].requires_grad_() for x in ("logp", "logits")}
    return Rollout(
        given["tokens"], mask, ref_logp=given["ref_logp"], ref_logits=given["ref_logits"], **leaves
    )


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
