"""Text that a user hands in, as Python: its encoding, and the code cells of a notebook."""

from __future__ import annotations

import ast
import codecs
import json
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def decoded(data: bytes, where: str) -> str:
    """Return bytes as text: of the encoding that a byte-order mark names, of UTF-8, or else of Latin-1.

    Args:
        data: What was pasted, or a file's content.
        where: For the message.

    Raises:
        ValueError: a null byte, which no Python has.
    """
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if "\0" in text:
        line = text.partition("\0")[0].count("\n") + 1
        raise ValueError(f"{where} has a null byte at line {line}, expected the text of a Python file")
    return text


def without_return(text: str) -> str:
    """Return lines that end in ``return loss``, as they stand in a function, with ``loss`` in its place."""
    code = textwrap.dedent(text)
    try:
        last = ast.parse(code).body[-1]
    except (SyntaxError, IndexError):  # the audit says what is wrong
        return text
    if not isinstance(last, ast.Return) or last.value is None:
        return text
    lines = code.splitlines()[: last.lineno - 1]
    return "\n".join([*lines, ast.get_source_segment(code, last.value) or ""])


def notebook_code(path: str) -> str:
    """Return the code cells of a notebook as one text, without what only IPython reads (``%``, ``!``).

    Raises:
        ValueError: no such file, or no notebook.
    """
    try:
        cells = json.loads(Path(path).read_bytes())["cells"]
    except FileNotFoundError:
        raise ValueError(f"{path!r} is not a file, expected a notebook") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no notebook ({type(error).__name__}), expected JSON with cells"
        ) from None
    sources = ["".join(x.get("source", "")) for x in cells if x.get("cell_type") == "code"]
    return "\n\n".join(_without_magics(x) for x in sources) + "\n"


def _without_magics(source: str) -> str:
    try:
        ast.parse(source)
    except SyntaxError:
        lines = source.splitlines()
        if lines and lines[0].startswith("%%") and lines[0].split()[0] not in ("%%time", "%%capture"):
            return ""  # a cell of another language
        return "\n".join(_plain(line) for line in lines)
    return source


def _plain(line: str) -> str:
    code = line.strip()
    of_ipython = code.startswith(("%", "!", "?")) or code.endswith("?")
    return line[: len(line) - len(line.lstrip())] + "pass" if of_ipython else line


@contextmanager
def as_python(target: str) -> Iterator[str]:
    """Give a target back; for a notebook that of a Python file with its code, which is there meanwhile.

    Args:
        target: A file, with or without a colon and a name.
    """
    path, colon, name = target.partition(":") if ".ipynb:" in target else (target, "", "")
    if not path.endswith(".ipynb"):
        yield target
        return
    code, search = notebook_code(path), sys.path[:]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{Path(path).stem}.py"
        file.write_text(code, encoding="utf-8")
        sys.path.insert(0, str(Path(path).resolve().parent))
        try:
            yield f"{file}{colon}{name}"
        finally:
            sys.path[:] = search
