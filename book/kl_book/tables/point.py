"""One run of a notebook, in its own process: `python -m kl_book.tables.point specification.json`.

The specification holds `notebook`, `parameters`, `executed` (where the executed copy goes) and `ipython` (a
folder for IPython's own files, so that neither a reader's profile nor a shared history plays a part).
The process ends with status 1 and the end of the cell's traceback when the notebook fails.

The kernel listens on socket files in a folder of its own: free port numbers are chosen before they are taken,
and two runs that begin together can choose the same one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from kl_book.tables.project import book_extra
from kl_book.tables.temporary_folder import temporary_folder

TRACEBACK_LINES = 12
PATIENCE = 10.0  # seconds in which a killed kernel ends
FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _end_with_parent(folders: list[str], psutil: Any) -> None:
    """End with the kernel as soon as the runner is gone: the pipe that the runner holds open is then closed.

    A kernel ends by itself only when the first process of the system adopts it, and not at once. The signal's
    handler runs in the thread that runs the notebook, which then cannot start a kernel meanwhile.
    """

    def end(*_: object) -> None:
        kernels = psutil.Process().children(recursive=True)
        for process in kernels:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(kernels, timeout=PATIENCE)  # a kernel in its last call may still write a file
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        if sys.platform == "win32":
            end()
        else:
            signal.pthread_kill(runs, signal.SIGUSR1)

    runs = threading.get_ident()
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR1, end)
    threading.Thread(target=wait, daemon=True).start()


def _transport(sockets: str) -> dict[str, Any]:
    """How to talk to the kernel: over files in this folder, where the system has such sockets."""
    if sys.platform == "win32":
        return {}
    traitlets = book_extra("traitlets.config")
    # how to connect stands there, too: by default in a temporary file, which a killed process leaves
    given = {"transport": "ipc", "ip": f"{sockets}/k", "connection_file": f"{sockets}/connection.json"}
    return {"config": traitlets.Config(KernelManager=given)}


def execute(specification: dict[str, Any], sockets: str) -> str | None:
    """Run the notebook in its own folder; the message if it fails, else None.

    `sockets` is an empty folder whose path is short: the system allows a socket a hundred characters.
    """
    papermill = book_extra("papermill")
    try:
        papermill.execute_notebook(
            specification["notebook"],
            specification["executed"],
            parameters=specification["parameters"],
            kernel_name="python3",
            cwd=str(Path(specification["notebook"]).parent),
            progress_bar=False,
            **_transport(sockets),
        )
    except papermill.PapermillExecutionError as error:
        lines = _ANSI.sub("", "\n".join(error.traceback)).splitlines()
        return "\n".join([f"cell [{error.exec_count}]:", *lines[-TRACEBACK_LINES:]])
    return None


def run(specification: dict[str, Any]) -> str | None:
    """Run the notebook with the folders that it needs, and end with the runner; the message if it fails."""
    with temporary_folder("kl-k-") as sockets:
        _end_with_parent([specification["ipython"], str(sockets)], book_extra("psutil"))
        try:
            return execute(specification, str(sockets))
        finally:
            shutil.rmtree(specification["ipython"], ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Run the specification whose path is the only argument."""
    specification = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        message = run(specification)
    except OSError as error:
        if error.errno not in FULL:
            raise
        message = f"The disk is full: {error}"
    if message:
        print(message, file=sys.stderr)
    return 1 if message else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
