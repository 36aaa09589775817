"""One run of a notebook, in a process of its own: `python -m kl_companion.tables.point specification.json`.

The specification holds `notebook`, `parameters`, `executed` (where the executed copy goes) and `ipython` (a
folder for IPython's own files, so that neither a reader's profile nor a shared history plays a part).
The process ends with status 1 and the end of the cell's traceback when the notebook fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from kl_companion.tables.project import book_extra

TRACEBACK_LINES = 12
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _end_with_parent() -> None:
    """End this process as soon as the runner is gone: the pipe that the runner holds open is then closed."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def execute(specification: dict[str, Any]) -> str | None:
    """Run the notebook in its own folder; the message if it fails, else None."""
    papermill = book_extra("papermill")
    try:
        papermill.execute_notebook(
            specification["notebook"],
            specification["executed"],
            parameters=specification["parameters"],
            kernel_name="python3",
            cwd=str(Path(specification["notebook"]).parent),
            progress_bar=False,
        )
    except papermill.PapermillExecutionError as error:
        lines = _ANSI.sub("", "\n".join(error.traceback)).splitlines()
        return "\n".join([f"cell [{error.exec_count}]:", *lines[-TRACEBACK_LINES:]])
    finally:
        shutil.rmtree(specification["ipython"], ignore_errors=True)
    return None


def main(arguments: list[str]) -> int:
    """Run the specification whose path is the only argument."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    message = execute(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    if message:
        print(message, file=sys.stderr)
    return 1 if message else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
