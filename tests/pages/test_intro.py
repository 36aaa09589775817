"""The first page and the tables of "Which one should you use?" say what the audits say."""

import re
from pathlib import Path

import pytest
import sympy
import torch

from kl_book import tables
from kl_companion import (
    OBJECTIVES,
    audit,
    bandit,
    expected_gradient,
    gradient_weight,
    implied_f,
    optimal_policy,
)
from kl_companion.divergences import DIVERGENCES, T
from kl_companion.policy_losses import apa_loss, decompose, reinforce_loss, rwr_loss
from kl_companion.recommendations import LOGGED
from kl_companion.theory.calculus import value_is_unbiased

BOOK = Path(__file__).resolve().parents[2] / "book"
FRONT = " ".join((BOOK / "intro.md").read_text(encoding="utf-8").split())
TEXT = (BOOK / "which_one.md").read_text(encoding="utf-8")


def rows(heading):
    """Cells of the first table at or after a piece of text of the page."""
    after = TEXT[TEXT.index(heading) :]
    table = re.search(r"(?:^\|.*\n)+", after, re.M).group(0)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_what_the_first_paragraph_says_of_its_loss():
    def shown(logp, ref_logp):
        return (ref_logp - logp).exp() - (ref_logp - logp) - 1

    def detached(logp, ref_logp):
        return (ref_logp - logp).exp().detach() - (ref_logp - logp) - 1

    options = {"off_policy": False, "scale": 1.0}
    assert audit(shown, **options).matches == {"token_forward_kl": 1.0}
    assert "sequence_reverse_kl" in audit(shown, **options).value_matches
    assert audit(detached, **options).zero
    curvature = sympy.diff(implied_f(gradient_weight("k3", "reward")), T, 2)
    assert curvature.subs(T, 2) > 0 > curvature.subs(T, sympy.Rational(1, 2))


def test_k2_is_not_among_the_numbers_to_log():
    assert "K2 is not listed because it is biased" in TEXT
    assert not value_is_unbiased("k2", "reverse_kl")
    assert not any("k2" in entry.arguments for entry in LOGGED)


def test_both_kls_have_curvature_one():
    assert DIVERGENCES["reverse_kl"].curvature == DIVERGENCES["forward_kl"].curvature == 1


def test_the_optima_of_the_guide():
    assert len(rows("## Where training ends with each regularizer")) == 4
    generator = torch.Generator().manual_seed(0)
    r, q = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    q = q.log_softmax(-1)
    for beta in (0.1, 1.0):
        weights = {
            "reverse_kl": lambda level, b=beta: ((r - level) / b).exp(),
            "forward_kl": lambda level, b=beta: b / (b + level - r),
            "pearson": lambda level, b=beta: (1 + (r - level) / (2 * b)).clamp(min=0),
        }
        for name, weight in weights.items():
            logp, level = optimal_policy(r, q, name, beta)
            torch.testing.assert_close(logp.exp(), q.exp() * weight(level))
            clipped = bool(logp.isneginf().any())
            assert clipped == (name == "pearson" and beta == 0.1)
        threshold = optimal_policy(r, q, "total_variation", beta).logp.exp()
        left = r.max() - r > beta
        best = r.argmax()
        assert torch.equal(threshold == 0, left)
        torch.testing.assert_close(threshold[best], q[best].exp() + q[left].exp().sum())


def test_the_policy_gradients_of_the_guide():
    assert [r[0].split()[0] for r in rows("| Loss | is | has the gradient of |")] == ["K1", "APA,", "RWR,"]
    beta, worlds = 0.7, [bandit(3, seed=s) for s in range(3)]

    def field(name, world):
        theta = world.logits.clone().requires_grad_()
        return torch.autograd.grad(OBJECTIVES[name].scalar(world.rollout(theta)), theta)[0]

    reward = torch.stack([-field("expected_reward", w) / beta for w in worlds])
    kl = torch.stack([field("sequence_reverse_kl", w) for w in worlds])
    for n in (2, 3):
        fields = {
            "k1": lambda x: reinforce_loss(x, beta=beta, centering="leave_one_out") / beta,
            "apa": lambda x: apa_loss(x, beta=beta),
            "rwr": lambda x: rwr_loss(x, beta=beta),
        }
        found = {}
        for name, loss in fields.items():
            gradient = torch.stack([expected_gradient(loss, w, group_size=n) for w in worlds])
            found[name] = decompose(gradient, reward=reward, kl=kl)
        assert found["k1"].coefficients == pytest.approx({"reward": 1.0, "kl": 1.0})
        # beta n / (n - 1): the KL keeps its weight, the reward has 1 - 1/n of it
        assert found["apa"].coefficients == pytest.approx({"reward": 1 - 1 / n, "kl": 1.0})
        assert max(found[name].residual for name in ("k1", "apa")) < 1e-12
        assert found["rwr"].residual > 0.01


def test_the_count_of_defaults_is_that_of_the_table():
    """As the chapter on frameworks counts them: on-policy, small log-ratios, distillation left out."""
    table = tables.load("framework_audit")
    near = table[(table.sampling == "on-policy") & (table.scale == 1.0) & (table.default != "no")]
    near = near[near.purpose == "RL"]
    reverse = near.objective.isin(["token_reverse_kl", "sequence_reverse_kl"]).sum()
    assert (len(near), reverse) == (47, 12)
    asked = " ".join((BOOK / "questions.md").read_text(encoding="utf-8").split())
    assert "Of 47 defaults twelve have the gradient of a reverse KL" in asked
    assert "Of 47 defaults of public frameworks twelve have the gradient of a reverse KL" in FRONT
