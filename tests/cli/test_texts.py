"""Text in other encodings, notebooks, and lines that end in a return."""

import json
import sys
from pathlib import Path

import pytest

from kl_companion.cli.texts import as_python, decoded, notebook_code, without_return

TEXT = "x = 'café'\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_every_encoding_is_the_same_text(encoding):
    assert decoded(TEXT.encode(encoding), "it") == TEXT


def test_a_null_byte_is_named_with_its_line():
    with pytest.raises(ValueError, match="mine has a null byte at line 2, expected the text of a Python"):
        decoded(b"x\n\0", "mine")


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("a = 1\nreturn a\n", "a = 1\na"),
        ("    a = 1\n    return (a,\n        2)\n", "a = 1\n(a,\n    2)"),
        ("a = 1\n", "a = 1\n"),
        ("return\n", "return\n"),
        ("def f(:\n", "def f(:\n"),
        ("", ""),
    ],
)
def test_a_return_at_the_end_of_lines(text, without):
    assert without_return(text) == without


def notebook(path, *codes):
    """A notebook with a text and cells of code."""
    cells = [{"cell_type": "code", "source": code.splitlines(True)} for code in codes]
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# x ="]}, *cells]}))
    return str(path)


def test_the_code_of_a_notebook(tmp_path):
    path = notebook(
        tmp_path / "n.ipynb", "%matplotlib inline\nx = 1\nif x:\n    !ls", "%%bash\nls", "y = 5 % 2"
    )
    assert notebook_code(path).split("\n")[:6] == ["pass", "x = 1", "if x:", "    pass", "", ""]
    assert notebook_code(path).endswith("y = 5 % 2\n")
    timed = notebook(tmp_path / "t.ipynb", "%%time\nx = 1", "x?")
    assert notebook_code(timed) == "pass\nx = 1\n\npass\n"


def test_a_notebook_is_a_file_meanwhile(tmp_path):
    path, before = notebook(tmp_path / "n.ipynb", "x = 1"), sys.path[:]
    with as_python(f"{path}:f") as target:
        file, _, name = target.rpartition(":")
        assert (Path(file).read_text(), Path(file).name, name) == ("x = 1\n", "n.py", "f")
        assert sys.path[0] == str(tmp_path)
    assert sys.path == before
    assert not Path(file).exists()
    with as_python("mine.py:f") as target:
        assert target == "mine.py:f"


@pytest.mark.parametrize(
    ("content", "message"), [(None, "is not a file"), ("[", "is no notebook"), ("{}", "is no notebook")]
)
def test_no_notebook(tmp_path, content, message):
    path = tmp_path / "n.ipynb"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        notebook_code(str(path))
