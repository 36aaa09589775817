"""Logs of every form, whole, cut, empty, and what is no log."""

import gzip
import json
import math
import sqlite3
import struct
import subprocess
import sys
import time

import pytest

from kl_companion.monitor.logs import read_log
from kl_companion.monitor.logs.protobuf import fields
from tests.support.data import data

TEXTS = data(__file__)


def written(folder, content, name="log"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def check(log, case):
    assert list(log.steps) == case["steps"]
    for place, row in (("first", 0), ("last", -1)):
        values = {key: log.columns[key][row] for key in case.get(place, {})}
        assert values == case.get(place, {})
    assert case.get("note", "") in " ".join(log.notes)
    assert {key: log.config.get(key) for key in case.get("config", {})} == case.get("config", {})


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name, tmp_path):
    case = TEXTS[name]
    path = written(tmp_path, case["text"])
    log = read_log(path)
    assert log.form == case["form"]
    check(log, case)
    check(read_log(written(tmp_path, gzip.compress(case["text"].encode()), "zipped")), case)
    check(read_log(written(tmp_path, case["text"].encode("utf-16"), "wide")), case)


def varint(x):
    parts = []
    while x > 127:
        parts.append(x & 127 | 128)
        x >>= 7
    return bytes([*parts, x])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step, tag, value):
    tensor = field(1, 1) + field(4, struct.pack("<f", value))
    simple = varint(2 << 3 | 5) + struct.pack("<f", value)
    entry = field(1, tag.encode()) + (field(8, tensor) if step % 2 else simple)
    body = field(1, 1.0) + field(2, step) + field(5, field(1, entry))
    return struct.pack("<Q", len(body)) + b"\0\0\0\0" + body + b"\0\0\0\0"


HEAD = field(1, 1.0) + field(3, b"brain.Event:2")
EVENTS = struct.pack("<Q", len(HEAD)) + b"\0\0\0\0" + HEAD + b"\0\0\0\0"
EVENTS += event(3, "train/kl", 0.25) + event(4, "train/kl", 0.5)


def test_tensorboard_and_a_cut_record(tmp_path):
    log = read_log(written(tmp_path, EVENTS))
    assert (list(log.steps), list(log.columns["train/kl"])) == ([3, 4], [0.25, 0.5])
    log = read_log(written(tmp_path, EVENTS[:-9]))
    assert list(log.columns["train/kl"]) == [0.25]


def test_a_folder_of_event_files(tmp_path):
    (tmp_path / "run").mkdir()
    written(tmp_path / "run", EVENTS, "a")
    written(
        tmp_path / "run", EVENTS[: len(EVENTS) - len(event(4, "train/kl", 0.5))] + event(5, "x", 1.0), "b"
    )
    written(tmp_path, "nothing to see", "notes.txt")
    log = read_log(tmp_path)
    assert list(log.steps) == [3, 4, 5]
    assert "'run' of the folder" in log.notes[0]


def chunk(kind, content):
    return struct.pack("<IHB", 0, len(content), kind) + content


def wandb_file(rows, config, console=()):
    records = [
        field(
            17,
            field(
                4,
                b"".join(
                    field(1, field(1, k.encode()) + field(16, json.dumps(v).encode()))
                    for k, v in config.items()
                ),
            ),
        )
    ]
    for row in rows:
        items = (field(1, field(2, k.encode()) + field(6, float(v))) for k, v in row.items())
        records.append(field(2, b"".join(items)))
    records += [field(13, field(3, line.encode())) for line in console]
    first, *rest = records
    return (
        b":W&B"
        + struct.pack("<HB", 0xBEE1, 0)
        + chunk(2, first[:5])
        + chunk(4, first[5:])
        + b"".join(chunk(1, x) for x in rest)
    )


def test_wandb_offline(tmp_path):
    content = wandb_file([{"_step": 1, "kl": 0.1}, {"_step": 2, "kl": 0.2}], {"beta": 0.05})
    log = read_log(written(tmp_path, content))
    assert (list(log.columns["kl"]), log.config["beta"]) == ([0.1, 0.2], 0.05)
    assert list(read_log(written(tmp_path, content[:-3])).columns["kl"]) == [0.1]


def test_the_console_of_a_crashed_wandb_run(tmp_path):
    log = read_log(written(tmp_path, wandb_file([], {"beta": 0.05}, ["step:1 - actor/kl_loss:0.5 - a:1"])))
    assert list(log.columns["actor/kl_loss"]) == [0.5]
    assert "no history" in log.notes[0]


def test_databases(tmp_path):
    with sqlite3.connect(tmp_path / "trackio.db") as base:
        base.execute("create table metrics (id integer, run_name text, step integer, metrics text)")
        base.execute("create table configs (run_name text, config text)")
        rows = [(1, "a", 1, '{"kl": 9}'), (2, "b", 1, '{"kl": 0.1}'), (3, "b", 2, '{"kl": 0.2}')]
        base.executemany("insert into metrics values (?,?,?,?)", rows)
        base.execute("insert into configs values ('b', '{\"beta\": 0.5}')")
    log = read_log(tmp_path / "trackio.db")
    assert (list(log.columns["kl"]), log.config["beta"]) == ([0.1, 0.2], 0.5)
    assert "2 runs; this is 'b'" in log.notes[0]
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        base.execute(
            "create table metrics (key text, value real, timestamp int, run_uuid text, step int, is_nan int)"
        )
        base.executemany(
            "insert into metrics values (?,?,?,?,?,0)", [("k_at_1", 0.5, s, "r", s) for s in (2, 1)]
        )
        base.execute("create table params (key text, value text, run_uuid text)")
        base.execute("insert into params values ('beta', '0.5', 'r')")
    log = read_log(tmp_path / "mlflow.db")
    assert (list(log.steps), list(log.columns["k@1"]), log.config["beta"]) == ([1, 2], [0.5, 0.5], "0.5")


def test_the_file_store_of_mlflow(tmp_path):
    store = tmp_path / "mlruns" / "0" / "abc" / "metrics"
    store.mkdir(parents=True)
    written(store, "1000 0.1 1\n1001 0.2 2\n", "kl")
    assert list(read_log(tmp_path).columns["kl"]) == [0.1, 0.2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, expected a log"),
        (b" \n\n", "is empty, expected a log"),
        (bytes(range(128, 256)) * 3, "which are no text, expected a log"),
        (b"\x89PNG\r\n", "it is a picture, expected a log"),
        (b"PK\x03\x04", "a zip archive"),
        (gzip.compress(b"{}" * 5000, mtime=0)[:20], "is a cut gzip file"),
        (b"hello\nworld\n", "it is read as text and has no row, expected rows of numbers"),
        (b'{"a": "x"}\n{"a": "y"}\n', "has only texts (a), expected rows of numbers"),
        (b'{"log_history": []}', "has no row"),
        (b"[1, 2]", "has no row"),
        (b"{'train_runtime': 1.5, 'kl': 0.5}\n", "has only the summary of a run"),
        (b"SQLite format 3\x00rubbish", "it is a database that cannot be read"),
        (gzip.compress(b"SQLite format 3\x00", mtime=0), "expected a file: SQLite reads it from the disk"),
    ],
)
def test_what_is_no_log(content, message, tmp_path):
    with pytest.raises(ValueError, match="log") as error:
        read_log(written(tmp_path, content))
    assert message in str(error.value)


def test_nothing_and_an_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read_log(tmp_path / "nothing")
    with pytest.raises(ValueError, match="has no file, expected a log"):
        read_log(tmp_path)
    with sqlite3.connect(tmp_path / "other.db") as base:
        base.execute("create table cats (name text)")
    with pytest.raises(ValueError, match=r"tables \['cats'\], expected one of trackio or MLflow"):
        read_log(tmp_path / "other.db")


def test_a_broken_message():
    with pytest.raises(ValueError, match="wire type 3"):
        list(fields(b"\x0b"))
    with pytest.raises(ValueError, match="ends at byte 2, expected 7"):
        list(fields(b"\x0a\x05"))
    with pytest.raises(ValueError, match="ends within a number"):
        list(fields(b"\x80"))


def verl_lines(size):
    """Rows of verl's console of about `size` bytes."""
    keys = "".join(f" - group{i}/metric_{i}/mean:np.float64(0.{i}2345678901234)" for i in range(60))
    row = f"\x1b[36m(TaskRunner pid=1)\x1b[0m step:%d{keys}\n"
    return "".join(row % i for i in range(size // len(row)))


@pytest.mark.parametrize("form", ["verl", "state"])
def test_a_large_log_is_read_in_time_and_little_memory(form, tmp_path):
    """60 MB must take 5 s at most: a tenth of it half a second, and thrice that on a busy machine."""
    if form == "verl":
        text = verl_lines(6_000_000)
    else:
        row = {f"completions/metric_{i}": i + 0.123456789 for i in range(26)}
        rows = [json.dumps({**row, "step": i}, indent=1) for i in range(6_000_000 // 1060)]
        text = '{"log_history": [' + ",\n".join(rows) + '], "max_steps": 1}'
    path = written(tmp_path, text)
    start = time.process_time()
    log = read_log(path)
    assert time.process_time() - start < 1.5
    assert len(log.columns) >= 27
    assert sum(not math.isnan(x) for column in log.columns.values() for x in column) > 100_000


def test_reading_needs_no_torch(tmp_path):
    path = written(tmp_path, TEXTS["csv"]["text"])
    code = f"import sys; from kl_companion.monitor.logs import log_report; log_report({str(path)!r}); "
    code += "print(sorted({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
