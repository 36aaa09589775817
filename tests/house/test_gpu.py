"""`make gpu`: its steps at a tiny size on a processor, what it runs on a card, and the bundle for one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import gpu, gpu_bundle, suites
from benchmarks.gpu import TASKS, Task
from kl_book.tables.manifest import read_manifest, settings

ROOT = Path(__file__).resolve().parents[2]
BROKEN = Task("a", "broken", 1.0, "", ("-c", "raise ValueError('no such card')"), (), ())
ENDLESS = Task("b", "endless", 0.01, "", ("-c", "import time; time.sleep(600)"), (), ())


def test_every_step_writes_its_result_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    titles = ("tests marked gpu", "gradients against float64", "notebook of distillation")
    small = [task._replace(minutes=10) for task in TASKS if task.title in titles or task.step == "d"]
    assert {task.step for task in small} == {"a", "c", "d"}  # the command of b is that of the gradients
    assert not gpu.measure([BROKEN, ENDLESS, *small], tmp_path, small=True)
    record = json.loads((tmp_path / "record.json").read_text())
    assert [row["status"] for row in record["tasks"]] == ["failed", "out of time", *["done"] * len(small)]
    assert None not in (record["commit"], record["torch"])
    assert "no such card" in (tmp_path / "log.txt").read_text()
    numerics = pd.DataFrame(json.loads((tmp_path / "numerics.json").read_text()))
    assert numerics.gradient_error.max() < 0.1
    assert set(pd.read_csv(tmp_path / "distillation.csv").table) == {"llm_distillation"}
    assert 0 < json.loads((tmp_path / "monitor.json").read_text())["share"] < 1


def test_a_step_that_is_repeated_keeps_the_record_of_the_others(tmp_path: Path) -> None:
    quick = BROKEN._replace(title="quick", command=("-c", "pass"))
    assert not gpu.measure([BROKEN, quick], tmp_path, small=True)
    assert gpu.measure([quick], tmp_path, small=True)
    tasks = json.loads((tmp_path / "record.json").read_text())["tasks"]
    assert [(row["title"], row["status"]) for row in tasks] == [("broken", "failed"), ("quick", "done")]


def test_the_plan_takes_eleven_minutes_and_leaves_eight_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu.main(["--plan"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["together", "at", "most", "11.0", "min"]
    assert len({task.file for task in TASKS if task.file} | {gpu.LOG, gpu.RECORD}) == 8
    assert gpu.main(["--plan", "--step", "b"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setattr(gpu, "gpu_name", lambda: None)
    assert gpu.main([]) == 1


def test_what_is_run_on_a_card_exists() -> None:
    for task in TASKS:
        words = task.arguments(Path("/out"), small=False)
        assert words == [*task.command, *(["--out", f"/out/{task.file}"] if task.file else []), *task.full]
        if "--groups" in words:
            groups = words[words.index("--groups") + 1 :]
            assert set(groups) <= {"machine", *suites.SUITES["gpu_short"]}
        for name in words[words.index("--tables") + 1 :] if "--tables" in words else ():
            chosen = settings(read_manifest(name), "gpu_short")
            assert chosen.parameters.get("device", "cuda") == "cuda"
            assert chosen.parameters.get("suite", "gpu_short") == "gpu_short"
    assert "tests/kernels/test_compiling.py" in gpu.marked()


def test_a_real_model_that_is_missing_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []

    def run(name: str, *, into: str, progress, **options: object) -> None:
        made.append(name)
        for point in ("b", "a"):
            (Path(into) / "points" / point).mkdir(parents=True)
            (Path(into) / "points" / point / "rows.csv").write_text(f"x\n{point}\n")
            progress(point)

    monkeypatch.setattr(gpu.tables, "run", run)
    monkeypatch.setattr(gpu, "lacking", lambda manifest: "no model" if manifest.name == "real_rl" else None)
    gpu.make_table(["real_rl", "llm_rl"], "gpu_short", tmp_path / "rl.csv")
    assert made == ["llm_rl"]
    assert (tmp_path / "rl.csv").read_text() == "x,table\na,llm_rl\nb,llm_rl\n"
    with pytest.raises(ImportError, match="no model"):
        gpu.make_table(["real_rl"], "gpu_short", tmp_path / "rl.csv")


def test_the_bundle_pins_what_the_other_locks_pin() -> None:
    def pins(name: str) -> set[str]:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        return {line for line in lines if line and not line.startswith("#")}

    others = set().union(*(pins(f"requirements{kind}.lock") for kind in ("", "-audit", "-real")))
    assert pins("requirements-gpu.lock") <= others


def test_the_bundle_lies_in_three_folders_and_its_script_joins_them(tmp_path: Path) -> None:
    wheels = {"small.whl": b"s" * 100, "other.whl": b"o" * 50, "model.whl": bytes(range(250)) * 4}
    (tmp_path / "fetched").mkdir()
    for name, content in wheels.items():
        (tmp_path / "fetched" / name).write_bytes(content)
    folder = tmp_path / "copy" / ".gpu"
    gpu_bundle.arrange(sorted((tmp_path / "fetched").iterdir()), folder)
    parts = {path.name: path for path in folder.glob("*/*.whl*")}
    assert set(parts) == {"small.whl", "other.whl", "model.whl.1", "model.whl.2"}
    assert {name[-1]: path.parent.name for name, path in parts.items()} == {"l": "1", "1": "2", "2": "3"}
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text('#!/bin/sh\necho "$@" >> "$LOG"\nmkdir -p site\n')
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LOG": str(tmp_path / "log")}
    (folder / "3").rename(tmp_path / "3")  # uploaded later
    subprocess.run(["bash", folder / "1" / "run.sh", "--plan"], env=environment, check=True)
    (tmp_path / "3").rename(folder / "3")
    subprocess.run(["bash", folder / "1" / "run.sh", "--step", "b"], env=environment, check=True)
    pip = "-m pip install --quiet --no-index --no-deps --no-compile --upgrade --target site"
    assert (tmp_path / "log").read_text().splitlines() == [
        f"{pip} 1/other.whl 1/small.whl",
        "-m benchmarks.gpu --plan",
        f"{pip} model.whl",
        "-m benchmarks.gpu --step b",
    ]
    assert (folder / "model.whl").read_bytes() == wheels["model.whl"]
