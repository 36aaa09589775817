"""A whole monitored run of TRL: its numbers in TensorBoard's files, in the folder, in the report."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kl_companion.cli.command import main
from kl_companion.frameworks import trl_example
from kl_companion.monitor import KLMonitor, read_run, run_verdicts

trl = pytest.importorskip("trl")
STEPS = 20


def told_to_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    """What its event files hold, {tag: {step: value}}; of a record: length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for file in folder.rglob("events.out.tfevents.*"):
        raw, at = file.read_bytes(), 0
        while at < len(raw):
            (length,) = struct.unpack("<Q", raw[at : at + 8])
            event = Event.FromString(raw[at + 12 : at + 12 + length])
            at += 16 + length
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_twenty_steps_arrive_in_tensorboard_in_the_folder_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trl_example.quiet():
        args = trl_example.settings(
            tmp_path / "out",
            max_steps=STEPS,
            report_to="tensorboard",
            learning_rate=0.3,
            per_device_train_batch_size=8,
            num_generations=8,
        )
        trainer = trl_example.make(trl.GRPOTrainer, trl_example.save_start(tmp_path / "start"), args)
        quiet = [c for c in trainer.callback_handler.callbacks if type(c).__name__ != "PrinterCallback"]
        trainer.callback_handler.callbacks = quiet
        KLMonitor(tmp_path / "run", every=4).attach(trainer)
        trainer.train()
    told = told_to_tensorboard(tmp_path)
    run = read_run(tmp_path / "run")
    steps = [row.step for row in run.observations]
    assert steps == [1, 4, 8, 12, 16, 20]
    for name in ("kl", "forward_kl", "logged", "k1_error", "entropy"):
        values = told[f"train/kl_monitor/{name}"]
        for row in run.observations:
            assert values[row.step] == pytest.approx(getattr(row, name), rel=1e-6, abs=1e-12), name
    assert all(row.kl_low <= row.kl <= row.kl_high for row in run.observations[1:])
    assert run.observations[-1].kl > 10 * run.observations[0].kl  # it has learned something
    assert run_verdicts(run)

    assert main(["report", str(tmp_path / "run")]) == 0
    assert "kl_report.html" in capsys.readouterr().out
    page = (tmp_path / "run" / "kl_report.html").read_text(encoding="utf-8")
    assert "GRPOTrainer" in page
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
