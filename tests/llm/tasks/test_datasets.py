"""Problems from files: every kind of file gives the same task, and what is wrong with one is said."""

import json
import sys

import pandas as pd
import pytest

from kl_companion.llm.tasks import make_task
from tests.support.data import data
from tests.support.llm.digits import seeded

DATA = data(__file__)

WORKED = [
    {"question": "Two and three?", "answer": "2+3=5\n#### 5"},
    {"question": "A thousand?", "answer": "#### 1,000"},
    {"question": "Half of 9?", "answer": "9/2=4.5\n#### 4.5"},
]
BOXED = [
    {"problem": "Half?", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 1", "answer": "no"},
    {"problem": "Which set?", "solution": r"\boxed{\{1, 2\}}", "level": "Level 3"},
    {"problem": "Root?", "solution": r"So $\boxed{\sqrt{2}}$", "level": "Level 5"},
]


def write(folder, rows, kind):
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\ufeff" + "\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_task(tmp_path, kind):
    task = make_task("data", path=write(tmp_path, WORKED, kind), instruction="")
    examples = {example.prompt: example for example in task.draw(3, seeded())}
    assert {prompt: e.answer for prompt, e in examples.items()} == {
        "Two and three?": "5",
        "A thousand?": "1,000",
        "Half of 9?": "4.5",
    }
    half = examples["Half of 9?"]
    assert [task.reward(t, half) for t in ("#### 9/2", "#### 4.50", "#### 4", "4.5")] == [1.0, 1.0, 0.0, 0.0]
    assert (task.reward.seen, task.reward.unread) == (4, 1)
    assert sorted(task.corpus(3, seeded())) == sorted((r["question"], r["answer"]) for r in WORKED)
    assert (task.alphabet, task.chat, task.ends, task.unique, task.draw_out) == (
        None,
        True,
        True,
        False,
        None,
    )


def test_every_problem_has_its_turn(tmp_path):
    task = make_task("data", path=write(tmp_path, WORKED, "jsonl"))
    drawn = [example.prompt for example in task.draw(7, seeded())]
    assert len(set(drawn[:3])) == len(set(drawn[3:6])) == 3
    assert drawn == [example.prompt for example in task.draw(7, seeded())]
    assert task.draw(0, seeded()) == []


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_boxed_answers_and_levels(tmp_path, kind):
    path = write(tmp_path, BOXED, kind)
    task = make_task("data", path=path, style="math", levels=[1, 3], out_levels=[5], max_new_tokens=9)
    inside = {e.level: e for e in task.draw(2, seeded())}
    assert {level: e.answer for level, e in inside.items()} == {1: r"\frac{1}{2}", 3: r"\{1, 2\}"}
    assert inside[1].prompt.startswith("Half?\n")
    assert r"\boxed{}" in inside[1].prompt
    assert [e.answer for e in task.draw_out(1, seeded())] == [r"\sqrt{2}"]
    assert [task.reward(text, inside[3]) for text in (r"\boxed{\{2,1\}}", r"\boxed{1}")] == [1.0, 0.0]
    assert task.max_new_tokens == 9


def test_out_of_domain_from_another_file(tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"about": "x", "data": [{"question": "Hard?", "answer": 7}]}))
    task = make_task(
        "data", path=write(tmp_path, WORKED, "csv"), out=other, instruction="Go.", reads="last_number"
    )
    assert [(e.prompt, e.answer) for e in task.draw_out(1, seeded())] == [("Hard?\nGo.", "7")]
    assert task.reward("I think 7", task.draw_out(1, seeded())[0]) == 1.0


def test_named_fields_and_short_answers(tmp_path):
    rows = [{"q": "x?", "a": "x^2 + 1"}, {"q": "y?", "a": r"so \boxed{3}"}]
    task = make_task("data", path=write(tmp_path, rows, "json"), style="math", question="q", answer="a")
    assert sorted(e.answer for e in task.draw(2, seeded())) == ["3", "x^2 + 1"]


def test_what_a_csv_file_says_stays_as_it_is(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("question,answer\nNA,1.50\n007,12\n", encoding="utf-8")
    task = make_task("data", path=path, instruction="")
    assert sorted((e.prompt, e.answer) for e in task.draw(2, seeded())) == [("007", "12"), ("NA", "1.50")]


def test_a_data_set_of_the_datasets_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    saved = tmp_path / "saved"
    whole = datasets.DatasetDict({"train": datasets.Dataset.from_list(WORKED)})
    whole.save_to_disk(str(saved))
    assert len({e.prompt for e in make_task("data", path=saved).draw(3, seeded())}) == 3
    with pytest.raises(ValueError, match=r"unknown split 'test'.*Known: train"):
        make_task("data", path=saved, split="test")


def test_without_the_datasets_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"kl-companion\[llm\]"):
        make_task("data", path="someone/something")


def altered(place, **fields):
    rows = [dict(row) for row in WORKED]
    rows[place] |= fields
    return rows


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    DATA["rows"],
)
def test_bad_rows(as_installed, tmp_path, rows, options, message):
    with pytest.raises(ValueError, match=message):
        make_task("data", path=write(tmp_path, eval(rows), "json"), **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    DATA["files"],
)
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        make_task("data", path=path)
