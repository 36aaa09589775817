"""Rows of a console, an issue or a notebook, line by line: each line is told by its own form."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import deque
from collections.abc import Iterable
from typing import Any

from kl_companion.monitor.logs.rows import RowCollector, as_number

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[[0-9;]+m")
FLAT_OBJECT = re.compile(r"\{[^{}]*\}")
_VERL = re.compile(r"step:(\d+) - ")
_COUNTER = re.compile(r"\b(?:Step|step|Global step|rollout|Rollout|Iteration|Episode)\s+(\d+)(?:/\d+)?\b")
_BULLET = re.compile(r"^[\s\-*•│|]*([A-Za-z][\w /.()]*?)\s*[:=]\s*(-?[\d.]+(?:[eE][-+]?\d+)?)\s*%?\s*\|?$")
_SETTING = re.compile(
    r"""['"]?(\w*(?:beta|kl_coeff?\w*|KL coef|num_generations|top_p|top_k|temperature|n_samples\w*"""
    r"""|batch_size|kl_penalty|kl_loss_type|kl_estimator|vocab_size|logging_steps|max_completion_length"""
    r"""|Rollouts per prompt|learning_rate|lr))['"]?\s*[:=]\s*['"]?([-+\w.]+)['"]?"""
)
_PROSE = re.compile(
    r"\b(K1|K2|K3|beta|lr)\b(?:[^|,;.\d\n-]{0,40}:)?\s*=?\s*(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE
)
_MEAN_MAX = re.compile(r"\bkl (mean|max)\s*[:=]?\s*(-?\d[\d.]*(?:e[-+]?\d+)?)", re.IGNORECASE)
_BAR = re.compile(r"\d+/(\d+) \[\d")
_POSTFIX = re.compile(r"([A-Za-z][\w/]*)=(-?[\d.]+(?:e[-+]?\d+)?)(?=[,\]\s])")
_REPEATS = 16  # rows back in which another process may have printed the same one
CUT_AT = 4096  # characters after which wandb's output.log cuts a line


def loaded(text: str) -> dict[str, Any]:
    """Return a JSON object or a dictionary as Python prints it; {} where it is neither."""
    plain = text
    if "'" in text and '"' not in text:  # ten times as fast as Python's own parser
        plain = _BARE.sub(lambda match: f"{match[1]}{_WORDS[match[2].lower()]}", text.replace("'", '"'))
    try:
        content = json.loads(plain)
    except ValueError:
        content = _literal(text)
    return content if isinstance(content, dict) else {}


_CALL = re.compile(r"\b(?:np|numpy|torch)\.\w+\(|\btensor\(|\barray\(|,\s*(?:dtype|device)=[^,)}]*")
_BARE = re.compile(r"(?<=[:\s(])(-?)(nan|inf|True|False|None)(?=\s*[,})])", re.IGNORECASE)
_WORDS = {"nan": "NaN", "inf": "Infinity", "true": "true", "false": "false", "none": "null"}


def _literal(text: str) -> Any:
    plain = text
    if "(" in text:
        plain = _CALL.sub("", text)
        plain = plain.replace(")", "") if plain.count(")") != plain.count("(") else plain
    plain = re.sub(r"(?<=[:\s])-?(?:nan|inf)(?=\s*[,}])", r"'\g<0>'", plain)
    try:
        return ast.literal_eval(plain)
    except (ValueError, SyntaxError, MemoryError):
        return None


def unnested(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the entries of its nested objects: verl's FileLogger writes them under "data"."""
    inner = row.get("data") or row.get("metrics")
    if isinstance(inner, dict):
        return {**{k: v for k, v in row.items() if not isinstance(v, dict)}, **inner}
    return row


class ConsoleReader:
    """Lines of a console, an issue or a notebook, each told by its own form."""

    def __init__(self, rows: RowCollector) -> None:
        self.rows = rows
        self.forms: dict[str, int] = {}
        self.recent: deque[str] = deque(maxlen=_REPEATS)
        self.repeated = self.cut = 0
        self.names: list[str] = []
        self.bullets: dict[str, Any] = {}
        self.bar = 0

    def add(self, lines: Iterable[str]) -> str:
        """Add every line, and return the form of most rows."""
        for line in lines:
            self._line(line)
        self._flush()
        if self.repeated:
            self.rows.notes.append(
                f"{self.repeated} rows are printed again by other processes; one of each counts."
            )
        if self.cut:
            self.rows.notes.append(
                f"Lines that are cut: {self.cut} (wandb's output.log ends one after {CUT_AT:,} characters). "
                "Their last key is left out, and the keys behind it are missing in exactly these rows."
            )
        if self.bar > 2 * self.rows.count > 2 and "step" not in self.rows.columns:
            self.rows.notes.append(
                f"The progress bar counts to {self.bar:,}: with {self.rows.count} rows a row is about "
                f"{self.bar / self.rows.count:.0f} steps. The bar beside a row is that of its printing, not "
                "its step."
            )
        if not self.forms:
            return "text"
        return max(self.forms, key=lambda name: self.forms[name])

    def _row(self, form: str, row: dict[str, Any]) -> None:
        self.forms[form] = self.forms.get(form, 0) + 1
        self.rows.add(row)

    def _line(self, line: str) -> None:
        if "\x1b[" in line or "[3" in line or "[0m" in line:
            line = _ANSI.sub("", line)
        if "step:" in line and (match := _VERL.search(line)):
            self._verl(match[1], line[match.end() :].rstrip())
        elif "{" in line and "}" in line and ":" in line:
            self._objects(line)
        elif " | " in line and "it/s]" not in line and "s/it]" not in line and self._pipes(line):
            pass
        else:
            self._words(line)

    def _verl(self, step: str, text: str) -> None:
        if self._repeats(f"{step} {text}"):
            return
        parts = [part.rpartition(":") for part in text.split(" - ")]
        if not parts[-1][1] or not parts[-1][2].strip():
            self.cut += 1
            parts.pop()
        self.forms["verl's console"] = self.forms.get("verl's console", 0) + 1
        keys = ("step", *[key for key, _, _ in parts])
        values = [step, *[value for _, _, value in parts]]
        try:
            numbers = [float(x) if x[-1:] != ")" else float(x[x.find("(") + 1 : -1]) for x in values]
        except ValueError:
            self.rows.add(dict(zip(keys, values, strict=True)))
            return
        if len(set(keys)) == len(keys):
            self.rows.add_values(keys, numbers)
        else:
            self.rows.add(dict(zip(keys, numbers, strict=True)))

    def _repeats(self, text: str) -> bool:
        if text in self.recent:
            self.repeated += 1
            return True
        self.recent.append(text)
        return False

    def _objects(self, line: str) -> None:
        if "it]" in line or "/it" in line:
            self.bar = max([self.bar, *(int(x) for x in _BAR.findall(line))])
        stripped = line.strip()
        if stripped.startswith('{"') and stripped.endswith("}"):
            row = loaded(stripped)
            if "log_history" in row or not row:
                return
            self._row("lines of JSON", unnested(row))
            return
        for match in FLAT_OBJECT.finditer(line):
            row = loaded(match[0])
            numbers = sum(as_number(x) is not None for x in row.values())
            if numbers < 2 or (numbers == len(row) and not any(isinstance(x, float) for x in row.values())):
                self._settings(match[0])
                continue
            if self._repeats(match[0]):
                continue
            counter = _COUNTER.search(line[: match.start()][-40:])
            known = any(key in row for key in ("step", "train/step", "global_step"))
            self._row(
                "console of Python dictionaries",
                {**({"step": counter[1]} if counter and not known else {}), **row},
            )

    def _pipes(self, line: str) -> bool:
        """Add a row of a Markdown table, or of "Step 3 | Loss: 0.1 | ..."; False where it is neither."""
        cells = [" ".join(x.split()) for x in line.strip().strip("|").split("|")]
        pairs = [x.partition(":") for x in cells if ":" in x]
        counter = _COUNTER.search(cells[0])
        if counter and len(pairs) >= 2:
            numbers = {k.strip(): (_NUMBERS.match(v.strip()) or [""])[0] for k, _, v in pairs}
            self._row("console of Step | key: value", {"step": counter[1], **numbers})
            return True
        if all(re.fullmatch(r":?-+:?", x) for x in cells):
            return True
        numbers_only = [_span(x) for x in cells]
        if len(cells) == len(self.names) and any(x is not None and not math.isnan(x) for x in numbers_only):
            self._row("Markdown table", dict(zip(self.names, numbers_only, strict=True)))
            return True
        self.names = cells
        return False

    def _words(self, line: str) -> None:
        """Collect settings, and the bullets of consoles that print a block per step."""
        if ("it]" in line or "it/s" in line or "s/it" in line) and "|" in line:
            postfix = dict(_POSTFIX.findall(line.rpartition("|")[2]))
            if len(postfix) >= 3 and not self._repeats(str(postfix)):
                self._row("progress bar", postfix)
            self.bar = max([self.bar, *(int(x) for x in _BAR.findall(line))])
        if ":" not in line and "=" not in line and "K" not in line and "kl" not in line:
            return
        counter = _COUNTER.search(line)
        if counter and "Setting" not in line and len(line) < 200:
            self._flush()
            self.bullets = {"step": counter[1]}
        match = _BULLET.match(line.rstrip())
        if match and "step" in self.bullets and len(line) < 200:
            self.bullets[match[1].strip()] = match[2]
        self._settings(line)
        for key, value in _PROSE.findall(line):
            self.rows.config.setdefault(key.lower(), float(value))
        for key, value in _MEAN_MAX.findall(line):
            self.rows.config.setdefault(f"kl {key.lower()}", float(value.rstrip(".")))

    def _settings(self, text: str) -> None:
        if len(text) > 10_000:
            return
        for key, value in _SETTING.findall(text):
            number = as_number(value)
            self.rows.config.setdefault(key, value if number is None else number)

    def _flush(self) -> None:
        if len(self.bullets) > 2:
            self._row("console of bullets", self.bullets)
        self.bullets = {}


_NUMBERS = re.compile(r"-?[\d.]+(?:[eE][-+]?\d+)?")


def _span(cell: str) -> float | None:
    """Return a cell as a number; of steps "31-50" the last."""
    number = as_number(cell)
    if number is None and (match := re.fullmatch(r"(\d+)\s*[-–]\s*(\d+)", cell)):
        return float(match[2])
    return number
