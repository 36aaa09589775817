"""Rewards and costs compared within their group: numbers by hand, gradients, groups that are too small."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.rollout import CENTERINGS, center, leave_one_out
from tests.support.rollouts import doubles
from tests.support.transforms import host_reads

X = doubles(1.0, 10.0, 2.0, 30.0, 6.0)
PROMPTS = torch.tensor([7, -2, 7, -2, 7])  # any ids, in any order


def by_hand(x, prompts, how, eps):
    out = []
    for i, v in enumerate(x):
        group = [x[j] for j in range(len(x)) if prompts[j] == prompts[i]]
        mean = sum(group) / len(group)
        if how == "none":
            out.append(v)
        elif how == "mean":
            out.append(v - mean)
        elif how == "leave_one_out":
            out.append((v - mean) * len(group) / (len(group) - 1))
        else:
            out.append((v - mean) / (statistics.stdev(group) + eps))
    return out


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("none", [1, 10, 2, 30, 6]),
        ("mean", [1 - 3, 10 - 20, 2 - 3, 30 - 20, 6 - 3]),
        ("leave_one_out", [1 - 4, 10 - 30, 2 - 3.5, 30 - 10, 6 - 1.5]),
        (
            "standardized",  # standard deviations: sqrt(7) and sqrt(200)
            [-2 / 7**0.5, -10 / 200**0.5, -1 / 7**0.5, 10 / 200**0.5, 3 / 7**0.5],
        ),
    ],
)
def test_centering_by_hand(how, wanted):
    assert center(X, PROMPTS, how, eps=0.0).tolist() == pytest.approx(wanted, rel=1e-14)
    found = center(X.float(), PROMPTS, how, eps=0.0)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(wanted, rel=1e-6)


def test_whole_numbers_are_centered_like_others():
    rewards = torch.tensor([1, 0, 0, 1, 1])
    for how in ("mean", "leave_one_out", "standardized"):
        wanted = center(rewards.float(), PROMPTS, how).tolist()
        assert center(rewards, PROMPTS, how).tolist() == pytest.approx(wanted, rel=1e-6)


def test_the_defaults():
    assert torch.equal(center(X, PROMPTS), leave_one_out(X, PROMPTS))
    assert torch.equal(center(X, PROMPTS, "standardized"), center(X, PROMPTS, "standardized", eps=1e-4))
    assert CENTERINGS == ("none", "mean", "leave_one_out", "standardized")


def test_eps_keeps_a_group_of_equals_at_zero():
    equal = center(torch.full((3,), 5.0).double(), torch.zeros(3).long(), "standardized")
    assert equal.tolist() == [0.0, 0.0, 0.0]
    half = center(doubles(0.0, 2.0), torch.zeros(2).long(), "standardized", eps=2**0.5)
    assert half.tolist() == pytest.approx([-0.5 / 2**0.5, 0.5 / 2**0.5], rel=1e-14)


@pytest.mark.parametrize("how", ["mean", "leave_one_out", "standardized"])
@settings(max_examples=40)
@given(
    pairs=st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 2)), min_size=1, max_size=6),
    eps=st.sampled_from([1e-4, 0.5]),
)
def test_centering_is_that_of_the_loops(how, pairs, eps):
    x = [v / 8 for v, _ in pairs] + [v / 4 + 1 for v, _ in pairs]  # everybody has company
    prompts = [p for _, p in pairs] * 2
    found = center(torch.tensor(x, dtype=torch.float64), torch.tensor(prompts), how, eps=eps)
    assert found.tolist() == pytest.approx(by_hand(x, prompts, how, eps), rel=1e-11, abs=1e-11)


def test_a_group_of_one():
    lonely = torch.tensor([4, 9, 4])
    assert center(doubles(1.0, 2.0, 3.0), lonely, "mean").tolist() == [-1.0, 0.0, 1.0]
    assert center(doubles(1.0, 2.0, 3.0), lonely, "none").tolist() == [1.0, 2.0, 3.0]
    for how in ("leave_one_out", "standardized"):
        wanted = rf"prompt 9 has one sequence, expected at least two.*\(how='{how}'\)"
        with pytest.raises(ValueError, match=wanted):
            center(doubles(1.0, 2.0, 3.0), lonely, how)


@pytest.mark.parametrize("how", ["none", "mean", "leave_one_out", "standardized"])
def test_centering_maps_over_batches_and_reads_once(how):
    prompts = torch.tensor([3, -1, 3, -1, 3])
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.stack([center(row, prompts, how) for row in x])
    torch.testing.assert_close(torch.func.vmap(lambda row: center(row, prompts, how))(x), rows)
    assert len(host_reads(lambda: center(x[0], prompts, how))) <= 1
