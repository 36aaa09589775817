"""Policy-gradient losses of any f: weights, forms and corrections against loops and enumeration."""

import math
from functools import partial

import pytest
import torch

from kl_companion.divergences import DIVERGENCES
from kl_companion.policy_losses import f_policy_loss, target_loss
from tests.oracles import policy_losses as oracle
from tests.oracles.worlds import GENERATORS
from tests.support.policy_groups import (
    BETA,
    CLOSE,
    OFF_POLICY,
    WORLDS,
    by_loops,
    expected,
    gradient_of,
    log_z,
    seen,
)


@pytest.mark.parametrize("direction", ["policy_target", "target_policy"])
@pytest.mark.parametrize("name", oracle.PHI)
def test_weights_of_f_losses(name, direction):
    weight = (oracle.PHI if direction == "policy_target" else oracle.PSI)[name]
    partition = 0.25  # no estimate: in a group of equal sequences w is 1 up to rounding, where |t - 1| jumps
    for problem in (WORLDS[0], WORLDS[2]):

        def by_hand(group, j):
            return weight(math.exp(group[j]["r"] + group[j]["ref"] - group[j]["pi"] - partition))

        loss = partial(f_policy_loss, divergence=name, direction=direction, partition=partition)
        got = seen(partial(loss, beta=BETA), problem, 2)[0]
        torch.testing.assert_close(got, by_loops(by_hand, problem, 2), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("direction", ["policy_target", "target_policy"])
@pytest.mark.parametrize("name", [n for n in DIVERGENCES if n in GENERATORS])
@pytest.mark.parametrize("form", ["bregman", "generic", "published"])
def test_with_the_exact_partition_the_gradient_is_that_of_the_f_divergence(name, direction, form):
    f = GENERATORS[name]

    def wanted(logp, ref_logp, rewards, target):
        p, q = logp.exp(), target.exp()
        return (q * f(p / q)).sum() if direction == "policy_target" else (p * f(q / p)).sum()

    for problem in (WORLDS[1], WORLDS[3]):
        loss = partial(
            f_policy_loss,
            divergence=name,
            direction=direction,
            beta=BETA,
            partition=log_z(problem),
            form=form,
        )
        exact = gradient_of(wanted, problem)
        torch.testing.assert_close(expected(loss, problem, 1), exact, rtol=1e-10, atol=1e-12)


def test_forms_differ_by_a_constant_weight():
    """t log t has slope 1 and so the weight 1 - log w; exchanged it is -log t with psi = 1 - log w."""
    for direction, name in (("policy_target", "reverse_kl"), ("target_policy", "forward_kl")):
        a, b = (
            seen(partial(f_policy_loss, divergence=name, direction=direction, form=form), WORLDS[0], 2)[0]
            for form in ("bregman", "generic")
        )
        torch.testing.assert_close(b - a, torch.full_like(a, 0.5), **CLOSE)  # 1 over the group of two


def test_f_losses_take_weights_and_masks():
    for option in ({"importance": "sequence"}, {"mask": (0.1, 0.1)}):
        f_loss = partial(f_policy_loss, divergence="reverse_kl", beta=BETA, **option)
        k4 = partial(target_loss, estimator="k4", beta=BETA, **option)
        for problem in OFF_POLICY:
            torch.testing.assert_close(seen(f_loss, problem, 2)[0], seen(k4, problem, 2)[0], **CLOSE)
            assert not torch.allclose(
                seen(f_loss, problem, 2)[0], seen(partial(f_loss, **dict.fromkeys(option)), problem, 2)[0]
            )
