"""Quantiles of Student's distribution against integrals of its density."""

import mpmath
import pytest

from kl_companion.student_t import t_quantile

NINETY_FIVE = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 9: 2.26216, 10: 2.22814, 30: 2.04227}


def mass_by_integral(t, degrees):
    """Mass of (-t, t) under Student's distribution, by quadrature of its density."""
    v = mpmath.mpf(degrees)
    scale = mpmath.gamma((v + 1) / 2) / (mpmath.sqrt(v * mpmath.pi) * mpmath.gamma(v / 2))
    return 2 * mpmath.quad(lambda x: scale * (1 + x * x / v) ** (-(v + 1) / 2), [0, 1, 4, t])


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10, 61, 1000, 1001])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_quantile_against_the_integral_of_the_density(degrees, level):
    assert float(mass_by_integral(t_quantile(degrees, level), degrees)) == pytest.approx(level, abs=1e-9)


def test_quantile_as_printed_in_tables():
    for degrees, printed in NINETY_FIVE.items():
        assert t_quantile(degrees) == pytest.approx(printed, rel=3e-6)
    assert t_quantile(10**6) == pytest.approx(1.959966, abs=1e-6)
