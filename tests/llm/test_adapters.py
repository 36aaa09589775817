"""LoRA: what trains, what the model computes with adapters, and that they end in the weights."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kl_companion.llm.adapters import add_adapters
from kl_companion.llm.evaluation import right_logp
from kl_companion.llm.generation import generate
from kl_companion.llm.models import frozen_copy
from kl_companion.llm.settings import Settings
from kl_companion.llm.start_models import start_model
from kl_companion.llm.training import Run, train
from tests.support.llm.digits import off_sampler


@pytest.mark.real
def test_adapters_alone_train_and_end_in_the_weights() -> None:
    lm, task = start_model("sort")
    before, reference = frozen_copy(lm), frozen_copy(lm)
    lm.model.requires_grad_(True)
    looks = []

    def look(policy, step):
        samples = generate(
            policy,
            task,
            task.draw(8, torch.Generator().manual_seed(1)),
            generator=torch.Generator().manual_seed(2),
        )
        looks.append((samples, off_sampler(policy.model, samples)))
        return {}

    settings = Settings(estimator="k2", beta=0.1, lora=4, steps=6, lr=3e-3, prompts=4, group=4)
    state = torch.get_rng_state()
    train(lm, task, settings, reference=reference, evaluate=look, every=6)
    assert torch.equal(state, torch.get_rng_state())
    assert max(far for _, far in looks) < 1e-4  # what samples is what is scored, adapters included
    names = [name for name, _ in lm.model.named_parameters()]
    assert names == [name for name, _ in before.model.named_parameters()]
    moved = {
        name
        for (name, p), q in zip(lm.model.named_parameters(), before.model.parameters(), strict=True)
        if not torch.equal(p, q)
    }
    assert moved == {name for name in names if name.endswith("_proj.weight")}
    assert off_sampler(lm.model, looks[-1][0]) < 1e-4  # merged, it computes the same
    assert off_sampler(before.model, looks[-1][0]) > 1e-3
    for p, q in zip(reference.model.parameters(), before.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.real
def test_the_taught_anchor_keeps_the_adapters_of_the_lesson() -> None:
    lm, task = start_model("sort")
    settings = Settings(lora=4, lesson=2, anchor="taught", steps=4, lr=3e-3, prompts=4, group=4, beta=0.1)
    policy = frozen_copy(lm)
    policy.model.requires_grad_(True)
    run = Run(policy, task, settings, lm, None, None)
    problems = task.draw(16, torch.Generator().manual_seed(1))
    for _ in range(2):
        run.step()
    taught, untaught = right_logp(run.anchor, task, problems), right_logp(lm, task, problems)
    assert torch.equal(taught, right_logp(run.policy, task, problems))
    assert not torch.equal(taught, untaught)
    for _ in range(2):
        run.step()
    assert torch.equal(taught, right_logp(run.anchor, task, problems))
    assert not torch.equal(taught, right_logp(run.policy, task, problems))


@pytest.mark.real
def test_adapters_are_put_in_once() -> None:
    lm = frozen_copy(start_model("sort")[0])
    merge = add_adapters(lm, 2)
    trained = [name for name, p in lm.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    with pytest.raises(ValueError, match="holds adapters already"):
        add_adapters(lm, 2)
    merge()
    add_adapters(lm, 2)


def test_what_the_chapter_says_of_trl() -> None:
    """Where a model comes with adapters, its trainer keeps a copy of them for the reference."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    trainer = (Path(spec.origin).parent / "trainer/grpo_trainer.py").read_text(encoding="utf-8")
    assert 'model.add_adapter("ref", default_config)' in trainer
    assert 'adapter_name="ref" if "ref" in model.peft_config else None' in trainer


def test_a_missing_library_is_named(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match="LoRA needs peft, which is not installed: pip install --no-deps"):
        add_adapters(tiny, 2)
