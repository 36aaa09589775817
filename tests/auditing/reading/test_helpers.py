"""Helpers that a pasted loss reads and does not bring: by hand, and never over what a text defines."""

import math

import pytest
import torch

from kl_companion.auditing import audit
from kl_companion.auditing.reading.helpers import HELPERS, lent
from kl_companion.auditing.reading.sources import pasted_loss

VALUES = torch.tensor([[1.0, 2.0, 9.0], [4.0, 8.0, 8.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
LOGITS = torch.tensor([[[0.0, math.log(3)]]], dtype=torch.float64)  # probabilities 1/4 and 3/4


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("masked_sum", (VALUES, MASK), 7.0),
        ("masked_sum", (VALUES, MASK, 1), [3.0, 4.0]),
        ("masked_mean", (VALUES, MASK), 7 / 3),
        ("masked_mean", (VALUES, MASK, -1), [1.5, 4.0]),
        ("selective_log_softmax", (LOGITS, torch.tensor([[1]])), [[math.log(0.75)]]),
        ("logprobs_from_logits", (LOGITS, torch.tensor([[0]])), [[math.log(0.25)]]),
        ("entropy_from_logits", (LOGITS,), [[0.25 * math.log(4) + 0.75 * math.log(4 / 3)]]),
    ],
)
def test_a_helper_is_what_its_name_says(name, arguments, expected):
    assert torch.allclose(HELPERS[name](*arguments), torch.tensor(expected, dtype=torch.float64))


def test_whitened_values_have_mean_0_and_variance_1_under_the_mask():
    for keep, mean in ((False, 0.0), (True, 7 / 3)):
        x = HELPERS["masked_whiten"](VALUES, MASK, shift_mean=not keep)[MASK.bool()]
        assert torch.allclose(x.mean(), torch.tensor(mean).double()), keep
        assert torch.allclose(x.var(unbiased=False), torch.tensor(1.0).double()), keep


LOSS = "def loss_fn(logp, ref_logp, mask):\n    return {call}(logp - ref_logp, mask)\n"


@pytest.mark.parametrize(
    ("text", "lent_names"),
    [
        (LOSS.format(call="masked_mean"), ["masked_mean"]),
        ("loss = masked_sum((logp - ref_logp) ** 2 / 2, completion_mask)", ["masked_sum"]),
        ("def masked_mean(x, m): return (x * m).sum()\n" + LOSS.format(call="masked_mean"), []),
        ("masked_mean = lambda x, m: (x * m).sum()\n" + LOSS.format(call="masked_mean"), []),
        (LOSS.format(call="torch.masked_mean"), []),
    ],
)
def test_only_what_is_missing_is_lent_and_named(text, lent_names):
    sentences = lent(pasted_loss(text, "pasted" if text.startswith("loss") else "loss_fn"))
    assert [s.partition(" ")[0] for s in sentences] == lent_names


def test_the_card_names_what_was_lent():
    found = audit(pasted_loss("loss = masked_mean((logp - ref_logp) ** 2 / 2, completion_mask)"), scale=1.0)
    assert found.main.matches, str(found)
    assert "masked_mean is not in the text: read as the mean under the mask" in " ".join(str(found).split())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(logp, ref_logp):\n    return kl_of(logp, ref_logp) + other(logp)", "kl_of and other"),
        # undefined behind a line that runs with rewards [batch, 1] only
        ("def f(logp, rewards):\n    x = logp * rewards\n    return kl_of(x)", "kl_of"),
    ],
)
def test_names_that_nothing_defines_are_named_before_anything_is_tried(text, names):
    with pytest.raises(ValueError, match=rf"f reads {names}, which its text does not define") as refused:
        audit(pasted_loss(text))
    assert "likely lines" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "def f(self, logp, ref_logp):\n    return self.kl_of(logp, ref_logp)",
            "the loss calls self.kl_of, expected a",
        ),
        (
            "class A:\n    def loss(self, logp):\n        return self.scale_of(logp) * logp",
            "the loss calls self.scale_of",
        ),
    ],
)
def test_a_method_that_is_not_there_is_named(text, why):
    with pytest.raises(ValueError, match=why) as refused:
        audit(pasted_loss(text))
    assert "likely lines" not in str(refused.value)
