"""Logits of completions: some at a time, and with the adapter off where that is the reference."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kl_companion.host_reads import any_of, collecting
from kl_companion.monitor import KLMonitor, trl_looking
from kl_companion.monitor.looking import at_tokens
from kl_companion.monitor.mismatch import Engine
from kl_companion.monitor.trl_looking import BatchRead, brought, has_adapter, look_at, number_of
from kl_companion.monitor.trl_reading import TrainerFacts
from tests.support.emulated_gpu import EmulatedGPU
from tests.support.frameworks.trl_tiny import save_start

SAID = TrainerFacts("trl.GRPOTrainer", 1.0, Engine())


def look(*given: Any) -> BatchRead | None:
    """`look_at`, with the numbers of the tokens."""
    seen = look_at(*given)
    return None if seen is None else seen._replace(looked=at_tokens(seen.looked, seen.given))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_start(tmp_path_factory.mktemp("trl") / "start")


@pytest.fixture
def trainer(start: Path) -> Any:
    """As much of one as is read, with two models."""
    from transformers import AutoModelForCausalLM

    model, other = (AutoModelForCausalLM.from_pretrained(start) for _ in range(2))
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(0.7)
    accelerator = SimpleNamespace(autocast=nullcontext, unwrap_model=lambda m: m)
    return SimpleNamespace(
        model=model, ref_model=other, accelerator=accelerator, current_gradient_accumulation_steps=2
    )


@pytest.fixture
def inputs() -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    return {
        "prompt_ids": torch.randint(3, 14, (4, 3), generator=draw),
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 1], [1, 1, 1]]),
        "completion_ids": torch.randint(3, 14, (4, 5), generator=draw),
        "completion_mask": torch.tensor([[1] * 5, [1, 1, 0, 0, 0], [1] * 5, [1, 1, 1, 0, 0]]),
    }


def test_some_at_a_time(trainer: Any, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs["sampling_per_token_logps"] = -torch.rand(4, 5)
    looks, sizes = [], []
    trainer.model.register_forward_pre_hook(
        lambda _, args, given: sizes.append(len(given["input_ids"])), with_kwargs=True
    )
    for entries in (2**26, 14 * 6 * 3, 1):
        monkeypatch.setattr(trl_looking, "_ENTRIES", entries)
        looks.append(look(KLMonitor(), trainer, trainer.model, inputs, SAID))
    assert sizes == [4, 3, 1, 1, 1, 1, 1]
    first, *others = looks
    assert first is not None
    assert len(first.looked.numbers.kl) == 15
    assert first.looked.numbers.kl.min() > 1e-6
    for seen in others:
        assert seen is not None
        assert torch.allclose(seen.looked.numbers.kl, first.looked.numbers.kl, atol=1e-5)
        assert seen.looked.parts is not None
        assert len(seen.looked.parts.kept) == 15


@pytest.mark.parametrize("engine", [False, True])
def test_a_gpu_is_read_for_the_masks_and_for_the_numbers(
    trainer: Any, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, engine: bool
) -> None:
    """And once more for the engine that is fitted. What the models read themselves is not counted."""
    draw = torch.Generator().manual_seed(1)
    inputs |= {f"{name}_per_token_logps": -torch.rand(4, 5, generator=draw) for name in ("ref", "old")}
    inputs["advantages"] = torch.randn(4, generator=draw)
    if engine:
        inputs["sampling_per_token_logps"] = -torch.rand(4, 5, generator=draw)
    rewards, said = torch.tensor([1.0, 0.0, 2.0, 2.0]), SAID._replace(divided="group_std")
    trainer.num_generations = 2
    seen = look_at(KLMonitor(), trainer, trainer.model, inputs, said, None, rewards)
    assert seen is not None
    expected, logps, _ = brought(trainer, said, seen, inputs)
    with EmulatedGPU() as gpu:
        monkeypatch.setattr(trl_looking, "_undisturbed", lambda model: nullcontext())
        for model in (trainer.model, trainer.ref_model):
            gpu.move(model)
        away = gpu.put(inputs)
        with gpu.counted() as reads, collecting() as flags:
            seen = look_at(KLMonitor(), trainer, trainer.model, away, said, None, gpu.put(rewards))
            assert seen is not None
            found, other, (loss, wrong) = brought(
                trainer, said, seen, away, gpu.put(torch.tensor(0.5)), any_of(flags)
            )
    assert (loss, wrong) == (0.5, False)
    assert len([read for read in reads if not read.place.startswith("transformers")]) == 2 + engine
    for x, y in zip(found.looked.numbers, expected.looked.numbers, strict=True):
        inside = expected.given.inside
        torch.testing.assert_close(x[inside], y[inside], atol=1e-5, rtol=1e-4, equal_nan=True)
    assert torch.equal(found.given.deviations, expected.given.deviations)
    assert all(torch.equal(other[name], logps[name]) for name in logps)
    assert (found.texts.columns, found.texts.whole) == (expected.texts.columns, expected.texts.whole)


def test_modes_and_gradients_are_left_alone(trainer: Any, inputs: dict[str, Any]) -> None:
    trainer.model.train()
    trainer.ref_model.eval()
    look(KLMonitor(), trainer, trainer.model, inputs, SAID)
    assert trainer.model.training
    assert not trainer.ref_model.training
    assert all(p.grad is None for p in trainer.model.parameters())


@pytest.mark.parametrize(("adapters", "wanted"), [({"default": 1}, None), ({"default": 1, "ref": 1}, "ref")])
def test_an_adapter_is_switched(
    trainer: Any,
    inputs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    adapters: dict[str, int],
    wanted: str | None,
) -> None:
    """PEFT stood in for: inside of TRL's context the output layer is another one."""
    other, trainer.ref_model = trainer.ref_model, None
    asked = []

    @contextmanager
    def use_adapter(model: Any, adapter_name: str | None) -> Iterator[Any]:
        asked.append(adapter_name)
        kept = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.load_state_dict(other.state_dict())
        yield model
        model.load_state_dict({**model.state_dict(), **kept})

    monkeypatch.setattr("trl.trainer.utils.use_adapter", use_adapter)
    assert not has_adapter(trainer)
    trainer.model.peft_config = adapters
    assert has_adapter(trainer)
    switched = look(KLMonitor(), trainer, trainer.model, inputs, SAID)
    assert asked == [wanted]
    trainer.ref_model = other
    plain = look(KLMonitor(), trainer, trainer.model, inputs, SAID)
    assert switched is not None
    assert plain is not None
    assert torch.equal(switched.looked.numbers.kl, plain.looked.numbers.kl)
    assert plain.looked.numbers.kl.sum() > 1e-3


def test_a_model_without_logits(trainer: Any, inputs: dict[str, Any]) -> None:
    trainer.model.forward = lambda **_: SimpleNamespace(logits=None)
    with pytest.raises(ValueError, match="Qwen2ForCausalLM returned no logits"):
        look(KLMonitor(), trainer, trainer.model, inputs, SAID)


def test_the_trainers_own_log_probs_make_its_number(trainer: Any, inputs: dict[str, Any]) -> None:
    """K3 to the reference of its batch, times the ratio to the policy that sampled."""
    from kl_companion.estimators.registry import get_estimator
    from kl_companion.kl_term import KLTerm

    seen = look(KLMonitor(), trainer, trainer.model, inputs, SAID)
    assert seen is not None
    logp = seen.looked.numbers.logp
    assert number_of(SAID, seen, inputs, None) is None
    term = KLTerm("k3", importance="token", ratio="attached")
    said = SAID._replace(estimator=get_estimator("k3"), term=term)
    own = number_of(said, seen, inputs, None)
    w = (seen.looked.numbers.ref_logp - logp).exp()
    assert own == pytest.approx((w - 1 - w.log()).mean().item(), abs=1e-9)
    sequences = said._replace(term=KLTerm("k3", importance="sequence", ratio="attached"))
    assert number_of(sequences, seen, inputs, None) == own
    inputs["ref_per_token_logps"] = -torch.rand(4, 5).double()
    inputs["old_per_token_logps"] = -torch.rand(4, 5).double()
    inside = inputs["completion_mask"].bool()
    w = (inputs["ref_per_token_logps"][inside] - logp).exp()
    rho = (logp - inputs["old_per_token_logps"][inside]).exp()
    found = number_of(said, seen, inputs, None)
    assert found == pytest.approx((rho * (w - 1 - w.log())).mean().item(), abs=1e-9)
    uncorrected = said._replace(term=KLTerm("k3", importance=None))
    found = number_of(uncorrected, seen, inputs, None)
    assert found == pytest.approx((w - 1 - w.log()).mean().item(), abs=1e-9)
    assert number_of(sequences, seen, inputs, None) is None
