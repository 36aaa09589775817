"""Small experiments decide which worlds and which objectives a loss needs."""

import pytest

from kl_companion.auditing.reading.admission import read
from kl_companion.auditing.reading.request import AuditRequest
from kl_companion.auditing.reading.subject import as_loss, as_subject
from kl_companion.auditing.worlds.plan import (
    conditions,
    couples,
    plan,
    reads_heads,
    reads_sampler,
    single_tokens,
)
from kl_companion.auditing.worlds.trees import Condition
from tests.support.batch_losses import answer_mean, centered, masked_mean, normalized, squares

FRESH, STALE = Condition(False, True, 1.0), Condition(True, True, 1.0)


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (masked_mean, True),
        (centered, True),
        (normalized, True),
        (answer_mean, False),
        (lambda ro: squares(ro).sum(), False),
        (lambda ro: squares(ro).mean(), False),
        (as_loss("k3"), False),
        (as_loss("k1", "reward"), False),
    ],
)
@pytest.mark.parametrize("condition", [FRESH, STALE])
def test_who_couples_the_answers_of_a_batch(loss, wanted, condition):
    assert couples(loss, condition) is wanted


def test_a_mean_over_tokens_couples_only_where_lengths_vary():
    assert not couples(masked_mean, Condition(False, False, 1.0))


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (lambda rollout: (rollout.logp - rollout.behavior_logp).exp().sum(), True),
        (lambda rollout: (rollout.logp - rollout.behavior_logp).sum(), True),  # its value alone
        (lambda rollout: (rollout.logp - rollout.ref_logp).sum(), False),
        (lambda rollout: (rollout.logp_all - rollout.behavior_logp_all).square().sum(), True),
        (lambda rollout: rollout.logp.sum() / 0, False),
    ],
)
def test_who_reads_the_sampler(loss, wanted):
    assert reads_sampler(loss) is wanted


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        ("k3", False),
        ("exact_kl", False),
        ("top_k_reverse_kl(1)", True),
        (lambda logp, ref_logp: (logp - ref_logp) ** 2, False),
        (lambda logits, ref_logits: (logits.log_softmax(-1).exp() ** 2).sum(-1), True),
        (lambda logits, ref_logits: logits.log_softmax(-1).topk(2).values.sum(-1), True),
    ],
)
def test_who_reads_heads(loss, wanted):
    subject = as_subject(loss)
    assert reads_heads(subject.entry, single_tokens(subject.loss)) is wanted


def in_groups(logp, ref_logp, mask, num_generations=4):
    per_answer = ((logp - ref_logp) ** 2 / 2 * mask).sum(-1)
    return per_answer.view(-1, num_generations).mean()


def planned(loss, **options):
    return plan(read(AuditRequest(loss, **options)))


def test_the_size_of_a_group_is_that_of_the_request_else_that_of_the_text():
    by_text, by_request = planned(in_groups), planned(in_groups, group_size=8)
    assert (by_text.group_size, by_text.group.source, by_text.options.group_size) == (4, "num_generations", 4)
    assert (by_request.group_size, by_request.group, by_request.options.group_size) == (8, None, 8)
    assert not by_text.single
    assert planned("k3", group_size=2).options.group_size is None


def test_conditions_are_those_of_the_request():
    assert planned("k3").conditions == tuple(conditions())
    assert planned("k3", scale=2.0, off_policy=True).conditions == (
        Condition(True, False, 2.0),
        Condition(True, True, 2.0),
    )
