"""Two processes that train together: started as users of `accelerate` do, or forks of one process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.layout import PATH
from tests.support.warm import command

ROOT = Path(__file__).resolve().parents[2]


def run_two(worker: Path, *arguments: Path, folder: Path, forks: bool = False) -> None:
    """Run a script in two processes on the CPU, with ``folder`` as theirs; an assertion shows their log.

    With ``forks`` the script starts them itself, by `fork_two`: its imports are paid for once.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    options += ["--dynamo_backend", "no", "--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    # what is launched is a fork, too: of `command`, the script is launched
    launcher = [] if forks else ["-m", "accelerate.commands.launch", *options, *command()[3:]]
    program = [*command(), *launcher, str(worker), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH, "CUDA_VISIBLE_DEVICES": ""}
    if forks:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            program, env=environment, cwd=folder, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout=150)
        except subprocess.TimeoutExpired:  # processes that wait for each other
            os.killpg(process.pid, signal.SIGTERM)  # the launcher ends them
            process.wait(timeout=30)
            status = None
    assert status == 0, f"status {status}:\n{log.read_text()[-4000:]}"


def fork_two(main: Callable[[], None]) -> None:
    """Call a function in two processes with the variables that `torchrun` gives its own."""
    child = os.fork()
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
    main()
    if child:
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the second process ended with {os.waitstatus_to_exitcode(status)}"
