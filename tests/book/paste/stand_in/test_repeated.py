"""Loops over answers that are copies: what PyTorch computes for each, computed once for all of them."""

import pytest

from kl_book.paste.stand_in.repeated import DEEPEST
from tests.support.data import data
from tests.support.stand_in import OURS, agree

T = OURS["torch"]
WHICH = [0, 0, 1, 0, 1, 1, 1]
BATCH = (
    f"at = torch.tensor({WHICH}); b = x[at]; c = y[at]; f = flags.float(); m = mask[at]; i = index[at]; "
    "total = 0.0; out = []; "
)


LOOPS = data(__file__, "loops")


@pytest.mark.parametrize("code", LOOPS.values(), ids=LOOPS)
def test_a_loop_gives_what_it_gives_in_pytorch(code):
    code = code.replace("DEEPEST", str(DEEPEST))
    body = code.replace("\n", "\n    ")
    agree(BATCH + (f"def run():\n    {body}; run()" if "\n" in code else code))


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
