"""What is said of the KL: which reference, scored how, which form, and where it is cut."""

import copy

import pytest
import torch

from kl_companion.monitor.doctor.kl_checks import alike, form, reference
from tests.support.data import data
from tests.support.small_steps import by_answer, k3, log_probs, probe, step_of

DATA = data(__file__)


def no_grad(model, batch):
    with torch.no_grad():
        return log_probs(model, batch)


def rewarded(logp, batch):
    return -torch.exp(logp - batch["old_log_probs"]) * batch["advantages"].unsqueeze(-1)


@pytest.mark.parametrize(
    ("kl", "said"),
    DATA["forms"],
)
def test_a_form_is_named(kl, said):
    term = eval(kl)
    at = probe(step_of(lambda logp, ref: 0.1 * term(logp, ref)))
    (found,) = form(at)
    assert found.said == f"The KL of a token is {said}"
    (measured,) = reference(at)
    assert measured.said == "The KL is measured to the reference, which carries no gradient."
    assert list(alike(at)) == []


@pytest.mark.parametrize(
    ("kl", "fault", "said"),
    [
        (lambda logp, ref: k3(ref, logp), "exchanged", "Policy and reference are exchanged: the term is K3"),
        (lambda logp, ref: ref - logp, "exchanged", "exchanged, or the sign is wrong: the term is K1"),
        (
            lambda logp, ref: -k3(logp, ref),
            "wrong-sign",
            "K3 is subtracted from the loss, and the step leaves",
        ),
        (lambda logp, ref: -((logp - ref) ** 2), "wrong-sign", "K2 is subtracted from the loss"),
        (lambda logp, ref: logp - ref, "k1-in-loss", "its expectation is 0"),
    ],
)
def test_a_form_that_is_wrong(kl, fault, said):
    at = probe(step_of(lambda logp, ref: 0.1 * kl(logp, ref)))
    (found,) = form(at)
    assert (found.level, found.fault) == ("wrong", fault)
    assert said in found.said
    added = "return reduce(policy(logp, batch) + kl(logp, ref), mask(batch))"
    formed = ("lambda logp, ref", "(lambda logp, ref", "return torch.exp(ref - logp)")
    assert found.line.text.startswith(added if fault == "wrong-sign" else formed)
    assert [f for f in reference(at) if f.level == "wrong"] == []


def test_a_term_that_is_no_estimator():
    (found,) = form(probe(step_of(lambda logp, ref: (logp - ref) ** 4)))
    assert found.level == "unchecked"
    assert found.said.startswith(
        "Could not check the form of the KL: the term in the loss has the gradient of no"
    )
    assert "grows with the log-ratio from -" in found.said


def in_reward(sign, cost, detached=True):
    def step(model, ref_model, batch):
        logp, mask = log_probs(model, batch), batch["completion_mask"]
        kl = (cost(logp.detach() if detached else logp, no_grad(ref_model, batch)) * mask).sum(-1)
        rewards = batch["rewards"] + sign * 0.1 * kl
        return -by_answer((rewards - rewards.mean()).unsqueeze(-1) * logp, mask)

    return step


def test_a_cost_in_the_reward():
    (found,) = form(probe(in_reward(-1, k3)))
    assert found.said == "The KL of a token is K3, in the reward."
    (found,) = form(probe(in_reward(1, k3)))
    assert found.fault == "wrong-sign"
    assert "K3 is added to the reward" in found.said
    assert found.instead == "change the sign: reward = score - beta * kl"
    (found,) = form(probe(in_reward(1, lambda logp, ref: logp - ref)))
    assert found.fault == "exchanged"


def test_a_reward_that_is_normalized_after_its_cost():
    def step(model, ref_model, batch):
        logp, mask = log_probs(model, batch), batch["completion_mask"]
        rewards = batch["rewards"] - ((logp.detach() - no_grad(ref_model, batch)) * mask).sum(-1)
        return -by_answer(((rewards - rewards.mean()) / rewards.std()).unsqueeze(-1) * logp, mask)

    (found,) = form(probe(step))
    assert found.level == "fine"
    assert found.said.startswith("The KL of a token is K1, 1 of it for one of reward before advantages are")


def test_a_reward_that_is_differentiated():
    at = probe(in_reward(-1, lambda logp, ref: logp - ref, detached=False))
    (found,) = alike(at)
    assert found.level == "wrong"
    assert "The KL in the reward carries a gradient" in found.said
    assert found.line.text == "return -by_answer((rewards - rewards.mean()).unsqueeze(-1) * logp, mask)"


def test_advantages_that_multiply_the_kl():
    def policy(logp, batch):
        return -batch["advantages"].unsqueeze(-1) * logp

    def step(model, ref_model, batch):
        logp = log_probs(model, batch)
        bracket = logp - 0.1 * k3(logp, no_grad(ref_model, batch))
        return -by_answer(bracket * batch["advantages"].unsqueeze(-1), batch["completion_mask"])  # here

    (found,) = form(probe(step))
    assert (found.level, found.fault) == ("wrong", "kl-times-advantage")
    assert found.line.text.endswith("# here")
    (found,) = form(probe(step_of(policy=policy)))
    assert found.level == "fine"


def test_a_whole_distribution_and_a_teacher():
    def step(model, ref_model, batch):
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        p, q = (m(**given).logits[:, 3:-1].log_softmax(-1) for m in (model, ref_model))
        return by_answer((p.exp() * (p - q.detach())).sum(-1), batch["completion_mask"])

    for of in (probe(step), probe(step, teacher=True)):
        (found,) = form(of)
        assert found.said == "Over the whole vocabulary the gradient is that of the exact reverse KL."
    assert list(alike(probe(step))) == []


@pytest.mark.parametrize("temperatures", [(0.7, 1.0), (1.0, 0.7)])
def test_models_that_are_scored_at_different_temperatures(temperatures):
    (found,) = alike(probe(step_of(k3, temperatures=temperatures)))
    assert (found.level, found.fault) == ("wrong", "scored-differently")
    assert list(alike(probe(step_of(k3, temperatures=(0.7, 0.7))))) == []


def test_a_term_besides_the_kl():
    def policy(logp, batch):
        return rewarded(logp, batch) - 0.02 * logp

    at = probe(step_of(k3, policy=policy))
    (found,) = alike(at)
    assert found.level == "fine"
    assert found.said.startswith("Besides the KL something acts that does not read the reference")
    (found,) = form(at)
    assert found.said == "The KL of a token is K3, in the loss."


def test_a_reference_that_is_trained_or_in_the_place_of_the_policy():
    def trained(model, ref_model, batch):
        return by_answer(
            (log_probs(model, batch) - log_probs(ref_model, batch)) ** 2, batch["completion_mask"]
        )

    (found,) = reference(probe(trained))  # and not, beside it, that the reference carries no gradient
    assert (found.level, found.fault) == ("attention", "reference-gradient")

    def exchanged(model, ref_model, batch):
        return by_answer((no_grad(model, batch) - log_probs(ref_model, batch)) ** 2, batch["completion_mask"])

    (found,) = reference(probe(exchanged))
    assert (found.level, found.fault) == ("wrong", "exchanged")


def test_a_kl_without_a_gradient():
    def step(model, ref_model, batch):
        logp = log_probs(model, batch)
        kl = k3(logp.detach(), no_grad(ref_model, batch))  # here
        return by_answer(rewarded(logp, batch) + kl, batch["completion_mask"])

    (found,) = reference(probe(step))
    assert found.fault == "detached"
    assert found.line.text.endswith("# here")
    assert found.said.endswith("it is a constant for the optimizer.")
    assert list(form(probe(step))) == []

    def cleared(model, ref_model, batch):
        loss = step_of()(model, ref_model, batch)
        loss.backward()
        model.zero_grad()
        return loss.item()

    (found,) = reference(probe(cleared))  # gradients are read when they are computed
    assert found.level == "fine"


def test_a_reference_that_is_the_policy():
    def copied(model, ref_model, batch):
        ref = no_grad(copy.deepcopy(model), batch)  # here
        logp = log_probs(model, batch)
        return by_answer(rewarded(logp, batch) + k3(logp, ref), batch["completion_mask"])

    (found,) = reference(probe(copied))
    assert found.fault == "policy-reference"
    assert found.line.text.endswith("# here")

    def with_gradients(model, ref_model, batch):
        logp, ref = log_probs(model, batch), log_probs(model, batch)
        return by_answer(rewarded(logp, batch) + k3(logp, ref), batch["completion_mask"])

    (found,) = reference(probe(with_gradients))
    assert found.fault == "policy-reference"

    def unread(model, ref_model, batch):
        no_grad(ref_model, batch)
        return by_answer(rewarded(log_probs(model, batch), batch), batch["completion_mask"])

    (found,) = reference(probe(unread, beta=0.0))
    assert (found.level, found.fault) == ("attention", "")
    (found,) = reference(probe(unread))
    assert found.fault == "policy-reference"
    assert found.said.startswith("The reference is scored, and then nothing reads it")

    def merged(model, batch):
        ref = no_grad(model.merge_and_unload(), batch)
        logp = log_probs(model, batch)
        return by_answer(rewarded(logp, batch) + k3(logp, ref), batch["completion_mask"])

    (found,) = reference(probe(merged))
    assert found.fault == "merged-reference"


@pytest.mark.parametrize("beta", [None, 0.0])
def test_a_second_pass_of_the_policy_that_is_no_reference(beta):
    def old(model, batch):
        logp, old = log_probs(model, batch), no_grad(model, batch)
        terms = torch.exp(logp - old) * batch["advantages"].unsqueeze(-1)
        return -by_answer(terms, batch["completion_mask"])

    def twice(model, batch):
        logp = log_probs(model, batch) + log_probs(model, batch)
        return -by_answer(batch["advantages"].unsqueeze(-1) * logp, batch["completion_mask"])

    for step in (old, twice):
        (found,) = reference(probe(step, beta=beta))
        assert found.level == "attention"
        assert found.said.startswith("There is no KL term: nothing reads the reference")
        assert ("(beta is 0)" in found.said) == (beta == 0)
        assert (found.fault == "no-reference") == (beta is None)


def test_something_that_acts_and_reads_no_reference():
    def step(model, batch):
        logp = log_probs(model, batch)
        return by_answer(rewarded(logp, batch) - 0.1 * logp, batch["completion_mask"])

    (found,) = reference(probe(step))
    assert (found.level, found.fault) == ("attention", "")
    assert found.said == "Something acts with equal rewards, and it does not read the reference."
    assert list(form(probe(step))) == []
    assert list(alike(probe(step))) == []


def test_a_clip_is_told_with_its_limits_and_what_is_left_there():
    fine, clip = form(probe(step_of(lambda logp, ref: (logp - ref).clamp(-3.0, 4.0) ** 2)))
    assert fine.level == "fine"
    assert (clip.level, clip.fault) == ("attention", "clipped")
    assert "its gradient is 0" in clip.said
    below, above = (float(x) for x in clip.said.split("below ")[1].split(" its")[0].split(" and above "))
    assert (below, above) == pytest.approx((-3.0, 4.0), abs=0.1)
    assert "clamp(-3.0, 4.0)" in clip.line.text
    _, clip = form(probe(in_reward(-1, lambda logp, ref: (logp - ref).clamp(max=5.0))))
    assert "at log-ratios above 5 it is no longer what it is" in clip.said
