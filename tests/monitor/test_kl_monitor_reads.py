"""An observation reads a GPU once, twice where an engine is fitted; numbers and errors are the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kl_companion.monitor import KLMonitor, Observation, moments
from tests.support.data import data
from tests.support.emulated_gpu import EmulatedGPU
from tests.support.monitored import small_batch

DATA = data(__file__)

NAN, INF = float("nan"), float("inf")


def batch(vocab: int = 5) -> dict[str, Any]:
    """Logits, tokens and mask, and what belongs to the answers; log-probs of tokens outside are NaN."""
    made = small_batch(vocab)
    draw = torch.Generator().manual_seed(2)
    inside = made["mask"].bool()
    logp, ref_logp = (
        made[name].log_softmax(-1).gather(-1, made["tokens"].unsqueeze(-1)).squeeze(-1)
        for name in ("logits", "ref_logits")
    )
    engine = (logp - 0.1 * torch.rand(3, 3, generator=draw, dtype=torch.float64)).where(inside, NAN)
    engine[0, 0] = NAN
    made["tokens"] = made["tokens"].where(inside, -100)
    made["logits"] = made["logits"].where(inside.unsqueeze(-1), NAN)
    return {
        **made,
        "logp": logp.where(inside, NAN),
        "ref_logp": ref_logp.where(inside, NAN),
        "behavior_logp": engine,
        "advantages": torch.randn(3, generator=draw),
        "rewards": torch.tensor([1.0, 0.0, NAN, 2.0]),
        "prompt_index": torch.tensor([0, 0, 1, 1]),
        "deviations": torch.tensor([0.5, 0.25]),
        "logged": torch.tensor(0.1),
        "loss": torch.tensor(0.3),
    }


OF_LOGITS = ("logits", "ref_logits")
OF_SAMPLES = ("logp", "ref_logp")
STEP = ("advantages", "rewards", "prompt_index", "logged", "loss")
GROUPS = {"beta": 0.1, "rewards_divided": "group_std", "eos_token_id": 1}
MODES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "samples": ({}, OF_SAMPLES),
    "samples, all": ({**GROUPS, "clamp": (-0.5, 0.5)}, (*OF_SAMPLES, *STEP, "behavior_logp", "deviations")),
    "logits": ({}, OF_LOGITS),
    "logits, k3": ({**GROUPS, "estimator": "k3", "clamp": (-0.5, 0.5)}, (*OF_LOGITS, *STEP)),
    "logits, exact": ({**GROUPS, "estimator": "exact_kl", "term": "exact_kl"}, (*OF_LOGITS, *STEP)),
    "logits, top k": ({**GROUPS, "estimator": "top_k_reverse_kl(2)", "term": "k2"}, (*OF_LOGITS, *STEP)),
    "engine": ({}, (*OF_LOGITS, "behavior_logp")),
    "engine, declared": (
        {**GROUPS, "engine": (0.9, 0.95, 4), "temperature": 1.2},
        (*OF_LOGITS, *STEP, "behavior_logp"),
    ),
}


def observed(mode: str, given: dict[str, Any], **settings: Any) -> Observation:
    options, names = MODES[mode]
    both = {name: given[name] if name in names else None for name in OF_LOGITS}
    more = {name: given[name] for name in names if name not in both}
    return KLMonitor(**options, **settings).observe(
        **both, **more, tokens=given["tokens"], mask=given["mask"]
    )


@pytest.mark.parametrize("entries", [2**23, 1])  # all tokens at once, and one at a time
@pytest.mark.parametrize("mode", MODES)
def test_an_observation_reads_once(mode: str, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = observed(mode, batch()).known()
    monkeypatch.setattr(moments, "_ENTRIES_ELSEWHERE", entries)
    with EmulatedGPU() as gpu:
        given = gpu.put(batch())
        with gpu.counted() as reads:
            found = observed(mode, given).known()
    assert len(reads) == (2 if mode.startswith("engine") else 1), reads
    # the fit ends within its resolution of the same temperature
    near = {"rel": 1e-5, "abs": 1e-6} if mode.startswith("engine") else {"rel": 1e-9, "abs": 1e-12}
    assert {**found, "seconds": 0} == pytest.approx({**expected, "seconds": 0}, **near)


@pytest.mark.parametrize("tokens", [0, 1])
def test_engines_that_say_little(tokens: int) -> None:
    given = batch()
    given["behavior_logp"] = torch.full((3, 3), NAN, dtype=torch.float64)
    given["behavior_logp"][1, 0] = -1.0 if tokens else NAN
    expected = observed("engine", given)
    with EmulatedGPU() as gpu:
        found = observed("engine", gpu.put(given))
    assert {**found.known(), "seconds": 0} == pytest.approx({**expected.known(), "seconds": 0}, rel=1e-6)
    assert (found.mismatch is None) == (tokens == 0)


def test_a_batch_of_verl_is_read_once_more_for_answers_without_a_token() -> None:
    given = batch()
    names = {
        "responses": "tokens",
        "response_mask": "mask",
        "old_log_probs": "logp",
        "ref_log_prob": "ref_logp",
    }
    held = {name: given[ours] for name, ours in names.items()}
    held["response_mask"] = held["response_mask"].clone()
    held["response_mask"][1] = 0
    expected = KLMonitor().observe_batch(held)
    with EmulatedGPU() as gpu:
        away = gpu.put(held)
        with gpu.counted() as reads:
            found = KLMonitor().observe_batch(away)
    assert len(reads) == 2
    assert found.largest_log_ratio == expected.largest_log_ratio
    assert found.answers == 2


WRONG: dict[str, tuple[str, str, tuple[Any, ...], float, str]] = DATA["wrong"]


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named_and_nothing_is_written(name: str, away: bool, tmp_path: Path) -> None:
    mode, tensor, place, value, message = WRONG[name]
    given = batch()
    given[tensor][(*place,)] = value
    with EmulatedGPU() as gpu, pytest.raises(ValueError, match=message):
        observed(mode, gpu.put(given) if away else given, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tensors_on_two_devices_are_an_error_of_torch() -> None:
    given = batch()
    with EmulatedGPU() as gpu, pytest.raises(RuntimeError, match="same device"):
        observed("logits", {**gpu.put(given), "ref_logits": given["ref_logits"]})
