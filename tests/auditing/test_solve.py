"""Least squares over known fields, and the curl of a field, by hand."""

import pytest
import torch

from kl_companion.auditing.solve import explain

FIELDS = dict(zip("abcd", torch.eye(4, 6, dtype=torch.float64), strict=True))


def test_the_shortest_sum_is_found_with_its_coefficients():
    found, residual = explain(2 * FIELDS["a"] - 0.5 * FIELDS["c"], FIELDS)
    assert found == ({"a": 2.0, "c": -0.5},)
    assert residual < 1e-12


def test_every_sum_of_that_length_is_found():
    fields = {**FIELDS, "e": FIELDS["a"] + FIELDS["b"]}
    found, _ = explain(FIELDS["a"] + 3 * FIELDS["b"], fields)
    assert {frozenset(match) for match in found} == {frozenset(x) for x in ("ab", "ae", "be")}
    assert {"b": 2.0, "e": 1.0} in found


@pytest.mark.parametrize(("most", "found"), [({}, 0), ({"max_terms": 3}, 0), ({"max_terms": 4}, 1)])
def test_longer_sums_are_not_tried_unasked(most, found):
    matches, residual = explain(sum(FIELDS.values()), FIELDS, **most)
    assert len(matches) == found
    # without the fourth of four equal parts, half of the length is left
    assert residual == pytest.approx(0.0 if found else 0.5, abs=1e-12)


def test_a_field_that_is_zero_explains_nothing():
    found, _ = explain(FIELDS["a"], {"zero": torch.zeros(6, dtype=torch.float64), **FIELDS})
    assert found == ({"a": 1.0},)
