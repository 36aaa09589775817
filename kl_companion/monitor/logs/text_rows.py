"""Rows of texts: consoles, JSON, lines of JSON, and tables of any separator, by content."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from html import unescape
from itertools import chain, islice
from typing import Any

from kl_companion.monitor.logs.console_rows import FLAT_OBJECT, ConsoleReader, loaded, unnested
from kl_companion.monitor.logs.rows import RowCollector, as_number, flat

_LOOK = 40  # lines by which the form is told


def add_text(lines: Iterable[str], rows: RowCollector) -> str:
    """Add the rows of a text, and return the name of its form.

    Args:
        lines: Of any length, ended by line feeds, carriage returns, or both.
        rows: Receives rows, settings and notes.
    """
    stream = iter(lines)
    head = list(islice(stream, _LOOK))
    begin = "".join(head).lstrip("\ufeff \r\n\t")
    everything = chain(head, stream)
    if begin[:1] in ("{", "[") and not _is_lines_of_json(begin):
        return _add_document("".join(head), lines, rows)
    separator = _separator(head)
    if separator:
        return _add_table(everything, separator, rows)
    if "<table" in begin or "<tr" in begin:
        return _add_html("".join(everything), rows)
    return ConsoleReader(rows).add(everything)


def _is_lines_of_json(begin: str) -> bool:
    first, _, rest = begin.partition("\n")
    try:
        complete = isinstance(json.loads(first), dict)
    except ValueError:
        complete = first.rstrip().endswith("}") and first.count("{") == first.count("}") and "'" in first
    if complete and not rest.strip():
        return not any(isinstance(x, dict | list) for x in loaded(first).values())
    return complete and rest.lstrip()[:1] == "{"


def _add_document(begin: str, rest: Iterable[str], rows: RowCollector) -> str:
    """Add the rows of one JSON document; a large or a cut one is read object by object."""
    pieces = _pieces(rest)
    text = begin + "".join(islice(pieces, _AT_ONCE // _PIECE))
    history = '"log_history"' in text
    form = "trainer_state.json of Hugging Face's Trainer" if history else "JSON file"
    if len(text) < _AT_ONCE:
        try:
            content = json.loads(text)
        except ValueError:
            rows.notes.append("The JSON document is cut or broken; the objects that are complete were read.")
        else:
            return _add_json(content, form, rows)
    text = text[max(0, text.find('"log_history"')) :]
    while text:
        end = 0
        for match in FLAT_OBJECT.finditer(text):
            end = match.end()
            row = loaded(match[0])
            if any(as_number(x) is not None for x in row.values()) and not set(row) <= _CALLBACK:
                rows.add(row)
        piece = next(pieces, "")
        text = text[end:] + piece if piece else ""
    return form


_PIECE, _AT_ONCE = 1 << 20, 4 << 20  # characters that are read at a time, and that are parsed as one document


def _pieces(rest: Iterable[str]) -> Iterator[str]:
    """Yield the rest of a text in pieces; a file is read without its lines, of which JSON has many."""
    if isinstance(rest, io.TextIOWrapper):
        while piece := rest.read(_PIECE):
            yield piece
    else:
        yield from rest


_CALLBACK = {"should_epoch_stop", "should_evaluate", "should_log", "should_save", "should_training_stop"}


def _add_json(content: Any, form: str, rows: RowCollector) -> str:
    if isinstance(content, dict):
        history = content.get("log_history")
        lists = [x for x in content.values() if isinstance(x, list)]
        if isinstance(history, list):
            rows.config.update(flat({k: v for k, v in content.items() if k != "log_history"}))
            content = history
        elif lists and len({len(x) for x in lists}) == 1 and not isinstance(next(iter(lists[0]), {}), dict):
            names = [k for k, v in content.items() if isinstance(v, list)]
            content, form = (
                [dict(zip(names, x, strict=True)) for x in zip(*lists, strict=True)],
                "JSON columns",
            )
        else:
            tables = [x for x in lists if x and all(isinstance(row, dict) for row in x)]
            rows.config.update(flat(content))
            content = max(tables, key=len) if tables else [content]
    for row in content:
        if isinstance(row, dict):
            rows.add(unnested(row))
    return form


def _separator(head: list[str]) -> str:
    """Return the separator of a table without a frame; "" where the text is something else."""
    lines = [x.rstrip("\r\n").lstrip("\ufeff") for x in head if x.strip()][:8]
    if len(lines) < 2 or lines[0].lstrip()[:1] in "{|<[" or " - " in lines[1]:
        return ""
    for mark in ("\t", ";", ",", "  ", " "):
        cells = [_cells(line, mark) for line in lines]
        width = len(cells[0])
        alike = [row for row in cells[1:] if len(row) == width]
        if width < 2 or not alike or not all(_NAME.fullmatch(x) for x in cells[0] if x) or not cells[0][0]:
            continue
        numbers = sum(_decimal(x, mark) is not None for row in alike for x in row if x)
        least = width * len(alike) if mark == " " else width * len(alike) / 3
        if len(alike) * 2 >= len(lines) - 1 and numbers >= least:
            return mark
    return ""


def _cells(line: str, mark: str) -> list[str]:
    if mark == " ":
        return line.split()
    if mark == "  ":
        return re.split(r"\s{2,}|(?<=[\d.]) (?=[-\d])", line.strip())
    return [x.strip() for x in next(csv.reader([line], delimiter=mark), [])]


def _decimal(cell: str, mark: str) -> float | None:
    """Return a cell as a number; a decimal comma is possible where the separator is another."""
    if mark != "," and re.fullmatch(r"-?\d+,\d+(?:[eE][-+]?\d+)?", cell):
        cell = cell.replace(",", ".")
    return as_number(cell)


def _add_table(lines: Iterable[str], mark: str, rows: RowCollector) -> str:
    stream = (line.lstrip("\ufeff").rstrip("\r\n") for line in lines if line.strip())
    if mark in ("  ", " "):
        table: Iterator[list[str]] = (_cells(line, mark) for line in stream)
    else:
        table = csv.reader(stream, delimiter=mark)
    names = [" ".join(x.split()) for x in next(table, [])]
    keys, note = _of_one_run(names)
    rows.notes += [note] if note else []
    odd = 0
    for cells in table:
        if len(cells) != len(names):
            odd += 1
            continue
        rows.add(
            {key: _decimal(cells[i].strip(), mark) if mark != "," else cells[i] for i, key in keys.items()}
        )
    if odd:
        rows.notes.append(f"{odd} lines have another number of cells than the header ({len(names)}).")
    web = any(name.endswith("__MIN") for name in names)
    name = {"\t": "tabs", ";": "semicolons", ",": "commas", "  ": "blanks", " ": "blanks"}[mark]
    if web:
        rows.notes.append(
            "An export of wandb's web page is sampled to some 500 to 1,500 points by default: steps and "
            "single spikes may be missing."
        )
    return "CSV export of wandb" if web else f"table separated by {name}"


def _of_one_run(names: list[str]) -> tuple[dict[int, str], str]:
    """Return the keys of the columns by place; of wandb's "run - key" those of the run with most columns."""
    runs: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        run, dash, _ = name.partition(" - ")
        if dash:
            runs.setdefault(run, []).append(i)
    if not runs:
        return {i: name for i, name in enumerate(names) if name}, ""
    run = max(runs, key=lambda x: len(runs[x]))
    note = f"The table has {len(runs)} runs; this is {run!r}." if len(runs) > 1 else ""
    return {
        i: name.removeprefix(f"{run} - ")
        for i, name in enumerate(names)
        if (i in runs[run] or " - " not in name) and not name.endswith(("__MIN", "__MAX"))
    }, note


def _add_html(text: str, rows: RowCollector) -> str:
    names: list[str] = []
    for line in re.findall(r"<tr.*?</tr>", text, re.DOTALL | re.IGNORECASE):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL | re.IGNORECASE)
        cells = [" ".join(unescape(re.sub(r"<[^>]*>", "", x)).split()) for x in cells]
        if "<th" in line.lower() or not names:
            names = cells
        elif len(cells) == len(names):
            rows.add(dict(zip(names, cells, strict=True)))
    return "HTML table of a notebook"


_NAME = re.compile(r"[^{}'\"=:]*[A-Za-z][^{}'\"=]{0,200}")
