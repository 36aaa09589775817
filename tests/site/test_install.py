"""A reader installs the package from the site: the command that the copy button copies is run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import browser as browsers

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
PAGES = ("book/intro.html", "book/using.html", "book/quickstart.html")
OFFLINE = ["--no-cache-dir", "--no-compile", "--force-reinstall", "--no-deps", "--no-index"]
COPIED = "return [...document.querySelectorAll('.kl-install')].map((place) => place.textContent.trim())"
# what the copy button hands to the clipboard, which a headless browser may refuse
CATCH = """document.execCommand = () => {
  window.klCopied = String(getSelection()) || document.activeElement.value;
  return true;
};"""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds nothing; pip is that of the tests."""
    folder = tmp_path_factory.mktemp("empty environment")
    venv.create(folder)
    return folder / "bin" / "python"


def copied(session: Any, number: int) -> str:
    """Click the copy button of an install command, and return what it copies."""
    session.execute_script(CATCH)
    session.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'}); arguments[0].click()",
        session.find_elements("css selector", ".kl-install button.copybtn")[number],
    )
    return str(session.execute_script("return window.klCopied"))


def installed(python: Path, commands: list[str], folder: Path) -> str:
    """Run install commands in a folder, with no index, and return what the command line then lists."""
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", str(python)]
    for command in commands:
        program, verb, *words = shlex.split(command)
        assert (program, verb) == ("pip", "install")
        done = run([*pip, "install", *OFFLINE, *words], folder)
        assert "Successfully installed kl-companion" in done.stdout, done.stderr
    needed = Path(sysconfig.get_paths()["purelib"])
    code = f"import sys; sys.path.append({str(needed)!r}); import kl_companion; print(kl_companion.__file__)"
    code += "; from kl_companion.cli import main; sys.exit(main(['list', 'estimators']))"
    done = run([str(python), "-IB", "-c", code], folder)
    assert done.stdout.startswith(str(python.parents[1])), done.stderr
    return done.stdout


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(("place", "quoted"), [("site", "site"), ("a/it's (b)", "a/it%27s%20%28b%29")])
def test_the_copied_commands_install_from_the_site(
    session: Any, empty: Path, tmp_path: Path, place: str, quoted: str
) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(SITE)
    with browsers.served(tmp_path) as base:
        session.get(f"{base}/{place}/book/using.html?q=1#using-install")
        (wheel,) = (SITE / "_packages").iterdir()
        commands = [copied(session, number) for number in (0, 1)]
        address = f"{base}/{quoted}/_packages/{wheel.name}"
        assert commands == [f"pip install {address}", f"pip install 'kl-companion[trl] @ {address}'"]
        assert session.find_element("css selector", ".kl-install-note").text.startswith("From a copy")
        assert "k3" in installed(empty, commands, tmp_path)


def test_a_page_that_is_opened_as_a_file_names_the_path_from_its_folder(session: Any, empty: Path) -> None:
    session.get((SITE / "book/using.html").as_uri())
    (wheel,) = (SITE / "_packages").iterdir()
    commands = [copied(session, number) for number in (0, 1)]
    path = f"../_packages/{wheel.name}"
    assert commands == [f"pip install {path}", f"pip install '{path}[trl]'"]
    assert (
        "starts in the folder of this page" in session.find_element("css selector", ".kl-install-note").text
    )
    assert "k3" in installed(empty, commands, SITE / "book")


@pytest.mark.parametrize("page", PAGES)
def test_every_install_command_of_a_page_names_the_wheel(session: Any, base: str, page: str) -> None:
    (wheel,) = (SITE / "_packages").iterdir()
    session.get(f"{base}/{page}")
    commands = session.execute_script(COPIED)
    assert commands
    for command in commands:
        assert f"{base}/_packages/{wheel.name}" in command
        assert not re.search(r"pip install '?\.", command)


def test_the_wheel_of_the_site_holds_no_file_of_the_book() -> None:
    (path,) = (SITE / "_packages").iterdir()
    with zipfile.ZipFile(path) as wheel:
        folders = {name.partition("/")[0] for name in wheel.namelist()}
    assert folders == {"kl_companion", path.name.partition("-py3")[0] + ".dist-info"}


def test_downloadable_notebooks_say_what_they_need() -> None:
    needs = {}
    for path in sorted((SITE / "_sources").rglob("*.ipynb")):
        cell = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
        needs[path.stem] = "".join(cell["source"]) if cell["id"] == "what-this-notebook-needs" else ""
    assert all(needs.values()), [name for name, text in needs.items() if not text]
    assert "_packages/kl_companion-" in needs["quickstart"]
    assert {"quickstart", "what_changed"} == {name for name, text in needs.items() if "_packages/" in text}
