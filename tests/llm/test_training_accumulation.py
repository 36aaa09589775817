"""A batch that is descended in parts has the loss and the gradient of the whole batch."""

import itertools
from dataclasses import replace

import pytest
import torch

from kl_companion.llm.generation import Samples
from kl_companion.llm.tasks import Example, make_task
from kl_companion.llm.training import Run
from tests.support.llm.short_runs import FEW

KINDS = {
    "token": ("k1", "k2", "k3", "k3_plus_plus", "exact_kl", "f_divergence(pearson)", "top_k_reverse_kl"),
    "sequence": ("k1", "k2", "k3", "kf_plus_plus(jensen_shannon)"),
}
PLACEMENTS = {"token": ("loss", "reward", "both", "score"), "sequence": ("loss", "reward")}
HOWS = ("sum", "sequence_mean", "token_mean", "constant")
PRODUCT = [
    (level, how, placement)
    for level, placements in PLACEMENTS.items()
    for how in HOWS
    for placement in placements
]
LENGTHS = (1, 2, 6, 6, 3)


@pytest.fixture(scope="module")
def unequal():
    """A policy and a reference in float64, and completions of `LENGTHS` that another policy sampled."""
    from kl_companion.llm.models import tiny_model
    from kl_companion.llm.tokenizers import character_tokenizer

    tokenizer = character_tokenizer("0123456789=")
    policy, reference = (
        tiny_model(tokenizer, hidden=16, layers=1, seed=seed, dtype=torch.float64) for seed in (0, 1)
    )
    generator = torch.Generator().manual_seed(0)
    count, longest = len(LENGTHS), max(LENGTHS)
    inside = (torch.arange(longest) < torch.tensor(LENGTHS).unsqueeze(-1)).long()
    samples = Samples(
        torch.randint(3, 10, (count, 2), generator=generator),
        torch.ones(count, 2, dtype=torch.int64),
        torch.randint(3, 10, (count, longest), generator=generator),
        inside,
        inside,
        -torch.rand(count, longest, generator=generator, dtype=torch.float64) * inside - 2.0 * inside,
        torch.ones(count, dtype=torch.bool),
        torch.tensor([0, 0, 0, 1, 1]),
        [Example("", "")] * count,
        *([""] * count for _ in range(2)),
    )
    return policy, reference, samples


def step_on(unequal, settings):
    """The loss and the gradient of one step on given samples; the parameters do not move."""
    policy, reference, samples = unequal
    gradient = []

    def take(parameters):
        gradient.append(torch.cat([p.grad.flatten() for p in parameters]))
        for p in parameters:
            p.grad.zero_()

    run = Run(policy, make_task("sort"), settings, reference, None, take)
    rewards = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5], dtype=torch.float64)
    loss, *_ = run.descend(samples, rewards, run.compare(samples, rewards))
    return loss, gradient[0]


@pytest.mark.parametrize(("level", "how", "placement"), PRODUCT)
def test_accumulation_changes_no_result(level, how, placement, unequal):
    choices = {"level": level, "how": how, "length": 5.0 if how == "constant" else None}
    plain = replace(FEW, placement=placement, optimizer="sgd", max_grad_norm=None, group=3, **choices)
    ratios = [None, "sequence" if level == "sequence" else "token"] if placement == "loss" else [None]
    for number, (estimator, importance) in enumerate(itertools.product(KINDS[level], ratios)):
        k = 2 if estimator.startswith("top_k") else None
        settings = replace(plain, estimator=estimator, k=k, importance=importance)
        loss, gradient = step_on(unequal, settings)
        assert gradient.norm() > 1e-3
        parts = (2, 3, 5)[number % 3]  # each level, place and way to add up meets all three
        in_parts, same = step_on(unequal, replace(settings, accumulate=parts))
        assert in_parts == pytest.approx(loss, rel=1e-12), (estimator, parts)
        torch.testing.assert_close(same, gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
def test_a_sequence_level_term_is_a_mean_over_sequences_beside_a_mean_over_tokens(accumulate, unequal):
    policy, reference, samples = unequal
    settings = replace(
        FEW, beta=0.7, level="sequence", how="token_mean", advantages="none", optimizer="sgd", group=3
    )
    got, _ = step_on(unequal, replace(settings, accumulate=accumulate))
    inside, tokens = samples.completion_mask, torch.cat([samples.prompt_tokens, samples.tokens], -1)
    logp, ref_logp = (
        (lm.model(tokens).logits[:, 1:-1].log_softmax(-1).gather(-1, samples.tokens.unsqueeze(-1)))
        .squeeze(-1)
        .detach()
        * inside
        for lm in (policy, reference)
    )
    ratio = (logp - samples.behavior_logp).exp()
    rewards = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5], dtype=torch.float64)
    gain = (ratio * rewards.unsqueeze(-1) * inside).sum() / sum(LENGTHS)
    of_sequences = 0.5 * (logp - ref_logp).sum(-1) ** 2
    assert got == pytest.approx((0.7 * of_sequences.mean() - gain).item(), rel=1e-12)
