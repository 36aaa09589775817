"""kl-companion: list, derive, audit, claims and table from the command line."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kl_companion.checks import unknown_name

TOPICS = ("estimators", "divergences", "objectives", "frameworks", "tables", "claims")


def _row(*cells: str) -> None:
    print("  ".join(f"{c:<28}" for c in cells[:-1]) + "  " + cells[-1])


def list_names(topic: str) -> int:
    """Print what is registered."""
    if topic == "tables":
        from kl_companion import tables

        for name in tables.names():
            print(name)
    elif topic == "estimators":
        from kl_companion.estimators import ESTIMATORS

        for e in ESTIMATORS.values():
            _row(e.name, e.target, e.source)
    elif topic == "divergences":
        from kl_companion.divergences import DIVERGENCES

        for d in DIVERGENCES.values():
            _row(d.name, str(d.f), d.source)
    elif topic == "frameworks":
        from kl_companion.frameworks.printing import print_list

        print_list()
    elif topic == "claims":
        from kl_companion.claims import register

        for row in register().values():
            _row(row.id, f"{row.source}, {row.location}", row.statement)
    else:
        from kl_companion.auditing.objectives import objectives

        for o in objectives(off_policy=True).values():
            _row(o.name, o.words)
    return 0


def derive_split(entry: Any, *, latex: bool) -> int:
    """Print what head and tail of a top-k estimator are, and what they leave behind together."""
    import sympy

    from kl_companion.theory import calculus, masked

    form, divergence = entry.fn.form, entry.fn.divergence
    show: Callable[[sympy.Expr], str] = sympy.latex if latex else str
    head = masked.head_entry(divergence, form)
    _row("head, per P", show(masked.head_value(head)))
    _row("its weight h(w)", show(masked.head_weight(head)))
    if not entry.fn.tail:
        _row("tail", "none: what stands outside the head is missing")
        return 0
    _row("tail, value(w)", show(calculus.value(entry.fn.sampled)))
    _row("its weight h(w)", show(calculus.gradient_weight(entry.fn.sampled)))
    left = masked.split(head, entry.fn.sampled, divergence)
    _row("left in the value", f"{left.value} x (P(S) - Q(S))")
    _row("left in the gradient", f"{left.gradient} x grad P(S)")
    return 0


def derive(name: str, placement: str, *, latex: bool) -> int:
    """Print value, gradient weight, implied f and its second derivative."""
    import sympy

    from kl_companion.divergences import T
    from kl_companion.estimators import get_estimator
    from kl_companion.theory import calculus

    entry = get_estimator(name)
    if entry.inputs == "top_k" and placement == "loss":
        return derive_split(entry, latex=latex)
    weight = calculus.gradient_weight(name, placement)  # type: ignore[arg-type]
    f = calculus.implied_f(weight)
    show: Callable[[sympy.Expr], str] = sympy.latex if latex else str
    _row("value(w)", show(calculus.value(name)))
    _row(f"weight h(w) in the {placement}", show(weight))
    _row("implied f(t), t = 1/w", show(f))
    _row("f''(t)", show(sympy.factor(sympy.simplify(sympy.diff(f, T, 2)))))
    match = calculus.match_divergence(f)
    if match is None:
        said = "no sum of two registered divergences"
    else:
        said = " + ".join(f"{c} x {n}" for n, c in match.items()).replace("+ -", "- ") or "zero"
    _row("which is", said)
    return 0


def load_function(target: str) -> Callable[..., Any]:
    """The function of ``path/file.py:name``; ValueError says what could not be found or imported."""
    path_text, _, name = target.rpartition(":")
    path = Path(path_text)
    if not path.is_file():
        raise ValueError(f"{path_text!r} is not a file, expected path/file.py:function")
    label = f"_reader_{path.stem}"  # its own name, so that a file called torch.py hides nothing
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path_text!r} cannot be imported, expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # dataclasses and pickles look their module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the reader's own code: whatever it raises is the answer
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"importing {path_text} failed with {said}, expected a file that runs") from error
    finally:
        sys.path.pop(0)
    functions = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == label]
    if not callable(getattr(module, name, None)):
        raise unknown_name(f"function of {path_text}:", name, functions or ["(none)"])
    return getattr(module, name)


def _progress(*, quiet: bool = False) -> Callable[[str], None]:
    """Say how far it is, on stderr, once two seconds have passed."""
    start = time.monotonic()

    def tell(line: str) -> None:
        if not quiet and time.monotonic() - start > 2:
            print(f"  {line}", file=sys.stderr, flush=True)

    return tell


def run_audit(args: argparse.Namespace) -> int:
    """Print the verdict; 1 when ``--want`` is not met."""
    import torch

    from kl_companion.auditing import audit
    from kl_companion.frameworks.printing import is_framework, print_audits

    torch.set_num_threads(1)  # matrices of a few entries: threads only wait for each other
    if is_framework(args.loss):
        if args.level is not None or args.group_size != 1:
            raise ValueError(f"{args.loss} got a level or a group size, expected none: a setting has its own")
        return print_audits(
            args.loss,
            want=args.want,
            off_policy=True if args.off_policy else None,
            scale=args.scale,
            progress=_progress(quiet=args.quiet),
        )
    if args.loss.endswith(".py"):
        raise ValueError(f"{args.loss!r} names no function, expected {args.loss}:function")
    loss = args.loss
    if ".py:" in loss:
        if not args.quiet:
            file = loss.rpartition(":")[0]
            print(f"  executing {file}, as python does with a file of yours", file=sys.stderr, flush=True)
        loss = load_function(loss)
    found = audit(
        loss,
        placement=args.placement,
        level=args.level,
        group_size=args.group_size,
        want=args.want,
        off_policy=True if args.off_policy else None,
        scale=args.scale,
        progress=_progress(quiet=args.quiet),
    )
    print(found)
    if found.met is False:
        print(f"\nWanted: {args.want}. This loss does not descend it. What does, in plain PyTorch:\n")
        print(found.remedy)
        return 1
    if found.met:
        print(f"\nWanted: {args.want}. This loss descends it.")
    return 0


def run_claims(args: argparse.Namespace) -> int:
    """Check what the sources say, one row after the other, and print what each check found."""
    import torch

    from kl_companion.checks import check_choice
    from kl_companion.claims import FAILING, SOURCES, VERDICTS, register, run
    from kl_companion.claims.texts import letters, plain

    torch.set_num_threads(1)
    if args.source is not None:
        check_choice("source", args.source, SOURCES)
    rows = register()
    if args.id is not None and args.id not in rows:
        raise unknown_name("claim", args.id, list(rows))
    chosen = [r for r in rows.values() if args.id in (None, r.id) and args.source in (None, r.source)]
    counts = dict.fromkeys(VERDICTS, 0)
    for row in chosen:
        found = run(row.id)
        counts[found.verdict] += 1
        if args.failed and found.verdict not in FAILING:
            continue
        _row(row.id, found.verdict, f"{row.source}, {row.location}")
        print(f"    says: {plain(row.statement)}")
        for label, text in found.details():
            print(f"    {label}: {letters(text)}", flush=True)
    print(f"{len(chosen)} claims: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n))
    return 0


def run_table(args: argparse.Namespace) -> int:
    """Run, check or show result tables."""
    from kl_companion import tables

    if args.action != "check" and not args.names and not args.all:
        raise ValueError(
            f"table {args.action} got no name, expected one or more of: {', '.join(tables.names())}, or --all"
        )
    names = list(args.names or tables.names())
    if args.action == "run" and not args.names:
        names = in_minutes(names)
    for name in names:
        if name not in tables.names():
            raise unknown_name("table", name, tables.names())
    if args.action == "check":
        problems = [p for name in names for p in tables.check(name)] if args.names else tables.check()
        for problem in problems:
            print(problem)
        print(f"{len(names)} tables checked, {len(problems)} problems")
        return 1 if problems else 0
    jobs = 2 if args.jobs is None and args.backend is None else args.jobs
    if args.action == "run" and not args.quiet:
        announce(names, args, jobs)
    for name in names:
        if args.action == "show":
            print(tables.load(name, profile=args.profile).to_string(index=False))
        else:
            frame = tables.run(
                name,
                profile=args.profile,
                jobs=jobs,
                fresh=args.fresh,
                backend=args.backend,
                address=args.address,
                progress=_progress(quiet=args.quiet),
            )
            print(f"{name}: {len(frame)} rows")
    return 0


def in_minutes(names: Sequence[str]) -> list[str]:
    """The tables that `--all` makes: one that takes hours is made when it is named."""
    from kl_companion.tables.manifest import read_manifest

    found = []
    for name in names:
        if read_manifest(name).cost == "hours":
            print(f"  {name}: takes hours, so --all leaves it: table run {name}", file=sys.stderr)
        else:
            found.append(name)
    return found


def announce(names: Sequence[str], args: argparse.Namespace, jobs: int | None) -> None:
    """Say on stderr what is to be made and how long that will take, before it starts."""
    from kl_companion.tables.planning import announcement, plan

    plans = [plan(name, profile=args.profile, fresh=args.fresh) for name in names]
    for line in announcement(plans, max(jobs or 1, 1)):
        print(f"  {line}", file=sys.stderr, flush=True)


def _of_the_reader(error: Exception, args: argparse.Namespace) -> str:
    """What was raised; where the reader's own loss did, its name and the line."""
    path, _, name = str(getattr(args, "loss", "")).rpartition(":")
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if path and Path(frame.filename).resolve() == Path(path).resolve()
    ]
    if not theirs:
        return f"{type(error).__name__}: {error}"
    said = f"{name} raised {type(error).__name__} at {path}:{theirs[-1].lineno}"
    return f"{said}: {error}; expected a loss that runs on a Rollout"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kl-companion", description="What does your KL term optimize?")
    verbs = parser.add_subparsers(dest="verb", required=True)

    lister = verbs.add_parser("list", help="what is registered")
    lister.add_argument("topic", choices=TOPICS, nargs="?", default="estimators")

    deriver = verbs.add_parser(
        "derive", help="value, gradient weight and implied f of an estimator, in symbols"
    )
    deriver.add_argument("estimator")
    deriver.add_argument("--placement", choices=("loss", "reward", "full"), default="loss")
    deriver.add_argument("--latex", action="store_true", help="print LaTeX")

    auditor = verbs.add_parser(
        "audit",
        help="which objective a loss descends",
        description="Which objective a loss descends. path/file.py:function executes that file, with all "
        "that it does, as python path/file.py would: audit only files that you trust.",
    )
    auditor.add_argument(
        "loss", help="an estimator, path/file.py:function (executed), or a framework's setting"
    )
    auditor.add_argument(
        "--want", help="a divergence (reverse_kl) or objective; exit 1 when the loss does not descend it"
    )
    auditor.add_argument("--placement", choices=("loss", "reward"), default="loss")
    auditor.add_argument("--level", choices=("token", "sequence"), help="for functions of logp and ref_logp")
    auditor.add_argument(
        "--group-size", type=int, default=1, help="sequences per batch, for losses that couple a group"
    )
    auditor.add_argument(
        "--off-policy", action="store_true", help="look at, and judge --want by, off-policy samples"
    )
    auditor.add_argument("--scale", type=float, help="one size of log-ratios instead of small and large")

    claims = verbs.add_parser("claims", help="what the sources say, checked")
    claims.add_argument("id", nargs="?", help="one row of the register; all of them by default")
    claims.add_argument("--source", help="bib key of one source")
    claims.add_argument("--failed", action="store_true", help="only what does not hold as printed")

    table = verbs.add_parser("table", help="result tables")
    table.add_argument("action", choices=("run", "check", "show"))
    table.add_argument("names", nargs="*")
    table.add_argument("--all", action="store_true", help="every table; run leaves those that take hours")
    table.add_argument("--profile", choices=("cpu", "gpu", "smoke"), default="cpu")
    table.add_argument(
        "--jobs", type=int, help="points at a time; by default 2, on a cluster one per thread of its workers"
    )
    table.add_argument("--backend", help="run the points on an existing cluster: dask or ray")
    table.add_argument("--address", help="where its scheduler listens: tcp://host:port")
    table.add_argument("--fresh", action="store_true", help="run finished points again")
    for verb in (auditor, table):
        verb.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; an option that the verb does not have is refused with those that it has."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest:
        (verbs,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        verb = verbs.choices[args.verb]
        known = [option for action in verb._actions for option in action.option_strings]
        what = "option" if rest[0].startswith("-") else "argument"
        verb.error(str(unknown_name(what, rest[0], known)))
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 done, 1 a wanted verdict or a check failed, 2 it could not run."""
    args = _parsed(argv)
    try:
        if args.verb == "list":
            return list_names(args.topic)
        if args.verb == "derive":
            return derive(args.estimator, args.placement, latex=args.latex)
        return {"audit": run_audit, "claims": run_claims, "table": run_table}[args.verb](args)
    except (ValueError, FileNotFoundError, ConnectionError, ImportError) as error:
        print(f"kl-companion: {error}", file=sys.stderr)
    except Exception as error:  # the reader's loss or a table's notebook: say what and where, not our stack
        print(f"kl-companion: {_of_the_reader(error, args)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
