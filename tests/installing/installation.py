"""`make install-check`: build the package, install it into empty environments, and use what was installed.

    python -m tests.installing.installation [--json FILE] [--only PART ...]

The whole clone is its book and every test, half an hour at most; it fails for a commit that is not green.

Everything happens in a temporary folder whose name has spaces, with an empty home directory; only pip's
downloads are shared. The environment of an extra sees the core's packages through a .pth file and nothing
else, so it holds the core dependencies and that extra. Versions are those of requirements.lock.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.installing import clones, distributions, others, versions
from tests.installing.trying import ROOT, Report, call, clean, environment, install, packages, use_core

EXTRAS = Path(distributions.__file__).with_name("extras.py")
PARTS = ("environments", "pythons", "clone", "whole clone")
VERSIONS = "versions"  # all rows of `tests.installing.versions`; only where they are named: gigabytes each
# what is done with an extra beyond imports and messages: a module of it, run as a reader would run it
RECIPE = (
    "--steps 2 --pretraining-steps 2 --pretraining-until none --evaluate 0 --prompts 2 --group 2 --device cpu"
)
PLOT = "from kl_companion.plotting import figure; figure(print, alt='None')"
USED = {
    "plots": ["-c", PLOT],
    "llm": ["-m", "kl_companion.llm.recipe", *RECIPE.split(), "--output", "run"],
    "trl": ["-m", "kl_companion.frameworks.trl_example", "--kl", "exact_kl", "--steps", "1"],
    "test": ["-c", "import pytest, xdist, nbmake, hypothesis, beartype, selenium, mypy"],
}


def environments(report: Report, wheel: Path, folder: Path, env: dict[str, str]) -> None:
    """The wheel without extras, and with each of them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    core = folder / "no extras"
    for extra in (None, *extras):
        name, place = extra or "no extras", core if extra is None else folder / f"extra {extra}"
        work = folder / f"work {name}"
        work.mkdir()
        asked = str(wheel) if extra is None else f"kl-companion[{extra}] @ {wheel.as_uri()}"
        with report.trying(name, "pip install the wheel") as said:
            python = environment(sys.executable, place, None if extra is None else packages(core), env)
            again = [] if extra is None else ["--force-reinstall", "--no-deps"]
            install(python, str(wheel), *again, work=work, env=env)
            if extra is not None:
                install(python, asked, work=work, env=env)
            said.append(f"{len(list(packages(place).glob('*.dist-info')))} distributions")
        if report.outcomes[-1].status == "failed":
            continue
        with report.trying(name, "pip check") as said:
            said.append(call(python, "-m", "pip", "check", cwd=work, env=env).strip())
        with report.trying(name, "imports; messages of what is missing") as said:
            present = [] if extra in (None, "test") else [extra]
            said.append(call(python, EXTRAS, work / "asked", *present, cwd=work, env=env).strip())
        if extra is None:
            use_core(report, name, python, work, env)
        elif extra in USED:
            with report.trying(name, "used once"):
                call(python, *USED[extra], cwd=work, env=env)


def main(arguments: list[str]) -> int:
    """Try everything; 0 when nothing failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.installing.installation", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--json", type=Path, help="write the counts and every outcome to this file")
    rows = {row.name: row for row in versions.rows()}
    named = (*PARTS, VERSIONS, *rows)
    parser.add_argument("--only", choices=named, nargs="*", default=PARTS, help="none: what is built")
    chosen = parser.parse_args(arguments)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="kl companion ", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)  # the ordinary user of the clone passes through it
        env = clean(folder / "an empty home")
        with report.trying("build", "sdist, and the wheel made from it") as said:
            sdist, wheel = distributions.build(ROOT, folder / "built here")
            said += [f"{path.name} {path.stat().st_size // 1000} kB" for path in (sdist, wheel)]
        if report.outcomes[-1].status == "passed":
            with report.trying("build", "contents of both"):
                assert not (wrong := distributions.problems(ROOT, sdist, wheel)), "\n".join(wrong)
            if "environments" in chosen.only:
                environments(report, wheel, folder, env)
            if "pythons" in chosen.only:
                others.pythons(report, wheel, folder, env)
            if {"clone", "whole clone"} & set(chosen.only):
                clones.clone(report, folder, env, whole="whole clone" in chosen.only)
            for name, row in rows.items():
                if {name, VERSIONS} & set(chosen.only):
                    versions.try_row(report, row, wheel, folder, env)
    counts = report.counts()
    print("\n{tried} tried, {failed} failed, {not_tried} not tried".format(**counts))
    if chosen.json:
        found = {**counts, "outcomes": [outcome._asdict() for outcome in report.outcomes]}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
