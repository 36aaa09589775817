"""Measurements on a KL term that no estimator fits, or that only seems to be one."""

from __future__ import annotations

import torch

from kl_companion.monitor.doctor.probing import NEAR, POSITION, ROW, SMALL, Probe
from kl_companion.monitor.doctor.readings import (
    NOTHING,
    TermForm,
    factor,
    fit_both,
    fit_change,
    fit_mixture,
    same,
)

_LOWERED = 1.5  # of both models' logits of one token


def entropy_beside(probe: Probe) -> bool:
    """Whether what acts with equal models and rewards is a bonus or a malus of the policy's entropy."""
    z = (probe.policy_logits[ROW, POSITION] / probe.temperature).detach().clone().requires_grad_()
    with torch.enable_grad():
        logp = z.log_softmax(-1)
        (wanted,) = torch.autograd.grad(-(logp.exp() * logp).sum(), z)
    x = factor(wanted, probe.alike.completion[ROW, POSITION])
    return x is not None and abs(x) > NOTHING


def of_log_ratios(probe: Probe) -> bool:
    """Whether the term depends on the log-ratio alone: both models are made less sure of the token."""
    form = probe.form
    if form is None or probe.placement != "loss":
        return True
    moves = NEAR[::2]
    here, there = (probe.curve(moves, lowered=x) for x in (0.0, _LOWERED))
    wanted = [probe.expected(x.delta) for x in (here, there)]
    changes = [x - x[0] for x in (here.own, there.own)]
    expected = [x - x[0] for x in wanted]
    if not same(changes[0], expected[0], 1e-3):
        return True  # something else depends on the policy: nothing can be told
    return same(changes[1], expected[1], 1e-2)


def twice(probe: Probe) -> tuple[TermForm, TermForm] | None:
    """The KL in the reward and that in the loss, where the step has both."""
    if probe.placement != "reward":
        return None
    later = [probe.coefficients(probe.run(bumped=(ROW, POSITION + 1, x), apart=SMALL))[ROW] for x in (-1, 1)]
    change = later[1] - later[0]
    if not same(change[POSITION - 1], change[POSITION]):
        return None  # a discount: what is charged earlier is less
    curve = probe.near
    in_reward = fit_change(curve.delta, curve.before)
    return fit_both(curve.delta, in_reward, curve.own - curve.before)


def rises_with_ratio(probe: Probe) -> bool:
    """Whether the gradient is that of some f-divergence: gradient over probability rises with the ratio."""
    rollout, (_, t) = probe.world().rollout, probe.divergence
    assert rollout.ref_logits is not None
    p, q = ((x / t).softmax(-1) for x in (probe.policy_logits, rollout.ref_logits))
    inside = rollout.completion_mask.bool()
    ratio, push = (p / q)[inside], (probe.plain.completion / p)[inside]
    rising = push.gather(-1, ratio.argsort(-1)).diff(dim=-1)
    return bool((rising >= -1e-4 * push.abs().amax(-1, keepdim=True)).all())


def mixture(probe: Probe) -> str:
    """The mixture of reverse and forward KL whose gradient a whole distribution has, in words."""
    ref_logits = probe.world().rollout.ref_logits
    assert ref_logits is not None
    both = [x[ROW, POSITION] / probe.temperature for x in (probe.policy_logits, ref_logits)]
    return fit_mixture(probe.plain.completion[ROW, POSITION], *both)
