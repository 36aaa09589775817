"""A run that is killed resumes from a whole checkpoint, and to the same numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kl_companion.llm.checkpoints import FILE, load_checkpoint, save_checkpoint
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
    kept = load_checkpoint(tmp_path)
    assert kept.state["step"] == 2
    assert all(x.isfinite().all() for x in kept.tensors.values())


def test_a_checkpoint_of_another_run_is_refused(tiny, task, tmp_path):
    assert load_checkpoint(tmp_path) is None
    trained(tiny, task, FEW, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"beta=0.3, this run has 0.5"):
        trained(tiny, task, replace(FEW, beta=0.5), checkpoint=tmp_path)
    trained(tiny, task, replace(FEW, beta=0.5), checkpoint=tmp_path, resume=False)


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, {"x": torch.ones(3)}, {"step": 1})
    (tmp_path / f".{FILE}.7.part").touch()  # by a run that was killed

    def full(path, content):
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, {"x": torch.zeros(3)}, {"step": 2})
    monkeypatch.undo()
    kept = load_checkpoint(tmp_path)
    assert (kept.tensors["x"].tolist(), kept.state) == ([1.0, 1.0, 1.0], {"step": 1})
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_interrupted_run_goes_on(tiny, task, tmp_path):

    def interrupt(record):
        if record["step"] == 3:
            raise KeyboardInterrupt

    settings = replace(FEW, steps=5)
    whole, history = trained(tiny, task, settings, every=2)
    with pytest.raises(KeyboardInterrupt):
        trained(tiny, task, settings, every=2, checkpoint=tmp_path, progress=interrupt)
    assert load_checkpoint(tmp_path).state["step"] == 2
    resumed, again = trained(tiny, task, settings, every=2, checkpoint=tmp_path)
    assert torch.equal(resumed, whole)
    assert again.records == history.records
