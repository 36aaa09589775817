"""The table of frameworks names every setting, reads its verdicts from the tables, and says what to write."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from kl_book import framework_table as module
from kl_book.framework_table import framework_table, option_lines
from kl_companion.frameworks import FRAMEWORKS, framework, settings
from kl_companion.frameworks.history.found import found
from kl_companion.frameworks.printing import print_list
from tests.support.data import data

DATA = data(__file__)


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """The row of each setting as text, with a bar between cells."""
    html = framework_table().html
    texts = {}
    for row in re.findall(r'<tr class="kl-setting">(.*?)</tr>', html, re.DOTALL):
        name = re.search(r"audited as <code>(.*?)</code>", row)
        assert name, row
        cells = re.sub(r"<[^>]+>", " ", row.replace("</td><td", " | <td"))
        texts.setdefault(name[1], unescape(re.sub(r"\s+", " ", cells)).strip())
    return texts


@pytest.mark.parametrize(("option", "lines"), DATA["options"])
def test_an_option_as_lines(option: str, lines: list[str]) -> None:
    assert option_lines(option) == lines


def test_the_list_and_the_table_agree(rows: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    print_list()
    listed = re.findall(r"^  ([a-z]\w*\.\S+)  ", capsys.readouterr().out, re.MULTILINE)
    assert len(listed) == len(set(listed)) == len(settings())
    assert set(framework_table().settings) == set(listed)
    assert set(listed) <= set(rows)
    assert set(rows) - set(listed) <= {f.subject for f in found()}


def test_a_row_has_the_options_and_the_verdict(rows: dict[str, str]) -> None:
    for chosen in settings():
        have, minimizes, *_ = rows[chosen.name].split(" | ")
        words = re.findall(r"\w+", chosen.option)
        assert set(words) <= set(re.findall(r"\w+", have)), chosen.name
        assert minimizes.strip(), chosen.name


def test_what_to_write_instead(rows: dict[str, str]) -> None:
    k3 = rows["verl.loss_k3"].split(" | ")
    assert "kl_loss_type=low_var_kl" in k3[0]
    assert "kl_loss_coef" in k3[0]
    assert k3[1].strip().startswith("forward KL, next token")
    assert "on stale samples:" in k3[1]
    assert "far from the reference:" in k3[1]
    assert "the KL acts with β × the spread of the group's rewards" in k3[1]
    assert re.search(r"of tokens .*kl_loss_type=mse.* of whole answers .*use_kl_in_reward=True", k3[2])
    assert "adv_estimator=rloo so that rewards are not divided by their standard deviation" in k3[2]
    # right, but divided with the reward by default: no reason to keep it
    assert "keep it" not in rows["verl.reward_k1"]
    assert "keep it: it is the KL of whole answers" in rows["trl.rloo"]
    assert "keep it: it is the KL of tokens" in rows["trl.grpo"]
    assert "no option" in rows["torchforge.grpo"].split(" | ")[2]
    assert "which no option turns off" in rows["torchtune.grpo"].split(" | ")[2]
    distilled = rows["verl.distillation_k3"].split(" | ")[2]
    assert "loss_mode=k2" in distilled
    assert "kl_loss_type" not in distilled
    assert "no option" in rows["torchrl.distillation_reverse"].split(" | ")[2]  # and none of RL
    clamped = rows["verl.distillation_policy_gradient_k3"].split(" | ")[2]
    assert "loss_max_clamp=null" in clamped  # of two that are alike, the one without a clamp


def test_past_releases_stand_below_their_framework(rows: dict[str, str]) -> None:
    assert "1.10.0 to" in rows["trl.grpo"] or "1.10.0 to" in framework_table().html
    body = next(b for b in framework_table().html.split("<tbody>") if ">TRL <small>" in b)
    past = body + framework_table().html.split(body)[1].split('<tr class="kl-framework">')[0]
    assert past.index("1.10.0 to") < past.index("0.22.0 to 1.9.2") < past.index("0.15.0 to 0.15.2")
    assert "not there" not in past


def test_it_shows_itself_in_a_notebook() -> None:
    table = framework_table()
    assert table._repr_html_() is table.html
    assert repr(table) == f"FrameworkTable: {len(settings())} settings"
    assert "<script" not in table.html
    assert module.WHERE["near"] == ("on-policy", 1.0)


def test_every_framework_has_its_section_on_the_page_of_frameworks() -> None:
    page = Path(__file__).resolve().parents[2] / "book" / "frameworks_by_name.ipynb"
    sections = re.findall(r'"### (.+?)\\n"', page.read_text(encoding="utf-8"))
    assert set(sections) == {framework(name).title for name in FRAMEWORKS}
    assert len(sections) == len(FRAMEWORKS)
