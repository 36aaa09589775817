"""The page's Python, with nothing but its archive, says of a loss what the command line says."""

import io
import json
import sys
from contextlib import redirect_stdout

import pytest

from kl_book.paste.bundle import sources, write_bundle
from kl_companion.auditing.reading.sources import pasted_loss
from kl_companion.cli import main
from tests.support.verdicts import difference

K3 = """
def kl_loss(logps, ref_logps, mask):
    kl = (ref_logps - logps).exp() - (ref_logps - logps) - 1
    return (kl * mask).sum() / mask.sum()
"""
LINES = """
    log_ratio = ref_logprobs - logprobs
    kl = self.args.beta * (log_ratio.exp() - log_ratio - 1)
    loss = -(advantages * (logprobs - old_logprobs).exp() - kl).mean()
"""
HELLINGER = """
def loss(logprobs, ref_logprobs, mask):
    return (torch.expm1((ref_logprobs - logprobs) / 2).square() * mask).sum(-1).mean()
"""
LOGITS = """
def distill(student_logits, teacher_logits, mask):
    p, q = F.log_softmax(student_logits, -1), F.log_softmax(teacher_logits, -1)
    return ((p.exp() * (p - q)).sum(-1) * mask).sum(-1).mean()
"""
TOP = """
def top(student_logits, teacher_logits, mask):
    p, q = F.log_softmax(student_logits, -1), F.log_softmax(teacher_logits, -1)
    values, where = q.topk(2, -1)
    return ((values.exp() * (values - p.gather(-1, where))).sum(-1) * mask).sum(-1).mean()
"""
HOT = """
def kd(student_logits, teacher_logits, mask, T=2.0):
    p, q = F.log_softmax(student_logits / T, -1), F.log_softmax(teacher_logits / T, -1)
    return ((q.exp() * (q - p)).sum(-1) * mask).sum(-1).mean() * T**2
"""
FROZEN = """
@torch.no_grad()
def approx_kl(a, b):
    return (b - a).exp() - 1 - (b - a)

def loss(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    kl = approx_kl(logprobs, ref_logprobs)
    return ((kl_coef * kl - logprobs * rewards[:, None]) * mask).sum(-1).mean()
"""
BLOCK = """
        with torch.no_grad():
            kl = logprobs - ref_logprobs
        loss = -(logprobs * rewards[:, None] * mask).sum(-1).mean()
        loss = loss + self.args.beta * (kl * mask).sum(-1).mean()
"""
OPTION = """
def loss(logprobs, ref_logprobs, mask, kind="k3"):
    d = ref_logprobs - logprobs
    kl = d.square() / 2 if kind == "k2" else d.exp() - 1 - d
    return (kl * mask).sum(-1).mean()
"""
EXCHANGED = """
def distill(student_logits, teacher_logits, mask):
    p, q = student_logits.log_softmax(-1), teacher_logits.log_softmax(-1)
    return (F.kl_div(p, q, reduction="none", log_target=True).sum(-1) * mask).sum(-1).mean()
"""
FRAGMENT = """
logps = self._get_per_token_logps(self.model, inputs["input_ids"], inputs["attention_mask"])
with torch.no_grad():
    ref = self._get_per_token_logps(self.ref_model, inputs["input_ids"], inputs["attention_mask"])
kept = (inputs["input_ids"][:, 1:] != tokenizer.pad_token_id).float()
loss = (beta_of_the_script * (logps - ref) ** 2 * inputs["completion_mask"]).sum(-1).mean() + 0.0 * kept.sum()
(loss / accumulation_steps).backward()
optimizer.step()
"""
ROWS = """
def kd(student_out, teacher_out, labels, T=2.0):
    soft = F.kl_div(F.log_softmax(student_out / T, 1), F.softmax(teacher_out / T, 1), reduction="batchmean")
    return 0.5 * soft * T**2 + 0.5 * F.cross_entropy(student_out, labels)
"""
UNKNOWN = "def f(x_logps, y_logps, beta):\n    return beta * (x_logps - y_logps) ** 2 / 2\n"
SAME = {
    "K3": {"code": K3, "want": "reverse_kl"},
    "lines": {"code": LINES, "want": "forward_kl", "set": "beta=0.1"},
    "another f": {"code": HELLINGER, "want": "squared_hellinger"},
    "remedy of another f": {"code": K3, "want": "sequence_jensen_shannon"},
    "a decorator": {"code": FROZEN, "want": "reverse_kl"},
    "a block": {"code": BLOCK, "want": "reverse_kl"},
    "an option": {"code": OPTION, "want": "reverse_kl"},
    "exchanged": {"code": EXCHANGED, "want": "reverse_kl"},
    "whole distributions": {"code": LOGITS},
    "at a temperature": {"code": HOT},
    "two likeliest": {"code": TOP, "want": "forward_kl"},
    "not in the text": {"code": FRAGMENT, "set": "beta_of_the_script=0.5"},
    "rows": {"code": ROWS, "map": "student_out=logits, teacher_out=ref_logits"},
    "mapped": {"code": UNKNOWN, "map": "x_logps=logp, y_logps=ref_logp", "set": "beta=0.5"},
}
REFUSED = {
    "nothing": ({"code": " \n"}, "nothing here yet"),
    "no Python": ({"code": "loss = = 1"}, "line 1 is no Python"),
    "names": ({"code": UNKNOWN}, "x_logps"),
    "not in the page": (
        {"code": K3.replace("kl * mask", "torch.linalg.pinv(kl) * mask")},
        "kl-companion audit loss.py:NAME",
    ),
    "a family": ({"code": K3, "want": "amari_alpha(0.3)"}, "Did you mean 'amari_alpha(0.5)'?"),
    "its own error": ({"code": "def loss(logps):\n    raise KeyError('beta')\n"}, "beta"),
    "options": ({"code": K3, "set": "beta"}, "expected Options NAME=VALUE"),
}
TWO = K3 + K3.replace("kl_loss", "other_loss")


@pytest.fixture(scope="module")
def answers(ask_page):
    """Of every request, by its name: what the page's Python makes of it."""
    asked = {**SAME, **{n: request for n, (request, _) in REFUSED.items()}, "two": {"code": TWO}}
    return ask_page({**asked, "one of two": {"code": TWO, "name": "other_loss"}})


@pytest.mark.parametrize("name", SAME)
def test_the_page_says_what_the_command_line_says(answers, monkeypatch, name):
    request = SAME[name]
    monkeypatch.setattr(sys, "stdin", io.StringIO(request["code"]))
    options = [
        x for o in ("map", "set") for pair in request.get(o, "").split(", ") if pair for x in (f"--{o}", pair)
    ]
    want = ["--want", request["want"]] if "want" in request else []
    shown = io.StringIO()
    with redirect_stdout(shown):
        main(["audit", "-", "--json", "--quiet", *want, *options])
    theirs, ours = json.loads(shown.getvalue()), answers[name]["answer"]["card"]
    theirs["versions"], ours["versions"] = None, None
    assert difference(theirs, ours) == ""
    assert answers[name]["steps"] == 8


def test_a_sentence_for_every_part_of_the_card(answers):
    said = answers["K3"]["answer"]["said"]
    assert said["minimizes"] == "kl_loss minimizes [forward KL, next token] / mean answer length."
    assert said["as_meant"] == "That is not what was wanted (reverse_kl)."
    assert said["good"] is False
    assert [where for where, _ in said["rows"]] == ["fresh samples", "stale samples"]
    assert said["notes"][0].startswith("In practice: Tokens to which the policy gives almost no")
    assert said["read"].startswith("Read: logps* = log-probs of the current policy")
    named = ("K3", "a decorator", "a block", "an option", "exchanged")
    patches = {n: answers[n]["answer"]["card"]["remedy"] for n in named}
    assert "kl = 0.5 * (logps - ref_logps) ** 2" in patches["K3"]
    assert "\n- @torch.no_grad()\ndef approx_kl" in patches["a decorator"]
    assert patches["a block"].splitlines()[1:] == [
        "-         with torch.no_grad():",
        "-             kl = logprobs - ref_logprobs",
        "+         kl = 0.5 * (logprobs - ref_logprobs) ** 2",
        "        loss = -(logprobs * rewards[:, None] * mask).sum(-1).mean()",
        "        loss = loss + self.args.beta * (kl * mask).sum(-1).mean()",
    ]
    assert patches["an option"].startswith("# --set kind=k2 is enough")
    assert "+     return (F.kl_div(q, p, " in patches["exchanged"]


def test_the_picture_is_that_of_the_notebook(answers):
    from kl_companion.auditing import audit
    from kl_companion.auditing.judgment.pictures import arrows

    loss = audit(pasted_loss(K3), scale=1.0, off_policy=False)
    points, mine, theirs = arrows(loss.loss_fn, "token_reverse_kl")
    drawn = answers["K3"]["picture"]
    assert difference(drawn["points"], points.tolist()) == ""
    assert difference(drawn["mine"], mine.tolist()) == ""
    assert difference(drawn["theirs"], theirs.tolist()) == ""
    assert drawn["meant"] == "reverse KL, next token"
    assert answers["two likeliest"]["picture"]["why_not"].startswith("A loss of the likeliest tokens")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(answers, name):
    assert REFUSED[name][1] in answers[name]["answer"]["error"]


def test_unclear_names_come_with_the_roles_that_fit(answers):
    x, y, *rest = answers["names"]["answer"]["unclear"]
    assert (x["name"], y["name"], rest) == ("x_logps", "y_logps", [])
    assert x["why"] == "x is not a word that is read here beside logp"
    assert [role for role, _ in x["roles"][: x["fitting"]]] == ["logp", "ref_logp", "behavior_logp"]
    assert len(x["roles"]) > 40


def test_of_several_functions_one_is_chosen(answers):
    assert answers["two"]["answer"]["names"] == ["kl_loss", "other_loss"]
    assert answers["one of two"]["answer"]["card"]["name"] == "other_loss"


def test_the_same_sources_are_the_same_bytes(archive, tmp_path):
    again = tmp_path / "again.zip"
    write_bundle(again)
    assert again.read_bytes() == archive.read_bytes()
    assert archive.stat().st_size < 1_000_000
    assert list(tmp_path.iterdir()) == [again]


def test_no_source_that_needs_what_a_page_has_not():
    names = {"/".join(path.parts[-2:]) for path in sources()}
    assert {"paste/start.py", "kl_companion/losses.py"} <= names
    assert not names & {"divergences/registry.py", "divergences/compiled.py", "paste/recorded.py"}
