"""The steps of the benchmark differ in their KL term alone, and their times are taken in turn."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import measure, training_step
from benchmarks.training_step import BETA, LOSSES, StepSizes, Training

TINY = StepSizes(batch=2, length=6, rounds=4, tiny=True)


@pytest.fixture(scope="module")
def gradients() -> dict[str, tuple[torch.Tensor, ...]]:
    """Of every loss: its value, and its gradients by hidden states and weight, all at the same parameters."""
    training = Training(TINY)
    with torch.no_grad():  # else the reference is the policy
        for parameter in training.policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    found = {}
    for name, loss in LOSSES.items():
        if find_spec("trl") or "TRL" not in name:
            i = training.inputs()
            value = loss(i)
            found[name] = (value.detach(), *torch.autograd.grad(value, (i.hidden, i.weight)))
    i = training.inputs()
    logp, ref_logp = (
        (h @ w.T).log_softmax(-1) for h, w in ((i.hidden, i.weight), (i.ref_hidden, i.ref_weight))
    )
    exact = BETA * (logp.exp() * (logp - ref_logp)).sum(-1).mean()
    found["KL alone"] = (exact.detach(), *torch.autograd.grad(exact, (i.hidden, i.weight)))
    return found


def test_the_exact_step_adds_the_kl_to_the_policy_gradient(
    gradients: dict[str, tuple[torch.Tensor, ...]],
) -> None:
    wanted = [a + b for a, b in zip(gradients["no KL"], gradients["KL alone"], strict=True)]
    assert all(part.norm() > 1e-3 for part in gradients["KL alone"])
    for name in ("exact KL", "TRL, distillation"):
        if name in gradients:
            torch.testing.assert_close(list(gradients[name]), wanted, rtol=1e-4, atol=1e-6)


def test_both_sampled_steps_are_the_same(gradients: dict[str, tuple[torch.Tensor, ...]]) -> None:
    one, other = gradients["K2 of the sampled tokens"], gradients["the same from logits"]
    torch.testing.assert_close(list(one), list(other), rtol=1e-4, atol=1e-6)
    assert (one[1] - gradients["no KL"][1]).norm() > 0.02 * one[1].norm()


def test_a_step_moves_the_policy_and_leaves_the_reference() -> None:
    training = Training(TINY)
    before = [p.clone() for p in training.reference.parameters()]
    first, second = (training.step("exact KL") for _ in range(2))
    assert first != second
    assert all(map(torch.equal, before, training.reference.parameters()))
    moved = [not torch.equal(*pair) for pair in zip(before, training.policy.parameters(), strict=True)]
    assert all(moved)


def test_steps_are_timed_in_turn_and_compared_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["no KL", training_step.SAMPLED]
    monkeypatch.setattr(training_step, "losses", lambda: {name: LOSSES[name] for name in names})
    clock = iter([1.0, 2.0, 4.0, 8.0, 30.0, 10.0, 2.0, 2.0])  # the order of the rounds: a b | b a | ...
    monkeypatch.setattr(training_step, "milliseconds", lambda work: work() and next(clock))
    monkeypatch.setattr(training_step, "sweep", lambda: None)
    without, sampled = training_step.times(TINY)
    assert (without["milliseconds"], sampled["milliseconds"]) == (5.0, 3.0)  # of 1 8 30 2, of 2 4 10 2
    assert without["of_sampled"] == 1.5  # of 1/2, 8/4, 30/10, 2/2
    assert sampled["of_sampled"] == 1.0


def test_the_table_has_a_row_for_every_loss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training_step, "_peak_in_a_process", lambda sizes, name: float(len(name)))
    training_step.main(
        ["--tiny", "--batch=2", "--length=6", "--rounds=1", "--out", str(tmp_path / "rows.json")]
    )
    found = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert [row["loss"] for row in found] == list(training_step.losses())
    assert all(row["milliseconds"] > 0 and row["megabytes"] == len(row["loss"]) for row in found)
    assert "exact KL" in capsys.readouterr().out


def test_a_process_measures_the_peak_of_the_step_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    if not measure.CLEAR.exists():
        pytest.skip("no /proc here")
    seen: list[list[str]] = []
    monkeypatch.setattr(
        training_step, "peak", lambda sizes, name: seen.append([name, *map(str, sizes)]) or 7.0
    )

    def run(command: list[str], **_: object) -> object:
        training_step.main(command[3:])
        return type("Done", (), {"returncode": 0, "stdout": "7.0\n"})

    monkeypatch.setattr(training_step.subprocess, "run", run)
    assert training_step._peak_in_a_process(TINY, "exact KL") == 7.0
    assert seen == [["exact KL", "2", "6", "4", "float32", "True"]]


def test_a_peak_is_that_of_the_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(Training, "step", lambda self, name: taken.append(name))
    monkeypatch.setattr(training_step, "peak_bytes", lambda work: (work(), len(taken) * 5_000_000)[1])
    assert training_step.peak(TINY, "no KL") == 10.0
