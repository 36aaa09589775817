"""Learning on bandits: every update against autograd on the same samples, the draws, fixed points, errors."""

import itertools

import pytest
import torch

from kl_companion.estimators import get_estimator
from kl_companion.losses import kl_loss
from kl_companion.tabular import bandit, descend, learn, learning, stack

WORLD = bandit(3, seed=4)
SETTINGS = [
    *((e, "loss", None) for e in ("k1", "k2", "k3", "k3_plus_plus", "k5")),
    *((e, "reward", b) for e in ("k1", "k3") for b in (None, "mean", "leave_one_out")),
]


def scripted(monkeypatch, arms):
    """Let the worlds of the next runs draw these arms, [worlds, n], at every step."""
    monkeypatch.setattr(learning, "_draw", lambda policy, n, generator: torch.tensor(arms))


def others(x, i):
    return sum(x[j] for j in range(len(x)) if j != i) / (len(x) - 1)


def by_autograd(problem, arms, name, placement, baseline, beta, lr, rewards):
    """One update of the logits from the samples ``arms``, written as a loss."""
    fn = get_estimator(name).fn
    theta = problem.logits[0].clone().requires_grad_()
    ref_logp = problem.ref_logits[0].log_softmax(-1)
    logp = theta.log_softmax(-1)
    x = [fn(logp[y], ref_logp[y]) for y in arms]
    cost, gain = [v.item() for v in x], problem.rewards[list(arms)].tolist()
    loss = torch.zeros((), dtype=torch.float64)
    for i, y in enumerate(arms):
        if placement == "loss":
            term = x[i]
        else:
            base = {None: 0.0, "mean": sum(cost) / len(cost)}.get(baseline)
            term = (cost[i] - (others(cost, i) if base is None else base)) * logp[y]
        loss = loss + beta * term
        if rewards:
            loss = loss - (gain[i] - others(gain, i)) * logp[y]
    (slope,) = torch.autograd.grad(loss / len(arms), theta)
    return (theta - lr * slope).detach()


@pytest.mark.parametrize("rewards", [False, True])
@pytest.mark.parametrize(("name", "placement", "baseline"), SETTINGS)
@pytest.mark.parametrize("n", [2, 3])
def test_an_update_is_what_autograd_gives(monkeypatch, name, placement, baseline, n, rewards):
    arms = [list(a) for a in itertools.product(range(3), repeat=n)]
    scripted(monkeypatch, arms)
    problem = stack([WORLD] * len(arms))
    options = {"placement": placement, "baseline": baseline, "rewards": rewards}
    found = learn(problem, name, n=n, beta=0.7, lr=0.4, steps=1, **options)
    for i, a in enumerate(arms):
        wanted = by_autograd(WORLD, a, name, placement, baseline, 0.7, 0.4, rewards)
        torch.testing.assert_close(found.logp[1, i], wanted.log_softmax(-1), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("name", "placement", "baseline"), SETTINGS)
def test_the_expected_update_is_the_exact_one(monkeypatch, name, placement, baseline):
    arms = [list(a) for a in itertools.product(range(3), repeat=2)]
    policy = WORLD.logits[0].softmax(-1)
    probability = torch.stack([policy[a].prod() for a in arms])
    problem = stack([WORLD] * len(arms))

    def moved(path):  # of centered logits, which the log-probs give back
        return path - path.mean(-1, keepdim=True)

    options = {"placement": placement, "rewards": True, "steps": 1}
    exact = moved(learn(WORLD, name, n=None, **options).logp)
    scripted(monkeypatch, arms)
    sampled = moved(learn(problem, name, n=2, baseline=baseline, **options).logp[1])
    expected = (probability[:, None] * sampled).sum(0)
    if baseline == "mean":  # (1 - 1/n) of the KL's gradient, see `exact_moments`
        exact = moved(learn(WORLD, name, n=None, beta=0.5, **options).logp)
    torch.testing.assert_close(expected, exact[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["k2", "k3", "k1"])
def test_the_exact_path_is_that_of_enumerated_descent(name):
    path = descend(lambda rollout: kl_loss(rollout, name, beta=0.5), WORLD, steps=5, lr=0.8)
    found = learn(WORLD, name, n=None, beta=0.5, lr=0.8, steps=5)
    assert found.steps.tolist() == list(range(6))
    torch.testing.assert_close(found.logp, torch.cat(path).log_softmax(-1), rtol=0, atol=1e-13)


def test_worlds_settings_and_steps_do_not_mix():
    problems = [bandit(4, seed=s) for s in range(3)]
    beta, lr = torch.tensor([0.2, 1.0, 3.0]), torch.tensor([1.0, 0.5, 0.1])
    together = learn(stack(problems), "k3", n=None, beta=beta, lr=lr, steps=7, rewards=True, record=3)
    assert together.steps.tolist() == [0, 3, 6, 7]
    assert together.logp.shape == (4, 3, 4)
    for i, problem in enumerate(problems):
        alone = learn(
            problem, "k3", n=None, beta=beta[i].item(), lr=lr[i].item(), steps=7, rewards=True, record=3
        )
        torch.testing.assert_close(together.logp[:, i], alone.logp)


def test_records_are_the_same_path_at_other_steps():
    whole = learn(WORLD, "k2", steps=9)
    for record, steps in ((4, [0, 4, 8, 9]), (100, [0, 9]), ([2, 5], [0, 2, 5, 9]), ([], [0, 9])):
        part = learn(WORLD, "k2", steps=9, record=record)
        assert part.steps.tolist() == steps
        assert torch.equal(part.logp, whole.logp[steps])


def test_the_seed_decides_every_byte_and_estimators_share_the_draws():
    one, again, other = (learn(WORLD, "k2", steps=20, seed=s).logp for s in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    placed = learn(WORLD, "k1", placement="reward", steps=20).logp
    torch.testing.assert_close(placed, one, rtol=0, atol=1e-12)


def test_what_is_not_said_is_the_default_that_the_page_names():
    said = learn(WORLD, "k2", placement="loss", beta=1.0, n=4, steps=3, lr=1.0, seed=0, record=1)
    assert torch.equal(learn(WORLD, steps=3).logp, said.logp)


def test_draws_follow_the_policy():
    size = 200_000
    policy = torch.tensor(
        [[0.0, 0.5, 0.0, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4, 0.0, 0.0]], dtype=torch.float64
    )
    drawn = learning._draw(policy, size, torch.Generator().manual_seed(0))
    shares = torch.stack([(drawn == y).double().mean(-1) for y in range(6)], -1)
    error = (policy * (1 - policy) / size).sqrt()
    assert (shares[policy == 0] == 0).all()
    assert ((shares - policy).abs() <= 5 * error).all()


@pytest.mark.parametrize(("u", "arm"), [(0.0, 1), (0.98, 2)])
def test_the_ends_of_the_unit_interval_fall_on_arms_that_can_be_drawn(monkeypatch, u, arm):
    policy = torch.tensor(
        [[0.0, 0.5, 0.45, 0.0]], dtype=torch.float64
    )  # rounding, exaggerated: the sum is 0.95
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.full(shape, u, dtype=torch.float64))
    assert learning._draw(policy, 2, torch.Generator()).tolist() == [[arm, arm]]
