"""verl's actor as a step; the parts that are verl's own are out of its installed files."""

import pytest
import torch

from kl_companion.frameworks.installed import Unavailable
from kl_companion.monitor.doctor import verl_actor
from kl_companion.monitor.doctor.step import ExaminedStep
from kl_companion.monitor.doctor.verl_actor import actor_step
from kl_companion.monitor.doctor.world import REWARDS, world

AT = world(rewards=REWARDS)


def gradient(weights, kl, temperature=1.0):
    """Of a policy-gradient loss with that KL of a token, by the policy's logits; weights [6, 4]."""
    rollout = AT.rollout
    logits = rollout.logits.detach().clone().requires_grad_()
    pick = rollout.tokens.unsqueeze(-1)
    logp, ref = (
        (x / temperature).log_softmax(-1).gather(-1, pick).squeeze(-1) for x in (logits, rollout.ref_logits)
    )
    advantages = ((REWARDS - REWARDS.mean()) / (REWARDS.std() + 1e-6)).unsqueeze(-1)
    terms = -(logp - logp.detach()).exp() * advantages + kl(logp, ref)
    return torch.autograd.grad((terms * weights).sum(), logits)[0]


MASK = AT.rollout.completion_mask


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token-mean", MASK / 18),
        ("seq-mean-token-sum", MASK / 6),
        ("seq-mean-token-mean", MASK / MASK.sum(-1, keepdim=True) / 6),
    ],
)
def test_a_step_is_its_formula(mode, weights):
    step = actor_step(kl_loss_coef=0.2, kl_loss_type="mse", loss_agg_mode=mode)
    seen = ExaminedStep(step, summed=True).run(AT)
    wanted = gradient(weights, lambda logp, ref: 0.2 * (logp - ref) ** 2 / 2)
    torch.testing.assert_close(seen.completion, wanted, rtol=1e-5, atol=1e-7)


def test_temperature_and_no_term():
    from kl_companion.monitor.doctor.subject import Declared

    step = actor_step(use_kl_loss=False, temperature=0.7)
    seen = ExaminedStep(step, Declared(temperature=0.7)).run(AT)
    wanted = gradient(MASK / 18, lambda logp, ref: 0 * logp, 0.7)
    torch.testing.assert_close(seen.completion, wanted, rtol=1e-5, atol=1e-7)


def test_another_advantage():
    step = actor_step(advantage="compute_rloo_outcome_advantage")
    found = step.advantages(REWARDS, MASK.long())
    left_out = torch.stack([r - (REWARDS.sum() - r) / 5 for r in REWARDS])
    torch.testing.assert_close(found, left_out.unsqueeze(-1) * MASK)


def test_without_verl(monkeypatch):
    def missing():
        raise Unavailable("verl is not installed")

    monkeypatch.setattr(verl_actor, "ppo_loss", missing)
    with pytest.raises(Unavailable, match="verl is not installed"):
        actor_step()
