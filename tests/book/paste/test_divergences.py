"""Divergences as the page reads them are those of the registry."""

import json

import pytest
import torch

from kl_book.paste import divergences as page
from kl_book.paste.recorded import recorded
from kl_companion.divergences import (
    DIVERGENCES,
    SUPPORT,
    compiled,
    get_divergence,
    printed,
    stable_generator,
    stable_slope,
)

U = torch.tensor([-40.0, -3.0, -1e-3, 0.0, 1e-3, 0.7, 3.0, 40.0], dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def records():
    found = json.loads(json.dumps(recorded(), allow_nan=False))
    page.read(found)
    return found


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_recorded_divergence_has_the_same_functions(name):
    ours, theirs = page.get_divergence(name), get_divergence(name)
    assert (ours.name, ours.source, ours.smooth, ours.edges) == (
        theirs.name,
        theirs.source,
        theirs.smooth,
        theirs.edges,
    )
    assert not theirs.smooth or ours.curvature == float(theirs.curvature)
    for u in (U, U[1:-1]):
        for dual in (False, True):
            assert torch.equal(
                page.stable_generator(ours, u, dual=dual), stable_generator(theirs, u, dual=dual)
            )
        assert torch.equal(page.stable_slope(ours, u), stable_slope(theirs, u))
    for slope in (False, True):
        pairs = zip(page.terms_of_log(ours, slope), compiled.terms_of_log(theirs, slope), strict=True)
        for (k, fn), (power, function) in pairs:
            assert k == power
            assert torch.equal(fn(U), function(U))
    assert page.printed(ours) == printed(theirs)


def test_what_was_not_recorded_is_refused():
    assert page.SUPPORT == SUPPORT
    assert page.get_divergence(page.get_divergence("pearson")).name == "pearson"
    with pytest.raises(ValueError, match="Did you mean 'amari_alpha"):
        page.get_divergence("amari_alpha(0.3)")
    with pytest.raises(ValueError, match="pearsen"):
        page.get_divergence("pearsen")


def test_recorded_fields_are_those_of_the_worlds(records):
    from kl_companion.auditing.worlds.objectives import OBJECTIVES, field, objectives, value
    from kl_companion.auditing.worlds.trees import Condition, worlds

    assert len(records["fields"]) == 8
    for data, vocab, places in records["fields"]:
        condition = Condition(*data)
        assert set(objectives(off_policy=condition.off_policy, lengths=condition.eos)) == set(places[0])
        problem = worlds(condition, vocab)[1].problem
        for name in ("token_reverse_kl", "sequence_pearson", "expected_reward"):
            found, gradient = places[1][name]
            assert found == pytest.approx(value(OBJECTIVES[name], problem), rel=1e-12)
            exact = field(OBJECTIVES[name], problem)
            assert torch.allclose(torch.tensor(gradient, dtype=torch.float64), exact, rtol=1e-11, atol=1e-14)
