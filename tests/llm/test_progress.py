"""What a run shows: at most once a second, on stdout, and in a notebook a plot that is replaced in place."""

import io
import sys

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from kl_companion.llm import progress as module
from kl_companion.llm.progress import Progress, picture, where_we_are


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def monotonic(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def run(progress, clock, seconds, steps):
    for step in range(1, steps + 1):
        clock.now += seconds
        progress({"step": step, "kl": step / 4, "reward": 0.5})


def test_a_log_gets_one_line_a_second_and_the_last_one(clock, capfd):
    run(Progress(10, "sort", ["kl"]), clock, 0.3, 10)
    out, err = capfd.readouterr()
    assert out.splitlines() == [
        "sort: step 1 of 10, kl 0.25",
        "sort: step 5 of 10, kl 1.25",
        "sort: step 9 of 10, kl 2.25",
        "sort: step 10 of 10, kl 2.5",
    ]
    assert err == ""


def test_a_slow_run_shows_every_record_once(clock, capfd):
    with Progress(3, "sort", ["kl"]) as progress:
        run(progress, clock, 2.0, 3)
    progress.close()
    assert len(capfd.readouterr().out.splitlines()) == 3


def test_what_was_held_back_is_shown_when_a_run_is_interrupted(clock, capfd):
    def interrupted():
        with Progress(10, "sort", ["kl"]) as progress:
            run(progress, clock, 0.1, 4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capfd.readouterr().out.splitlines()[-1] == "sort: step 4 of 10, kl 1"


def test_records_without_a_step_without_a_key_or_with_words(clock, capfd):
    progress = Progress(4, "any", ["kl", "reward"])
    for record in ({"kl": 1}, {"reward": np.float32(0.5)}, {"kl": "none", "other": 3.0}, {"kl": True}):
        clock.now += 1
        progress(record)
    assert progress.curves == {"kl": [(1, 1.0)], "reward": [(2, 0.5)]}
    assert capfd.readouterr().out.splitlines()[2:] == [
        "any: step 3 of 4, kl 1, reward 0.5",
        "any: step 4 of 4, kl 1, reward 0.5",
    ]


def test_a_terminal_gets_a_bar_on_stdout_at_most_once_a_second(clock, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", Terminal())
    run(Progress(40, "sort", ["kl"]), clock, 0.25, 40)
    drawn = sys.stdout.getvalue()
    assert "sort: 100%" in drawn
    assert "40/40" in drawn
    assert "kl=" not in drawn
    assert "kl 10" in drawn
    assert drawn.count("kl ") == 12  # seconds 0 to 9, the last record, and the bar when it ends
    assert capfd.readouterr().err == ""


def test_quiet_is_quiet_everywhere(clock, monkeypatch, capfd):
    for where in ("log", "terminal", "notebook"):
        monkeypatch.setattr(module, "where_we_are", lambda where=where: where)
        progress = Progress(3, "sort", ["kl"], quiet=True)
        run(progress, clock, 2.0, 3)
        assert progress.curves["kl"] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert capfd.readouterr() == ("", "")


def test_outside_a_notebook_there_is_no_plot(clock, monkeypatch, capfd):
    def never(*arguments):
        raise AssertionError("a picture was drawn")

    monkeypatch.setattr(module, "picture", never)
    run(Progress(3, "sort", ["kl"]), clock, 2.0, 3)
    monkeypatch.setattr(sys, "stdout", Terminal())
    run(Progress(3, "sort", ["kl"]), clock, 2.0, 3)


def test_where_we_are(monkeypatch):
    assert where_we_are() == "log"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert where_we_are() == "terminal"


CODE = """
from kl_companion.llm import progress
class Clock:
    now = 0.0
    def monotonic(self):
        return self.now
progress.time = clock = Clock()
drawn = []
original = progress.picture
progress.picture = lambda *a: drawn.append(1) or original(*a)
assert progress.where_we_are() == "notebook"
show = progress.Progress(40, "sort", ["kl", "reward"])
for step in range(1, 41):
    clock.now += 0.25
    show({"step": step, "kl": 1 / step, "reward": float("nan") if step % 2 else step / 40})
assert len(drawn) == 11, drawn
"""


def test_in_a_notebook_a_bar_and_one_plot_replaced_in_place(root):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": root}}
    ).execute()
    outputs = notebook.cells[0].outputs
    assert {o.name for o in outputs if o.output_type == "stream"} == {"stdout"}
    text = "".join(o.text for o in outputs if o.output_type == "stream")
    assert "40/40" in text
    (plot,) = [o for o in outputs if o.output_type == "display_data"]
    assert plot.data["image/png"].startswith("iVBOR")  # a PNG in base64
    assert plot.metadata["image/png"]["alt"] == "sort, step 40 of 40: kl 0.025, reward 1"


def test_the_picture_has_a_panel_per_key():
    curves = {key: [(1, 0.5), (2, float("inf")), (3, 0.25)] for key in "abcde"}
    for some in ({"a": curves["a"]}, curves, {"a": []}):
        assert picture(some, "title", 10).startswith(b"\x89PNG")
    one, five = (np.frombuffer(picture(c, "t", 9)[16:24], ">u4") for c in ({"a": []}, curves))
    assert five[0] > 2.5 * one[0]  # three in a row
    assert five[1] > 1.5 * one[1]  # and a second row


@pytest.mark.parametrize("total", [0, -1, 2.0, True, None])
def test_a_total_that_is_none(total, as_installed):
    with pytest.raises(ValueError, match=r"total is .*, expected a whole number of steps of at least 1"):
        Progress(total, "sort", ["kl"])


@pytest.mark.parametrize("keys", [[], "kl", ["kl", "kl"]])
def test_keys_that_are_none(keys, as_installed):
    with pytest.raises(ValueError, match=r"keys is .*, expected different names, at least one"):
        Progress(3, "sort", keys)
