"""Formulas of one line are told apart by value and gradient, and the script computes what it says."""

import math
import subprocess
import sys

import pytest
import torch

from kl_companion.frameworks.history.reproduction import formula_of, reproduction
from tests.support.data import data

DATA = data(__file__)


def mean_of(term):
    """A loss of a rollout from a term of log(ref/pi), log(ref/mu) and log(pi/mu) of the sampled token."""

    def loss(rollout):
        logp, ref, sampler = rollout.logp, rollout.ref_logp, rollout.sampled_from
        return (term(ref - logp, ref - sampler, logp - sampler) * rollout.completion_mask).mean()

    return loss


@pytest.mark.parametrize(
    ("term", "log_ratio", "loss"),
    DATA["known"],
)
def test_a_loss_is_known_by_value_and_gradient(term, log_ratio, loss):
    assert formula_of(mean_of(eval(term, {"torch": torch}))) == f"d = {log_ratio}\nloss = {loss}"


@pytest.mark.parametrize(
    "term",
    [
        lambda x, *_: x**4,
        lambda x, *_: x.square() / 2 + 1e-6,  # the gradient of one, and another value
        lambda x, *_: x.square().detach() / 2,  # the value of one, and no gradient
        lambda x, *_: (x.exp() - 1 - x).clamp(max=11),
        lambda x, *_: 2 * x.square() / 2,
    ],
)
def test_what_is_none_of_them_is_not_taken_for_one(term):
    assert formula_of(mean_of(term)) == ""


def softmax(logits):
    weights = [math.exp(x) for x in logits]
    return [w / sum(weights) for w in weights]


def by_hand(p, slopes):
    """The gradient of the logits where the loss of token y has the slope slopes[y] in its log-prob."""
    mean = sum(a * s for a, s in zip(p, slopes, strict=True))
    return [round(a * (s - mean), 4) + 0.0 for a, s in zip(p, slopes, strict=True)]


def test_the_script_runs_on_torch_alone_and_prints_what_is_computed_by_hand(tmp_path):
    found = reproduction("d = ref_logp - logp\nloss = d.exp() - d - 1", "reverse_kl")
    assert found is not None
    script, output = found
    (tmp_path / "script.py").write_text(script)
    assert "import" not in script.replace("import torch\n", "", 1)
    call = [sys.executable, "-I", "script.py"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == output
    p, q = softmax([1.0, 0.0, -1.0]), softmax([-0.5, 0.5, 0.0])
    ratios = [math.log(a / b) for a, b in zip(p, q, strict=True)]
    reverse, forward = by_hand(p, ratios), [round(a - b, 4) for a, b in zip(p, q, strict=True)]
    assert output.splitlines() == [
        f"expected gradient of the loss: {forward}",
        f"gradient of KL(policy || reference): {reverse}",
        f"gradient of KL(reference || policy): {forward}",
        f"expected gradient with the change below: {reverse}",
    ]
    assert reverse != forward


def test_what_differs_far_from_the_reference_is_shown_there():
    kept = "d = ref_logp - logp\nloss = 0.5 * d**2"
    assert reproduction(kept, "reverse_kl") is None
    found = reproduction(f"{kept.replace('0.5 * d**2', '(0.5 * d**2).clamp(-10, 10)')}", "reverse_kl")
    assert found is not None
    p, q = softmax([0.0, -1.0, -5.0]), softmax([-1.0, -6.0, 0.5])
    ratios = [math.log(a / b) for a, b in zip(p, q, strict=True)]
    clamped = [x if x * x / 2 < 10 else 0.0 for x in ratios]
    assert clamped != ratios
    assert found[1].splitlines()[0] == f"expected gradient of the loss: {by_hand(p, clamped)}"
    assert found[1].splitlines()[1] == f"gradient of KL(policy || reference): {by_hand(p, ratios)}"


def test_the_promise_may_be_the_other_direction():
    k3 = "d = ref_logp - logp\nloss = d.exp() - d - 1"
    assert reproduction(k3, "forward_kl") is None
    found = reproduction("d = ref_logp - logp\nloss = -d", "forward_kl")
    assert found is not None
    lines = [line.partition(": ")[2] for line in found[1].splitlines()]
    assert lines[0] == "[0.0, 0.0, 0.0]"
    assert lines[3] == lines[2] != lines[1]
