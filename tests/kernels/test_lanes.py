"""Pairs of bfloat16 numbers against the numbers themselves."""

import pytest
import torch

from kl_companion.kernels import lanes
from kl_companion.kernels.lanes import PAIRS

INF = float("inf")


def numbers(count):
    """float32 numbers of all sizes, halfway cases of bfloat16 among them."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, generator=draw) * 10.0 ** torch.randint(-30, 30, (count,), generator=draw)
    between = x.to(torch.bfloat16).view(torch.int16).to(torch.int32) << 16
    x[::2] = (between | 0x8000).view(torch.float32)[::2]
    return torch.cat([x, torch.tensor([0.0, -0.0, INF, -INF, 3.39e38, -3.4e38])])


def test_pairs_are_read_and_written_as_their_numbers():
    wide = numbers(4002).view(2, -1)
    narrow = wide.to(torch.bfloat16)
    read = lanes.load_lanes(narrow.view(PAIRS), torch.float32, None)
    assert torch.equal(torch.stack(read, -1).view(2, -1), narrow.float())
    for dtype in (torch.float32, torch.float64):
        written = torch.empty_like(narrow)
        lanes.store(written.view(PAIRS), [wide[:, 0::2].to(dtype), wide[:, 1::2].to(dtype)])
        assert torch.equal(written, narrow)


def test_nan_stays_nan():
    x = torch.tensor([[float("nan"), 1.0, -float("nan"), 2.0]])
    written = torch.zeros(1, 4, dtype=torch.bfloat16)
    lanes.store(written.view(PAIRS), [x[:, 0::2], x[:, 1::2]])
    assert written.isnan().tolist() == [[True, False, True, False]]


def test_soft_caps_are_passed_lane_by_lane():
    raw = torch.tensor([[-60.0, -3.0, 0.5, 90.0]], dtype=torch.bfloat16)
    low, high = lanes.load_lanes(raw.view(PAIRS), torch.float64, torch.tensor(30.0, dtype=torch.float64))
    want = 30 * torch.tanh(raw.double() / 30)
    torch.testing.assert_close(torch.stack([low, high], -1).view(1, -1), want)
    slope = lanes.past_cap(torch.ones(1, 4), want, torch.tensor(30.0))
    torch.testing.assert_close(slope.double(), 1 - torch.tanh(raw.double() / 30) ** 2)


def test_what_is_no_pair():
    x = torch.zeros(3, 9, dtype=torch.bfloat16)
    assert lanes.in_pairs(x[:, :8].contiguous())
    assert not lanes.in_pairs(x)  # an odd length
    assert not lanes.in_pairs(x.view(-1)[1:25].view(3, 8))  # it starts between two pairs
    assert not lanes.in_pairs(x[:, :8].contiguous(), torch.zeros(3, 8))


@pytest.mark.parametrize("no_p", [True, False])
@pytest.mark.parametrize("no_q", [True, False])
def test_what_is_masked(no_p, no_q):
    x, y = torch.tensor([1.0, -INF, -INF, 1.0]), torch.tensor([1.0, 2.0, -INF, -INF])
    low = torch.tensor(lanes.LOWEST).item()
    found = lanes.both_finite(x, y, no_p=no_p, no_q=no_q)
    assert found[0].tolist() == [1.0, low if no_p else -INF, low, 1.0]
    assert found[1].tolist() == [1.0, 2.0, low, low if no_q else -INF]
    assert lanes.finite(torch.tensor([float("nan"), -INF])).isnan().tolist() == [True, False]
