"""The same random numbers as PyTorch's, one by one and in blocks."""

import pytest
import torch

from tests.support.stand_in import OURS

ours = OURS["torch"]
SHAPES = ((), (3,), (2, 3), (15,), (16,), (17,), (4, 10), (5, 16))


@pytest.mark.parametrize("seed", [0, 1, 88, 2**31])
@pytest.mark.parametrize("shape", SHAPES)
def test_seeded_numbers(seed, shape):
    theirs, own = (space.Generator().manual_seed(seed) for space in (torch, ours))
    for _ in range(2):
        for name, near in (("randn", 1e-13), ("rand", 0.0)):
            want = getattr(torch, name)(shape, generator=theirs, dtype=torch.float64)
            found = getattr(ours, name)(shape, generator=own)
            torch.testing.assert_close(
                torch.tensor(found.tolist(), dtype=torch.float64), want, rtol=near, atol=near
            )


def test_a_generator_is_seeded_as_pytorch_seeds_it():
    want = torch.randn(3, generator=torch.Generator(), dtype=torch.float64)
    assert ours.randn(3, generator=ours.Generator()).tolist() == pytest.approx(want.tolist(), rel=1e-13)


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_a_loss_that_draws_is_refused(name):
    with pytest.raises(AttributeError, match="a loss that draws"):
        getattr(ours, name)(2)


@pytest.mark.parametrize("count", [1, 5, 100])
def test_the_same_order(count):
    want = torch.randperm(count, generator=torch.Generator().manual_seed(7)).tolist()
    assert ours.randperm(count, generator=ours.Generator().manual_seed(7)).tolist() == want
