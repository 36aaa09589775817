"""Nothing that comes from elsewhere is run unless its owner asks; each exception is named.

That the pages ask no other site for anything is looked at in a browser: tests/site/test_site.py.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from kl_book import tables
from kl_companion.cli import main
from kl_companion.llm.models import load_model
from tests.installing import advisories

ROOT = Path(__file__).resolve().parents[2]
# (file, what it does) and how often, with the reason
ALLOWED = {
    (
        "kl_companion/cli/loading.py",
        "exec_module",
    ): 1,  # `audit file.py:function`: the user's own file, as --help says
    ("kl_companion/auditing/repair/patches.py", "exec"): 1,  # a term of this package, before it is printed
    # `audit -`: the user's own text, as --help says
    ("kl_companion/auditing/reading/sources.py", "exec"): 1,
    ("kl_companion/auditing/reading/helpers.py", "exec"): 1,  # imports that a pasted text may leave out
    # functions of the divergences, printed by this package when the book was built
    ("book/kl_book/paste/divergences.py", "exec"): 1,
    ("book/kl_book/paste/cell_answer.py", "exec"): 1,  # a cell of a chapter, in the browser of who changed it
    ("kl_companion/frameworks/blocks.py", "exec"): 1,  # a part of a function of a release
    ("kl_companion/frameworks/history/reproduction.py", "exec"): 1,  # one of a few formulas of its own
    ("kl_companion/frameworks/linking.py", "exec"): 1,  # functions of a release that was fetched
    ("kl_companion/frameworks/installed.py", "exec"): 1,  # single functions of an installed framework
    ("kl_companion/kernels/triton_math.py", "exec"): 1,  # functions of divergences, printed by this package
    ("book/kl_book/mutants/making.py", "exec"): 1,  # a loss of this book with one symbol changed
    ("benchmarks/house.py", "exec_module"): 1,  # the same module of another checkout
    ("book/_ext/kl_cache.py", "exec_module"): 1,  # a module of this package, without importing all of it
}
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib.load", "pty"}
CELL = "\n# %%\n"
BUILT_IN = {"eval", "exec", "__import__"}
SAFE_YAML = {"SafeLoader", "CSafeLoader", "CBaseLoader"}  # the last makes strings alone


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def risks(source: str) -> Iterator[str]:
    """What in a source runs text, files or commands that may come from elsewhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[str]:
    name, given = dotted(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
    last = name.rpartition(".")[2]
    if name in BUILT_IN or last in ("exec_module", "read_pickle", "to_pickle", "load_module"):
        yield last
    if name in ("torch.load", "torch.jit.load") and given.get("weights_only") != "True":
        yield name
    if last in ("unsafe_load", "full_load", "load_all") or name in ("os.system", "os.popen", "joblib.load"):
        yield name
    loader = given.get("Loader", ast.unparse(node.args[1]) if len(node.args) > 1 else "")
    if name == "yaml.load" and loader.rpartition(".")[2] not in SAFE_YAML:
        yield name
    if name in ("numpy.load", "np.load") and given.get("allow_pickle") == "True":
        yield name
    if given.get("shell") == "True":
        yield "shell=True"
    # asked for in so many words, by whoever calls: never decided here
    if given.get("trust_remote_code") == "True" or given.get("use_safetensors") == "False":
        yield "trust"


def sources() -> Iterator[tuple[str, str]]:
    """Every program of the package, the benchmarks and the book, code cells included."""
    for top in ("kl_companion", "benchmarks", "book"):
        for path in sorted((ROOT / top).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for path in sorted((ROOT / top).rglob("*.ipynb")):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = CELL.join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
            lines = ("pass" if x.lstrip().startswith(("%", "!")) else x for x in code.splitlines())
            yield path.relative_to(ROOT).as_posix(), "\n".join(lines)


def test_nothing_reads_pickles_or_runs_what_is_data() -> None:
    found = Counter((path, risk) for path, source in sources() for risk in risks(source))
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "torch.load('x', weights_only=False)",
        "eval('1')",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "np.load('x', allow_pickle=True)",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "pd.read_pickle('x')",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "AutoModel.from_pretrained('x', use_safetensors=False)",
    ],
)
def test_each_risk_is_seen(source: str) -> None:
    assert len(list(risks(source))) == 1


def test_what_is_safe_is_not_taken_for_a_risk() -> None:
    safe = ["model.eval()", "yaml.safe_load(x)", "yaml.load(x, Loader=yaml.SafeLoader)", "json.load(x)"]
    assert [list(risks(source)) for source in [*safe, "torch.load(x, weights_only=True)"]] == [[]] * 5


# -- models --------------------------------------------------------------------------------------------------

CODE = "open({mark!r}, 'w').close()\n"


@pytest.mark.parametrize("where", ["config", "tokenizer_config"])
def test_code_that_comes_with_a_model_does_not_run(tmp_path: Path, where: str) -> None:
    mark, folder = tmp_path / "ran", tmp_path / "model"
    folder.mkdir()
    (folder / "theirs.py").write_text(CODE.format(mark=str(mark)))
    (folder / "model.safetensors").touch()
    plain = {"model_type": "theirs"} if where == "config" else {"model_type": "qwen2"}
    auto = {"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.M", "AutoTokenizer": ["theirs.T", None]}
    (folder / "config.json").write_text(
        json.dumps({**plain, **({"auto_map": auto} if where == "config" else {})})
    )
    declared = {"tokenizer_class": "Theirs", "auto_map": auto} if where == "tokenizer_config" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))
    with pytest.raises(ValueError, match=r"model"):
        load_model(folder)
    assert not mark.exists()


def test_the_trap_springs_for_whoever_trusts_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    mark = tmp_path / "ran"
    (tmp_path / "theirs.py").write_text(CODE.format(mark=str(mark)))
    (tmp_path / "config.json").write_text('{"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.C"}}')
    with pytest.raises(AttributeError, match="C"):
        transformers.AutoConfig.from_pretrained(tmp_path, trust_remote_code=True)
    assert mark.exists()


def test_weights_as_a_pickle_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match=r"a pickle only \(pytorch_model\.bin\), which may run code"):
        load_model(tmp_path)


# -- the command line ----------------------------------------------------------------------------------------


def test_audit_says_that_it_executes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert "executes that file" in help_text
    assert "audit only files that you trust" in help_text
    path = tmp_path / "mine.py"
    path.write_text("print('I ran')\n")
    for more, said in ([], True), (["--quiet"], False):
        assert main(["audit", f"{path}:nothing", *more]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""  # what the file prints does not mix with the verdict
        assert "I ran\n" in captured.err
        assert (f"executing {path}" in captured.err) is said
    page = " ".join((ROOT / "book" / "using.md").read_text(encoding="utf-8").split())
    assert "executes that file" in page
    assert "audit only files that you trust" in " ".join((ROOT / "README.md").read_text().split())


# -- tables --------------------------------------------------------------------------------------------------

HTML = '<script>alert("1")</script><img src=x onerror=alert(2)>'
MANIFEST = """\
title: From elsewhere
notebook: n.ipynb
columns: {name: str, value: float}
key: [name]
cost: seconds
deterministic: true
"""


def test_html_in_a_table_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tables" / "foreign"
    folder.mkdir(parents=True)
    (tmp_path / "_toc.yml").touch()
    parameters = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["out = None"]}
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": [parameters], "nbformat": 4}))
    (folder / "manifest.yml").write_text(MANIFEST)
    cells = pd.DataFrame({"name": [HTML], "value": [1.0]})
    cells.to_csv(folder / "table.csv", index=False)
    monkeypatch.setenv("KL_COMPANION_ROOT", str(tmp_path))
    frame = tables.load("foreign")
    assert frame["name"].tolist() == [HTML]
    pivoted = frame.pivot_table(index="name", columns="name", values="value")
    shown = [x._repr_html_() for x in (frame, frame.set_index("name"), frame.groupby("name").sum(), pivoted)]
    for text in [*shown, frame["name"].to_frame().T._repr_html_()]:
        assert "&lt;script&gt;" in text
        assert "<script" not in text
        assert "<img" not in text


def unescaped(code: str) -> list[str]:
    """Ways of showing a frame whose cells pandas or the page would take for HTML."""
    words = ("escape=False", "HTML(", ".to_html(", "Markdown(", ".to_markdown(")
    loads = (".style" in cell and ("load(" in cell or "read_csv(" in cell) for cell in code.split(CELL))
    return [word for word in words if word in code] + ([".style of a loaded table"] if any(loads) else [])


def test_chapters_show_tables_only_in_ways_that_escape() -> None:
    chapters = {path: code for path, code in sources() if path.endswith(".ipynb")}
    assert {path: found for path, code in chapters.items() if (found := unescaped(code))} == {}
    assert unescaped("tables.load('x').style") == [".style of a loaded table"]
    assert unescaped("frame.to_html(escape=False)") == ["escape=False", ".to_html("]
    # a csv-table is read as Markdown, cells and all
    pages = [*(ROOT / "book").rglob("*.md"), *(ROOT / "book").rglob("*.ipynb")]
    assert [p.name for p in pages if "{csv-table}" in p.read_text(encoding="utf-8")] == []


# -- dependencies --------------------------------------------------------------------------------------------


def test_an_audit_of_dependencies_that_asked_nobody_is_no_good_news() -> None:
    fine = {"name": "numpy", "version": "1", "vulns": []}
    bad = {"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"]}]}
    skipped = {"name": "torch", "skip_reason": "not found"}
    assert advisories.verdict({"dependencies": [fine]})[0] == advisories.CLEAN
    assert advisories.verdict({"dependencies": [fine, bad, skipped]})[0] == advisories.VULNERABLE
    status, lines = advisories.verdict({"dependencies": [fine, skipped]})
    assert status == advisories.NOT_ASKED
    assert "NOT LOOKED UP: 1 packages, such as torch" in lines[-1]
    assert advisories.verdict({"dependencies": []})[0] == advisories.NOT_ASKED
    assert len({advisories.CLEAN, advisories.VULNERABLE, advisories.NOT_ASKED}) == 3


def test_importing_the_package_starts_no_program_and_no_connection() -> None:
    code = """
import sys
seen = []
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "socket.connect", "socket.getaddrinfo"):
        seen.append(event)
import torch, sympy, pandas
sys.addaudithook(hook)
import kl_companion.cli, kl_companion.auditing, kl_book.tables, kl_companion.llm.models
print(seen)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
