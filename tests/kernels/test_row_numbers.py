"""Numbers of rows that were read in pieces, against the whole rows in float64."""

import math

import pytest
import torch

from kl_companion.divergences import get_divergence
from kl_companion.kernels import row_numbers, rows
from tests.oracles import fused as oracle

INF, PIECES = float("inf"), 4


def rows_of(dtype, apart):
    """Policy and reference [5, 40]: plain, masked pieces, a likeliest token that the reference has not."""
    draw = torch.Generator().manual_seed(1)
    x = 3 * torch.randn(5, 40, generator=draw, dtype=torch.float64) + 1000
    y = x + apart * torch.randn(5, 40, generator=draw, dtype=torch.float64) - 700
    x, y = x.to(dtype), y.to(dtype)
    x[1, :10] = y[1, :10] = -INF  # no token of a piece
    x[2, 20:30] = -INF  # a piece that only the reference can draw
    x[3, 35] = 1050.0  # nearly all of the mass
    return x, y


def sums(x, y, cool, *, kl):
    cut = (t.view(-1, t.shape[-1] // PIECES) for t in (x, y))
    found = rows.first_sums(*cut, cool, None, None, dtype=x.dtype, kl=kl)
    return [s.view(len(x), PIECES) for s in found]


def exact(x, y, temperature):
    return (t.double().div(temperature).log_softmax(-1) for t in (x, y))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("apart", [1e-4, 0.5, 8.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_kl_of_rows_in_pieces(dtype, apart, temperature):
    x, y = rows_of(dtype, apart)
    cool = None if temperature == 1.0 else torch.tensor(1 / temperature, dtype=dtype)
    value, kept = row_numbers.kl_numbers(*sums(x, y, cool, kl=True), cool)
    p, _ = exact(x, y, temperature)
    want = oracle.divergence("reverse_kl", x.double(), y.double(), temperature=temperature)
    near = 2e-6 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(value.double(), want, rtol=near, atol=1e-16)  # the oracle's own
    numbers = row_numbers.KLNumbers(*kept)
    assert torch.equal(numbers.peak, x.amax(-1))
    assert torch.equal(numbers.base, y.gather(-1, x.argmax(-1, keepdim=True)).squeeze(-1))
    mass = ((x.double() - x.amax(-1, keepdim=True).double()) / temperature).exp().sum(-1)
    torch.testing.assert_close(numbers.mass.double(), mass, rtol=near, atol=0)
    # what the gradient subtracts: the mean of all differences, measured from that of the likeliest token
    offset = (numbers.base - numbers.peak).unsqueeze(-1).double()
    apart = torch.where(p == -INF, 0.0, ((y.double() - x.double()) - offset) / temperature)
    torch.testing.assert_close(numbers.mean.double(), (p.exp() * apart).sum(-1), rtol=near, atol=near * 4e-2)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("apart", [1e-4, 0.5, 8.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_where_both_models_agree(dtype, apart, temperature):
    x, y = rows_of(dtype, apart)
    y[4] += 690
    y[4, x[4].argmax()] = -INF
    cool = None if temperature == 1.0 else torch.tensor(1 / temperature, dtype=dtype)
    *kept, likeliest, masked = row_numbers.ratio_numbers(*sums(x, y, cool, kl=False), cool)
    numbers = row_numbers.RatioNumbers(*kept, likeliest, likeliest)
    p, q = exact(x, y, temperature)
    top = x.argmax(-1, keepdim=True)
    assert masked.tolist() == [False] * 4 + [True]
    near = 1e-6 if dtype == torch.float32 else 1e-11
    log_t = (p - q).gather(-1, top).squeeze(-1)
    log_t = log_t[:4]
    torch.testing.assert_close(likeliest[:4], log_t, rtol=near, atol=near * apart + 1e-13)
    # y - x + log t is the same for every token, and zero log t is where y - x is the shift
    shift = numbers.shift.double() + numbers.shift_rest.double() * temperature
    want = y.double().div(temperature).logsumexp(-1) - x.double().div(temperature).logsumexp(-1)
    torch.testing.assert_close(shift, want * temperature, rtol=0, atol=near * temperature)
    # Q has the share of the policy's likeliest token where the reference's logit is `ref`
    ref = numbers.ref.double() + numbers.ref_rest.double() * temperature
    want = y.double().div(temperature).logsumexp(-1) + p.amax(-1)
    torch.testing.assert_close(ref, want * temperature, rtol=0, atol=near * temperature)


def test_the_slope_of_the_likeliest_token():
    log_t = torch.tensor([0.0, -1.0, 2.0], dtype=torch.float64)
    masked = torch.tensor([False, False, True])
    kept = torch.full((9, 3), torch.nan, dtype=torch.float64)
    numbers = [torch.full((3,), float(n)) for n in range(7)]
    row_numbers.fill_ratio_numbers(get_divergence("jensen_shannon"), kept, (*numbers, log_t, masked))
    assert kept[:7].tolist() == [[n] * 3 for n in range(7)]
    *_, found, mean = kept
    t = log_t.exp()
    want = (t / ((1 + t) / 2)).log() / 2
    torch.testing.assert_close(found[:2], want[:2])
    assert found[2] == math.log(2) / 2
    assert mean.isnan().all()


def test_values_and_means_of_rows_and_which_are_done():
    kept = torch.ones(9, 4)
    kept[row_numbers.MASS] = 2.0
    values = torch.tensor([[1.0, 2.0], [1e31, 0.0], [1.0, 1.0], [torch.nan, 0.0]])
    slopes = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-2e31, -1e31], [0.0, 0.0]])
    found, good = row_numbers.value_and_mean(kept, values, slopes)
    assert good.tolist() == [True, False, False, False]
    assert (found[0], kept[-1, 0], kept[0, 0]) == (1.5, 3.5, 1.0)


def test_mass_less_one():
    x = torch.tensor([[0.0, -20.0, -1.0, -21.0]]).double()
    peak = x.view(1, 2, 2).amax(-1)
    below = (x.view(1, 2, 2).amin(-1) - peak).exp()
    found = row_numbers.less_one(below, torch.ones(1, 2).double(), peak, None)
    torch.testing.assert_close(found, (x.exp().sum(-1) - 1), rtol=1e-12, atol=0)
    shared, share = row_numbers.shares(peak, torch.tensor(0.5))
    assert shared.item() == 0
    assert share.tolist() == [[1.0, torch.tensor(-0.5).double().exp().item()]]


def test_a_reference_far_from_a_likeliest_token_that_it_has_not_is_left_to_the_careful_path():
    x, y = rows_of(torch.float32, 0.5)
    y[0, x[0].argmax()] = y[1, x[1].argmax()] = -INF
    y[1] += 690
    numbers = row_numbers.ratio_numbers(*sums(x, y, None, kl=False), None)
    assert numbers[row_numbers.MASS].isnan().tolist() == [True, False, False, False, False]
