"""What was NaN, or nothing, once: each of these inputs has its number now, or an error that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kl_book.names import kl
from kl_companion.checks import check_scalar, refuse_nan
from tests.support import rollouts

NAN, INF = math.nan, math.inf
ROW = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
FAR = kl.bandit(2)._replace(
    logits=torch.tensor([[0.0, -5.0]], dtype=torch.float64),
    ref_logits=torch.tensor([[0.0, -4663.0]], dtype=torch.float64),
)


def rollout(ratio: float = 0.0, to_ref: float = 0.0, rewards: tuple[float, float] = (1.0, 2.0)) -> kl.Rollout:
    """Two sequences, the first of one token; the second's last token has these log-ratios."""
    logp = torch.tensor([[-1.0, -1.0], [-1.0, -1000.5 if to_ref else -0.5]])
    last = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    mask, rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor(rewards)
    ref_logp, sampler = logp - to_ref * last, logp - ratio * last
    return rollouts.rollout(logp.requires_grad_(), ref_logp, mask, behavior_logp=sampler, rewards=rewards)


MASK = torch.tensor([[1.0, 1.0]])
TWO = torch.tensor([0, 0])
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "beta": (lambda: kl.kl_loss(rollout(), beta=NAN), "beta is nan, expected a finite number"),
    "beta in float32": (
        lambda: kl.kl_loss(rollout(), beta=1e300),
        r"beta is 1e\+300, .* of at most 3.4e\+38",
    ),
    "beta of a reward": (lambda: kl.kl_reward(rollout(), beta=INF), "beta is inf, expected a finite number"),
    "beta of a target": (lambda: kl.target_loss(rollout(), beta=0.0), "beta is 0.0, expected a positive num"),
    "lr": (lambda: kl.regime(0.5, -1.0, 1.0, 1.0), "lr is -1.0, expected a positive number"),
    "beta of an anchor": (lambda: kl.regime(0.5, 1.0, NAN, 1.0), "beta is nan, .* of at least 0"),
    "rates": (lambda: kl.regime(0.5, 1e200, 1e200, 0.0), r"lr \* beta is inf, expected a finite number"),
    "pull": (
        lambda: kl.lag_matrix(0.5, 1e150, 1e150, 1e20 * torch.eye(2).double()),
        r"lr \* beta \* fisher is inf at \[0, 0\]",
    ),
    "coefficient": (
        lambda: kl.mass_penalty_optimum(ROW, torch.tensor([0]), NAN),
        "coefficient is nan, expected a finite number",
    ),
    "large coefficient": (
        lambda: kl.mass_penalty_optimum(ROW, torch.tensor([0]), 1e18),
        r"coefficient is 1e\+18, expected less than 4.5e\+15 in size",
    ),
    "temperature": (
        lambda: kl.fused_kl(torch.zeros(2), torch.zeros(2), temperature=1e-300),
        "temperature is 1e-300, expected a positive number, 1.2e-38 to",
    ),
    "length": (
        lambda: kl.aggregate(MASK, MASK, "constant", length=INF),
        "length is inf, expected a positive number of tokens",
    ),
    "eps": (lambda: kl.center(torch.ones(2), TWO, eps=INF), "eps is inf, expected a finite number"),
    "eps of a mask": (
        lambda: kl.ppo_mask(torch.ones(1), torch.ones(1), NAN, 0.2),
        "eps_low is nan, expected a finite number of at least 0",
    ),
    "ratio": (
        lambda: kl.ppo_mask(torch.ones(1), torch.tensor([NAN]), 0.2, 0.2, validate=True),
        r"ratio is NaN at \[0\]",
    ),
    "advantage of a mask": (
        lambda: kl.ppo_mask(torch.tensor([NAN]), torch.ones(1), 0.2, 0.2, validate=True),
        r"advantages is NaN at \[0\]",
    ),
    "clip": (
        lambda: kl.importance_ratio(rollout(), scope="token", clip=(INF, INF)),
        r"clip is \(inf, inf\), expected \(lowest, highest\)",
    ),
    "importance ratio": (
        lambda: kl.kl_loss(rollout(ratio=100.0), importance="token"),
        r"the importance ratio is infinite at \[1, 1\], log-ratio 100: expected log-ratios of at most 88.7",
    ),
    "open clip": (
        lambda: kl.importance_ratio(rollout(ratio=100.0), scope="token", clip=(0.5, INF)),
        r"the importance ratio is infinite at \[1, 1\]",
    ),
    "weighted estimate": (
        lambda: kl.kl_loss(rollout(ratio=-1000.0, to_ref=-400.0), "k3", importance="token", missing="ignore"),
        r"the weighted estimate is not a number: estimate is inf at \[1, 1\]",
    ),
    "weighted sequence": (
        lambda: kl.kl_loss(
            rollout(ratio=-1000.0, to_ref=-400.0), "k3", level="sequence", importance="sequence"
        ),
        r"the weighted estimate is not a number: estimate is inf at \[1\]",
    ),
    "loss": (
        lambda: kl.kl_loss(rollout(to_ref=-400.0), "k3", beta=0.0, importance=None),
        r"the loss is not a number: estimate is inf at \[1, 1\], expected what torch.float32 holds",
    ),
    "loss of sequences": (
        lambda: kl.kl_loss(rollout(to_ref=-400.0), "k3", beta=0.0, level="sequence", importance=None),
        r"the loss is not a number: estimate is inf at \[1\]",
    ),
    "penalty": (
        lambda: kl.kl_reward(rollout(to_ref=-400.0), "k3", beta=0.0),
        r"the penalty is not a number: estimate is inf at \[1, 1\]",
    ),
    "credit times logp": (
        lambda: kl.kl_loss(
            replace(rollout(to_ref=-400.0), completion_mask=torch.tensor([[1.0, 1.0], [0.0, 1.0]])),
            "k3",
            credit=1.0,
            importance=None,
        ),
        r"credit times logp is not a number: credit is inf at \[1, 0\]",
    ),
    "advantages": (
        lambda: kl.policy_gradient_loss(rollout(), torch.tensor([NAN, 1.0])),
        r"advantages is nan at \[0, 0\]: expected finite numbers",
    ),
    "token mean": (
        lambda: kl.aggregate(torch.tensor([[NAN, 1.0]]), MASK, "token_mean"),
        r"the aggregate is not a number: x is nan at \[0, 0\]",
    ),
    "sum": (
        lambda: kl.aggregate(torch.tensor([[INF, -INF]]), MASK),
        r"the aggregate is not a number: x is inf at \[0, 0\]",
    ),
    "mean": (
        lambda: kl.aggregate(torch.tensor([[INF], [-INF]]), torch.ones(2, 1)),
        r"the aggregate is not a number: the sum of a sequence is inf at \[0\]",
    ),
    "credit": (lambda: kl.credit(torch.tensor([[INF, -INF]]), MASK), "the credit is not a number: x is inf"),
    "center": (
        lambda: kl.center(torch.tensor([INF, 0.0]), TWO, "mean"),
        r"x is inf at \[0\]: expected finite numbers",
    ),
    "spread": (
        lambda: kl.center(torch.tensor([1e4, -1e4], dtype=torch.float16), TWO, "standardized"),
        "the mean or the spread of x is beyond torch.float16",
    ),
    "mean of a group": (
        lambda: kl.center(torch.tensor([6e4, 6e4], dtype=torch.float16), TWO, "mean"),
        "the mean or the spread of x is beyond torch.float16",
    ),
    "rewards": (
        lambda: kl.rwr_loss(rollout(), beta=1e-300),
        r"the reward 1 of sequence 0 divided by beta=1e-300 is beyond torch.float32",
    ),
    "charged rewards": (
        lambda: kl.reinforce_loss(rollout(to_ref=-400.0), penalty="k3"),
        r"the reward of sequence 1 minus its penalty, 1.0 times inf, is beyond torch.float32",
    ),
    "moments": (
        lambda: kl.draw_statistics("kf_plus_plus(pearson)", FAR),
        "the moments are beyond torch.float64, expected a reference closer",
    ),
    "moments of tokens": (
        lambda: kl.token_statistics(
            "kf_plus_plus(pearson)", *(x[0].log_softmax(-1) for x in (FAR.logits, FAR.ref_logits))
        ),
        "the moments are beyond torch.float64, expected a reference closer",
    ),
    "simulation": (
        lambda: kl.simulate(
            "kf_plus_plus(pearson)", FAR._replace(logits=FAR.logits * 6), 1, repeats=1, seed=0
        ),
        r"the estimate is not a number: that of a sequence is inf at \[1\]",
    ),
    "neyman of logits": (
        lambda: kl.fused_f_divergence(
            "neyman", torch.tensor([0.0, -7909.0]), torch.tensor([0.0, -1606.0]), validate=True
        ),
        r"neyman at \[\] is beyond torch.float32: its largest ratios overflow",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name_and_place(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("value", [NAN, INF, -INF, 10**400, "one", None, torch.tensor([1.0, NAN])])
def test_what_is_no_coefficient(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^beta is .*, expected a finite number$"):
        check_scalar("beta", value)


def test_what_is_a_coefficient() -> None:
    for value in (0, -1.5, 1e300, torch.tensor([0.0, -1.0])):
        check_scalar("beta", value)
    check_scalar("beta", 1e30, dtype=torch.float16)  # half precision multiplies in float32
    check_scalar("beta", 0, least=0.0)
    with pytest.raises(ValueError, match="beta is 0, expected a positive number"):
        check_scalar("beta", 0, positive=True)
    with pytest.raises(ValueError, match="expected a finite number of at least 0"):
        check_scalar("beta", torch.tensor([1.0, -1.0]), least=0.0)


def test_infinity_is_a_result_and_nan_is_none() -> None:
    x = torch.tensor([INF, 1.0])
    assert refuse_nan("x", x) is x
    with pytest.raises(ValueError, match=r"x is not a number: sums or products on the way overflow"):
        refuse_nan("x", x * 0, y=torch.ones(2))


def test_a_clip_bounds_a_ratio_that_would_be_infinite() -> None:
    r = rollout(ratio=100.0)
    rho = kl.importance_ratio(r, scope="token", clip=(0.0, 2.0))
    assert rho.tolist() == [[1.0, 1.0], [1.0, 2.0]]
    (slope,) = torch.autograd.grad(rho.sum(), r.logp)
    assert slope.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_a_group_of_equal_values_has_a_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    (slope,) = torch.autograd.grad(kl.center(x, TWO, "standardized").sum(), x)
    assert slope.isfinite().all()


@pytest.mark.parametrize("log_q", [-756.0, -800.0])
def test_neyman_of_masses_that_are_zero(log_q: float) -> None:
    """Q^2/P = e^(2 log Q - log P), where Q and P are 0 in float64 and Q/P is infinite."""
    policy = torch.tensor([0.0, -1510.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, log_q], dtype=torch.float64)
    wanted = math.exp(2 * log_q + 1510)
    for value in (
        kl.fused_f_divergence("neyman", policy, reference),
        kl.f_divergence("neyman", policy, reference),
    ):
        (slope,) = torch.autograd.grad(value, policy)
        assert value.item() == pytest.approx(wanted, rel=1e-12)
        assert slope[1].item() == pytest.approx(-wanted, rel=1e-12)
        assert not slope.isnan().any()


def test_pearson_whose_factors_overflow() -> None:
    policy = torch.tensor([0.0, -1258.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, -2500.0], dtype=torch.float64)
    value = kl.f_divergence("pearson", policy, reference)
    (slope,) = torch.autograd.grad(value, policy)
    assert value.item() == pytest.approx(math.exp(-2 * 1258 + 2500), rel=1e-9)
    assert slope[1].item() == pytest.approx(2 * math.exp(-2 * 1258 + 2500), rel=1e-9)


def test_float16_powers_that_overflow_below_the_moderate_ratios() -> None:
    policy = torch.tensor([-7.0, -1e-3], dtype=torch.float16)
    reference = torch.tensor([-1e-3, -10.0], dtype=torch.float16)
    wanted = kl.f_divergence("pearson", *(x.double().log_softmax(-1) for x in (policy, reference)))
    assert kl.f_divergence("pearson", policy, reference).item() == pytest.approx(wanted.item(), rel=2e-2)
