"""KL terms that no estimator fits: what is measured of them, and what is said."""

import math

import pytest
import torch

from kl_companion.monitor.doctor import diagnose
from kl_companion.monitor.doctor.term_measurements import (
    entropy_beside,
    mixture,
    of_log_ratios,
    rises_with_ratio,
    twice,
)
from tests.support.small_steps import by_answer, k3, log_probs, probe, step_of


def whole(divergence):
    """A distillation; ``divergence`` of both models' log-probs over the whole vocabulary."""

    def step(model, teacher, batch):
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        rows = slice(batch["prompt_length"] - 1, -1)
        mine = model(**given).logits[:, rows].log_softmax(-1)
        with torch.no_grad():
            theirs = teacher(**given).logits[:, rows].log_softmax(-1)
        return by_answer(divergence(mine, theirs), batch["completion_mask"])

    return step


def reverse(p, q):
    return (p.exp() * (p - q)).sum(-1)


def both(p, q):
    return reverse(p, q) + 3 * reverse(q, p)


def of_log_means(p, q):
    """Not what its name says."""
    m = 0.5 * (p + q)
    jsd = 0.5 * (reverse(p, m) + reverse(q, m))
    return jsd


def of_means(p, q):
    m = torch.logsumexp(torch.stack([p, q]), 0) - math.log(2)
    jsd = 0.5 * (reverse(p, m) + reverse(q, m))
    return jsd


def cut(p, q):
    values, places = q.topk(5)
    return reverse(p.gather(-1, places), values.log_softmax(-1))


def wavy(p, q):
    return (p.exp() * (3 * (p - q)).sin()).sum(-1)


def warm(p, q):
    return reverse(p, (q / 2).log_softmax(-1))


def in_reward(cost, more=lambda logp, ref: 0.0 * logp):
    def step(model, ref_model, batch):
        logp, mask = log_probs(model, batch), batch["completion_mask"]
        with torch.no_grad():
            ref = log_probs(ref_model, batch)
        rewards = batch["rewards"] - 0.1 * (cost(logp.detach() - ref) * mask).sum(-1)
        return by_answer(more(logp, ref) - (rewards - rewards.mean()).unsqueeze(-1) * logp, mask)

    return step


def test_what_is_measured_of_whole_distributions():
    assert [rises_with_ratio(probe(whole(d))) for d in (reverse, both, wavy)] == [True, True, False]
    assert mixture(probe(whole(both))) == "0.25 reverse KL + 0.75 forward KL (up to a factor)"
    assert mixture(probe(whole(of_means))) == ""
    entropic = whole(lambda p, q: reverse(p, q) + 0.1 * (p.exp() * p).sum(-1))
    assert [entropy_beside(probe(x)) for x in (entropic, whole(reverse), whole(cut))] == [True, False, False]


def test_what_is_measured_of_tokens():
    weighted = step_of(lambda logp, ref: 0.1 * logp.exp() * (logp - ref))
    assert [of_log_ratios(probe(x)) for x in (step_of(k3), weighted)] == [True, False]
    doubled = twice(probe(in_reward(lambda delta: delta, k3)))
    assert [form.name for form in doubled] == ["k1", "k3"]
    assert twice(probe(in_reward(lambda delta: delta))) is None
    assert twice(probe(step_of(k3))) is None


@pytest.mark.parametrize(
    ("step", "level", "said"),
    [
        (whole(reverse), "fine", "the exact reverse KL."),
        (whole(both), "fine", "of 0.25 reverse KL + 0.75 forward KL"),
        (whole(of_means), "fine", "the exact Jensen-Shannon divergence."),
        (
            whole(of_log_means),
            "wrong",
            "The code speaks of the Jensen-Shannon divergence; the gradient is that of 0.5",
        ),
        (whole(cut), "wrong", "it is not that of an entropy"),
        (whole(warm), "wrong", "of no f-divergence"),
        (
            in_reward(lambda delta: delta, k3),
            "wrong",
            "The KL acts twice: as K1 in the reward and as K3 in the loss.",
        ),
        (
            in_reward(lambda delta: delta.clamp(min=0)),
            "wrong",
            "cut at 0: at log-ratios below 0 it has no effect",
        ),
        (in_reward(lambda delta: delta**4), "unchecked", "as a cost in the reward it is no estimator"),
        (step_of(lambda logp, ref: (logp - ref) ** 4), "unchecked", "of no estimator that the doctor knows"),
        (
            step_of(lambda logp, ref: (3 * (logp - ref)).cos()),
            "wrong",
            "its pull to the reference becomes weaker",
        ),
        (step_of(lambda logp, ref: 0.1 * logp.exp() * (ref - logp)), "wrong", "multiplied by a probability"),
        (
            step_of(lambda logp, ref: torch.exp(logp - ref) + logp - ref),
            "wrong",
            "The formula is that of no KL",
        ),
    ],
)
def test_what_is_said_of_a_term(step, level, said):
    diagnosis = diagnose(step, update=False)
    found = [f for f in diagnosis.findings if f.name in ("form", "alike")][-1]
    assert (found.level, said in found.said) == (level, True), str(diagnosis)
    assert diagnosis.status == {"wrong": 1, "unchecked": 3, "fine": 0}[level]


def test_a_ratio_to_the_reference_and_a_kl_to_the_sampler():
    def to_reference(model, ref_model, batch):
        logp, a = log_probs(model, batch), batch["advantages"].unsqueeze(-1)
        with torch.no_grad():
            ref = log_probs(ref_model, batch)
        kl = k3(logp, ref)
        ratio = torch.exp(logp - ref)  # ratio
        return by_answer(0.1 * kl - torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a), batch["completion_mask"])

    (said,) = diagnose(to_reference, update=False).wrong
    assert "The importance ratio is taken to the reference" in said.said
    assert said.line.text.endswith("# ratio")

    def to_sampler(model, ref_model, batch):
        logp, a = log_probs(model, batch), batch["advantages"].unsqueeze(-1)
        old = batch["old_log_probs"]
        kl = k3(logp, old)  # kl
        return by_answer(0.1 * kl - torch.exp(logp - old) * a, batch["completion_mask"])

    (said,) = diagnose(to_sampler, update=False).wrong
    assert "The KL is measured to the policy that sampled" in said.said
    (told,) = [
        f
        for f in diagnose(lambda model, batch: to_sampler(model, None, batch), update=False).findings
        if f.name == "reference"
    ]
    assert (told.level, "holds the policy to no fixed reference" in told.said) == ("attention", True)
