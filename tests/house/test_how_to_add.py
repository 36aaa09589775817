"""The page "Extending the package" is followed in a copy of the project, what it adds passes the tests there.

The code is the page's own: cells and captioned blocks go where the page says they belong. A new divergence
meets every test of its floors, and every other divergence, in `make reliability`. The rows of a framework in
the table `framework_audit` are made here by its audit, without the minutes for all the others.
"""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import nbformat
import pytest

from tests.support.warm import command

ROOT = Path(__file__).resolve().parents[2]
CELLS = {cell.id: cell.source for cell in nbformat.read(ROOT / "book/how_to_add.ipynb", as_version=4).cells}
TEXT = "\n\n".join(CELLS.values())
BLOCKS = dict(re.findall(r"```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)\n```", TEXT, re.S))
PARTS = ("kl_companion", "tests", "tables", "book", "_toc.yml", "_config.yml", "pyproject.toml", "README.md")


def belongs(cell: str) -> str:
    """The path that the text after a cell names as the place of what the cell adds."""
    ids = list(CELLS)
    after = "\n".join(CELLS[i] for i in ids[ids.index(cell) + 1 :])
    found = re.search(r"In the repository the [^`]*`([^`]+)`", after)
    assert found is not None
    return found[1]


def statement(cell: str, word: str) -> str:
    """The one statement of a cell that contains a word."""
    (found,) = (s for s in ast.parse(CELLS[cell]).body if word in ast.unparse(s))
    return ast.unparse(found) + "\n"


def append(root: Path, path: str, code: str) -> None:
    file = root / path
    file.write_text(f"{file.read_text(encoding='utf-8')}\n\n{code}\n", encoding="utf-8")


def into_dict(root: Path, path: str, name: str, line: str) -> None:
    """Put a line first into the dictionary that a file assigns to a name."""
    file = root / path
    text = file.read_text(encoding="utf-8")
    assert text.count(f"\n{name} = {{\n") == 1
    file.write_text(text.replace(f"\n{name} = {{\n", f"\n{name} = {{\n{line}\n"), encoding="utf-8")


def execute(root: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'book'}",
        "KL_COMPANION_ROOT": str(root),
    }
    done = subprocess.run(
        [*command(), *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_in(root: Path, words: str, *paths: str) -> tuple[int, list[str]]:
    """Run the tests of these files whose names contain one of the words: how many passed, why others not."""
    said = execute(root, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", words, *paths)
    found = re.search(r"(\d+) passed", said)
    assert found is not None, said
    return int(found[1]), [x for x in re.findall(r"^SKIPPED.*", said, re.M) if "CUDA" not in x]


def passed_in(root: Path, words: str, *paths: str) -> int:
    return run_in(root, words, *paths)[0]


@pytest.fixture
def copy():
    """What the tests of an addition need of the project, as it would be committed."""
    folder = Path(mkdtemp(prefix="how-to-add-"))
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_pictures"))
        else:
            shutil.copy(source, folder / name)
    yield folder
    shutil.rmtree(folder)


def add_divergence(root: Path) -> None:
    append(root, belongs("how-04"), statement("how-04", "register_divergence"))
    path = "tests/support/expected_verdicts.py"
    into_dict(root, path, "F_AT_TWO", BLOCKS[path])


# Two more: f as it is registered, and f(2) with f'(1) = 0.
MORE = {
    # a slope at t = 1, so that its three forms differ; a smallest and a largest slope
    "le_cam": ("(1 - T) / (1 + T)", "Rational(1, 6)"),
    # SymPy does not invert its slope: what needs the inverse refuses it, and has nothing to test
    "no_inverse": ("T * sympy.log(T) + (T - 1) ** 2 / (T + 2)", "2 * log(2) - Rational(3, 4)"),
}
AUDITS = """
from kl_companion import audit
from kl_companion.cli import main

def test_audits_of_registered_divergences(capsys):
    for name in ("kf_plus_plus(le_cam)", "kf_plus_plus(le_cam, generic)", "top_k_f_divergence(le_cam, 2)"):
        found = audit(name, off_policy=False, scale=1.0, want="le_cam")
        assert found.matches == {"token_le_cam": 1.0} and found.met, (name, found.matches)
    assert main(["list", "estimators"]) == 0
    assert "k_jeffreys" in capsys.readouterr().out
"""


def add_divergences(root: Path) -> None:
    """That of the page with its estimator, and two more."""
    add_divergence(root)
    append(root, belongs("how-08"), CELLS["how-08"])
    for name, (f, at_two) in MORE.items():
        append(root, belongs("how-04"), f'register_divergence("{name}", {f}, source="test")')
        into_dict(root, "tests/support/expected_verdicts.py", "F_AT_TWO", f'    "{name}": {at_two},')


def test_divergences_and_an_estimator_of_one(copy):
    add_divergences(copy)
    rooms = [f"tests/{room}" for room in ("divergences", "estimators", "kernels", "theory")]
    audits = [f"tests/auditing/{name}.py" for name in ("test_auditor", "worlds/test_objectives")]
    words = (
        "jeffreys and not test_transforms.py or reverse_kl-jeffreys or jeffreys-reverse_kl"
        " or of_registered or expected_number or clipped_tokens"
        " or (jeffreys or le_cam or no_inverse) and (changes_nothing or clipped)"
        " or le_cam and (sampled or top_k or objectives) or no_inverse and (test_registry.py or slopes)"
    )
    own = "tests/test_new_divergences.py"
    (copy / own).write_text(AUDITS, encoding="utf-8")
    passed, skipped = run_in(copy, f"{words} or test_audits_of_registered", *rooms, *audits, own)
    assert passed >= 200
    assert skipped
    assert all("for 'no_inverse'" in why for why in skipped), skipped


@pytest.mark.reliability
def test_every_test_of_the_floors_that_know_divergences(copy):
    add_divergences(copy)
    rooms = ("auditing", "divergences", "estimators", "kernels", "policy_losses", "theory")
    assert run_in(copy, "test", *(f"tests/{r}" for r in rooms))[0] >= 2900


SLIPS = {
    "k_minus": ("return expm1(log_w)", "return -expm1(log_w)"),
    "k_twice": ("return expm1(log_w)", "return 2 * expm1(log_w)"),
    "k_turned": ("= ref_logp - logp", "= logp - ref_logp"),
    "k_misnamed": ('target="jeffreys"', 'target="reverse_kl"'),
}


def test_a_slip_in_an_estimator_is_noticed(copy):
    add_divergence(copy)
    for name, (right, wrong) in SLIPS.items():
        assert CELLS["how-08"].count(right) == 1
        code = CELLS["how-08"].replace(right, wrong).replace("k_jeffreys", name)
        append(copy, belongs("how-08"), code)
    words = " or ".join(SLIPS)
    with pytest.raises(AssertionError) as said:
        execute(
            copy,
            "-m",
            "pytest",
            "-q",
            "--tb=line",
            "-k",
            words,
            "tests/estimators/test_registry_placements.py",
        )
    assert set(re.findall(r"mean of (\w+) minus", str(said.value))) == set(SLIPS)


def test_a_framework(copy):
    (adapter,) = (path for path in BLOCKS if path.startswith("kl_companion/frameworks/"))
    (copy / adapter).write_text(BLOCKS[adapter], encoding="utf-8")
    for path, name in (
        ("tests/support/expected_framework_verdicts.py", "EXPECTED"),
        ("tests/support/frameworks/by_hand.py", "BY_HAND"),
    ):
        into_dict(copy, path, name, BLOCKS[path])
    (line,) = re.findall(r"Add the line `(- \S+)` to the grid", TEXT)
    manifest = copy / "tables/framework_audit/manifest.yml"
    text = manifest.read_text(encoding="utf-8")
    assert text.count("  framework:\n") == 1
    manifest.write_text(text.replace("  framework:\n", f"  framework:\n    {line}\n"), encoding="utf-8")
    code = """
import pandas
from kl_book import tables
from kl_book.tables.manifest import read_manifest
from kl_companion.frameworks import audit_setting, rows
assert "my_trainer" in read_manifest("framework_audit").grid["framework"]
file = "tables/framework_audit/table.csv"
new = pandas.DataFrame(rows(audit_setting("my_trainer.kl")))
pandas.concat([pandas.read_csv(file, keep_default_na=False), new]).to_csv(file, index=False)
assert len(tables.load("framework_audit").query("framework == 'my_trainer'")) == 4
"""
    execute(copy, "-c", code)
    words = "my_trainer or every_framework or every_setting_has or settings_of_today"
    files = ("tests/frameworks/test_frameworks.py", "tests/frameworks/test_verdicts.py")
    assert passed_in(copy, words, *files) >= 8


def test_a_chapter(copy):
    names = {}
    exec("\n".join((CELLS["how-02"], CELLS["how-13"].partition("executed =")[0])), names)
    folder = "book/part9_frameworks"
    chapter = copy / folder / "03_is_k4_right.ipynb"
    nbformat.write(names["notebook"], chapter)
    toc = copy / "_toc.yml"
    last = f"      - file: {folder}/02_in_your_trainer\n"
    text = toc.read_text(encoding="utf-8")
    assert text.count(last) == 1
    toc.write_text(text.replace(last, f"{last}{last.replace('02_in_your_trainer', '03_is_k4_right')}"))
    pages = ("tests/pages/test_prose.py", "tests/notebooks/test_book.py")
    assert passed_in(copy, "03_is_k4_right", *pages, "--nbmake", str(chapter)) >= 11  # one executes it


# `python -m kl_book table run curvatures --quiet`; its notebooks' processes are forks too
TABLE_RUN = """
from kl_book.__main__ import main
from kl_book.tables import notebook_process
from tests.support.warm import command
notebook_process.POINT = (*command(), *notebook_process.POINT[1:])
raise SystemExit(main(["table", "run", "curvatures", "--quiet"]))
"""


def test_a_table(copy):
    names = {"here": copy}
    code = "\n".join((CELLS["how-02"], CELLS["how-13"].partition("executed =")[0], CELLS["how-15"]))
    toc = (copy / "_toc.yml").read_text(encoding="utf-8")
    exec(code, names)
    (copy / "_toc.yml").write_text(toc, encoding="utf-8")  # the cell makes a project of its own
    notebook, manifest = copy / "curvatures.ipynb", copy / "tables/curvatures/manifest.yml"
    place = belongs("how-13").removeprefix("./")
    notebook.rename(copy / place / notebook.name)
    manifest.write_text(manifest.read_text().replace("notebook: ", f"notebook: {place}/"), encoding="utf-8")
    execute(copy, "-c", TABLE_RUN)
    words = "curvatures or there_are_tables or has_a_problem"
    assert passed_in(copy, words, "tests/notebooks/test_tables.py") == 3
