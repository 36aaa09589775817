"""Properties of every right step: mistakes are found on their lines, right steps are left alone."""

import pytest
import torch
from torch.nn import functional

from kl_companion.monitor.doctor import diagnose
from tests.support.small_steps import by_answer, k3, log_probs

STATE = {"beta": 0.05, "calls": 0}


def parts(model, ref_model, batch):
    logp = log_probs(model, batch)
    with torch.no_grad():
        ref = log_probs(ref_model, batch)
    return logp, ref, batch["completion_mask"], batch["advantages"].unsqueeze(-1)


def whiten(x, mask):
    mean = (x * mask).sum() / mask.sum()
    return (x - mean) * torch.rsqrt(((x - mean) ** 2 * mask).sum() / mask.sum() + 1e-8)


def sound(model, ref_model, batch):
    logp, ref, mask, a = parts(model, ref_model, batch)
    return by_answer(-torch.exp(logp - batch["old_log_probs"]) * a + 0.05 * k3(logp, ref), mask)


def epochs(ref_rows=lambda rows: rows, old_rows=lambda rows: rows, advantage_rows=lambda rows: rows):
    """Minibatches of shuffled answers, with an optimizer inside."""

    def step(model, ref_model, batch):
        _, ref, mask, _ = parts(model, ref_model, batch)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        old = batch["old_log_probs"]
        for rows in torch.randperm(len(mask)).chunk(2):
            mine = log_probs(model, batch)[rows]
            kl = k3(mine, ref[ref_rows(rows)])  # reference
            ratio = torch.exp(mine - old[old_rows(rows)])  # old
            terms = -ratio * batch["advantages"][advantage_rows(rows)].unsqueeze(-1)  # advantages
            optimizer.zero_grad()
            by_answer(terms + 0.05 * kl, mask[rows]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()

    return step


def first(rows):
    return slice(0, len(rows))


def whitened(mask_of):
    def step(model, ref_model, batch):
        logp, ref, mask, _ = parts(model, ref_model, batch)
        rewards = -0.05 * (logp.detach() - ref) * mask
        rewards[torch.arange(len(mask)), mask.sum(-1) - 1] += batch["rewards"]
        returns = rewards.flip(1).cumsum(1).flip(1)
        advantages = whiten(returns, mask_of(mask))  # whitened
        return by_answer(-advantages * torch.exp(logp - batch["old_log_probs"]), mask)

    return step


def scaled(model, ref_model, batch):
    logp, ref, mask, a = parts(model, ref_model, batch)
    return ((-torch.exp(logp - batch["old_log_probs"]) * a + 0.05 * k3(logp, ref)) * mask).mean()  # mean


def unmasked(model, ref_model, batch):
    logp, ref, mask, _ = parts(model, ref_model, batch)
    rewards = batch["rewards"] - 0.1 * (logp.detach() - ref).sum(1)  # unmasked
    return by_answer(-(rewards - rewards.mean()).unsqueeze(-1) * logp, mask)


def first_of_the_batch(model, ref_model, batch):
    logp, ref, mask, a = parts(model, ref_model, batch)
    weights = torch.linspace(0.5, 1.5, len(mask)).unsqueeze(-1)
    return by_answer(weights * (-torch.exp(logp - batch["old_log_probs"]) * a + 0.05 * k3(logp, ref)), mask)


def absolute(model, ref_model, batch):
    logp, ref, mask, a = parts(model, ref_model, batch)
    return by_answer(-torch.exp(logp - batch["old_log_probs"]) * a.abs() + 0.05 * k3(logp, ref), mask)


def dropping(model, ref_model, batch):
    def noisy(**given):
        out = model(**given)
        out["logits"] = functional.dropout(out.logits, 0.1)  # dropped
        return out

    logp, (_, ref, mask, a) = log_probs(noisy, batch), parts(model, ref_model, batch)
    return by_answer(-torch.exp(logp - batch["old_log_probs"]) * a + 0.05 * k3(logp, ref), mask)


def in_training(model, ref_model, batch):
    logp, mask = log_probs(model, batch), batch["completion_mask"]
    ref_model.train()
    with torch.no_grad():
        ref = log_probs(ref_model, batch)  # trained
    ratio = torch.exp(logp - batch["old_log_probs"])
    return by_answer(-ratio * batch["advantages"].unsqueeze(-1) + 0.05 * k3(logp, ref), mask)


def narrow(model, ref_model, batch):
    logp, ref, mask, a = parts(model, ref_model, batch)
    kl = k3(logp.to(torch.bfloat16), ref.to(torch.bfloat16))  # narrow
    return by_answer(-torch.exp(logp - batch["old_log_probs"]) * a + 0.05 * kl, mask)


def following(model, ref_model, batch):
    loss = sound(model, ref_model, batch)
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), ref_model.parameters(), strict=True):
            theirs.lerp_(mine, 0.25)  # follows
    return loss


def with_beta(change):
    def step(model, ref_model, batch):
        logp, ref, mask, a = parts(model, ref_model, batch)
        kl = k3(logp, ref)
        loss = by_answer(-torch.exp(logp - batch["old_log_probs"]) * a + STATE["beta"] * kl, mask)
        STATE["beta"] *= change(((kl * mask).sum() / mask.sum()).item())
        return loss

    return step


def adapted(kl):
    return 1 + 0.1 * max(-0.2, min(0.2, kl / 0.05 - 1))


def whole(order):
    def step(model, ref_model, batch):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = sound(model, ref_model, batch)
        does = {"backward": loss.backward, "zero": optimizer.zero_grad, "step": optimizer.step}
        for name in order:
            does[name]()

    return step


@pytest.mark.parametrize(
    ("step", "key", "size", "line"),
    [
        (
            epochs(ref_rows=first),
            "rows",
            "The log-probs of the reference of one answer act on",
            "# reference",
        ),
        (epochs(old_rows=first), "rows", "The old log-probs of one answer act on another one", "# old"),
        (epochs(advantage_rows=first), "rows", "Rewards act against their answers", "# advantages"),
        (absolute, "rows", "with a higher reward of its own answer 1 becomes less likely", "a.abs()"),
        (
            whitened(torch.ones_like),
            "rectangle",
            "The gradient depends on padding",
            "mean = (x * mask).sum()",
        ),
        (scaled, "rectangle", "two more columns of padding have 0.667 times the gradient", "# mean"),
        (unmasked, "rectangle", "What is predicted after the end of an answer changes", "# unmasked"),
        (first_of_the_batch, "rectangle", "The gradient depends on the order of the answers", ""),
        (dropping, "dropout", "Dropout is active where log-probs are computed", "# dropped"),
        (in_training, "mode", "The reference is scored in training mode", "# trained"),
        (narrow, "precision", "Log-probs are rounded to bfloat16", "# narrow"),
        (
            following,
            "calls",
            "after one call it has gone 0.25 of the way to the policy, after 4",
            "# follows",
        ),
        (with_beta(lambda kl: 0.9), "calls", "at call 4 it is 0.729 times the first one (STATE)", ""),
        (whole(["backward", "zero", "step"]), "arrival", "The gradient does not reach the optimizer", ""),
    ],
)
def test_a_violation_is_told_with_its_size_on_its_line(step, key, size, line):
    diagnosis = diagnose(step, update=False)
    (said,) = [f for f in diagnosis.findings if f.level == "wrong" and f.name == key]
    assert {f.name for f in diagnosis.wrong} == {key}, str(diagnosis)
    assert size in said.said
    assert said.instead
    assert said.line is not None or key == "arrival"
    assert line in f"{said.line} {said.said}"
    assert diagnosis.status == 1
    assert STATE == {"beta": 0.05, "calls": 0}


def test_a_helper_is_told_with_the_line_that_calls_it():
    (said,) = diagnose(whitened(torch.ones_like), update=False).wrong
    assert "It is called at" in said.said
    assert "# whitened" in said.said


def grouped(model, ref_model, batch):
    logp, ref, mask, _ = parts(model, ref_model, batch)
    rewards = batch["rewards"].view(-1, 3)
    a = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    return by_answer(-torch.exp(logp - batch["old_log_probs"]) * a.view(-1, 1) + 0.05 * k3(logp, ref), mask)


def by_sequence(model, ref_model, batch):
    logp, ref, mask, a = parts(model, ref_model, batch)
    mean = ((logp - batch["old_log_probs"]) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    return by_answer(-mean.exp() * a + 0.05 * k3(logp, ref), mask)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (sound, {}),
        (epochs(), {"arrival": "is clipped or scaled"}),
        (whitened(lambda mask: mask), {"form": "K1, 0.05 of it for one of reward"}),
        (grouped, {}),
        (by_sequence, {}),
        (
            with_beta(adapted),
            {"calls": "(STATE): after 4 calls it is 0.9796 to 1.061 times"},
        ),
        (with_beta(lambda kl: 1.1), {"calls": "rises from call to call"}),
        (whole(["zero", "backward", "step", "zero"]), {}),
        (whole(["backward", "zero"]), {"arrival": "no optimizer has read them"}),
    ],
)
def test_right_steps_are_left_alone(step, told):
    diagnosis = diagnose(step, update=False)
    assert (diagnosis.wrong, diagnosis.unchecked) == ((), ()), str(diagnosis)
    for name, text in told.items():
        assert any(text in f.said for f in diagnosis.findings if f.name == name), str(diagnosis)
    assert "Nothing depends on padding" in str(diagnosis)


def test_a_mean_of_each_minibatch_is_told_as_chance():
    def step(model, ref_model, batch):
        _, ref, mask, a = parts(model, ref_model, batch)
        for rows in torch.randperm(len(mask)).chunk(2):
            mine = log_probs(model, batch)[rows]
            terms = -torch.exp(mine - batch["old_log_probs"][rows]) * a[rows] + 0.05 * k3(mine, ref[rows])
            ((terms * mask[rows]).sum() / mask[rows].sum()).backward()

    diagnosis = diagnose(step, update=False)
    assert diagnosis.wrong == ()
    (said,) = [f for f in diagnosis.findings if f.name == "chance"]
    assert (said.level, "with another seed" in said.said) == ("attention", True)


def test_a_loss_that_is_no_number():
    def step(model, ref_model, batch):
        logp, ref, mask, _ = parts(model, ref_model, batch)
        return by_answer(logp.log() * ref, mask)  # no log of a log-prob

    diagnosis = diagnose(step, update=False)
    (said,) = diagnosis.wrong
    assert (said.name, said.line.text.endswith("# no log of a log-prob")) == ("loss", True)
