"""Mutants of what the package computes: how many of them does a test notice?

    python -m tests.reliability.mutants [--groups losses ...] [--number 40 | --every] [--seed 0]

Each mutant is one small change of one module (`tests.reliability.mutating`). The tests of that module run on
it, then those that use the module (`tests.support.layout`), until one fails. A mutant that none of
them notices is a gap in the tests, unless survivors.yml says why it is none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from tests.reliability import forked, mutating, survivors
from tests.reliability.mutating import ROOT, Mutant
from tests.reliability.trying import Trial
from tests.support import layout

QUICK, NUMBER = 25, 40  # mutants in the quick form, and in the full form of each group
SECONDS = 150  # of processor time for one stage of tests; the unchanged module has to do with it too
CHECKED = "ops"  # the module whose unchanged form the quick form tries
# the lines of the table: modules, or all modules of a room
GROUPS = {
    "ops": "ops",
    "divergences": "divergences",
    "sampled": "estimators.sampled",
    "vocabulary": "estimators.vocabulary estimators.top_k theory.top_k_split",
    "rollout": "rollout",
    "calculus": "theory.calculus",
    "tabular": "tabular",
    "losses": "losses policy_losses.ratio_losses",
    "auditing": "auditing",
}


class Tried(NamedTuple):
    """One mutant and what became of it; `why` is the reason in survivors.yml, or empty."""

    group: str
    mutant: str
    noticed: bool
    by: str
    why: str
    entry: str
    seconds: float


def modules(group: str) -> tuple[str, ...]:
    """The modules of a group, by their dotted names."""
    names = [m for m, path in layout.modules().items() if path.name != "__init__.py"]
    return tuple(
        f"kl_companion.{m}" for m in names if any(f"{m}.".startswith(f"{x}.") for x in GROUPS[group].split())
    )


def stages(module: str) -> list[list[str]]:
    """The tests for a module, one file after the other."""
    return [[file] for file in layout.stages(module.removeprefix("kl_companion."))]


OTHERS = [module for group in GROUPS for module in modules(group)]


def _run(
    module: str, runs: Sequence[tuple[str, list[list[str]]]], others: Sequence[str] = OTHERS
) -> Iterator[forked.Outcome]:
    for outcome in forked.outcomes(module, runs, others, SECONDS):
        if not outcome.used:
            raise RuntimeError(f"the tests of {module} do not import it")
        yield outcome


def check(module: str, stages: list[list[str]]) -> None:
    """The tests pass on the unchanged module, imported as the mutants are; or nothing would survive."""
    for outcome in _run(module, [(mutating.source_of(module), stages)]):
        if outcome.by:
            raise RuntimeError(f"{module} is unchanged, and its tests do not pass: {outcome.by}")


def attempt(group: str, mutants: Sequence[Mutant], others: Sequence[str] = OTHERS) -> Iterator[Tried]:
    """Run the tests on mutants of one module."""
    ran = _run(mutants[0].module, [(m.source, stages(m.module)) for m in mutants], others)
    for mutant, outcome in zip(mutants, ran, strict=True):
        why = survivors.explained().get(mutant.key, "")
        entry = "" if outcome.noticed or why else survivors.entry(mutant)
        yield Tried(group, str(mutant), outcome.noticed, outcome.by, why, entry, outcome.seconds)


def _by_module(mutants: Sequence[Mutant]) -> dict[str, list[Mutant]]:
    return {module: list(some) for module, some in groupby(mutants, key=lambda m: m.module)}


def everything(groups: Sequence[str], number: int | None, seed: int) -> Iterator[Tried]:
    """The full form: ``number`` mutants of each group, all with None; first the unchanged modules."""
    for group in groups:
        passed: set[str] = set()
        for module, some in _by_module(mutating.drawn(modules(group), number, seed)).items():
            of_it = stages(module)
            check(module, [stage for i, stage in enumerate(of_it) if i == 0 or stage[0] not in passed])
            passed |= {file for stage in of_it for file in stage}
            yield from attempt(group, some)


def few(number: int, seed: int) -> Iterator[Tried]:
    """The quick form: ``number`` mutants over all groups, as evenly as it goes, without explained ones."""
    check(f"kl_companion.{CHECKED}", stages(CHECKED)[:1])
    todo: dict[str, tuple[str, list[Mutant]]] = {}
    for i, group in enumerate(GROUPS):
        share = number // len(GROUPS) + (i < number % len(GROUPS))
        mutants = mutating.drawn(modules(group), share, seed, survivors.explained())
        todo |= {module: (group, some) for module, some in _by_module(mutants).items()}
    for i, (group, some) in enumerate(todo.values()):
        forked.prepare(list(todo)[i:], OTHERS)  # once for all that follow
        yield from attempt(group, some, ())


def summary(tried: Sequence[Tried], what: str) -> Trial:
    """One line of the table: how many there were, and how many no test noticed."""
    left = [t for t in tried if not t.noticed]
    return Trial(f"mutants of {what}", len(tried), len(left))


def explanations(tried: Sequence[Tried]) -> Trial:
    """The line of the table that says whether every survivor, and nothing else, has a reason to survive."""
    asked = [t for t in tried if not t.noticed or t.why]
    wrong = [t for t in asked if t.noticed or not t.why]
    said = tuple(f"{t.mutant}\n{f'noticed by {t.by}' if t.noticed else 'no reason'}" for t in wrong)
    return Trial("reasons why a mutant is not noticed", len(asked), len(wrong), said=said)


def trials(quick: bool, seed: int) -> Iterator[Trial]:
    """The lines of the table: the mutants of each group, and the reasons for those that survive."""
    command = [sys.executable, "-m", "tests.reliability.mutants", "--json", "--seed", str(seed)]
    # in a process that has not imported the package
    with subprocess.Popen(
        [*command, *(["--quick"] if quick else [])], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        tried: list[Tried] = []
        lines = (Tried(*json.loads(line)) for line in process.stdout)
        for group, some in groupby(lines, key=lambda t: "all modules" if quick else t.group):
            tried += (here := list(some))
            yield summary(here, group)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"the mutants could not be tried: status {process.returncode}")
    yield explanations(tried)


def _say(t: Tried) -> None:
    if not t.noticed:
        print(f"survives ({t.why or 'NOT EXPLAINED'}): {t.mutant}\n{t.entry}", flush=True)
    else:
        print(f"{t.seconds:5.1f} s  {t.mutant.splitlines()[0]}  {t.by}", flush=True)


def main(arguments: list[str]) -> int:
    """Try mutants; 0 when each is noticed or explained, 1 otherwise, 2 when they cannot be tried."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.reliability.mutants", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--number", type=int, default=NUMBER, help="mutants of each group")
    parser.add_argument("--every", action="store_true", help="all of them: hours")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} mutants over all groups")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each mutant")
    chosen = parser.parse_args(arguments)
    forked.ready()
    number = None if chosen.every else chosen.number
    some = few(QUICK, chosen.seed) if chosen.quick else everything(chosen.groups, number, chosen.seed)
    tried = []
    try:
        for t in some:
            tried.append(t)
            print(json.dumps(t), flush=True) if chosen.json else _say(t)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    lines = [summary([t for t in tried if t.group == g], g) for g in dict.fromkeys(t.group for t in tried)]
    lines.append(explanations(tried))
    if not chosen.json:
        for line in lines:
            score = f"{1 - line.failed / line.tried:>8.1%}" if line.tried else ""
            print(f"{line.what:<40}{line.tried:>6} tried{line.failed:>5} failed{score}")
    return int(lines[-1].failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
