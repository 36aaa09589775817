"""`make audit-dependencies`: known vulnerabilities of what requirements.lock pins, as pip-audit finds them.

pip-audit is installed into a temporary environment, so it needs the network, as do the advisories that it
asks the package index for. The exit status is 0 when every pin was looked up and none is vulnerable, 1 when
one is, and 3 when the question could not be asked for some of them: that is no good news.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-audit.lock", "requirements-real.lock")
CLEAN, VULNERABLE, NOT_ASKED = 0, 1, 3


def verdict(answer: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit status and the lines to print, from what `pip-audit --format json` writes."""
    dependencies = answer["dependencies"]
    skipped = [d["name"] for d in dependencies if "skip_reason" in d]
    lines = [
        f"{d['name']} {d['version']}: {v['id']}, fixed in {', '.join(v['fix_versions']) or 'no version yet'}"
        for d in dependencies
        for v in d.get("vulns", [])
    ]
    asked = len(dependencies) - len(skipped)
    status = VULNERABLE if lines else NOT_ASKED if skipped or not dependencies else CLEAN
    lines.append(f"{asked} of {len(dependencies)} packages looked up, {len(lines)} known vulnerabilities")
    if skipped:
        lines.append(
            f"NOT LOOKED UP: {len(skipped)} packages, such as {skipped[0]}: the advisories of the package "
            "index do not answer here. Nothing is known about these; ask again where they do."
        )
    return status, lines


def answers() -> Iterator[tuple[str, dict[str, Any] | str]]:
    """For each lock what pip-audit answers, or why it gave no answer."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        missing = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "pip-audit"], check=False
        ).returncode
        command = [python, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        for name in LOCKS:
            if missing:
                yield name, "pip-audit could not be installed; the package index does not answer here."
                continue
            asked = [*command, "--format", "json", "--requirement", str(ROOT / name)]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            try:
                yield name, {"dependencies": json.loads(done.stdout)["dependencies"]}
            except (ValueError, KeyError):
                yield name, f"pip-audit gave no answer:\n{done.stderr.strip()}"


def main() -> int:
    """Ask pip-audit about every lock; the worst answer counts."""
    statuses = []
    for name, answer in answers():
        print(f"==> {name}", flush=True)
        said = isinstance(answer, str)
        status, lines = (NOT_ASKED, [f"NOT LOOKED UP: {answer}"]) if said else verdict(answer)
        statuses.append(status)
        print("\n".join(lines), flush=True)
    return VULNERABLE if VULNERABLE in statuses else max(statuses)


if __name__ == "__main__":
    raise SystemExit(main())
