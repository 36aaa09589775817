"""The variable that is summed with its numbers outside the mask, and none where the mask comes first."""

import pytest
import torch

from kl_companion.auditing.reading.unmasked import summed_unmasked

MASK = torch.tensor([[1.0, 1.0, 0.0]])


def before(k, mask):
    returns = k.flip(-1).cumsum(-1).flip(-1)
    return (returns * mask).sum()


def inside(k, mask):
    kept = k * mask
    return (kept.flip(-1).cumsum(-1).flip(-1) * mask).sum()


def of_torch(k, mask):
    total = torch.cumsum(k, -1)
    return (total.flip(-1) * mask).sum()


def per_token(k, mask):
    squares = k**2
    return (squares * mask).sum()


@pytest.mark.parametrize(
    ("function", "name"), [(before, "k"), (inside, ""), (of_torch, "k"), (per_token, ""), (print, "")]
)
def test_a_variable_is_named_where_padding_enters_its_sum(function, name):
    k = torch.tensor([[1.0, 2.0, 3.0]])
    other = torch.tensor([[1.0, 2.0, 7.0]])
    runs = [lambda x=x: function(x, MASK) if function is not print else None for x in (k, other)]
    assert summed_unmasked(function, *runs, MASK) == name
