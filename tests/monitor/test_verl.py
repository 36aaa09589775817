"""A batch with verl's names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kl_companion.monitor import KLMonitor
from kl_companion.monitor.verl import NAMES, arguments
from tests.support.monitored import small_batch


@pytest.fixture
def batch() -> dict[str, Any]:
    """Of four answers, the last without a token."""
    draw = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [0, 0]])
    return {
        "responses": torch.randint(0, 5, (4, 2), generator=draw),
        "response_mask": mask,
        "old_log_probs": -torch.rand(4, 2, generator=draw),
        "ref_log_prob": -torch.rand(4, 2, generator=draw),
        "rollout_log_probs": -torch.rand(4, 2, generator=draw),
        "advantages": torch.rand(4, 2, generator=draw),
        "token_level_rewards": torch.tensor([[9.0, 9.0]] * 4),
        "token_level_scores": torch.tensor([[0.0, 1.0], [2.0, 5.0], [0.0, 2.0], [0.0, 0.0]]),
        "uid": np.array(["a", "a", "b", "b"], dtype=object),
    }


def test_the_names_and_what_they_become(batch: dict[str, Any]) -> None:
    found = KLMonitor(beta=0.1).observe_batch(batch, step=4, logged=0.3)
    assert (found.step, found.logged, found.answers, found.tokens) == (4, 0.3, 3, 5)
    ratio = (batch["old_log_probs"] - batch["ref_log_prob"])[batch["response_mask"].bool()]
    assert found.largest_log_ratio == pytest.approx(ratio.abs().max().item())
    off = (batch["old_log_probs"] - batch["rollout_log_probs"])[batch["response_mask"].bool()]
    assert found.mismatch == pytest.approx(off.abs().mean().item())
    assert found.reward == pytest.approx((1 + 2 + 2 + 0) / 4)  # of all answers; outside the mask is nothing
    assert found.equal_groups == 0
    assert found.kl is None


def test_its_data_protocol(batch: dict[str, Any]) -> None:
    uid = batch.pop("uid")
    protocol = SimpleNamespace(batch=batch, non_tensor_batch={"uid": uid})
    assert arguments(protocol)["prompt_index"].tolist() == [0, 0, 1, 1]
    del batch["token_level_scores"]
    assert arguments(protocol)["rewards"].tolist() == [18, 9, 18, 0]
    assert arguments(protocol, rewards=None)["rewards"] is None


def test_logits_beside_it() -> None:
    given = small_batch()
    batch = {NAMES[name][0]: x for name, x in given.items()}
    batch["old_log_probs"] = batch["ref_log_prob"] = torch.zeros(3, 3)
    assert KLMonitor().observe_batch(batch).kl == KLMonitor().observe(**given).kl


def test_what_is_no_batch(batch: dict[str, Any]) -> None:
    del batch["responses"]
    with pytest.raises(ValueError, match="the batch has no responses, expected verl's names"):
        arguments(batch)
    with pytest.raises(ValueError, match="batch is 3, expected a mapping"):
        arguments(3)
