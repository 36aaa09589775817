"""What is taken row by row is what the whole batch has, and is known by its few rows where it can be."""

import pytest

from kl_companion.stand_in.copies import Copies, copies_of
from tests.support.stand_in import OURS

T, F = OURS["torch"], OURS["torch.nn.functional"]
WHICH = (0, 0, 1, 2, 2, 2, 1)
ROWS = {
    "x": [[0.5, -1.25], [0.0, 3.5], [-0.75, 0.25]],
    "y": [[1.5, 0.25], [-2.0, 0.5], [3.5, 0.125]],
    "z": [2.0, -0.5, 1.0],
    "logits": [
        [[0.1, 0.2, 0.7], [1.3, -0.4, 0.0]],
        [[0.5, 0.6, -1.0], [2.0, 0.8, 0.3]],
        [[0.9, 1.0, 1.0], [0, 1, 2]],
    ],
    "ids": [[2, 0], [1, 1], [0, 2]],
    "mask": [[True, True], [True, False], [True, True]],
}
# results that are known by their rows
BY_ROWS = """
x.exp() | -x | x + y | 2 * x | x - z.unsqueeze(-1) | z.view(-1, 1) * y | x + T.tensor([1.0, -1.0]) | x == y
~mask | x.isnan() | T.maximum(x, y) | x.clamp(-1, 1) | T.where(mask, x, y) | T.where(x > 0, x, 0.0)
x.masked_fill(mask, 7.0) | x.masked_fill(~mask, 0) | x.pow(2) | x.abs().log1p()
F.kl_div(x, y, reduction="none", log_target=True) | F.huber_loss(x, y, reduction="none") | x.nan_to_num()
x * mask | (x - y).relu() | logits - logits.detach() | logits.log_softmax(-1) | F.softmax(logits, dim=2)
logits.logsumexp(-1) | logits.sum(-1) | logits.mean((1, 2)) | x.sum(-1) | x.sum(1, keepdim=True)
x.mean(-1) | x.var(-1) | x.std(-1) | logits.amax(-1) | logits.argmax(-1) | x.max(dim=-1).values
logits.max(-1).indices | mask.any(-1) | mask.all(1) | x.norm(dim=-1) | x.cumsum(-1) | x.prod(-1)
logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) | T.gather(logits, 2, index=ids[..., None])
logits.sort(-1).values | logits.topk(2, dim=-1).indices | logits.topk(2).values | logits.argsort(-1)
F.one_hot(ids, 3) | T.zeros_like(x) | T.ones_like(x) | T.full_like(ids, 3) | x[:, 1:] | x[:, -1] | x[..., 0]
logits[:, :, 1] | logits[..., None] | x[:] | x.unsqueeze(1) | x.reshape(7, -1) | x.reshape(7, 1, 2)
x.flatten() | x.view(-1) | logits.flatten(0, 1) | x.view(14, 1) | logits.flatten(0, 1).view(7, 2, 3)
x.view(-1).view(7, 2) | logits.transpose(1, 2) | logits.permute(0, 2, 1) | z[:, None].expand(-1, 2)
z[:, None].expand(7, 2) | z[:, None].expand_as(x) | T.cat([x, y], 1) | T.stack([x, y], -1)
T.cat([T.zeros(7, 1), x], 1) | x.flip(-1) | x.roll(1, 1) | x.diff(dim=-1) | x.double() | ids.float()
mask.long() | x.detach() | x.clone() | x + T.ones(7, 2) | x.index_select(1, T.tensor([1, 0])) | x[mask]
T.masked_select(x, mask) | x[T.tensor([6, 5, 4, 3, 3, 0, 0, 2])] | x.split(1, dim=1)[1] | x.unbind(-1)[0]
x.chunk(2, -1)[1] | -z | z * z | T.zeros_like(x).scatter(1, ids.clamp(max=1), y)
x.scatter_add(-1, ids.clamp(max=1), y) | logits[:, 0] | x.to(T.float32) | logits[:, 1:].reshape(7, -1)
x.movedim(-1, 1) | x.narrow(1, 0, 1) | x.logsumexp(-1, keepdim=True) | z.double()
"""
# numbers of the whole batch, for which no entries have to be made
NUMBERS = """
x[0] | x[3] | x[-2].exp() * y[0] | T.stack([x[0], x[6], x[1]]) | x.unbind(0)[3] | x[2:5]
x.narrow(0, 1, 4).sum(0)
x.sum() | x.mean() | x.sum(0) | x.mean(0) | x.mean((0, 1)) | x.var() | z.var(correction=0) | x.std()
z.std(0) | x.std(unbiased=False) | mask.sum() | ids.sum() | mask.any() | mask.all()
(x * mask).sum() / mask.sum() | z.mean() | (x * mask).sum(1).mean() | x.detach().max() | x.detach().min()
x.detach().amax(0) | F.kl_div(x, y, log_target=True)
F.kl_div(x, y, reduction="batchmean", log_target=True) | F.mse_loss(x, y)
((z - z.mean()) / (z.std() + 1e-4)).mean() | x[mask].mean()
F.cross_entropy(logits.flatten(0, 1), ids.flatten()) | x.view(-1).mean() | logits.log_softmax(-1).mean()
T.zeros(14).index_add(0, T.arange(3)[T.tensor(WHICH)], z)
"""
# what needs all entries
OF_ENTRIES = """
x.T | x.unsqueeze(0) | x.sort(0).values | x.cumsum(0) | x.roll(1, 0) | T.cat([x, y], 0)
x @ T.ones(2, 3) | x.prod() | x.norm() | x.max() | x.amax(0) | x.argmax() | x[T.tensor([0, 6])]
z.logsumexp(0) | x.flip(0) | x.reshape(2, 7) | z * T.arange(7.0) | x[1, 0] | z.view(7, 1) - z.view(1, 7)
T.stack([x, y]) | mask.count_nonzero() | x[:, T.tensor([1, 1])] | z.view(1, 7).expand(2, 7)
x[T.arange(7), ids[:, 0] // 2] | x.repeat(2, 1) | x[..., 1, 0]
"""


def split(text):
    return [code.strip() for line in text.strip().splitlines() for code in line.split(" | ")]


def given(*, packed):
    """The batch, of rows or as plain entries, its floating tensors leaves."""
    index, found = T.tensor(WHICH), {}
    for name, rows in ROWS.items():
        of_rows = T.tensor(rows).index_select(0, index)
        assert of_rows.copies is not None
        t = of_rows if packed else T.tensor(of_rows.tolist())
        found[name] = t.requires_grad_() if t.is_floating_point() else t
    return found


def done(code, *, packed):
    """The result, and what the gradients by all rows of the batch add up to."""
    tensors = given(packed=packed)
    result = eval(code, {"T": T, "F": F, "WHICH": WHICH, "__builtins__": {}}, dict(tensors))
    added = {}
    if result.requires_grad:
        leaves = {name: t for name, t in tensors.items() if t.requires_grad}
        found = T.autograd.grad((result * result).sum(), list(leaves.values()), allow_unused=True)
        copies = T.tensor(ROWS["x"]).index_select(0, T.tensor(WHICH)).copies
        added = {
            name: None if g is None else copies.added(g.entries)
            for name, g in zip(leaves, found, strict=True)
        }
    return result, added


def agree(code):
    found, by_rows = done(code, packed=True)
    want, by_entries = done(code, packed=False)
    assert (found.shape, found.dtype, found.requires_grad) == (want.shape, want.dtype, want.requires_grad)
    assert found.entries == pytest.approx(want.entries, rel=1e-12, abs=1e-12)
    assert by_rows.keys() == by_entries.keys()
    for name, added in by_rows.items():
        wanted = by_entries[name]
        assert added == (None if wanted is None else pytest.approx(wanted, rel=1e-12, abs=1e-12)), name
    return found


@pytest.mark.parametrize("code", split(BY_ROWS))
def test_what_all_copies_of_a_row_have_alike_is_known_by_the_rows(code):
    found = agree(code)
    assert found.copies is not None
    assert len(found.small.entries) < found.numel()


@pytest.mark.parametrize("code", split(NUMBERS))
def test_numbers_of_the_batch_count_every_copy(code, monkeypatch):
    agree(code)
    monkeypatch.setattr(Copies, "spread", _refuse)
    eval(code, {"T": T, "F": F, "WHICH": WHICH, "__builtins__": {}}, given(packed=True))


def _refuse(*_):
    raise AssertionError("the entries were made")


def test_a_leaf_gets_the_gradient_of_each_copy():
    x, plain = given(packed=True)["x"], given(packed=False)["x"]
    for leaf in (x, plain):
        (leaf.exp() * leaf).sum().backward()
    assert x.is_leaf
    assert x.grad.shape == plain.grad.shape
    assert x.grad.entries == pytest.approx(plain.grad.entries)
    assert x.detach().requires_grad is False


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1.0),
        lambda x: x.clamp_(min=0.0),
        lambda x: x.__setitem__((slice(None), 0), 0.0),
        lambda x: x.__setitem__((Ellipsis, -1), 2.5),
        lambda x: x.__setitem__(0, 3.0),
        lambda x: x.tolist() and x.add_(1.0),
        lambda x: x.mul_(T.arange(7.0).view(7, 1)),
        lambda x: x.__setitem__(x > 0, 9.0),
    ],
)
def test_writing_in_place(write):
    found = []
    for packed in (True, False):
        x = given(packed=packed)["x"]
        y = x.clone()
        write(y)
        (slope,) = T.autograd.grad((y * y).sum(), x)
        found.append((y.entries, x.entries, Copies(WHICH, 3).added(slope.entries)))
    for ours, plain in zip(*found, strict=True):
        assert ours == pytest.approx(plain)


def test_copies_that_differ_are_told_apart():
    x = given(packed=True)["x"]
    alike, other = T.tensor([[float(i)] * 2 for i in WHICH]), T.arange(14.0).view(7, 2)
    assert (x + alike).copies is x.copies
    assert (x + other).copies is None
    assert (x + other).tolist() == (T.tensor(x.tolist()) + other).tolist()
    (slope,) = T.autograd.grad((x.detach() * alike.requires_grad_()).sum(), alike)
    assert slope.tolist() == x.tolist()


def test_without_gradients_a_batch_asks_for_none():
    rows = T.tensor(ROWS["x"]).requires_grad_()
    with T.no_grad():
        found = rows[T.tensor(WHICH)]
    assert found.copies is not None
    assert not found.requires_grad
    assert rows[T.tensor(WHICH)].requires_grad


def test_some_rows_of_a_leaf_are_no_leaf():
    rows = T.tensor(ROWS["x"]).requires_grad_()
    picked = rows[T.tensor(WHICH)]
    assert not picked.is_leaf
    picked.add_(1.0)
    (slope,) = T.autograd.grad(rows.sum() + picked.sum(), picked)
    assert slope.tolist() == [[1.0, 1.0]] * 7
    (whole,) = T.autograd.grad(picked.sum(), rows)
    assert whole.tolist() == [[2.0, 2.0], [2.0, 2.0], [3.0, 3.0]]


@pytest.mark.parametrize("code", split(OF_ENTRIES))
def test_whatever_else_is_asked_reads_the_entries(code):
    agree(code)


def test_an_index_that_repeats_nothing_or_leaves_a_row_out_makes_no_batch():
    assert copies_of((0, 1, 2), 3) is None
    assert copies_of((0, 0, 1, 1), 3) is None
    assert copies_of((), 0) is None
