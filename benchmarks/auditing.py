"""How long someone waits for a verdict: `kl-companion audit` from the command line, and how much is imports.

    python -m benchmarks.auditing

Each row is the median of fresh processes; beside the whole time stands the share that goes by before the
first line of an audit runs, measured in other fresh processes that import the same and stop.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 3
SIMPLE = "def k2(logp, ref_logp):\n    return 0.5 * (logp - ref_logp) ** 2\n"
GRPO = """\
import torch

def grpo(logps, old_logps, ref_logps, advantages, mask):
    ratio = torch.exp(logps - old_logps)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    surrogate = -torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
    log_ratio = ref_logps - logps
    kl = torch.exp(log_ratio) - log_ratio - 1
    return ((surrogate + 0.04 * kl) * mask).sum() / mask.sum()
"""
IMPORTS = (
    "import kl_companion.cli.audit, kl_companion.auditing.auditor, kl_companion.auditing.judgment.card, "
    "kl_companion.frameworks.printing"
)


def seconds(arguments: Sequence[str]) -> float:
    """Median wall-clock time of fresh Python processes; RuntimeError with what one said if it fails."""
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        taken.append(time.perf_counter() - start)
        if done.returncode:
            raise RuntimeError(done.stderr)
    return statistics.median(taken)


def commands(folder: Path) -> dict[str, list[str]]:
    """What is timed, {title: arguments of `kl-companion audit`}; the losses are written into a folder."""
    for name, source in (("simple", SIMPLE), ("trainer", GRPO)):
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    simple, grpo = f"{folder / 'simple.py'}:k2", f"{folder / 'trainer.py'}:grpo"
    return {
        "k3, all conditions": ["k3"],
        "a simple loss, --scale 1": [simple, "--scale", "1"],
        "a simple loss, all conditions": [simple],
        "a GRPO loss, all conditions": [grpo],
        "the same as a whole update": [grpo, "--update", "--advantage", "group_std"],
    }


def main() -> None:
    """Print a row for each command."""
    seconds(["-c", IMPORTS])  # compiled files are written, the disk is read
    imports = seconds(["-c", IMPORTS])
    print(f"\n{'kl-companion audit, from the command line':<58}{'seconds':>10}{'imports':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for title, arguments in commands(Path(folder)).items():
            whole = seconds(["-m", "kl_companion.cli", "audit", *arguments, "--quiet"])
            print(f"{title:<58}{whole:>10.2f}{min(imports / whole, 1):>10.0%}", flush=True)


if __name__ == "__main__":
    main()
