"""README.md: its audit and its diagnosis print what they show, its numbers of speed are the measured ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kl_companion.book import speed_tables
from tests.support.warm import command

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_audit_prints_what_is_shown(tmp_path: Path) -> None:
    code, shown = re.search(
        r"```python\n(import torch\nfrom kl_companion import audit\n.*?)```\n\n```text\n(.*?)```", TEXT, re.S
    ).groups()
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    mine = tmp_path / "mine.py"  # what to change in it is shown line by line
    mine.write_text(code, encoding="utf-8")
    done = subprocess.run([*command(), str(mine)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert words(done.stdout) == words(shown)


def test_the_doctor_prints_what_is_shown(tmp_path: Path) -> None:
    code, shown = re.search(
        r"```python\n(import torch\nfrom kl_companion.monitor import diagnose\n.*?)```\n\n```text\n(.*?)```",
        TEXT,
        re.S,
    ).groups()
    mine = tmp_path / "step.py"
    mine.write_text(code, encoding="utf-8")
    done = subprocess.run([*command(), str(mine)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert words(done.stdout) == words(shown)


def test_the_sentences_on_speed_are_those_of_the_table() -> None:
    for sentence in speed_tables.sentences(speed_tables.measured()):
        assert " ".join(words(sentence)) in " ".join(words(TEXT))


def words(text: str) -> list[str]:
    """Lines are broken to be read."""
    return text.split()


def test_pictures_exist_have_words_and_are_small() -> None:
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", TEXT)
    assert pictures
    assert all(len(words) > 15 for words, _ in pictures)
    sizes = {path: (ROOT / path).stat().st_size for _, path in pictures}
    assert sum(sizes.values()) <= 300_000, sizes


def test_every_target_of_make_is_named() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert phony is not None
    assert [name for name in phony[1].split() if name != "help" and f"make {name}" not in TEXT] == []
