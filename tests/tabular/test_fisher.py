"""The exact Fisher matrix against sums over sequences, automatic differentiation and other parameters."""

import pytest
import torch

from kl_companion.tabular import (
    bandit,
    fisher_bound,
    fisher_matrix,
    prefix_tree,
    pulled_back,
    pulled_back_spectrum,
    stiffest,
    tiny_transformer,
    visits,
)
from tests.oracles import sampling
from tests.oracles.sampling import as_world

WORLDS = {
    "bandit": bandit(4, seed=1),
    "tree": prefix_tree(3, 2, seed=3),
    "eos": prefix_tree(3, 3, seed=4, eos=True),
    "off_policy": prefix_tree(2, 3, seed=5, off_policy=True),
}


def log_likelihood(problem, sequence, logits):
    """log pi of one listed sequence, token by token."""
    total = torch.zeros((), dtype=logits.dtype)
    for row, token, real in zip(
        problem.rows[sequence], problem.sequences[sequence], problem.completion_mask[sequence], strict=True
    ):
        if real:
            total = total + logits[row, token] - logits[row].exp().sum().log()
    return total


def by_scores(problem, logits):
    """E[s s^T] and E|s|^2, one sequence at a time."""
    outer, square = 0.0, 0.0
    for i in range(len(problem.sequences)):
        theta = logits.clone().requires_grad_()
        logp = log_likelihood(problem, i, theta)
        (score,) = torch.autograd.grad(logp, theta)
        p, s = logp.exp().item(), score.flatten()
        outer, square = outer + p * s.outer(s), square + p * (s @ s).item()
    return outer, square


@pytest.mark.parametrize("name", WORLDS)
def test_it_is_the_mean_of_the_outer_products_of_scores(name):
    problem = WORLDS[name]
    for logits in (problem.logits, problem.ref_logits):
        outer, square = by_scores(problem, logits)
        got = fisher_matrix(problem, logits)
        assert got.dtype == torch.float64
        assert torch.allclose(got, outer, atol=1e-13)
        assert fisher_bound(problem, logits) == pytest.approx(square, rel=1e-12)
    assert torch.equal(fisher_matrix(problem), fisher_matrix(problem, problem.logits))
    assert not torch.allclose(fisher_matrix(problem), fisher_matrix(problem, problem.ref_logits))


@pytest.mark.parametrize("name", ["bandit", "tree", "eos"])
@pytest.mark.parametrize("forward", [False, True])
def test_it_is_the_curvature_of_the_kl_where_the_policies_meet(name, forward):
    problem = WORLDS[name]
    here = torch.stack([log_likelihood(problem, i, problem.logits) for i in range(len(problem.sequences))])

    def kl(flat):
        logits = flat.view_as(problem.logits)
        there = torch.stack([log_likelihood(problem, i, logits) for i in range(len(problem.sequences))])
        return (here.exp() * (here - there)).sum() if forward else (there.exp() * (there - here)).sum()

    hessian = torch.autograd.functional.hessian(kl, problem.logits.flatten())
    assert torch.allclose(fisher_matrix(problem), hessian, atol=1e-12)


@pytest.mark.parametrize("name", WORLDS)
def test_no_eigenvalue_is_larger_than_the_trace_or_one_half(name):
    problem = WORLDS[name]
    sizes = torch.linalg.eigvalsh(fisher_matrix(problem))
    assert sizes.min() > -1e-15
    assert sizes.max() < fisher_bound(problem)
    assert sizes.sum().item() == pytest.approx(fisher_bound(problem), rel=1e-12)
    assert sizes.max() <= 0.5  # a softmax row by row


def test_visits_are_the_probabilities_of_the_prefixes():
    problem = WORLDS["eos"]
    world = as_world(problem)
    wanted = [0.0] * len(problem.logits)
    for i, leaf in enumerate(world["leaves"]):
        for row, real in zip(problem.rows[i].tolist(), problem.completion_mask[i], strict=True):
            if real:
                wanted[row] += sampling.chance(world, problem.logits, leaf)
    assert visits(problem).tolist() == pytest.approx(wanted, rel=1e-13)
    assert visits(problem)[0].item() == pytest.approx(1, rel=1e-13)
    own = WORLDS["off_policy"]
    assert torch.equal(visits(own), visits(own._replace(behavior_logits=None)))


def test_in_other_parameters_it_is_the_fisher_matrix_of_the_network():
    problem = WORLDS["eos"]
    network = tiny_transformer(problem, width=4, seed=2)
    logits = network.logits(network.parameters)
    outer = 0.0
    for i in range(len(problem.sequences)):
        theta = network.parameters.clone().requires_grad_()
        logp = log_likelihood(problem, i, network.logits(theta))
        (score,) = torch.autograd.grad(logp, theta)
        outer = outer + logp.exp().item() * score.outer(score)
    fisher, jacobian = fisher_matrix(problem, logits), network.jacobian()
    assert torch.allclose(pulled_back(fisher, jacobian), outer, atol=1e-12)
    wanted = torch.linalg.eigvalsh(outer).flip(0)
    spectrum = pulled_back_spectrum(fisher, jacobian)
    assert len(spectrum) == logits.numel() < len(wanted)
    assert torch.allclose(spectrum, wanted[: len(spectrum)], atol=1e-11)
    assert wanted[len(spectrum) :].abs().max() < 1e-11
    size, direction = stiffest(fisher, jacobian)
    assert size == pytest.approx(wanted[0].item(), rel=1e-10)
    assert torch.allclose(outer @ direction, size * direction, atol=1e-10)
    assert direction.norm().item() == pytest.approx(1, rel=1e-12)


def test_the_spectrum_with_fewer_parameters_than_logits():
    fisher = fisher_matrix(WORLDS["tree"])
    few = torch.randn(len(fisher), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = torch.linalg.eigvalsh(few.mT @ fisher @ few).flip(0)
    spectrum = pulled_back_spectrum(fisher, few)
    assert torch.allclose(spectrum[:2], wanted)
    assert spectrum[2:].max() < 1e-14
    assert stiffest(fisher, few)[0] == pytest.approx(wanted[0].item(), rel=1e-12)


# the network


def test_a_prefix_sees_its_tokens_in_their_order_and_nothing_after_it():
    problem = prefix_tree(2, 4, seed=3)
    network = tiny_transformer(problem, width=8, heads=4)
    logits = network.logits(network.parameters)
    assert logits.shape == problem.logits.shape
    assert torch.unique(logits.round(decimals=9), dim=0).shape == logits.shape  # no two prefixes alike
    # the same prefixes, read in other sequences
    backwards = problem._replace(
        sequences=problem.sequences.flip(0),
        rows=problem.rows.flip(0),
        completion_mask=problem.completion_mask.flip(0),
    )
    again = tiny_transformer(backwards, width=8, heads=4)
    assert torch.equal(again.parameters, network.parameters)
    assert torch.allclose(again.logits(network.parameters), logits, atol=1e-12)
    deeper = tiny_transformer(problem, width=8, heads=4, layers=2)
    assert len(deeper.parameters) - len(network.parameters) == 8 * 8 * 8


def test_a_network_is_the_same_for_a_seed_and_its_jacobian_is_a_slope():
    problem = WORLDS["tree"]
    network = tiny_transformer(problem, width=4)
    assert torch.equal(network.parameters, tiny_transformer(problem, width=4).parameters)
    assert not torch.equal(network.parameters, tiny_transformer(problem, width=4, seed=1).parameters)
    way = torch.randn(
        len(network.parameters), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    ahead, behind = (network.logits(network.parameters + x * way) for x in (1e-5, -1e-5))
    assert torch.allclose(network.jacobian() @ way, ((ahead - behind) / 2e-5).flatten(), atol=1e-7)
