"""The lag behind a moving anchor: formulas against loops over plain floats and small matrices."""

import itertools
import math

import pytest
import torch

from kl_companion.theory import ema
from kl_companion.theory.ema import (
    lag_bound,
    lag_factor,
    lag_matrix,
    oscillation_threshold,
    regime,
    simulate_lag,
    stability_threshold,
    steady_kl,
    steady_lag,
    window,
)

DECAYS = (0.0, 0.3, 0.9, 0.99)
STEPS = (1, 2, 3, 10, 40)
PAIRS = [(decay, steps) for decay in DECAYS for steps in STEPS]


def loop(a, decay, steps, order, cycles, *, push=0.0, start=0.0):
    """Lags of one mode, in floats: (after every gradient step, those that the moves of the anchor find)."""
    policy, anchor = start, 0.0
    lags, found = [start], []
    for _ in range(cycles):
        for step in range(steps):
            new = policy - a * (policy - anchor) + push
            if step == steps - 1:
                seen = {"new": new, "old": policy}[order]
                found.append(seen - anchor)
                anchor += (1 - decay) * (seen - anchor)
            policy = new
            lags.append(policy - anchor)
    return lags, found


def fisher(d=4, seed=0, largest=1.0):
    """A random matrix with d eigenvalues from 0 to ``largest``."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return q @ torch.diag(torch.linspace(0, largest, d, dtype=torch.float64)) @ q.mT


def vector(d=4, seed=1):
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# one mode


@pytest.mark.parametrize("order", ema.ORDERS)
@pytest.mark.parametrize(("decay", "steps"), PAIRS)
def test_the_factor_is_what_a_cycle_of_the_loop_does(decay, steps, order):
    for a in (0.0, 0.2, 0.95, 1.0, 1.5, 2.2):
        lags, _ = loop(a, decay, steps, order, 1, start=1.0)
        assert lag_factor(a, decay, steps=steps, order=order) == pytest.approx(lags[-1], rel=1e-10, abs=1e-13)


def test_the_factor_of_a_tensor_is_that_of_its_entries():
    a = torch.tensor([[0.0, 0.4], [1.2, 2.5]], dtype=torch.float64)
    for order in ema.ORDERS:
        got = lag_factor(a, 0.7, steps=3, order=order)
        wanted = [[lag_factor(x, 0.7, steps=3, order=order) for x in row] for row in a.tolist()]
        assert got.tolist() == wanted
    assert lag_factor(a.float(), 0.7).dtype == torch.float32


@pytest.mark.parametrize("order", ema.ORDERS)
@pytest.mark.parametrize(("decay", "steps"), PAIRS)
def test_below_the_threshold_the_loop_decays_and_above_it_grows(decay, steps, order):
    edge = stability_threshold(decay, steps=steps, order=order)
    if math.isinf(edge):  # the anchor jumps to the policy: nothing is left after a cycle
        assert (decay, order) == (0.0, "new")
        for a in (0.5, 3.0, 30.0):
            assert loop(a, decay, steps, order, 1, start=1.0)[0][-1] == 0
        return
    cycles = 60
    below, at, above = (
        abs(loop(edge * (1 + shift), decay, steps, order, cycles, start=1.0)[0][-1])
        for shift in (-1e-3, 0, 1e-3)
    )
    assert at == pytest.approx(1, rel=1e-6)
    assert below < 0.99
    assert above > 1.01
    for a in torch.linspace(0, 0.999 * edge, 50).tolist():  # nothing below it grows
        assert abs(loop(a, decay, steps, order, 1, start=1.0)[0][-1]) < 1


@pytest.mark.parametrize("order", ema.ORDERS)
@pytest.mark.parametrize(("decay", "steps"), [p for p in PAIRS if p[0] > 0])
def test_signs_flip_just_above_the_oscillation_threshold_and_not_below(decay, steps, order):
    edge = oscillation_threshold(decay, steps=steps, order=order)

    def flips(a):
        lags, _ = loop(a, decay, steps, order, 4, start=1.0)
        return any(x * y < 0 for x, y in itertools.pairwise(lags))

    assert not any(flips(x * edge) for x in (0.0, 0.1, 0.5, 0.9, 0.999))
    assert flips(1.001 * edge)


def test_regimes_have_their_names():
    names = [regime(0.9, 0.1, 1.0, x, order="old").name for x in (0, 9, 9.1, 18.9, 19, 19.1)]
    assert names == ["monotone", "monotone", "oscillating", "oscillating", "marginal", "unstable"]
    edge = 1 + 0.9 ** (-1 / 6)
    names = [
        regime(0.9, 0.1, 1.0, 10 * x, period=3, inner_steps=2).name
        for x in (0, 1, 1.01, 0.999 * edge, edge, 2.1)
    ]
    assert names == ["monotone", "monotone", "oscillating", "oscillating", "marginal", "unstable"]


def test_a_regime_holds_its_numbers():
    got = regime(0.5, 0.2, 3.0, 4.0, period=2, inner_steps=2)
    assert got.a == pytest.approx(2.4)
    assert got.factor == pytest.approx(0.5 * 1.4**4)
    assert got.threshold == pytest.approx(1 + 2**0.25)
    assert regime(0.0, 1.0, 1.0, 1e9, period=100).name == "oscillating"  # no average: nothing stays
    assert regime(0.9, 1.0, 1.0, 1e9, period=100) == ("unstable", math.inf, 1e9, 1 + 0.9**-0.01)
    assert stability_threshold(5e-324) > 1e300


# matrices


@pytest.mark.parametrize("order", ema.ORDERS)
@pytest.mark.parametrize(("period", "inner_steps"), [(1, 1), (3, 1), (2, 5)])
def test_the_lag_matrix_is_the_loop_on_every_basis_vector(order, period, inner_steps):
    f = fisher(largest=3.0)
    got = lag_matrix(0.8, 0.5, 0.7, f, period=period, inner_steps=inner_steps, order=order)
    a, modes = torch.linalg.eigh(0.35 * f)
    steps = period * inner_steps
    factors = [loop(x, 0.8, steps, order, 1, start=1.0)[0][-1] for x in a.tolist()]
    assert torch.allclose(
        got, modes @ torch.diag(torch.tensor(factors, dtype=f.dtype)) @ modes.mT, atol=1e-12
    )
    assert got.dtype == torch.float64


@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_window_is_k_steps_of_the_recursion(k):
    f, g, decay, lr, beta = fisher(3, largest=3.0), vector(3), 0.9, 0.3, 1.3
    d, s, m, block = window(decay, lr, beta, f, k)
    sums, double = torch.zeros_like(f), torch.zeros_like(f)
    for _ in range(k):  # M adds up the S before the newest power joins
        double = double + sums
        sums = torch.eye(3, dtype=f.dtype) + d @ sums
    assert torch.allclose(d, decay * torch.eye(3, dtype=f.dtype) - lr * beta * f)
    assert torch.allclose(s, sums, atol=1e-12)
    assert torch.allclose(m, double, atol=1e-12)
    weights, anchor = vector(3, 5), vector(3, 6)
    start = torch.cat([weights, weights - anchor, g])
    for _ in range(k):
        weights, anchor = (
            weights + lr * g - lr * beta * f @ (weights - anchor),
            decay * anchor + (1 - decay) * weights,
        )
    assert torch.allclose(block @ start, torch.cat([weights, weights - anchor, g]), atol=1e-12)


@pytest.mark.parametrize("order", ema.ORDERS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_simulation_is_the_loop(order, steps):
    f, g, start = fisher(3, largest=2.0), vector(3), vector(3, 3)
    path = simulate_lag(0.8, 0.4, 1.1, f, g, cycles=4, period=steps, order=order, start=start)
    assert path.lag.shape == path.weights.shape == (4 * steps + 1, 3)
    a, modes = torch.linalg.eigh(f)
    for i, x in enumerate(a.tolist()):
        v = modes[:, i]
        lags, found = loop(
            0.44 * x, 0.8, steps, order, 4, push=0.4 * (g @ v).item(), start=(start @ v).item()
        )
        assert (path.lag @ v).tolist() == pytest.approx(lags, abs=1e-12)
        assert (path.before @ v).tolist() == pytest.approx(found, abs=1e-12)
    moved = 0.4 * g - 0.44 * path.lag[:-1] @ f  # every step sees the lag of its moment
    assert torch.allclose(path.weights[0], torch.zeros_like(g))
    assert torch.allclose(path.weights.diff(dim=0), moved, atol=1e-12)
    still = simulate_lag(0.8, 0.4, 1.1, f, cycles=2)
    assert still.lag.abs().max() == 0


# the lag that a constant gradient holds


@pytest.mark.parametrize("order", ema.ORDERS)
@pytest.mark.parametrize(("decay", "steps"), [(0.0, 3), (0.5, 1), (0.5, 2), (0.9, 1), (0.9, 10), (0.7, 4)])
def test_the_steady_lag_is_where_the_loop_ends(order, decay, steps):
    f, g = fisher(largest=1.2), vector()
    before, after = (
        steady_lag(decay, 0.5, 1.0, f, g, period=steps, order=order, moment=m) for m in ema.MOMENTS
    )
    a, modes = torch.linalg.eigh(f)
    for i, x in enumerate(a.tolist()):
        v = modes[:, i]
        lags, found = loop(0.5 * max(x, 0.0), decay, steps, order, 400, push=0.5 * (g @ v).item())
        assert (before @ v).item() == pytest.approx(found[-1], abs=1e-10)
        assert (after @ v).item() == pytest.approx(lags[-1], abs=1e-10)
    wanted = 0.5 * sum(x * (v @ before) ** 2 for x, v in zip(a, modes.mT, strict=True))
    assert steady_kl(decay, 0.5, 1.0, f, g, period=steps, order=order) == pytest.approx(
        wanted.item(), rel=1e-9
    )


@pytest.mark.parametrize("order", ema.ORDERS)
@pytest.mark.parametrize("moment", ema.MOMENTS)
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_the_bound_holds_while_no_mode_oversteps_and_is_reached_without_a_kl(order, moment, steps):
    g = vector()
    for decay in DECAYS:
        bound = lag_bound(decay, 0.3, g.norm().item(), period=steps, order=order, moment=moment)
        free = steady_lag(decay, 0.3, 0.0, fisher(), g, period=steps, order=order, moment=moment)
        assert free.norm().item() == pytest.approx(bound, rel=1e-12)
        edge = stability_threshold(decay, steps=steps, order=order)
        reach = 0.999 * min(edge, 50.0) if steps == 1 else min(1.0, 0.999 * edge)
        for a in torch.linspace(0, reach, 40).tolist():
            f = torch.eye(4, dtype=torch.float64) * a
            lag = steady_lag(decay, 0.3, 1 / 0.3, f, g, period=steps, order=order, moment=moment)
            assert lag.norm().item() <= bound * (1 + 1e-12)


# what is refused
