"""What the checks of the claims share off-policy, by hand on bandits of two arms."""

import math

import pytest
import torch

from kl_book.ledger.claims.ground import groups, off_policy, spreads, sums, worlds
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.world import Enumeration

SMALL = worlds.three_policies((0.75, 0.25), (0.5, 0.5), (0.5, 0.5))
W = Enumeration(SMALL)


def test_ratio_and_gradients_of_losses_that_carry_it():
    assert W.rho.tolist() == pytest.approx([1.5, 0.5])
    x = math.log(1.5), math.log(0.5)
    assert sums.log_ratio(SMALL).tolist() == pytest.approx(list(x))
    first = torch.stack([W.in_loss("k1")[:, 0, 0], W.in_loss("k1", "detached")[:, 0, 0]])
    assert first[0].tolist() == pytest.approx([1.5 * 0.25 * (x[0] + 1), 0.5 * -0.75 * (x[1] + 1)])
    assert first[1].tolist() == pytest.approx([1.5 * 0.25, 0.5 * -0.75])
    assert W.in_reward("k1")[:, 0, 0].tolist() == pytest.approx([0.375 * x[0], -0.375 * x[1]])
    kl = 0.75 * x[0] + 0.25 * x[1]
    assert sums.kl_gradient(SMALL)[0].tolist() == pytest.approx([0.75 * (x[0] - kl), -0.75 * (x[0] - kl)])
    square = 0.75 * x[0] ** 2 + 0.25 * x[1] ** 2
    logp, ref_logp = (z.log_softmax(-1)[0] for z in (SMALL.logits, SMALL.ref_logits))
    assert float(sums.half_square(logp, ref_logp)) == pytest.approx(square / 2)


def test_covariance_and_what_rho_k1_adds_to_it():
    a, b = (0.375 * (sums.log_ratio(SMALL)[0] + 1)).item(), (-0.375 * (sums.log_ratio(SMALL)[1] + 1)).item()
    spread = (a - b) ** 2 / 4  # both arms are sampled with probability one half
    found = off_policy.covariance(W.in_loss("k1"), SMALL)
    assert found.flatten().tolist() == pytest.approx([spread, -spread, -spread, spread])
    extra = sum(0.5 * 0.375**2 * (2 * x + 1) for x in sums.log_ratio(SMALL).tolist())
    assert float(off_policy.excess_covariance(SMALL)[0, 0]) == pytest.approx(extra)
    assert off_policy.least_eigenvalue(torch.diag(torch.tensor([4.0, -1.0, 2.0]))) == pytest.approx(-0.25)
    assert off_policy.nowhere_less(torch.diag(torch.tensor([4.0, 0.0, 2.0])))
    assert not off_policy.nowhere_less(torch.diag(torch.tensor([4.0, -1e-6, 2.0])))


def test_share_of_cases_against_a_statement():
    assert off_policy.share_of_cases(x > 2 for x in (1, 2, 3, 4)) == 0.5
    assert off_policy.share_of_cases([]) == math.inf


def test_the_ratio_up_to_which_k3_has_the_smaller_variance():
    """The variance of k3 minus that of k1 is the mean of (w - 1)(w - 1 - 2 log w), w = p/q, by hand."""
    bound = spreads.K3_BOUND
    assert f"{bound:.3f}" == "3.513"

    def term(w):
        return (w - 1) * (w - 1 - 2 * math.log(w))

    assert term(bound) == pytest.approx(0, abs=1e-12)
    assert all(term(bound * i / 1000) < 0 for i in range(1, 1000))
    assert all(term(bound * (1 + i / 1000)) > 0 for i in range(1, 1000))
    for problem in (*spreads.one_sided(), spreads.just_beyond(), spreads.far_apart()):
        w = (-sums.log_ratio(problem)).exp().tolist()
        gap = sum(p * term(x) for p, x in zip(terms(problem).p.tolist(), w, strict=True))
        at = Enumeration(problem)
        found = at.var(at.value("k3")) - at.var(at.value("k1"))
        assert found == pytest.approx(gap, rel=1e-6, abs=1e-12)
        assert spreads.larger("k3", problem) == (gap > 0)


def test_groups_and_centering():
    p, index = groups.groups(worlds.two_policies((0.75, 0.25), (0.5, 0.5)), 2)
    assert index.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert p.tolist() == pytest.approx([9 / 16, 3 / 16, 3 / 16, 1 / 16])
    x = torch.tensor([[1.0, 2.0, 6.0]])
    assert groups.centered(x, "none").tolist() == [[1.0, 2.0, 6.0]]
    assert groups.centered(x, "mean").tolist() == [[-2.0, -1.0, 3.0]]
    assert groups.centered(x, "leave_one_out").tolist() == [[-3.0, -1.5, 4.5]]


def test_worlds_near_the_reference_keep_their_sampler():
    far = worlds.three_policies((0.99, 0.01), (0.5, 0.5), (0.2, 0.8))
    close = worlds.near(far, 0.1)
    assert 0.04 < float(terms(close).log_ratio.abs().max()) <= 0.1
    assert close.behavior_logits is far.behavior_logits
    with pytest.raises(ValueError, match="at most -1"):
        worlds.near(far, -1.0)
    several = worlds.sampled_elsewhere()
    assert all(p.behavior_logits is not None for p in several)
    assert len({p.rows.shape[1] for p in several}) > 1
