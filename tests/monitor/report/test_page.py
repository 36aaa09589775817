"""The page of a run: complete in itself, escaped, with what was found first."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from kl_companion.monitor import read_run, report_html
from kl_companion.monitor.observation import COLUMNS, COUNTS
from kl_companion.monitor.report.column_words import WORDS
from kl_companion.plotting import color
from tests.support import monitored_runs as runs

EVIL = '<script>alert("x")</script>\u202e&amp;'


class Elements(HTMLParser):
    """Tags with their attributes, and the text in them."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def page(tmp_path, rows=None, settings=None, tokens=None, **more):
    return report_html(read_run(runs.write(tmp_path, rows or runs.healthy(), settings, tokens)), **more)


def test_nothing_is_loaded_and_nothing_runs(tmp_path):
    text = page(tmp_path)
    tags = Elements(text).found
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in tags}
    assert [attrs["href"] for _, attrs in tags if "href" in attrs] == ["data:,"]
    assert not any("src" in attrs for _, attrs in tags)
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_what_comes_from_the_run_is_escaped_everywhere(tmp_path):
    rows = runs.healthy()
    said = [runs.tokens_of(row) for row in rows]
    for entry in said:
        for token in entry["tokens"]:
            token.update(token=EVIL, before=EVIL)
    rows[-1]["largest_log_ratio"] = 25.0
    words = dict.fromkeys(("model", "trainer", "rewards_divided", "estimator", "another"), EVIL)
    text = page(tmp_path, rows, {**words, EVIL: [EVIL], "deep": {EVIL: 1}}, said, name=EVIL)
    assert "<script" not in text.lower()
    assert "&lt;script&gt;alert" in text
    assert "\u202e" not in text
    assert "\\u202e" in text
    assert 'href="data:,"' in text
    text.encode("utf-8")


def test_half_a_letter_in_a_token_does_not_stop_the_page(tmp_path):
    folder = runs.write(tmp_path, runs.healthy())
    path = folder / "kl_monitor_tokens.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('" maybe"', '"\\ud83d"'), encoding="utf-8")
    report_html(read_run(folder)).encode("utf-8")


def test_the_worst_is_said_first_and_everything_else_below(tmp_path):
    trouble = runs.TROUBLES["not_a_number"]
    text, sentence = page(tmp_path, runs.rows_of(trouble)), trouble["says"]
    assert text.index('class="headline wrong"') < text.index(sentence) < text.index("What was found")
    assert "1 wrong, 8 fine." in text
    assert text.count("What to do:") == 1
    assert "Not a number: step 130." in text


def test_what_is_not_known_is_not_called_no_number(tmp_path):
    text = page(tmp_path, runs.changed(lambda i, _: {"logged": None} if i == 12 else {}))
    assert "Not a number" not in text


def test_headings_are_in_order_and_tables_have_captions(tmp_path):
    text = page(tmp_path)
    tags = [tag for tag, _ in Elements(text).found]
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert tags.count("table") == tags.count("caption") == 5
    drawings = [attrs for tag, attrs in Elements(text).found if tag == "svg"]
    assert len(drawings) == 10  # the KL for both widths, and eight others
    assert all(attrs["role"] == "img" and " at step 400" in attrs["aria-label"] for attrs in drawings)


def test_curves_have_the_colors_of_the_book(tmp_path):
    text = page(tmp_path)
    for name in ("reverse_kl", "forward_kl", "k3"):
        assert f'stroke="{color(name)}"' in text
    parts = [color(f"mismatch_{name}") for name in ("rounding", "temperature", "truncation")]
    assert len(set(parts)) == 3


def test_every_column_has_words(tmp_path):
    covered = {
        *WORDS,
        *COUNTS,
        *(f"{name}_{end}" for name in ("kl", "forward_kl") for end in ("low", "high")),
    }
    assert covered == set(COLUMNS)
    text = page(tmp_path, settings={"clamp": [-5, 5], "vocabulary": 49152})
    for name, words in WORDS.items():
        assert (f"<b>{words.name}</b> <code>{name}</code>" in text) == (name != "dead_zone")
    assert "Not known in this run: Dead zone." in text
    assert "<td>[-5, 5]</td>" in text
    assert "<td>49,152</td>" in text


def test_a_token_is_compared_in_words(tmp_path):
    rows = runs.healthy(count=6)
    said = [{"step": row["step"], "tokens": []} for row in rows]
    token = {"answer": 3, "position": 17, "before": "it is", "log_ratio": 4.0, "logp": -0.5, "ref_logp": -4.5}
    said[-1]["tokens"] = [{**token, "token": " maybe"}]
    said[2]["tokens"] = [{**token, "token": " no", "log_ratio": -4.5, "logp": -5.0, "ref_logp": -0.5}]
    text = page(tmp_path, rows, tokens=said)
    assert "<span>it is</span><mark> maybe</mark></bdi><small>answer 3, token 17</small>" in text
    assert "55 × likelier<small>0.61 to 0.011</small>" in text
    assert "step 30, answer 3, token 17" in text
    assert "90 × rarer<small>0.0067 to 0.61</small>" in text


def test_numbers_that_are_not_known_leave_no_curve(tmp_path):
    rows = [{"step": 5, "answers": 2, "tokens": 30, "kl": 0.5}]
    text = page(tmp_path, rows, dict.fromkeys(runs.SETTINGS, None) | {"format": 1}, [], name="a folder")
    assert "<h1>a folder</h1>" in text
    assert "folder of KLMonitor · 1 row · step 5 · 2 answers each time" in text
    assert text.count("<figure>") == 2  # the KL, and the length
    assert "Tokens with the largest" not in text


def test_a_cut_line_is_told(tmp_path):
    folder = runs.write(tmp_path, runs.healthy())
    with (folder / "kl_monitor.csv").open("a", encoding="utf-8") as file:
        file.write("410,64,81")
    assert "A last line was cut in half and left out" in report_html(read_run(folder))


def test_billions_do_not_flatten_the_curve(tmp_path):
    text = page(tmp_path, runs.rows_of(runs.TROUBLES["impossible_token"]))
    assert "Triangles are logged numbers above the axis, up to 1.6 billion." in text
    (label,) = re.findall(r'class="wide" [^>]*>(.*?)</svg>', text, re.S)
    assert "0.1" in re.findall(r'class="tick"[^>]*>([^<]*)<', label)


@pytest.mark.parametrize("count", [1, 2, 450])
def test_short_and_long_runs(tmp_path, count):
    text = page(tmp_path, runs.healthy(count=count))
    assert text.count('<tr><th scope="row">') <= 12 + 200 + 40
    assert len(text) < 600_000
    assert ("the last 200" in text) == (count == 450)


def test_settings_are_those_of_the_file(tmp_path):
    text = page(tmp_path)
    for value in ("trl.GRPOTrainer", "group_std", "k3", "0.04"):
        assert f"<td>{value}</td>" in text
    assert json.dumps(runs.SETTINGS["model"])[1:-1] in text


def test_the_largest_tokens_of_the_run_are_in_their_order(tmp_path):
    rows = runs.healthy(count=12)
    said = [
        runs.tokens_of(row, largest)
        for row, largest in zip(rows, [3, 9, 4, 8, 5, 7, 2, 6, 1, 1, 1, 1], strict=True)
    ]
    for entry in said:
        entry["tokens"] = [{**entry["tokens"][0], "before": "x" * 300, "token": "y" * 300}]
    text = page(tmp_path, rows, tokens=said)
    run = text[text.index("Of the whole run") :]
    assert re.findall(r"<small>step (\d+),", run) == ["20", "40", "60", "80", "50", "30", "10", "70"]
    assert text.count("x" * 90) == text.count("y" * 24) == 9
    assert "x" * 91 not in text
    assert "y" * 25 not in text


def test_a_last_observation_without_tokens_has_no_table(tmp_path):
    rows = runs.healthy(count=6)
    said = [runs.tokens_of(row) if row["step"] == 20 else {"step": row["step"], "tokens": []} for row in rows]
    text = page(tmp_path, rows, tokens=said)
    assert "Of the last observation" not in text
    assert "Of the whole run" in text


def test_an_interval_needs_both_its_ends(tmp_path):
    rows = runs.healthy(count=6)
    text = page(tmp_path, rows)
    (cell,) = re.findall(r"<code>forward_kl</code>.*?</tr>", text)
    assert cell.endswith("</small></td></tr>")
    rows[-1]["forward_kl_high"] = None
    (cell,) = re.findall(r"<code>forward_kl</code>.*?</tr>", page(tmp_path, rows))
    assert not cell.endswith("</small></td></tr>")


def test_all_rows_are_there_to_be_read(tmp_path):
    rows = [
        {"step": 5, "answers": 2, "tokens": 3000, "kl": 0.5},
        {"step": 6, "answers": 2, "tokens": 30, "entropy": 1.5},
    ]
    text = page(tmp_path, rows, tokens=[])
    table = text[text.index('<table class="every">') :]
    assert re.findall(r'<th scope="col">(\w+)</th>', table) == [
        "step",
        "kl",
        "entropy",
        "response_tokens",
        "num_answers",
        "mean_length",
    ]
    assert (
        '<tr><th scope="row">5</th><td>0.5</td><td>–</td><td>3,000</td><td>2</td><td>1,500</td></tr>' in table
    )
    assert '<tr><th scope="row">6</th><td>–</td><td>1.5</td><td>30</td><td>2</td><td>15</td></tr>' in table


@pytest.mark.parametrize(
    ("logged", "said"), [(0.025, "0.005 above the exact"), (0.015, "0.005 below the exact")]
)
def test_the_tile_of_the_logged_number(tmp_path, logged, said):
    row = runs.healthy(count=1)[0] | {"logged": logged, "kl": 0.02}
    assert f"<dt>Logged</dt><dd>{logged}<small>{said}</small></dd>" in page(tmp_path, [row])


def test_a_run_that_knows_only_the_kl_of_answers_has_a_page_too(tmp_path):
    rows = [{"step": 5, "answers": 2, "tokens": 30, "kl_of_answers": 0.5, "kl_low": 0.1, "kl_high": 0.2}]
    assert "KL to the reference, nats per answer" in page(tmp_path, rows, tokens=[])
