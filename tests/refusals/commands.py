"""Bad input to the command line: names, options, and a reader's own file."""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stderr
from pathlib import Path

from kl_book.__main__ import main as of_the_book
from kl_companion.cli import main
from tests.refusals.case import Exit, folder, project_root
from tests.refusals.projects import project

_LOSSES = """
import torch

def k3(logp, ref_logp):
    return torch.expm1(ref_logp - logp) - (ref_logp - logp)

def unread(logp, reference_x):
    return logp - reference_x

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

OFF = "import torch\ntorch.set_grad_enabled(False)\n"
LOSS = "import torch\ndef f(logp, ref_logp):\n    return (logp - ref_logp).exp().sqrt().sin()"
COMPILED = LOSS.replace("def f(logp, ref_logp)", "@torch.jit.script\ndef f(logp, ref_logp)")
NULL = f"x = 'a\0b'\n{LOSS}"
STEPS = "def a(model, batch): pass\ndef b(model, batch): pass\n"


def command(*arguments: str, root: Path | None = None) -> Exit:
    """The command line in this process and in the case's folder; its last message alone."""
    err = io.StringIO()
    with redirect_stderr(err), chdir(folder()), project_root(root):
        try:
            status = (of_the_book if set(arguments[:1]) & {"claims", "table"} else main)(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
    text = err.getvalue().strip()
    start = max(text.rfind(f"\n{name}") for name in ("kl-companion", "kl_book", "python -m kl_book"))
    return Exit(status, text[max(start + 1, 0) :])


def audit_file(*arguments: str, text: str = _LOSSES) -> Exit:
    """``kl-companion audit`` beside a file ``losses.py``."""
    (folder() / "losses.py").write_text(text, encoding="utf-8")
    return command("audit", *arguments, "--scale", "1", "--quiet")


def doctor_file(name: str, text: str) -> Exit:
    """``kl-companion doctor`` beside such a file."""
    (folder() / name).write_text(text, encoding="utf-8")
    return command("doctor", name, "--quick", "--quiet")


def table(*arguments: str) -> Exit:
    """``python -m kl_book table`` in a project with one table."""
    return command("table", *arguments, root=project())
