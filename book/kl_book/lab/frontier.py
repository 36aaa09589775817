"""The exact frontier of reward against KL for a task with one right answer.

Whatever the model, the reward sees one string: a policy's expected reward on a prompt is that string's
probability q, and among all policies with that q the one nearest to the reference keeps the reference's
proportions elsewhere, at the KL of two outcomes, q log(q/p) + (1-q) log((1-q)/(1-p)). So everything
follows from p, the reference's probability of the right answer on each prompt:

    q = p e^(1/beta) / (1 - p + p e^(1/beta)),    J* = beta E log(1 - p + p e^(1/beta)),

over all policies, not only those that a network of this size can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kl_companion import checks


class Frontier(NamedTuple):
    """The best policy at each coefficient, means over prompts, float64.

    Attributes:
        beta: Coefficient of the KL, any shape.
        reward: Its expected reward, same shape.
        kl: Its sequence KL from the reference, same shape; no policy of that reward has a smaller one.
    """

    beta: torch.Tensor
    reward: torch.Tensor
    kl: torch.Tensor


@torch.no_grad()
def frontier(right_logp: torch.Tensor, betas: torch.Tensor | Sequence[float] | float) -> Frontier:
    """Reward and KL of the maximizer of E[R] - beta KL(policy || reference), R in {0, 1}.

    Args:
        right_logp: Log-prob of the right answer under the reference, [prompts].
        betas: Coefficients of any shape. 0 is the limit: reward 1 at KL E[-log p]. Infinity is the
            reference.

    Raises:
        ValueError: log-probs that are not finite or above 0, no prompt, or a negative coefficient.
    """
    logp = _checked(right_logp)
    beta = _betas(betas)
    shift = 1 / beta
    _, kl = _outcomes(logp, shift)
    return Frontier(beta, _reward(logp, shift), kl.mean(-1))


@torch.no_grad()
def kl_at_reward(right_logp: torch.Tensor, reward: torch.Tensor | float) -> torch.Tensor:
    """The smallest KL, mean over prompts, of a policy whose expected reward is at least ``reward``.

    A run's KL divided by this one says how much of what it paid was needed. 0 up to the reference's own
    reward; E[-log p] at 1.

    Args:
        right_logp: Log-prob of the right answer under the reference, [prompts].
        reward: Expected rewards in [0, 1], any shape.

    Returns:
        KLs in nats, the shape of ``reward``, float64.

    Raises:
        ValueError: log-probs that are not finite or above 0, no prompt, or a reward outside [0, 1].
    """
    logp = _checked(right_logp)
    wanted = torch.as_tensor(reward, dtype=torch.float64)
    if not ((wanted >= 0) & (wanted <= 1)).all():
        raise ValueError(f"reward is {_first_bad(wanted, 0, 1)}, expected an expected reward from 0 to 1")
    # at the upper end every prompt's q is 1 to the last bit
    low = torch.zeros_like(wanted)
    high = torch.full_like(wanted, 64.0 - float(logp.min()))
    for _ in range(100):  # halves the interval until it is one rounding wide
        middle = (low + high) / 2
        short = _reward(logp, middle) < wanted
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return _outcomes(logp, high)[1].mean(-1)


@torch.no_grad()
def optimal_value(right_logp: torch.Tensor, beta: float) -> float:
    """J* = max over all policies of E[R] - beta KL(policy || reference), R in {0, 1}.

    Args:
        right_logp: Log-prob of the right answer under the reference, [prompts].
        beta: Coefficient; 0: 1, infinity: the reference's reward.

    Raises:
        ValueError: log-probs that are not finite or above 0, no prompt, or a negative coefficient.
    """
    logp = _checked(right_logp)
    _betas(beta)
    if beta == 0:
        return 1.0
    if math.isinf(beta):
        return float(logp.exp().mean())
    return float(beta * _log_normalizer(logp, torch.tensor(1 / beta, dtype=torch.float64)).mean())


def _log_normalizer(logp: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """log(1 - p + p e^shift), [..., prompts] for a shift [...], finite."""
    shift = shift.unsqueeze(-1)
    small = torch.log1p(logp.exp() * torch.expm1(shift.clamp(max=1.0)))
    large = torch.logaddexp(_log_wrong(logp), logp + shift)
    return torch.where(shift < 1, small, large)


def _log_wrong(logp: torch.Tensor) -> torch.Tensor:
    """log(1 - p); -inf at p = 1."""
    return torch.where(logp > -0.5, torch.log(-torch.expm1(logp)), torch.log1p(-logp.exp()))


def _outcomes(logp: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tilted probability of the right answer and the KL, both [..., prompts]; shift may be inf."""
    shift = shift.clamp(max=1e300)
    log_z = _log_normalizer(logp, shift)
    shift, log_wrong = shift.unsqueeze(-1), _log_wrong(logp)
    log_q = torch.nn.functional.logsigmoid(logp - log_wrong + shift)
    # log(q/p): one form cancels where the shift is small, the other where it is large
    gain = torch.where(shift < 1, shift - log_z, log_q - logp)
    kl = log_q.exp() * gain - (log_wrong - log_z).exp() * log_z
    return log_q.exp(), kl.clamp(min=0.0)


def _reward(logp: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return _outcomes(logp, shift)[0].mean(-1)


def _checked(right_logp: torch.Tensor) -> torch.Tensor:
    checks.check_log_probabilities("right_logp", right_logp)
    if right_logp.ndim != 1 or not right_logp.numel():
        raise ValueError(f"right_logp has shape {list(right_logp.shape)}, expected [prompts], at least one")
    return right_logp.detach().double().cpu().clamp(max=0.0)


def _betas(betas: torch.Tensor | Sequence[float] | float) -> torch.Tensor:
    beta = torch.as_tensor(betas, dtype=torch.float64).cpu()
    if not (beta >= 0).all():
        raise ValueError(f"beta is {_first_bad(beta, 0, math.inf)}, expected at least 0")
    return beta


def _first_bad(x: torch.Tensor, low: float, high: float) -> float:
    bad = ~((x >= low) & (x <= high))
    return float(x[bad].reshape(-1)[0]) if x.ndim else float(x)
