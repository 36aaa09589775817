"""Least squares over known fields, and the curl of a field, by hand."""

from itertools import combinations

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.fit.least_squares import curl, explain, jacobian, sums
from kl_companion.auditing.reading.subject import as_loss

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


@pytest.mark.parametrize("beside", [(), ("f0", "f1")])
@pytest.mark.parametrize("planted", [("f7",), ("f2", "f9"), ("f3", "f5", "f8"), ("f0", "f2", "f4", "f6"), ()])
def test_every_sum_is_looked_at(planted, beside):
    draw = torch.Generator().manual_seed(len(planted))
    fields = {f"f{i}": torch.randn(40, generator=draw, dtype=torch.float64) for i in range(10)}
    fields["f9 again"] = -3 * fields["f9"]
    gradient = torch.randn(40, generator=draw, dtype=torch.float64)
    if planted:
        gradient = sum(fields[n] * (k + 1.5) for k, n in enumerate(planted))

    def left(names):
        matrix = torch.stack([fields[n] for n in names], 1)
        solution = torch.linalg.lstsq(matrix, gradient.unsqueeze(-1), driver="gelsd").solution
        return ((matrix @ solution).squeeze(-1) - gradient).norm() / gradient.norm()

    for terms, (found, best) in enumerate(sums(gradient, fields, beside=beside), 1):
        asked = [c for c in combinations(fields, terms) if terms <= 3 and not set(c) & set(beside)]
        asked += [
            (r, *c) for r in beside for c in combinations([n for n in fields if n not in beside], terms - 1)
        ]
        residuals = {frozenset(c): float(left(c)) for c in asked}
        independent = {c for c, x in residuals.items() if x < 1e-9 and not {"f9", "f9 again"} <= c}
        assert independent <= {frozenset(x) for x in found}
        assert best == pytest.approx(min(residuals.values()), abs=2e-8)
        assert all(residuals[frozenset(x)] < 1e-9 for x in found)


def test_explain_finds_every_equally_short_sum():
    a, b, c = torch.eye(3, dtype=torch.float64)
    found, residual = explain(2 * a + b, {"a": a, "b": b, "c": c, "sum": 2 * a + b})
    assert found == ({"sum": 1.0},)
    assert residual < 1e-12
    found, _ = explain(a + b, {"a": a, "b": b, "c": c})
    assert found == ({"a": 1.0, "b": 1.0},)
    found, residual = explain(c, {"a": a, "b": b})
    assert found == ()
    assert residual == pytest.approx(1.0)


def test_curl_of_a_gradient_and_of_a_rotation():
    problem = prefix_tree(2, 2, seed=1)
    assert curl(as_loss("k2", level="sequence"), problem) < 1e-7
    assert curl(as_loss("k2"), problem) > 0.01


def test_the_jacobian_of_a_field():
    """Of (x, y) to (x y, 3 x) it is ((y, x), (3, 0)); outputs are rows."""
    at = torch.tensor([2.0, 5.0], dtype=torch.float64)
    found = jacobian(lambda x: torch.stack([x[0] * x[1], 3 * x[0]]), at, 1e-3)
    assert torch.allclose(found, torch.tensor([[5.0, 2.0], [3.0, 0.0]], dtype=torch.float64))
