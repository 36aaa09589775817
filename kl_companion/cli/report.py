"""`kl-companion report`: a log, or a monitored run, with what its KL numbers are and what is wrong."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kl_companion.monitor.logs import LogReport

HELP = "a log, or a monitored run: what its KL numbers are, and what is wrong"
PAGE = "kl_report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.description = (
        "Read a log that a trainer wrote (trainer_state.json, a console, JSON, CSV or a pasted table, "
        "TensorBoard, wandb, trackio, MLflow; by content, '-' for standard input) or the folder of a "
        "monitored run, and print what its KL numbers are, what is impossible in them, what the KL costs "
        "beside the reward, and what would decide the rest. --output writes the same as one HTML page with "
        "curves, which a monitored run gets without it, too."
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
    parser.add_argument(
        "--compare", metavar="LOG", help="a second log, side by side; with --output in one figure"
    )
    parser.add_argument("--details", action="store_true", help="what every finding means")
    parser.add_argument(
        "--fail-on", metavar="LEVEL", help="status 1 at wrong, at attention or worse, or at a topic of --json"
    )
    parser.add_argument(
        "--show-metrics", nargs="*", metavar="WORD", help="the keys that are known, of those with all words"
    )
    parser.add_argument("--output", metavar="FILE", help=f"an HTML page; of a monitored run LOG/{PAGE}")
    parser.add_argument(
        "--json", action="store_true", help="print the findings as data; write a page only with --output"
    )


def run(args: argparse.Namespace) -> int:
    """Print what the log says; 1 where --fail-on asks for it."""
    from kl_companion.monitor.logs import LogOptions, log_report
    from kl_companion.monitor.logs.sentences import check_condition

    if args.show_metrics is not None:
        from kl_companion.monitor.logs.descriptions import metric_lines

        print("\n".join(metric_lines(args.show_metrics)))
        return 0
    if args.log is None:
        raise ValueError("no LOG, expected a file, a folder, or - for standard input")
    for name in ("beta", "answers", "group"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < float("inf"):
            raise ValueError(f"--{name} is {value}, expected a number from 0")
    if args.fail_on is not None:
        check_condition(args.fail_on)
    options = LogOptions(args.framework, args.release, args.beta, args.estimator, args.answers, args.group)
    reports = [log_report(log, options) for log in (args.log, args.compare) if log is not None]
    output = _written(args, reports)
    _print(args, reports, output)
    return int(args.fail_on is not None and any(report.fails(args.fail_on) for report in reports))


def _names(args: argparse.Namespace) -> tuple[str, str]:
    """Return the names of two logs, without their folders where that tells them apart."""
    short = Path(args.log).name, Path(args.compare or "").name
    return short if short[0] != short[1] else (args.log, args.compare or "")


def _print(args: argparse.Namespace, reports: list[LogReport], output: Path | None) -> None:
    """Print one report, or two side by side, as text or as data."""
    from kl_companion.auditing.judgment.card import card
    from kl_companion.cli.audit import colored
    from kl_companion.monitor.logs.comparison import comparison_data, comparison_text

    first, names = reports[0], _names(args)
    if args.json:
        data = first.to_dict() if len(reports) == 1 else comparison_data(first, reports[1], names)
        print(
            json.dumps({**data, "page": None if output is None else str(output)}, indent=2, allow_nan=False)
        )
        return
    if len(reports) == 1:
        print(card(first, details=args.details, color=colored(sys.stdout), height=None))
    else:
        print(comparison_text(first, reports[1], names))
    if output is not None:
        print(f"The page: {output}")


def _written(args: argparse.Namespace, reports: list[LogReport]) -> Path | None:
    """Write the page, and return where it is; None where none was asked for."""
    folder = Path(args.log)
    own = reports[0].quantities.log.recorded is not None and len(reports) == 1 and not args.json
    output = Path(args.output) if args.output else folder / PAGE if own else None
    if output is None:
        return None
    if output.is_dir():
        raise ValueError(f"--output is the folder {str(output)!r}, expected a file")
    from kl_companion.files import write_atomically
    from kl_companion.monitor.report.page import comparison_html, log_html

    if len(reports) == 1:
        page = log_html(reports[0], name=folder.resolve().name)
    else:
        page = comparison_html(reports[0], reports[1], _names(args))
    write_atomically(output, page)
    return output
