"""Phrases about beta are read off numbers, and off nothing else."""

import math

import pytest

from kl_book import tables
from kl_companion.cli import main
from kl_companion.frameworks import FRAMEWORKS, meaning, worth
from kl_companion.frameworks.meaning import no_effect, recipe_rows, what_beta_means, what_to_set
from kl_companion.frameworks.recipes import default_recipes
from kl_companion.frameworks.worth import SUCCESS, Worth

NAMES = {(r.setting.name, r.algorithm.name): r for r in default_recipes()}
OF_GROUP, OF_BATCH = NAMES["skyrl.reward_k3", "GRPO"], NAMES["torchtune.ppo", "PPO"]
PROMPTS = " (prompts solved 1 in 100, 1 in 10, 1 in 2 times)"
SPREAD = [math.sqrt(p * (1 - p)) for p in SUCCESS]


def made(large, eight, strong=None, silent=(), recipe=OF_GROUP):
    def both(few):
        return {
            (p, n): x for n, values in ((8, few), (None, large)) for p, x in zip(SUCCESS, values, strict=True)
        }

    return Worth(recipe, both(eight), both(strong or eight), 0.0, 100.0, silent)


ONES = [1.0] * 3
PHRASES = [
    (made(ONES, ONES), "β as written"),
    (made(ONES, [8 / 7] * 3), "β as written; in groups of 8 1.14 β"),
    (
        made(SPREAD, [0.41, 0.46, 0.58]),
        "β × the spread of the group's rewards: 0.099 β, 0.3 β, 0.5 β; in groups of 8 0.41 β, 0.46 β, 0.58 β"
        + PROMPTS,
    ),
    (made([2.2, 2.23, 2.4], [2.2, 2.23, 2.4]), "β × the mean answer length: 2.2 β, 2.2 β, 2.4 β" + PROMPTS),
    (made([3.0] * 3, [3.0] * 3), "3 β"),
    (
        made(ONES, [560.0, 330.0, 9.2], ONES, (0, 4)),
        "β as written in large groups; in groups of 8 it is no coefficient: β = 0.001 acts like 0.56, 0.33, "
        "0.0092; no effect where all rewards of a group are equal" + PROMPTS,
    ),
    (
        made(ONES, ONES, None, (0, 4), OF_BATCH),
        "β as written; no effect where all rewards of a batch are equal",
    ),
    (made(ONES, ONES, None, (2,)), "β as written; no effect where 2 of 4 answers are right"),
    (made([math.nan] * 3, [math.nan] * 3), "nothing: the term has no expected gradient, whatever β is"),
]


@pytest.mark.parametrize(("found", "words"), PHRASES)
def test_phrases(found, words):
    assert what_beta_means(found) == words


def test_what_to_set():
    assert what_to_set(made(ONES, ONES)) == ""
    assert no_effect(made(ONES, ONES)) == ""
    wanted = "To divide nothing: set trainer.algorithm.grpo_norm_by_std=false."
    assert what_to_set(made(ONES, ONES, None, (0, 4))) == wanted
    assert (
        what_to_set(made(ONES, ONES, None, (0, 4), OF_BATCH)) == "To divide nothing: no option turns it off."
    )
    idle = made([math.nan] * 3, [math.nan] * 3, recipe=NAMES["slime.reward_grpo", "GRPO"])
    assert no_effect(idle) == "anywhere"
    assert what_to_set(idle) == "Instead of this term: --advantage-estimator ppo --kl-coef ...."


def table():
    return tables.load("framework_recipes").set_index(["setting", "algorithm"])


def test_the_table_has_the_recipes_of_today():
    found = table()
    assert set(found.index) == {*NAMES, ("none", "none")}
    assert set(found.framework) == set(FRAMEWORKS)
    for name, recipe in NAMES.items():
        row = found.loc[name]
        assert (row.option, row["where"], row.beta) == (recipe.option, recipe.where, recipe.setting.beta), (
            name
        )


@pytest.mark.parametrize("name", ["open_instruct", "prime_rl"])
def test_a_row_is_what_is_computed(name):
    found = table()
    for row in recipe_rows(name):
        wanted = found.loc[row["setting"], row["algorithm"]]
        for column in ("meaning", "no_effect", "instead", "divided"):
            assert row[column] == wanted[column], column
        for column in ("large_10", "eight_10", "equal_ratio"):
            assert row.get(column, 0.0) == pytest.approx(wanted.fillna(0.0)[column], abs=1e-3), column


def test_the_command_line_says_what_beta_means(capsys, monkeypatch):
    for module in (meaning, worth):
        monkeypatch.setattr(module, "SUCCESS", (0.5,))  # one prompt of three
    assert main(["audit", "skyrl.reward_k1", "--scale", "1", "--want", "sequence_reverse_kl"]) == 1
    said = capsys.readouterr().out
    assert "What β means in GRPO (the default; skyrl/backends/skyrl_train/utils/ppo_utils.py:" in said
    assert "no effect where all rewards of a group are equal" in said
    assert "    To divide nothing: set trainer.algorithm.grpo_norm_by_std=false.\n" in said
    assert "What β means in RLOO (trainer.algorithm.advantage_estimator=rloo; " in said
    assert "It is what was wanted only undivided, and is divided by default." in said
