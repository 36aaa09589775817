"""Two processes under `accelerate`, as its users start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_two(worker: Path, *arguments: Path, folder: Path) -> None:
    """Run a script in two processes on the CPU, with ``folder`` as theirs; an assertion shows their log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    options += ["--dynamo_backend", "no", "--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    launcher = [sys.executable, "-m", "accelerate.commands.launch"]
    command = [*launcher, *options, str(worker), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout=150)
        except subprocess.TimeoutExpired:  # processes that wait for each other
            os.killpg(process.pid, signal.SIGTERM)  # the launcher ends them
            process.wait(timeout=30)
            status = None
    assert status == 0, f"status {status}:\n{log.read_text()[-4000:]}"
