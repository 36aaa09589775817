"""A coefficient that is fitted to every world anew explains nothing: no "Exact", no sign, no effect."""

import subprocess

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.judgment.card import card
from tests.support.data import data
from tests.support.warm import command

DATA = data(__file__)


pytestmark = pytest.mark.slow

KLS = {
    "k2": lambda logp, ref_logp: 0.5 * (logp - ref_logp) ** 2,
    "k3": lambda logp, ref_logp: (ref_logp - logp).exp() - 1 - (ref_logp - logp),
}
REDUCTIONS = {
    "answers": lambda x, mask: (x * mask).sum(-1).mean(),
    "tokens": lambda x, mask: (x * mask).sum() / mask.sum(),
    "each": lambda x, mask: ((x * mask).sum(-1) / mask.sum(-1)).mean(),
    "summed": lambda x, mask: (x * mask).sum(),
}
ADVANTAGES = {
    "std": lambda r: (r - r.mean()) / (r.std() + 1e-4),
    "population": lambda r: (r - r.mean()) / (r.std(unbiased=False) + 1e-6),
    "median": lambda r: r - r.median(),
    "tanh": lambda r: torch.tanh(r - r.mean()),
}


def grpo(kl, reduction, advantage, beta):
    def loss(logp, ref_logp, rewards, mask):
        policy = -logp * ADVANTAGES[advantage](rewards).unsqueeze(-1)
        return REDUCTIONS[reduction](policy + beta * KLS[kl](logp, ref_logp), mask)

    return loss


def words(found):
    return " ".join(card(found, height=None).split())


@pytest.mark.parametrize(
    ("kl", "reduction", "advantage", "group_size", "beta"),
    DATA["small_groups_of_normalized_rewards_are_unknown_and_the_card_says_what_is_known"],
)
def test_small_groups_of_normalized_rewards_are_unknown_and_the_card_says_what_is_known(
    kl, reduction, advantage, beta, group_size
):
    loss = grpo(kl, reduction, advantage, beta)
    found = audit(loss, group_size=group_size, scale=1.0, off_policy=False)
    text = words(found)
    assert found.main.matches == ()
    assert found.headline == "unnamed"
    assert "minimizes no objective that is known here." in text
    assert all(x not in text for x in ("Exact", "? x", "pushed away", "In practice", "times as long"))
    if reduction == "answers":
        name = "token_reverse_kl" if kl == "k2" else "token_forward_kl"
        known = {"k2": "reverse KL", "k3": "forward KL"}[kl]
        part = found.parts[0]
        assert part.finding.matches == ({name: pytest.approx(beta)},)
        assert f"Its KL part minimizes {beta:.4g} x {known}, next token." in text


def test_in_large_batches_division_by_the_deviation_is_named_with_its_sign():
    found = audit(grpo("k2", "answers", "std", 0.1), scale=1.0, off_policy=False)
    assert found.main.matches == ({"expected_reward": -1.0, "token_reverse_kl": pytest.approx(0.1)},)
    assert found.main.units[0] == {"expected_reward": "deviation", "token_reverse_kl": ""}
    by_tokens = audit(grpo("k3", "tokens", "population", 0.1), scale=1.0, off_policy=False).main
    assert by_tokens.matches == ({"expected_reward": -1.0, "token_forward_kl": pytest.approx(0.1)},)
    assert by_tokens.units[0] == {"expected_reward": "tokens_deviation", "token_forward_kl": "tokens"}
    in_groups = audit(grpo("k2", "answers", "std", 0.1), scale=1.0, off_policy=False, group_size=4)
    said = "In large batches it minimizes 0.1 x reverse KL, next token - reward; reward / reward std."
    assert said in words(in_groups)


def test_groups_of_one_set_of_constants_stay_exact():
    def loss(logp, ref_logp, rewards, mask):
        centered = (rewards - rewards.mean()).unsqueeze(-1)
        return ((0.3 * KLS["k3"](logp, ref_logp) - logp * centered) * mask).sum(-1).mean()

    found = audit(loss, scale=1.0, off_policy=False, group_size=4)
    assert found.main.matches == (
        {"expected_reward": pytest.approx(-0.75), "token_forward_kl": pytest.approx(0.3)},
    )
    assert "Exact up to rounding on three small worlds" in words(found)


def test_token_means_of_small_groups_are_not_a_sum_that_fits_one_distribution_of_lengths():
    def loss(logp, ref_logp, mask):
        return REDUCTIONS["tokens"](KLS["k2"](logp, ref_logp), mask)

    found = audit(loss, scale=1.0, off_policy=False, group_size=4)
    assert found.main.matches == ()
    assert "In large batches it minimizes [reverse KL, next token] / mean answer length." in words(found)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_factor_of_the_batch_keeps_ratios_and_signs(sign):
    def loss(logp, ref_logp, rewards, mask):
        charged = rewards - sign * 0.25 * ((logp - ref_logp).detach() * mask).sum(-1)
        centered = (charged - charged.mean()) / charged.std(unbiased=False)
        return -((logp * mask).sum(-1) * centered).mean()

    found = audit(loss, scale=1.0, off_policy=False)
    assert found.main.matches == (
        {"expected_reward": -1.0, "sequence_reverse_kl": pytest.approx(sign * 0.25)},
    )
    assert set(found.main.units[0].values()) == {"batch"}
    text = words(found)
    assert "x reverse KL, whole answer - reward] x a positive number of the batch" in text
    assert "Exact" not in text
    assert "One positive factor was fitted to each of four small worlds" in text
    assert ("pushed away" in text) is (sign < 0)


def test_a_free_coefficient_beside_constants_is_unknown():
    def loss(logp, ref_logp, rewards, mask):
        baseline = 3.7 + rewards.max()  # of the batch: it multiplies E[1 / length]
        advantage = (rewards - baseline).unsqueeze(-1)
        return (-(logp * advantage * mask).sum(-1) / mask.sum(-1)).mean()

    found = audit(loss, scale=1.0, off_policy=False)
    assert found.main.matches == ()
    assert all(x not in words(found) for x in ("Exact", "?", "In practice"))


@pytest.mark.parametrize("stale", [False, True])
def test_the_mean_of_the_rewards_as_a_baseline_is_no_free_coefficient(stale):
    def loss(logp, ref_logp, rewards, mask, beta=0.3):
        advantage = ((rewards - rewards.mean()) / rewards.std(unbiased=False)).unsqueeze(-1)
        each = beta * 0.5 * (logp - ref_logp) ** 2 - logp * advantage
        return ((each * mask).sum(-1) / mask.sum(-1)).mean()

    main = audit(loss, scale=1.0, off_policy=stale).main
    reward = "behavior_centered_reward_per_token" if stale else "expected_centered_reward_per_token"
    assert main.matches == ({reward: -1.0, "sampled_mean_squared_log_ratio": pytest.approx(0.3)},)
    assert main.units[0] == {reward: "deviation", "sampled_mean_squared_log_ratio": ""}


def test_the_variance_of_old_log_ratios_is_no_free_coefficient():
    def loss(logp, ref_logp, rewards, mask, tau=0.2):
        x = ((logp - ref_logp) * mask).sum(-1)
        off = rewards - rewards.mean() - tau * (x - x.mean())
        return (off**2).mean() / 2

    main = audit(loss, scale=1.0, off_policy=True).main
    assert main.matches == (
        {
            "behavior_centered_reward": pytest.approx(-0.2),
            "behavior_sequence_log_ratio_variance": pytest.approx(0.04),
        },
    )


def test_the_command_line_says_so(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def grpo(logp, ref_logp, rewards, mask, beta=0.02):\n"
        "    adv = (rewards - rewards.mean()) / (rewards.std() + 1e-6)\n"
        "    kl = (ref_logp - logp).exp() - (ref_logp - logp) - 1\n"
        "    return ((beta * kl - logp * adv.unsqueeze(-1)) * mask).sum(-1).mean()\n"
    )
    audited = ["-m", "kl_companion.cli", "audit", "mine.py:grpo", "--group-size", "4", "--scale", "1"]
    done = subprocess.run(
        [*command(), *audited], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    text = " ".join(done.stdout.split())
    assert "grpo minimizes no objective that is known here." in text
    assert "Exact" not in text
    assert "?" not in text
    assert "pushed away" not in text
    assert "Its KL part minimizes 0.02 x forward KL, next token." in text
