"""On the worlds of an audit, what is tried together is told apart: no field is a short sum of others."""

import random
from functools import cache

import pytest
import torch

from kl_companion.auditing.fit.least_squares import sums
from kl_companion.auditing.worlds.objectives import (
    FORWARD_TO_SAMPLER,
    LIKELIHOOD,
    OBJECTIVES,
    fields_and_values,
    objectives,
)
from kl_companion.auditing.worlds.trees import Condition, worlds

STALE = [Condition(True, lengths, scale) for lengths in (False, True) for scale in (1.0, 4.0)]
SEED, TRIPLES = 7, 6


@cache
def fields(condition):
    """Of every objective that is tried for a loss of sampled tokens, its fields on all worlds in a row."""
    known = objectives(off_policy=True, lengths=condition.eos, heads=False)
    places = [fields_and_values(known, w.problem) for w in worlds(condition, 3)]
    return {n: torch.cat([place[n][1].flatten() for place in places]) for n in known}


@pytest.mark.parametrize("condition", STALE)
def test_no_objective_is_another_one_or_a_sum_of_two(condition):
    known = fields(condition)
    for name, field in known.items():
        others = {n: f for n, f in known.items() if n != name}
        for found, residual in sums(field, others, max_terms=2):
            assert not found, (name, found)
            assert residual > 1e-4, name


@pytest.mark.parametrize("condition", STALE)
def test_a_sum_of_three_is_found_and_no_other_one(condition):
    known = fields(condition)
    draw = random.Random(SEED)
    for _ in range(TRIPLES):
        chosen = draw.sample(sorted(known), 3)
        mine = sum(c * known[n] / known[n].norm() for n, c in zip(chosen, (1.0, -0.4, 0.1), strict=True))
        every = [set(s) for found, _ in sums(mine, known, max_terms=3) for s in found]
        assert every == [set(chosen)], chosen


def test_the_one_pair_that_coincides_is_known():
    forward, likelihood = (OBJECTIVES[n] for n in (FORWARD_TO_SAMPLER, LIKELIHOOD))
    for condition in STALE:
        both = fields_and_values({"a": forward, "b": likelihood}, worlds(condition, 3)[0].problem)
        torch.testing.assert_close(both["a"][1], -both["b"][1], rtol=1e-10, atol=1e-14)
        assert FORWARD_TO_SAMPLER not in objectives(off_policy=True)


def test_on_fresh_samples_distances_to_the_sampler_have_no_gradient():
    known = {n: o for n, o in OBJECTIVES.items() if o.sampler and not o.rewards}
    assert len(known) > 15
    place = worlds(Condition(False, True, 1.0), 3)[0].problem
    for name, (value, field) in fields_and_values(known, place).items():
        assert abs(value) < 1e-14, name
        assert field.norm() < 1e-14, name
