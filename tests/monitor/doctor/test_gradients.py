"""Gradients are read when they are computed, and compared with what an optimizer reads."""

import pytest
import torch

from kl_companion.monitor.doctor.step import ExaminedStep
from kl_companion.monitor.doctor.world import REWARDS, world
from tests.support.small_steps import step_of

WORLD = world(rewards=REWARDS)
LOSS = step_of()


def run(step):
    return ExaminedStep(step).run(WORLD)


PLAIN = run(LOSS)


def whole(before=lambda model, optimizer: None, after=lambda model, optimizer: None):
    """A whole step with an optimizer of its own, and something before and after the optimizer's step."""

    def step(model, ref_model, batch):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        LOSS(model, ref_model, batch).backward()
        before(model, optimizer)
        optimizer.step()
        after(model, optimizer)

    return step


def clip(model, optimizer):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


@pytest.mark.parametrize(
    ("step", "steps", "scale"),
    [
        (LOSS, 0, 1.0),
        (whole(), 1, 1.0),
        (whole(after=lambda model, optimizer: optimizer.zero_grad()), 1, 1.0),
        (whole(before=lambda model, optimizer: optimizer.zero_grad()), 1, 0.0),
        (whole(before=clip), 1, None),
    ],
)
def test_the_gradient_is_the_same_and_what_arrives_is_told(step, steps, scale):
    seen = run(step)
    torch.testing.assert_close(seen.completion, PLAIN.completion)
    assert (seen.arrival.steps, seen.arrival.parallel) == (steps, True)
    if scale is None:
        assert 0 < seen.arrival.scale < 0.1
        assert seen.arrival.line.text == "optimizer.step()"
    else:
        assert seen.arrival.scale == pytest.approx(scale)
    assert seen.arrival.whole == (scale != 0)


def test_a_loss_that_is_returned_after_its_backward_counts_once():
    def step(model, ref_model, batch):
        loss = LOSS(model, ref_model, batch)
        loss.backward()
        return loss

    torch.testing.assert_close(run(step).completion, PLAIN.completion)


def test_updates_are_measured_at_one_policy_and_a_leftover_is_told():
    def twice(zero):
        def step(model, ref_model, batch):
            optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
            for rows in ([0, 1, 2], [3, 4, 5]):
                if zero:
                    optimizer.zero_grad()
                LOSS(model, ref_model, batch.rows(rows)).backward()
                optimizer.step()

        return step

    right, wrong = run(twice(True)), run(twice(False))
    torch.testing.assert_close(right.completion, 2 * PLAIN.completion)
    assert (right.arrival.steps, right.arrival.parallel, right.arrival.leftover) == (2, True, False)
    assert (wrong.arrival.parallel, wrong.arrival.leftover) == (False, True)


def test_a_gradient_that_is_changed_entry_by_entry():
    seen = run(whole(before=lambda model, o: torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)))
    assert (seen.arrival.parallel, seen.arrival.leftover) == (False, False)
    assert seen.completion.equal(PLAIN.completion)


def test_what_is_zeroed_last_and_what_never_was():
    def zeroed(model, ref_model, batch):
        LOSS(model, ref_model, batch).backward()
        model.zero_grad()

    assert (run(zeroed).arrival.steps, run(zeroed).arrival.scale) == (0, 0.0)
    assert run(lambda model, batch: torch.zeros(())).arrival.scale == 1.0
