"""The verdict on one screen. Those of the corpus are asked in test_auditor_corpus."""

import math
import re

import pytest

from kl_companion import audit
from kl_companion.auditing.fit.findings import Condition, Finding, GroupGap
from kl_companion.auditing.judgment.card import HEIGHT, WIDTH, card
from kl_companion.auditing.judgment.verdict import Audit
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.signatures import read_names
from kl_companion.auditing.reading.subject import Reading

NEAR, FAR = Condition(False, True, 1.0), Condition(False, True, 4.0)
ONE_LENGTH, STALE = Condition(False, False, 1.0), Condition(True, True, 1.0)


def case(*matches, condition=NEAR, curl=0.0, **changes):
    found = {"residual": 0.0, "zero": False, "measure_values": dict, "measure_curl": lambda: curl, **changes}
    return Finding(condition, matches, units=tuple(dict.fromkeys(m, "") for m in matches), **found)


def said(*findings, details=False, **changes):
    return " ".join(card(Audit("it", findings, **changes), details=details).split())


ONE = {"token_reverse_kl": 0.25}


@pytest.mark.parametrize(
    ("finding", "wanted"),
    [
        (case(ONE), "it minimizes 0.25 x reverse KL, next token. Exact up to rounding on four small"),
        (case(ONE, condition=None), "Exact up to rounding on the given worlds."),
        (case(ONE, residual=2e-7), "it minimizes 0.25 x reverse KL, next token. All but 2e-07 of it, on"),
        (case(zero=True), "it minimizes nothing: its expected gradient is zero. Exact"),
        (case({"expected_reward": -1.0}), "it maximizes E[R], and has no KL term. Exact"),
        (case({"expected_reward": -0.5}), "it maximizes 0.5 x reward, and has no KL term. Exact"),
        (case({"expected_reward": -1.0, "token_entropy": -0.1}), "it maximizes reward + 0.1 x entropy, next"),
        (case({"expected_reward": -1.0, "token_entropy": 0.1}), "Check the signs: it lowers the entropy"
            " (entropy, next token). it minimizes 0.1 x entropy, next token - reward, and has no KL term."),
        (case(residual=0.25), "it minimizes no objective that is known here. The nearest sum"),
        (case({"token_reverse_kl": -1.0}), "Check the signs: it maximizes reverse KL, next token, which"
            " pushes the policy away from the reference. it minimizes - reverse KL, next token."),
    ],
)  # fmt: skip
def test_the_headline_and_how_sure_it_is(finding, wanted):
    assert said(finding).startswith(wanted) or (finding.condition is None and wanted in said(finding))


def test_what_was_meant():
    meant = ("was wanted (reverse_kl)", "reverse_kl")
    assert "That is what was wanted (reverse_kl)." in said(case(ONE), meant=meant, as_meant=True)
    assert "That is not what was wanted (reverse_kl)." in said(case(ONE), meant=meant, as_meant=False)
    assert "That is" not in said(case(ONE))


def test_how_it_was_read_comes_first_and_what_was_assumed_is_marked():
    reads, _ = read_names(["logp", "ref_logp", "mask"])
    reading = Reading(tuple(reads), (("beta", 0.1, "KL coefficient"),), Layout(), "one number")
    text = said(case(ONE), reading=reading)
    assert text.startswith(
        "Read: logp* = log-probs of the current policy; ref_logp = log-probs of the reference; mask = mask; "
        "beta = 0.1 (*: assumed; the name does not say whose) it minimizes"
    )
    details = said(case(ONE), reading=reading, details=True)
    assert "logp: logp, log-probs of the current policy; no word for whose they are" in details
    assert "beta = 0.1: KL coefficient result: one number" in details
    assert not said(case(ONE), reading=Reading()).startswith("Read")


def test_groups_of_a_loss_that_couples_its_batch():
    gaps = (GroupGap(2, 41.2, 0.5), GroupGap(3, math.nan, math.inf), GroupGap(4, math.nan, math.nan))
    text = said(case(ONE, measure_gaps=lambda: gaps))
    assert "the above is for large ones. In groups of 2, turned by 41° and 0.50 times as long. In" in text
    assert text.endswith("In groups of 3 the expected gradient is not zero.")
    assert "In groups of 3 the expected gradient is zero." in said(
        case(ONE, measure_gaps=lambda: (GroupGap(3, math.nan, 0.0),))
    )
    assert "couples" not in said(case(ONE))
    fails = (GroupGap(2, math.nan, math.nan, fails=True), GroupGap(3, 41.2, 0.5))
    text = said(case(ONE, measure_gaps=lambda: fails))
    assert "of 3, turned by 41° and 0.50 times as long. Some groups of 2 have no gradient (NaN), as" in text


def test_a_sum_over_the_batch_is_called_one():
    assert "of one answer: a batch of twice the size makes twice the step." in said(case(ONE, sums=True))
    assert "twice the step" not in said(case(ONE)) + said(case(zero=True, sums=True))


def test_details():
    value = {"sequence_reverse_kl": 1 / 3}
    first = case(ONE, {"sequence_entropy": 2 / 3}, condition=ONE_LENGTH, curl=0.125)
    rest = [
        case(ONE, condition=FAR, residual=1e-16, measure_values=lambda: value),
        case(condition=STALE, residual=0.5, curl=math.nan),
        case(condition=None, zero=True),
    ]
    text = said(first, *rest, details=True, same_as=("k3", 0.04))
    for wanted in (
        "sample by sample 0.04 x k3, differentiated",
        "fresh, near, one length: 0.25 x token_reverse_kl or 0.6667 x sequence_entropy (residual 0e+00; curl",
        "fresh, far, lengths vary: 0.25 x token_reverse_kl (residual 1e-16; no curl)",
        "stale, near, lengths vary: no known objective (residual 5e-01; curl not measured)",
        "given worlds: zero",
        "value: estimates 0.3333 x sequence_reverse_kl",
        "token_reverse_kl: the reverse KL, KL(policy || reference)",
    ):
        assert wanted in text
    assert "value: estimates none of the known objectives" in said(case(ONE), details=True)
    assert "Details" not in said(case(ONE))


REMEDY = "def f(x):\n- " + "\n- ".join(f"    old = {i}" for i in range(30)) + "\n+     new = 1"


def test_a_long_remedy_is_left_to_the_details():
    short = Audit("it", (case(ONE),), remedy="def f(x):\n-     old = 1\n+     new = 1")
    assert card(short).endswith("Instead:\n  def f(x):\n  -     old = 1\n  +     new = 1")
    long = Audit("it", (case(ONE),), remedy=REMEDY)
    assert card(long).endswith("  ... (--details)")
    assert len(card(long).splitlines()) == HEIGHT
    for whole in (card(long, details=True), card(long, height=None)):
        assert "  +     new = 1" in whole


def test_what_is_least_needed_goes_first():
    gaps = (GroupGap(2, 1.0, 1.0),)
    found = Audit("it", (case(ONE, measure_gaps=lambda: gaps),), remedy="def f(x):\n" + "+     y = x\n" * 12)
    assert len(card(found, height=None).splitlines()) == HEIGHT + 1
    assert "In practice" in card(found)
    assert "It couples" not in card(found)
    assert card(found).endswith("+     y = x")


def test_long_lines_that_stay_are_cut_and_those_that_go_and_come_are_not():
    stay, old, new = "    x = " + "x" * 99, "-     old = " + "x" * 99, "+     new = " + "y" * 99
    found = Audit("it", (case(ONE),), remedy=f"def f(x):\n{stay}\n{old}\n{new}")
    lines = card(found).splitlines()
    assert lines[-3:] == [f"  {stay[:74]} ...", f"  {old}", f"  {new}"]
    assert len(lines[-3]) == WIDTH


def test_of_a_long_remedy_the_lines_that_go_and_come_stay():
    kept = [
        "# why",
        "@torch.no_grad()",
        "def f(x):",
        "-     y = 1",
        "+     y = 2",
        "def g(x):",
        "+     z = 2",
    ]
    remedy = [*kept[:3], *["    x = 1"] * 9, *kept[3:]]
    found = Audit("it", (case(ONE),), remedy="\n".join(remedy))
    assert card(found).splitlines()[-7:] == [f"  {x}" for x in kept]
    assert "\n".join(f"  {x}" for x in remedy) in card(found, details=True)


@pytest.mark.parametrize("color", [False, True])
def test_color_only_where_it_is_asked_for(color):
    reads, _ = read_names(["logp", "ref_logp"])
    meant = ("was wanted (pearson)", "pearson")
    found = Audit(
        "it",
        (case(ONE),),
        reading=Reading(tuple(reads)),
        meant=meant,
        as_meant=False,
        remedy="def f(x):\n-     old\n+     new",
    )
    text = card(found, color=color)
    styles = set(re.findall(r"\033\[(\d+)m", text))
    assert styles == ({"0", "1", "2", "31", "32"} if color else set())
    assert re.sub(r"\033\[\d+m", "", text) == card(found)
    if color:
        assert "\033[31m  -     old\033[0m" in text
        assert "\033[32m  +     new\033[0m" in text


def a_function_with_a_name_that_is_much_longer_than_is_good_for_any_card(
    per_token_logps_of_the_model, ref_per_token_logps, old_per_token_logps, completion_mask, advantages
):
    log_w = ref_per_token_logps - per_token_logps_of_the_model
    rho = (per_token_logps_of_the_model - old_per_token_logps).exp()
    centered = (advantages - advantages.mean()) / advantages.std()
    kl = 0.0123 * (log_w.exp() - 1 - log_w) - rho * centered[:, None]
    return (kl * completion_mask).sum() / completion_mask.sum()


@pytest.mark.parametrize(
    "loss",
    ["top_k_reverse_kl(1, published)", a_function_with_a_name_that_is_much_longer_than_is_good_for_any_card],
)
def test_a_card_fits_the_screen_with_all_that_it_may_say(loss):
    mapped = {} if isinstance(loss, str) else {"per_token_logps_of_the_model": "logp"}
    found = audit(loss, want="jensen_shannon", roles=mapped)
    lines = str(found).splitlines()
    assert len(lines) <= HEIGHT == 24
    assert max(map(len, lines)) <= WIDTH == 80
