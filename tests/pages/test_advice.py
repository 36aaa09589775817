"""No page advises anything but what the table of recommendations says; contradictions are found."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from types import ModuleType

import pytest

from kl_companion.auditing import remedy
from kl_companion.divergences import DIVERGENCES
from kl_companion.recommendations import GUIDE, LENGTHS, LOGGED, RECOMMENDATIONS, TRAINED
from tests.support.advice import BOOK, GUIDES, PRACTICE, ROOT, advice, allowed, faults, pages, plainly
from tests.support.data import data

DATA = data(__file__)


PAGES = pages()
# sentences that contradict the table, each in another way
SENTENCES = data(__file__)


def extension() -> ModuleType:
    """book/_ext/kl_guide.py."""
    path = ROOT / "book" / "_ext" / "kl_guide.py"
    spec = importlib.util.spec_from_file_location("kl_guide", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GUIDE_PAGE = extension()


def planted(page: str, given: Sequence[str]) -> list[str]:
    """Those of the sentences that are found to be wrong in the page, written where it gives advice."""
    text, heading = PAGES[page], f"## {PRACTICE}\n"
    written = "\n\n" + "".join(f"* {sentence}\n" for sentence in given) + "\n"
    text = text.replace(heading, heading + written, 1) if heading in text else text + written
    found = faults(page, text)
    return [s for s in given if any(f.endswith(f": {plainly(s)}") for f in found)]


@pytest.mark.parametrize("page", list(PAGES))
def test_a_page_advises_what_the_table_recommends(page: str) -> None:
    assert faults(page, PAGES[page]) == []


@pytest.mark.parametrize("page", list(PAGES))
def test_a_contradiction_is_found_on_every_page(page: str) -> None:
    assert planted(page, SENTENCES["wrong"]) == SENTENCES["wrong"]
    assert planted(page, SENTENCES["right"]) == []


@pytest.mark.parametrize("page", [p for p in PAGES if p in GUIDES or f"## {PRACTICE}" in PAGES[p]])
def test_advice_without_a_verb_is_found_where_a_page_advises(page: str) -> None:
    verbless = ("K1 in the loss.", "Whole answers: K3 in the reward.", "K2 in the loss, or K3 in the reward.")
    assert planted(page, verbless) == list(verbless)


def test_the_pages_that_advise_are_read() -> None:
    found = {page: list(advice(page, text)) for page, text in PAGES.items()}
    advising = [page for page, items in found.items() if items]
    assert {"intro.md", "README.md", "which_one.md", "cheat_sheet.ipynb", "explorer.ipynb"} <= set(PAGES)
    assert sum(f"## {PRACTICE}" in text for text in PAGES.values()) >= 20
    assert advising
    assert {item.place for items in found.values() for item in items} == {"log", "loss", "reward", ""}


def test_no_page_says_that_grpo_has_its_kl_in_the_reward() -> None:
    """Its usual term is K3 in the loss, as the glossary says."""
    assert "The usual KL term is K3 in the loss." in PAGES["glossary.md"]
    pattern = re.compile(r"K1 in the reward[^.;|]*\bGRPO|\bGRPO\b[^.;|]*K1 in the reward")
    assert [page for page, text in PAGES.items() if pattern.search(plainly(text))] == []


# -- what is written from the table ------------------------------------------------


def test_an_answer_of_the_guide_is_the_row_of_the_table() -> None:
    for entry in GUIDE:
        text = GUIDE_PAGE.markdown(entry)
        assert entry.code in text
        assert f"**{'Subtract' if entry.place == 'reward' else 'Differentiate'}** {entry.name}" in text
        assert entry.place == "loss" or "Differentiate" not in text
        assert all(f"{p.name} {GUIDE_PAGE.gradient(p.objective)}" in text for p in entry.pitfalls if p.lines)
        (line,) = (line for line in text.splitlines() if line.startswith("**Log**"))
        # what is named is in the code: a ratio above all
        assert ("ratio" in line) == ("rho *" in line) == (entry.samples == "older")
    assert re.findall(r"<option value=\"(\w+)\"", GUIDE_PAGE.form()) == [
        "policy", "older", "loss", "reward", "token", "sequence", "forward",
    ]  # fmt: skip


def test_a_gradient_is_said_in_the_words_of_the_question() -> None:
    said = GUIDE_PAGE.gradient("token_reverse_kl - token_forward_kl")
    assert said == "has the gradient of the reverse KL of every token − the forward KL of every token"
    assert GUIDE_PAGE.gradient("zero") == "has zero expected gradient"
    assert GUIDE_PAGE.gradient_cell("zero") == "nothing: it is zero in expectation"
    written = "\n".join(GUIDE_PAGE.TABLES[name]() for name in ("not-policy", "not-older", "lengths"))
    assert not any(f"`{t.objective}`" in written for t in LENGTHS)
    assert "squared log-ratio / 2, mean over each answer" in written


def test_the_tables_of_a_page_hold_every_row_of_the_table_of_recommendations() -> None:
    written = "\n".join(make() for make in GUIDE_PAGE.TABLES.values())
    terms = [t for r in TRAINED for t in (r, *r.alternatives, *r.pitfalls)] + [*LOGGED, *LENGTHS]
    assert all(f"`{t.arguments}`" in written for t in terms if t.arguments)
    assert all(len(make().splitlines()) <= 2 + 8 for make in GUIDE_PAGE.TABLES.values())
    page = PAGES["which_one.md"]
    assert re.findall(r"```\{recommended\} ([\w-]+)", page) == [
        "log-reverse", "log-forward", "policy", "not-policy", "older", "not-older", "lengths",
    ]  # fmt: skip
    assert len(GUIDE_PAGE.TABLES) == 9
    # up to the last of them no table is typed
    before = page[: page.rindex("{recommended}")]
    assert not re.search(r"(?m)^\|", before)
    assert "```{decision-guide}" in PAGES["intro.md"]


def test_the_cheat_sheet_is_made_of_the_table() -> None:
    source = (BOOK / "cheat_sheet.ipynb").read_text(encoding="utf-8")
    assert "from kl_companion.recommendations import LENGTHS, TRAINED, values_of" in source
    assert "```{recommended} log-list" in source
    assert not re.search(r"\bkl_(?:loss|reward)\(rollout, \\\"", source)


@pytest.mark.parametrize(("divergence", "level", "key"), DATA["a_remedy_is_the_row_of_the_table"])
def test_a_remedy_is_the_row_of_the_table(divergence: str, level: str, key: str) -> None:
    """`tests/auditing/test_auditor.py` audits each; here are the lines."""
    _, *lines, last = remedy(DIVERGENCES[divergence], level=level, beta=0.5).splitlines()
    assert [line.strip() for line in lines] == RECOMMENDATIONS[key].lines.splitlines()
    assert last.split("  #")[0].strip() == (
        "return 0.5 * kl" if level == "token" else "return (0.5 * kl).mean()"
    )


def test_a_remedy_for_another_divergence_is_kf_plus_plus_with_a_detached_ratio() -> None:
    for name in DIVERGENCES:
        for level in ("token", "sequence"):
            source = remedy(DIVERGENCES[name], level=level)
            (ratio,) = (
                line for line in source.splitlines() if re.search(r"\brho\b.*=", line.split("kl =")[0])
            )
            assert ratio.rstrip().endswith(".detach()")


# -- code that a page shows without being written from the table -------------------


def test_what_is_passed_to_a_trainer_is_recommended() -> None:
    """Rows of the table for TRL, and options of the commands."""
    rows = dict(re.findall(r"(?m)^\| (the [^|]+) \| ([^|]+) \|$", PAGES["using.md"]))
    known = allowed()
    token, exact, answers = (
        rows["the gradient of the token-level reverse KL, on- and off-policy"],
        rows["the same without sampling noise"],
        next(cell for name, cell in rows.items() if name.startswith("the gradient of the sequence KL")),
    )
    assert token == '`"k2"`'
    assert ("loss", "reverse", "K2") in known
    assert re.findall(r"\"(\w+)", exact) == ["exact_kl", "top_k_reverse_kl"]
    assert {("loss", "reverse", "exact"), ("loss", "reverse", "top-k")} <= set(known)
    assert 'KLTerm("k1", "reward")' in answers
    assert ("reward", "reverse", "K1") in known
    text = PAGES["using.md"]
    assert set(re.findall(r"--estimator (\w+) --placement (\w+)", text)) == {("exact_kl", "loss")}
    assert re.findall(r"kl_loss_type=(\w+)", text) == ["k3_plus_plus"]
    assert ("loss", "reverse", "K3++") in known
    assert re.findall(r"(?m)^\+?\s+kl=\"(\w+)\"", text) == ["k2"]
