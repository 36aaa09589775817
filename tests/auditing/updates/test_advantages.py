"""Advantages of groups: by hand, over every order of the others, and where there are none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kl_companion.auditing.updates import ADVANTAGES, normalizer
from kl_companion.auditing.updates.advantages import whitened
from tests.oracles import updates as oracle

COMPARING = [name for name in ADVANTAGES if name != "none"]


def doubles(x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


SD, OTHERS = math.sqrt(14 / 3), math.sqrt(2.0)
ONE_GROUP = {  # of 1, 2, 3, 6: mean 3, variance 14/3 (n - 1) or 14/4
    ("none", True): [1, 2, 3, 6],
    ("mean", True): [-2, -1, 0, 3],
    ("leave_one_out", True): [-8 / 3, -4 / 3, 0, 4],
    ("group_std", True): [x / (SD + 0.5) for x in (-2, -1, 0, 3)],
    ("group_std", False): [x / (math.sqrt(3.5) + 0.5) for x in (-2, -1, 0, 3)],
    ("batch_std", False): [x / (math.sqrt(3.5) + 0.5) for x in (-2, -1, 0, 3)],
    ("whitened", True): [x / math.sqrt(14 / 3 + 0.5) for x in (-2, -1, 0, 3)],
    ("whitened", False): [x / 2 for x in (-2, -1, 0, 3)],
    ("others_std", True): [
        (-8 / 3) / (math.sqrt(13 / 3) + 0.5),
        (-4 / 3) / (math.sqrt(19 / 3) + 0.5),
        0.0,
        4 / 1.5,
    ],
}


@pytest.mark.parametrize(("how", "unbiased"), ONE_GROUP)
def test_one_group_by_hand_beside_another(how: Any, unbiased: bool) -> None:
    groups = doubles([[1, 2, 3, 6], [5, 5, 5, 5]])
    found = normalizer(how, eps=0.5, unbiased=unbiased)(groups)
    assert found[0].tolist() == pytest.approx(ONE_GROUP[how, unbiased], rel=1e-14)
    assert found[1].tolist() == ([5.0] * 4 if how == "none" else [0.0] * 4)


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("how", COMPARING)
def test_equal_returns_leave_nothing_whatever_the_eps(how: Any, eps: float) -> None:
    found = normalizer(how, eps=eps)(doubles([[0.1] * 7]))
    assert found.abs().max() < 1e-15
    if how in ("group_std", "batch_std", "whitened"):
        assert found.abs().max() == 0


def test_an_eps_if_none_is_said() -> None:
    x = doubles([[0.0, 1.0]])
    assert normalizer("group_std")(x)[0, 1].item() == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4), rel=1e-14)
    assert whitened(x)[0, 1].item() == pytest.approx(0.5 / math.sqrt(0.5 + 1e-8), rel=1e-14)


@pytest.mark.parametrize("n", [4, 70])
@pytest.mark.parametrize("how", ADVANTAGES)
def test_groups_may_stand_in_any_number_of_axes(how: Any, n: int) -> None:
    groups = torch.randn(2, 3, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = normalizer(how, eps=0.1)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(made(groups)[i, j], made(groups[i, j]), rtol=1e-13, atol=1e-13)


def test_others_that_agree_do_not_divide() -> None:
    x = doubles([[1.0, 0.0, 0.0], [0.0, 4.0, 2.0]])
    found = normalizer("others_std", eps=0.1, unbiased=False)(x)
    assert found[0].tolist() == pytest.approx([1.0, -0.5 / 0.6, -0.5 / 0.6])
    assert found[1].tolist() == pytest.approx([-3 / 1.1, 3 / 1.1, 0.0])
    two = normalizer("others_std", eps=0.1)(doubles([[1.0, 3.0]]))  # one other has no deviation
    assert two[0].tolist() == [-2.0, 2.0]


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("last", [[7.0], [0.0], [1.0, 2.0, 3.0]])
def test_many_others_are_compared_by_sums(last: list[float], unbiased: bool) -> None:
    x = [0.0] * 70 + last
    found = normalizer("others_std", eps=0.1, unbiased=unbiased)(doubles([x, x[::-1]]))
    o = {"advantage": "others_std", "eps": 0.1, "ddof": int(unbiased)}
    wanted = oracle.compared(x, None, len(x), o)
    assert found[0].tolist() == pytest.approx(wanted, rel=1e-11, abs=1e-15)
    assert found[1].tolist() == pytest.approx(wanted[::-1], rel=1e-11, abs=1e-15)


def test_a_floor_of_the_variance_and_a_mean_that_stays() -> None:
    x = doubles([[0.0, 2.0]])  # variance 2
    assert whitened(x, 4.0, floor="least")[0].tolist() == [-0.5, 0.5]
    assert whitened(x, 1.0, floor="least")[0].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert whitened(x, 2.0, floor="added")[0].tolist() == [-0.5, 0.5]
    assert whitened(x, 3.0, unbiased=False)[0].tolist() == [-0.5, 0.5]
    assert whitened(x, 2.0, keep_mean=True)[0].tolist() == [0.5, 1.5]
    assert whitened(doubles([[0.1] * 3]), 0.0, floor="least", keep_mean=True)[0].tolist() == pytest.approx(
        [0.1] * 3
    )


@given(
    st.sampled_from(["mean", "leave_one_out", "group_std", "whitened", "others_std"]),
    st.lists(st.integers(-50, 50), min_size=2, max_size=6),
    st.integers(-9, 9),
    st.booleans(),
)
def test_a_constant_is_not_seen_and_a_unit_only_by_what_is_not_divided(
    how: Any, values: list[int], shift: int, unbiased: bool
) -> None:
    x, made = doubles([values]), normalizer(how, eps=0.0, unbiased=unbiased)
    torch.testing.assert_close(made(x + shift), made(x), rtol=1e-9, atol=1e-9)
    if how in ("mean", "leave_one_out"):
        torch.testing.assert_close(made(2 * x), 2 * made(x))
    elif how != "others_std":
        torch.testing.assert_close(made(2 * x), made(x), rtol=1e-9, atol=1e-9)
        n = len(values)
        assert (made(x) ** 2).sum().item() == pytest.approx(
            (n - unbiased) if len(set(values)) > 1 else 0.0, abs=1e-9
        )
    order = torch.arange(len(values) - 1, -1, -1)
    torch.testing.assert_close(made(x[:, order]), made(x)[:, order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("how", COMPARING)
@pytest.mark.parametrize("n", [0, 1])
def test_one_answer_has_nothing_to_be_compared_with(how: Any, n: int) -> None:
    what = "token" if how == "whitened" else "answer"
    why = f"advantage='{how}' got a group of {n} {what}, expected at least two: nothing is left to compare"
    with pytest.raises(ValueError, match=why):
        normalizer(how)(torch.zeros(3, n).double())
    assert normalizer("none")(torch.ones(3, n)).shape == (3, n)
