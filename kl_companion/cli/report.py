"""`kl-companion report`: a log, or a monitored run, with what its KL numbers are and what is wrong."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kl_companion.monitor.logs import LogReport

HELP = "a log, or a monitored run: what its KL numbers are, and what is wrong"
PAGE = "kl_report.html"
WIDTH = 100
_LOG_OPTIONS = (
    "framework",
    "release",
    "beta",
    "estimator",
    "answers",
    "group",
    "compare",
    "fail_on",
    "details",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.description = (
        "Read a log that a trainer wrote (trainer_state.json, a console, JSON, CSV or a pasted table, "
        "TensorBoard, wandb, trackio, MLflow; by content, '-' for standard input) and print what its KL "
        "numbers are, what is impossible in them, what the KL costs beside the reward, and what would decide "
        "the rest. Of the folder of a monitored run (kl_monitor.csv) it writes one HTML page, too."
    )
    parser.add_argument("log", metavar="LOG", nargs="?", help="a file, a folder, or - for standard input")
    parser.add_argument("--framework", default="", metavar="NAME", help="instead of the one told by the keys")
    parser.add_argument(
        "--release", default="", metavar="X.Y", help="release of the framework, which decides"
    )
    parser.add_argument(
        "--beta", type=float, metavar="X", help="coefficient of the KL, where the log has none"
    )
    parser.add_argument(
        "--estimator", default="", choices=("K1", "K2", "K3"), help="of KLs whose keys no framework has"
    )
    parser.add_argument("--answers", type=float, metavar="N", help="answers that one row averages")
    parser.add_argument("--group", type=float, metavar="N", help="answers to one prompt")
    parser.add_argument("--compare", metavar="LOG", help="a second log, side by side")
    parser.add_argument("--details", action="store_true", help="what every finding means")
    parser.add_argument(
        "--fail-on", metavar="LEVEL", help="status 1 at wrong, at attention or worse, or at a topic of --json"
    )
    parser.add_argument(
        "--show-metrics", nargs="*", metavar="WORD", help="the keys that are known, of those with all words"
    )
    parser.add_argument("--output", metavar="FILE", help=f"page of a monitored run; LOG/{PAGE} by default")
    parser.add_argument(
        "--json", action="store_true", help="print the findings as data; write a page only with --output"
    )


def run(args: argparse.Namespace) -> int:
    """Print what the log says; 1 where --fail-on asks for it."""
    if args.show_metrics is not None:
        from kl_companion.monitor.logs.conclusions import metric_lines

        print("\n".join(metric_lines(args.show_metrics)))
        return 0
    if args.log is None:
        raise ValueError("no LOG, expected a file, a folder, or - for standard input")
    folder = Path(args.log)
    if any((folder / name).exists() for name in ("kl_monitor.csv", "kl_monitor_tokens.jsonl")):
        return _run_of_a_monitor(args, folder)
    return _run_of_a_log(args)


def _run_of_a_log(args: argparse.Namespace) -> int:
    from kl_companion.auditing.judgment.card import card
    from kl_companion.cli.audit import colored
    from kl_companion.cli.printing import refuse_options
    from kl_companion.monitor.logs import LogOptions, log_report

    refuse_options(args, args.log, ("output",), "a page is of a monitored run")
    for name in ("beta", "answers", "group"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < float("inf"):
            raise ValueError(f"--{name} is {value}, expected a number from 0")
    options = LogOptions(args.framework, args.release, args.beta, args.estimator, args.answers, args.group)
    report = log_report(args.log, options)
    if args.compare is not None:
        return _compared(args, report, log_report(args.compare, options))
    if args.json:
        print(json.dumps(report.to_dict(), indent=2, allow_nan=False))
    else:
        print(card(report, details=args.details, color=colored(sys.stdout), height=None))
    return _status(args, report)


def _compared(args: argparse.Namespace, left: LogReport, right: LogReport) -> int:
    from kl_companion.monitor.logs.comparison import comparison_data, comparison_text

    names = (args.log, args.compare)
    if args.json:
        print(json.dumps(comparison_data(left, right, names), indent=2, allow_nan=False))
    else:
        print(comparison_text(left, right, names))
    return max(_status(args, left), _status(args, right))


def _status(args: argparse.Namespace, report: LogReport) -> int:
    if args.fail_on is None:
        return 0
    from kl_companion.monitor.logs.sentences import check_condition

    check_condition(args.fail_on)
    return int(report.fails(args.fail_on))


def _run_of_a_monitor(args: argparse.Namespace, folder: Path) -> int:
    """Print the verdicts on a monitored run, and write the page."""
    from kl_companion.cli.printing import refuse_options
    from kl_companion.files import write_atomically
    from kl_companion.monitor.report import headline, read_run, report_html, run_verdicts, worst

    refuse_options(
        args, args.log, [x for x in _LOG_OPTIONS if getattr(args, x)], "a monitored run knows them"
    )
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
