"""Tiles of logits: what they cost in memory and digits, and that their size changes no number."""

import pytest
import torch

from kl_companion.kernels import blocks
from kl_companion.kernels.linear import linear_kl
from kl_companion.kernels.linear_walks import TilePlan, budget
from tests.oracles import fused as oracle
from tests.support.allocations import Allocations
from tests.support.fused_cases import noise
from tests.support.linear_cases import BOTH, exact_logits, far, inputs, leaves, per_token


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("memory", ["fast", "frugal", 3000])
def test_logits_of_bfloat16_states_are_not_rounded(known, memory):
    """Gradients as exact as their dtype, where logits of 8 digits would leave an error of 3 percent."""
    hidden, ref_hidden = noise(20, 33, 64), noise(21, 33, 64) / 20
    weight, ref_weight = noise(22, 500, 64) / 3, noise(23, 500, 64) / 20
    given_states = [x.to(torch.bfloat16) for x in (hidden, weight, hidden + ref_hidden, weight + ref_weight)]
    h, w, ref_h, ref_w = (x.double() for x in given_states)
    logp, ref_logp = (h @ w.T).log_softmax(-1), (ref_h @ ref_w.T).log_softmax(-1)
    ratio = logp - ref_logp
    value = (logp.exp() * ratio).sum(-1, keepdim=True)
    by_logits = logp.exp() * (ratio - value) / 33
    weights = {"weights": torch.full((33,), 1 / 33)} if known else {}
    h, w, ref_h, ref_w = given_states
    h.requires_grad_(), w.requires_grad_()
    found = linear_kl(h, w, ref_hidden=ref_h, ref_weight=ref_w, memory=memory, **weights)
    found.mean().backward()
    assert far(found, value.squeeze(-1)) <= 1e-5
    assert far(h.grad, by_logits @ w.detach().double()) <= 2.5e-3
    assert far(w.grad, by_logits.T @ h.detach().double()) <= 2.5e-3


@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "float64"), ("float64", "bfloat16")])
def test_a_teacher_of_another_dtype_and_width(dtypes):
    mine, taught = (getattr(torch, name) for name in dtypes)
    states = {
        **inputs(24, (9,), dtype=mine),
        **{"ref_hidden": noise(25, 9, 20), "ref_weight": noise(26, 40, 20)},
    }
    states |= {name: x.to(taught) for name, x in states.items() if name.startswith("ref_")}
    trained, exact = leaves(states, BOTH), {n: oracle.leaf(x) for n, x in states.items()}
    value = linear_kl(**(states | trained))
    want = oracle.divergence("reverse_kl", exact_logits(exact), exact_logits(exact, "ref_").detach())
    assert far(value, want) <= 1e-5
    slopes = oracle.gradients(want, [exact[n] for n in BOTH])
    value.sum().backward()
    for name, slope in zip(BOTH, slopes, strict=True):
        assert far(trained[name].grad, slope) <= (4e-3 if mine == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("memory", ["fast", "frugal", 1, 20_300, 10**9])
def test_the_budget_changes_no_number(memory, monkeypatch):
    """37 rows: 20,300 bytes hold ten rows of logits twice beside the scratch, so the last chunk has seven."""
    monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", 1)
    mine = inputs(12, (37,), vocab=101)
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")}
    results = []
    for setting in ("fast", memory):
        trained = leaves(mine, BOTH)
        value = linear_kl(trained["hidden"], trained["weight"], memory=setting, **rest)
        value.square().sum().backward()
        results.append((value.detach(), trained["hidden"].grad, trained["weight"].grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_memory_stays_in_its_budget(dtype, known, frozen):
    """No [rows, vocab] of logits; beside the budget only the gradients, none for a frozen weight."""
    rows, width, vocab, budget = 128, 16, 6000, 1_200_000
    mine = {n: x / 2 for n, x in inputs(13, (rows,), width=width, vocab=vocab, dtype=dtype).items()}
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")}
    weights = per_token(13, (rows,), dtype)
    if known:
        rest["weights"] = weights
    trained = leaves(mine, ("hidden",) if frozen else BOTH)
    passed = {**mine, **trained}
    with Allocations() as seen:
        value = linear_kl(passed["hidden"], passed["weight"], memory=budget, **rest)
        (weights * value).sum().backward()
    logits = rows * vocab * 4  # as they are worked on
    of_gradients = sum(x.numel() * 4 for x in trained.values())
    assert seen.peak <= budget + 2 * of_gradients + 64 * rows
    assert seen.peak < 0.6 * logits
    assert passed["weight"].grad is None if frozen else passed["weight"].grad.shape == (vocab, width)


def test_a_frozen_weight_costs_nothing_of_its_size():
    mine = inputs(14, (8,), width=256, vocab=4000, dtype=torch.float32)
    hidden, size = mine["hidden"].requires_grad_(), mine["weight"].untyped_storage().nbytes()
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")}
    with Allocations() as seen:
        linear_kl(hidden, mine["weight"], memory=200_000, **rest).sum().backward()
    assert mine["weight"].grad is None
    assert seen.largest < size / 4
    assert seen.peak < size / 2


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("memory", ["fast", 1])  # one chunk, or one token in each
def test_a_gradient_beyond_half_precision_is_infinite_and_not_nan(frozen, memory):
    # two tokens that push the logits in opposite directions, and an ordinary one
    rows = ([[0, 0], [-25, -29], [0, 0]], [[-50, -4], [0, 0], [-50, 0]], [[-31, 0], [0, 0], [31, 0]])
    hidden, weight, ref_hidden = (torch.tensor(x, dtype=torch.float16) for x in rows)
    bias = torch.zeros(3, dtype=torch.float16)
    leaves = [hidden.requires_grad_()]
    if not frozen:
        leaves += [weight.requires_grad_(), bias.requires_grad_()]
    rest = {"ref_hidden": ref_hidden, "ref_weight": weight.detach(), "temperature": 0.01, "memory": memory}
    value = linear_kl(hidden, weight, bias=bias, **rest)
    assert value.isfinite().all()
    made = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    wide = [exact[0], *(exact[1:] or (weight.double(), bias.double()))]
    x = oracle.linear(*wide)
    y = oracle.linear(ref_hidden.double(), weight.detach().double(), None)
    want = oracle.gradients(oracle.divergence("reverse_kl", x, y, temperature=0.01), exact)
    assert made[0][0].isinf().all()
    for got, true in zip(made, want, strict=True):  # those of the two tokens cancel in weight and bias
        torch.testing.assert_close(got, true.to(torch.float16))
    # the token whose gradient overflows does not count: nothing of it is left
    (masked,) = torch.autograd.grad((value * torch.tensor([0.0, 1.0, 0.0])).sum(), leaves[:1])
    assert masked.isfinite().all()
    assert masked[0].tolist() == [0.0, 0.0]


def test_the_same_bytes_twice():
    mine = inputs(19, (50,), vocab=300, dtype=torch.float32)
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")}
    results = []
    for _ in range(2):
        trained = leaves(mine, BOTH)
        value = linear_kl(trained["hidden"], trained["weight"], memory="frugal", **rest)
        value.sum().backward()
        results.append((value.detach(), trained["hidden"].grad, trained["weight"].grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("rows", "width"), [(3, 701), (4, 2048), (1, 1)])
def test_every_tile_begins_where_its_product_is_fast(rows, width):
    places = TilePlan(rows, width, keep=True).places
    assert rows * width < places <= rows * width + 16
    assert places % 16 == 0


def test_a_gpu_has_memory_for_more_tokens_at_once():
    assert budget("fast", "cuda") == 4 * budget("fast")
    assert budget("frugal", "cuda") > budget("frugal")
    assert budget(7, "cuda") == 7
