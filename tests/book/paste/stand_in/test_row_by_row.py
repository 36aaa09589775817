"""What is taken row by row is what the whole batch has, and is known by its few rows where it can be."""

import pytest

from kl_book.paste.stand_in.copies import Copies, copies_of
from tests.support.data import data
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


CODES = data(__file__, "rows")


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


@pytest.mark.parametrize("code", CODES["by_rows"].splitlines())
def test_what_all_copies_of_a_row_have_alike_is_known_by_the_rows(code):
    found = agree(code)
    assert found.copies is not None
    assert len(found.small.entries) < found.numel()


@pytest.mark.parametrize("code", CODES["numbers"].splitlines())
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


@pytest.mark.parametrize("code", CODES["of_entries"].splitlines())
def test_whatever_else_is_asked_reads_the_entries(code):
    agree(code)


def test_an_index_that_repeats_nothing_or_leaves_a_row_out_makes_no_batch():
    assert copies_of((0, 1, 2), 3) is None
    assert copies_of((0, 0, 1, 1), 3) is None
    assert copies_of((), 0) is None
