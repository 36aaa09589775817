"""The loss of a training step, averaged over every sample it could see, against gradients written by hand."""

from dataclasses import replace

import pytest
import torch

from kl_companion.kl_term import KLTerm
from kl_companion.llm.objective import advantages_of, costs_of, kl_term, loss_of, policy_loss
from kl_companion.llm.settings import Settings
from kl_companion.losses import kl_loss
from kl_companion.tabular import expected_gradient, prefix_tree
from kl_companion.token_terms import token_terms
from tests.oracles import sampling, worlds
from tests.support import rollouts
from tests.support.data import data

DATA = data(__file__)

BETA = 0.7
PLAIN = Settings(beta=BETA, advantages="none", group=1)
COST = {"placement": "reward"}
TOP = {"estimator": "top_k_reverse_kl", "k": 2}
CASES = DATA["cases"]


def batch_loss(settings):
    """The training loop's loss as a function of one batch."""

    def loss(rollout):
        costs = costs_of(rollout, settings) if settings.charges else None
        a = advantages_of(rollout.rewards, costs, rollout.completion_mask, rollout.group_index, settings)
        return loss_of(rollout, a.values, settings)

    return loss


def by_hand(problem, name):
    world, theta = sampling.as_world(problem), problem.logits.clone().requires_grad_()
    sampler = problem.sampled_from
    reward = worlds.others(world, theta, problem.ref_logits, sampler)["expected_reward"]
    total = -reward
    if name is not None:
        level, direction = name.split()
        if level == "sequence":
            total = total + BETA * worlds.sequence_level(world, theta, problem.ref_logits, f"{direction}_kl")
        else:
            total = total + BETA * worlds.token_level(
                world, theta, problem.ref_logits, sampler, f"{direction}_kl"
            )
    return torch.autograd.grad(total, theta)[0]


@pytest.mark.parametrize(("given", "name"), CASES, ids=lambda x: str(x))
@pytest.mark.parametrize("eos", [False, True])
def test_expected_gradient(given, name, eos):
    problem = prefix_tree(3, 3, seed=2, eos=eos)
    got = expected_gradient(batch_loss(replace(PLAIN, **given)), problem)
    torch.testing.assert_close(got, by_hand(problem, name), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "given",
    [
        {"estimator": "k1", "level": "sequence", **COST},
        {"estimator": "k1", **COST, "center_costs": True},
        {"estimator": "exact_kl", "placement": "both", "center_costs": True},
    ],
    ids=str,
)
def test_baselines_change_no_expectation(given):
    problem = prefix_tree(2, 3, seed=4, eos=True)
    settings = replace(PLAIN, group=2, advantages="leave_one_out", **given)
    got = expected_gradient(batch_loss(settings), problem, group_size=2)
    torch.testing.assert_close(got, by_hand(problem, "sequence reverse"), rtol=1e-10, atol=1e-12)


def test_a_cost_without_its_place_in_the_reward_is_noticed():
    problem = prefix_tree(3, 2, seed=1)
    own = expected_gradient(batch_loss(replace(PLAIN, estimator="k2", placement="reward")), problem)
    assert (own - by_hand(problem, "sequence reverse")).abs().max() > 0.01


def test_off_policy_the_ratio_weights_the_tail_only():
    problem = prefix_tree(3, 2, seed=3, off_policy=True)
    for given in ({"estimator": "k2"}, TOP, {**TOP, "k": 0}):
        settings = replace(PLAIN, importance="token", **given)
        got = expected_gradient(lambda rollout, s=settings: kl_term(rollout, s), problem)
        world, theta = sampling.as_world(problem), problem.logits.clone().requires_grad_()
        total = BETA * worlds.token_level(
            world, theta, problem.ref_logits, problem.sampled_from, "reverse_kl"
        )
        torch.testing.assert_close(got, torch.autograd.grad(total, theta)[0], rtol=1e-10, atol=1e-12)


def rollout_of(log_ratio, rewards=(1.0, 0.0)):
    logp = (torch.tensor(log_ratio, dtype=torch.float64) - 2).requires_grad_()
    before = torch.full_like(logp, -2.0)
    rewards = torch.tensor(rewards, dtype=torch.float64)
    return rollouts.rollout(logp, before, behavior_logp=before, rewards=rewards)


def test_the_clip_is_one_sided():
    rollout = rollout_of([[0.5, 0.1], [0.5, -0.5]])  # ratios 1.65, 1.11; 1.65, 0.61
    a = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    settings = replace(PLAIN, clip=(0.2, 0.28))
    policy_loss(rollout, a, settings).backward()
    rho = torch.tensor([[0.5, 0.1], [0.5, -0.5]], dtype=torch.float64).exp()
    # a positive advantage stops above 1.28, a negative one below 0.8
    wanted = -torch.tensor([[0, 1.0], [-1.0, 0]], dtype=torch.float64) * rho / 2
    torch.testing.assert_close(rollout.logp.grad, wanted)


def test_equal_groups_are_said_and_harmless():
    rewards, mask = torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.ones(4, 2)
    index = torch.tensor([0, 0, 1, 1])
    for how in ("leave_one_out", "standardized", "mean"):
        a = advantages_of(rewards, None, mask, index, replace(PLAIN, group=2, advantages=how))
        assert a.equal_groups == 0.5
        assert a.values.isfinite().all()
        assert (a.values[:2] == 0).all()
        assert (a.values[2:] != 0).all()


def test_baseline_of_the_batch():
    rewards, index = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    settings = replace(PLAIN, group=2, advantages="mean", baseline="batch")
    a = advantages_of(rewards, None, torch.ones(4, 1), index, settings)
    assert a.values.squeeze(-1).tolist() == [0.5, 0.5, -0.5, -0.5]


def test_nothing_outside_the_mask_counts():
    problem = prefix_tree(3, 3, seed=2, eos=True)
    for given in ({"estimator": "exact_kl"}, TOP, {"estimator": "k3"}):
        rollout = problem.rollout(problem.logits)
        settings = replace(PLAIN, **given)
        before = kl_term(rollout, settings)
        outside = ~rollout.completion_mask.bool()
        broken = replace(
            rollout,
            logits=rollout.logits.masked_fill(outside.unsqueeze(-1), torch.nan),
            logp=rollout.logp.masked_fill(outside, torch.nan),
        )
        torch.testing.assert_close(kl_term(broken, settings), before)


@pytest.mark.parametrize("name", ["exact_kl", "f_divergence(pearson)", "top_k_reverse_kl(2)"])
def test_the_loop_takes_the_kernel_that_a_trainer_takes(name):
    problem = prefix_tree(3, 2, seed=3)
    theta = problem.logits.clone().requires_grad_()
    settings = replace(PLAIN, estimator=name)
    (slope,) = torch.autograd.grad(kl_term(problem.rollout(theta), settings), theta, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):  # of a kernel there is one derivative only
        torch.autograd.grad(slope.square().sum(), theta)
    terms = token_terms(KLTerm(name, importance=None), problem.rollout(theta))
    (wanted,) = torch.autograd.grad(BETA * terms.sum(-1).mean(), theta)
    torch.testing.assert_close(slope, wanted, rtol=1e-13, atol=1e-15)
    plain = kl_loss(problem.rollout(theta), name, beta=BETA)
    (wanted,) = torch.autograd.grad(plain, theta)
    torch.testing.assert_close(slope, wanted, rtol=1e-10, atol=1e-12)
