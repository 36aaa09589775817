"""The engine of mutants: what it changes, what it leaves out, and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability import forked, mutants, mutating, survivors

# on the unchanged module, on one that means the same, on one that does not, and on one that does not end;
# in a process that has not imported the package
CAN_IT_FAIL = """
import json
from tests.reliability import forked, mutating
from tests.reliability.mutants import OTHERS
forked.ready()
source = mutating.source_of("kl_companion.ops")
same = source.replace("return sympy.exp(x) - 1", "return -1 + sympy.exp(x)")
other = source.replace("return sympy.exp(x) - 1", "return sympy.exp(x) + 1")
endless = source.replace("return x.log()", "while True:\\n        pass")
assert len({source, same, other, endless}) == 4
found = []
for text, seconds in ((source, 60), (same, 60), (other, 60), (endless, 1)):
    found += forked.outcomes("kl_companion.ops", [(text, [["tests/test_ops.py"]])], OTHERS, seconds)
print(json.dumps(found))
"""


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=mutating.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.reliability
def test_what_changes_nothing_survives_and_what_changes_something_does_not() -> None:
    same = json.loads(python("-c", CAN_IT_FAIL).splitlines()[-1])
    assert [noticed for noticed, *_ in same] == [False, False, True, True]
    assert all(used for _, _, used, _ in same)
    assert same[2][1].startswith("tests/test_ops.py::")
    assert same[3][1] == "time"


def test_what_reads_a_module_through_a_room_is_not_imported_before_it_is_changed() -> None:
    assert forked._reads("kl_companion.estimators.vocabulary", "kl_companion.estimators.sampled")
    assert not forked._reads("kl_companion.ops", "kl_companion.losses")


def test_an_explanation_names_a_mutant_that_there_is() -> None:
    assert not list(survivors.stale())
    assert all(len(why) > 20 for why in survivors.explained().values())


def test_every_group_of_the_table_has_modules_and_every_module_tests() -> None:
    assert mutants.modules("sampled") == ("kl_companion.estimators.sampled",)
    assert {"kl_companion.tabular.rows", "kl_companion.tabular.worlds"} <= set(mutants.modules("tabular"))
    for group in mutants.GROUPS:
        assert mutants.modules(group)
        assert all(len(mutants.stages(module)) > 3 for module in mutants.modules(group))


LEFT_OUT = '''
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LIMIT = 1 + 1
Either = int | str
@lru_cache(maxsize=7)
def f(x: int | None, *, y: Literal[1] = 5) -> int | list[0]:
    """Adds 1 + 1."""
    z: Literal[2] = x
    for a, b in zip(x, y, strict=True):
        if a == b:
            raise ValueError(f"{a + 1} is {b}" + "1" * 3)
    return f"{x + 1}" if not x else isinstance(z, int | str)
'''
KEPT = ["y: Literal[1] = 6", "y: Literal[1] = 4", "in []", "a != b", "if  x else"]


def test_what_says_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "left_out.py"
    path.write_text(LEFT_OUT)
    monkeypatch.setattr(mutating, "path_of", lambda module: path)
    made = [m for c in mutating.changes_of("left_out") if (m := mutating.mutant("left_out", c))]
    assert len(made) == len(KEPT)
    assert all(any(kept in m.becomes for m in made) for kept in KEPT)
