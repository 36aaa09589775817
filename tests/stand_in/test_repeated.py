"""Loops over answers that are copies: what PyTorch computes for each, computed once for all of them."""

import pytest

from kl_companion.stand_in.repeated import DEEPEST
from tests.support.stand_in import OURS, agree

T = OURS["torch"]
WHICH = [0, 0, 1, 0, 1, 1, 1]
BATCH = (
    f"at = torch.tensor({WHICH}); b = x[at]; c = y[at]; f = flags.float(); m = mask[at]; i = index[at]; "
    "total = 0.0; out = []; "
)
LOOPS = {
    "a sum of means": "total = sum((p * q).sum() / q.sum().clamp(min=1) for p, q in zip(b, m)); total",
    "a list to stack": "torch.stack([(p - q).exp().mean() for p, q in zip(b, c)]).mean()",
    "rows to stack": "torch.stack([p * q for p, q in zip(b, c)])",
    "rows to join": "torch.cat([p * 2 for p in b])",
    "by number": "torch.stack([b[k] * c[k] + b[-k - 1].detach() for k in range(len(b))])",
    "one row as a batch": "torch.cat([b[k : k + 1] / c.narrow(0, k, 1).exp() for k in range(7)], 0)",
    "selected": "sum(b.select(0, k).square().sum() for k in range(7))",
    "split": "sum(p.logsumexp(-1).sum() * (k + 1) for k, p in enumerate(b.split(1)))",
    "masked": "sum(p[q].sum() for p, q in zip(b, m))",
    "gathered": "torch.stack([p.gather(0, q) for p, q in zip(b, i)])",
    "several results": "sum(p.max(dim=0).values + p.sort().values[1] + p.unbind(0)[2] for p in b)",
    "numbers of both signs": "torch.stack([p / k for p in b.detach() for k in (0.0, -0.0, 1, 1.0, True)])",
    "numbers of all kinds": "[q * k for q in m for k in (True, 1, 1.0)]",
    "with and without its axis": "[t for k in range(7) for t in (b[k], b[k : k + 1])]",
    "one after another": "sum(p * k for k, p in enumerate(b))",
    "compared": "torch.stack([torch.where(p > q, p, -q) for p, q in zip(b, c)])",
    "with the whole batch": "torch.stack([p - b.mean(0) for p in b])",
    "with another tensor": "torch.stack([p * f + q for p, q in zip(b, c)])",
    "a tensor by name": "torch.stack([torch.mul(p, other=q) for p, q in zip(b, c)])",
    "a chain longer than is kept": f"sum(p for _ in range({DEEPEST}) for p in b)",
}
# bodies of functions, by what they do
WRITTEN = """
added up in place:
    t = 0.0
    for p in b:
        t += p.sum() * p[0]
    return t

a result changed:
    for n, (p, q) in enumerate(zip(b, c)):
        r = p - q
        r *= n
        out.append(r + p.exp())
    return torch.stack(out)

a copy changed:
    for n, p in enumerate(b):
        r = p.clone()
        r[0] = float(n)
        out.append(r * p)
    return torch.stack(out)

changed and used again:
    for n, p in enumerate(b):
        r = p * 1
        s = r.sum()
        r.add_(n)
        out.append(s + r.sum())
    return torch.stack(out)

without a gradient:
    for p, q in zip(b, c):
        with torch.no_grad():
            w = (p - q).exp()
        out.append(w * (p - q))
    return torch.stack(out)

rows without a gradient, and with one:
    with torch.no_grad():
        w = [p.exp() for p in b]
    return torch.stack([p * q for p, q in zip(b, w)])

the same tensor under another name:
    for p in b:
        r = p * 2
        s = r.double()
        s += 1
        out.append(r)
    return torch.stack(out)

the batch changed after the loop:
    d = b * 1
    t = sum([p.sum() for p in d])
    d += 1
    return t + sum([p.prod() for p in d])

a new leaf:
    for p in b:
        r = (p * 2).detach().requires_grad_()
        (g,) = torch.autograd.grad((r * r).sum(), r)
        out.append(g * p)
    return torch.stack(out)
"""


def loops():
    """Every loop by its name."""
    bodies = [block.split(":\n", 1) for block in WRITTEN.strip().split("\n\n")]
    return LOOPS | {name: f"def run():\n{body}; run()" for name, body in bodies}


@pytest.mark.parametrize("code", loops().values(), ids=loops())
def test_a_loop_gives_what_it_gives_in_pytorch(code):
    agree(BATCH + code)


def calls(loop):
    """How often every function is computed in a loop over a batch of seven, which has two different rows."""
    counts = {}

    class Counting(OURS["torch.overrides"].TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            counts[func.__name__] = counts.get(func.__name__, 0) + 1
            return func(*args, **(kwargs or {}))

    x = T.tensor([[1.0, 2.0], [3.0, 1.0]]).requires_grad_()
    batch = x[T.tensor(WHICH)]
    with Counting():
        loop(batch)
    return counts


def test_a_function_is_computed_once_for_all_copies():
    assert calls(lambda b: [(r * 2 - r.exp()).sum() for r in b]) == {
        "unbind": 1,
        **dict.fromkeys(("__mul__", "exp", "__sub__", "sum"), 2),
    }
    assert calls(lambda b: [b[k].exp() for _ in range(3) for k in range(7)]) == {"exp": 2}


def test_a_sum_over_the_batch_is_computed_for_every_answer():
    assert calls(lambda b: sum(r.sum() for r in b))["__add__"] == 6


def test_a_long_sum_is_not_kept():
    x = T.tensor([[1.0, 2.0], [3.0, 1.0]])[T.tensor(WHICH)]
    assert sum(x).same is not None
    assert sum(r for _ in range(DEEPEST) for r in x).same is None


def test_a_row_that_asks_for_no_gradient_is_a_leaf():
    x = T.tensor([[1.0, 2.0], [3.0, 1.0]]).requires_grad_()[T.tensor(WHICH)]
    assert x.detach()[0].is_leaf
    assert not x[0].is_leaf


def test_another_mode_sees_a_function_again():
    x = T.tensor([[1.0, 2.0], [3.0, 1.0]])[T.tensor(WHICH)]

    def topk(b):
        for r in b:
            r.topk(1)

    assert [calls(lambda _: topk(x))["topk"] for _ in range(2)] == [2, 2]


def test_rows_stacked_again_are_known_by_the_few():
    x = T.tensor([[1.0, 2.0], [3.0, 1.0]])[T.tensor(WHICH)]
    found = T.stack([r.exp() for r in x])
    assert found.copies is x.copies
    assert T.stack([r.exp() for r in x], -1).copies is None


def test_a_row_is_memory_of_the_batch():
    x = T.tensor([[1.0, 2.0], [3.0, 1.0]])[T.tensor(WHICH)] * 1.0
    row = x[3]
    seen = row.detach()
    for written in (row, seen, x):
        with pytest.raises(AttributeError, match="memory that another tensor shows too"):
            written.add_(1.0)
    del row, seen, written
    x.add_(1.0)
    assert x[2].tolist() == [4.0, 2.0]


def test_the_gradient_of_one_copy_alone_is_not_known():
    x = T.tensor([[1.0, 2.0], [3.0, 1.0]]).requires_grad_()[T.tensor(WHICH)]
    row = x[0]
    with pytest.raises(AttributeError, match="by one answer of a batch does not run in this page"):
        T.autograd.grad((row * 2).sum(), row)
