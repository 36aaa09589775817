"""The expected update of a recipe against a step that is written out by hand, over all ordered groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kl_companion.auditing.updates import expected_update, expected_updates, prompt
from kl_companion.tabular import expected_gradient
from tests.support.data import data
from tests.support.updates import PROMPTS, SIZES, apart, by_hand, critic, recipe_of, value_of

CASES: dict[str, dict[str, Any]] = {
    name: {
        n: value_of if x == "value_of" else tuple(x) if isinstance(x, list) else x for n, x in given.items()
    }
    for name, given in data(__file__).items()
}


@pytest.mark.parametrize("world", PROMPTS)
@pytest.mark.parametrize("name", CASES)
def test_a_step_by_hand(name: str, world: str) -> None:
    at, size = PROMPTS[world], SIZES[world]
    found = expected_update(recipe_of(**CASES[name]).at(at.problem).loss, at, size)
    assert apart(found, by_hand(at, size, **CASES[name])) < 1e-12


@pytest.mark.parametrize("name", ["k1 before", "leave one out", "masked by KL", "whitened"])
def test_groups_of_four(name: str) -> None:
    at = PROMPTS["stale"]
    found = expected_update(recipe_of(**CASES[name]).loss, at, 4)
    assert apart(found, by_hand(at, 4, **CASES[name])) < 1e-12


@pytest.mark.parametrize("world", ["stale"])
@pytest.mark.parametrize("name", CASES)
def test_a_step_in_large_batches(name: str, world: str) -> None:
    at = PROMPTS[world]
    found = expected_update(recipe_of(**CASES[name]).at(at.problem).loss, at, None)
    assert apart(found, by_hand(at, None, **CASES[name])) < 1e-10


def test_a_limit_where_right_answers_are_rare() -> None:
    at, choices = prompt(0.01), {"advantage": "others_std", "kl": "k1", "eps": 1e-6}
    found = expected_update(recipe_of(**choices).loss, at, None)
    assert apart(found, by_hand(at, None, **choices)) < 1e-6


def test_groups_that_grow_come_to_the_large_limit() -> None:
    at = PROMPTS["stale"]
    for choices in (
        {"kl": "k1", "aggregate": "sum"},
        {"advantage": "whitened", "aggregate": "sequence_mean"},
    ):
        limit = by_hand(at, None, **choices)
        missing = [apart(expected_update(recipe_of(**choices).loss, at, n), limit) for n in (2, 4, 8)]
        assert missing[0] > 1.5 * missing[1] > 2.25 * missing[2]
    choices = {"advantage": "mean", "aggregate": "sum", "kl": "k1"}
    limit = by_hand(at, None, **choices)
    for n in (2, 3, 8):
        found = expected_update(recipe_of(**choices, low=5.0, high=9.0).loss, at, n)
        wide = by_hand(at, None, **choices, low=5.0, high=9.0)
        assert apart(found, (1 - 1 / n) * wide) < 1e-12
    assert apart(limit, wide) > 0.01  # the clip is of use here


# several updates on one batch

SEVERAL = [
    "k1 before",
    "k1 after",
    "k3 in the loss",
    "k1 as a loss of its own",
    "a narrow clip",
    "truncated importance",
    "masked by KL",
    "whitened",
    "gspo",
]


@pytest.mark.parametrize("world", ["on-policy", "stale"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_updates_on_one_batch(name: str, world: str) -> None:
    at, loss = PROMPTS[world], recipe_of(**CASES[name]).loss
    one = expected_updates(loss, at, 2, steps=1, rate=0.7)
    assert apart(one, expected_update(loss, at, 2)) < 1e-12
    two = expected_updates(loss, at, 2, steps=2, rate=0.7)
    assert apart(two, by_hand(at, 2, steps=2, rate=0.7, **CASES[name])) < 1e-12
    assert apart(two, one) > 1e-3


def test_several_updates_on_a_large_batch() -> None:
    """Without a comparison of answers every one is weighted by its chance, at the policy of each step."""
    at = PROMPTS["on-policy"]
    loss = recipe_of(advantage="none", policy_loss="importance", aggregate="sum").loss
    theta = at.problem.logits
    for _ in range(3):
        stale = at.problem._replace(behavior_logits=at.problem.logits)
        theta = theta - 0.5 * expected_gradient(loss, stale, logits=theta)
    found = expected_updates(loss, at, None, steps=3, rate=0.5)
    assert apart(found, (theta - at.problem.logits) / 1.5) < 1e-12


def test_a_loss_that_minds_the_order_is_followed_in_every_order() -> None:
    at = PROMPTS["on-policy"]

    def rolled(ro: Any, old_logp: torch.Tensor) -> torch.Tensor:
        a = (ro.rewards - ro.rewards.mean()).roll(1).unsqueeze(-1)
        return -(a * (ro.logp - old_logp).exp() * ro.completion_mask).sum(-1).mean()

    def turned(ro: Any, old_logp: torch.Tensor) -> torch.Tensor:
        return rolled(ro, old_logp) if ro.tokens.shape[0] == 1 else rolled(flipped(ro), old_logp.flip(0))

    def flipped(ro: Any) -> Any:
        (found,) = ro.batches([range(len(ro.tokens) - 1, -1, -1)])
        return found

    one, other = (expected_updates(f, at, 3, steps=2, rate=0.5) for f in (rolled, turned))
    assert apart(one, other) < 1e-12


def test_a_loss_that_does_not_read_the_policy_moves_nothing() -> None:
    leaf = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = expected_updates(lambda ro, old: leaf * 2, PROMPTS["tree"], 2, steps=2, rate=1.0)
    assert found.abs().max() == 0


def test_the_critic_of_the_oracle_is_that_of_the_batch() -> None:
    ro = PROMPTS["stale tree"].problem.rollout(PROMPTS["stale tree"].problem.logits)
    values = critic(ro)
    assert values[2, 1].item() == pytest.approx(value_of(tuple(ro.tokens[2].tolist()), 1))
