"""Numbers of the first page, each against a computation by other means."""

from __future__ import annotations

import math
import re
from itertools import product

import pandas as pd
import pytest

from kl_book import front, tables
from kl_companion.frameworks import setting
from kl_companion.frameworks.printing import print_list
from tests.support import layout


def gain(p: float, size: int, unbiased: bool) -> float:
    """Return the factor of the reward's gradient, from every group of rewards of 0 and 1."""
    total = 0.0
    for group in product((0, 1), repeat=size):
        right = sum(group)
        variance = right * (size - right) / size**2 * (size / (size - 1) if unbiased else 1)
        if variance:
            first = (group[0] - right / size) / math.sqrt(variance)
            total += p**right * (1 - p) ** (size - right) * first * group[0]
    return total / (p * (1 - p))


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("p", [0.01, 0.3, 0.5])
def test_what_beta_is_worth_in_groups(p: float, unbiased: bool) -> None:
    assert front.effective_beta(p, 8, unbiased=unbiased) == pytest.approx(0.04 / gain(p, 8, unbiased))


def test_what_beta_is_worth_in_large_groups() -> None:
    assert front.effective_beta(0.3, None) == pytest.approx(0.04 * math.sqrt(0.3 * 0.7))


def test_one_log_line() -> None:
    text = front.log_line()
    told = [float(x) for x in re.findall(r"\*\*(\d[\d.]*)", text)]
    assert told == [10, 0.0008, 0.4, 0.018, 0.022]
    assert "= 0.46, so an answer loses 0.18 of a reward of 1" in text
    assert "0.020 if by G" in text
    assert "1 % to 99 % of the cases, 0.015 to 0.023" in text
    assert [line[:3] for line in text.splitlines()] == ["* *"] * 4


def test_the_edition_is_that_of_the_citation() -> None:
    lines = (layout.ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    told = dict(line.split(": ", 1) for line in lines if re.match(r"(version|date-released|license): ", line))
    date, licenses = told["date-released"].strip('"'), told["license"].strip("[]").split(", ")
    assert front.edition().startswith(f"Version {told['version']}, {date}; {' and '.join(licenses)};")


def test_how_far_k3_is_turned_is_what_the_card_says(capsys: pytest.CaptureFixture[str]) -> None:
    from kl_companion import audit

    card = " ".join(str(audit("k3")).split())
    (degrees,) = re.findall(r"by (\d+)° at 0.01, (\d+)° at 0.1 and (\d+)° at 1 nats", front.turned_k3())
    assert re.findall(r"turned by (\d+)°", card) == list(degrees) == ["5", "13", "22"]


def frame(*paths: tuple[str, float, int, list[float], list[float]]) -> pd.DataFrame:
    rows = [
        {"study": study, "beta": beta, "seed": seed, "step": i, "reward_in": reward, "kl": kl}
        for study, beta, seed, rewards, kls in paths
        for i, (reward, kl) in enumerate(zip(rewards, kls, strict=True))
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


def test_the_kl_at_the_common_reward_is_interpolated() -> None:
    runs = frame(
        ("K2 in loss", 0.3, 0, [0.2, 0.3, 0.4], [0.0, 1.0, 2.0]),
        ("K2 in loss, more", 0.3, 3, [0.2, 0.45, 0.3], [0.0, 1.0, 5.0]),
        ("K2 in loss", 1.0, 0, [0.2, 0.9, 0.9], [0.0, 9.0, 9.0]),
        ("no KL", 0.0, 0, [0.2, 0.2, 0.36], [0.0, 1.0, 1.32]),
        ("K3 in reward", 0.3, 0, [0.2, 0.1, 0.0], [0.0, 1.0, 2.0]),
    )
    spent = front.kl_at_reward(runs)
    assert spent["K2 in the loss"] == pytest.approx([1.5, 0.6])
    assert spent["no KL term"] == pytest.approx([1.3])
    assert math.isnan(spent["K3 in the reward"][0])


def test_what_the_page_says_of_the_costs() -> None:
    """Right terms spend less than half of what no term spends; K3 in the reward never gets there."""
    spent = front.kl_at_reward(tables.load("llm_rl"))
    mean = {words: sum(kls) / len(kls) for words, kls in spent.items()}
    assert all(3 <= len(kls) <= 5 for kls in spent.values())
    assert [words for words, kl in mean.items() if math.isnan(kl)] == ["K3 in the reward"]
    good, bad = list(mean.values())[:4], list(mean.values())[4:7]
    assert max(good) < min(bad) / 2
    assert round(mean["K2 in the loss"], 2) == 0.37
    assert round(mean["K1 in the loss"], 2) == 1.03


def test_the_figure_of_the_costs() -> None:
    drawn = front.costs()
    assert "K3 in the reward never gets there" in drawn.alt
    assert set(drawn.svg) == {"light-wide", "dark-wide", "light-narrow", "dark-narrow"}


def test_a_framework_in_a_line_shows_a_part_of_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    print_list()
    listed = capsys.readouterr().out
    for name, short in front.FIRST.items():
        assert f"  {name}  " in listed
        words = [word for word in re.findall(r"\w+", short) if word]
        assert set(words) <= set(re.findall(r"\w+", setting(name).option)), name


def test_the_lines_of_the_frameworks() -> None:
    html = front.first_rows().html
    cells = [
        [re.sub(r"<[^>]+>", " ", cell).split() for cell in row.split("</td>")[:3]]
        for row in re.findall(r'<tr class="kl-setting">(.*?)</tr>', html, re.DOTALL)
    ]
    table = {cell[0][0]: [" ".join(x) for x in cell[1:]] for cell in cells}
    assert len(cells) == len(front.FIRST)
    assert table["GRPOConfig(beta=...)"] == [
        "reverse KL, next token 0.22.0 to 1.9.2: forward KL, next token",
        "keep it",
    ]
    assert table["kl_loss_type=low_var_kl"] == ["forward KL, next token", "kl_loss_type=mse (or k2)"]
    assert table["use_kl_in_reward=True"][1] == "algorithm.adv_estimator=rloo"
    assert table["--algo.kl.use_loss"][0] == "nothing: the expected gradient is zero"
    assert 'class="kl-framework"' in html  # which the filter of the page reads
