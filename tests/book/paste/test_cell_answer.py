"""A cell that runs in its page: what it prints, and what it says where it cannot go on."""

from __future__ import annotations

import json

import pytest

from kl_book.paste.cell_answer import cell_answer
from tests.support.data import data

CASES = data(__file__)


def answered(code: str, before: str = "") -> tuple[str, str]:
    answer = json.loads(cell_answer(json.dumps({"code": code, "before": before})))
    return answer["printed"], answer["error"]


@pytest.mark.parametrize("case", CASES["prints"])
def test_what_a_cell_prints(case: dict[str, str]) -> None:
    assert answered(case["code"], case.get("before", "")) == (case["printed"], "")


@pytest.mark.parametrize("case", CASES["fails"])
def test_where_and_why_a_cell_fails(case: dict[str, str]) -> None:
    assert answered(case["code"], case.get("before", "")) == (case.get("printed", ""), case["error"])


def test_cells_share_no_names() -> None:
    assert answered("x = 1\nx") == ("1\n", "")
    assert answered("x")[1] == "Line 1: NameError: name 'x' is not defined"


@pytest.mark.parametrize("before", ["x = unknown", "raise ImportError('no plots')"])
def test_what_earlier_cells_lack_is_an_error_of_the_build(before: str) -> None:
    with pytest.raises((NameError, ImportError)):
        answered("x", before)


def test_in_the_page_itself(ask_page) -> None:  # type: ignore[no-untyped-def]
    found = ask_page(
        {name: {"before": "import torch\nimport numpy", **case} for name, case in CASES["page"].items()}
    )
    for name, case in CASES["page"].items():
        assert found[name] == {"printed": case.get("printed", ""), "error": case.get("error", "")}
