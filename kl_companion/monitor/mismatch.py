"""Why the sampling engine's log-probs are not the recomputed ones: temperature, truncation, rounding.

A sampler that divides the logits by another temperature and keeps only the likeliest tokens (top-k, then
top-p) says of a token that it drew log softmax_tau(y) - log m: m is the mass, at this prefix and temperature,
of the tokens that it keeps. So the difference from the policy's log-prob is, token by token,

    engine - policy = (log softmax_tau(y) - log softmax(y))  +  (-log m)  +  what is left.

The first is the temperature's part, of either sign. The second is the truncation's: never negative, and the
same for every token that may follow a prefix. The third is called rounding. It is a remainder: a policy that
has changed since it sampled, a penalty on repetitions or another kind of truncation are in it too.

Temperature and rule are fitted where the entropy is largest, by the mean absolute remainder. Another value
than the declared one has to pay for itself as a parameter does in the Bayesian information criterion, so that
rounding is not explained by a temperature of 1.0003.

What cannot be told apart: top-k and top-p where they keep the same tokens (the kept mass is the same, and it
alone is reported); a temperature from rounding where the policy is nearly sure of every token; a kept mass
that is the same at every prefix from a constant that an engine adds. An engine that reports log-probs as they
were before temperature and truncation hides both: then nothing is seen, whatever it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from kl_companion.monitor.moments import blocks
from kl_companion.tabular.rows import normalized

FIT_TOKENS = 64  # of those that are read, the ones with the largest entropy
_RATES = tuple(2 ** (i / 4) for i in range(-8, 9))  # trainer's temperature over the engine's, 1/4 to 4
_STEPS = 32  # of the golden section between two neighbors of the best of them: to 1e-7
_TOP_P = (*(i / 20 for i in range(2, 19)), *(i / 100 for i in range(91, 100)), 0.995, 0.999)
_TOP_K = (1, 2, 3, 4, 5, 8, 10, 15, 16, 20, 25, 30, 32, 40, 50, 64, 80, 100, 128, 200, 256, 500, 512, 1000)
_FINE = 40  # of `_TOP_P` between two neighbors of the best
_RESOLUTION = 1e-6  # of log-probs in float32: less remainder than this is no better fit


class Engine(NamedTuple):
    """How a sampler draws.

    Attributes:
        temperature: Divides the logits.
        top_p: The smallest set of likeliest tokens with at least this mass is kept; 1 keeps all.
        top_k: So many likeliest tokens are kept, before ``top_p`` is applied; 0 keeps all.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class Parts(NamedTuple):
    """The difference engine - policy at every token, in three parts that add up to it; [tokens] float64.

    Attributes:
        temperature, truncation, rounding: Signed, in nats.
        kept: The mass that the engine keeps at the prefix.
    """

    temperature: torch.Tensor
    truncation: torch.Tensor
    rounding: torch.Tensor
    kept: torch.Tensor


class _Fit(NamedTuple):
    error: float  # mean absolute remainder
    rate: float
    rule: tuple[float, int]


class _Sorted(NamedTuple):
    """Some rows with their likeliest token first: log-probs [rows, vocab], and the tokens' places [rows]."""

    logp: torch.Tensor
    place: torch.Tensor


def fitted(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    engine_logp: torch.Tensor,
    inside: torch.Tensor,
    entropy: torch.Tensor,
    *,
    temperature: float = 1.0,
    declared: Engine | None = None,
) -> Engine:
    """The engine that explains the engine's log-probs best; the arguments were checked before.

    Args:
        logits: Of the policy, [batch, seq, vocab].
        tokens: [batch, seq].
        engine_logp: What the engine said of them, [batch, seq].
        inside: [batch, seq] bool: the tokens whose log-probs are known.
        entropy: Of the policy there, [tokens] in the order of ``inside``.
        temperature: The trainer's.
        declared: What the engine is said to be; by default one that samples like the trainer.
    """
    told = Engine(temperature) if declared is None else declared
    base, rule = temperature / told.temperature, (told.top_p, told.top_k)
    at = entropy.topk(min(FIT_TOKENS, len(entropy))).indices.sort().values
    i, t = (x[at] for x in inside.nonzero(as_tuple=True))
    if not len(at):
        return told
    with torch.no_grad():
        rows = _sorted(normalized(logits[i, t], torch.float64, temperature).logp, tokens[i, t])
        off = engine_logp[i, t].double() - rows.logp.gather(-1, rows.place.unsqueeze(-1)).squeeze(-1)
        rules = list(dict.fromkeys([rule, (1.0, 0), *((p, 0) for p in _TOP_P), *((1.0, k) for k in _TOP_K)]))
        fits = [
            (0, _error(rows, off, base, [rule])),
            (1, _error(rows, off, base, rules)),
            (1, _over_rates(lambda rate: _error(rows, off, rate, [rule]))),
            (2, _over_rates(lambda rate: _error(rows, off, rate, rules))),
        ]
        n = len(at)
        price = math.log(n) if n > 1 else math.inf
        _, best = min(
            fits, key=lambda x: n * math.log(x[1].error + _RESOLUTION) + (x[0] * price if x[0] else 0)
        )
        if best.rule[0] < 1 and best.rule != rule:
            best = min(best, _error(rows, off, best.rate, _between(best.rule[0])), key=lambda fit: fit.error)
    return Engine(temperature / best.rate, *best.rule)


def _between(top_p: float) -> list[tuple[float, int]]:
    """Rules between the neighbors of one of the grid."""
    at = _TOP_P.index(top_p)
    low, high = _TOP_P[max(at - 1, 0)], (*_TOP_P, 1.0)[at + 1]
    return [(low + (high - low) * i / _FINE, 0) for i in range(1, _FINE)]


def parts(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    engine_logp: torch.Tensor,
    inside: torch.Tensor,
    engine: Engine,
    *,
    temperature: float = 1.0,
) -> Parts:
    """The parts that an engine explains, at the tokens inside; arguments as `fitted`."""
    found = torch.empty(4, int(inside.sum()), dtype=torch.float64, device=logits.device)
    done = 0
    with torch.no_grad():
        for i, t in blocks(inside, logits.shape[-1]):
            logp = normalized(logits[i, t], torch.float64, temperature).logp
            own = logp.gather(-1, tokens[i, t].unsqueeze(-1)).squeeze(-1)
            off = engine_logp[i, t].double() - own
            rate = temperature / engine.temperature
            if engine.top_p == 1 and engine.top_k == 0:
                warm, cut, kept = _tempered(logp, own, rate)[0], off * 0, torch.ones_like(off)
            else:
                rows = _sorted(logp, tokens[i, t])
                warm, mass = _tempered(rows.logp, own, rate)
                held, within = _kept(mass.cumsum(-1), rows.place, [engine[1:]])
                kept = held.squeeze(-1)
                cut = -kept.log() * within.squeeze(-1)
            found[:, done : done + len(i)] = torch.stack([warm, cut, off - warm - cut, kept])
            done += len(i)
    return Parts(*found)


def _sorted(logp: torch.Tensor, tokens: torch.Tensor) -> _Sorted:
    held, order = logp.sort(dim=-1, descending=True, stable=True)
    return _Sorted(held, (order == tokens.unsqueeze(-1)).to(torch.int8).argmax(-1))


def _tempered(logp: torch.Tensor, own: torch.Tensor, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The temperature's part at tokens of log-prob ``own``, [rows]; tempered probabilities, [rows, vocab]."""
    if rate == 1:
        return own * 0, logp.exp()
    warm = logp * rate
    total = warm.logsumexp(-1, keepdim=True)
    return own * (rate - 1) - total.squeeze(-1), (warm - total).exp()


def _kept(
    total: torch.Tensor, place: torch.Tensor, rules: list[tuple[float, int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mass that rules keep, and whether they keep the sampled token, [rows, rules] each.

    Args:
        total: Running sum of the probabilities, the likeliest first, [rows, vocab].
        place: Of the sampled token in this order, [rows].
        rules: (top_p, top_k), as in `Engine`.
    """
    vocab = total.shape[-1]
    last = torch.tensor([min(k or vocab, vocab) - 1 for _, k in rules], device=total.device)
    p = torch.tensor([p for p, _ in rules], dtype=total.dtype, device=total.device)
    nucleus = torch.searchsorted(total, p * total[:, last])
    last = torch.where(p < 1, torch.minimum(nucleus, last), last)
    mass = total.gather(-1, last).clamp(max=1.0).where(last < vocab - 1, 1.0)
    return mass, place.unsqueeze(-1) <= last


def _error(rows: _Sorted, off: torch.Tensor, rate: float, rules: list[tuple[float, int]]) -> _Fit:
    """The best of some rules at one temperature."""
    own = rows.logp.gather(-1, rows.place.unsqueeze(-1)).squeeze(-1)
    warm, mass = _tempered(rows.logp, own, rate)
    left = (off - warm).unsqueeze(-1)
    if rules == [(1.0, 0)]:
        return _Fit(float(left.abs().mean()), rate, rules[0])
    kept, inside = _kept(mass.cumsum(-1), rows.place, rules)
    errors = (left + kept.log() * inside).abs().mean(0).tolist()
    best = min(range(len(rules)), key=errors.__getitem__)
    return _Fit(errors[best], rate, rules[best])


def _over_rates(error: Callable[[float], _Fit]) -> _Fit:
    """The best temperature: the best of a grid, then a golden section between its neighbors."""
    grid = [error(rate) for rate in _RATES]
    at = min(range(len(grid)), key=lambda i: grid[i].error)
    low, high = (math.log(_RATES[min(max(at + x, 0), len(_RATES) - 1)]) for x in (-1, 1))
    return min([grid[at], *_golden(lambda x: error(math.exp(x)), low, high)], key=lambda fit: fit.error)


def _golden(error: Callable[[float], _Fit], low: float, high: float) -> Iterator[_Fit]:
    golden = (math.sqrt(5) - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = error(a), error(b)
    for _ in range(_STEPS):
        yield min(at_a, at_b, key=lambda fit: fit.error)
        if at_a.error <= at_b.error:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = error(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = error(b)
