"""Compiled callers of the fused functions give what plain ones give; run as a program, by test_fused_modes.

In a process of its own, because a compiler that traces a function would trace pytest's checker of types.
`python -m tests.support.fused_compiled NAME` runs one caller only: the first use of the package, then.
"""

import sys

import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from kl_companion.divergences import compiled as functions_of_divergences
from kl_companion.kernels.fused import (
    fused_f_divergence,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
    fused_top_k_f_divergence,
)
from kl_companion.kernels.linear import (
    linear_f_divergence,
    linear_kl,
    linear_logp,
    linear_logp_and_entropy,
    linear_top_k_f_divergence,
)

ROWS, WIDTH, VOCAB = 5, 6, 40
DRAW = torch.Generator().manual_seed(1)
X, Y = (torch.randn(ROWS, VOCAB, generator=DRAW) for _ in range(2))
HIDDEN, REF_HIDDEN = (torch.randn(ROWS, WIDTH, generator=DRAW) for _ in range(2))
WEIGHT, REF_WEIGHT = (torch.randn(VOCAB, WIDTH, generator=DRAW) for _ in range(2))
TOKENS = torch.tensor([3, 0, 5, 2, 9])
KNOWN = torch.tensor([0.5, -1.0, 0.0, 2.0, 1.0])
TEACHER = {"ref_hidden": REF_HIDDEN, "ref_weight": REF_WEIGHT}
CALLERS = {  # what no caller below has
    "kl, fused": (X, lambda x: fused_kl(x * 2.0, Y, weights=KNOWN, inplace=True)),
    "reference": (X, lambda y: fused_f_divergence("jensen_shannon", Y, y * 1.5)),
    "linear kl, weight": (WEIGHT, lambda w: linear_kl(HIDDEN, w * 2, **TEACHER)),
}


LENGTHS = (7, 11, 17, 8)  # a form for each would be four, and none is another size here
# callers that do not ask for dynamic=True either: a graph of the first length and one of any
BY_DEFAULT = {"kl", "top-k", "linear, masked"}
# losses of hidden states, those of the reference, and ids, whose length changes from call to call
OF_ANY_LENGTH = {
    "kl": lambda h, r, ids: fused_kl(h @ WEIGHT.T, r @ REF_WEIGHT.T),
    "power divergence": lambda h, r, ids: fused_f_divergence(
        "power_divergence(1.5)", h @ WEIGHT.T, r @ REF_WEIGHT.T
    ),
    "log-probs": lambda h, r, ids: fused_logp(h @ WEIGHT.T, ids),
    "entropy": lambda h, r, ids: sum(fused_logp_and_entropy(h @ WEIGHT.T, ids)),
    "linear kl": lambda h, r, ids: linear_kl(h, WEIGHT, ref_hidden=r, ref_weight=REF_WEIGHT),
    "linear jensen-shannon": lambda h, r, ids: linear_f_divergence(
        "jensen_shannon", h, WEIGHT, ref_logits=(r @ REF_WEIGHT.T), soft_cap=9.0
    ),
    "linear log-probs": lambda h, r, ids: linear_logp(h, WEIGHT, ids),
    "linear entropy": lambda h, r, ids: sum(linear_logp_and_entropy(h, WEIGHT, ids)),
    "top-k": lambda h, r, ids: fused_top_k_f_divergence("forward_kl", h @ WEIGHT.T, ids, **shipped(r, ids)),
    "linear top-k": lambda h, r, ids: linear_top_k_f_divergence(
        "reverse_kl", h, WEIGHT, ids, **shipped(r, ids)
    ),
    "masked": lambda h, r, ids: fused_kl(h @ WEIGHT.T, r @ REF_WEIGHT.T, mask=ids > 5),
    "linear, masked": lambda h, r, ids: linear_kl(
        h, WEIGHT, ref_hidden=r, ref_weight=REF_WEIGHT, mask=ids > 5, ref_temperature=0.7, logit_scale=0.5
    ),
}


def shipped(ref_hidden, ids):
    """What a teacher ships of its four likeliest tokens and of the sampled one, with a mask."""
    logp_all = (ref_hidden @ REF_WEIGHT.T).log_softmax(-1)
    logp, indices = logp_all.topk(4)
    sampled = logp_all.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return {"indices": indices, "ref_logp_head": logp, "ref_logp": sampled, "mask": ids > 5}


def forget():
    """Forget what was worked out of divergences, as if nothing of the package had been used before."""
    for value in vars(functions_of_divergences).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    torch._dynamo.reset()


def step(caller, *at):
    """Loss and gradient by the first argument."""
    leaf = at[0].clone().requires_grad_()
    loss = caller(leaf, *at[1:])
    return loss.detach(), *torch.autograd.grad(loss, leaf)


def same_numbers(name):
    """Compare a caller with its compiled form, which is used first."""
    at, function = CALLERS[name]

    def loss(a):
        return (KNOWN * function(a)).sum() + 0.5

    # one graph: the functions are single operators to the compiler
    got = step(torch.compile(loss, backend="aot_eager", fullgraph=True), at)
    torch.testing.assert_close(got, step(loss, at), rtol=1e-5, atol=1e-7)


def graphs(name, dynamic):
    """Return the number of graphs that serve all lengths together."""
    torch._dynamo.reset()

    def loss(*a):
        return OF_ANY_LENGTH[name](*a).mean()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    draw = torch.Generator().manual_seed(2)
    for length in LENGTHS:
        h, r = (torch.randn(3, length, WIDTH, generator=draw) for _ in range(2))
        ids = torch.randint(VOCAB, (3, length), generator=draw)
        got, want = (step(function, h, r, ids) for function in (compiled, loss))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-7)
    return len(_debug_get_cache_entry_list(loss.__code__))


def main(*names):
    """Compare every caller; raises where one differs."""
    for name in names or CALLERS:
        forget()
        same_numbers(name)
        print(name, flush=True)
    for name in () if names else OF_ANY_LENGTH:
        wanted = {None: 2, True: 1} if name in BY_DEFAULT else {True: 1}
        found = {dynamic: graphs(name, dynamic) for dynamic in wanted}
        print(name, "at all lengths", *found.values(), flush=True)
        assert found == wanted, (name, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
