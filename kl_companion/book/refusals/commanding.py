"""Bad input to the command line: names, options, and a reader's own file."""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stderr
from pathlib import Path

from kl_companion.book.refusals.case import Case, Exit, command_line, folder, project_root
from kl_companion.book.refusals.projects import project

_LOSSES = """
import torch

def k3(logp, ref_logp):
    return torch.expm1(ref_logp - logp) - (ref_logp - logp)

def unread(logp, reference):
    return logp - reference

def raises(logp, ref_logp):
    return logp @ ref_logp.missing

def no_scalar(logp, ref_logp):
    return (logp - ref_logp).sum(0)

def nothing(logp, ref_logp):
    print("forgot to return")

def detached(logp, ref_logp):
    return (logp - ref_logp).detach()

number = 3
"""


def command(*arguments: str, root: Path | None = None) -> Exit:
    """The command line in this process and in the case's folder; its last message alone."""
    err = io.StringIO()
    with redirect_stderr(err), chdir(folder()), project_root(root):
        try:
            status = command_line()(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
    text = err.getvalue().strip()
    return Exit(status, text[max(text.rfind("\nkl-companion") + 1, 0) :])


def audit_file(*arguments: str, text: str = _LOSSES) -> Exit:
    """``kl-companion audit`` beside a file ``losses.py``."""
    (folder() / "losses.py").write_text(text, encoding="utf-8")
    return command("audit", *arguments, "--scale", "1", "--quiet")


def table(*arguments: str) -> Exit:
    """``kl-companion table`` in a project with one table."""
    return command("table", *arguments, root=project())


_AUDIT, _TABLE, _DERIVE, _CLAIMS = (f"kl-companion {v}" for v in ("audit", "table", "derive", "claims"))

CASES = (
    Case("kl-companion", "a misspelled verb", lambda: command("audits", "k3")),
    Case("kl-companion", "no verb", lambda: command()),
    Case("kl-companion list", "an unknown topic", lambda: command("list", "losses")),
    Case(_DERIVE, "a misspelled estimator", lambda: command("derive", "k_3")),
    Case(_DERIVE, "an exact KL", lambda: command("derive", "exact_kl")),
    Case(_DERIVE, "an unknown placement", lambda: command("derive", "k3", "--placement", "rewards")),
    Case(_AUDIT, "a misspelled estimator", lambda: command("audit", "k33")),
    Case(_AUDIT, "no loss", lambda: command("audit")),
    Case(_AUDIT, "a file that does not exist", lambda: command("audit", "missing.py:loss")),
    Case(_AUDIT, "a file without a function's name", lambda: audit_file("losses.py")),
    Case(_AUDIT, "a misspelled function", lambda: audit_file("losses.py:k_3")),
    Case(_AUDIT, "a function that is none", lambda: audit_file("losses.py:number")),
    Case(_AUDIT, "a file that does not parse", lambda: audit_file("losses.py:k3", text="def k3(logp:\n")),
    Case(
        _AUDIT,
        "a file that fails on import",
        lambda: audit_file("losses.py:k3", text="import nothing_of_it\n"),
    ),
    Case(_AUDIT, "an empty file", lambda: audit_file("losses.py:k3", text="")),
    Case(_AUDIT, "a parameter whose name says no quantity", lambda: audit_file("losses.py:unread")),
    Case(_AUDIT, "a map without a role", lambda: audit_file("losses.py:unread", "--map", "reference")),
    Case(_AUDIT, "an option without a value", lambda: audit_file("losses.py:k3", "--set", "beta")),
    Case(_AUDIT, "an option that it has not", lambda: audit_file("losses.py:k3", "--set", "beta=1")),
    Case(_AUDIT, "a loss that raises", lambda: audit_file("losses.py:raises")),
    Case(_AUDIT, "a loss that is no scalar", lambda: audit_file("losses.py:no_scalar")),
    Case(_AUDIT, "a loss that returns nothing", lambda: audit_file("losses.py:nothing")),
    Case(_AUDIT, "a loss that detaches everything", lambda: audit_file("losses.py:detached")),
    Case(_AUDIT, "a misspelled wish", lambda: audit_file("losses.py:k3", "--want", "revers_kl")),
    Case(_AUDIT, "a scale in words", lambda: command("audit", "k3", "--scale", "small")),
    Case(_AUDIT, "a misspelled option", lambda: command("audit", "k3", "--wants", "reverse_kl")),
    Case(
        _AUDIT,
        "a framework's setting with a level",
        lambda: command("audit", "verl.loss_k3", "--level", "token"),
    ),
    Case(_AUDIT, "an unknown setting", lambda: command("audit", "verl.loss_k33")),
    Case(_CLAIMS, "a misspelled row", lambda: command("claims", "TM-eq33")),
    Case(_CLAIMS, "a misspelled source", lambda: command("claims", "--source", "tang2025")),
    Case(_TABLE, "no table", lambda: table("run")),
    Case(_TABLE, "a misspelled table", lambda: table("run", "curvature")),
    Case(_TABLE, "no points at a time", lambda: table("run", "curvatures", "--jobs", "0")),
    Case(_TABLE, "an unknown backend", lambda: table("run", "curvatures", "--backend", "slurm")),
    Case(_TABLE, "a backend without an address", lambda: table("run", "curvatures", "--backend", "dask")),
    Case(_TABLE, "an unknown profile", lambda: table("run", "curvatures", "--profile", "tpu")),
    Case(_TABLE, "a table that was never made", lambda: table("show", "curvatures")),
    Case(_TABLE, "no project around", lambda: command("table", "show", "curvatures")),
)
