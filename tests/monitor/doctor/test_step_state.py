"""The variables of a step are put back, wherever it keeps them; chance starts from a seed."""

import random
from types import SimpleNamespace

import numpy as np
import torch

from kl_companion.monitor.doctor.step_state import StepState, seeded

COUNTS = {"n": 0}
TOTAL = 0
MODEL = torch.nn.Linear(2, 2)
CONTROL = SimpleNamespace(beta=1.0, history=[])


def helper():
    COUNTS["n"] += 1


def step(model=None, batch=None, seen=[]):  # noqa: B006 (what a user may write)
    global TOTAL
    TOTAL += 1
    helper()
    CONTROL.beta *= 2
    CONTROL.history.append(MODEL)
    seen.append(1)
    step.calls = getattr(step, "calls", 0) + 1


def test_global_variables_defaults_and_objects_are_put_back():
    step.calls = 0
    held, seen = CONTROL, step.__defaults__[2]
    state = StepState(step)
    assert state.changed() == ()
    for _ in range(2):
        step()
        assert set(state.changed()) == {"COUNTS", "TOTAL", "CONTROL", "step.calls", "a default of step"}
        state.restore()
        assert (COUNTS["n"], TOTAL, CONTROL.beta, CONTROL.history, seen, step.calls) == (0, 0, 1.0, [], [], 0)
    assert CONTROL is held
    assert MODEL.weight.shape == (2, 2)


def test_closures_and_objects_that_are_called():
    mean = torch.zeros(2)
    n = 3

    def inner():
        nonlocal n
        n += 1
        mean.add_(1.0)

    state = StepState(inner)
    inner()
    assert set(state.changed()) == {"n", "mean"}
    state.restore()
    assert (n, mean.tolist()) == (3, [0.0, 0.0])

    class Controlled:
        def __init__(self):
            self.beta = 0.1

        def __call__(self):
            self.beta += 1

        def method(self):
            self.beta += 2

    for owner in (Controlled(), Controlled()):
        for call in (owner, owner.method):
            state = StepState(call)
            call()
            assert state.changed() == ("self.beta",)
            state.restore()
            assert owner.beta == 0.1


def test_what_cannot_be_copied_stays():
    generator = (x for x in range(3))

    def inner():
        return next(generator)

    state = StepState(inner)
    inner()
    state.restore()
    assert inner() == 1


def test_a_model_that_is_kept_is_noticed_where_nothing_was():
    kept = None

    def inner():
        nonlocal kept
        kept = torch.nn.Linear(1, 1)

    state = StepState(inner)
    assert not state.holds_module(True)
    inner()
    assert state.holds_module(True)
    assert not state.holds_module(False)


def test_chance_starts_from_a_seed_and_goes_on_as_it_was():
    def drawn():
        return random.random(), np.random.rand(), torch.rand(()).item()

    def begin():
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)

    begin()
    expected = drawn()
    begin()
    with seeded(1):
        first = drawn()
    with seeded(1):
        assert drawn() == first
    with seeded(2):
        assert drawn() != first
    assert drawn() == expected
