"""Losses on answers with text of a tool inside, each with what a tool's tokens do there, by hand."""

from __future__ import annotations

import pytest
import torch

from kl_companion import audit


def k2(logp, ref_logp):
    return 0.5 * (logp - ref_logp) ** 2


def summed(k, mask):
    return (k * mask).sum(-1).mean()


def until_the_end(x):
    return x.flip(-1).cumsum(-1).flip(-1)


# Right: numbers of the text are multiplied by 0 before they meet another token.


def masked_k2(logp, ref_logp, completion_mask):
    return summed(k2(logp, ref_logp), completion_mask)


def masked_returns(logp, old_logp, ref_logp, rewards, mask):
    returns = until_the_end((ref_logp - old_logp) * mask) + rewards.unsqueeze(-1)
    return -summed((logp - old_logp).exp() * returns, mask)


def over_the_padded_length(logp, ref_logp, mask):  # another number there, and still the padded length
    return (k2(logp, ref_logp) * mask).sum() / mask.numel()


def of_labels(logits, ref_logits, labels):  # labels are -100 on the text
    each = [
        x.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1))[..., 0] for x in (logits, ref_logits)
    ]
    return summed(k2(*each), labels != -100)


def charged_for_the_past(logp, ref_logp, mask):  # the past is a baseline: nothing is expected of it
    past = ((logp - ref_logp).detach() * (until_the_end(mask) > 0)).cumsum(-1)
    return summed(logp * past, mask)


# The text is trained on.


def mask_from_its_ends(logp, ref_logp, completion_mask):  # 1 0 0 1 becomes 1 1 1 1
    inside = (completion_mask.cumsum(-1) > 0) & (until_the_end(completion_mask) > 0)
    return summed(k2(logp, ref_logp), inside)


def attention_only(logp, ref_logp, attention_mask):
    return summed(k2(logp, ref_logp), attention_mask)


def by_length(logp, ref_logp, response_length):
    return summed(k2(logp, ref_logp), torch.arange(logp.shape[1]) < response_length.unsqueeze(-1))


# 1 0 0 1 becomes 1 1 0 0: the text is trained on, and tokens behind it are not
def as_many_as_own(logp, ref_logp, completion_mask):
    count = completion_mask.sum(-1, keepdim=True)
    return summed(k2(logp, ref_logp), torch.arange(logp.shape[1]) < count)


def all_but_the_last(logp, ref_logp, mask):  # the last token has no gradient without the text either
    left = until_the_end(mask)
    return summed(k2(logp, ref_logp), (left > 1) | ((left > 0) & (mask == 0)))


# Its log-probs reach tokens of the policy.


def returns_until_the_last_own_token(logp, old_logp, ref_logp, rewards, mask):
    inside = until_the_end(mask) > 0
    returns = until_the_end((ref_logp - old_logp) * inside) + rewards.unsqueeze(-1)
    return -summed((logp - old_logp).exp() * returns, mask)


def weighed_by_the_past(logp, ref_logp, mask):
    past = ((logp - ref_logp).detach() * (until_the_end(mask) > 0)).cumsum(-1)
    return summed(k2(logp, ref_logp) * past.exp(), mask)


def charged_answer(logp, old_logp, ref_logp, rewards, loss_mask, attention_mask):
    charge = 0.05 * ((old_logp - ref_logp) * attention_mask).sum(-1)
    return -(((logp * loss_mask).sum(-1)) * (rewards - charge)).mean()


# Its tokens are counted.


def mean_of_all_tokens(logp, ref_logp, completion_mask, attention_mask):
    return ((k2(logp, ref_logp) * completion_mask).sum(-1) / attention_mask.sum(-1)).mean()


def loses_what_comes_behind(logp, ref_logp, completion_mask):  # 1 0 0 1 becomes 1 0 0 0
    return summed(k2(logp, ref_logp), completion_mask.cumprod(-1))


SAME = [masked_k2, masked_returns, over_the_padded_length, of_labels, charged_for_the_past]


@pytest.mark.parametrize("loss", SAME)
def test_what_minimizes_the_same(loss):
    found = audit(loss, scale=1.0, off_policy=False)
    assert found.tool.same
    assert found.tool.finding.matches == found.main.matches
    assert found.tool.finding.condition.tool
    assert "With text of a tool inside answers it does the same." in str(found)


@pytest.mark.parametrize(
    ("loss", "effects", "sentence"),
    [
        (mask_from_its_ends, {"trained"}, "are trained on: their logits get gradient."),
        (attention_only, {"trained"}, "gradient (attention_mask is read as counting them)."),
        (by_length, {"trained"}, "gradient (response_length is read as counting them)."),
        (all_but_the_last, {"trained"}, "are trained on: their logits get gradient."),
        (as_many_as_own, {"trained", "lost"}, "get gradient; tokens that the policy wrote get none."),
        (
            returns_until_the_last_own_token,
            {"before"},
            "count in the returns of the tokens before.",
        ),
        (weighed_by_the_past, {"after"}, "log-probs count in the gradient of the tokens after."),
        (
            charged_answer,
            {"before", "after"},
            "answer's own tokens (attention_mask is read as counting",
        ),
        (mean_of_all_tokens, set(), "last token depends on it (attention_mask is read as counting"),
        (
            loses_what_comes_behind,
            {"lost"},
            "Tokens that the policy wrote get no gradient beside",
        ),
    ],
)
def test_what_a_tool_s_tokens_do(loss, effects, sentence):
    found = audit(loss, scale=1.0, off_policy=False)
    assert not found.tool.same
    seen = {n for n in ("trained", "lost", "before", "after") if getattr(found.tool, n)}
    assert seen == effects
    text = " ".join(str(found).split())
    assert sentence in text
    assert ("in answers without text of a tool." in text) is bool(found.matches)
    first, second, last = found.to_dict()["conditions"]
    assert [x["inside"] for x in (first, second, last)] == ["", "", "tool"]
    assert (last["lengths"], last["samples"], last["ratios"]) == ("many", "fresh", "near")
    assert (last["terms"], last["residual"]) != (second["terms"], second["residual"])


def rloo(logps, old_logps, ref_logps, rewards, charged, response_mask, num_generations=2):
    """RLOO with K1 in the reward, in groups whose size stands in the code."""
    charge = 0.1 * ((old_logps - ref_logps) * charged).sum(-1)
    groups = (rewards - charge).view(-1, num_generations)
    others = (groups.sum(1, keepdim=True) - groups) / (num_generations - 1)
    ratio = torch.exp(((logps - old_logps) * response_mask).sum(-1))
    return -(ratio * (groups - others).view(-1)).mean()


def test_groups_whose_size_stands_in_the_code():
    def right(logps, old_logps, ref_logps, rewards, response_mask, num_generations=2):
        return rloo(logps, old_logps, ref_logps, rewards, response_mask, response_mask, num_generations)

    def charged(logps, old_logps, ref_logps, rewards, response_mask, attention_mask, num_generations=2):
        return rloo(logps, old_logps, ref_logps, rewards, attention_mask, response_mask, num_generations)

    assert audit(right, scale=1.0, off_policy=False).tool.same
    found = audit(charged, scale=1.0, off_policy=False)
    assert found.matches == {"expected_reward": -1.0, "sequence_reverse_kl": 0.1}
    assert not found.tool.same
    assert (found.tool.trained, found.tool.before, found.tool.after) == (False, True, True)


def test_a_loss_without_a_mask_is_not_tried_on_text_of_a_tool():
    found = audit(k2, scale=1.0, off_policy=False)
    assert found.tool is None
    assert "tool" not in str(found)
    assert audit("k2", scale=1.0, off_policy=False).tool is None


def test_a_mask_that_a_batch_is_asked_for_is_a_mask():
    def of_batch(batch):
        return summed(k2(batch["log_probs"], batch["ref_log_probs"]), batch["response_mask"])

    def of_attention(batch):
        return summed(k2(batch["log_probs"], batch["ref_log_probs"]), batch["attention_mask"])

    assert audit(of_batch, scale=1.0, off_policy=False).tool.same
    assert audit(of_attention, scale=1.0, off_policy=False).tool.trained


def test_stale_samples_alone_are_tried_with_text_too():
    found = audit(masked_k2, scale=1.0, off_policy=True)
    assert found.tool.finding.condition == (True, True, 1.0, True)
    assert found.tool.same
