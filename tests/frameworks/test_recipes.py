"""What a division by a standard deviation makes of beta, against sums over every group written out."""

import itertools
import math

import pytest
import torch

from kl_companion.frameworks import FRAMEWORKS, audit_setting, framework, setting, settings
from kl_companion.frameworks.dividing import (
    WORLD,
    Division,
    answers,
    charged_with,
    effect,
    over_the_others,
    slope,
    standardized,
    whitened,
)
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.verdicts import (
    Verdict,
    division_lines,
    division_words,
    in_float64,
    option_words,
    remedy_words,
)

POLICY, REFERENCE, SOLVED = (1 / 4, 1 / 4, 1 / 2), (1 / 8, 1 / 2, 3 / 8), (1, 0, 0)
K1 = [math.log(p / q) for p, q in zip(POLICY, REFERENCE, strict=True)]
NOWHERE = SourceLocation("", "")
UNDIVIDED = "tinker.kl_discount_1"  # K1 in the reward, not divided


def deviation(x):
    mean = sum(x) / len(x)
    return math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))


def divided(x, eps):
    mean = sum(x) / len(x)
    return [(v - mean) / (deviation(x) + eps) for v in x]


def update(values, n, advantages, policy=POLICY, only=lambda group: True):
    """E[(1/n) sum_i A_i (e_i - policy)] over every ordered group, [arms]."""
    total = [0.0] * len(policy)
    for group in itertools.product(range(len(policy)), repeat=n):
        chance = math.prod(policy[i] for i in group)
        if only(group):
            for i, a in zip(group, advantages([values[i] for i in group]), strict=True):
                for j in range(len(policy)):
                    total[j] += chance * a * ((i == j) - policy[j]) / n
    return total


def norm(x):
    return math.sqrt(sum(v * v for v in x))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def gradient(values, policy=POLICY):
    mean = dot(policy, values)
    return [p * (v - mean) for p, v in zip(policy, values, strict=True)]


def coefficients(u):
    """(a, b) of the a grad E[R] - b grad KL that is nearest to u, by the normal equations."""
    r, k = gradient(SOLVED), gradient(K1)
    rr, rk, kk = dot(r, r), dot(r, k), dot(k, k)
    ur, uk = dot(u, r), dot(u, k)
    a, c = (ur * kk - uk * rk) / (rr * kk - rk * rk), (uk * rr - ur * rk) / (rr * kk - rk * rk)
    return a, -c


# -- together with the penalty -----------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-4, 1e-6])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_beta_cancels_where_rewards_are_equal_and_is_hundreds_of_times_larger_where_not(n, eps):
    found = effect(
        Division("rewards and penalty", "group", NOWHERE, standardized(eps)), setting(UNDIVIDED).loss, size=n
    )
    strong, weak = (update([-b * k for k in K1], n, lambda x: divided(x, eps)) for b in (0.1, 0.001))
    assert found.equal == pytest.approx(norm(strong) / norm(weak), rel=1e-9)
    assert found.equal < 1.2  # 100 undivided
    k = gradient(K1)
    assert found.cosine == pytest.approx(-dot(weak, k) / norm(weak) / norm(k), rel=1e-9)
    assert found.cosine < 0.995  # another direction than the gradient of the KL
    mixed = [r - 0.001 * k for r, k in zip(SOLVED, K1, strict=True)]
    a, b = coefficients(update(mixed, n, lambda x: divided(x, eps)))
    assert found.acts_like == pytest.approx(b / a, rel=1e-8)
    assert found.acts_like > 250 * 0.001


@pytest.mark.parametrize("beta", [0.1, 0.001, 1e-7])
@pytest.mark.parametrize("eps", [1e-4, 1e-6])
def test_with_equal_rewards_one_over_beta_sd_plus_eps_multiplies_the_undivided_update(eps, beta):
    """Of two answers: sd is |k1 - k2| / sqrt 2, and the coefficient of the centered cost is exact."""

    def by_formula(x):
        k1, k2 = (-v / beta for v in x)
        factor = beta / (beta * abs(k1 - k2) / math.sqrt(2) + eps)
        return [-factor * (k1 - k2) / 2, -factor * (k2 - k1) / 2]

    costs = [-beta * k for k in K1]
    wanted, got = (update(costs, 2, fn) for fn in (by_formula, lambda x: divided(x, eps)))
    assert got == pytest.approx(wanted, rel=1e-9, abs=1e-15)
    if beta == 1e-7:  # far below eps: the coefficient is beta / eps
        plain = update(costs, 2, lambda x: [(v - sum(x) / 2) / eps for v in x])
        assert norm(got) == pytest.approx(norm(plain), rel=2e-3 if eps == 1e-4 else 0.15)


def test_where_rewards_differ_the_penalty_is_divided_by_their_deviation_less_what_lies_along_them():
    """To first order in beta, group by group: -(beta / s)(k~ - <k~, r~>/<r~, r~> r~), with ~ for centered."""
    beta = 1e-7
    for group in itertools.product(range(3), repeat=4):
        r, k = [SOLVED[i] for i in group], [K1[i] for i in group]
        if len(set(r)) == 1:
            continue
        with_it, without = (divided([a - b * c for a, c in zip(r, k, strict=True)], 0.0) for b in (beta, 0.0))
        rc, kc = ([v - sum(x) / 4 for v in x] for x in (r, k))
        share = dot(kc, rc) / dot(rc, rc)
        wanted = [-(b - share * a) / deviation(r) for a, b in zip(rc, kc, strict=True)]
        got = [(x - y) / beta for x, y in zip(with_it, without, strict=True)]
        assert got == pytest.approx(wanted, abs=2e-6)


def test_a_large_batch_keeps_beta_and_a_small_one_does_not():
    """One number divides everything: what is wrong is left by batches in which nothing is solved."""
    for name in ("openrlhf.reward_k1", "verl.reward_k1", "torchtune.ppo"):
        chosen = setting(name)
        (division, *_) = chosen.divided
        found = effect(division, in_float64(chosen))
        assert division.over == "batch"
        assert found.acts_like == pytest.approx(0.001, rel=0.02)
        assert found.small is not None
        assert found.small > 0.01
        assert found.equal < 1.05


# -- beside a penalty --------------------------------------------------------------------------------------


def expected_root(p, n):
    """E[sqrt(m (n - m) (n - 1) / n^3)] with m of n answers right, each with chance p."""
    return sum(
        math.comb(n, m) * p**m * (1 - p) ** (n - m) * math.sqrt(m * (n - m) * (n - 1) / n**3)
        for m in range(n + 1)
    )


@pytest.mark.parametrize("p", [0.01, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_divided_rewards_of_0_and_1_give_a_multiple_of_the_gradient(n, p):
    c = expected_root(p, n) / (p * (1 - p))
    assert slope(standardized(0.0), answers([p, 1 - p]), n) == pytest.approx(c, rel=1e-10)
    by_groups = update([1, 0], n, lambda x: divided(x, 1e-300), policy=(p, 1 - p))
    assert by_groups == pytest.approx([c * g for g in gradient([1, 0], (p, 1 - p))], rel=1e-10)
    share = (1 - 1 / n) / c
    if n < 4:
        assert share == pytest.approx(1 / math.sqrt(n), rel=1e-10)
    assert 1 / math.sqrt(n) - 1e-9 < share < max(0.54, 1 / math.sqrt(n) + 1e-9)


def test_the_share_of_beta_goes_from_one_over_root_n_to_a_half():
    for n in (4, 16, 64):
        rare, half = ((1 - 1 / n) / slope(standardized(0.0), answers([p, 1 - p]), n) for p in (1e-7, 0.5))
        assert rare == pytest.approx(1 / math.sqrt(n), rel=1e-4)
        assert half == pytest.approx(0.5, abs=0.036 if n == 4 else 1e-3)


def test_rewards_that_are_divided_alone_leave_the_penalty_linear_in_beta():
    division = Division("rewards", "group", NOWHERE, standardized(1e-6))
    found = effect(division, setting("trl.grpo").loss)
    assert (found.equal, found.cosine, found.small) == (pytest.approx(100), 1.0, None)
    assert found.acts_like == pytest.approx(0.001 * (1 / 4 * 3 / 4) / expected_root(1 / 4, 4), rel=1e-5)


def test_a_deviation_of_the_other_answers():
    """One of four is right: the others of it agree and it is not divided; of a wrong one they do not."""
    (got,) = over_the_others(0.0)(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)).tolist()
    assert got == pytest.approx([1.0, *[-1 / 3 / math.sqrt(1 / 3)] * 3])


def test_whitening_with_and_without_its_mean():
    x = torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64)
    plain = whitened(unbiased=True)(x)
    assert plain[0].tolist() == pytest.approx([(v - 3) / math.sqrt(7) for v in (1, 2, 6)], rel=1e-7)
    assert torch.allclose(whitened(unbiased=True, keep_mean=True)(x) - plain, torch.tensor(3.0).double())
    biased = whitened(unbiased=False, floor="least")(x)
    assert biased[0].tolist() == pytest.approx([(v - 3) / math.sqrt(14 / 3) for v in (1, 2, 6)], rel=1e-12)
    assert whitened(unbiased=False, floor="least")(x * 1e-9)[0, 2].item() == pytest.approx(3e-9 / 1e-4)


# -- which frameworks --------------------------------------------------------------------------------------


def test_verls_own_functions_are_the_formulas():
    x = torch.tensor([[1.0, -0.5, 0.25, 2.0], [0.1, 0.1, 0.3, 0.2]], dtype=torch.float64)
    batch, group = setting("verl.reward_k1").divided
    assert (batch.over, group.over) == ("batch", "group")
    torch.testing.assert_close(batch.normalize(x), whitened(unbiased=True)(x), rtol=1e-7, atol=0)
    torch.testing.assert_close(group.normalize(x), standardized(1e-6)(x), rtol=1e-12, atol=0)


def test_the_penalty_is_read_off_the_settings_own_loss():
    assert charged_with(setting("verl.reward_k1").loss, WORLD).tolist() == pytest.approx(K1, rel=1e-12)
    squares = [k * k / 2 for k in K1]
    assert charged_with(setting("skyrl.reward_k2").loss, WORLD).tolist() == pytest.approx(squares, rel=1e-12)


BY_DEFAULT = {
    "verl.reward": "batch",
    "openrlhf.reward": "batch",
    "nemo_rl.reward": "batch",
    "slime.reward_reinforce_plus_plus": "batch",
    "skyrl.reward": "group",
    "torchtune.ppo": "batch",
}


def test_which_penalties_are_divided_by_default():
    for chosen in settings():
        over = next((o for prefix, o in BY_DEFAULT.items() if chosen.name.startswith(prefix)), None)
        found = chosen.penalty_divided
        assert (found and found.over) == over, chosen.name
        if chosen.placement == "loss":
            assert all(d.of == "rewards" for d in chosen.divided), chosen.name


def test_every_place_can_be_found():
    for chosen in settings():
        for division in chosen.divided:
            where = chosen.framework.located(division.place)
            assert where.endswith(f", {division.place.function}")
            assert (":" in where.split(",")[0].removeprefix("torchforge:")) == bool(
                chosen.framework.distribution
            )


def test_the_audit_says_what_is_divided_and_what_to_set():
    text = str(audit_setting("skyrl.reward_k1", off_policy=False, scale=1.0))
    assert (
        "By default rewards and penalty together are divided by the standard deviation of the group" in text
    )
    assert "differ in size by a factor of 1 instead of 100" in text
    assert "beta = 0.001 acts like 0.324 in groups of 4" in text
    assert "To divide nothing: set trainer.algorithm.grpo_norm_by_std=false." in text
    chosen = setting("slime.reward_reinforce_plus_plus")
    (division,) = chosen.divided
    lines = division_lines(chosen.framework, division, effect(division, chosen.loss))
    assert lines[-1] == "To divide nothing: no option turns it off."
    assert "in a batch of 64 answers, and like 0.0133 in one of 16" in lines[1]


def test_a_penalty_that_is_divided_by_default_does_not_keep_beta():
    wanted = {
        "skyrl.reward_k1": False,
        "openrlhf.reward_k1": False,
        "areal.reward_k1": True,
        "trl.rloo": True,
        "skyrl.loss_k2": True,
    }
    for name, kept in wanted.items():
        chosen = setting(name)
        effects = tuple(effect(d, in_float64(chosen)) for d in chosen.divided)
        assert Verdict(chosen, None, None, effects).keeps_beta == kept, name  # type: ignore[arg-type]


def test_words_for_a_table():
    assert division_words(setting("tinker.kl_discount_0")) == "nothing"
    assert division_words(setting("trl.grpo")) == "rewards by that of the group (by default)"
    assert division_words(setting("verl.reward_k1")) == (
        "rewards and penalty by that of the batch (by default); "
        "rewards and penalty by that of the group (algorithm.adv_estimator=grpo)"
    )


def test_a_remedy_says_how_not_to_divide():
    assert "algorithm.adv_estimator=rloo, so that nothing is divided" in option_words("verl.reward_k1")
    assert option_words("trl.rloo") == "RLOOConfig(beta=0.05)"
    assert option_words("torchtune.ppo").endswith("of the batch, which no option turns off")
    for name in FRAMEWORKS:
        sequence = framework(name).remedy.sequence
        if sequence is not None and setting(sequence).penalty_divided is not None:
            assert "divided" in remedy_words(framework(name))
