"""Phrases about beta are read off numbers, and off nothing else."""

import math

import pytest

from kl_book import tables
from kl_companion.cli import main
from kl_companion.frameworks import FRAMEWORKS, meaning, worth
from kl_companion.frameworks.meaning import no_effect, recipe_rows, what_beta_means, what_to_set
from kl_companion.frameworks.recipes import default_recipes
from kl_companion.frameworks.worth import SUCCESS, Worth
from tests.support.data import data

DATA = data(__file__)

NAMES = {(r.setting.name, r.algorithm.name): r for r in default_recipes()}
OF_GROUP, OF_BATCH = NAMES["skyrl.reward_k3", "GRPO"], NAMES["torchtune.ppo", "PPO"]
SPREAD = [math.sqrt(p * (1 - p)) for p in SUCCESS]


def made(large, eight, strong=None, silent=(), recipe=OF_GROUP):
    def both(few):
        return {
            (p, n): x for n, values in ((8, few), (None, large)) for p, x in zip(SUCCESS, values, strict=True)
        }

    return Worth(recipe, both(eight), both(strong or eight), 0.0, 100.0, silent)


ONES = [1.0] * 3


@pytest.mark.parametrize(("found", "words"), DATA["phrases"])
def test_phrases(found, words):
    assert what_beta_means(eval(found)) == words


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
