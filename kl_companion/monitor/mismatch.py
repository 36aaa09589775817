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

from kl_companion.host_reads import to_host
from kl_companion.monitor.moments import blocks, places
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


class _Rules(NamedTuple):
    """Rules of truncation, [rules] each, as in `Engine`; ``plain`` is the one that keeps everything."""

    p: torch.Tensor
    k: torch.Tensor
    plain: bool


class _Fit(NamedTuple):
    """An engine and its mean absolute remainder, tensors without axes: the search reads none on the host."""

    error: torch.Tensor
    rate: torch.Tensor
    p: torch.Tensor
    k: torch.Tensor


class _Sorted(NamedTuple):
    """Some rows with their likeliest token first: log-probs [rows, vocab], and the tokens' places [rows].

    ``counted`` says which rows count, [rows] bool; None: all.
    """

    logp: torch.Tensor
    place: torch.Tensor
    counted: torch.Tensor | None = None


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
        entropy: Of the policy there, [tokens] in the order of the `places` inside.
        temperature: The trainer's.
        declared: What the engine is said to be; by default one that samples like the trainer.
    """
    told = Engine(temperature) if declared is None else declared
    base, where = temperature / told.temperature, places(inside)
    if where.counted is not None:
        entropy = entropy.where(where.counted, -torch.inf)
    at = entropy.topk(min(FIT_TOKENS, len(entropy))).indices.sort().values
    i, t, known = (None if x is None else x[at] for x in where)
    if not len(at):
        return told
    with torch.no_grad():
        rows = _sorted(normalized(logits[i, t], torch.float64, temperature).logp, tokens[i, t], known)
        off = engine_logp[i, t].double() - rows.logp.gather(-1, rows.place.unsqueeze(-1)).squeeze(-1)
        best = _search(rows, off, base, (told.top_p, told.top_k))
        count = torch.tensor(len(at)) if known is None else known.sum()
        rate, p, k, n = (x.item() for x in to_host([best.rate, best.p, best.k, count]))
    return Engine(temperature / rate, p, int(k)) if n else told


def _search(rows: _Sorted, off: torch.Tensor, base: float, rule: tuple[float, int]) -> _Fit:
    """The fit of temperature and rule to log-probs that are ``off`` by so much, [rows]; see the module."""
    own = _rules([rule], off)
    every = [rule, (1.0, 0), *((p, 0) for p in _TOP_P), *((1.0, k) for k in _TOP_K)]
    rules = _rules(list(dict.fromkeys(every)), off)
    n = off.new_full((), len(off)) if rows.counted is None else rows.counted.sum().to(off.dtype)
    price = _scalar(math.log, torch.log, n).where(n > 1, torch.inf)
    fits = [
        (0, _error(rows, off, base, own)),
        (1, _error(rows, off, base, rules)),
        (1, _over_rates(lambda rate: _error(rows, off, rate, own), off)),
        (2, _over_rates(lambda rate: _error(rows, off, rate, rules), off)),
    ]
    prices = [
        n * _scalar(math.log, torch.log, fit.error + _RESOLUTION) + (free * price if free else 0)
        for free, fit in fits
    ]
    best, least = fits[0][1], prices[0]
    for (_, fit), cost in zip(fits[1:], prices[1:], strict=True):
        best, least = _where(cost < least, fit, best), cost.where(cost < least, least)
    finer = _least(best, _error(rows, off, best.rate, _between(best.p)))
    cut = (best.p < 1) & ((best.p != own.p[0]) | (best.k != own.k[0]))
    return _where(cut, finer, best)


def _between(top_p: torch.Tensor) -> _Rules:
    """Rules between the neighbors of one of the grid."""
    table = top_p.new_tensor([_TOP_P[0], *_TOP_P, 1.0])
    at = (table[1:-1] == top_p).int().argmax().reshape(1)
    low, high = table.gather(0, at), table.gather(0, at + 2)
    p = low + (high - low) * torch.arange(1, _FINE, device=top_p.device, dtype=top_p.dtype) / _FINE
    return _Rules(p, torch.zeros_like(p, dtype=torch.long), False)


def parts(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    engine_logp: torch.Tensor,
    inside: torch.Tensor,
    engine: Engine,
    *,
    temperature: float = 1.0,
) -> Parts:
    """The parts that an engine explains, at the `places` of the tokens inside; arguments as `fitted`."""
    where = places(inside)
    found = torch.empty(4, len(where.row), dtype=torch.float64, device=logits.device)
    rules, done = _rules([engine[1:]], found), 0
    with torch.no_grad():
        for i, t, _ in blocks(where, logits.shape[-1]):
            logp = normalized(logits[i, t], torch.float64, temperature).logp
            own = logp.gather(-1, tokens[i, t].unsqueeze(-1)).squeeze(-1)
            off = engine_logp[i, t].double() - own
            rate = temperature / engine.temperature
            if rules.plain:
                warm, cut, kept = _tempered(logp, own, rate)[0], off * 0, torch.ones_like(off)
            else:
                rows = _sorted(logp, tokens[i, t])
                warm, mass = _tempered(rows.logp, own, rate)
                held, within = _kept(mass.cumsum(-1), rows.place, rules)
                kept = held.squeeze(-1)
                cut = -kept.log() * within.squeeze(-1)
            found[:, done : done + len(i)] = torch.stack([warm, cut, off - warm - cut, kept])
            done += len(i)
    return Parts(*found)


def _rules(rules: list[tuple[float, int]], like: torch.Tensor) -> _Rules:
    p = like.new_tensor([p for p, _ in rules])
    k = like.new_tensor([k for _, k in rules], dtype=torch.long)
    return _Rules(p, k, rules == [(1.0, 0)])


def _scalar(
    on_host: Callable[[float], float], on_device: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """A function of a number: Python's on the CPU, where a read costs nothing, and torch's elsewhere."""
    return x.new_full((), on_host(x.item())) if x.device.type == "cpu" else on_device(x)


def _where(condition: torch.Tensor, one: _Fit, other: _Fit) -> _Fit:
    return _Fit(*(x.where(condition, y) for x, y in zip(one, other, strict=True)))


def _least(first: _Fit, *others: _Fit) -> _Fit:
    """The first of the fits with the smallest error."""
    for fit in others:
        first = _where(fit.error < first.error, fit, first)
    return first


def _sorted(logp: torch.Tensor, tokens: torch.Tensor, counted: torch.Tensor | None = None) -> _Sorted:
    ordered, order = logp.sort(dim=-1, descending=True, stable=True)
    return _Sorted(ordered, (order == tokens.unsqueeze(-1)).to(torch.int8).argmax(-1), counted)


def _tempered(
    logp: torch.Tensor, own: torch.Tensor, rate: float | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The temperature's part at tokens of log-prob ``own``, [rows]; tempered probabilities, [rows, vocab]."""
    if (isinstance(rate, float) or rate.device.type == "cpu") and rate == 1:
        return own * 0, logp.exp()
    warm = logp * rate
    total = warm.logsumexp(-1, keepdim=True)
    return own * (rate - 1) - total.squeeze(-1), (warm - total).exp()


def _kept(total: torch.Tensor, place: torch.Tensor, rules: _Rules) -> tuple[torch.Tensor, torch.Tensor]:
    """The mass that rules keep, and whether they keep the sampled token, [rows, rules] each.

    Args:
        total: Running sum of the probabilities, the likeliest first, [rows, vocab].
        place: Of the sampled token in this order, [rows].
        rules: Which tokens are kept.
    """
    vocab = total.shape[-1]
    last = rules.k.where(rules.k > 0, vocab).clamp(max=vocab) - 1
    nucleus = torch.searchsorted(total, rules.p * total[:, last])
    last = torch.where(rules.p < 1, torch.minimum(nucleus, last), last)
    mass = total.gather(-1, last).clamp(max=1.0).where(last < vocab - 1, 1.0)
    return mass, place.unsqueeze(-1) <= last


def _error(rows: _Sorted, off: torch.Tensor, rate: float | torch.Tensor, rules: _Rules) -> _Fit:
    """The best of some rules at one temperature."""
    own = rows.logp.gather(-1, rows.place.unsqueeze(-1)).squeeze(-1)
    warm, mass = _tempered(rows.logp, own, rate)
    left, number = (off - warm).unsqueeze(-1), off.new_full((), rate) if isinstance(rate, float) else rate
    if rules.plain:
        return _Fit(_mean(left.abs().squeeze(-1), rows.counted), number, rules.p[0], rules.k[0])
    kept, inside = _kept(mass.cumsum(-1), rows.place, rules)
    error, best = _mean((left + kept.log() * inside).abs(), rows.counted).min(0)
    return _Fit(error, number, *(x.gather(0, best.reshape(1)).squeeze(0) for x in (rules.p, rules.k)))


def _mean(x: torch.Tensor, counted: torch.Tensor | None) -> torch.Tensor:
    """Mean over the rows that count, of [rows] or [rows, rules]."""
    if counted is None:
        return x.mean(0)
    inside = counted.view(-1, *[1] * (x.ndim - 1))
    return x.where(inside, 0.0).sum(0) / counted.sum()


def _over_rates(error: Callable[[float | torch.Tensor], _Fit], like: torch.Tensor) -> _Fit:
    """The best temperature: the best of a grid, then a golden section between its neighbors."""
    grid = [error(rate) for rate in _RATES]
    logs = like.new_tensor([math.log(rate) for rate in (_RATES[0], *_RATES, _RATES[-1])])
    at = torch.stack([fit.error for fit in grid]).argmin().reshape(1)
    low, high = (logs.gather(0, at + x).squeeze(0) for x in (0, 2))
    return _least(_least(*grid), *_golden(lambda x: error(_scalar(math.exp, torch.exp, x)), low, high))


def _golden(error: Callable[[torch.Tensor], _Fit], low: torch.Tensor, high: torch.Tensor) -> Iterator[_Fit]:
    golden = (math.sqrt(5) - 1) / 2
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = error(a), error(b)
    for _ in range(_STEPS):
        yield _least(at_a, at_b)
        left = at_a.error <= at_b.error
        low, high = low.where(left, a), b.where(left, high)
        new = (high - golden * (high - low)).where(left, low + golden * (high - low))
        a, b = new.where(left, b), a.where(left, new)
        at_new = error(new)
        at_a, at_b = _where(left, at_new, at_b), _where(left, at_a, at_new)
