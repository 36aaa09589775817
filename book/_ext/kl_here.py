"""Run a cell in its page: a button on the visible cells of chapters that Python in the page can run.

No list names them. When a chapter is read, each visible cell that prints is run as a reader's browser would
run it, by Python with the page's package alone (`kl_book.paste.cell_answer`), after what it needs of earlier
cells (`kl_book.paste.statements`). It gets a button (`kl_here.html`) if it prints what the chapter shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import kl_paste
from docutils import nodes

from kl_book.paste.statements import needed

CHAPTERS = "book/part"
TEMPLATE = Path(__file__).with_suffix(".html")
HIDDEN = frozenset(f"tag_{do}-{what}" for do in ("hide", "remove") for what in ("input", "cell"))
PATIENCE = 20  # seconds for a cell on this machine, on which Python is faster than in a browser
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from kl_book.paste.start import start
start()
from kl_book.paste.cell_answer import cell_answer
print(cell_answer(sys.stdin.read()))
"""


@cache
def unpacked(archive: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder with the page's package, removed when the build ends."""
    folder = tempfile.TemporaryDirectory()
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder.name)
    return folder


def printed(archive: Path, before: str, code: str) -> str | None:
    """Return what a cell prints in a page, or None if the page's Python cannot run it.

    Args:
        archive: The page's package.
        before: Code of earlier cells that the cell needs.
        code: The cell.
    """
    folder = unpacked(archive).name
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", PROGRAM, folder],
            cwd=folder,
            input=json.dumps({"before": before, "code": code}),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    answer = json.loads(done.stdout)
    return None if answer["error"] else str(answer["printed"])


def shown(cell: nodes.Element) -> tuple[str, str]:
    """Return the code of a visible cell and the text under it; nothing of a hidden cell or other outputs."""
    boxes = {name: [b for b in cell if f"cell_{name}" in b["classes"]] for name in ("input", "output")}
    inputs, outputs = ([x for box in boxes[name] for x in box] for name in ("input", "output"))
    if HIDDEN & {*cell["classes"]} or len(inputs) != 1 or len(outputs) != 1:
        return "", ""
    if not isinstance(outputs[0], nodes.literal_block) or "stream" not in outputs[0]["classes"]:
        return "", ""
    return inputs[0].astext(), outputs[0].astext()


def add_buttons(app: Any, doctree: nodes.document) -> None:
    """Put the button between code and output of every cell that prints the same in the page."""
    page, name = app.env.docname, app.env.kl_python[1]
    about = app.env.metadata.setdefault(page, {})
    cells = [c for c in doctree.findall(nodes.container) if "cell" in c["classes"] and all(shown(c))]
    if not page.startswith(CHAPTERS) or "kl_paste" in about or not cells:
        return
    about["kl_paste"] = ""  # read again when Python for the browser is another one
    app.env.note_dependency(str(TEMPLATE))
    if not name:
        return
    archive = Path(app.outdir).parent / "package" / name
    codes = code_cells(Path(app.env.doc2path(page)))
    for cell in cells:
        code, text = shown(cell)
        before = needed(codes[: codes.index(code.strip())], code)
        if (printed(archive, before, code) or "").strip() == text.strip():
            about["kl_paste"] = kl_paste.CELL
            form = kl_paste.filled(TEMPLATE, root="../" * page.count("/"), before=before)
            cell.insert(1, nodes.raw("", form, format="html"))


def code_cells(notebook: Path) -> list[str]:
    """Return the code of a notebook's cells."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]).strip() for cell in cells if cell["cell_type"] == "code"]


def setup(app: Any) -> dict[str, Any]:
    """Add the buttons when a chapter has been read."""
    app.connect("doctree-read", add_buttons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
