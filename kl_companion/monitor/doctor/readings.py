"""What a gradient by a row of logits says: which token it scores, at which temperature, and how strongly.

The gradient of c log softmax(z/T)[y] by z is c (e_y - p)/T with p = softmax(z/T). From four numbers of such a
row, y, T and c can be read off, and one number is left to tell it from the gradient of anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch

from kl_companion.divergences import DIVERGENCES
from kl_companion.estimators.registry import get_estimator
from kl_companion.estimators.vocabulary import f_divergence
from kl_companion.monitor.doctor.subject import WorldGradients

NOTHING = 1e-12
_SAME = 1e-5  # relative: trainers compute advantages in float32
_VALUES = 1e-3  # of losses: small differences of numbers in float32
ABS = "abs"  # |log-ratio|, an option of verl: no estimator of a KL
_NAMES = ("k1", "k2", "k3", "k3_plus_plus", "k4", "k5", ABS)


class ScoredRow(NamedTuple):
    """A row's gradient, read as that of c log softmax(z/T)[token].

    Attributes:
        token: Which token it scores; -1 where it scores none: the gradient of a whole distribution.
        temperature: T.
        coefficient: c: the derivative of the loss by that log-prob.
    """

    token: int
    temperature: float
    coefficient: float


def read_row(gradient: torch.Tensor, logits: torch.Tensor) -> ScoredRow | None:
    """Read the gradient by one row of logits, both [live]; None where nothing acts."""
    size = gradient.abs().max().item()
    if size < NOTHING:
        return None
    found = [row for y in range(len(gradient)) if (row := _as_score(gradient, logits, y)) is not None]
    return found[0] if len(found) == 1 else ScoredRow(-1, float("nan"), size)


def _as_score(g: torch.Tensor, z: torch.Tensor, y: int) -> ScoredRow | None:
    others = [i for i in range(len(g)) if i != y]
    if not (g[others] * -g[y].sign() > 0).all():
        return None
    ratios = (g[others[0]] / g[others[1:]]).log()
    if (ratios.abs() < NOTHING).any():
        return None
    temperatures = (z[others[0]] - z[others[1:]]) / ratios
    t = temperatures.sort().values[len(temperatures) // 2].item()
    if t <= 0:
        return None
    p = (z / t).softmax(-1)
    one = torch.zeros_like(p)
    one[y] = 1.0
    c = (g[y] * t / (1 - p[y])).item()
    fits = (g - c * (one - p) / t).abs().max() < _SAME * g.abs().max()
    return ScoredRow(y, t, c) if fits else None


class TermForm(NamedTuple):
    """What a term of a token is as a function of the log-ratio of policy and reference.

    Attributes:
        name: Of the estimator.
        exchanged: Policy and reference are exchanged.
        weight: What it is multiplied by; below 0 where it is subtracted from the loss, or
            added to the reward.
        ratio: It is multiplied by a ratio that carries a gradient.
        beside: Coefficient of what else scores the token and does not read the reference.
    """

    name: str
    exchanged: bool
    weight: float
    ratio: bool = False
    beside: float = 0.0

    @property
    def title(self) -> str:
        """For a sentence: "K3"; K3++ is what a ratio that carries a gradient makes of K3, too."""
        special = {ABS: "the absolute log-ratio", "k3_plus_plus": "K3 with the gradient of K2 (K3++)"}
        return special.get(self.name, self.name.upper())


def value(name: str, delta: torch.Tensor, *, exchanged: bool = False) -> torch.Tensor:
    """The estimate of a token at a log-ratio, [n]; exchanged: with the other sign of it."""
    if name == ABS:
        return delta.abs()
    at = torch.full_like(delta, -1.0)
    fn = get_estimator(name).fn
    # log-probs are not positive: only their difference matters to these estimators, and the policy's slope
    shift = (at + delta).detach().clamp(min=0)
    logp, ref = at + delta - shift, at - shift
    out: torch.Tensor = fn(ref, logp) if exchanged else fn(logp, ref)
    return out


def slope(name: str, delta: torch.Tensor, *, exchanged: bool = False, ratio: bool = False) -> torch.Tensor:
    """The derivative of that estimate by the policy's log-prob, [n]."""
    x = delta.detach().clone().requires_grad_()
    with torch.enable_grad():
        out = value(name, x, exchanged=exchanged)
        if not out.requires_grad:  # exchanged, and its gradient is by the first of the two alone
            return torch.zeros_like(delta)
        (found,) = torch.autograd.grad(out.sum(), x)
    return found + out.detach() if ratio else found


def fit_slope(delta: torch.Tensor, found: torch.Tensor, loss: torch.Tensor | None) -> TermForm | None:
    """The estimator whose derivative is that of a term in the loss, up to a weight.

    Where there is none, one whose derivative it is up to a constant: another term scores the token too.

    Args:
        delta: Log-ratios, [n].
        found: The derivative by the policy's log-prob, [n].
        loss: Its value, up to a constant, [n]: it tells K3 times a ratio from K2, which it has the
            derivative of.
    """
    plain = [*_slopes(delta, found), *_slopes(delta, found, sign=-1)]
    for form in [*plain, *_slopes(delta, found, beside=True), *_slopes(delta, found, sign=-1, beside=True)]:
        h = form.weight * value(form.name, delta, exchanged=form.exchanged)
        if loss is not None and same(h - h[0], loss - loss[0], _VALUES):
            return form
    # a gradient that no reference changes may be of any term: it is K1's where the value is K1's
    return next((form for form in plain if form.name != "k1" or form.ratio), None)


def _slopes(
    delta: torch.Tensor, found: torch.Tensor, *, sign: int = 1, beside: bool = False
) -> list[TermForm]:
    """All forms with that derivative, added or (sign -1) subtracted; ``beside``: up to a constant."""
    forms = []
    for exchanged in (False, True):
        for ratio in (False, True):
            for name in _NAMES:
                s = slope(name, delta, exchanged=exchanged, ratio=ratio)
                w = (
                    _weight(s - s.mean(), sign * (found - found.mean()))
                    if beside
                    else _weight(s, sign * found)
                )
                if w is not None:
                    rest = (found - sign * w * s).mean().item() if beside else 0.0
                    forms.append(TermForm(name, exchanged, sign * w, ratio, rest))
    return forms


def fit_change(delta: torch.Tensor, found: torch.Tensor) -> TermForm | None:
    """The estimator whose value changes as a penalty in the reward does: both from the first log-ratio on."""
    for sign in (1, -1):
        for exchanged in (False, True):
            for name in _NAMES:
                h = value(name, delta, exchanged=exchanged)
                weight = _weight((h - h[0])[1:], sign * (found - found[0])[1:])
                if weight is not None:
                    return TermForm(name, exchanged, sign * weight)
    return None


def fit_reward(
    coefficients: torch.Tensor, delta: torch.Tensor, rewards: torch.Tensor, lengths: torch.Tensor
) -> TermForm | None:
    """The estimator that is taken off the rewards, whatever mean and deviation the advantages are given.

    Advantages are a + b times the return of rewards minus weight times costs, with unknown a and b, where
    a mean is taken off and a deviation divides; costs of an answer are summed, or those from a token on.

    Args:
        coefficients: Of the tokens' log-probs in the loss, [answers, seq].
        delta: Log-ratios of policy and reference, [answers, seq].
        rewards: [answers].
        lengths: Of the answers, [answers].
    """
    inside = torch.arange(delta.shape[1]) < lengths.unsqueeze(-1)
    earned = rewards.unsqueeze(-1).expand_as(delta)[inside]
    ones = torch.ones_like(earned)
    for scale, sign in product((torch.ones_like(rewards), lengths.double()), (1, -1)):
        advantages = (-coefficients * scale.unsqueeze(-1))[inside]
        for name, exchanged in product(_NAMES, (False, True)):
            costs = (value(name, delta.flatten(), exchanged=exchanged).view_as(delta)) * inside
            from_here = costs.flip(1).cumsum(1).flip(1)
            for charged in (costs.sum(1, keepdim=True).expand_as(costs), from_here):
                design = torch.stack([ones, advantages, sign * charged[inside]], 1)
                solution = torch.linalg.lstsq(design, earned.unsqueeze(-1)).solution.squeeze(-1)
                rest = (design @ solution - earned).abs().max()
                if rest < 1e-4 and solution[1] > NOTHING and solution[2] > 1e-6:
                    return TermForm(name, exchanged, sign * solution[2].item())
    return None


def fit_mixture(gradient: torch.Tensor, logits: torch.Tensor, ref_logits: torch.Tensor) -> str:
    """Two registered divergences whose weighted sum has a row's gradient, in words; "" for none."""
    gradients = {}
    for name, divergence in DIVERGENCES.items():
        z = logits.detach().clone().requires_grad_()
        with torch.enable_grad():
            of = f_divergence(divergence, z.log_softmax(-1), ref_logits.log_softmax(-1))
            (gradients[name],) = torch.autograd.grad(of, z)
    pair = ("reverse_kl", "forward_kl")
    design = torch.stack([gradients[name] for name in pair], 1)
    weights = torch.linalg.lstsq(design, gradient.unsqueeze(-1)).solution.squeeze(-1)
    if (weights > 0).all() and same(design @ weights, gradient):
        share = (weights / weights.sum()).tolist()
        return f"{share[0]:.3g} reverse KL + {share[1]:.3g} forward KL (up to a factor)"
    return ""


def fit_both(
    delta: torch.Tensor, in_reward: TermForm | None, rest: torch.Tensor
) -> tuple[TermForm, TermForm] | None:
    """Both terms of a KL in reward and loss; None where the rest is the slope of no estimator."""
    in_loss = [x for sign in (1, -1) for x in _slopes(delta, rest, sign=sign, beside=True)]
    return None if in_reward is None or not in_loss else (in_reward, in_loss[0])


def fit_divergence(gradient: torch.Tensor, logits: torch.Tensor, ref_logits: torch.Tensor) -> str:
    """The registered divergence that a row's gradient is that of, up to a positive weight; "" for none.

    Args:
        gradient: By the policy's logits, [live].
        logits: Of the policy, at the temperature of its log-probs, [live].
        ref_logits: Of the reference, likewise.
    """
    for name, divergence in DIVERGENCES.items():
        z = logits.detach().clone().requires_grad_()
        with torch.enable_grad():
            of = f_divergence(divergence, z.log_softmax(-1), ref_logits.log_softmax(-1))
            (wanted,) = torch.autograd.grad(of, z)
        if _weight(wanted, gradient) is not None:
            return name
    return ""


def _weight(wanted: torch.Tensor, found: torch.Tensor) -> float | None:
    """w > 0 with found = w wanted, if there is one."""
    size = (wanted @ wanted).item()
    if size < NOTHING or found.abs().max() < NOTHING:
        return None
    w = (wanted @ found).item() / size
    off = (found - w * wanted).abs().max().item()
    return w if w > 0 and off < 10 * _SAME * found.abs().max().item() else None


def same(a: torch.Tensor, b: torch.Tensor, accuracy: float = _SAME) -> bool:
    """Whether two tensors agree, by default to the accuracy of a trainer in float32."""
    return bool((a - b).abs().max() <= accuracy * max(a.abs().max().item(), b.abs().max().item(), NOTHING))


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest entry of either."""
    size = max(a.abs().max().item(), b.abs().max().item())
    return (a - b).abs().max().item() / size if size > NOTHING else 0.0


def off_share(part: WorldGradients, of: WorldGradients) -> float:
    """Return the size of one gradient, relative to another one's."""
    size = of.completion.abs().max().item()
    return part.completion.abs().max().item() / size if size > NOTHING else float(part.completion.any())


def factor(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """Return x with b = x a, to the accuracy of a trainer in float32; None if there is none."""
    size = (a * a).sum().item()
    if size <= NOTHING**2:
        return None
    x = (a * b).sum().item() / size
    return x if same(x * a, b) else None


def words(items: Sequence[str]) -> str:
    """Items as a sentence lists them: a, b and c."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
