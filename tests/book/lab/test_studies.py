"""A study: every run from the same start, measured with the same prompts, one frame."""

from dataclasses import replace

import pytest
import torch

from kl_book.lab.studies import study
from kl_companion.llm.models import frozen_copy, load_model
from kl_companion.llm.settings import Settings, expand
from kl_companion.llm.tasks import make_task
from kl_companion.llm.training import train

FEW = {"steps": 3, "prompts": 2, "group": 2, "lr": 0.01, "beta": [0.0, 0.5], "clip": [(0.2, 0.28)]}


@pytest.fixture(scope="module")
def task():
    return replace(
        make_task("sort", digits=2), reward=lambda text, example: text.count("1") / 2, unique=False
    )


@pytest.fixture(scope="module")
def examples(task):
    return task.draw(4, torch.Generator().manual_seed(3))


def test_rows_and_columns(tiny, task, examples, tmp_path):
    start = [p.clone() for p in tiny.model.parameters()]
    frame = study(tiny, task, expand(FEW), examples=examples, k=2, every=2, folder=tmp_path, quiet=True)
    assert frame[["run", "beta", "step"]].to_numpy().tolist() == [
        [run, beta, step] for run, beta in enumerate((0.0, 0.5)) for step in (0, 2, 3)
    ]
    assert all(torch.equal(a, b) for a, b in zip(start, tiny.model.parameters(), strict=True))
    assert (frame["kl"][frame["step"] == 0].abs() < 1e-9).all()
    assert (frame["kl"][frame["step"] > 0] > 1e-6).all()
    assert set(frame["clip"]) == {"(0.2, 0.28)"}
    assert set(frame["k"]) == {"none"}
    assert frame["grad_norm"].notna().tolist() == [False, True, True] * 2
    # the trained model is kept, and is the one that was measured
    policy = frozen_copy(tiny)
    policy.model.requires_grad_(True)
    steps = train(policy, task, expand(FEW)[1], reference=frozen_copy(tiny)).frame()
    kept = load_model(str(tmp_path / "run-001" / "model"))
    for a, b in zip(policy.model.parameters(), kept.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert frame["grad_norm"].iloc[4] == pytest.approx(steps["grad_norm"].iloc[:2].mean())
    assert frame["grad_norm_max"].iloc[5] == pytest.approx(steps["grad_norm"].iloc[2])


def test_no_run_is_refused(tiny, task, examples):
    with pytest.raises(ValueError, match="no settings to run"):
        study(tiny, task, [], examples=examples)


def test_without_steps_the_start_is_measured(tiny, task, examples):
    frame = study(tiny, task, [Settings(steps=0)], examples=examples, quiet=True)
    assert frame["step"].tolist() == [0]


def test_what_else_is_measured_becomes_columns(tiny, task, examples):
    def weight(policy, step):
        return {"weight": sum(p.sum().item() for p in policy.model.parameters()), "at": step}

    runs = expand({**FEW, "beta": 0.5})
    frame = study(tiny, task, runs, examples=examples, every=2, also=weight, quiet=True)
    assert frame["at"].tolist() == [0, 2, 3]
    assert frame["weight"].iloc[0] == pytest.approx(sum(p.sum().item() for p in tiny.model.parameters()))
    assert frame["weight"].nunique() == 3


def test_the_start_is_measured_once_for_all_runs(tiny, task, examples):
    steps = []

    def note(policy, step):
        steps.append(step)
        return {"calls": float(len(steps))}

    runs = expand({**FEW, "beta": [0.5, 0.1]})
    frame = study(tiny, task, runs, examples=examples, every=2, also=note, best_of=None, quiet=True)
    assert steps == [0, 2, 3, 2, 3]
    assert frame["calls"].tolist() == [1, 2, 3, 1, 4, 5]
    alone = study(tiny, task, runs[1:], examples=examples, every=2, quiet=True)
    both = frame[frame["run"] == 1].reset_index(drop=True)
    shared = [name for name in alone if name != "run"]
    assert both[shared].equals(alone[shared])


@pytest.mark.parametrize("name", ["kl", "beta", "grad_norm", "step", "loss"])
def test_a_name_that_is_taken_is_refused(tiny, task, examples, name):
    with pytest.raises(ValueError, match=f"also returned '{name}'"):
        study(tiny, task, [Settings(steps=0)], examples=examples, also=lambda *_: {name: 0.0}, quiet=True)
