"""One subject, or all of them: what was tried, what failed, what was lost.

    python -m tests.reliability [SUBJECT ...] [--quick] [--seed 0] [--json FILE]

`make reliability` writes the full form of every subject into the table `reliability`, in two hours.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from tests.reliability.trying import Trial

SUBJECTS = {
    "numerics": "tests.reliability.numerics",
    "mutation": "tests.reliability.mutants",
    "interruption": "tests.reliability.interruptions",
    "determinism": "tests.reliability.determinism",
    "installation": "tests.reliability.installation",
    "security": "tests.reliability.security",
    "bad input": "tests.reliability.refusals",
}


def tried(subject: str, quick: bool, seed: int) -> list[Trial]:
    """The lines of a subject, each printed when it is known."""
    lines, begin = [], time.monotonic()
    for trial in importlib.import_module(SUBJECTS[subject]).trials(quick, seed):
        lost = "" if trial.lost is None else f", {trial.lost} lost"
        took = time.monotonic() - begin
        print(f"{subject}: {trial.what}: {trial.tried} tried, {trial.failed} failed{lost} ({took:.0f} s)")
        for line in trial.said:
            print(f"    {line}")
        sys.stdout.flush()
        lines.append(trial)
    return lines


def main(arguments: list[str]) -> int:
    """Try the subjects; 0 when nothing failed and nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"one of: {', '.join(SUBJECTS)}")
    parser.add_argument("--quick", action="store_true", help="the form that make test runs")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn at random")
    parser.add_argument("--json", type=Path, help="write the lines to this file")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.subjects if name not in SUBJECTS]:
        parser.error(f"unknown subject {unknown[0]!r}, expected one of: {', '.join(SUBJECTS)}")
    rows = [
        {"subject": subject, **trial._asdict()}
        for subject in asked.subjects or SUBJECTS
        for trial in tried(subject, asked.quick, asked.seed)
    ]
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(row["failed"] or row["lost"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
