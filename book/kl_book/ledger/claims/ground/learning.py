"""Training with exact gradients: what an estimate in the reward does, and comparisons over worlds."""

from __future__ import annotations

from functools import cache

import torch

from kl_book.ledger.claims.ground.errors import apart, differs, violation, worst
from kl_book.ledger.claims.ground.sums import reverse_kl
from kl_book.ledger.claims.ground.world import each
from kl_book.ledger.claims.ground.worlds import all_worlds, arms, worlds
from kl_companion.tabular import learn
from kl_companion.theory.optima import optimal_policy


def optimum_at(kl: float, rewards: torch.Tensor, ref_logp: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Optimum of reverse KL that spends this much KL, [vocab], and its coefficient, by bisection."""
    low, high = 1e-4, 1e6
    for _ in range(60):
        beta = (low * high) ** 0.5
        best = optimal_policy(rewards, ref_logp, "reverse_kl", beta).logp
        low, high = (beta, high) if float(reverse_kl(best, ref_logp)) > kl else (low, beta)
    return optimal_policy(rewards, ref_logp, "reverse_kl", high).logp, high


def lower_mean(a: torch.Tensor, b: torch.Tensor) -> float:
    """Error of "a is below b on average over paired worlds": three standard errors must lie between them."""
    d = a - b
    return violation(float(d.mean()) + 3 * float(d.std()) / len(d) ** 0.5)


def value_is_unbiased(name: str) -> float:
    """Error of "the mean of the estimate is the KL"."""
    return worst(abs(w.bias(name)) for w in each(worlds)())


def value_is_biased(name: str) -> float:
    """Error of "the mean of the estimate is not the KL"."""
    return worst(differs(w.bias(name), 0.0, by=1e-9) for w in each(worlds)())


def update_is_right(name: str) -> float:
    """Error of "E[rho s k] is grad KL", on- and off-policy."""
    return worst(apart(w.E(w.in_reward(name)), w.d_kl) for w in each(all_worlds)())


def update_is_wrong(name: str) -> float:
    """Error of "E[rho s k] is not grad KL"."""
    return worst(differs(w.E(w.in_reward(name)), w.d_kl) for w in each(all_worlds)())


@cache
def kl_after_training(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """KL before and after 600 exact steps with the estimate in the reward, [2, worlds]; least probability."""
    problem = arms(50, 6)
    logp = learn(problem, name, placement="reward", n=None, steps=600, lr=0.5, record=600).logp
    return reverse_kl(logp, problem.ref_logits.squeeze(1).log_softmax(-1)), logp[-1].exp().amin(-1)


def training_numbers(*names: str) -> dict[str, float]:
    """What training with exact gradients did: number of bandits, and by estimate how the KL moved."""
    numbers: dict[str, float] = {}
    for name in names:
        (before, after), least = kl_after_training(name)
        numbers |= {"bandits": len(before), f"{name}_rose": int((after > before).sum())}
        numbers |= {f"{name}_before": float(before.mean()), f"{name}_after": float(after.mean())}
        numbers[f"{name}_least"] = float(least.min())
    return numbers


def training_is_stable(name: str) -> float:
    """Error of "the KL falls below a thousandth of itself on average, and rises nowhere"."""
    kl, _ = kl_after_training(name)
    return violation(*(kl[1] - kl[0]).tolist(), float(kl[1].mean()) - 1e-3 * float(kl[0].mean()))


def training_is_unstable(name: str) -> float:
    """Error of "in some world the KL grows and an arm dies out"."""
    kl, least = kl_after_training(name)
    return violation(float((kl[0] - kl[1]).min()) + 0.1, float(least.min()) - 1e-4)
