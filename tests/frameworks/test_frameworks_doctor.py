"""The doctor on trainers as they are shipped, and on subclasses with one mistake: TRL, verl, the own loop."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

import copy
from typing import Any

import pytest
import torch

from kl_book.faults import examined, trl_trainers
from kl_book.faults.catalog import TRL_CASES, found
from kl_companion.llm.settings import Settings
from kl_companion.monitor.doctor import diagnose
from kl_companion.monitor.doctor.trainers import ExaminedTrainer
from kl_companion.monitor.doctor.verl_actor import actor_step
from kl_companion.monitor.doctor.world import REWARDS, world


@pytest.mark.parametrize("name", TRL_CASES)
def test_a_trainer_of_trl(name: str) -> None:
    case = TRL_CASES[name]
    diagnosis = examined(case)
    assert found(case, diagnosis), str(diagnosis)
    if not case.fault:
        assert diagnosis.healthy


def said(diagnosis: Any, name: str) -> str:
    """What was found of one thing."""
    return next(f.said for f in diagnosis.findings if f.name == name)


def test_what_is_said_of_sound_trainers_is_what_they_do() -> None:
    grpo = examined(TRL_CASES["trl_grpo_with_kl"])
    assert said(grpo, "form") == (
        "The KL of a token is K3 with the gradient of K2 (K3++), in the loss."  # K3 times the ratio
    )
    rloo = examined(TRL_CASES["trl_rloo"])
    assert said(rloo, "form") == "The KL of a token is K1, in the reward."
    none = examined(TRL_CASES["trl_grpo"])
    assert "no KL term: nothing reads the reference (beta is 0)" in said(none, "reference")


def test_a_trainer_is_the_same_afterwards() -> None:
    trainer = trl_trainers.made("GRPO", beta=0.04, num_iterations=2)
    trainer.model.eval()
    ids = torch.tensor([[3, 4, 5, 6]])

    def state() -> dict[str, Any]:
        return {
            "attributes": {n: id(x) for n, x in vars(trainer).items() if n not in ("_metrics", "_logs")},
            "metrics": copy.deepcopy(trainer._metrics),
            "logs": {n: list(x) if not isinstance(x, dict) else dict(x) for n, x in trainer._logs.items()},
            "args": dict(vars(trainer.args)),
            "state": copy.deepcopy(vars(trainer.state)),
            "modules": [(n, id(m)) for n, m in trainer.model.named_modules()],
            "parameters": [(n, id(p)) for n, p in trainer.model.named_parameters()],
            "of the reference": [(n, id(m)) for n, m in trainer.ref_model.named_modules()],
            "gradients": [p.grad for p in trainer.model.parameters()],
            "training": [m.training for m in trainer.model.modules()],
            "autocast": "autocast" in vars(trainer.accelerator),
            "output": trainer.model(input_ids=ids).logits.tolist(),
        }

    before = state()
    diagnosis = diagnose(trainer, update=False)
    assert diagnosis.healthy, str(diagnosis)
    after = state()
    for name, x in before.items():
        assert after[name] == x, name


def test_settings_of_a_trainer_are_read() -> None:
    made = trl_trainers.made("GRPO", beta=0.04, temperature=0.7, top_k=5, num_iterations=3)
    declared = ExaminedTrainer(made).declared
    assert (declared.temperature, declared.top_k, declared.beta) == (0.7, 5, 0.04)
    assert declared.updates == 3
    assert not declared.teacher
    assert not declared.engine
    assert declared.accumulate == made.args.gradient_accumulation_steps
    teacher = ExaminedTrainer(trl_trainers.made("GKD")).declared
    assert (teacher.teacher, teacher.updates) == (True, 1)


def test_a_step_of_grpo_is_the_formula_of_its_documentation() -> None:
    """Per-token K3 and a ratio of 1, averaged over all tokens of the batch: TRL's default loss."""
    at = world(ExaminedTrainer(made := trl_trainers.made("GRPO", beta=0.3)).ids, rewards=REWARDS)
    seen = ExaminedTrainer(made).run(at)
    rollout = at.rollout
    logits = rollout.logits.detach().clone().requires_grad_()
    pick = rollout.tokens.unsqueeze(-1)
    logp = logits.log_softmax(-1).gather(-1, pick).squeeze(-1)
    ref = rollout.ref_logits.log_softmax(-1).gather(-1, pick).squeeze(-1)
    advantages = (REWARDS - REWARDS.mean()) / (REWARDS.std() + 1e-4)
    terms = -(logp - logp.detach()).exp() * advantages.unsqueeze(-1)
    k3 = (ref - logp).exp() - (ref - logp) - 1
    terms = terms + 0.3 * (logp - logp.detach()).exp() * k3  # TRL multiplies the KL by the ratio too
    mask = rollout.completion_mask
    loss = (terms * mask).sum() / mask.sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(seen.completion, gradient, rtol=1e-5, atol=1e-7)
    assert seen.loss == pytest.approx(loss.item(), rel=1e-5)


NAMES = {
    "low_var_kl": "K3",
    "mse": "K2",
    "abs": "the absolute log-ratio",
    "low_var_kl+": "K3 with the gradient of K2 (K3++)",
}


@pytest.mark.parametrize("kind", NAMES)
def test_the_actor_of_verl(kind: str) -> None:
    step = actor_step(kl_loss_coef=0.1, kl_loss_type=kind)
    diagnosis = diagnose(step, update=False, summed=True, accumulate=2)
    assert diagnosis.healthy, str(diagnosis)
    assert said(diagnosis, "form").startswith(f"The KL of a token is {NAMES[kind]}"), str(diagnosis)


def test_k1_in_the_loss_of_verl_has_no_effect() -> None:
    diagnosis = diagnose(actor_step(kl_loss_coef=0.1, kl_loss_type="k1"), update=False, summed=True)
    assert [f.fault for f in diagnosis.wrong] == ["k1-in-loss"]


def test_the_actor_of_verl_without_its_term_or_at_another_temperature() -> None:
    without = diagnose(actor_step(use_kl_loss=False), update=False, summed=True)
    assert without.healthy
    assert "There is no KL term" in said(without, "reference")
    hot = diagnose(actor_step(temperature=1.0), update=False, summed=True, temperature=0.7)
    assert [f.fault for f in hot.wrong] == ["temperature"]


def test_the_actor_of_verl_is_its_formula() -> None:
    from kl_companion.monitor.doctor.step import ExaminedStep

    step = actor_step(kl_loss_coef=0.2, kl_loss_type="mse")
    at = world(rewards=REWARDS)
    seen = ExaminedStep(step, summed=True).run(at)
    rollout = at.rollout
    logits = rollout.logits.detach().clone().requires_grad_()
    pick = rollout.tokens.unsqueeze(-1)
    logp = logits.log_softmax(-1).gather(-1, pick).squeeze(-1)
    ref = rollout.ref_logits.log_softmax(-1).gather(-1, pick).squeeze(-1)
    advantages = (REWARDS - REWARDS.mean()) / (REWARDS.std() + 1e-6)
    terms = -(logp - logp.detach()).exp() * advantages.unsqueeze(-1) + 0.2 * (logp - ref) ** 2 / 2
    mask = rollout.completion_mask
    (gradient,) = torch.autograd.grad((terms * mask).sum() / mask.sum(), logits)
    torch.testing.assert_close(seen.completion, gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_the_own_loop(placement: str) -> None:
    diagnosis = diagnose(Settings(beta=0.1, placement=placement), update=False)
    assert diagnosis.healthy, str(diagnosis)
    assert f", in the {placement}." in said(diagnosis, "form")


def test_the_engines_log_probs_and_functions_that_make_answers() -> None:
    trainer = trl_trainers.made("GRPO", beta=0.04)
    trainer.use_vllm = True
    trainer.args.top_p = 0.9
    trainer.rollout_func = lambda *_: pytest.fail("the answers are the world's")
    found = diagnose(trainer, update=False)
    assert found.healthy
    (sampler,) = (f for f in found.findings if f.name == "sampler")
    assert sampler.said.startswith("The sampler has GRPOConfig(top_p=0.9), and its log-probs are used: ")
    trainer.vllm_importance_sampling_correction = False
    found = diagnose(trainer, update=False)
    assert [f.fault for f in found.wrong] == ["truncated-sampler"]


def test_rewards_without_weight_are_refused() -> None:
    trainer = trl_trainers.made("GRPO", beta=0.04)
    trainer.reward_weights.zero_()
    with pytest.raises(ValueError, match="reward_weights sum to 0, expected a sum that is not"):
        diagnose(trainer, update=False)
