"""A run that is killed resumes from a whole checkpoint, and to the same numbers."""

import contextlib
import os
import shutil
from dataclasses import replace

import pytest
import torch

from kl_companion.llm.checkpoints import STATE, TENSORS, load_checkpoint, save_checkpoint, steps_in
from kl_companion.llm.training import TrainingStopped, train
from tests.support.llm.short_runs import FEW, copy, trained


def test_nan_stops_and_keeps_the_last_checkpoint(tiny, task, tmp_path):
    lm = copy(tiny)

    def spoil(record):
        if record["step"] == 2:
            with torch.no_grad():
                next(lm.model.parameters()).fill_(torch.nan)

    with pytest.raises((TrainingStopped, ValueError)) as stopped:
        train(lm, task, replace(FEW, steps=5), every=1, checkpoint=tmp_path, progress=spoil)
    assert "step 3" in str(stopped.value) or "nan" in str(stopped.value).lower()
    assert steps_in(tmp_path) == [2]
    kept = load_checkpoint(tmp_path)
    assert all(x.isfinite().all() for x in kept.tensors.values())


def test_a_checkpoint_of_another_run_is_refused(tiny, task, tmp_path):
    trained(tiny, task, FEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"beta=0.3, this run has 0.5"):
        trained(tiny, task, replace(FEW, beta=0.5), checkpoint=tmp_path)
    trained(tiny, task, replace(FEW, beta=0.5), checkpoint=tmp_path, resume=False)


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"x": torch.ones(3)}, {"run": {}})
    monkeypatch.setattr(
        "json.dumps", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match=r"step 2 could not be written .*No space left.*step-000001 is kept"):
        save_checkpoint(tmp_path, 2, {"x": torch.zeros(3)}, {"run": {}})
    monkeypatch.undo()
    assert load_checkpoint(tmp_path).tensors["x"].tolist() == [1.0, 1.0, 1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


@pytest.mark.parametrize("at", range(3))
def test_a_checkpoint_is_never_half_removed(at, tmp_path, monkeypatch):
    """Removing stops before the n-th file, as it does in a process that is killed there."""
    save_checkpoint(tmp_path, 2, {"x": torch.ones(3)}, {"run": {}})
    removed = []
    unlink = os.unlink

    def stop(*arguments, **options):
        if len(removed) == at:
            raise KeyboardInterrupt
        removed.append(arguments)
        unlink(*arguments, **options)

    monkeypatch.setattr(os, "unlink", stop)
    with contextlib.suppress(KeyboardInterrupt):
        save_checkpoint(tmp_path, 1, {"x": torch.zeros(3)}, {"run": {}})
    monkeypatch.undo()
    assert all({p.name for p in f.iterdir()} == {STATE, TENSORS} for f in tmp_path.glob("step-*"))
    assert load_checkpoint(tmp_path).step == 1
    save_checkpoint(tmp_path, 3, {"x": torch.zeros(3)}, {"run": {}})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]


def test_a_resumed_run_removes_what_a_killed_one_left(tiny, task, tmp_path):
    trained(tiny, task, FEW, checkpoint=tmp_path)
    shutil.copytree(tmp_path / "step-000003", tmp_path / "part-7")
    shutil.copytree(tmp_path / "step-000003", tmp_path / "step-000001")
    trained(tiny, task, FEW, checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]


def test_interrupted_run_goes_on(tiny, task, tmp_path):

    def interrupt(record):
        if record["step"] == 3:
            raise KeyboardInterrupt

    settings = replace(FEW, steps=5)
    whole, history = trained(tiny, task, settings, every=2)
    with pytest.raises(KeyboardInterrupt):
        trained(tiny, task, settings, every=2, checkpoint=tmp_path, progress=interrupt)
    assert steps_in(tmp_path) == [2]
    resumed, again = trained(tiny, task, settings, every=2, checkpoint=tmp_path)
    assert torch.equal(resumed, whole)
    assert again.records == history.records
