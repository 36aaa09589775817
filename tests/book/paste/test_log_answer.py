"""The page's Python, with nothing but its archive, reports of a log what the command line reports."""

import base64
import io
import json
import sqlite3
from contextlib import redirect_stderr, redirect_stdout

import pytest

from kl_companion.cli import main
from tests.support.extensions import extension

PAGE = extension("kl_paste")
CONSOLES = {entry["title"]: entry["log"].encode() for entry in PAGE.examples(PAGE.LOG)}
OBSERVED = b"step,reward,kl,kl_monitor/kl,kl_monitor/logged\n" + b"".join(
    f"{i},0.{i},0.0{i},0.01,0.0{i}\n".encode() for i in range(1, 10)
)
UNKNOWN = b'{"step": 1, "my_kl": 0.2, "reward": 0.1}\n{"step": 2, "my_kl": 0.3, "reward": 0.2}\n'
OPTIONS = {"framework": "TRL GRPO", "release": "0.19", "beta": "0.04", "answers": "640", "group": "8"}
REFUSED = {
    "empty": (b" \n", {}, "pasted text is empty, expected a log: trainer_state.json"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(40), {"file": "a.png"}, "a.png: it is a picture"),
    "no text": (bytes(range(128, 256)), {"file": "model.bin"}, "begins with the bytes 80 81 82"),
    "no numbers": (b"hello\n", {}, "pasted text: "),
    "no framework": (UNKNOWN, {"framework": "x"}, "framework is 'x', expected one of"),
}


def database(folder):
    """A log of trackio, which only a file can be."""
    path = folder / "runs.db"
    with sqlite3.connect(path) as base:
        base.execute("create table metrics (id integer primary key, run_name text, step int, metrics text)")
        rows = [("a", i, json.dumps({"kl": 0.01 * i, "reward": 0.1 * i})) for i in range(9)]
        base.executemany("insert into metrics (run_name, step, metrics) values (?, ?, ?)", rows)
    base.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Content and options of every log by its name, which is that of its file."""
    stored = database(tmp_path_factory.mktemp("trackio"))
    others = {"runs.db": stored, "observed.csv": OBSERVED}
    plain = {f"{i}.log": x for i, x in enumerate(CONSOLES.values())} | others
    return {name: (x, {}) for name, x in plain.items()} | {"options.log": (plain["0.log"], OPTIONS)}


@pytest.fixture(scope="module")
def answers(ask_page, logs):
    requests = {n: {"file": n, **o, "log": base64.b64encode(x).decode()} for n, (x, o) in logs.items()}
    for name, (x, options, _) in REFUSED.items():
        requests[name] = {"file": "", **options, "log": base64.b64encode(x).decode()}
    return ask_page(requests)


def commanded(monkeypatch, folder, name, content, options, *more):
    """What the command line prints of a file, and its status."""
    (folder / name).write_bytes(content)
    monkeypatch.chdir(folder)
    words = [x for option, value in options.items() for x in (f"--{option}", value)]
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        status = main(["report", name, *words, *more])
    return shown.getvalue(), status


@pytest.mark.parametrize("name", [*(f"{i}.log" for i in range(3)), "runs.db", "observed.csv", "options.log"])
def test_the_page_says_what_the_command_line_says(answers, logs, monkeypatch, tmp_path, name):
    answer = answers[name]
    text, _ = commanded(monkeypatch, tmp_path, name, *logs[name])
    data, _ = commanded(monkeypatch, tmp_path, name, *logs[name], "--json")
    assert answer["text"] == text.rstrip("\n")
    assert {**answer["card"], "page": None} == json.loads(data)
    paragraphs = [x for section in answer["sections"] for x in section]
    assert " ".join(f"{x['mark']} {x['text']}" for x in paragraphs).split() == text.split()


def test_what_each_example_shows(answers):
    topics = [answers[f"{i}.log"]["card"]["verdicts"][0]["topic"] for i in range(len(CONSOLES))]
    assert topics == ["worse_than_the_start", "impossible_answer", "price_above_range"]
    assert {answers[f"{i}.log"]["card"]["level"] for i in range(len(CONSOLES))} == {"wrong"}


def test_columns_of_the_monitor_and_options_are_read(answers):
    assert "kl_monitor/kl: exact KL" in answers["observed.csv"]["text"]
    assert answers["options.log"]["card"]["beta"]["value"] == 0.04
    assert answers["options.log"]["card"]["releases"].endswith("0.19")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_ends_in_the_sentence_of_the_command_line(answers, monkeypatch, tmp_path, name):
    content, options, says = REFUSED[name]
    options = dict(options)
    file = options.pop("file", "pasted text")
    printed, status = commanded(monkeypatch, tmp_path, file, content, options)
    assert says in answers[name]["error"]
    assert (printed, status) == (f"kl-companion: {answers[name]['error']}\n", 2)
