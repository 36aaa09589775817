"""Every setting has the expected gradient that its row in the table `framework_audit` says."""

import math
import re
from functools import cache

import pytest
import torch

from kl_book import tables
from kl_companion import OBJECTIVES, expected_gradient, prefix_tree
from kl_companion.auditing.judgment.summary import terms
from kl_companion.auditing.worlds.objectives import field
from kl_companion.auditing.worlds.truncations import cut_objectives
from kl_companion.cli import main
from kl_companion.frameworks import (
    FRAMEWORKS,
    Setting,
    audit_setting,
    dead_zones,
    framework,
    matching,
    rows,
    setting,
    settings,
)
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.verdicts import (
    _weights,
    division_words,
    zone_words,
)
from kl_companion.tabular.populations import large_batches, population_tree
from tests.support.data import data
from tests.support.expected_framework_verdicts import EXPECTED, LETTERS

DATA = data(__file__)

NAMES = [s.name for s in settings()]
CONDITIONS = ((False, 1.0), (False, 4.0), (True, 1.0), (True, 4.0))
COUNTS_TOKENS = ("_bnpo", "kl_token_mean")  # names of what divides by the tokens of its own batch
PLAIN = (  # what an unnamed gradient must not be
    *("token_reverse_kl", "token_forward_kl", "sequence_reverse_kl", "token_jensen_shannon"),
    *("token_total_variation", "token_squared_log_ratio", "behavior_squared_log_ratio"),
    "sampled_mean_squared_log_ratio",
)


@cache
def world(off_policy, scale):
    """Log-ratios up to 5.8 and ratios to the sampler up to 15.6 at scale 4: every clamp binds."""
    return prefix_tree(3, 2, seed=76, eos=True, off_policy=off_policy, scale=scale)


@cache
def batch(off_policy, scale):
    """Every answer of such a world as often as it is expected, for what divides by the batch's own tokens."""
    return population_tree(3, 2, parts=9, seed=76, eos=True, off_policy=off_policy, scale=scale)


def couples(name):
    """Whether answers of a batch enter each other's gradient: a mean over its tokens does it."""
    return name.endswith(COUNTS_TOKENS) or name.startswith("tinker.kl_")


# a ratio to the sampler of 13.6, where this one is clamped, is beyond what an audit looks at
MILD = ("rpg.loss_ufkl_old",)


@cache
def mild(off_policy, scale):
    """Ratios to the sampler up to 7.5 at scale 4."""
    return prefix_tree(3, 2, seed=78, eos=True, off_policy=off_policy, scale=scale)


def place_of(name, off_policy, scale):
    """Where a setting is looked at."""
    return PLACES[kind_of(name)](off_policy, scale)


def kind_of(name):
    """The kind of its place, which it shares with others."""
    return "mild" if name in MILD else "batch" if couples(name) else "world"


PLACES = {"mild": mild, "world": world, "batch": lambda *at: batch(*at).problem}


def gradient_of(name, off_policy, scale):
    loss = setting(name).exact
    if couples(name):
        return large_batches(loss, batch(off_policy, scale)).gradient
    return expected_gradient(loss, place_of(name, off_policy, scale))


def field_at(objective, at):
    return field_in(objective, kind_of(at[0]), *at[1:])


@cache
def field_in(objective, kind, *at):
    cut_objectives()
    return field(OBJECTIVES[objective], PLACES[kind](*at))


@cache
def table():
    """Rows of `framework_audit` by setting, sampling and scale."""
    return tables.load("framework_audit").set_index(["setting", "sampling", "scale"])


def row_of(name, off_policy, scale):
    return table().loc[(name, "off-policy" if off_policy else "on-policy", scale)]


def divisor(unit, at):
    """The mean length of an answer, or the longest."""
    place = place_of(*at)
    mean = (place.probabilities() * place.completion_mask.sum(-1)).sum()
    return {"": 1.0, "mean answer length": mean, "padded length": 2.0}[unit]


def by_line(text):
    """{objective: coefficient} of an entry of a line, as a row of the table has them."""
    if text in ("0", "-"):
        return {"nothing" if text == "0" else "unnamed": "none"}
    parts = re.findall(r"([+-]?) ?([\d.]+ )?([A-Z]+\d?)(?:/([TP]))?(?![A-Z])", text)
    units = {"": "", "T": " / mean answer length", "P": " / padded length"}
    return {
        LETTERS[letters]: f"{float(c or 1) * (-1 if sign == '-' else 1):g}{units[unit]}"
        for sign, c, letters, unit in parts
    }


def by_row(row, at):
    """The gradient that a row of the table says."""
    terms = zip(row.objective.split(" + "), row.coefficient.split(", "), strict=True)
    parts = [(name, *coefficient.partition(" / ")[::2]) for name, coefficient in terms]
    return sum(float(c) / divisor(unit, at) * field_at(name, at) for name, c, unit in parts)


def four(line):
    entries = [e.strip() for e in line.split("|")]
    return entries * 4 if len(entries) == 1 else entries


def distance(x, y):
    return ((x - y).norm() / x.norm()).item()


@pytest.mark.parametrize("name", NAMES)
def test_the_expected_gradient_is_what_its_row_says(name):
    """On a world that the audit which wrote the row has not seen."""
    for off_policy, scale in CONDITIONS:
        at = (name, off_policy, scale)
        gradient, row = gradient_of(*at), row_of(*at)
        if row.objective == "nothing":
            assert gradient.norm() < 1e-12
        elif row.objective == "unnamed":
            near = [distance(gradient, k * field_at(n, at)) for n in PLAIN for k in (0.5, 1, 2)]
            assert min(near) > 1e-8  # what is the same differs by 1e-15
        else:
            assert distance(gradient, by_row(row, at)) < 1e-9


@pytest.mark.parametrize("name", EXPECTED)
def test_a_row_is_what_was_found_by_hand(name):
    for text, at in zip(four(EXPECTED[name]), CONDITIONS, strict=True):
        row = row_of(name, *at)
        found = zip(row.objective.split(" + "), row.coefficient.split(", "), strict=True)
        assert dict(found) == by_line(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_names_the_version_and_the_place_of_today(name):
    chosen, rows = setting(name), table().loc[name]
    today = {
        "framework": chosen.framework.name,
        "title": chosen.framework.title,
        "wheel": chosen.framework.distribution if chosen.installed else "none",
        "version": chosen.version,
        "kind": "installed" if chosen.installed else "formula",
        "where": chosen.where,
        "option": chosen.option,
        "default": chosen.default or "no",
        "placement": chosen.placement,
        "level": chosen.level,
        "aggregation": chosen.aggregation,
        "divided": division_words(chosen),
        "purpose": chosen.purpose,
    }
    for column, value in today.items():
        assert set(rows[column]) == {value}, column


@pytest.mark.parametrize("name", [s.name for s in settings() if s.sampled])
def test_a_row_says_where_a_token_has_no_gradient(name):
    """On both sides of every edge that it names, and far out."""
    (words,) = set(table().loc[name].zero_gradient)
    edges = [float(x) for x in re.findall(r"-?\d[\d.]*", words)]
    points = torch.tensor([-29.0, -1.0, 0.5, 29.0, *(e * k for e in edges for k in (0.9999, 1.0001))])
    below = max((e for e in edges if e < 0), default=-math.inf)
    above = min((e for e in edges if e > 0), default=math.inf)
    dead = [words == "everywhere" or x < below or x > above for x in points.tolist()]
    assert (_weights(setting(name), points.double()) == 0).tolist() == dead


def test_the_table_has_the_settings_of_today():
    conditions = [("off-policy" if off else "on-policy", scale) for off, scale in CONDITIONS]
    assert set(table().index) == {(name, *condition) for name in NAMES for condition in conditions}


def test_every_default_for_rl_has_a_line():
    defaults = {s.name for s in settings() if s.default and s.purpose == "RL"}
    assert defaults <= set(EXPECTED) <= {s.name for s in settings()}
    assert {name.partition(".")[0] for name in EXPECTED} == set(FRAMEWORKS)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_remedy_has_the_gradient_that_it_promises(name):
    """On-policy, at small log-ratios; and the installed or read framework is the one that is meant."""
    remedy = framework(name).remedy
    for chosen, objective in ((remedy.sequence, "sequence_reverse_kl"), (remedy.token, "token_reverse_kl")):
        if chosen is not None:
            assert setting(chosen).framework.name == name
            assert row_of(chosen, False, 1.0).objective == objective
    assert remedy.sequence or remedy.token or remedy.words


def test_the_best_known_answer_which_option_gives_which_gradient():
    said = {n: (framework(n).remedy.sequence, framework(n).remedy.token) for n in ("trl", "verl", "openrlhf")}
    assert said == {
        "trl": ("trl.rloo", "trl.grpo"),
        "verl": ("verl.reward_k1", "verl.loss_k2"),
        "openrlhf": ("openrlhf.reward_k1", "openrlhf.loss_k3_unbiased"),
    }
    for name in ("nemo_rl", "slime"):
        assert None not in framework(name).remedy[:2]


# -- audits ------------------------------------------------------------------------------------------------


def said(finding):
    """{objective: coefficient}, with its unit where it has one."""
    return {t.objective: (t.coefficient, t.unit) if t.unit else t.coefficient for t in terms(finding)}


def test_the_audit_finds_it_by_itself():
    on, off = {"token_forward_kl": 1.0}, {"behavior_log_likelihood": 1.0, "behavior_reference_ratio": 1.0}
    for case in audit_setting("verl.loss_k3", scale=1.0).audit.findings:
        assert said(case) == (off if case.condition.off_policy else on)


def test_lengths_that_vary_change_a_mean_over_tokens():
    """What has no gradient at a fixed length is a term of the length alone: longer sequences are cheaper."""
    (row,) = rows(audit_setting("slime.loss_k1", off_policy=False, scale=1.0))
    assert (row["objective"], row["coefficient"]) == ("expected_inverse_length", "1")
    assert row["condition"] == "lengths vary; where they do not: nothing"
    fixed, vary = audit_setting(
        "verl.loss_k2_seq_mean_token_mean", off_policy=False, scale=1.0
    ).audit.findings
    assert said(fixed) == {"token_reverse_kl": (1.0, "tokens")}
    assert said(vary) == {"sampled_mean_squared_log_ratio": 1.0}


def test_a_padded_length_is_the_mean_length_where_lengths_agree():
    """No remark then: the two units are one number."""
    (row,) = rows(audit_setting("trl.grpo_dr_grpo", off_policy=False, scale=1.0))
    assert (row["objective"], row["coefficient"]) == ("token_reverse_kl", "1 / padded length")
    assert row["condition"] == "lengths vary or not"


def test_a_row_holds_what_the_table_shows():
    (row,) = rows(audit_setting("openrlhf.loss_k2", off_policy=False, scale=4.0))
    assert (row["sampling"], row["scale"], row["framework"]) == ("on-policy", 4.0, "openrlhf")
    assert (row["version"], row["kind"]) == ("0.11.2", "installed")
    assert (row["objective"], row["coefficient"]) == ("unnamed", "none")
    assert row["residual"] > 1e-3
    assert row["curl"] > 1e-3
    assert row["zero_gradient"] == "log(ref/pi) < -4.47214 or log(ref/pi) > 4.47214"  # the root of 20
    assert row["minimizes"] == "no known objective, and no sum of up to three"
    assert row["purpose"] == "RL"
    assert all(value != "" for value in row.values())


# -- where the gradient is exactly zero --------------------------------------------------------------------


def k3_is_ten(near, far):
    """The root of exp(x) - x - 1 = 10 between two numbers, by halving."""
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (middle, far) if math.exp(middle) - middle - 1 < 10 else (near, middle)
    return near


K3_ABOVE, K3_BELOW = k3_is_ten(0.0, 5.0), k3_is_ten(0.0, -20.0)  # 2.610869 and -10.999983
DEAD = DATA["no gradient"]


@pytest.mark.parametrize("name", DEAD)
def test_where_a_token_has_no_gradient(name):
    found, expected = dead_zones(setting(name)), eval(DEAD[name])
    assert len(found) == len(expected)
    for zone, wanted in zip(found, expected, strict=True):
        assert zone == pytest.approx(wanted, abs=1e-6)


def test_dead_zones_of_a_loss_that_has_them_in_the_middle():
    """Exactly zero between -1 and 2, and at the point 5, which is no interval."""

    def loss(rollout):
        x = rollout.ref_logp - rollout.logp
        inside = (x > -1) & (x < 2)
        return torch.where(inside, 0.0, (x - 5) ** 2).sum()

    planted = Setting("trl.planted", "", loss, SourceLocation("", ""), "loss", "token", "", framework("trl"))
    ((low, high),) = dead_zones(planted)
    assert (low, high) == pytest.approx((-1, 2), abs=1e-9)
    assert zone_words(((low, high),)) == "-1 < log(ref/pi) < 2"
    assert dead_zones(planted._replace(sampled=False)) is None


@pytest.mark.parametrize(
    ("zones", "words"),
    [
        ((), ""),
        (None, "not looked at"),
        (((-math.inf, math.inf),), "everywhere"),
        (((-math.inf, -11.0), (2.5, math.inf)), "log(ref/pi) < -11 or log(ref/pi) > 2.5"),
    ],
)
def test_dead_zones_in_words(zones, words):
    assert zone_words(zones) == words


# -- command line ------------------------------------------------------------------------------------------


def test_the_command_line_prints_option_default_zone_and_remedy(capsys):
    assert (
        main(["audit", "tinker.distillation_kl_discount_1", "--scale", "1", "--want", "sequence_reverse_kl"])
        == 0
    )
    said = capsys.readouterr().out
    assert "option: distillation: kl_penalty_coef=1.0, kl_discount_factor=1.0" in said
    assert "default: no" in said
    assert said.startswith("tinker.distillation_kl_discount_1 minimizes reverse KL, whole answer.\n")
    assert "That is what was wanted (sequence_reverse_kl).\n" in said
    assert "  framework: tinker" in said
    assert "The gradient of a token is exactly zero: nowhere." in said
    wanted = "whole sequences: distillation: kl_penalty_coef=1.0, kl_discount_factor=1.0 (tinker."
    assert f"gradient of the reverse KL of {wanted}" in said


def test_a_prefix_chooses_settings_and_their_own_name_comes_first():
    found = [s.name for s in matching("verl.loss_k2")]
    assert found == ["verl.loss_k2", "verl.loss_k2_seq_mean_token_sum", "verl.loss_k2_seq_mean_token_mean"]
    assert [s.name for s in matching("tinker.kl")] == ["tinker.kl_discount_0", "tinker.kl_discount_1"]


def test_a_wanted_gradient_that_is_missed_exits_1(capsys):
    arguments = ["--scale", "1", "--off-policy", "--want", "reverse_kl"]
    assert main(["audit", "areal.distillation_joint", *arguments]) == 1
    said = capsys.readouterr().out
    assert "areal.distillation_joint minimizes log-likelihood of the old samples.\n" in said
    assert "That is not what was wanted (reverse_kl).\n" in said


def test_the_list_shows_settings_versions_and_defaults(capsys):
    assert main(["list", "frameworks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "verl (installed, 0.9.1)" in lines
    assert "slime (formula, read in commit 624b824a8 (2026-08-21, v0.3.1-38))" in lines
    (grpo,) = [line for line in lines if line.split()[:1] == ["trl.grpo"]]
    assert "use_bias_correction_kl=True" in grpo
    assert "[default of GRPOTrainer once beta > 0" in grpo
    assert sum(line.startswith("  ") for line in lines) == len(settings())
