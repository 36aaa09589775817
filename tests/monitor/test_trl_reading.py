"""Where a batch of TRL holds its completions, and what trainers say of themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kl_companion.monitor.trl_reading import deviations_of, rewards_of, said_by, texts_of


def batch() -> dict[str, Any]:
    """Four answers: prompts padded at the left, completions at the right; one is masked as a whole."""
    return {
        "prompt_ids": torch.tensor([[0, 0, 11, 12], [0, 0, 0, 13], [0, 0, 14, 15], [0, 0, 0, 16]]),
        "prompt_mask": torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]]),
        "completion_ids": torch.arange(20).view(4, 5) + 20,
        "completion_mask": torch.tensor([[0] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
    }


def test_the_first_answers_with_a_token_without_padding() -> None:
    texts = texts_of(batch(), 2)
    assert texts is not None
    assert texts.rows.tolist() == [1, 2]
    assert texts.ids.tolist() == [[0, 13, 25, 26, 27], [14, 15, 30, 31, 32]]
    assert texts.attention.tolist() == [[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert texts.tokens.tolist() == [[25, 26, 27], [30, 31, 32]]
    assert texts.mask.tolist() == [[True, True, False], [True, True, True]]
    assert not texts.whole
    of = texts.of(torch.arange(20).view(4, 5))
    assert of is not None
    assert of.tolist() == [[5, 6, 7], [10, 11, 12]]
    of = texts.of(torch.arange(4))
    assert of is not None
    assert of.tolist() == [1, 2]
    assert texts.of(None) is None
    every = texts_of(batch(), None)
    assert every is not None
    assert every.whole
    assert every.tokens.shape == (3, 5)


def test_what_tools_wrote_is_no_completion() -> None:
    inputs = {**batch(), "tool_mask": torch.ones(4, 5, dtype=torch.long)}
    inputs["tool_mask"][:, 0] = 0
    inputs["tool_mask"][3, 2] = 0
    texts = texts_of(inputs, None)
    assert texts is not None
    assert texts.mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 1]]
    assert texts.tokens[2].tolist() == [36, 37, 38, 39]
    assert texts.ids[2].tolist() == [0, 16, 35, 36, 37, 38, 39]  # the tool's tokens are read
    of = texts.of(inputs["completion_ids"])
    assert of is not None
    assert torch.equal(of, texts.tokens)


def test_without_a_prompt_one_padding_stands_before_the_completion() -> None:
    texts = texts_of({**batch(), "prompt_mask": torch.zeros(4, 4, dtype=torch.long)}, None)
    assert texts is not None
    assert texts.ids.shape == (3, 6)
    assert texts.ids[:, 0].tolist() == [13, 15, 16]


def test_labels_say_where_the_completion_is() -> None:
    inputs = {
        "input_ids": torch.tensor([[0, 11, 12, 13], [21, 22, 23, 24]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]),
        "labels": torch.tensor([[-100, -100, 12, 13], [21, -100, -100, 24]]),
    }
    texts = texts_of(inputs, None)
    assert texts is not None
    assert texts.tokens.tolist() == [[12, 13], [23, 24]]
    assert texts.mask.int().tolist() == [[1, 1], [0, 1]]  # nothing scores a first token
    assert texts.ids.shape == (2, 4)
    assert texts.columns == slice(2, 4)


def test_batches_without_text() -> None:
    nothing = {**batch(), "completion_mask": torch.zeros(4, 5)}
    assert texts_of(nothing, 3) is None


NAN = float("nan")


def test_rewards_and_what_divides_them() -> None:
    trainer = SimpleNamespace(reward_weights=torch.tensor([1.0, 2.0]))
    per_function = torch.tensor([[1.0, 2.0], [NAN, 3.0], [NAN, NAN], [4.0, NAN]])
    found = rewards_of(trainer, per_function)
    assert found.nan_to_num(-1).tolist() == [5, 6, -1, 4]
    trainer.reward_clip_range = (4.5, 5.5)
    assert rewards_of(trainer, per_function).nan_to_num(-1).tolist() == [5, 5.5, -1, 4.5]
    deviations = deviations_of(found, 2, "group_std")
    assert deviations is not None
    assert deviations.tolist() == pytest.approx([0.5**0.5 + 1e-4, 1e-4])
    deviations = deviations_of(found, 2, "batch_std")
    assert deviations is not None
    assert deviations.tolist() == pytest.approx([1 + 1e-4])
    assert deviations_of(found, 2, None) is None


class GRPOTrainer(SimpleNamespace):
    """As TRL's, as far as it is read."""


def grpo(**changes: Any) -> Any:
    held: dict[str, Any] = {
        "args": SimpleNamespace(use_bias_correction_kl=True),
        "importance_sampling_level": "token",
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": None,
        "beta": 0.04,
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
    }
    return GRPOTrainer(**{**held, **changes})


def test_grpo() -> None:
    said = said_by(grpo())
    assert said.trainer == "trl.GRPOTrainer"
    assert said.engine == (0.7, 0.9, 0)
    assert (said.beta, said.estimator.name, said.divided) == (0.04, "k3", "group_std")
    assert said.term is not None
    assert (said.term.scope, said.term.ratio) == ("token", "attached")
    plain = said_by(grpo(args=SimpleNamespace(use_bias_correction_kl=False), scale_rewards="none", top_k=-1))
    assert plain.term is not None
    assert plain.term.scope is None
    assert plain.divided is None
    assert plain.engine.top_k == 0
    assert said_by(grpo(scale_rewards="batch", top_k=20)).divided == "batch_std"
    assert said_by(grpo(top_k=20)).engine.top_k == 20
    assert said_by(grpo(multi_objective_aggregation="normalize_then_sum")).divided == "normalize_then_sum"
