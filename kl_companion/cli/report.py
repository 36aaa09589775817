"""`kl-companion report`: a monitored run as one page, with what is wrong in it."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path

HELP = "a monitored run: what its KL numbers are, and what is wrong"
PAGE = "kl_report.html"
WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.description = (
        "Read the folder of a monitored run (kl_monitor.csv, kl_monitor_tokens.jsonl, kl_monitor.json), "
        "print what was found, the gravest first, and write one HTML page with verdicts, curves and tables. "
        "It loads nothing from elsewhere. The run may still be going on."
    )
    parser.add_argument("run_folder", metavar="RUN_FOLDER", help="the folder into which the monitor wrote")
    parser.add_argument("--output", metavar="FILE", help=f"where the page goes; RUN_FOLDER/{PAGE} by default")
    parser.add_argument(
        "--json", action="store_true", help="print the verdicts as data; write a page only with --output"
    )


def run(args: argparse.Namespace) -> int:
    """Print the verdicts and write the page."""
    from kl_companion.files import write_atomically
    from kl_companion.monitor.report import headline, read_run, report_html, run_verdicts, worst

    folder = Path(args.run_folder)
    seen = read_run(folder)
    verdicts = run_verdicts(seen)
    output = Path(args.output) if args.output else None if args.json else folder / PAGE
    if output is not None:
        if output.is_dir():
            raise ValueError(f"--output is the folder {str(output)!r}, expected a file")
        write_atomically(output, report_html(seen, name=folder.resolve().name))
    said = headline(seen, verdicts)
    if args.json:
        data = {
            "report": "monitored run",
            "step": seen.last.step,
            "observations": len(seen.observations),
            "level": worst(verdicts),
            "headline": said,
            "cut": seen.cut,
            "verdicts": [verdict._asdict() for verdict in verdicts],
            "page": None if output is None else str(output),
        }
        print(json.dumps(data, indent=2, allow_nan=False))
        return 0
    if worst(verdicts) == "fine":
        print(textwrap.fill(said, WIDTH))
    for verdict in verdicts:
        print(textwrap.fill(f"{verdict.level}: {verdict.says}", WIDTH, subsequent_indent="  "))
        if verdict.todo:
            print(textwrap.fill(verdict.todo, WIDTH, initial_indent="  -> ", subsequent_indent="     "))
    print(f"The page: {output}")
    return 0
