"""The monitor on a model of 135 million parameters: its numbers are those of float64."""

from __future__ import annotations

import pytest
import torch

from kl_book.lab.variants import rounded
from kl_companion.llm.generation import generate
from kl_companion.llm.models import load_model
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.tasks import make_task
from kl_companion.monitor import KLMonitor


@pytest.mark.real
def test_the_numbers_are_those_of_float64() -> None:
    lm = load_model("smollm2")
    reference = rounded(lm)
    task = make_task("arithmetic", levels=[1, 2], out_levels=[], shots=1)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        samples = generate(lm, task, task.draw(2, draw), n=2, temperature=1.0, generator=draw)
        logits = completion_logits(lm.model, samples)
        ref_logits = completion_logits(reference.model, samples)
    seen = KLMonitor(estimator="k3").observe(logits, ref_logits, samples.tokens, samples.completion_mask)

    inside = samples.completion_mask.bool()
    p, q = (x[inside].double().log_softmax(-1) for x in (logits, ref_logits))
    ratio = p - q
    sampled = ratio.gather(-1, samples.tokens[inside].unsqueeze(-1)).squeeze(-1)
    kl = (p.exp() * ratio).sum(-1)
    k3 = (-ratio).exp() - 1 + ratio
    spread = (p.exp() * k3**2).sum(-1) - (p.exp() * k3).sum(-1) ** 2
    k1_spread = (p.exp() * ratio**2).sum(-1) - kl**2
    count = int(inside.sum())
    assert seen.tokens == count
    assert seen.kl == pytest.approx(kl.mean().item(), rel=1e-9)
    assert seen.forward_kl == pytest.approx((q.exp() * -ratio).sum(-1).mean().item(), rel=1e-9)
    assert seen.entropy == pytest.approx(-(p.exp() * p).sum(-1).mean().item(), rel=1e-9)
    assert seen.k1_error == pytest.approx((k1_spread.sum().sqrt() / count).item(), rel=1e-6)
    assert seen.k3_error == pytest.approx((spread.sum().sqrt() / count).item(), rel=1e-6)
    assert seen.largest_log_ratio == pytest.approx(sampled.abs().max().item(), rel=1e-6)
    assert 1e-4 < seen.kl < 1e-1
