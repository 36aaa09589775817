"""Which recipes ship, what divides in them, and that installed functions are the formulas of this package."""

import math

import pytest
import torch

from kl_companion.auditing.updates import advantages
from kl_companion.auditing.updates.advantages import normalizer
from kl_companion.frameworks import FRAMEWORKS, framework, setting, settings
from kl_companion.frameworks.recipes import FrameworkRecipe, charged_with, default_recipes
from kl_companion.frameworks.verdicts import division_words, option_words, remedy_words
from kl_companion.rollout import Rollout
from tests.support.data import data

DATA = data(__file__)

RETURNS = torch.tensor([[1.0, -0.5, 0.25, 2.0], [0.1, 0.1, 0.3, 0.2]], dtype=torch.float64)
NAMES = {(r.setting.name, r.algorithm.name): r for r in default_recipes()}
BY_DEFAULT = DATA["divided by default"]


def test_every_framework_ships_a_recipe_or_says_why_not():
    for name in FRAMEWORKS:
        assert bool(default_recipes(name)) != bool(framework(name).without), name
    assert framework("prime_rl").without
    assert len(NAMES) == len(default_recipes()) == 107


def test_defaults_of_rl_are_in_recipes_and_those_of_distillation_are_not():
    for chosen in settings():
        assert (chosen.beta is None) or chosen.algorithms, chosen.name
    shipped = DATA["shipped"]
    assert {name: setting(name).beta for name in shipped} == shipped


def test_which_penalties_are_divided_by_default():
    for chosen in settings():
        over = next((o for prefix, o in BY_DEFAULT.items() if chosen.name.startswith(prefix)), None)
        found = chosen.penalty_divided
        assert (found and found.over) == over, chosen.name
        if chosen.placement == "loss":
            assert all(chosen.divides(a) in ("", "rewards") for a in chosen.algorithms), chosen.name


@pytest.mark.parametrize("name", NAMES, ids=" ".join)
def test_what_is_said_to_divide_forgets_the_scale_of_rewards_and_nothing_else_does(name):
    recipe = NAMES[name].algorithm.recipe
    normalize = recipe.normalize or normalizer(recipe.advantage, eps=recipe.eps, unbiased=recipe.unbiased)
    x = RETURNS[:1] - RETURNS[:1].mean()  # one torchtune adds its mean again
    once, thrice = normalize(x.clone()), normalize(3 * x)
    factor = 1.0 if NAMES[name].algorithm.over else 3.0
    torch.testing.assert_close(thrice, factor * once, rtol=1e-3, atol=0)


def test_every_place_can_be_found():
    for recipe in default_recipes():
        where = recipe.where
        assert where.endswith(f", {recipe.algorithm.place.function}")
        installed = bool(recipe.setting.framework.distribution)
        assert (":" in where.split(",")[0]) == installed


INSTALLED = {(setting, way): eval(f, vars(advantages)) for setting, way, f in DATA["installed"]}


@pytest.mark.parametrize("name", INSTALLED, ids=" ".join)
def test_installed_advantages_are_the_formulas(name):
    normalize = NAMES[name].algorithm.recipe.normalize
    assert normalize is not None
    torch.testing.assert_close(normalize(RETURNS.clone()), INSTALLED[name](RETURNS), rtol=1e-7, atol=1e-12)


def three_answers():
    """Log-ratios of log 2, -log 2 and log 4/3, one token each."""
    logp = torch.tensor([[0.25], [0.25], [0.5]], dtype=torch.float64).log()
    ref_logp = torch.tensor([[0.125], [0.5], [0.375]], dtype=torch.float64).log()
    rewards = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    tokens, mask = torch.arange(3).unsqueeze(1), torch.ones(3, 1, dtype=torch.float64)
    return Rollout(tokens, mask, logp.requires_grad_(), ref_logp, rewards=rewards)


K1 = [math.log(2), -math.log(2), math.log(4 / 3)]


def test_what_is_charged_is_read_off_the_settings_own_loss():
    assert charged_with(setting("verl.reward_k1"), three_answers())[:, 0].tolist() == pytest.approx(K1)
    squares = [k * k / 2 for k in K1]
    assert charged_with(setting("skyrl.reward_k2"), three_answers())[:, 0].tolist() == pytest.approx(squares)
    assert charged_with(setting("slime.reward_grpo"), three_answers()).tolist() == [[0.0]] * 3


def divided(x, eps):
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))
    return [(v - mean) / (deviation + eps) for v in x]


def test_a_penalty_is_divided_with_the_rewards_or_subtracted_from_what_was_divided():
    rewards, beta = [1.0, 0.0, 0.0], 0.1
    together = divided([r - beta * k for r, k in zip(rewards, K1, strict=True)], 1e-6)
    apart = [a - beta * k for a, k in zip(divided(rewards, 1e-9), K1, strict=True)]
    for name, wanted in ((("verl.reward_k1", "GRPO"), together), (("openrlhf.reward_k1", "GRPO"), apart)):
        found = NAMES[name].advantages(three_answers(), beta)
        assert found[:, 0].tolist() == pytest.approx(wanted, rel=1e-7), name


def test_a_term_in_the_loss_leaves_the_advantages_alone():
    rollout, recipe = three_answers(), NAMES["trl.grpo", "GRPO"]
    assert recipe.advantages(rollout, 0.1)[:, 0].tolist() == pytest.approx(divided([1.0, 0.0, 0.0], 1e-4))
    k3 = [1 / math.exp(k) - 1 + k for k in K1]
    with_it, without = (recipe.loss(rollout, beta).item() for beta in (0.1, 0.0))
    assert with_it - without == pytest.approx(0.1 * sum(k3) / 3)


def test_words_for_a_table():
    assert division_words(setting("tinker.kl_discount_0")) == "nothing"
    assert division_words(setting("trl.grpo")) == "rewards by that of the group (by default)"
    said = division_words(setting("verl.reward_k1"))
    assert said.startswith(
        "rewards and penalty by that of the batch (by default); "
        "rewards and penalty by that of the group (algorithm.adv_estimator=grpo); "
    )
    assert "rewards by that of the group (--algo.advantage.estimator group_norm)" in division_words(
        setting("openrlhf.reward_k1")
    )


def test_a_remedy_says_how_not_to_divide():
    assert "algorithm.adv_estimator=rloo, so that nothing is divided" in option_words("verl.reward_k1")
    assert option_words("trl.rloo") == "RLOOConfig(beta=0.05)"
    assert option_words("torchtune.ppo").endswith("of the batch, which no option turns off")
    for name in FRAMEWORKS:
        sequence = framework(name).remedy.sequence
        if sequence is not None and setting(sequence).penalty_divided is not None:
            assert "divided" in remedy_words(framework(name))


def test_what_a_user_writes():
    assert NAMES["trl.rloo", "RLOO"].option == "RLOOConfig(beta=0.05)"
    assert FrameworkRecipe(*NAMES["verl.reward_k1", "GRPO"]).option == (
        "algorithm.adv_estimator=grpo; algorithm: use_kl_in_reward=True, kl_ctrl.kl_coef=0.001, "
        "kl_penalty=kl (or k1)"
    )
