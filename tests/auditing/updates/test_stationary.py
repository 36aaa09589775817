"""Where an update comes to rest, against optima in closed form."""

import math

import pytest
import torch

from kl_companion.auditing.updates.stationary import at_rest, optimum, rest_of
from kl_companion.auditing.updates.worlds import prompt

AT = prompt(0.5).problem


def exact(problem, beta):
    """Reward and KL of ref x exp(R / beta), by hand over the four answers."""
    ref = problem.token_logp(problem.ref_logits).sum(-1).exp().tolist()
    weights = [q * math.exp(r / beta) for q, r in zip(ref, problem.rewards.tolist(), strict=True)]
    p = [w / sum(weights) for w in weights]
    reward = sum(a * r for a, r in zip(p, problem.rewards.tolist(), strict=True))
    return reward, sum(a * math.log(a / q) for a, q in zip(p, ref, strict=True))


@pytest.mark.parametrize("beta", [0.1, 0.5, 2.0])
def test_the_optimum(beta):
    found = optimum(AT, beta)
    assert (found.reward, found.kl) == pytest.approx(exact(AT, beta), abs=1e-12)
    assert found.settled


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_the_gradient_of_the_objective_comes_to_rest_at_its_optimum(beta):
    def field(logits):
        theta = logits.clone().requires_grad_()
        logp, ref = AT.token_logp(theta).sum(-1), AT.token_logp(AT.ref_logits).sum(-1)
        value = (logp.exp() * (AT.rewards - beta * (logp - ref))).sum()
        return torch.autograd.grad(value, theta)[0]

    found = at_rest(field, AT)
    assert found.settled
    assert (found.reward, found.kl) == pytest.approx(exact(AT, beta), abs=1e-9)


def test_what_never_rests_stops_at_certainty():
    def up(logits):
        step = torch.zeros_like(logits)
        step[:, 0] = 1.0
        return step

    found = at_rest(up, AT)
    assert not found.settled
    # token 0 ends the first answer, which is wrong
    assert 0 < found.reward < 3e-5


def test_what_rests_already():
    found = at_rest(torch.zeros_like, AT)
    assert found.settled
    assert found == pytest.approx(rest_of(AT.token_logp(AT.logits).sum(-1), AT))
