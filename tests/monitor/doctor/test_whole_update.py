"""A step as a loss of a rollout: value, gradient and audit are those of the same loss as a function."""

import pytest
import torch

from kl_companion.auditing.updates import audit as update_audit
from kl_companion.llm.own_loop import ExaminedLoop
from kl_companion.llm.settings import Settings
from kl_companion.monitor.doctor import whole_update
from kl_companion.monitor.doctor.step import ExaminedStep
from kl_companion.monitor.doctor.subject import Declared
from kl_companion.monitor.doctor.whole_update import audited, loss_of
from kl_companion.rollout import Rollout
from tests.support.small_steps import log_probs


def grpo(model, ref_model, batch):
    """Group-normalized rewards, and K3 in the loss."""
    logp, mask, rewards = log_probs(model, batch), batch["completion_mask"], batch["rewards"]
    with torch.no_grad():
        ref = log_probs(ref_model, batch)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    ratio = torch.exp(logp - batch["old_log_probs"])
    k3 = torch.exp(ref - logp) - (ref - logp) - 1
    terms = 0.1 * k3 - ratio * advantages.unsqueeze(-1)
    return (terms * mask).sum(-1).mean()


def as_function(logp, ref_logp, old_logp, rewards, mask):
    """The same, of log-probs."""
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    k3 = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1
    terms = 0.1 * k3 - torch.exp(logp - old_logp) * advantages.unsqueeze(-1)
    return (terms * mask).sum(-1).mean()


def rollout(tokens, lengths, rewards, stale):
    """Of answers that may be repeated: the same prefix has the same logits."""
    seq = len(tokens[0])

    def logits(seed):
        table: dict[tuple[int, ...], torch.Tensor] = {}
        draw = torch.Generator().manual_seed(seed)
        for text in sorted({tuple(x[:t]) for x in tokens for t in range(seq)}):
            table[text] = torch.randn(3, generator=draw, dtype=torch.float64)
        return torch.stack([torch.stack([table[tuple(x[:t])] for t in range(seq)]) for x in tokens])

    mask = torch.tensor([[float(t < n) for t in range(seq)] for n in lengths])
    return Rollout.from_logits(
        torch.tensor(tokens),
        mask,
        logits(0).requires_grad_(),
        logits(1),
        behavior_logits=logits(2) if stale else None,
        rewards=torch.tensor(rewards, dtype=torch.float64),
    )


TEXTS = [[1, 0, 0], [2, 1, 0], [1, 0, 0], [2, 2, 1], [1, 2, 0]]
LENGTHS = [2, 3, 2, 3, 3]


@pytest.mark.parametrize("stale", [False, True])
def test_value_and_gradient_are_those_of_the_formula(stale):
    at = rollout(TEXTS, LENGTHS, [1.0, 0.0, 1.0, 0.25, 0.5], stale)
    loss = loss_of(ExaminedStep(grpo))
    assert loss.__name__ == "grpo"
    found = loss(at)
    old = at.logp.detach() if at.behavior_logp is None else at.behavior_logp
    wanted = as_function(at.logp, at.ref_logp, old, at.rewards, at.completion_mask)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    (mine,) = torch.autograd.grad(found, at.logits)
    (theirs,) = torch.autograd.grad(wanted, at.logits)

    def by_text(gradient):
        """Summed over answers that are the same: they share their row."""
        return {
            i: sum(gradient[j] for j, other in enumerate(TEXTS) if other == text)
            for i, text in enumerate(TEXTS)
        }

    for i, each in by_text(mine).items():
        torch.testing.assert_close(each, by_text(theirs)[i])


@pytest.mark.parametrize("subject", [ExaminedStep(grpo), ExaminedLoop(Settings(beta=0.5))])
def test_a_run_leaves_no_gradient_in_the_rollout(subject):
    at = rollout(TEXTS[:4], LENGTHS[:4], [1.0, 0.0, 1.0, 0.25], False)
    loss_of(subject)(at).backward()
    once = at.logits.grad.clone()
    at.logits.grad = None
    loss_of(subject)(at)
    assert at.logits.grad is None
    assert once.abs().sum() > 0


def test_the_coefficient_is_a_parameter_of_what_sets_it():
    loss = loss_of(ExaminedLoop(Settings(beta=0.5)))
    at = rollout(TEXTS[:4], LENGTHS[:4], [1.0, 0.0, 1.0, 0.25], False)
    assert loss(at).item() == pytest.approx(loss(at, beta=0.5).item())
    assert loss(at).item() != pytest.approx(loss(at, beta=1.0).item())
    with pytest.raises(TypeError):
        loss_of(ExaminedStep(grpo, Declared(beta=0.5)))(at, beta=1.0)


@pytest.mark.usefixtures("as_installed")  # the audits are stand-ins
def test_a_distillation_is_audited_as_a_loss_and_everything_else_as_an_update(monkeypatch):
    asked = {}
    monkeypatch.setattr(whole_update, "audit", lambda loss, **options: asked.update(audit=options))
    monkeypatch.setattr(whole_update, "audit_update", lambda loss, **options: asked.update(update=options))
    audited(ExaminedStep(grpo, Declared(teacher=True)))
    assert asked.pop("audit") == {"off_policy": False, "progress": None}
    audited(ExaminedStep(grpo))
    assert asked["update"]["groups"] == (4,)
    assert asked["update"]["group_size"] == 4


def rloo(model, ref_model, batch):
    """A leave-one-out baseline, and K2 in the loss."""
    logp, mask = log_probs(model, batch), batch["completion_mask"]
    with torch.no_grad():
        ref = log_probs(ref_model, batch)
    return of_rloo(logp, ref, batch["old_log_probs"], batch["rewards"], mask)


def of_rloo(logp, ref_logp, old_logp, rewards, mask):
    """The same of log-probs."""
    advantages = rewards - (rewards.sum() - rewards) / (len(rewards) - 1)
    terms = 0.05 * (logp - ref_logp) ** 2 - torch.exp(logp - old_logp) * advantages.unsqueeze(-1)
    return (terms * mask).sum(-1).mean()


def test_the_card_of_a_step_is_that_of_its_loss_as_a_function(monkeypatch):
    monkeypatch.setattr(update_audit, "SUCCESS", (0.5,))
    monkeypatch.setattr(whole_update, "_GROUP", 2)
    card = audited(ExaminedStep(rloo))
    wanted = update_audit.audit_update(of_rloo, groups=(2,), group_size=2)
    said, theirs = card.to_dict()["sentence"], wanted.to_dict()["sentence"]
    assert said.replace("rloo", "of_rloo", 1) == theirs
    assert str(card).split("\n\n")[1:] == str(wanted).split("\n\n")[2:]  # but for what was read
    for name in ("fresh", "stale"):
        mine, theirs = card.to_dict()[name], wanted.to_dict()[name]
        assert len(mine) == len(theirs) > 0
        for one, other in zip(mine, theirs, strict=True):
            numbers = {n: x for n, x in other.items() if isinstance(x, float)}
            assert {n: one[n] for n in numbers} == pytest.approx(numbers, rel=1e-8, abs=1e-9)
    assert [row["effective_beta"] for row in card.to_dict()["fresh"][:2]] == pytest.approx([0.1, 0.1])
