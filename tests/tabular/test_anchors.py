"""Paths with a moving anchor, on the softmax itself: against loops by hand and the thresholds of theory."""

import pytest
import torch

from kl_companion.tabular import follow_anchor, prefix_tree, tiny_transformer
from kl_companion.theory.ema import ORDERS

TREE = prefix_tree(2, 2, seed=3, eos=True)


def sequence_kl(problem, logits, anchor):
    """sum_y pi(y) log(pi(y) / anchor(y)), one sequence at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for row, token, mask in zip(problem.rows, problem.sequences, problem.completion_mask, strict=True):
        real = mask.bool()
        p, q = (x.log_softmax(-1)[row[real], token[real]].sum() for x in (logits, anchor))
        total = total + p.exp() * (p - q)
    return total


def token_kl(problem, logits, anchor):
    """The same value; the probability of a prefix is held fixed."""
    total = torch.zeros((), dtype=torch.float64)
    for row, token, mask in zip(problem.rows, problem.sequences, problem.completion_mask, strict=True):
        real = mask.bool()
        chance = logits.log_softmax(-1)[row[real], token[real]].sum().exp().detach()
        p, q = logits.log_softmax(-1)[row[real]], anchor.log_softmax(-1)[row[real]]
        total = total + chance * (p.exp() * (p - q)).sum()
    return total


def reward(problem, logits):
    """E[R], one sequence at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for row, token, mask, gain in zip(
        problem.rows, problem.sequences, problem.completion_mask, problem.rewards, strict=True
    ):
        real = mask.bool()
        total = total + logits.log_softmax(-1)[row[real], token[real]].sum().exp() * gain
    return total


class Adam:
    """Kingma and Ba, written down."""

    def __init__(self):
        self.m, self.v, self.t = 0.0, 0.0, 0

    def step_size(self, lr):
        v = self.v / (1 - 0.999**self.t)
        return lr / (v.sqrt() + 1e-8)

    def __call__(self, gradient, lr):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        return self.step_size(lr) * self.m / (1 - 0.9**self.t)


def by_hand(problem, decay, lr, beta, steps, cycle, order, *, kl=sequence_kl, adam=None, gain=1.0):
    """[(logits, anchor)] after every gradient step."""
    theta, anchor = problem.logits.clone(), problem.logits.clone()
    path = [(theta, anchor)]
    for step in range(1, steps + 1):
        leaf = theta.clone().requires_grad_()
        value = gain * reward(problem, leaf) - beta * kl(problem, leaf, anchor)
        (ascent,) = torch.autograd.grad(value, leaf)
        new = theta + (lr * ascent if adam is None else adam(ascent, lr))
        if step % cycle == 0:
            anchor = decay * anchor + (1 - decay) * (new if order == "new" else theta)
        theta = new
        path.append((theta, anchor))
    return path


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("level", ["sequence", "token"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_path_is_the_loop_by_hand(order, level, optimizer):
    adam = Adam() if optimizer == "adam" else None
    kl = sequence_kl if level == "sequence" else token_kl
    wanted = by_hand(TREE, 0.8, 0.3, 2.0, 12, 6, order, kl=kl, adam=adam)
    options = {"decay": 0.8, "lr": 0.3, "beta": 2.0, "iterations": 4, "period": 2, "inner_steps": 3}
    got = follow_anchor(TREE, **options, order=order, level=level, optimizer=optimizer)
    assert got.steps.tolist() == list(range(13))
    for i, (theta, anchor) in enumerate(wanted):
        assert torch.allclose(got.logits[i], theta, atol=1e-11)
        assert torch.allclose(got.anchor[i], anchor, atol=1e-11)
        assert got.lag_norm[i].item() == pytest.approx((theta - anchor).norm().item(), abs=1e-11)
        assert got.kl[i].item() == pytest.approx(sequence_kl(TREE, theta, anchor).item(), abs=1e-12)
    if adam is None:
        assert torch.equal(got.step_size, torch.full_like(got.logits, 0.3))
    else:
        assert got.step_size[0].isinf().all()
        assert torch.allclose(got.step_size[-1], adam.step_size(0.3))


def test_the_orders_are_told_apart_and_nothing_outside_is_changed():
    before = TREE.logits.clone()
    old, new = (
        follow_anchor(TREE, decay=0.5, lr=0.5, beta=1.0, iterations=1, order=o) for o in ("old", "new")
    )
    assert torch.equal(old.logits, new.logits)
    assert torch.equal(old.anchor[1], before)
    assert torch.allclose(new.anchor[1], (before + new.logits[1]) / 2)
    assert torch.equal(TREE.logits, before)
    assert not new.logits.requires_grad
    assert not new.anchor.requires_grad


def test_what_is_kept():
    options = {"decay": 0.5, "lr": 0.5, "beta": 1.0, "iterations": 5, "inner_steps": 2}
    every, some = follow_anchor(TREE, **options), follow_anchor(TREE, **options, record=4)
    assert some.steps.tolist() == [0, 4, 8, 10]
    for whole, part in zip(every, some, strict=True):
        assert torch.equal(whole[some.steps], part)


def test_a_network_learns_and_averages_its_own_parameters():
    network = tiny_transformer(TREE, width=4)
    got = follow_anchor(TREE, network=network, decay=0.5, lr=0.1, beta=2.0, iterations=4, period=2)
    theta, anchor = network.parameters.clone(), network.parameters.clone()
    for step in range(1, 5):
        leaf = theta.clone().requires_grad_()
        logits = network.logits(leaf)
        value = reward(TREE, logits) - 2.0 * sequence_kl(TREE, logits, network.logits(anchor))
        theta = theta + 0.1 * torch.autograd.grad(value, leaf)[0]
        if step % 2 == 0:
            anchor = (anchor + theta) / 2
    assert torch.allclose(got.logits[-1], network.logits(theta), atol=1e-12)
    assert torch.allclose(got.anchor[-1], network.logits(anchor), atol=1e-12)
    assert got.lag_norm[-1].item() == pytest.approx((theta - anchor).norm().item(), rel=1e-10)
    assert got.step_size.shape == (5, len(network.parameters))
    assert torch.allclose(got.parameters[-1], theta, atol=1e-12)
    assert torch.equal(got.parameters[0], network.parameters)
