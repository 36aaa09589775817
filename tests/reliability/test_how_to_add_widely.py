"""A divergence of one line passes every test of the floors that know divergences, in a copy."""

import pytest

from tests.house.test_how_to_add import CELLS, add_divergence, append, belongs, copy, into_dict, passed_in

__all__ = ["copy"]  # a fixture
FLOORS = ("tests/divergences", "tests/auditing", "tests/estimators", "tests/kernels", "tests/theory")


def add_the_pages(root):
    add_divergence(root)
    append(root, belongs("how-08"), CELLS["how-08"])


def add_le_cam(root):
    """A slope at t = 1 as it is registered, and a smallest and a largest slope."""
    append(root, belongs("how-04"), 'register_divergence("le_cam", (1 - T) / (1 + T), source="test")')
    into_dict(root, "tests/support/expected_verdicts.py", "F_AT_TWO", '    "le_cam": Rational(1, 6),')


@pytest.mark.reliability
@pytest.mark.parametrize("add", [add_the_pages, add_le_cam])
def test_every_test_of_the_floors_passes(copy, add):
    add(copy)
    assert passed_in(copy, "test", *FLOORS) >= 2900
