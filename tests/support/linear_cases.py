"""Inputs of the functions from hidden states, and how near their results have to be."""

import torch

from tests.oracles import fused as oracle
from tests.support.fused_cases import noise

# Relative to the norm of each result: a matrix product in float32 knows a logit to 1e-6 only, one in bfloat16
# rounds it to 2^-9.
CLOSE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2}
BOTH = ("hidden", "weight")


def inputs(seed, lead=(5,), width=6, vocab=40, dtype=torch.float64, bias=False):
    """hidden [*lead, width], weight [vocab, width] and bias [vocab] of policy and reference."""
    made = {
        "hidden": noise(seed, *lead, width),
        "weight": noise(seed + 1, vocab, width) / 2,
        "ref_hidden": noise(seed + 3, *lead, width),
        "ref_weight": noise(seed + 4, vocab, width) / 2,
    }
    if bias:
        made |= {"bias": noise(seed + 2, vocab), "ref_bias": noise(seed + 5, vocab)}
    return {name: x.to(dtype) for name, x in made.items()}


def per_token(seed, lead, dtype=torch.float64):
    """Weights [*lead] of the loss, and tokens [*lead]."""
    return noise(seed + 7, *lead, 1).squeeze(-1).to(torch.float32 if dtype != torch.float64 else dtype)


def leaves(given_inputs, names):
    return {n: given_inputs[n].detach().clone().requires_grad_() for n in names if n in given_inputs}


def far(got, want):
    """Distance relative to the norm of what is wanted."""
    assert got.shape == want.shape
    if not want.numel():
        return 0.0
    return float((got.detach().double() - want.detach()).norm() / want.detach().norm().clamp(min=1e-12))


def compare(value, value_of_oracle, trained, exact, weights, dtype, scale=1.0):
    """Values and the gradients of every trained leaf."""
    tolerance = CLOSE[dtype]
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert far(value, value_of_oracle) <= tolerance
    (scale * (weights * value).sum()).backward()
    wanted = oracle.gradients(value_of_oracle, [exact[n] for n in trained], scale * weights)
    for (name, leaf), want in zip(trained.items(), wanted, strict=True):
        assert leaf.grad.dtype == dtype, name
        assert far(leaf.grad, want) <= tolerance, (name, far(leaf.grad, want))


def exact_logits(exact, who=""):
    return oracle.linear(exact[f"{who}hidden"], exact[f"{who}weight"], exact.get(f"{who}bias"))
