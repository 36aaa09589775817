"""Rows that do not count: not read, value 0, gradient 0, whatever stands there, in every function."""

from __future__ import annotations

import pytest
import torch

from kl_companion.kernels import (
    autograd,
    blocks,
    fused_f_divergence,
    fused_forward_kl,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
    fused_top_k_f_divergence,
    linear_f_divergence,
    linear_forward_kl,
    linear_kl,
    linear_logp,
    linear_logp_and_entropy,
    linear_top_k_f_divergence,
)
from tests.support.allocations import Allocations
from tests.support.fused_cases import INF, noise

LEAD, VOCAB, WIDTH = (3, 4), 10, 5
MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
INSIDE = MASK.bool()
TOKENS = torch.arange(12).view(LEAD) % VOCAB
HEAD = torch.tensor([1, 4, 7]).expand(*LEAD, 3)
GARBAGE = {"NaN": float("nan"), "masked": -INF, "infinite": INF}


def inputs(garbage=None):
    """Logits, reference logits, hidden states, layer, tokens, head, its log-probs and that of the token."""
    x, y, h, w = (
        noise(1, *LEAD, VOCAB),
        noise(2, *LEAD, VOCAB),
        noise(3, *LEAD, WIDTH),
        noise(4, VOCAB, WIDTH),
    )
    logp = y.log_softmax(-1)
    shipped = logp.gather(-1, HEAD), logp.gather(-1, TOKENS.unsqueeze(-1)).squeeze(-1)
    made = {"x": x, "y": y, "h": h, "head": shipped[0], "ref_logp": shipped[1], "tokens": TOKENS, "ids": HEAD}
    if garbage is not None:
        for name, array in made.items():
            outside = ~INSIDE if array.ndim == 2 else ~INSIDE.unsqueeze(-1)
            made[name] = array.masked_fill(outside, garbage if array.is_floating_point() else -100)
    return {**made, "w": w}


FUNCTIONS = {
    "fused_kl": lambda i, **o: fused_kl(i["x"], i["y"], **o),
    "fused_forward_kl": lambda i, **o: fused_forward_kl(i["x"], i["y"], **o),
    "fused_f_divergence": lambda i, **o: fused_f_divergence("jensen_shannon", i["x"], i["y"], **o),
    "fused_logp": lambda i, **o: fused_logp(i["x"], i["tokens"], **o),
    "fused_logp of three": lambda i, **o: fused_logp(i["x"], i["ids"], **o).sum(-1),
    "fused_logp_and_entropy": lambda i, **o: sum(fused_logp_and_entropy(i["x"], i["tokens"], **o)),
    "fused_top_k_f_divergence": lambda i, **o: fused_top_k_f_divergence(
        "reverse_kl", i["x"], i["tokens"], i["ids"], i["head"], i["ref_logp"], **o
    ),
    "linear_kl": lambda i, **o: linear_kl(i["h"], i["w"], ref_logits=i["y"], **o),
    "linear_forward_kl": lambda i, **o: linear_forward_kl(
        i["h"], i["w"], ref_hidden=i["h"].detach() * 2, ref_weight=i["w"].detach() + 1, **o
    ),
    "linear_f_divergence": lambda i, **o: linear_f_divergence(
        "squared_hellinger", i["h"], i["w"], ref_logits=i["y"].detach(), **o
    ),
    "linear_logp": lambda i, **o: linear_logp(i["h"], i["w"], i["tokens"], **o),
    "linear_logp of three": lambda i, **o: linear_logp(i["h"], i["w"], i["ids"], **o).sum(-1),
    "linear_logp_and_entropy": lambda i, **o: sum(linear_logp_and_entropy(i["h"], i["w"], i["tokens"], **o)),
    "linear_top_k_f_divergence": lambda i, **o: linear_top_k_f_divergence(
        "forward_kl", i["h"], i["w"], i["tokens"], i["ids"], i["head"], i["ref_logp"], **o
    ),
}
WITH_WEIGHTS = [n for n in FUNCTIONS if "top_k" not in n and "entropy" not in n and "three" not in n]


def run(name, given, trained=("x", "y", "h", "w"), weights=None, **options):
    """Values, and gradients of (weights times values).sum()."""
    if name.startswith("linear"):
        trained = [n for n in trained if n in ("h", "w")]
    else:
        trained = [n for n in trained if n in ("x", "y")]
    leaves = {n: given[n].clone().requires_grad_() for n in trained}
    value = FUNCTIONS[name]({**given, **leaves}, **options)
    weights = noise(9, *LEAD, 1).squeeze(-1) if weights is None else weights
    gradients = torch.autograd.grad((weights * value).sum(), list(leaves.values()), allow_unused=True)
    return value.detach(), dict(zip(leaves, gradients, strict=True))


@pytest.mark.parametrize("mask", [MASK, INSIDE, MASK.float(), MASK.to(torch.int8)], ids=str)
@pytest.mark.parametrize("garbage", list(GARBAGE))
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_rows_outside_the_mask(name, garbage, mask, monkeypatch):
    """The rows inside are what they are alone; in blocks of one, two and all rows."""
    good, spoiled = inputs(), inputs(GARBAGE[garbage])
    weights = noise(9, *LEAD, 1).squeeze(-1) * MASK
    want, slopes = run(name, good, weights=weights)
    for size in (1, 2 * VOCAB * 8, 1 << 20):
        monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", size)
        got, gradients = run(name, spoiled, mask=mask)
        assert (got[~INSIDE] == 0).all()
        torch.testing.assert_close(got[INSIDE], want[INSIDE])
        for n, gradient in gradients.items():
            if gradient is None:
                continue
            if n != "w":
                assert (gradient[~INSIDE] == 0).all()
            torch.testing.assert_close(gradient, slopes[n])


@pytest.mark.parametrize("garbage", list(GARBAGE))
@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_rows_of_weight_zero_do_not_count(name, garbage):
    weights = (noise(9, *LEAD, 1).squeeze(-1) * MASK).float()
    want, slopes = run(name, inputs(), weights=weights)
    leaves = inputs(GARBAGE[garbage])
    value = FUNCTIONS[name](leaves, weights=weights)
    assert (value[~INSIDE] == 0).all()
    torch.testing.assert_close(value[INSIDE], want[INSIDE])
    trained = [n for n in slopes if slopes[n] is not None]
    leaves |= {n: leaves[n].clone().requires_grad_() for n in trained}
    total = (3 * weights * FUNCTIONS[name](leaves, weights=weights)).sum()
    for n, gradient in zip(trained, torch.autograd.grad(total, [leaves[n] for n in trained]), strict=True):
        torch.testing.assert_close(gradient, 3 * slopes[n])


@pytest.mark.parametrize("name", ["fused_kl", "fused_f_divergence", "linear_kl", "linear_f_divergence"])
def test_rows_that_the_loss_leaves_out_have_no_gradient(name):
    """Without a mask their value is NaN, as in torch, and their gradient is 0."""
    given = inputs(float("nan"))
    _, slopes = run(name, inputs(), weights=noise(9, *LEAD, 1).squeeze(-1) * MASK)
    trained = [n for n in slopes if slopes[n] is not None]
    given |= {n: given[n].clone().requires_grad_() for n in trained}
    value = FUNCTIONS[name](given)
    assert value[~INSIDE].isnan().all()
    loss = (noise(9, *LEAD, 1).squeeze(-1) * value).where(INSIDE, 0.0).sum()
    for n, gradient in zip(trained, torch.autograd.grad(loss, [given[n] for n in trained]), strict=True):
        torch.testing.assert_close(gradient, slopes[n])


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_place_and_narrow(dtype, inplace):
    leaf, y = inputs(float("nan"))["x"].to(dtype).requires_grad_(), inputs()["y"].to(dtype)
    for options in (
        {"mask": MASK},
        {"weights": MASK / 8},
        {"mask": MASK, "weights": torch.full(LEAD, 1 / 8)},
    ):
        value = fused_kl(leaf * 1, y, inplace=inplace, **options)
        loss = (value * MASK / 8).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        p, q = (t.double().log_softmax(-1) for t in (leaf, y))
        want = (p.exp() * (p - q - (p.exp() * (p - q)).sum(-1, keepdim=True)) / 8).masked_fill(
            ~INSIDE.unsqueeze(-1), 0.0
        )
        torch.testing.assert_close(gradient.double(), want, rtol=2**-7, atol=1e-6)
        assert (value[~INSIDE] == 0).all()


def test_on_a_device_that_is_not_waited_for(monkeypatch):
    """All rows are worked on there, and those outside blanked: emulated on a processor."""
    from kl_companion.kernels import walks

    weights = noise(9, *LEAD, 1).squeeze(-1) * MASK
    monkeypatch.setattr(autograd, "may_look", lambda x: False)
    parts = walks.parts
    monkeypatch.setattr(
        walks, "parts", lambda size, logits, gradient, inside: parts(size, logits, gradient, None)
    )
    blank = walks._blank
    walk = walks.walk_divergence

    def walked(*args, **options):
        walk(*args, **options)
        blank(options.get("inside"), options.get("value"), options.get("gradient"))

    monkeypatch.setattr(autograd, "walk_divergence", walked)
    for name in ("fused_kl", "fused_f_divergence"):
        want, slopes = run(name, inputs(), weights=weights)
        got, gradients = run(name, inputs(float("nan")), mask=MASK, weights=weights)
        torch.testing.assert_close(got[INSIDE], want[INSIDE])
        for n in ("x", "y"):
            torch.testing.assert_close(gradients[n], slopes[n])


def test_what_is_left_out_costs_no_memory():
    """Values and gradient of a batch of which one row in eight counts; no copy of the logits."""
    rows, vocab = 64, 4000
    x = torch.rand(rows, vocab).requires_grad_()
    mask = torch.arange(rows) % 8 == 0
    with Allocations() as seen:
        fused_kl(x, torch.rand(rows, vocab), mask=mask).sum().backward()
    assert seen.largest <= x.nbytes
    hidden, weight = torch.rand(rows, 8).requires_grad_(), torch.rand(vocab, 8)
    with Allocations() as seen:
        linear_kl(hidden, weight, ref_logits=x.detach(), mask=mask, memory=rows * 16 * 50).sum().backward()
    assert seen.peak < x.nbytes / 3
