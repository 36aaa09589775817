"""What inputs of a loss do: every effect on losses that have it and on ones that do not, derived by hand."""

from functools import cache

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.judgment import inputs as of
from kl_companion.auditing.judgment.inputs import inputs, notes, reads_outside
from kl_companion.auditing.reading.subject import as_subject


def k3(logp, ref_logp):
    return (ref_logp - logp).exp() - 1 - (ref_logp - logp)


@cache
def found(loss):
    subject = as_subject(loss)
    return inputs(subject.moved, subject.reading, subject.head)


def effects(loss):
    """{name: effect} of the inputs by themselves, and the effects of several together."""
    alone = {x.name: x.effect for x in found(loss)[: len(as_subject(loss).reading.reads)]}
    return alone, [x.effect for x in found(loss)[len(alone) :]]


def said(loss):
    return " ".join(notes(found(loss)))


def plain(logp, ref_logp, rewards, mask, beta=0.1):
    return ((beta * k3(logp, ref_logp) - logp * rewards[:, None]) * mask).sum(-1).mean()


def leave_one_out(logp, ref_logp, rewards, mask):
    charged = rewards - 0.05 * ((logp.detach() - ref_logp) * mask).sum(-1)
    advantage = charged - (charged.sum() - charged) / (len(charged) - 1)
    return -((logp * mask).sum(-1) * advantage).mean()


def accumulated(logp, ref_logp, rewards, mask, beta=0.1, gradient_accumulation_steps=4):
    loss = ((beta * k3(logp, ref_logp) - logp * rewards[:, None]) * mask).sum() / mask.sum()
    loss /= gradient_accumulation_steps
    return loss


def of_itself(logp, ref_logp, advantages, mask, beta=0.1):  # 1 in value, the score in its gradient
    ratio = torch.exp(logp - logp.detach())
    return ((beta * k3(logp, ref_logp) - ratio * advantages[:, None]) * mask).sum() / mask.sum()


def without_old(logp, ref_logp, advantages, mask, old_logp=None, beta=0.1):
    ratio = torch.exp(logp - (logp.detach() if old_logp is None else old_logp))
    return ((beta * k3(logp, ref_logp) - ratio * advantages[:, None]) * mask).sum() / mask.sum()


def exact(logits, ref_logits, rewards, tokens, mask, beta=0.1):
    policy, reference = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    kl = (policy.exp() * (policy - reference)).sum(-1)
    sampled = policy.gather(-1, tokens[..., None])[..., 0]
    return ((beta * kl - sampled * rewards[:, None]) * mask).sum(-1).mean()


@pytest.mark.parametrize("loss", [plain, leave_one_out, accumulated, of_itself, without_old, exact])
def test_an_ordinary_loss_needs_no_line(loss):
    alone, together = effects(loss)
    reference = {n: e for n, e in alone.items() if n.startswith("ref")}
    assert set(reference.values()) == {of.ANCHOR}
    assert {e for n, e in alone.items() if n not in reference} == {of.ACTS}
    assert together == []
    assert notes(found(loss)) == []


def ones(logp, ref_logp, advantages, mask, beta=0.1):
    ratio = torch.exp(torch.zeros_like(logp))
    gain = torch.min(ratio, ratio.clamp(0.8, 1.2)) * advantages.unsqueeze(-1)
    return ((beta * k3(logp, ref_logp) - gain) * mask).sum() / mask.sum()


def ones_beside_old(logp, old_logp, ref_logp, advantages, mask, beta=0.1):
    old_logp = logp.detach()
    ratio = torch.exp(logp - old_logp)
    return ((beta * k3(logp, ref_logp) - ratio * advantages[:, None]) * mask).sum() / mask.sum()


def times_nothing(logp, ref_logp, advantages, mask, beta=0.1):
    gain = torch.exp(logp - logp.detach()) * (advantages.detach() * 0)[:, None]
    return ((beta * k3(logp, ref_logp) - gain) * mask).sum() / mask.sum()


def detached_entropy(logp, ref_logp, entropy, mask, beta=0.1):
    return ((beta * k3(logp, ref_logp) - 0.01 * entropy.detach()) * mask).sum() / mask.sum()


def weighted_by_entropy(logp, ref_logp, entropy, advantages, mask):  # no gradient flows, and yet it acts
    gain = logp * advantages[:, None] * entropy.detach()
    return ((0.1 * k3(logp, ref_logp) - gain) * mask).sum() / mask.sum()


def ignores_the_mask(logp, ref_logp, mask, beta=0.1):
    mask = mask.float()
    return beta * k3(logp, ref_logp).mean()


def overwritten(logp, old_logp, ref_logp, advantages, mask, beta=0.1):
    ref_logp = old_logp
    ratio = torch.exp(logp - old_logp)
    return ((beta * k3(logp, ref_logp) - ratio * advantages[:, None]) * mask).sum() / mask.sum()


def k1(logp, ref_logp, mask):  # the slope of logp - ref_logp in logp is 1, whatever ref_logp is
    return ((logp - ref_logp) * mask).sum(-1).mean()


def absolute(logp, ref_logp, mask):  # the slope is the sign, which ref_logp decides
    return ((logp - ref_logp).abs() * mask).sum(-1).mean()


@pytest.mark.parametrize(
    ("loss", "name", "effect", "sentence"),
    [
        (ones, "advantages", of.VALUE, "advantages have no effect on the gradient, only on the value."),
        (times_nothing, "advantages", of.NONE, "advantages have no effect on the gradient, nor on the"),
        (ones_beside_old, "old_logp", of.NONE, "old_logp has no effect on the gradient, nor on the value."),
        (ones_beside_old, "advantages", of.ACTS, ""),
        (detached_entropy, "entropy", of.VALUE, "entropy has no effect on the gradient, only on the value."),
        (weighted_by_entropy, "entropy", of.ACTS, ""),
        (ignores_the_mask, "mask", of.NONE, "mask has no effect: other masks give the same loss."),
        (overwritten, "ref_logp", of.NONE, "ref_logp has no effect on the gradient, nor on the value."),
        (overwritten, "old_logp", of.ANCHOR, "old_logp is the anchor: the policy is pulled to the policy"),
        (k1, "ref_logp", of.VALUE, "ref_logp has no effect on the gradient, only on the value."),
        (absolute, "ref_logp", of.ANCHOR, ""),
    ],
)
def test_an_input_without_an_effect_or_with_another_one(loss, name, effect, sentence):
    assert effects(loss)[0][name] == effect
    assert sentence in said(loss)
    assert (f"{name} " in said(loss)) is bool(sentence)


@pytest.mark.parametrize("size", [4, 5])
def test_a_loss_of_groups_is_moved_in_whole_groups(size):
    def loss(logp, ref_logp, rewards, mask, num_generations=size):
        group = rewards.view(-1, num_generations)
        advantage = (group - group.mean(1, keepdim=True)).view(-1)
        return ((0.1 * k3(logp, ref_logp) - logp * advantage[:, None]) * mask).sum(-1).mean()

    subject = as_subject(loss)
    effects = {x.name: x.effect for x in inputs(subject.moved, subject.reading, 0, size)}
    assert effects == {"logp": of.ACTS, "ref_logp": of.ANCHOR, "rewards": of.ACTS, "mask": of.ACTS}


def test_log_probs_of_the_vocabulary_by_their_use_are_moved():
    def loss(student_log_probs, teacher_log_probs, mask):
        kl = torch.nn.functional.kl_div(
            student_log_probs, teacher_log_probs, log_target=True, reduction="none"
        )
        return (kl.sum(-1) * mask).sum() / mask.sum()

    assert effects(loss)[0]["teacher_log_probs"] == of.ANCHOR


def test_two_inputs_of_one_role_are_moved_one_by_one():
    def loss(logp, ref_logp, rewards, advantages, mask):
        gain = rewards[:, None] + logp * advantages[:, None]
        return ((0.1 * k3(logp, ref_logp) - gain) * mask).sum(-1).mean()

    subject = as_subject(loss, roles={"rewards": "rewards", "advantages": "rewards"})
    alone = {x.name: x.effect for x in inputs(subject.moved, subject.reading)}
    assert (alone["rewards"], alone["advantages"]) == (of.VALUE, of.ACTS)


def test_inputs_of_a_batch_are_moved_one_by_one():
    def of_batch(batch, beta=0.1):
        mask, old = batch["response_mask"], batch["old_log_probs"]
        gain = (batch["log_probs"] - old.detach()).exp() * batch["advantages"][:, None] * 0
        return ((beta * k3(batch["log_probs"], batch["ref_log_prob"]) - gain) * mask).sum() / mask.sum()

    assert {x.name for x in found(of_batch) if x.effect == of.NONE} == {"advantages", "old_log_probs"}


def test_what_no_other_input_does_is_said_of_two_masks():
    def both(logp, ref_logp, completion_mask, attention_mask):
        return (k3(logp, ref_logp) * completion_mask).sum(-1).mean()

    assert effects(both)[0]["attention_mask"] == of.NONE
    assert notes(found(both)) == []


def penalized(logp, old_logp, advantages, mask, beta=0.1):
    ratio = torch.exp(logp - old_logp)
    return ((beta * k3(logp, old_logp) - ratio * advantages[:, None]) * mask).sum() / mask.sum()


def charged(logp, old_logp, ref_logp, rewards, mask):  # the penalty of samples: k1 to the reference
    returns = rewards[:, None] - 0.1 * (old_logp - ref_logp)
    return -(torch.exp(logp - old_logp) * returns.detach() * mask).sum(-1).mean()


def weighted(logp, old_logp, ref_logp, mask):  # E_old[ratio (logp - ref_logp)] is the KL of the policy
    return (torch.exp(logp - old_logp) * (logp - ref_logp) * mask).sum(-1).mean()


def k3_in_the_reward(logp, old_logp, ref_logp, rewards, mask):  # of second order near the reference
    returns = rewards[:, None] - 0.1 * k3(old_logp, ref_logp)
    return -(torch.exp(logp - old_logp) * returns.detach() * mask).sum(-1).mean()


def beside_an_entropy(logits, ref_logits, mask):  # whose own pull would be taken for one to an input
    policy, reference = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    each = policy.exp() * (policy - reference) + 1e-4 * policy.exp() * policy
    return (each.sum(-1) * mask).sum(-1).mean()


def repelled(logp, ref_logp, mask):
    return -(k3(logp, ref_logp) * mask).sum(-1).mean()


@pytest.mark.parametrize(
    ("loss", "anchors"),
    [
        (penalized, {"old_logp"}),
        (charged, {"ref_logp"}),
        (weighted, {"ref_logp"}),
        (k3_in_the_reward, set()),
        (beside_an_entropy, set()),
        (repelled, set()),
        (plain, {"ref_logp"}),
        (k1, set()),
    ],
)
def test_what_the_policy_is_pulled_to(loss, anchors):
    assert {n for n, effect in effects(loss)[0].items() if effect == of.ANCHOR} == anchors


def over_tokens_and_rows(logp, ref_logp, rewards, mask, beta=0.1):
    policy = -((logp * rewards[:, None] * mask).sum(1) / mask.sum()).mean()
    return policy + beta * ((k3(logp, ref_logp) * mask).sum(1) / mask.sum(1)).mean()


def over_rows_twice(logp, ref_logp, advantages, mask, beta=0.1):
    policy = -(logp * advantages[:, None] * mask).sum(-1).mean() / len(logp)
    return policy + beta * (k3(logp, ref_logp) * mask).sum(-1).mean()


def over_tokens_twice(logp, ref_logp, advantages, mask, kl_coef=0.1):
    policy = -(logp * advantages[:, None] * mask).sum() / mask.sum() ** 2
    return policy + kl_coef * (k3(logp, ref_logp) * mask).sum() / mask.sum()


def kl_over_tokens_and_rows(logp, ref_logp, rewards, mask, beta=0.1):
    policy = -(logp * rewards[:, None] * mask).sum() / mask.sum()
    return policy + beta * ((k3(logp, ref_logp) * mask).sum(1) / mask.sum()).mean()


def reward_summed(logp, ref_logp, rewards, mask, beta=0.1):
    return -(logp * rewards[:, None] * mask).sum() + beta * (k3(logp, ref_logp) * mask).sum(-1).mean()


def kl_summed(logp, ref_logp, rewards, mask, beta=0.1):
    return -(logp * rewards[:, None] * mask).sum(-1).mean() + beta * (k3(logp, ref_logp) * mask).sum()


def both_summed(logp, ref_logp, rewards, mask, beta=0.1):
    return ((beta * k3(logp, ref_logp) - 1e-3 * logp * rewards[:, None]) * mask).sum()


def normalized(logp, ref_logp, rewards, mask, beta=0.1):
    advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    return ((beta * k3(logp, ref_logp) - logp * advantage[:, None]) * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("loss", "parts", "acts"),
    [
        (over_tokens_and_rows, "rewards in the gradient is divided by the tokens and the rows", "B x beta"),
        (over_rows_twice, "advantages in the gradient is divided by the rows twice", "B x beta"),
        (over_tokens_twice, "advantages in the gradient is divided by the tokens twice", "B x kl_coef"),
        (kl_over_tokens_and_rows, "that of the KL is divided by the tokens and the rows", "beta / B"),
        (reward_summed, "rewards in the gradient is a sum over the batch, and that of the KL is a", "/ B"),
        (kl_summed, "is a mean over the batch, and that of the KL is a sum over the batch", "B x beta"),
        (both_summed, "", ""),
        (normalized, "", ""),
        (plain, "", ""),
    ],
)
def test_parts_of_another_order_in_the_size_of_the_batch(loss, parts, acts):
    (text,) = notes(found(loss)) or [""]
    assert parts in text
    assert ("in a batch of B answers" in text) is bool(acts)
    assert acts in text
    assert (of.DIVIDED in effects(loss)[1]) is bool(parts)


def test_rewards_that_only_add_noise():
    def loss(logp, old_logp, ref_logp, rewards, mask):  # the score has mean zero, whatever multiplies it
        gain = torch.exp(logp - old_logp) * rewards.mean()
        return ((0.1 * k3(logp, ref_logp) - gain) * mask).sum(-1).mean()

    assert said(loss) == "rewards move the policy by noise alone: on average their part is 0."


def padding_in_returns(logp, old_logp, ref_logp, rewards, mask):
    k = -0.1 * (old_logp - ref_logp).detach()
    returns = k.flip(-1).cumsum(-1).flip(-1) + rewards[:, None]
    return -(torch.exp(logp - old_logp) * returns * mask).sum(-1).mean()


def masked_before(logp, old_logp, ref_logp, rewards, mask):
    k = -0.1 * (old_logp - ref_logp).detach() * mask
    returns = k.flip(-1).cumsum(-1).flip(-1) + rewards[:, None]
    return -(torch.exp(logp - old_logp) * returns * mask).sum(-1).mean()


def padding_in_a_mean(logp, ref_logp, rewards, mask):
    kl = ((logp - ref_logp) * mask).sum(1)
    advantage = rewards - 0.1 * kl.detach() - 0.01 * logp.detach().mean(1)
    return -(advantage * (logp * mask).sum(1)).mean()


@pytest.mark.parametrize(
    ("loss", "through", "advice"),
    [
        (padding_in_returns, "old_logp, ref_logp", "k is summed before it is masked, write k * mask first."),
        (padding_in_a_mean, "logp", "logp is summed before it is masked, write logp * mask first."),
        (ignores_the_mask, "logp, ref_logp", "multiply by the mask before sums, flips and cumsums."),
        (masked_before, "", ""),
        (plain, "", ""),
        (exact, "", ""),
    ],
)
def test_numbers_outside_the_mask(loss, through, advice):
    assert advice in said(loss)
    assert (of.OUTSIDE in effects(loss)[1]) is bool(through)
    assert (f"Numbers outside the mask change the loss, through {through} (" in said(loss)) is bool(through)
    assert reads_outside(as_subject(loss).loss) is bool(through)


def test_the_card_and_the_data_of_an_audit_have_them():
    verdict = audit(over_tokens_and_rows, scale=1.0, off_policy=False)
    assert "beta acts like B x beta." in " ".join(str(verdict).split())
    entry = {"name": "ref_logp", "role": "ref_logp", "effect": of.ANCHOR, "detail": ""}
    assert entry in verdict.to_dict()["inputs"]
    assert {x["effect"] for x in verdict.to_dict()["inputs"]} <= set(of.EFFECTS)


def test_what_it_is_with_zeros_outside_the_mask():
    verdict = audit(padding_in_returns, scale=1.0, off_policy=False)
    inside = "With zeros outside the mask it minimizes 0.1 x reverse KL, whole answer - reward."
    assert inside in " ".join(str(verdict).split())
    assert verdict.to_dict()["inside"] == inside
    assert audit(masked_before, scale=1.0, off_policy=False).to_dict()["inside"] == ""


def of_models(model, ref_model, input_ids, completion_mask):
    def logps(network):
        logp = network(input_ids).logits[:, :-1].log_softmax(-1)
        return logp.gather(-1, input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)

    return ((logps(model) - logps(ref_model).detach()) ** 2 * completion_mask[:, 1:]).sum()


def of_a_policy(policy, states, actions, ref_logp, mask):
    logp, entropy = policy.evaluate(states, actions)
    return ((logp - ref_logp) ** 2 * mask).sum() - 0.01 * (entropy * mask).sum()


@pytest.mark.parametrize(
    ("loss", "models"),
    [
        (of_models, {"model": of.ACTS, "ref_model": of.ANCHOR}),
        (of_a_policy, {"policy": of.ACTS}),
    ],
)
def test_a_model_that_is_called_is_moved(loss, models):
    assert {name: effect for name, effect in effects(loss)[0].items() if name in models} == models


def kl_of_padding_too(logits, ref_logits):
    logp, ref_logp = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return torch.nn.functional.kl_div(ref_logp, logp, reduction="batchmean", log_target=True)


def test_what_is_explained_by_numbers_outside_the_mask_is_near_nothing():
    card = " ".join(str(audit(kl_of_padding_too, scale=1.0, off_policy=False)).split())
    assert "With zeros outside the mask it minimizes reverse KL, next token." in card
    assert "nearest to that of" not in card


def test_a_loss_without_names_has_none():
    assert audit("k3", scale=1.0, off_policy=False).inputs == ()
    assert inputs(None, None) == ()
