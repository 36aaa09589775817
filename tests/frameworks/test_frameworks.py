"""The adapters call what they say: numbers by hand, casts left in, formulas beside installed functions."""

import math

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.reading.precision import SinglesAsDoubles, exactly
from kl_companion.estimators.registry import get_estimator
from kl_companion.frameworks import setting, settings, trl
from kl_companion.frameworks.verl_algorithms import core
from tests.support.frameworks.by_hand import BY_HAND, rollout

INSTALLED = [s.name for s in settings() if s.installed]


@pytest.mark.parametrize("name", BY_HAND)
def test_a_number_by_hand(name):
    value = exactly(setting(name).loss)(rollout()).item()
    assert value == pytest.approx(BY_HAND[name], abs=1e-6)


def test_every_framework_has_a_number_by_hand():
    assert {n.partition(".")[0] for n in BY_HAND} == {s.framework.name for s in settings()}


@pytest.mark.parametrize("name", INSTALLED)
def test_leaving_out_the_casts_changes_rounding_only(name):
    """Value and gradient in float64 without casts, against float32 as a trainer would run it."""
    loss, found = setting(name).loss, {}
    for dtype in (torch.float32, torch.float64):
        r = rollout(dtype, sampler=(0.45, 0.21))  # inside PPO's clip range, not on its edge
        value = loss(r) if dtype is torch.float32 else exactly(loss)(r)
        (gradient,) = torch.autograd.grad(value, r.logits, allow_unused=True)
        found[dtype] = (value, torch.zeros_like(r.logits) if gradient is None else gradient)
    (value, gradient), (exact, slope) = found[torch.float32], found[torch.float64]
    assert exact.dtype == torch.float64
    assert value.item() == pytest.approx(exact.item(), abs=1e-5)
    assert (gradient - slope).abs().max() < 1e-5


def test_the_mode_reads_float32_as_float64_in_backward_functions_too():
    class Casting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.float() / 3

        @staticmethod
        def backward(ctx, g):
            return (g.to(torch.float32) / 3).to(torch.float64)

    def loss(r):
        return Casting.apply(r.logp).sum() + torch.zeros(()) + torch.tensor(0.1, dtype=torch.float64).float()

    r = rollout()
    exactly(loss)(r).backward()
    by_cast = torch.autograd.grad(loss(rollout()), rollout().logits, allow_unused=True)
    assert by_cast == (None,)
    plain = rollout()
    (plain.logp.sum() / 3).backward()
    assert torch.equal(r.logits.grad, plain.logits.grad)
    again = rollout()
    loss(again).backward()
    assert not torch.equal(again.logits.grad, plain.logits.grad)
    assert exactly(loss)(rollout()).item() == pytest.approx((plain.logp.sum() / 3).item() + 0.1, abs=1e-15)


def test_what_guards_a_division_is_left_out_and_nothing_else():
    x = torch.tensor([2.0], dtype=torch.float64)
    with SinglesAsDoubles():
        assert (x + 1e-8).item() == 2
        assert (x + 1e-4).item() == 2.0001
        assert (x - 1e-8).item() != 2


def test_a_compiled_loss_runs_as_it_is_written_and_nothing_around_it_is_compiled():
    seen = []

    def backend(graph, _):
        seen.append(graph)
        return graph.forward

    def loss(rollout):
        return (rollout.logp.float() - rollout.ref_logp.float()).square().sum()

    compiled = torch.compile(loss, backend=backend)
    assert torch.equal(exactly(compiled)(_batch()), exactly(loss)(_batch()))
    assert not seen


def _batch(seed=0):
    problem = prefix_tree(3, 3, seed=seed, eos=True, off_policy=True)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


@pytest.mark.parametrize("alpha", [0.6, 0.0, 1.0])
def test_sync_ref_model_is_an_ema_anchor(alpha):
    """TRL's own callback, twice, against the anchor's recursion with decay 1 - alpha."""
    from trl.trainer.callbacks import SyncRefModelCallback

    torch.manual_seed(0)
    model, reference = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    anchor, decay = reference.weight.detach().clone(), trl.anchor_decay(alpha)
    for _ in range(2):
        SyncRefModelCallback._sync_target_model(model, reference, alpha)
        anchor = decay * anchor + (1 - decay) * model.weight.detach()
    assert torch.allclose(reference.weight, anchor, atol=1e-7)
    assert decay == pytest.approx(1 - alpha)


def test_an_anchor_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"ref_model_mixup_alpha is 1\.5"):
        trl.anchor_decay(1.5)


def test_self_distillation_clips_its_ratio_at_two():
    """pi/mu is 2.5 and 0.8: a token counts twice at most, and not at all times its own score."""
    loss = exactly(setting("trl.sdpo").loss)
    r = rollout(sampler=(0.2, 0.25))
    wanted = (-2 * math.log(2) ** 2 + 0.8 * math.log(4) * math.log(5)) / 2
    assert loss(r).item() == pytest.approx(wanted, abs=1e-12)
    assert loss(rollout(off_policy=False)).item() == pytest.approx(
        (-(math.log(2) ** 2) + math.log(4) * math.log(5)) / 2, abs=1e-12
    )


def test_the_estimators_that_are_named_are_those_that_are_called():
    """verl's other names for its estimators are the same function."""
    x, y = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -0.5])
    penalty = core("kl_penalty")
    for name, also in (("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")):
        assert torch.equal(penalty(x, y, name), penalty(x, y, also))
        assert torch.allclose(penalty(x, y, name), get_estimator(name).fn(x, y))
