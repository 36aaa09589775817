"""Pages and figures have one typeface, and its files hold the characters that the pages show."""

import io
import json
from pathlib import Path

import pytest
from fontTools.ttLib import TTFont
from matplotlib.font_manager import FontProperties, fontManager

from kl_companion import plotting
from tests.support.extensions import ROOT, extension

typefaces = extension("kl_typeface")
STYLE = ROOT / "book" / "_static" / "kl.css"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    files: list[Path] = typefaces.write(tmp_path_factory.mktemp("fonts"))
    return files


def prose() -> str:
    """Markdown of all pages."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")]
    for path in (ROOT / "book").rglob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return "".join(texts)


def test_the_style_sheet_names_the_files_that_are_written(written: list[Path]) -> None:
    text = STYLE.read_text(encoding="utf-8")
    assert len(written) == text.count("@font-face") == 3
    assert all(f"url(fonts/{path.name})" in text for path in written)
    assert '--pst-font-family-base: "Source Sans Pro"' in text


def test_each_file_is_small_and_has_the_characters_of_the_pages(written: list[Path]) -> None:
    upright = [path for path in written if "-it." not in path.name]
    assert all(10_000 < path.stat().st_size < 50_000 for path in written)
    for path in upright:
        known = {chr(code) for code in TTFont(path).getBestCmap()}
        assert {c for c in prose() if c.isprintable()} <= known
        assert TTFont(path).flavor == "woff"


def test_the_same_bytes_are_written_again(written: list[Path], tmp_path: Path) -> None:
    assert [p.read_bytes() for p in typefaces.write(tmp_path)] == [p.read_bytes() for p in written]


def test_figures_are_drawn_in_it() -> None:
    plotting.figure(lambda axes: axes.plot([0, 1]), alt="A line")
    for weight, file in (("normal", "Regular"), ("bold", "Bold")):
        with plotting._themed():
            found = fontManager.findfont(FontProperties(weight=weight))
        assert found == plotting.typeface(file)


def test_a_weight_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown weight 'Regulr'\. Did you mean 'Regular'"):
        plotting.typeface("Regulr")
    assert TTFont(io.BytesIO(Path(plotting.typeface("It")).read_bytes()))["name"].getDebugName(2) == "Italic"
