"""Foreign code and other hosts: what was tried against them, and which pinned packages were looked up."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.installing import advisories
from tests.installing.trying import ROOT
from tests.reliability.trying import Trial, run_tests
from tests.support.site import pages

# what is tried, and the tests that try it, which `make test` runs as well
TESTS = {
    "models, tables and files of others: no code runs unasked": ["tests/house/test_security.py"],
    "manifests: no name or link leads out of the folder": [
        "tests/book/tables/test_manifest.py",
        "-k",
        "path or stands_in or folder_only or link",
    ],
}
SITE = ROOT / "_build" / "html"


def trials(quick: bool, seed: int) -> Iterator[Trial]:
    """A line per theme; quick leaves out the pages and the advisories. The seed plays no part."""
    for what, arguments in TESTS.items():
        yield passed(what, arguments)
    if not quick:
        yield loads(SITE)
        yield advised(list(advisories.answers()))


def passed(what: str, arguments: list[str]) -> Trial:
    """Run some tests and count them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.xml"
        run_tests([f"--junitxml={file}", *arguments], file)
        cases = list(ElementTree.parse(file).iter("testcase"))
    ran = [case for case in cases if case.find("skipped") is None]
    bad = [case for case in ran if case.find("failure") is not None or case.find("error") is not None]
    said = tuple(f"{case.get('classname')}::{case.get('name')}" for case in bad)
    return Trial(what, len(ran), len(bad), said=said)


def loads(site: Path) -> Trial:
    """Every page of the built book: does it load anything from another host?"""
    if not (site / "index.html").is_file():
        raise RuntimeError("no built book: run `make book` first")
    found, count = pages.outside_loads(site), len(list(site.rglob("*.html")))
    outside = {line.partition(":")[0] for line in found}
    return Trial("pages of the book: none loads from another host", count, len(outside), said=tuple(found))


def advised(answers: list[tuple[str, dict[str, Any] | str]]) -> Trial:
    """The pinned packages that were looked up; those that could not be are said, and not counted as tried."""
    tried, failed, said = 0, 0, []
    for name, answer in answers:
        if isinstance(answer, str):
            said.append(f"{name}: NOT LOOKED UP: {answer}")
            continue
        asked = [d for d in answer["dependencies"] if "skip_reason" not in d]
        tried += len(asked)
        failed += sum(bool(d.get("vulns")) for d in asked)
        said += [f"{name}: {line}" for line in advisories.verdict(answer)[1]]
    return Trial("pinned packages looked up: no known vulnerability", tried, failed, said=tuple(said))
