"""Where the published top-k forms take a policy: closed forms against a search that shares no code."""

import math

import pytest
import torch

from kl_companion.theory.top_k_optima import mass_penalty_optimum, top_k_mass_optimum
from tests.oracles.numeric import gradient
from tests.support.distributions import logs, reference

INF = float("inf")


def kl(name, p, q):
    return (p.exp() * (p - q)).sum() if name == "reverse_kl" else (q.exp() * (q - p)).sum()


def search(objective, start):
    """The least value that quasi-Newton steps on logits find, and where."""
    theta = start.clone().requires_grad_()
    steps = torch.optim.LBFGS(
        [theta], max_iter=3000, tolerance_grad=1e-13, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure():
        steps.zero_grad()
        loss = objective(theta.log_softmax(-1))
        loss.backward()
        return loss

    steps.step(closure)
    return theta.detach().log_softmax(-1), closure().item()


SETS = [(0, 6, [1]), (1, 6, [0, 2, 5]), (2, 5, [3, 4]), (3, 7, [0, 1, 2, 3, 4, 5])]


@pytest.mark.parametrize("coefficient", [1.0, -1.0, 0.3, -2.5, 4.0, 0.0])
@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl"])
def test_a_mass_penalty_has_its_optimum_where_search_finds_it(name, coefficient):
    for seed, vocab, head in SETS:
        q = reference(seed, vocab)
        found = mass_penalty_optimum(q, torch.tensor(head), coefficient, name)
        assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-13)

        def objective(p, q=q, head=head):
            return kl(name, p, q) + coefficient * p.exp()[head].sum()

        where, least = search(objective, q)
        assert objective(found).item() <= least + 1e-13
        torch.testing.assert_close(found.exp(), where.exp(), rtol=0, atol=2e-7)
        slope = gradient(lambda x, o=objective: o(x.log_softmax(-1)), found)
        assert slope.abs().max() < 1e-13  # stationary in the logits
        inside = torch.zeros(vocab, dtype=torch.bool).index_fill(0, torch.tensor(head), True)
        for part in (inside, ~inside):  # ratios inside the set, and outside it, stay those of the reference
            shift = (found - q)[part]
            assert (shift - shift[0]).abs().max() < 1e-13


def test_closed_forms_of_the_mass():
    for seed, vocab, head in SETS:
        q, indices = reference(seed, vocab), torch.tensor(head)
        m = q.exp()[head].sum().item()
        reverse = mass_penalty_optimum(q, indices, 1.0).exp()[head].sum().item()
        forward = mass_penalty_optimum(q, indices, -1.0, "forward_kl").exp()[head].sum().item()
        assert reverse == pytest.approx(m / (m + math.e * (1 - m)), rel=1e-13)
        assert forward == pytest.approx(math.sqrt(m), rel=1e-13)


@pytest.mark.parametrize("coefficient", [1.0, -1.0, -3.0])
@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl"])
def test_sets_of_no_mass_and_of_all_of_it_change_nothing(name, coefficient):
    q = reference(4, 5)
    for head in ([], [0, 1, 2, 3, 4]):
        found = mass_penalty_optimum(q, torch.tensor(head, dtype=torch.int64), coefficient, name)
        torch.testing.assert_close(found, q, rtol=1e-13, atol=1e-14)
    dead = logs(0.0, 0.25, 0.75)
    for head in ([0], [1, 2]):
        found = mass_penalty_optimum(dead, torch.tensor(head), coefficient, name)
        torch.testing.assert_close(found, dead, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_of_the_largest_k_satisfies_the_conditions_of_optimality(seed, k):
    """log(P/Q) + a is constant for some a in [0, 1], 1 above the k-th largest, 0 below it, with sum k."""
    q = reference(seed, 7)
    p = top_k_mass_optimum(q, k)
    assert p.exp().sum().item() == pytest.approx(1.0, abs=1e-13)
    if k in (0, 7):
        torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-14)
        return
    level = p.sort(descending=True).values[k - 1]
    above, tied = p > level + 1e-9, (p - level).abs() <= 1e-9
    lowered = q - p  # a + constant
    shares = (k - int(above.sum())) / int(tied.sum())
    assert 0 < shares <= 1
    constant = ((lowered.sum() - k) / 7).item()
    a = lowered - constant
    assert (a[above] - 1).abs().max() < 1e-9 if above.any() else True
    below = ~above & ~tied
    assert a[below].abs().max() < 1e-9 if below.any() else True
    assert a.min() > -1e-9
    assert a.max() < 1 + 1e-9
    assert a.sum().item() == pytest.approx(k, abs=1e-9)


def test_two_tokens_by_hand():
    """Q = (4/5, 1/5), k = 1: e^(-1) 4/5 > 1/5, so the head stays the head and is lowered by e."""
    found = top_k_mass_optimum(logs(0.8, 0.2), 1).exp().tolist()
    assert found == pytest.approx(
        [0.8 / (0.8 + 0.2 * math.e), 0.2 * math.e / (0.8 + 0.2 * math.e)], rel=1e-12
    )
    # Q = (3/5, 2/5): log 3/2 < 1, so the two end level
    assert top_k_mass_optimum(logs(0.6, 0.4), 1).exp().tolist() == pytest.approx([0.5, 0.5], rel=1e-12)
    # three equal tokens stay so
    assert top_k_mass_optimum(logs(1 / 3, 1 / 3, 1 / 3), 2).exp().tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_forbidden_token_changes_nothing_for_the_others(k):
    q = reference(1, 4)
    wide = torch.cat([q[:2], logs(0.0), q[2:]])
    found = top_k_mass_optimum(wide, k)
    assert found[2].item() == -INF
    torch.testing.assert_close(found[[0, 1, 3, 4]], top_k_mass_optimum(q, k), rtol=1e-12, atol=1e-13)


def test_a_head_that_holds_all_that_the_reference_allows_costs_a_constant():
    wide = torch.cat([logs(0.0), reference(2, 3), logs(0.0)])
    for k in (3, 4, 5):
        torch.testing.assert_close(top_k_mass_optimum(wide, k), wide, rtol=1e-12, atol=1e-13)
