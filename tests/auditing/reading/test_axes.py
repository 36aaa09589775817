"""Log-probs of the whole vocabulary, told from those of one token by what a loss does with them."""

import pytest
import torch.nn.functional as F

from kl_companion import audit
from kl_companion.auditing.reading.subject import as_subject


def pointwise(student_log_probs, teacher_log_probs, mask):
    kl = F.kl_div(teacher_log_probs, student_log_probs, log_target=True, reduction="none").sum(-1)
    return (kl * mask).sum(-1).mean()


def weighted(student_log_probs, teacher_log_probs):
    return (teacher_log_probs.exp() * (teacher_log_probs - student_log_probs)).sum(-1).sum(-1).mean()


def gathered(log_probs, ref_log_probs, labels, mask):
    mine, theirs = (x.gather(-1, labels.unsqueeze(-1)).squeeze(-1) for x in (log_probs, ref_log_probs))
    return (0.5 * (mine - theirs) ** 2 * mask).sum(-1).mean()


def beside_logits(student_logits, teacher_logprobs, mask):
    q = student_logits.log_softmax(-1)
    return ((q.exp() * (q - teacher_logprobs)).sum(-1) * mask).sum(-1).mean()


def squares(logps, ref_logps, mask):
    return (0.5 * (logps - ref_logps) ** 2 * mask).sum(-1).mean()


def of_probabilities(logps, old_logps, advantages):
    return -(logps.exp() / old_logps.exp() * advantages[:, None]).sum(-1).mean()


# verdicts by hand: sum over the vocabulary of pi (log pi - log ref) is the reverse KL of a token, with ref in
# front the forward one; half a square of the sampled token has the gradient of the reverse KL; a ratio of
# probabilities is an importance weight
@pytest.mark.parametrize(
    ("loss", "whole", "verdict"),
    [
        (pointwise, True, {"token_reverse_kl": 1.0}),
        (weighted, True, {"token_forward_kl": 1.0}),
        (gathered, True, {"token_reverse_kl": 1.0}),
        (beside_logits, True, {"token_reverse_kl": 1.0}),
        (squares, False, {"token_reverse_kl": 1.0}),
        (of_probabilities, False, {"expected_reward": -1.0}),
    ],
)
def test_the_axis_that_is_summed_over_says_which(loss, whole, verdict):
    found = audit(loss, off_policy=False, scale=1.0)
    assert found.matches == verdict
    assert found.reading.layout.whole is whole
    assert ("whole vocabulary" in str(found)) is whole


def test_where_both_run_the_line_for_the_other_is_said_and_taken():
    reading = as_subject(weighted).reading
    line = "--map student_log_probs=logp --map teacher_log_probs=ref_logp"
    assert reading.notes == (
        "student_log_probs and teacher_log_probs are read as log-probs of the whole vocabulary: "
        f"exp(log-probs) weights a sum over the last axis. If of the sampled token only: {line}",
    )
    roles = dict(x.split("=") for x in line.split() if "=" in x)
    other = as_subject(weighted, roles=roles).reading
    assert not other.layout.whole
    assert not other.notes
    assert as_subject(pointwise).reading.notes == ()
