"""The reader's own function, changed: it passes the audit in its own names and its own reduction."""

from typing import Optional

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.adapt import as_subject
from kl_companion.auditing.rewriting import rewritten
from kl_companion.auditing.verdict import rewrite

LATE = 0.3


def per_token(log_probs, ref_log_probs):
    """K3."""
    log_w = ref_log_probs - log_probs
    return log_w.exp() - 1 - log_w


def typed(log_probs: Optional[torch.Tensor], ref_log_probs, beta: float = LATE):  # noqa: UP045
    log_w = ref_log_probs - log_probs
    return beta * (log_w.exp() - 1 - log_w)


def per_answer(logps, ref_logps, completion_mask):
    log_w = ref_logps - logps
    return ((log_w.exp() - 1 - log_w) * completion_mask).sum(-1)


def token_mean(logp, ref_logp, response_mask):
    log_w = ref_logp - logp
    kl = log_w.exp() - 1 - log_w
    return 0.04 * (kl * response_mask).sum() / response_mask.sum()


def answer_mean(logp, ref_logp, mask):
    log_w = ref_logp - logp
    return (((log_w.exp() - 1 - log_w) * mask).sum(-1) / mask.sum(-1)).mean()


def answers(logp, teacher_logp, mask):
    log_w = teacher_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).sum(-1).mean()


def summed(logp, ref_logp, mask):
    log_w = ref_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).sum()


def padded(logp, ref_logp, mask):
    log_w = ref_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).mean()


def of_stale(logp, ref_logp, old_logp, mask):
    log_w = ref_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).sum() / mask.sum()


def whole(logp, ref_logp, mask):
    log_w = ((ref_logp - logp) * mask).sum(-1)
    return 0.5 * (log_w.exp() - 1 - log_w).mean()


def whole_each(logp, ref_logp, mask):
    log_w = ((ref_logp - logp) * mask).sum(-1)
    return log_w.exp() - 1 - log_w


def nothing(logp, ref_logp, mask):
    kl = logp - ref_logp
    return 0.1 * (kl * mask).sum() / mask.sum()


CASES = {  # what is returned, the coefficient, its unit
    per_token: ("kl", 1.0, ""),
    typed: ("0.3 * kl", 0.3, ""),
    per_answer: ("(kl * completion_mask).sum(-1)", 1.0, ""),
    token_mean: ("(0.04 * kl * response_mask).sum() / response_mask.sum()", 0.04, "tokens"),
    answer_mean: ("(kl * mask).sum() / mask.sum()", 1.0, "tokens"),  # not their sum, which is stronger
    answers: ("(kl * mask).sum(-1).mean()", 1.0, ""),
    summed: ("(kl * mask).sum()", 1.0, ""),
    padded: ("(kl * mask).mean()", 1.0, "positions"),
    of_stale: ("(kl * mask).sum() / mask.sum()", 1.0, "tokens"),
    whole: ("(0.5 * kl).mean()", 0.5, ""),
    whole_each: ("kl", 1.0, ""),
    nothing: ("(0.1 * kl * mask).sum(-1).mean()", 0.1, ""),  # a gradient of zero has no unit
}


@pytest.mark.parametrize("divergence", ["reverse_kl", "pearson"])
@pytest.mark.parametrize("loss", CASES)
def test_the_change_passes_the_audit(loss, divergence):
    returned, beta, unit = CASES[loss]
    found = audit(loss, scale=1.0, off_policy=False, want=divergence)
    assert found.met is False
    changed = rewrite(loss, found.reading, divergence, found.findings, found.same_as)
    assert found.remedy == changed.diff
    first, *lines = changed.diff.splitlines()
    assert first.startswith(f"def {loss.__name__}(")
    assert {line[:2] for line in lines} == {"- ", "+ "}
    if divergence == "reverse_kl":
        assert lines[-1] == f"+     return {returned}"
    again = audit(changed.function, scale=1.0, off_policy=False, want=divergence)
    assert again.met
    level = "sequence" if loss in (whole, whole_each) else "token"
    strength = beta / 2 if divergence == "pearson" and loss is not answer_mean else beta
    if divergence == "reverse_kl" or loss not in (answer_mean, nothing):
        assert again.main.matches[0] == pytest.approx({f"{level}_{divergence}": strength})
    assert set(again.main.units[0].values()) == {unit}
    assert again.main.sums == found.main.sums == (loss is summed)
    assert ("old_logp" in "".join(x for x in lines if x[0] == "+")) == (loss is of_stale)
    kept = [x.strip() for x in changed.source.splitlines()]
    assert kept[-1].startswith("return ")


def test_with_stale_samples_the_ratio_stays():
    found = audit(of_stale, scale=1.0, off_policy=True, want="reverse_kl")
    assert "rho = (logp - old_logp).exp().detach()" in found.remedy
    changed = rewrite(of_stale, found.reading, "reverse_kl", found.findings, found.same_as)
    assert audit(changed.function, scale=1.0, off_policy=True, want="reverse_kl").met


def test_the_unit_of_what_moves_nothing_is_that_of_its_stale_samples():
    found = audit(nothing, scale=1.0, want="reverse_kl")
    assert found.remedy.splitlines()[-1] == "+     return (0.1 * kl * mask).sum() / mask.sum()"


class Trainer:
    def compute(self, logp, ref_logp):
        d = ref_logp - logp
        return d.exp() - 1 - d


def test_a_method_is_changed_in_its_own_name():
    found = audit(Trainer.compute, scale=1.0, off_policy=False, want="reverse_kl")
    assert found.remedy.startswith("def compute(self, logp, ref_logp):\n")


def with_reward(logp, ref_logp, advantages, mask):
    log_w = ref_logp - logp
    kl = log_w.exp() - 1 - log_w
    return ((0.1 * kl - advantages[:, None] * logp) * mask).sum(-1).mean()


def of_logits(logits, ref_logits, mask):
    p, q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return ((q.exp() * (q - p)).sum(-1) * mask).sum(-1).mean()


def of_batch(batch):
    log_w = batch["ref_log_probs"] - batch["log_probs"]
    return ((log_w.exp() - 1 - log_w) * batch["response_mask"]).sum(-1).mean()


def on_one_line(logp, ref_logp): return (ref_logp - logp).exp() - 1 - (ref_logp - logp)  # fmt: skip


HANDED = {"made": lambda logp, ref_logp: (ref_logp - logp).exp() - 1 - (ref_logp - logp)}


@pytest.mark.parametrize("loss", [of_logits, of_batch, on_one_line, HANDED["made"]])
def test_what_is_no_single_term_with_a_source_gets_a_function_instead(loss):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    assert found.met is False
    assert "def remedy(logp, ref_logp, behavior_logp)" in found.remedy


def late(logits, ref_logits, input_ids, rewards, mask):
    new, old = (
        x[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1) for x in (logits, ref_logits)
    )
    log_w = old - new
    cost = rewards[:, None] * new
    penalty = log_w.exp() - 1 - log_w
    return ((0.1 * penalty - cost) * mask[:, 1:]).sum(-1).mean()


@pytest.mark.parametrize(
    ("loss", "diff"),
    [
        (with_reward, "- kl = log_w.exp() - 1 - log_w\n+ kl = 0.5 * (logp - ref_logp) ** 2"),
        (late, "- penalty = log_w.exp() - 1 - log_w\n+ penalty = 0.5 * (new - old) ** 2"),
    ],
)
def test_in_a_whole_update_one_line_is_changed_and_the_reward_is_left(loss, diff):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    assert found.remedy == diff


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({"unit": "deviation"}, token_mean),
        ({"unit": "varies"}, token_mean),
        ({"unit": "tokens"}, whole),
    ],
)
def test_units_that_cannot_be_written_are_left(options, loss):
    body = (
        ["d = logp - ref_logp", "kl = d"]
        if loss is token_mean
        else ["kl = ((logp - ref_logp) * mask).sum(-1)"]
    )
    assert rewritten(loss, as_subject(loss).reading, body, beta=1.0, sums=False, **options) is None
