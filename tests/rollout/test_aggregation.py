"""Aggregation, importance weights and credit, against loops over the tokens that a mask leaves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.estimators import ESTIMATORS, get_estimator
from kl_companion.rollout import (
    aggregate,
    credit,
    masked,
)
from tests.oracles import tokens as oracle
from tests.support.rollouts import INF, MASK, NAN, doubles

QUICK = settings(max_examples=50)


def ragged(x, mask=MASK):
    return [
        [v for v, m in zip(r, k, strict=True) if m] for r, k in zip(x.tolist(), mask.tolist(), strict=True)
    ]


# aggregation


def test_masked_writes_zeros():
    x = doubles([NAN, 1.0, INF, 2.0], [1.0, 2.0, 3.0, 4.0])
    assert masked(x, torch.tensor([[0, 1, 0, 1], [1, 1, 0, 1]])).tolist() == [[0, 1, 0, 2], [1, 2, 0, 4]]


@pytest.mark.parametrize(
    ("how", "length", "wanted"),
    [
        ("sum", None, ((1 + 2) + (3 + 4 + 5 + 6)) / 2),
        ("sequence_mean", None, (3 / 2 + 18 / 4) / 2),
        ("token_mean", None, 21 / 6),
        ("constant", 8, (3 / 8 + 18 / 8) / 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float64])
def test_aggregation_by_hand(how, length, wanted, dtype):
    x = doubles([NAN, 1.0, 2.0, INF], [3.0, 4.0, 5.0, 6.0])
    out = aggregate(x, MASK.to(dtype), how, length=length)
    assert out.shape == ()
    assert out.item() == pytest.approx(wanted, rel=1e-15)


def test_the_default_is_the_sum():
    assert aggregate(torch.ones(2, 4), MASK).item() == 3


# importance weights, credit, leave one out


def test_credit_by_hand():
    x = doubles([NAN, 1.0, 2.0, INF], [3.0, 4.0, 5.0, 6.0])
    assert credit(x, MASK)[1].tolist() == [18.0, 15.0, 11.0, 6.0]
    assert credit(x, MASK)[0, 1:3].tolist() == [3.0, 2.0]
    assert credit(x, MASK, discount=0.0)[1].tolist() == [3.0, 4.0, 5.0, 6.0]
    assert credit(x, MASK, discount=0.5)[1].tolist() == [3 + 2 + 1.25 + 0.75, 4 + 2.5 + 1.5, 8.0, 6.0]


values = st.floats(-100, 100)


@st.composite
def batches(draw):
    """Values with a mask of at least one token per row."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    x = [[draw(values) for _ in range(columns)] for _ in range(rows)]
    mask = [[draw(st.booleans()) for _ in range(columns)] for _ in range(rows)]
    for row in mask:
        row[draw(st.integers(0, columns - 1))] = True
    return torch.tensor(x, dtype=torch.float64), torch.tensor(mask)


@QUICK
@given(batches(), st.sampled_from(["sum", "sequence_mean", "token_mean", "constant"]))
def test_aggregation_is_that_of_the_deleted_tokens(batch, how):
    x, mask = batch
    length = 7.5 if how == "constant" else None
    got = aggregate(x.where(mask, torch.tensor(NAN).double()), mask, how, length=length)
    assert got.item() == pytest.approx(oracle.aggregated(ragged(x, mask), how, length), rel=1e-12, abs=1e-11)


SAMPLED = [*(name for name, e in ESTIMATORS.items() if e.inputs == "sampled"), "k_lambda(0.5)"]
SAMPLED += [f"kf_plus_plus({x})" for x in ("forward_kl", "pearson", "neyman", "pearson, generic")]


@pytest.mark.parametrize("masking", ["aggregate", "where", "clamp"])
@pytest.mark.parametrize("to_ref", [300.0, 1e10, 1e30])
@pytest.mark.parametrize("name", SAMPLED)
def test_a_padded_token_that_overflows_gets_no_gradient(name, to_ref, masking):
    """log w = to_ref outside the mask: the estimate is infinite, and the slope of the others is theirs."""
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    estimate = get_estimator(name).fn
    slopes = []
    for outside in (-1.0, -to_ref):
        logp = torch.tensor([[-1.2, -0.3, outside]], requires_grad=True)
        values = estimate(logp, torch.tensor([[-1.0, -0.5, -1.0]]).where(mask.bool(), 0.0))
        if masking == "aggregate":
            loss = aggregate(values, mask)
        elif masking == "where":
            loss = torch.where(mask.bool(), values, 0.0).sum()
        else:
            loss = (values.clamp(max=torch.finfo(values.dtype).max) * mask).sum()
        slopes.append(torch.autograd.grad(loss, logp)[0])
    assert slopes[1][0, 2].item() == 0.0
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-6, atol=1e-7)
