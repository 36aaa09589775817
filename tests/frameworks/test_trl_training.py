"""TRL's trainer with this package's KL term: costs in the reward, a moving anchor, two processes."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from safetensors.torch import load_file

from kl_companion.frameworks.trl_trainer import ema_anchor
from kl_companion.kl_term import KLTerm
from tests.support.frameworks.trl_tiny import apart, make, reward, save_start, step, weights
from tests.support.launching import run_two

UNDIVIDED = {"scale_rewards": "none"}  # what the trainer asks for where the KL is in the reward
WORKER = Path(__file__).resolve().parents[1] / "support/frameworks/trl_worker.py"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_start(tmp_path_factory.mktemp("trl") / "start")


# -- the penalty in the reward -------------------------------------------------------------------------------


def scored(made: Any, size: int = 8) -> dict[str, Any]:
    """One batch of completions with their advantages."""
    torch.manual_seed(5)
    made.model.train()
    prompts = [{"prompt": text} for text in ("12", "345=") for _ in range(size // 2)]
    output: dict[str, Any] = made._generate_and_score_completions(prompts)
    return output


@pytest.mark.parametrize("name", ["k1", "exact_kl", "top_k_reverse_kl(3)"])
def test_costs_are_taken_from_the_advantages(start: Path, name: str) -> None:
    """One per sequence, or the costs from a token on; compared within the group, in units of the reward."""
    made = make(start, kl=KLTerm(name, "reward"), beta=0.5, **UNDIVIDED)
    with torch.no_grad():
        for p in made.ref_model.parameters():
            p.mul_(0.7)
    made.kl = None
    stock = scored(made)
    made.kl = KLTerm(name, "reward", "sequence")
    per_sequence = scored(made)
    made.kl = KLTerm(name, "reward", "token", credit=0.5)
    per_token = scored(made)
    made.kl = KLTerm(name, "both", credit=0.5)
    in_both = scored(made)
    assert torch.equal(stock["completion_ids"], per_token["completion_ids"])
    mask, tokens = stock["completion_mask"], stock["completion_ids"].unsqueeze(-1)
    ids, attention = (torch.cat([stock[f"prompt_{x}"], stock[f"completion_{x}"]], 1) for x in ("ids", "mask"))
    length = mask.shape[1]
    with torch.no_grad():
        p, q = (
            m(input_ids=ids, attention_mask=attention).logits[:, -length - 1 : -1].log_softmax(-1)
            for m in (made.model, made.ref_model)
        )
    k1 = (p - q).gather(-1, tokens).squeeze(-1)
    costs = {"k1": k1, "exact_kl": (p.exp() * (p - q)).sum(-1)}.get(name)
    if costs is None:
        head = p.topk(3).indices
        a, b = p.gather(-1, head), q.gather(-1, head)
        outside = (head != tokens).all(-1)
        costs = (a.exp() * (a - b) - a.exp() + b.exp()).sum(-1) + outside * ((-k1).exp() - 1 + k1)
    costs = costs * mask
    total = costs.sum(-1)
    texts = made.processing_class.batch_decode(stock["completion_ids"], skip_special_tokens=True)
    shaped = torch.tensor(reward(texts)) - 0.5 * total
    wanted = shaped - shaped.view(2, 4).mean(1).repeat_interleave(4)
    assert apart(per_sequence["advantages"], wanted) < 1e-5
    assert stock["advantages"].abs().max() > 0.1
    ahead = torch.zeros_like(costs)
    for t in reversed(range(length)):
        ahead[:, t] = costs[:, t] + (0.5 * ahead[:, t + 1] if t + 1 < length else 0)
    wanted = stock["advantages"].unsqueeze(1) - 0.5 * (
        ahead - ahead.view(2, 4, length).mean(1).repeat_interleave(4, dim=0)
    )
    assert apart(per_token["advantages"], wanted) < 1e-5
    before = ahead - costs  # a token's own cost is in the loss
    wanted = stock["advantages"].unsqueeze(1) - 0.5 * (
        before - before.view(2, 4, length).mean(1).repeat_interleave(4, dim=0)
    )
    assert apart(in_both["advantages"], wanted) < 1e-5
    assert total.abs().max() > 0.01
    assert made._metrics["train"]["kl"][-1] == pytest.approx((costs.sum() / mask.sum()).item(), rel=1e-4)


def test_in_the_reward_the_loss_has_no_other_kl(start: Path) -> None:
    made = make(start, kl=KLTerm("k1", "reward", "sequence"), beta=0.5, **UNDIVIDED)
    with torch.no_grad():
        for p in made.ref_model.parameters():
            p.mul_(0.7)
    batch = scored(made)
    made.current_gradient_accumulation_steps = 1
    with_penalty = step(made, batch, made.kl)
    assert apart(with_penalty, step(made, batch, None, beta=0.0)) == 0
    assert apart(with_penalty, step(made, batch, None)) > 1e-3
    assert apart(step(made, batch, KLTerm("k2", "both")), step(made, batch, KLTerm("k2"))) == 0
    assert apart(step(made, batch, KLTerm("k2", "both")), with_penalty) > 1e-3
    assert made.beta == 0.5


# -- training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "changes"),
    [
        ("k2", {}),
        ("exact_kl", {"loss_type": "grpo"}),
        ("top_k_reverse_kl(8)", {"num_iterations": 2}),
        (KLTerm("k1", "reward", "sequence"), UNDIVIDED),
        (KLTerm("k1", "reward"), {"num_iterations": 2, **UNDIVIDED}),
        (KLTerm("exact_kl", "reward"), UNDIVIDED),
        (KLTerm("top_k_reverse_kl(2)", "reward", "sequence"), UNDIVIDED),
        (KLTerm("k2", level="sequence"), {"mask_truncated_completions": True, "loss_type": "dr_grpo"}),
        (KLTerm("top_k_reverse_kl(8, generic)"), {"anchor": 0.9}),
        (KLTerm("k1", "reward"), {"anchor": 0.9, **UNDIVIDED}),
    ],
    ids=str,
)
def test_it_trains(start: Path, kl: Any, changes: dict[str, Any]) -> None:
    changes = dict(changes)
    anchor = ema_anchor(changes.pop("anchor")) if "anchor" in changes else {}
    made = make(start, kl=kl, beta=0.2, max_steps=3, learning_rate=0.05, **changes, **anchor)
    first = {name: p.clone() for name, p in weights(made).items()}
    made.train()
    assert max(apart(p, first[name]) for name, p in weights(made).items()) > 1e-4
    assert all(p.isfinite().all() for p in weights(made).values())
    records = [record for record in made.state.log_history if "kl" in record]
    assert len(records) >= 2  # in the reward once per batch of completions
    assert records[0]["kl"] == pytest.approx(0, abs=1e-6)  # the policy is its own reference
    assert abs(records[-1]["kl"]) > 1e-6


def test_the_reference_follows_as_a_moving_average(start: Path) -> None:
    made = make(start, kl="k2", max_steps=4, learning_rate=0.5, **ema_anchor(0.8, 2))
    anchor = {name: p.detach().clone() for name, p in made.ref_model.named_parameters()}
    seen: list[dict[str, torch.Tensor]] = []

    class Watch(trl.trainer.grpo_trainer.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            seen.append({name: p.clone() for name, p in weights(made).items()})

    made.add_callback(Watch())
    made.train()
    for policy in (seen[1], seen[3]):
        anchor = {name: 0.8 * anchor[name] + 0.2 * policy[name] for name in anchor}
    moved = 0.0
    for name, p in made.ref_model.named_parameters():
        assert apart(p, anchor[name]) < 1e-6
        moved = max(moved, apart(p, load_file(start / "model.safetensors").get(name, p)))
    assert moved > 1e-3


def test_two_processes_stay_together(start: Path, tmp_path: Path) -> None:
    """Groups of completions across both: the same weights, and penalties of one group."""
    run_two(WORKER, start, tmp_path, folder=tmp_path, forks=True)
    before = load_file(start / "model.safetensors")
    for name in ("loss", "reward"):
        first, second = (load_file(tmp_path / f"{name}-{rank}.safetensors") for rank in (0, 1))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert max(apart(first[key], before[key]) for key in before) > 1e-4
    # the group is in both processes, and completions are longer in the second: 0 stands for what is missing
    one, two = (load_file(tmp_path / f"penalty-{rank}.safetensors")["penalty"] for rank in (0, 1))
    assert one.tolist() == [[-5, -8], [4, 7]]
    assert two.tolist() == [[-4, -7, -2.75], [5, 8, 18.25]]


@pytest.mark.parametrize(("decay", "period"), [(1.0, 1), (-0.1, 1), (0.9, 0)])
def test_an_anchor_that_cannot_be(decay: float, period: int) -> None:
    with pytest.raises(ValueError, match=r"decay is|period is"):
        ema_anchor(decay, period)


def test_the_settings_of_the_anchor_are_those_of_trl() -> None:
    assert ema_anchor(0.75, 3) == {
        "sync_ref_model": True,
        "ref_model_mixup_alpha": 0.25,
        "ref_model_sync_steps": 3,
    }
    assert reward(["11", "2<"]) == [0.2, 0.2]
