"""What the experiments measure, of steps whose formula is known."""

import math

import pytest
import torch

from kl_companion.monitor.doctor.probing import POSITION, ROW
from tests.support.small_steps import k3, log_probs, probe, step_of


def reward_step(cost):
    """A cost of a token in the rewards, whose mean is the baseline."""

    def step(model, ref_model, batch):
        logp, mask = log_probs(model, batch), batch["completion_mask"]
        with torch.no_grad():
            rewards = batch["rewards"] - (cost(logp, log_probs(ref_model, batch)) * mask).sum(-1)
        return -((rewards - rewards.mean()).unsqueeze(-1) * logp * mask).sum(-1).mean()

    return step


def test_the_curve_of_a_term_in_the_loss_is_its_derivative():
    found = probe(step_of(lambda logp, ref: 0.3 * k3(logp, ref)))
    curve = found.near
    assert curve.delta.min() < -0.3 < 1 < curve.delta.max()
    torch.testing.assert_close(curve.own, 0.3 / 6 * (1 - torch.exp(-curve.delta)))
    assert curve.elsewhere.max() < 1e-12
    assert found.placement == "loss"
    assert (found.form.name, found.form.beside) == ("k3", 0.0)
    assert found.form.weight == pytest.approx(0.3 / 6)


def test_the_curve_of_a_cost_in_the_reward_spreads_over_its_answer():
    found = probe(reward_step(lambda logp, ref: 0.3 * (logp - ref)))
    assert found.near.elsewhere.max() > 1e-3
    assert found.placement == "reward"
    assert found.form.name == "k1"
    assert found.form.weight == pytest.approx(0.3 * 5 / 6 / 6)  # one of six answers is in its own baseline


def test_the_token_that_is_moved_is_that_of_the_log_ratio():
    found = probe(step_of())
    at = found.world(bumped=(ROW, POSITION, 0.7), apart=0.4)
    token = at.rollout.tokens[ROW, POSITION]
    both = [x[ROW, POSITION].exp() for x in (at.rollout.logits, at.rollout.ref_logits)]
    p, q = (float(x[token] / x.sum()) for x in both)
    assert found._log_ratio(at) == pytest.approx(math.log(p / q))
    hot = probe(step_of(temperatures=(0.5, 0.5)))
    both = [x[ROW, POSITION].mul(2).exp() for x in (at.rollout.logits, at.rollout.ref_logits)]
    p, q = (float(x[token] / x.sum()) for x in both)
    assert hot.temperature == pytest.approx(0.5)
    assert hot._log_ratio(at) == pytest.approx(math.log(p / q))


def whole(model, ref_model, batch):
    """The KL of whole distributions, in the loss."""
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    p, q = (m(**given).logits[:, batch["prompt_length"] - 1 : -1].log_softmax(-1) for m in (model, ref_model))
    q = q.detach()
    return (((p.exp() * (p - q)).sum(-1)) * batch["completion_mask"]).sum()


def test_where_the_kl_acts():
    assert probe(whole).placement == "whole"
    assert probe(whole).form is None
    assert probe(step_of(lambda logp, ref: 0 * logp)).placement == ""
    constant = probe(step_of(lambda logp, ref: 0.1 * (logp - ref)))
    assert not constant.reads_reference
    assert (constant.placement, constant.form.name) == ("loss", "k1")


def test_an_entropy_bonus_is_no_part_of_the_kl():
    def step(model, ref_model, batch):
        logits = model(batch["input_ids"], batch["attention_mask"]).logits[:, batch["prompt_length"] - 1 : -1]
        p = logits.log_softmax(-1)
        entropy = (-(p.exp() * p).sum(-1) * batch["completion_mask"]).sum()
        return step_of(lambda logp, ref: 0.2 * k3(logp, ref))(model, ref_model, batch) - 0.01 * entropy

    found = probe(step)
    assert found.placement == "loss"
    assert found.form.name == "k3"
    assert found.form.weight == pytest.approx(0.2 / 6, rel=1e-6)
    assert found.form.beside != 0
    assert found.limits == ()


@pytest.mark.parametrize("name", ["k2", "k3", "k1 in reward", "k3 in reward"])
def test_what_is_not_cut_has_no_limits(name):
    steps = {
        "k2": step_of(),
        "k3": step_of(k3),
        "k1 in reward": reward_step(lambda logp, ref: logp - ref),
        "k3 in reward": reward_step(k3),
    }
    assert probe(steps[name]).limits == ()


def test_limits_are_found_where_they_are():
    # exp(-d) - 1 + d is 10 at -2.611 and at 11.0
    lower, upper = probe(step_of(lambda logp, ref: k3(logp, ref).clamp(max=10.0))).limits
    assert (lower.own, upper.own) == (0.0, 0.0)
    assert -2.65 < lower.delta < -2.611
    assert 11.0 < upper.delta < 11.06
    both = probe(step_of(lambda logp, ref: (logp - ref).clamp(-3.0, 4.0) ** 2)).limits
    assert -3.1 < both[0].delta < -3.0
    assert 4.0 < both[1].delta < 4.1
    in_reward = probe(reward_step(lambda logp, ref: (logp - ref).clamp(-5.0, 5.0))).limits
    assert [abs(x.delta) for x in in_reward] == pytest.approx([5.0, 5.0], abs=0.1)


def test_rows_and_what_unequal_rewards_add():
    found = probe(step_of())
    rows = found.reward_term
    assert len(rows) == 18
    assert all(r.token == int(found.world().rollout.tokens[at]) for at, r in rows.items())
    assert found.temperature == pytest.approx(1.0)
    nothing = probe(lambda model, batch: torch.zeros(()))
    assert set(nothing.reward_term.values()) == {None}
    assert probe(lambda model, batch: torch.zeros(()), temperature=0.6).temperature == 0.6


def test_experiments_are_made_once():
    runs = []

    def step(model, batch):
        runs.append(1)
        return log_probs(model, batch).sum()

    found = probe(step)
    assert found.plain is found.plain
    assert found.trace.forwards
    assert len(runs) == 1


def test_the_reference_is_read_also_where_only_rewards_show_it():
    def step(model, ref_model, batch):
        logp, mask = log_probs(model, batch), batch["completion_mask"]
        with torch.no_grad():
            kl = ((logp - log_probs(ref_model, batch)) * mask).sum(-1)
        gone = batch["rewards"] * (1 - 0.1 * kl)
        return -(gone.unsqueeze(-1) * logp * mask).sum(-1).mean()

    assert probe(step).reads_reference
    assert not probe(step_of(lambda logp, ref: 0 * ref)).reads_reference
