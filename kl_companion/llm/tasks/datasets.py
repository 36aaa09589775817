"""Problems that you bring: a file of questions and worked answers, or a name for the `datasets` library."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from kl_companion.checks import check_choice
from kl_companion.llm.optional import llm_extra
from kl_companion.llm.tasks.answers import Checker, Style, extract_answer
from kl_companion.llm.tasks.base import Example, Task, choose, drawing, whole
from kl_companion.llm.tasks.canonical import canonical

Row = dict[str, Any]

FIELDS = {"gsm8k": (("question",), ("answer",)), "math": (("problem",), ("solution", "answer"))}
OTHERS = (("question", "problem", "prompt"), ("answer", "solution"))
INSTRUCTIONS = {
    "gsm8k": "Reason step by step, then write the final number on a line of its own after ####.",
    "math": "Reason step by step and put the final answer in \\boxed{}.",
}


def data(
    path: str | Path,
    style: Literal["gsm8k", "math"] = "gsm8k",
    *,
    question: str | None = None,
    answer: str | None = None,
    out: str | Path | None = None,
    levels: Sequence[int] | None = None,
    out_levels: Sequence[int] | None = None,
    split: str = "train",
    config: str | None = None,
    instruction: str | None = None,
    reads: Style | None = None,
    max_new_tokens: int = 256,
    chat: bool = True,
) -> Task:
    r"""A task from questions with worked answers.

    Args:
        path: A ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file, a folder that `datasets` can load,
            or a data set's name for that library.
        style: ``"gsm8k"``: the answer follows ``####`` in field ``answer``; ``"math"``: it is the last
            ``\boxed`` in field ``solution``. A bare number is its own answer; in ``"math"`` so is one line
            without a box in any other field than ``solution``.
        question: Field of the question; None: ``question`` or ``problem``, whichever there is.
        answer: Field of the worked answer; None: ``answer`` or ``solution``.
        out: Where problems out of domain come from, as ``path``.
        levels: Keep these values of the field ``level`` (2 or "Level 2") only.
        out_levels: Levels out of domain, from ``out`` where it is given, else others of ``path``.
        split: Of a named data set.
        config: Of a named data set.
        instruction: Put after every question; None: one that fits the style; "": none.
        reads: How a completion states its answer, see `extract_answer`; None: as the style says.
        max_new_tokens: Of a completion.
        chat: Whether prompts go through the chat template.

    Returns:
        A `Task` whose reward is a `Checker`: it counts the completions that state no answer.
        ``draw`` gives a random subset, without repetition while there are enough problems.

    Raises:
        FileNotFoundError: no such file.
        ImportError: a data set's name was given and `datasets` is not installed.
        ValueError: unknown style or kind of file, text that cannot be parsed (with its line), no rows, a
            missing field (the fields that are there are named), or an answer that cannot be read (the
            first such row is named).
    """
    check_choice("style", style, FIELDS)
    whole("max_new_tokens", max_new_tokens, 1)
    both = sorted(set(levels or ()) & set(out_levels or ()))
    if both and out is None:
        raise ValueError(f"level {both[0]} is in levels and in out_levels, expected others out of domain")
    instruction = INSTRUCTIONS[style] if instruction is None else instruction
    end = f"\n{instruction}" if instruction else ""

    def read(source: str | Path, kept: Sequence[int] | None) -> tuple[list[Example], list[str]]:
        rows = read_rows(source, split=split, config=config)
        return _examples(rows, str(source), style, question, answer, end, kept)

    examples, solutions = read(path, levels)
    outside = read(path if out is None else out, out_levels)[0] if out or out_levels else []

    def corpus(n: int, generator: torch.Generator) -> list[tuple[str, str]]:
        return [(examples[i].prompt, solutions[i]) for i in choose(len(examples), n, generator)]

    return Task(
        name="data",
        alphabet=None,
        max_new_tokens=max_new_tokens,
        draw=drawing(examples),
        reward=Checker(reads or style),
        draw_out=drawing(outside) if outside else None,
        corpus=corpus,
        ends=True,
        chat=chat,
    )


def read_rows(source: str | Path, *, split: str = "train", config: str | None = None) -> list[Row]:
    """The rows of a file, or of a data set by name.

    Raises:
        FileNotFoundError, ImportError, ValueError: see `data`.
    """
    path = Path(source)
    if path.suffix.lower() in READERS:
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist or is not a file")
        rows = READERS[path.suffix.lower()](path)
    elif path.is_file():
        raise ValueError(f"{path} is a {path.suffix or 'nameless'} file, expected {', '.join(READERS)}")
    else:
        loader = llm_extra("datasets")
        saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
        found = (
            loader.load_from_disk(str(path))
            if saved
            else loader.load_dataset(str(source), config, split=split)
        )
        if isinstance(found, dict):
            check_choice("split", split, found)
            found = found[split]
        rows = found.to_list()
    if not rows:
        raise ValueError(f"{source} holds no rows")
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"{source}: row {place} is a {type(row).__name__}, expected named fields")
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _json_lines(path: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: {error.msg}, expected one JSON object") from None
    return rows


def _json(path: Path) -> list[Any]:
    text = _text(path)
    if not text.strip():
        return []
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}, expected JSON") from None
    if isinstance(rows, dict):  # {"data": [...]}
        lists = [value for value in rows.values() if isinstance(value, list)]
        rows = lists[0] if len(lists) == 1 else rows
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds a JSON {type(rows).__name__}, expected a list of objects")
    return rows


def _csv(path: Path) -> list[Any]:
    import pandas as pd

    try:  # as text: "007" and "1.50" stay what they are
        return pd.read_csv(io.StringIO(_text(path)), dtype=str, keep_default_na=False).to_dict("records")
    except pd.errors.EmptyDataError:
        return []
    except pd.errors.ParserError as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None


def _parquet(path: Path) -> list[Any]:
    import pandas as pd

    try:
        return pd.read_parquet(path).to_dict("records")
    except ValueError as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from None


READERS: dict[str, Callable[[Path], list[Any]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _examples(
    rows: list[Row],
    source: str,
    style: Literal["gsm8k", "math"],
    question: str | None,
    answer: str | None,
    end: str,
    levels: Sequence[int] | None,
) -> tuple[list[Example], list[str]]:
    """Examples and worked answers of the rows of these levels."""
    asked = _field(rows[0], source, question, FIELDS[style][0] + OTHERS[0], "question")
    given = _field(rows[0], source, answer, FIELDS[style][1] + OTHERS[1], "answer")
    examples, solutions = [], []
    for place, row in enumerate(rows):
        for field in (asked, given):
            if row.get(field) is None or not str(row[field]).strip():
                raise ValueError(f"{source}: row {place} has no {field!r}, only {', '.join(map(str, row))}")
        level = _level(row, place, source, levels is not None)
        if levels is not None and level not in levels:
            continue
        solution = str(row[given])
        found = _answer(solution, style, given)
        if found is None:
            raise ValueError(
                f"{source}: the answer in row {place} cannot be read: {solution[:80]!r}, expected "
                + ("a number after ####" if style == "gsm8k" else "a \\boxed{} answer")
            )
        examples.append(Example(str(row[asked]) + end, found, level))
        solutions.append(solution)
    if not examples:
        raise ValueError(f"{source} holds no row of levels {list(levels or ())}")
    return examples, solutions


def _field(row: Row, source: str, wanted: str | None, usual: Sequence[str], what: str) -> str:
    names = [wanted] if wanted is not None else list(dict.fromkeys(usual))
    for name in names:
        if name in row:
            return name
    raise ValueError(
        f"{source} has no field for the {what}: expected {' or '.join(map(repr, names))}, "
        f"found {', '.join(map(repr, row))}"
    )


def _level(row: Row, place: int, source: str, needed: bool) -> int:
    digits = re.search(r"[0-9]+", str(row.get("level", "")))
    if digits is None and needed:
        raise ValueError(f"{source}: row {place} has no level, and levels were asked for")
    return int(digits[0]) if digits else 0


def _answer(solution: str, style: Style, field: str) -> str | None:
    """The answer that an entry states or is."""
    found = extract_answer(solution, style)
    if found is None:
        form, line = canonical(solution), "\n" not in solution.strip()
        is_answer = style == "math" and field != "solution" and line
        found = solution.strip() if is_answer or (form is not None and form[0] == "number") else None
    return found if found is not None and canonical(found) is not None else None
