"""Patches of modules, of callable objects and of what is taken of a batch; a patch keeps the mask."""

import pytest
import torch

from kl_companion import audit


def of_batch(batch):
    log_w = batch["ref_log_probs"] - batch["log_probs"]
    return ((log_w.exp() - 1 - log_w) * batch["response_mask"]).sum(-1).mean()


def in_two_terms(logp, ref_logp, mask):
    w = (ref_logp - logp).exp()
    first, second = ((x * mask).sum(-1) for x in (w, w + logp))
    return (first + 0.5 * second).mean()


def masked_first(logp, ref_logp, labels):
    kl = logp.masked_fill(labels == -100, 0.0) - ref_logp.masked_fill(labels == -100, 0.0)
    return kl.sum(-1).mean()


@pytest.mark.parametrize("loss", [in_two_terms, masked_first])
def test_that_no_change_passes_is_said_where_changes_were_tried(loss):
    """Without the mask that is in the line of ``masked_first``, numbers of the padding would count."""
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    assert "no change of one expression" in " ".join(found.remedy.replace("# ", "").split())
    assert "def remedy" in found.remedy


class Penalty(torch.nn.Module):
    def __init__(self, beta: float = 0.2, kind: str = "k3"):
        super().__init__()
        self.beta, self.kind = beta, kind

    def forward(self, log_probs, ref_log_probs, response_mask):
        log_w = ref_log_probs - log_probs
        kl = torch.clamp(log_w.exp() - log_w - 1, max=10) if self.kind == "k3" else 0.5 * log_w**2
        return self.beta * (kl * response_mask).sum() / response_mask.sum()


class Called:
    def __call__(self, logp, ref_logp, mask):
        kl = (ref_logp - logp).exp() - 1 - (ref_logp - logp)
        return (kl * mask).sum(-1).mean()


def with_attributes(inputs):
    kl = inputs.logps - inputs.ref_logps
    return (kl * inputs.completion_mask).sum() / inputs.completion_mask.sum()


def with_a_mask_in_the_line(logp, ref_logp, labels):
    kl_of_answers = ((logp - ref_logp) * (labels != -100)).sum(-1)
    return kl_of_answers.mean()


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (Penalty, "kl_ = 0.5 * (log_probs - ref_log_probs) ** 2"),
        (Penalty(beta=0.7), "kl_ = 0.5 * (log_probs - ref_log_probs) ** 2"),
        (Called, "kl = 0.5 * (logp - ref_logp) ** 2"),
        (of_batch, 'kl = 0.5 * (batch["log_probs"] - batch["ref_log_probs"]) ** 2'),
        (with_attributes, "kl = 0.5 * (inputs.logps - inputs.ref_logps) ** 2"),
        (with_a_mask_in_the_line, "kl = 0.5 * (logp - ref_logp) ** 2"),
    ],
)
def test_modules_and_what_is_taken_of_a_batch_are_changed_in_their_own_lines(loss, line):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    added = [x[2:].strip() for x in found.remedy.splitlines() if x.startswith("+ ")]
    assert added[0].startswith(line)
    assert not found.remedy.startswith("#")


def summed_without_its_mask(logp, ref_logp, mask):
    return (0.5 * (logp - ref_logp) ** 2).sum(-1).mean()


def averaged_without_its_mask(logp, ref_logp, mask, beta=0.1):
    return beta * (0.5 * (logp - ref_logp) ** 2).mean()


def averaged_by_answer(logp, ref_logp, mask):
    return ((0.5 * (logp - ref_logp) ** 2 * mask).sum(-1) / mask.sum(-1)).mean()


@pytest.mark.parametrize(
    ("loss", "outside"),
    [(summed_without_its_mask, True), (averaged_without_its_mask, True), (averaged_by_answer, False)],
)
def test_a_mask_that_is_not_used_is_the_cause_and_not_a_division_by_lengths(loss, outside):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    text = " ".join(found.remedy.replace("# ", "").split())
    assert ("Numbers outside the mask change it" in text) is outside
    assert ("how it divides by lengths" in text) is not outside
