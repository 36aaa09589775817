"""TRL's trainer, and the monitor in it, where policy and reference pad one vocabulary to different widths."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from kl_companion.frameworks.trl_trainer import GRPOTrainer
from kl_companion.kl_term import KLTerm
from kl_companion.monitor import KLMonitor
from kl_companion.monitor.trl_looking import look_at
from kl_companion.monitor.trl_reading import said_by
from tests.support.frameworks.trl_tiny import make, reward, save_start, settings, step

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*pin_memory.*")
ADDED = 8
NAMES = ("exact_kl", "exact_forward_kl", "f_divergence(jensen_shannon)", "top_k_reverse_kl(3)")


def padded(model: Any) -> Any:
    """A copy with rows that are no tokens and likelier than those that are."""
    wider = type(model)(copy.deepcopy(model.config))  # a copy would call the forward that accelerate wrapped
    wider.load_state_dict(model.state_dict())
    vocab = wider.config.vocab_size
    wider.resize_token_embeddings(vocab + ADDED, mean_resizing=False)
    with torch.no_grad():
        weight = wider.get_input_embeddings().weight
        weight[vocab:] = 2.0 * weight[3 : 3 + ADDED]
    return wider


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_start(tmp_path_factory.mktemp("trl") / "start")


@pytest.fixture
def trainer(start: Path) -> Any:
    """A trainer whose reference is not its policy."""
    made = make(start, kl="exact_kl")
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    with torch.no_grad():
        noise = torch.Generator().manual_seed(1)
        for p in made.ref_model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=noise))
    return made


def batch(trainer: Any) -> dict[str, Any]:
    """Completions without a reward: the loss is that of the KL alone."""
    draw = torch.Generator().manual_seed(2)
    mask = torch.ones(4, 5, dtype=torch.long)
    mask[0, 3:] = 0
    vocab = 14
    return {
        "prompt_ids": torch.randint(3, vocab, (4, 3), generator=draw),
        "prompt_mask": torch.ones(4, 3, dtype=torch.long),
        "completion_ids": torch.randint(3, vocab, (4, 5), generator=draw),
        "completion_mask": mask,
        "advantages": torch.zeros(4),
        "num_items_in_batch": torch.tensor(18.0),
        "ref_per_token_logps": torch.zeros(4, 5),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_kl_in_the_loss_is_that_of_the_tokens(name: str, trainer: Any) -> None:
    inputs, term = batch(trainer), KLTerm(name)
    policy, reference = trainer.model, trainer.ref_model
    expected = step(trainer, inputs, term, beta=0.7)
    assert expected[1:].norm() > 0.01
    trainer.ref_model = padded(reference)
    torch.testing.assert_close(step(trainer, inputs, term, beta=0.7), expected)
    gradients = {n: p.grad.clone() for n, p in policy.named_parameters()}
    trainer.ref_model, trainer.model = reference, padded(policy).train()
    assert step(trainer, inputs, term, beta=0.7)[0] == pytest.approx(expected[0].item(), rel=1e-5)
    for n, p in trainer.model.named_parameters():
        torch.testing.assert_close(p.grad[: len(gradients[n])], gradients[n], rtol=1e-4, atol=1e-6)


def test_a_cost_is_that_of_the_tokens(trainer: Any) -> None:
    inputs, mask = batch(trainer), batch(trainer)["completion_mask"]
    trainer.kl = KLTerm("exact_kl", "reward")
    policy, reference = trainer.model, trainer.ref_model
    with torch.no_grad():
        expected = trainer._costs(inputs, mask)
        assert expected.sum() > 0.1
        trainer.ref_model = padded(reference)
        torch.testing.assert_close(trainer._costs(inputs, mask), expected)
        trainer.ref_model, trainer.model = reference, padded(policy).train()
        torch.testing.assert_close(trainer._costs(inputs, mask), expected)


def test_a_reference_with_fewer_columns_than_tokens_is_refused(trainer: Any) -> None:
    trainer.ref_model.resize_token_embeddings(12)
    inputs = batch(trainer)
    inputs["completion_ids"] = inputs["prompt_ids"][:, :1].expand(4, 5).clamp(max=5)
    inputs["prompt_ids"] = inputs["prompt_ids"].clamp(max=5)
    with pytest.raises(ValueError, match="ref_logits has shape"):
        step(trainer, inputs, KLTerm("exact_kl"), beta=0.7)


@pytest.mark.parametrize("name", ["k2", "exact_kl"])
def test_a_wider_policy_is_trained_and_its_sampler_draws_tokens_only(
    name: str, trainer: Any, start: Path, tmp_path: Path
) -> None:
    drawn: list[torch.Tensor] = []

    class Watched(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
            drawn.append(inputs["completion_ids"])
            return super()._compute_loss(model, inputs)

    made = Watched(
        model=padded(trainer.model),
        reward_funcs=reward,
        args=settings(tmp_path, max_steps=3),
        train_dataset=Dataset.from_dict({"prompt": ["1", "2", "3"]}),
        processing_class=trainer.processing_class,
        kl=name,
    )
    made.train()
    assert made.ref_model.config.vocab_size == 14
    assert len(drawn) == 3
    assert torch.cat([ids.flatten() for ids in drawn]).max() < 14


def test_a_policy_of_the_reference_s_width_samples_as_trl_does(trainer: Any) -> None:
    assert trainer.generation_config.suppress_tokens is None


@pytest.mark.parametrize("wider", ["reference", "policy"])
def test_the_monitor_reads_the_tokens(wider: str, trainer: Any) -> None:
    trainer.kl = None  # as TRL's own
    monitor = KLMonitor()
    monitor.attach(trainer)
    said, policy, reference = said_by(trainer), trainer.model, trainer.ref_model
    expected = look_at(monitor, trainer, policy, batch(trainer), said)
    if wider == "reference":
        reference = padded(reference)
    else:
        policy = padded(policy).train()
    got = look_at(monitor, trainer, policy, batch(trainer), said, reference)
    assert expected is not None
    assert got is not None
    assert expected.looked.numbers.kl.sum() > 0.1
    torch.testing.assert_close(got.looked.numbers, expected.looked.numbers, rtol=1e-5, atol=1e-6)


def test_a_monitored_run_with_a_wider_reference_is_observed(
    trainer: Any, start: Path, tmp_path: Path
) -> None:
    seen = []
    for reference in (trainer.ref_model, padded(trainer.ref_model)):
        made = make(start, stock=True, max_steps=2)
        monitor = KLMonitor(tmp_path / str(len(seen)), every=1)
        monitor.attach(made, reference=reference)
        made.train()
        seen.append([observation.kl for observation in monitor.observations])
    assert seen[1] == pytest.approx(seen[0], rel=1e-5)
    assert len(seen[0]) == 2
