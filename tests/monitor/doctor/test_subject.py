"""What is seen of a loss: gradients in the tables, whoever calls ``backward``; what is no loss is refused."""

from types import SimpleNamespace

import pytest
import torch

from kl_companion.monitor.doctor.subject import scalar_of, seen
from kl_companion.monitor.doctor.tiny_model import Body
from kl_companion.monitor.doctor.tracing import POLICY, REFERENCE, Trace
from kl_companion.monitor.doctor.world import world

WORLD = world()


def bodies():
    return Body(WORLD, POLICY), Body(WORLD, REFERENCE)


def test_gradients_are_read_from_every_table():
    policy, reference = bodies()

    def loss():
        return (
            2 * policy.completion[1, 2, 3]
            - 3 * policy.prompt.sum()
            + policy.beyond[0, 0, 0]
            - 0.5 * policy.stray[0, 0, :2].sum()
            - 4 * reference.completion[0, 0, 0]
        )

    found = seen(loss, policy, reference)
    wanted = torch.zeros_like(found.completion)
    wanted[1, 2, 3] = 2.0
    assert found.completion.equal(wanted)
    assert found.prompt == 3 * policy.prompt.numel()
    assert (found.beyond, found.stray, found.reference) == (1.0, 1.0, 4.0)
    assert found.loss == pytest.approx(loss().item())
    again = seen(lambda: policy.completion.sum(), policy, reference)  # nothing is left of the last time
    assert again.completion.eq(1.0).all()
    assert (again.prompt, again.reference) == (0.0, 0.0)


def test_a_policy_that_is_its_own_reference_has_no_gradient_twice():
    policy, _ = bodies()
    assert seen(lambda: policy.completion.sum(), policy, policy).reference == 0.0


@pytest.mark.parametrize("kept", [True, False])
def test_a_loss_that_calls_backward_itself(kept):
    policy, reference = bodies()
    stock = torch.Tensor.backward

    def loss():
        total = 0.0
        for scale in (1.0, 3.0):
            part = scale * policy.completion[0, 0].sum()
            part.backward()
            total += part.item()
        return torch.tensor(total) if kept else None

    found = seen(loss, policy, reference)
    assert found.completion[0, 0].tolist() == [4.0] * 4
    assert found.loss == pytest.approx(4 * policy.completion[0, 0].sum().item(), rel=1e-6)
    assert torch.Tensor.backward is stock


def test_a_trace_keeps_what_the_loss_is_made_of_whoever_calls_backward():
    policy, reference = bodies()
    trace = Trace()

    def loss():
        x = policy.completion * 1
        trace.label(x, POLICY)
        x.exp().mean()  # for the log
        x.sum().backward()

    seen(loss, policy, reference, trace)
    assert [op.name for op in trace.operations] == ["sum"]


def test_without_a_loss_or_without_a_gradient():
    policy, reference = bodies()
    nothing = seen(lambda: None, policy, reference)
    assert nothing.loss == 0.0
    assert nothing.completion.equal(torch.zeros_like(policy.completion))
    assert seen(lambda: torch.tensor(2.0), policy, reference).loss == 2.0


@pytest.mark.parametrize("x", [float("nan"), float("inf")])
def test_a_loss_that_is_no_finite_number_is_refused(x):
    stock = torch.Tensor.backward
    with pytest.raises(ValueError, match=f"loss of the small world is {x}, expected a finite number"):
        seen(lambda: torch.tensor(x), *bodies())
    assert torch.Tensor.backward is stock


ONE = torch.tensor(1.0)


@pytest.mark.parametrize(
    "out", [ONE, ONE.reshape(1, 1), (ONE, 3), [ONE], {"loss": ONE, "kl": 2}, SimpleNamespace(loss=(ONE,))]
)
def test_the_loss_in_what_a_step_returns(out):
    assert scalar_of(out, "a").shape == ()
    assert scalar_of(out, "a") == 1.0


@pytest.mark.parametrize("out", [None, 0.5, 3, {"loss": 0.5}, {"kl": ONE}, (None,)])
def test_no_loss_is_returned_after_backward(out):
    assert scalar_of(out, "a") is None
