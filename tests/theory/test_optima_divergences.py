"""The optimum of every divergence: against a direct optimizer, at extremes, clipped, outside the support."""

import math

import mpmath
import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES, T, get_divergence, inverse_slope, make_divergence
from kl_companion.theory.optima import increasing_root, multiplier_range, optimal_policy, policy_at
from kl_companion.theory.slopes import slope_of
from tests.oracles.optima import OUTSIDE, SLOPES, best_policy

SMOOTH = [name for name, d in DIVERGENCES.items() if d.smooth]
CLIPPING = ("pearson", "power_divergence(1.5)", "power_divergence(3)")


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def logs(*probabilities):
    return numbers(*probabilities).log()


def world(seed, vocab=5, *, spread=1.0, zero=False):
    generator = torch.Generator().manual_seed(seed)
    r, q = torch.randn(2, vocab, generator=generator, dtype=torch.float64)
    q = spread * q
    if zero:
        q[seed % vocab] = -math.inf
    return r, q.log_softmax(-1)


def assert_is_best(name, r, q, beta, *, outside="forbidden"):
    found = optimal_policy(r, q, name, beta, outside=outside).logp.exp()
    wanted = best_policy(name, r.tolist(), q.exp().tolist(), beta)
    torch.testing.assert_close(found, numbers(*wanted), rtol=0, atol=1e-8)
    return found


def test_the_oracle_knows_every_divergence():
    assert set(SMOOTH) <= set(SLOPES)
    for name, slope in SLOPES.items():
        derivative = sympy.lambdify(T, get_divergence(name).derivative)
        for t in (0.1, 0.7, 1.0, 3.0, 20.0):
            assert slope(t) == pytest.approx(derivative(t), abs=1e-12), name
    for name in SLOPES:
        limit = get_divergence(name).at_infinity
        assert (float(limit) if limit.is_finite else None) == pytest.approx(OUTSIDE.get(name)), name


@pytest.mark.parametrize("name", SLOPES)
def test_equals_a_direct_optimizer(name):
    clipped = 0
    for seed in range(4):
        r, q = world(seed, zero=seed == 3)
        for beta in (0.15, 0.7, 4.0):
            found = assert_is_best(name, r, q, beta)
            clipped += int(((found == 0) & (q > -math.inf)).sum())
    assert (clipped > 0) == (name in CLIPPING)


def exact_policy(name, r, q, beta):
    """The conditions of optimality solved with 200 digits, by the symbolic inverse of the slope."""
    d = get_divergence(name)
    mpmath.mp.dps = 200
    inverse = sympy.lambdify(sympy.Symbol("s", real=True), inverse_slope(d), "mpmath")
    low, high = (mpmath.mpf(sympy.N(x, 200)) if x.is_finite else None for x in d.slope_range)
    r, q = [mpmath.mpf(x) for x in r.tolist()], [mpmath.mpf(x) for x in q.exp().tolist()]
    total, beta = mpmath.fsum(q), mpmath.mpf(beta)
    support = [i for i in range(len(q)) if q[i] > 0]

    def mass(level):
        masses = [mpmath.mpf(0)] * len(q)
        for i in support:
            s = (r[i] - level) / beta
            if high is not None and s >= high:
                return None
            if low is None or s > low:
                masses[i] = q[i] / total * inverse(s)
        return masses

    top = max(r[i] for i in support)
    bottom = top - beta * (high if high is not None else mpmath.mpf(10) ** 16)
    for _ in range(700):
        level = (bottom + top) / 2
        masses = mass(level)
        if masses is None or mpmath.fsum(masses) > 1:
            bottom = level
        else:
            top = level
    return [float(m) for m in mass(top)], float(top)


EXTREMES = [(1e6, 1e-6, 1.0), (1e6, 1e6, 1.0), (1e-6, 1e6, 1.0), (1.0, 1e-6, 30.0), (1e6, 1.0, 100.0)]


@pytest.mark.parametrize(
    "name", ["forward_kl", "squared_hellinger", "pearson", "neyman", "power_divergence(1.5)"]
)
@pytest.mark.parametrize(("reward", "beta", "spread"), EXTREMES)
def test_extremes_agree_with_200_digits(name, reward, beta, spread):
    for seed in range(2):
        r, q = world(seed, 4, spread=spread, zero=seed == 1)
        r = (r * reward).clamp(-1e6, 1e6)
        logp, multiplier = optimal_policy(r, q, name, beta)
        wanted, level = exact_policy(name, r, q, beta)
        torch.testing.assert_close(logp.exp(), numbers(*wanted), rtol=1e-9, atol=1e-12)
        assert multiplier.item() == pytest.approx(level, rel=1e-12, abs=1e-12 * (1 + beta + reward))


def test_the_pivot_keeps_what_the_best_token_cannot_hold():
    # ratio of the best token about 1e12: its rounding alone is 1e-4 of the other token's mass
    q = numbers(1e-13, 1 - 1e-13).log()
    r = numbers(2e6, 0.0)
    found = optimal_policy(r, q, "pearson", 1e-6).logp.exp()
    wanted, _ = exact_policy("pearson", r, q, 1e-6)
    torch.testing.assert_close(found, numbers(*wanted), rtol=1e-12, atol=0.0)
    assert 0.1 < found[1] < 0.9


@pytest.mark.parametrize("name", SMOOTH)
def test_the_multiplier_lies_in_its_range_and_gives_the_policy_back(name):
    for seed in range(3):
        r, q = world(seed, zero=seed == 2)
        for beta in (0.2, 2.0):
            logp, multiplier = optimal_policy(r, q, name, beta)
            above, interior = multiplier_range(r, q, name, beta)
            assert multiplier > above
            assert bool(multiplier < interior) == bool((logp > -math.inf)[q > -math.inf].all())
            torch.testing.assert_close(policy_at(multiplier, r, q, name, beta).exp(), logp.exp())
            higher = policy_at(multiplier + 0.01, r, q, name, beta).exp().sum()
            lower = (
                policy_at(multiplier - 0.01 * (multiplier - above).clamp(max=1), r, q, name, beta).exp().sum()
            )
            assert higher < 1 < lower


def test_a_multiplier_without_a_policy_is_refused():
    r, q = numbers(0.0, 1.0), logs(0.5, 0.5)
    policy_at(1e-3, r, q, "forward_kl", 1.0)
    policy_at(-1e3, r, q, "reverse_kl", 1.0)


# where the reference has no mass


@pytest.mark.parametrize("name", OUTSIDE)
def test_mass_outside_the_support_where_it_is_allowed(name):
    for seed in range(4):
        r, q = world(seed, 4, zero=True)
        r[seed % 4] = r.max() + (0.02, 0.3, 1.0, 20.0)[seed]
        found = assert_is_best(name, r, q, 0.5, outside="allowed")
        assert found[3] > 0.1 or seed < 3
        assert optimal_policy(r, q, name, 0.5).logp[seed % 4] == -math.inf
        r[seed % 4] = r.min() - 1.0
        inside = optimal_policy(r, q, name, 0.5, outside="allowed")
        for a, b in zip(inside, optimal_policy(r, q, name, 0.5), strict=True):
            torch.testing.assert_close(a, b)


def test_mass_outside_the_support_by_hand():
    # log p_0 + 10 (1 - p_0) is largest at p_0 = 1/10
    found = optimal_policy(numbers(0.0, 10.0), logs(1.0, 0.0), "forward_kl", outside="allowed")
    torch.testing.assert_close(found.logp.exp(), numbers(0.1, 0.9))
    assert found.multiplier.item() == pytest.approx(9.0)
    # two equal prizes share
    three = optimal_policy(numbers(0.0, 10.0, 10.0), logs(1.0, 0.0, 0.0), "forward_kl", outside="allowed")
    torch.testing.assert_close(three.logp.exp(), numbers(0.1, 0.45, 0.45))
    for name in ("reverse_kl", "pearson", "power_divergence(1.5)"):
        stays = optimal_policy(numbers(0.0, 10.0), logs(1.0, 0.0), name, outside="allowed")
        torch.testing.assert_close(stays.logp.exp(), numbers(1.0, 0.0))


# total variation


def test_total_variation_moves_all_that_is_more_than_beta_below_the_best():
    r, q = numbers(0.0, 0.55, 1.0, 0.45), logs(0.1, 0.2, 0.3, 0.4)
    found = optimal_policy(r, q, "total_variation", 0.5)
    torch.testing.assert_close(found.logp.exp(), numbers(0.0, 0.2, 0.8, 0.0))
    assert found.multiplier.item() == pytest.approx(0.75)
    torch.testing.assert_close(optimal_policy(r, q, "total_variation", 1.0).logp.exp(), q.exp())
    tied = optimal_policy(numbers(0.0, 1.0, 1.0), logs(0.4, 0.2, 0.4), "total_variation", 0.5)
    torch.testing.assert_close(tied.logp.exp(), numbers(0.0, 1 / 3, 2 / 3))


def test_total_variation_outside_the_support():
    r, q = numbers(0.0, 0.9, 2.0), logs(0.5, 0.5, 0.0)
    torch.testing.assert_close(optimal_policy(r, q, "total_variation").logp.exp(), numbers(0.5, 0.5, 0.0))
    moved = optimal_policy(r, q, "total_variation", outside="allowed").logp.exp()
    torch.testing.assert_close(moved, numbers(0.0, 0.0, 1.0))


def test_multiples_of_total_variation_and_other_kinks():
    double = make_divergence("twice_tv", sympy.Abs(T - 1), source="test", derivative=sympy.sign(T - 1))
    r, q = numbers(0.0, 0.55, 1.0, 0.45), logs(0.1, 0.2, 0.3, 0.4)
    torch.testing.assert_close(
        optimal_policy(r, q, double, 0.25).logp, optimal_policy(r, q, "total_variation", 0.5).logp
    )


# many rows, many tokens, other generators


@pytest.mark.parametrize("name", [*SMOOTH, "total_variation"])
def test_rows_are_solved_together_as_alone(name):
    r = torch.stack([world(s, spread=2.0)[0] * (s + 0.1) for s in range(4)])
    q = torch.stack([world(s, spread=6.0, zero=s == 3)[1] for s in range(4)])
    beta = numbers(1e-3, 0.3, 5.0, 0.02)
    together = optimal_policy(r, q, name, beta)
    for i in range(4):
        alone = optimal_policy(r[i], q[i], name, beta[i].item())
        torch.testing.assert_close(together.logp[i].exp(), alone.logp.exp(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(together.multiplier[i], alone.multiplier, rtol=1e-12, atol=1e-12)
    grid = optimal_policy(r[0], q[0], name, beta)  # one row at every strength
    assert (grid.logp.shape, grid.multiplier.shape) == ((4, 5), (4,))
    torch.testing.assert_close(grid.logp[0], together.logp[0])


@pytest.mark.parametrize("name", SMOOTH)
def test_a_vocabulary_of_fifty_thousand(name):
    generator = torch.Generator().manual_seed(0)
    r, q = torch.randn(2, 50_000, generator=generator, dtype=torch.float64)
    q = (4 * q).log_softmax(-1)
    logp, multiplier = optimal_policy(r, q, name, 0.1)
    assert logp.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    slope = slope_of(get_divergence(name))
    kept = logp > -math.inf
    worth = (r - 0.1 * (slope.of_log(logp - q) + slope.origin))[kept]
    torch.testing.assert_close(worth, multiplier.expand_as(worth), rtol=1e-9, atol=1e-9)


def test_a_slope_without_closed_inverse_is_inverted_by_halving():
    jeffreys = make_divergence("jeffreys_here", (T - 1) * sympy.log(T), source="test")
    assert not slope_of(jeffreys).closed
    r, q = world(3)
    logp, multiplier = optimal_policy(r, q, jeffreys, 0.5)
    slope = (logp - q) - (q - logp).exp() + 1  # log t - 1/t + 1
    torch.testing.assert_close(r - 0.5 * slope, multiplier.expand(5), rtol=0, atol=1e-12)
    assert logp.exp().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [3, 10])
def test_a_generator_times_c_is_beta_times_c(scale):
    lecam = make_divergence("lecam_here", (T - 1) ** 2 / (T + 1), source="test")
    scaled = make_divergence("lecam_scaled", scale * (T - 1) ** 2 / (T + 1), source="test")
    r, q = world(2)
    torch.testing.assert_close(
        optimal_policy(r, q, scaled, 0.1).logp.exp(), optimal_policy(r, q, lecam, 0.1 * scale).logp.exp()
    )


def test_a_reference_with_one_token():
    for name in [*SMOOTH, "total_variation"]:
        found = optimal_policy(numbers(5.0, 7.0), logs(1.0, 0.0), name, 0.3)
        torch.testing.assert_close(found.logp.exp(), numbers(1.0, 0.0))
        if name != "total_variation":
            assert found.multiplier.item() == pytest.approx(5.0)


def test_the_root_finder_on_hard_functions():
    low, high = numbers(0.0, 0.0, 0.0, 0.0, -5.0), numbers(4.0, 4.0, 4.0, 4.0, 5.0)

    def function(x):
        return torch.stack(
            [
                x[0] ** 9 - 1e-9,
                torch.where(x[1] > 3, math.inf, x[1] - 3),
                x[2] + 1.0,  # no change of sign: the low end
                x[3] - 9.0,  # none either: the high end
                torch.where(x[4] < 1, -1.0, 1.0),  # a jump
            ]
        )

    root = increasing_root(function, low, high)
    torch.testing.assert_close(root, numbers(0.1, 3.0, 0.0, 4.0, 1.0), rtol=1e-12, atol=1e-12)
