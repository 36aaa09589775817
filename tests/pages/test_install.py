"""Install commands of the pages, the wheel that they name, and what a downloadable notebook needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docutils import nodes

from tests.installing.distributions import files_of_package
from tests.support.extensions import extension

ROOT = Path(__file__).resolve().parents[2]
install, wheels, downloads = extension("kl_install"), extension("kl_wheel"), extension("kl_downloads")
WHEEL = "kl_companion-0.1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.cached(tmp_path_factory.mktemp("a path with spaces") / "wheel")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small package with the project's own settings."""
    folder = tmp_path / "project"
    (folder / "kl_companion").mkdir(parents=True)
    for name in wheels.BESIDE:
        shutil.copy(ROOT / name, folder / name)
    (folder / "kl_companion/__init__.py").write_text('__version__ = "1.2"\n')
    return folder


def application(outdir: Path, **env: Any) -> Any:
    builder = SimpleNamespace(format="html")
    return SimpleNamespace(outdir=str(outdir), builder=builder, env=SimpleNamespace(**env))


def test_the_wheel_holds_every_file_of_the_package_and_none_of_the_book(built: Path) -> None:
    with zipfile.ZipFile(built) as wheel:
        names = set(wheel.namelist())
    assert {name for name in names if ".dist-info/" not in name} == files_of_package(ROOT)
    assert not (ROOT / "build").exists()


def test_the_same_sources_give_the_same_bytes(project: Path, tmp_path: Path) -> None:
    first = wheels.cached(tmp_path / "first", project).read_bytes()
    for path in project.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o700)
    assert wheels.cached(tmp_path / "second", project).read_bytes() == first
    assert sorted(path.name for path in project.iterdir()) == sorted([*wheels.BESIDE, "kl_companion"])


def test_a_wheel_is_built_again_when_and_only_when_a_source_changed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        wheels, "build", lambda root, folder: (folder / f"{len(calls)}.whl").touch() or calls.append(0)
    )
    calls: list[int] = []
    cache = tmp_path / "cache"
    for name in ("0.whl", "0.whl"):
        assert wheels.cached(cache, project).name == name
    (project / "kl_companion/more.py").touch()
    assert wheels.cached(cache, project).name == "1.whl"
    (project / "kl_companion/more.py").write_text("x = 1\n")
    assert wheels.cached(cache, project).name == "2.whl"
    assert len(list(cache.iterdir())) == 1


def test_a_failed_build_says_why_and_is_not_kept(project: Path, tmp_path: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\nname = 3\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?s)the wheel was not built: .*invalid pyproject\.toml"):
            wheels.cached(tmp_path / "cache", project)


def test_the_pages_keep_one_wheel_and_are_written_again_for_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(tmp_path / "html", metadata={"book/using": {"kl_install": True}, "book/intro": {}})
    for name, content, pages in (("1.whl", "a", 1), ("1.whl", "b", 0), ("2.whl", "b", 1)):
        wheel = tmp_path / name
        wheel.write_text(content)
        monkeypatch.setattr(wheels, "cached", lambda cache, wheel=wheel: wheel)
        wheels.lay_wheel(app)
        assert install.outdated(app, app.env, set(), set(), set()) == ["book/using"] * pages
        (there,) = (tmp_path / "html" / "_packages").iterdir()
        assert (there.name, there.read_text()) == (name, content)


@pytest.mark.parametrize(
    ("page", "source", "shown"),
    [
        ("book/using", "pip install .", "pip install ../_packages/w.whl"),
        ("book/a/b", "pip install '.[trl]'\nuse", "pip install '../../_packages/w.whl[trl]'\nuse"),
        (
            "index",
            ".venv/bin/pip install .\n# . or '.[llm]'",
            ".venv/bin/pip install _packages/w.whl\n# . or '.[llm]'",
        ),
    ],
)
def test_a_path_from_the_page_replaces_the_dot(page: str, source: str, shown: str) -> None:
    blocks = [nodes.literal_block(source, source, classes=c) for c in (["kl-install"], [])]
    install.name_wheel(application(Path(), kl_wheel="w.whl"), nodes.container("", *blocks), page)
    assert [block.astext() for block in blocks] == [shown, source]
    assert [block.rawsource for block in blocks] == [shown, source]


def test_paths_of_a_page_are_marked_for_the_script_and_for_paper() -> None:
    body = "<pre>pip install ../_packages/w.whl\npip install &#39;../_packages/w.whl[trl,llm]&#39;</pre>"
    first, second = re.findall(r"<span.*?</span>", install.mark_wheels(body, "../_packages/w.whl"))
    assert first == (
        '<span class="kl-wheel" data-path="../_packages/w.whl" data-extras="" data-print=".">'
        "../_packages/w.whl</span>"
    )
    assert 'data-extras="[trl,llm]" data-print="&#x27;.[trl,llm]&#x27;">&#39;../_pack' in second


@pytest.mark.parametrize(
    "text", ["pip install -e . -e book", "pip install kl-companion", "pip install ./dist"]
)
def test_a_block_that_installs_something_else_is_refused(text: str) -> None:
    directive = install.Install.__new__(install.Install)
    directive.content, directive.error = [text], ValueError
    with pytest.raises(ValueError, match=re.escape(f"install got {text!r}: expected `pip install .`")):
        directive.run()


def test_pages_install_the_package_in_this_one_way() -> None:
    pages = [*(ROOT / "book").glob("*.md"), *(ROOT / "book").rglob("*.ipynb")]
    shown = {page.name: page.read_text(encoding="utf-8").replace('\\n",\n    "', "\n") for page in pages}
    command = r"pip install '?\.[\s'\[`]"
    marked = r"\{install\}\n(?:.*\n)*?```"
    assert sum(len(re.findall(marked, text)) for text in shown.values()) >= 5
    left = {name: re.findall(command, re.sub(marked, "", text)) for name, text in shown.items()}
    assert {name: found for name, found in left.items() if found} == {}


def test_on_paper_a_command_names_the_sources(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    body = f"<pre>pip install '../_packages/{WHEEL}[trl]'</pre>{install.NOTE}"
    marked = install.mark_wheels(body, f"../_packages/{WHEEL}")
    (tmp_path / "book/a.html").write_text(f'<article class="bd-article">{marked}</article>')
    text = extension("kl_single").article(tmp_path, "book/a", {"book/a": 0}).get_text()
    assert text == "pip install '.[trl]'In a copy of the sources, this is the command."


# -- downloadable notebooks ----------------------------------------------------------------------------------


def notebook(*cells: str) -> str:
    made = [
        {"cell_type": "code", "metadata": {}, "source": [cell], "id": str(i)} for i, cell in enumerate(cells)
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.mark.parametrize(
    ("code", "said", "colab"),
    [
        (
            "from kl_companion import k3",
            f"`pip install {WHEEL}`",
            "`%pip install 'kl-companion @ git+https://h/o/n'`",
        ),
        (
            "import kl_companion.plotting as p",
            f"`pip install '{WHEEL}[plots]'`",
            "kl-companion[plots] @ git+",
        ),
        (
            "from kl_book import tables, lab\n%time 1",
            "`pip install -e '.[llm]' -e book`",
            "`!git clone --depth 1 https://h/",
        ),
        (
            "from kl_companion.frameworks.trl_trainer import x\nimport kl_book",
            "`pip install -e '.[trl]' -e book`",
            "%cd",
        ),
        ("from tests.refusals import case", "It imports `tests` from the sources of the book", "git clone"),
    ],
)
def test_what_a_notebook_needs_is_computed_from_its_imports(code: str, said: str, colab: str) -> None:
    names = downloads.imported(notebook("x = 1", code))
    plain = downloads.needs(names, "book/a", WHEEL, "")
    assert said in plain
    assert "Colab" not in plain
    assert "http" not in plain
    assert colab in downloads.needs(names, "book/a", WHEEL, "https://h/o/n").removeprefix(plain)


@pytest.mark.parametrize("button", [False, True])
def test_each_copy_gets_the_cell_once(tmp_path: Path, button: bool) -> None:
    pages = {"book/a": "from kl_companion import k3", "book/b": "import math", "book/c": None}
    sources = tmp_path / "sources/book"
    sources.mkdir(parents=True)
    copies = tmp_path / "html/_sources/book"
    copies.mkdir(parents=True)
    for page, code in pages.items():
        name = f"{Path(page).name}.ipynb" if code else f"{Path(page).name}.md"
        (sources / name).write_text(notebook(code) if code else "# A page\n")
        shutil.copy(sources / name, copies / name)
    files = {
        page: sources / f"{Path(page).name}{'.ipynb' if code else '.md'}" for page, code in pages.items()
    }
    app = application(
        tmp_path / "html", found_docs=set(pages), doc2path=lambda page: str(files[page]), kl_wheel=WHEEL
    )
    options = {"repository_url": "https://example.org/o/n", "use_repository_button": button}
    app.config = SimpleNamespace(html_theme_options=options)
    downloads.finish(app, ValueError("the build failed"))
    assert (copies / "a.ipynb").read_text() == (sources / "a.ipynb").read_text()
    for _ in range(2):
        downloads.finish(app, None)
    first, second = json.loads((copies / "a.ipynb").read_text())["cells"]
    assert first["cell_type"] == "markdown"
    assert WHEEL in first["source"][0]
    assert ("example.org" in first["source"][0]) is button
    assert second["source"] == ["from kl_companion import k3"]
    assert (copies / "b.ipynb").read_text() == (sources / "b.ipynb").read_text()
    assert sorted(path.name for path in copies.iterdir()) == ["a.ipynb", "b.ipynb", "c.md"]
