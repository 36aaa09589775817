"""Prompts with rewards: chances, log-ratios and stale samples as they are said to be."""

from __future__ import annotations

import math

import pytest
import torch

from kl_companion.auditing.updates import equal_rewards, prompt
from kl_companion.auditing.updates.worlds import GRADED, LOG_RATIOS, RIGHT
from kl_companion.tabular import Problem
from tests.oracles.sampling import as_world


def answers(problem: Problem, logits: torch.Tensor) -> torch.Tensor:
    return problem.token_logp(logits).sum(-1).exp()


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("success", [0.001, 0.2, 0.5, 0.875, 0.999])
def test_an_answer_is_right_with_the_chance_of_the_sampler(success: float, off_policy: bool) -> None:
    made = prompt(success, off_policy=off_policy)
    p = made.problem
    sampled = answers(p, p.sampled_from)
    assert sampled.sum().item() == pytest.approx(1, rel=1e-14)
    assert (sampled * p.rewards).sum().item() == pytest.approx(success, rel=1e-13)
    wanted = [0.4 * (1 - success), 0.4 * success, 0.6 * (1 - success), 0.6 * success]
    assert sampled.tolist() == pytest.approx(wanted, rel=1e-12)
    # the batch holds them in just that proportion, and in no smaller one
    counts = made.which.bincount()
    assert (counts.double() / counts.sum()).tolist() == pytest.approx(wanted, rel=1e-14)
    assert math.gcd(*counts.tolist()) == 1
    assert (p.behavior_logits is None) != off_policy


def test_four_answers_of_one_to_three_tokens() -> None:
    world = as_world(prompt().problem)
    assert world["leaves"] == [(0,), (1, 0), (1, 1, 0), (1, 1, 1)]
    assert world["reward"] == RIGHT.tolist() == [0, 1, 0, 1]
    assert as_world(prompt(rewards=GRADED).problem)["reward"] == [0.0, 0.7, 0.2, 1.0]
    assert as_world(equal_rewards(0.25).problem)["reward"] == [0.25] * 4
    assert as_world(equal_rewards().problem)["reward"] == [1] * 4


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("off_policy", [False, True])
def test_the_log_ratio_to_the_reference_is_of_the_policy_and_up_to_a_constant(
    off_policy: bool, scale: float
) -> None:
    p = prompt(0.3, off_policy=off_policy, scale=scale).problem
    ratio = (answers(p, p.logits) / answers(p, p.ref_logits)).log()
    wanted = scale * torch.tensor(LOG_RATIOS, dtype=torch.float64)
    assert (ratio - wanted).tolist() == pytest.approx([(ratio - wanted)[0].item()] * 4, abs=1e-13)
    assert answers(p, p.ref_logits).sum().item() == pytest.approx(1, rel=1e-14)
    assert answers(p, p.logits).sum().item() == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize("success", [0.1, 0.5, 0.9])
def test_stale_samples_have_two_tokens_outside_a_clip_of_a_fifth(success: float) -> None:
    p = prompt(success, off_policy=True).problem
    assert p.behavior_logits is not None
    ratio = (p.token_logp(p.logits) - p.token_logp(p.behavior_logits)).exp()
    ratios = ratio[p.completion_mask.bool()]
    assert [x for x in ratios.tolist() if not 0.8 < x < 1.2] == [ratio[0, 0].item(), ratio[1, 1].item()]
    whole = (answers(p, p.logits) / answers(p, p.behavior_logits)).log()
    wanted = torch.tensor([-0.3, 0.35, 0.1, -0.05], dtype=torch.float64)
    assert (whole - wanted).tolist() == pytest.approx([(whole - wanted)[0].item()] * 4, abs=1e-13)
