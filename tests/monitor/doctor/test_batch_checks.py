"""What is said of samples and of denominators, by what is declared of the sampler and the step."""

import torch

from kl_companion.monitor.doctor.batch_checks import denominator, samples
from tests.support.small_steps import by_answer, log_probs, probe, step_of


def plain(logp, batch):
    """No ratio."""
    return -logp * batch["advantages"].unsqueeze(-1)


def detached(logp, batch):
    """The ratio to the policy itself."""
    return -torch.exp(logp - logp.detach()) * batch["advantages"].unsqueeze(-1)


def recomputed(model, ref_model, batch):
    logp = log_probs(model, batch)
    with torch.no_grad():
        old = log_probs(model, batch)  # here
    terms = -torch.exp(logp - old) * batch["advantages"].unsqueeze(-1)
    return by_answer(terms, batch["completion_mask"])


def test_one_update_on_fresh_samples_needs_no_ratio():
    assert list(samples(probe(step_of(policy=plain)))) == []


def test_several_updates_need_the_ratio_to_the_sampler():
    (found,) = samples(probe(step_of(), updates=4))
    assert found.level == "fine"
    assert found.said.startswith("Each batch is used for 4 updates, and tokens are weighted by the ratio")
    for policy in (plain, detached):
        (found,) = samples(probe(step_of(policy=policy), updates=4))
        assert (found.level, found.fault) == ("wrong", "recomputed-old")
        assert "no ratio to the policy that sampled reaches the loss" in found.said
    (found,) = samples(probe(recomputed, updates=2))
    assert "in all 2 updates on a batch the ratio is 1" in found.said
    assert found.line.text.endswith("# here")
    assert list(samples(probe(recomputed, updates=2, teacher=True))) == []


def over_tokens(x, mask):
    return (x * mask).sum() / mask.sum()


def over_all(x, mask):
    return (x * mask).sum() / 18


def half(x, mask):
    return by_answer(x, mask) / 3


def test_a_mean_over_answers_is_that_of_the_batch():
    (found,) = denominator(probe(step_of(), accumulate=2))
    assert (found.level, found.said) == ("fine", "Two micro-batches give the gradient of the whole batch.")
    (found,) = denominator(probe(step_of(reduce=over_all), summed=True, accumulate=2))
    assert found.said == "Two micro-batches give the gradient of the whole batch."


def test_a_mean_over_the_tokens_of_a_micro_batch():
    (found,) = denominator(probe(step_of(reduce=over_tokens), accumulate=2))
    assert (found.level, found.fault) == ("wrong", "denominator")
    # seven and eleven of eighteen tokens
    assert f"the same answer counts {11 / 7:.2g} times as much in one micro-batch" in found.said
    (found,) = denominator(probe(step_of(reduce=over_tokens), accumulate=2, token_mean_of="micro-batch"))
    assert found.level == "attention"
    (found,) = denominator(probe(step_of(reduce=over_tokens)))
    assert found.level == "fine"
    assert found.said.startswith("Tokens are averaged within the micro-batch. Under gradient accumulation")


def test_gradients_that_are_added_up_and_those_that_are_averaged():
    (found,) = denominator(probe(step_of(reduce=over_all), accumulate=2))
    assert (found.level, found.fault) == ("wrong", "denominator")
    assert "0.5 times the gradient of the whole batch: it is divided twice" in found.said
    assert "summed=True" in found.instead
    (found,) = denominator(probe(step_of(), summed=True, accumulate=2))
    assert "2 times the gradient of the whole batch: it is divided too rarely" in found.said
    assert "summed" not in found.instead
    (found,) = denominator(probe(step_of(reduce=over_all)))
    assert found.level == "fine"
    assert "under gradient accumulation add up" in found.said
    (found,) = denominator(probe(step_of(), summed=True))
    assert found.level == "fine"
    assert "under gradient accumulation divide the loss" in found.said


def test_rewards_that_are_compared_within_the_micro_batch():
    def step(model, ref_model, batch):
        rewards = batch["rewards"]
        terms = -log_probs(model, batch) * (rewards - rewards.mean()).unsqueeze(-1)
        return by_answer(terms, batch["completion_mask"])

    (found,) = denominator(probe(step, accumulate=2))
    assert (found.level, found.fault) == ("attention", "denominator")
    assert found.said.startswith("A mean over the batch, of rewards or of terms, is taken within each")
    (found,) = denominator(probe(step))
    assert (found.level, found.fault) == ("fine", "")


def test_a_step_that_counts_on_whole_groups_or_steps_itself():
    def grouped(model, ref_model, batch):
        rewards = batch["rewards"].view(-1, 2)
        advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
        return -by_answer(advantages.unsqueeze(-1) * log_probs(model, batch), batch["completion_mask"])

    (found,) = denominator(probe(grouped))
    assert found.level == "fine"
    assert found.said.startswith("Micro-batches were not tried: on half of the batch the step raises shape")

    def steps(model, ref_model, batch):
        model.zero_grad()
        step_of()(model, ref_model, batch).backward()

    (found,) = denominator(probe(steps))
    assert (found.level, found.fault) == ("fine", "")
    (found,) = denominator(probe(steps, accumulate=2))
    assert (found.level, found.fault) == ("wrong", "denominator")
    assert "the step itself calls zero_grad()" in found.said


def test_nothing_is_said_where_nothing_acts():
    assert list(denominator(probe(lambda model, batch: torch.zeros(())))) == []
