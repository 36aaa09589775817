"""Compiled callers of the fused functions give what plain ones give; run as a program, by test_fused_modes.

In a process of its own, because a compiler that traces a function would trace pytest's checker of types.
"""

import torch

from kl_companion.kernels.fused import (
    fused_f_divergence,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
)
from kl_companion.kernels.linear import linear_kl, linear_logp

ROWS, WIDTH, VOCAB = 5, 6, 40
DRAW = torch.Generator().manual_seed(1)
X, Y = (torch.randn(ROWS, VOCAB, generator=DRAW) for _ in range(2))
HIDDEN, REF_HIDDEN = (torch.randn(ROWS, WIDTH, generator=DRAW) for _ in range(2))
WEIGHT, REF_WEIGHT = (torch.randn(VOCAB, WIDTH, generator=DRAW) for _ in range(2))
TOKENS = torch.tensor([3, 0, 5, 2, 9])
KNOWN = torch.tensor([0.5, -1.0, 0.0, 2.0, 1.0])
TEACHER = {"ref_hidden": REF_HIDDEN, "ref_weight": REF_WEIGHT}
CALLERS = {
    "kl": (X, lambda x: fused_kl(x * 2.0, Y, temperature=0.7)),
    "kl, fused": (X, lambda x: fused_kl(x * 2.0, Y, weights=KNOWN, inplace=True)),
    "pearson": (X, lambda x: fused_f_divergence("pearson", x, Y)),
    "reference": (X, lambda y: fused_f_divergence("jensen_shannon", Y, y * 1.5)),
    "log-probs": (X, lambda x: fused_logp(x / 2, TOKENS)),
    "entropy": (X, lambda x: sum(fused_logp_and_entropy(x / 2, TOKENS))),
    "linear kl": (HIDDEN, lambda h: linear_kl(h * 2, WEIGHT, **TEACHER)),
    "linear kl, weight": (WEIGHT, lambda w: linear_kl(HIDDEN, w * 2, **TEACHER)),
    "linear log-probs": (HIDDEN, lambda h: linear_logp(h * 2, WEIGHT, TOKENS)),
}


def step(caller, at):
    """Loss and gradient of one step."""
    leaf = at.clone().requires_grad_()
    loss = caller(leaf)
    return loss.detach(), *torch.autograd.grad(loss, leaf)


def main():
    """Compare every caller; raises where one differs."""
    for name, (at, function) in CALLERS.items():

        def loss(a, function=function):
            return (KNOWN * function(a)).sum() + 0.5

        want = step(loss, at)
        # one graph: the functions are single operators to the compiler
        got = step(torch.compile(loss, backend="aot_eager", fullgraph=True), at)
        print(name, flush=True)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
