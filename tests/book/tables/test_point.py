"""The process of a point ends with its runner and leaves nothing, whatever it is doing at that moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# stands in for papermill: it makes its files again and again, as a kernel that is just starting does
BUSY = """
import sys
from pathlib import Path
from kl_book.tables import point

def execute(specification, sockets):
    print("busy", flush=True)
    while True:
        for folder in map(Path, (sockets, specification["ipython"])):
            folder.mkdir(exist_ok=True)
            (folder / "connection.json").write_text("{}")

point.execute = execute
point.main(sys.argv[1:])
"""


def test_a_point_that_makes_files_while_its_runner_goes_leaves_none(tmp_path: Path) -> None:
    temporary, specification = tmp_path / "temporary", tmp_path / "specification.json"
    temporary.mkdir()
    specification.write_text(json.dumps({"ipython": str(tmp_path / "ipython")}))
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(specification)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert busy.stdout is not None
    assert busy.stdin is not None
    assert busy.stdout.readline() == b"busy\n"
    busy.stdin.close()  # as the system does when the runner is gone
    assert busy.wait(60) == 1
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["specification.json", "temporary"]
    busy.stdout.close()
