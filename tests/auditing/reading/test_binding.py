"""Rows of all answers, and policies that are called: the same gradient as the loss of a padded batch."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from kl_companion import audit, kl_loss
from kl_companion.auditing.reading.arguments import Unusable
from kl_companion.auditing.reading.probing import probe
from kl_companion.auditing.reading.signatures import UnclearNames
from kl_companion.auditing.reading.sources import pasted_loss
from kl_companion.auditing.reading.subject import as_loss, as_subject
from tests.support.data import data

DATA = data(__file__)


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
    loss, expected = as_loss(pasted_loss(text["text"]))(rollout), plain(text["plain"], rollout)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, rollout), gradient(expected, rollout))


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


NOT_THERE = """
def loss_fn(logp, ref_logp, mask):
    {line}
    return (x * mask).sum(-1).mean()
"""


@pytest.mark.parametrize(("line", "said"), DATA["what_nothing_can_stand_for_is_refused"])
def test_what_nothing_can_stand_for_is_refused(line, said):
    with pytest.raises(Unusable, match=re.escape(said)):
        as_loss(pasted_loss(NOT_THERE.format(line=line)))(probe())


def test_what_stood_for_a_name_is_gone_after_the_call():
    loss = pasted_loss(NOT_THERE.format(line="x = logp - ref_logp + device_count"))
    as_loss(loss, options={"device_count": 2})(probe())
    assert "device_count" not in loss.__globals__


def test_unclear_keys_of_a_batch_are_named_with_what_they_may_be():
    text = "def loss(batch): return ((batch['logps'] - batch['refs']) * batch['mask']).sum()"
    with pytest.raises(UnclearNames, match="refs: no word of it is a quantity") as refusal:
        as_loss(pasted_loss(text))
    assert "ref_logp: log-probs of the reference" in str(refusal.value)


def test_rows_of_a_classifier_are_the_tokens_of_the_policy():
    text = (
        "loss = F.kl_div(student_logits.log_softmax(1), F.softmax(teacher_logits, 1), reduction='batchmean')"
    )
    rollout = probe()
    mask = rollout.completion_mask.clone()
    mask[:, 1] *= mask[:, 2] == 0  # the second of three tokens is a tool's
    rollout = replace(rollout, completion_mask=mask)
    loss = as_loss(pasted_loss(text))(rollout)
    p, q = rollout.logits.softmax(-1), rollout.ref_logits.softmax(-1)
    expected = ((q * (q / p).log()).sum(-1) * mask).sum() / mask.sum()
    torch.testing.assert_close(gradient(loss, rollout), gradient(expected, rollout))


def test_a_helper_that_is_given_logits_leaves_them_without_a_line_of_no_effect():
    case = CASES["a_function_of_the_script_is_given_logits"]["text"]
    card = str(audit(pasted_loss(case), scale=1.0))
    assert "gather_token_log_probs" in card
    assert "no effect" not in card


def test_a_single_parameter_that_is_passed_on_is_the_rollout():
    rollout = probe()
    only_passed = as_loss(lambda r: kl_loss(r, "k2"))
    torch.testing.assert_close(only_passed(rollout), kl_loss(rollout, "k2"))
