"""README.md is short; it and the page on using the package print what they show and what was measured."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kl_book import speed_tables
from tests.support.warm import command

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "book" / "using.md").read_text(encoding="utf-8")


def test_it_is_short_and_its_links_lead_somewhere() -> None:
    assert len(TEXT.splitlines()) <= 120
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) >= 10
    assert [link for link in links if not (ROOT / link).exists()] == []


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
        PAGE,
        re.S,
    ).groups()
    mine = tmp_path / "step.py"
    mine.write_text(code, encoding="utf-8")
    done = subprocess.run([*command(), str(mine)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert words(done.stdout) == words(shown)


def test_the_sentences_on_speed_are_those_of_the_table() -> None:
    for sentence in speed_tables.sentences(speed_tables.measured()):
        assert " ".join(words(sentence)) in " ".join(words(PAGE))


def words(text: str) -> list[str]:
    """Lines are broken to be read."""
    return text.split()


def test_pictures_exist_have_words_and_are_small() -> None:
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", TEXT)
    assert pictures
    assert all(len(words) > 15 for words, _ in pictures)
    sizes = {path: (ROOT / path).stat().st_size for _, path in pictures}
    assert sum(sizes.values()) <= 300_000, sizes


def test_make_alone_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony is not None
    told = re.findall(r'^\t@echo "make ([\w-]+) ', makefile, re.M)
    assert sorted(told) == sorted(name for name in phony[1].split() if name != "help")
    assert "`make` alone lists" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
