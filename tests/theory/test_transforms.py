"""Reward transforms: equal optima for every ordered pair, the printed forms, curvature against numbers."""

import itertools
import math

import mpmath
import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES, T, make_divergence
from kl_companion.theory.optima import optimal_policy
from kl_companion.theory.transforms import (
    BETA,
    LAMBDA_1,
    LAMBDA_2,
    R,
    reward_transform,
    transform_shape,
    transformed_rewards,
)
from tests.support.derived import inverse_or_skip

SMOOTH = [name for name, d in DIVERGENCES.items() if d.smooth]
PAIRS = list(itertools.product(SMOOTH, SMOOTH))
# two transforms by way of reverse KL make any other, so these pairs are enough for a quick answer
IN_SYMBOLS = [pytest.param(*p, marks=() if "reverse_kl" in p else pytest.mark.slow) for p in PAIRS]
FLOOR = {name: float(sympy.limit(DIVERGENCES[name].derivative, T, 0, "+")) for name in SMOOTH}
CLIPPING = [name for name in SMOOTH if FLOOR[name] > -math.inf]


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def world(seed, vocab=5):
    generator = torch.Generator().manual_seed(seed)
    r, q = torch.randn(2, vocab, generator=generator, dtype=torch.float64)
    return r, (2 * q).log_softmax(-1)


def interior_beta(r, source):
    """Large enough that no token loses all mass: the multiplier is at most the largest reward."""
    return (r.max() - r.min()).item() / min(2.0, -FLOOR[source]) + 0.5


def formula_of(source, to):
    """The symbolic transform, where the slope of the source has a closed inverse."""
    inverse_or_skip(DIVERGENCES[source])
    return reward_transform(source, to)


def compiled(symbols, expr):
    """An expression as a function of floats, by mpmath: it knows LambertW and the like."""
    exact = sympy.lambdify(symbols, expr, "mpmath")

    def function(*values):
        with mpmath.workdps(30):
            return float(exact(*map(mpmath.mpf, values)))

    return function


@pytest.mark.parametrize(("source", "to"), PAIRS)
def test_optima_are_equal(source, to):
    for seed in range(2):
        r, q = world(seed)
        for beta in (interior_beta(r, source), 2 * interior_beta(r, source)):
            new = transformed_rewards(r, q, source, to, beta)
            wanted = optimal_policy(r, q, source, beta).logp
            torch.testing.assert_close(optimal_policy(new, q, to, beta).logp, wanted, rtol=1e-9, atol=1e-11)
            assert torch.equal(new.argsort(), r.argsort())


@pytest.mark.parametrize(("source", "to"), IN_SYMBOLS)
def test_the_formula_is_the_numbers(source, to):
    r, q = world(3)
    beta = interior_beta(r, source)
    level = optimal_policy(r, q, source, beta).multiplier.item()
    formula = compiled((R, BETA, LAMBDA_1, LAMBDA_2), formula_of(source, to))
    found = [formula(x, beta, level, level) for x in r.tolist()]
    torch.testing.assert_close(
        numbers(*found), transformed_rewards(r, q, source, to, beta), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(("source", "to"), IN_SYMBOLS)
def test_shape_agrees_with_second_differences(source, to):
    shape = transform_shape(source, to)
    assert shape.increasing
    formula = compiled([R], formula_of(source, to).subs({BETA: 1, LAMBDA_1: 0, LAMBDA_2: 0}))
    slope = compiled([T], DIVERGENCES[source].derivative)
    ratios = [math.exp(u / 10) for u in range(-30, 31)]
    rewards = [slope(t) for t in ratios]
    values = [formula(x) for x in rewards]
    steps = [
        (b - a) / (y - x)
        for (a, b), (x, y) in zip(itertools.pairwise(values), itertools.pairwise(rewards), strict=True)
    ]
    assert min(steps) > 0
    bends = [b - a for a, b in itertools.pairwise(steps)]
    size = 1e-9 * max(map(abs, steps))
    found = {math.copysign(1, b) for b in bends if abs(b) > size}
    wanted = {"convex": {1.0}, "concave": {-1.0}, "linear": set(), "mixed": {1.0, -1.0}}[shape.curvature]
    assert found == wanted
    assert bool(shape.turns_at) == (shape.curvature == "mixed")
    ends = [0.0, *map(float, shape.turns_at), math.inf]
    signs = [
        {math.copysign(1, b) for b, t in zip(bends, ratios[1:], strict=False) if 1.25 * low < t < 0.8 * high}
        for low, high in itertools.pairwise(ends)
    ]
    if shape.turns_at:  # one sign up to a turn, the other beyond; two turns may leave no room between them
        assert len(signs[0]) == 1
        assert len(signs[-1]) == 1 or len(signs) > 2
        assert all(len(s) <= 1 for s in signs)
        assert all(not a & b for a, b in itertools.pairwise(signs))
    near = (formula(1e-5) - formula(-1e-5)) / 2e-5
    assert near == pytest.approx(float(shape.slope), rel=1e-6)


def test_a_mixed_shape_with_two_turns():
    flat = make_divergence("flat_for_turns", (T - 1) ** 2, source="test")
    bumpy = make_divergence("bumpy_for_turns", (T - 1) ** 4 / (T + 1) ** 2 / 8 + (T - 1) ** 2, source="test")
    shape = transform_shape(flat, bumpy)
    assert shape.curvature in ("convex", "mixed")
    ratio = sympy.lambdify(T, sympy.diff(shape.ratio, T))
    signs = [math.copysign(1, ratio(t)) for t in (1e-3, 0.9, 1.1, 50.0)]
    assert (len(set(signs)) > 1) == (shape.curvature == "mixed")


def test_turns_that_no_formula_of_radicals_tells():
    # f'' are 1/t + 1/t^2 and 1/t + 18/(t + 2)^3: four roots of a quartic, two of them positive
    jeffreys = make_divergence("jeffreys_for_turns", (T - 1) * sympy.log(T), source="test")
    mixed = make_divergence("mixed_for_turns", T * sympy.log(T) + (T - 1) ** 2 / (T + 2), source="test")
    shape = transform_shape(jeffreys, mixed)
    assert (shape.increasing, shape.curvature) == (True, "mixed")
    assert [float(t) for t in shape.turns_at] == pytest.approx([3.10069, 26.248], rel=1e-5)


@pytest.mark.parametrize("source", CLIPPING)
def test_clipped_tokens_stay_clipped_where_they_can(source):
    r, q = numbers(-3.0, -2.0, 0.0, 1.0), numbers(0.4, 0.3, 0.2, 0.1).log()
    wanted = optimal_policy(r, q, source, 0.5).logp
    assert wanted.isneginf().sum() >= 1
    for to in SMOOTH:
        if to in CLIPPING:
            new = transformed_rewards(r, q, source, to, 0.5)
            torch.testing.assert_close(optimal_policy(new, q, to, 0.5).logp, wanted)
            assert torch.equal(new.argsort(), r.argsort())
        else:
            with pytest.raises(ValueError, match=rf"takes all mass from token \[0\].* under '{to[:5]}"):
                transformed_rewards(r, q, source, to, 0.5)


def test_rows_and_masked_tokens():
    r = torch.stack([world(s)[0] for s in range(3)])
    q = torch.stack([world(s)[1] for s in range(3)])
    q[1, 2] = -math.inf
    q = q.log_softmax(-1)
    beta = numbers(3.0, 4.0, 5.0)
    new = transformed_rewards(r, q, "forward_kl", "reverse_kl", beta)
    for i in range(3):
        one = transformed_rewards(r[i], q[i], "forward_kl", "reverse_kl", beta[i].item())
        torch.testing.assert_close(new[i], one)
    assert new[1, 2] == r[1, 2]


@pytest.mark.parametrize("name", SMOOTH)
def test_the_same_divergence_changes_nothing(name):
    r, q = world(1)
    torch.testing.assert_close(transformed_rewards(r, q, name, name, 4.0), r)
    formula = compiled((R, BETA, LAMBDA_1, LAMBDA_2), formula_of(name, name))
    assert [formula(x, 9.0, 0.25, 0.25) for x in r.tolist()] == pytest.approx(r.tolist(), abs=1e-12)
