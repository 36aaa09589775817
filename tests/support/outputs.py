"""Name notebooks that hold outputs: ``python -m tests.support.outputs book/a.ipynb ...``.

A hook of `.pre-commit-config.yaml` runs it on the notebooks that are about to be committed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat


def with_outputs(path: Path) -> list[int]:
    """The places of the code cells that hold an output or the number of an execution."""
    cells = nbformat.read(path, as_version=4).cells
    return [
        i
        for i, cell in enumerate(cells)
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count)
    ]


def main(paths: Sequence[str]) -> int:
    """Print the notebooks that hold outputs; 1 when there are any."""
    found = {path: with_outputs(Path(path)) for path in paths}
    for path, cells in found.items():
        if cells:
            print(f"{path}: cells {cells} hold outputs, expected none: clear them before committing")
    return int(any(found.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
