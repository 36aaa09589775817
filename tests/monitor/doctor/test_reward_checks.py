"""The direction of a step: log-probs of better answers rise, fall, or do not read the rewards."""

import pytest
import torch

from kl_companion.monitor.doctor import diagnose

BETA = 0.05


def log_probs(model, batch):
    keep = batch["completion_mask"].shape[1]
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    logp = out.logits[:, -keep - 1 : -1].log_softmax(-1)
    return logp.gather(-1, batch["input_ids"][:, -keep:].unsqueeze(-1)).squeeze(-1)


def parts(model, ref_model, batch):
    """Log-probs, K2 per token, advantages."""
    logp = log_probs(model, batch)
    with torch.no_grad():
        ref_logp = log_probs(ref_model, batch)
    return logp, 0.5 * (logp - ref_logp) ** 2, batch["advantages"].unsqueeze(-1)


def total(x, batch):
    return (x * batch["completion_mask"]).sum(-1).mean()


def rewards_of(step):
    diagnosis = diagnose(step, update=False)
    found = [f for f in diagnosis.findings if f.name == "rewards"]
    assert len(found) == 1
    return diagnosis, found[0]


def of_form(form, policy=1.0, kl=1.0):
    def step(model, ref_model, batch):
        logp, penalty, a = parts(model, ref_model, batch)
        return total(policy * form(logp, batch, a) + kl * BETA * penalty, batch)

    return step


def reinforce(logp, batch, a):
    return -a * logp


def clipped(logp, batch, a):
    ratio = torch.exp(logp - batch["old_log_probs"])
    return -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)


def on_policy(logp, batch, a):
    return -a * torch.exp(logp - logp.detach())


def of_rewards(logp, batch, a):
    r = batch["rewards"]
    return -((r - r.mean()) / (r.std() + 1e-4)).unsqueeze(-1) * logp


def of_whole_answers(logp, batch, a):
    mask = batch["completion_mask"]
    log_ratio = ((logp - batch["old_log_probs"]) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    return -a * log_ratio.exp()


FORMS = [reinforce, clipped, on_policy, of_rewards, of_whole_answers]


@pytest.mark.parametrize("form", FORMS)
def test_the_sign_of_the_policy_loss(form):
    """A step down -r * logp raises logp where r is above 0."""
    diagnosis, found = rewards_of(of_form(form))
    assert (found.level, diagnosis.healthy) == ("fine", True)
    diagnosis, found = rewards_of(of_form(form, policy=-1.0))
    assert (found.level, found.fault, diagnosis.healthy) == ("wrong", "rewards-minimized", False)
    assert found.instead
    faults = {f.fault for f in diagnosis.findings if f.level == "wrong"}
    assert faults == {"rewards-minimized"}


def test_a_loss_that_is_negated_has_two_wrong_signs():
    diagnosis, _ = rewards_of(of_form(clipped, -1.0, -1.0))
    assert {f.fault for f in diagnosis.wrong} == {"rewards-minimized", "wrong-sign"}


def test_the_line_where_the_minus_is_missing():
    def step(model, ref_model, batch):
        logp, penalty, a = parts(model, ref_model, batch)
        ratio = torch.exp(logp - batch["old_log_probs"])
        policy = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)  # fault
        return total(policy + BETA * penalty, batch)

    _, found = rewards_of(step)
    assert found.line.text.endswith("# fault")


def test_a_step_that_calls_backward_itself():
    def step(model, ref_model, batch):
        logp, penalty, a = parts(model, ref_model, batch)
        total(a * logp + BETA * penalty, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    _, found = rewards_of(step)
    assert (found.level, found.fault) == ("wrong", "rewards-minimized")


def constant_ratio(model, ref_model, batch):
    logp, penalty, a = parts(model, ref_model, batch)
    ratio = torch.exp(logp - logp)  # fault
    return total(-ratio * a + BETA * penalty, batch)


def detached_ratio(model, ref_model, batch):
    logp, penalty, a = parts(model, ref_model, batch)
    ratio = torch.exp(logp - batch["old_log_probs"]).detach()  # fault
    return total(-ratio * a + BETA * penalty, batch)


def not_added(model, ref_model, batch):
    logp, penalty, a = parts(model, ref_model, batch)
    _ = -a * logp
    return total(BETA * penalty, batch)  # fault


def alone(model, ref_model, batch):
    logp, _, a = parts(model, ref_model, batch)
    ratio = torch.exp(logp - logp)  # fault
    return total(-ratio * a, batch)


@pytest.mark.parametrize("step", [constant_ratio, detached_ratio, not_added, alone])
def test_rewards_without_an_effect(step):
    diagnosis, found = rewards_of(step)
    assert (found.level, found.fault, diagnosis.healthy) == ("wrong", "rewards-idle", False)
    assert "nothing is wrong" not in str(diagnosis)
    assert found.instead
    if step is not not_added:
        assert found.line.text.endswith("# fault")


def test_a_gradient_that_is_zeroed_last():
    def step(model, ref_model, batch):
        logp, penalty, a = parts(model, ref_model, batch)
        loss = total(-a * logp + BETA * penalty, batch)
        loss.backward()
        model.zero_grad()

    diagnosis, found = rewards_of(step)
    assert (found.level, found.said) == ("fine", "Better answers become more likely.")
    (zeroed,) = [x for x in diagnosis.findings if x.name == "arrival"]
    assert (zeroed.level, zeroed.line) == ("attention", None)
    assert "no optimizer has read them" in zeroed.said


def test_a_step_without_a_policy_part():
    """A distillation reads no rewards: nothing is wrong with that."""

    def step(model, ref_model, batch):
        logp = log_probs(model, batch)
        with torch.no_grad():
            ref_logp = log_probs(ref_model, batch)
        return total(0.5 * (logp - ref_logp) ** 2, batch)

    diagnosis, found = rewards_of(step)
    assert (found.level, diagnosis.healthy) == ("fine", True)


@pytest.mark.parametrize("result", [None, 0.0])
def test_a_step_that_does_nothing(result):
    _, found = rewards_of(lambda model, batch: result)
    assert (found.level, found.fault) == ("wrong", "rewards-idle")
    assert found.said == "Nothing has a gradient, the rewards included."


def test_a_step_that_asks_the_model_for_its_padding():
    def step(model, batch):
        assert (model.config.pad_token_id, model.config.eos_token_id) == (1, 1)
        return total(-log_probs(model, batch) * batch["advantages"].unsqueeze(-1), batch)

    assert rewards_of(step)[1].level == "fine"
