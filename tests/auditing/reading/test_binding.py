"""Rows of all answers, and policies that are called: the same gradient as the loss of a padded batch."""

from pathlib import Path

import pytest
import torch
import yaml

from kl_companion import audit
from kl_companion.auditing.reading.arguments import Unusable
from kl_companion.auditing.reading.probing import probe
from kl_companion.auditing.reading.sources import pasted_loss
from kl_companion.auditing.reading.subject import as_loss, as_subject

CASES = yaml.safe_load((Path(__file__).parent / "bound.yml").read_text(encoding="utf-8"))


def plain(text, r):
    """The loss of a padded rollout that is written in `bound.yml`."""
    mask = r.completion_mask
    names = {"logp": r.logp, "ref": r.ref_logp, "old": r.sampled_from, "mask": mask, "n": mask.sum(-1)}
    return eval(
        text, names | {"rewards": r.rewards, "p": r.logits.softmax(-1), "q": r.ref_logits.softmax(-1)}
    )


def gradient(loss, rollout):
    (slope,) = torch.autograd.grad(loss, rollout.logits, retain_graph=True)
    return slope * rollout.completion_mask.unsqueeze(-1)


@pytest.mark.parametrize("case", CASES)
def test_a_loss_has_the_gradient_of_the_same_loss_of_padded_answers(case):
    rollout, text = probe(), CASES[case]
    loss = as_loss(pasted_loss(text["text"]))(rollout)
    torch.testing.assert_close(gradient(loss, rollout), gradient(plain(text["plain"], rollout), rollout))


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("packed")])
def test_the_card_says_that_answers_are_in_one_row(case):
    reading = as_subject(pasted_loss(CASES[case]["text"])).reading
    assert reading.layout.packed
    assert "in one row, one answer after the other" in reading.layout.words
    assert "lengths" not in {r.role for r in reading.reads}  # which would be moved by themselves


def test_a_packed_loss_is_audited():
    loss = pasted_loss(CASES["packed_with_segments_and_one_value_per_token"]["text"])
    (match,) = audit(loss, scale=1.0).main.matches
    assert match == pytest.approx({"sampled_mean_squared_log_ratio": 2.0})


def test_a_result_that_no_name_says_is_refused():
    with pytest.raises(Unusable, match="evaluate, whose result a and b is not known by its name") as refusal:
        as_loss(pasted_loss("a, b = policy.evaluate(obs, act)\nloss = a.mean()\n"))
    assert "assign it to names such as entropy, logp" in str(refusal.value)
