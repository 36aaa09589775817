"""Exact numbers of the next-token distributions at sampled tokens: every token summed over, none drawn.

Rows are worked off a few at a time in float64, whatever the logits are kept in. What is returned is one
number per token, so that the memory beyond the logits is that of some rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from kl_companion.checks import check_finite
from kl_companion.divergences import get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.host_reads import any_wrong
from kl_companion.kl_term import KLTerm
from kl_companion.tabular.rows import Rows, draws_of_rows, normalized

_ENTRIES = {"cpu": 2**17}  # in a block of rows, so that its float64 copy stays in the cache
_ENTRIES_ELSEWHERE = 2**23  # enough to keep an accelerator busy
_PLAIN = tuple(get_estimator(name) for name in ("k1", "k2", "k3"))
Clamp = tuple[float, float]


class Asked(NamedTuple):
    """What is asked of every token beside the numbers that are always computed.

    Attributes:
        temperature: Divides the logits of policy and reference.
        estimator: What the trainer's number is; None where that is not known.
        clamp: (lowest, highest) log policy/reference that the trainer's estimator sees; None for no clamp.
        term: What the trainer differentiates; None is the exact KL(policy || reference).
        ends: Ids that end an answer.
    """

    temperature: float = 1.0
    estimator: Estimator | None = None
    clamp: Clamp | None = None
    term: KLTerm | None = None
    ends: tuple[int, ...] = ()


class TokenNumbers(NamedTuple):
    """Numbers of sampled tokens and of the distributions that they were drawn from, [tokens] float64 each.

    Attributes:
        logp, ref_logp: Log-probs of the sampled token.
        kl, forward_kl: Of the next token, exact.
        entropy: Of the policy's next token.
        k1_variance, k2_mean, k2_variance, k3_variance: Of one draw from the policy.
        number_mean, number_variance: Of the trainer's estimator; NaN where that is not known.
        pull: Minus the expected gradient of the KL term, with coefficient 1, by the logits of the ids that
            end an answer, after the temperature; NaN without such an id.
        end: Probability of ending here; NaN without such an id.
    """

    logp: torch.Tensor
    ref_logp: torch.Tensor
    kl: torch.Tensor
    forward_kl: torch.Tensor
    entropy: torch.Tensor
    k1_variance: torch.Tensor
    k2_mean: torch.Tensor
    k2_variance: torch.Tensor
    k3_variance: torch.Tensor
    number_mean: torch.Tensor
    number_variance: torch.Tensor
    pull: torch.Tensor
    end: torch.Tensor


def token_numbers(
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    tokens: torch.Tensor,
    inside: torch.Tensor,
    asked: Asked,
) -> TokenNumbers:
    """The numbers of the tokens inside, at their `places`; the arguments were checked before.

    Args:
        logits: [batch, seq, vocab], raw, any floating dtype and layout; -inf in both is a masked token.
        ref_logits: The same of the reference.
        tokens: [batch, seq] int64.
        inside: [batch, seq] bool.
        asked: What else is asked.

    Raises:
        ValueError: NaN or +inf in a row that is read, a row of -inf only, a token that the policy cannot say,
            or a token that the policy says and the reference cannot, so that the KL is infinite.
    """
    # made first: small tensors that stay, made in between, would keep the memory of large ones from reuse
    where = places(inside)
    numbers = torch.empty(
        len(TokenNumbers._fields), len(where.row), dtype=torch.float64, device=logits.device
    )
    done = 0
    with torch.no_grad():
        for block in blocks(where, logits.shape[-1]):
            policy, reference = (
                _rows(name, x, asked.temperature, block)
                for name, x in (("logits", logits), ("ref_logits", ref_logits))
            )
            at = slice(done, done := done + len(block.row))
            numbers[:, at] = _of_rows(policy, reference, tokens[block.row, block.column], asked)
    return TokenNumbers(*numbers)


class Places(NamedTuple):
    """Rows and columns of tokens, [tokens] each.

    ``counted`` says which of them are inside a mask; None: all.
    """

    row: torch.Tensor
    column: torch.Tensor
    counted: torch.Tensor | None = None


def places(inside: torch.Tensor) -> Places:
    """The places of the tokens inside, [batch, seq] bool, answer by answer.

    On a GPU, whose host would wait for their number, the places of all other tokens follow.
    """
    if inside.device.type == "cpu":
        return Places(*inside.nonzero(as_tuple=True))
    flat = inside.flatten()
    order = flat.to(torch.uint8).argsort(descending=True, stable=True)
    return Places(order // inside.shape[1], order % inside.shape[1], flat[order])


def blocks(where: Places, vocab: int) -> Iterator[Places]:
    """Places, a few at a time."""
    step = max(1, _ENTRIES.get(where.row.device.type, _ENTRIES_ELSEWHERE) // vocab)
    for at in range(0, len(where.row), step):
        some = slice(at, at + step)
        counted = None if where.counted is None else where.counted[some]
        yield Places(where.row[some], where.column[some], counted)


def _rows(name: str, x: torch.Tensor, temperature: float, where: Places) -> Rows:
    i, t, counted = where
    scores = x[i, t]
    if counted is not None:  # a token outside is read as one of equal logits
        scores = scores.masked_fill(~counted.unsqueeze(-1), 0.0)
    rows = normalized(scores, torch.float64, temperature)
    bad = rows.missing.isnan().squeeze(-1)
    if any_wrong(bad):
        at = int(bad.nonzero()[0])
        check_finite(f"{name}[{i[at]}, {t[at]}]", scores[at], ~scores[at].isneginf())
        raise ValueError(
            f"{name}[{i[at]}, {t[at]}] is -inf for the whole vocabulary, expected a distribution"
        )
    return rows


def _of_rows(policy: Rows, reference: Rows, tokens: torch.Tensor, asked: Asked) -> torch.Tensor:
    """The fields of `TokenNumbers` of some rows, [fields, tokens]."""
    chosen = tokens.clamp(0, policy.p.shape[-1] - 1).unsqueeze(-1)  # who collects flags has not read them
    logp, ref_logp = (x.logp.gather(-1, chosen).squeeze(-1) for x in (policy, reference))
    if any_wrong(logp.isneginf()):
        raise ValueError(
            "a sampled token has probability 0 under the policy, expected tokens that it can say"
        )
    u, forward = _log_ratios(policy, reference)
    kl = _dot(policy.p, u).clamp(min=0)
    like = policy.logp if policy.positive else policy.logp.where(policy.p > 0, 0.0)
    entropy = -_dot(policy.p, like)
    k1, k2, k3 = (_drawn(value(entry, like, like - u, None), policy.p) for entry in _PLAIN)
    number = _number(asked, policy, reference, like, u)
    unknown = torch.full_like(kl, torch.nan)
    pull = end = unknown
    if asked.ends:
        ends = torch.tensor(asked.ends, device=kl.device)
        pull, end = -_gradient(asked, policy, reference, like, u)(ends), policy.p[:, ends].sum(-1)
    return torch.stack(
        [logp, ref_logp, kl, forward, entropy, k1[1], *k2, k3[1], *(number or (unknown, unknown)), pull, end]
    )


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vecdot(a, b)


def _log_ratios(policy: Rows, reference: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Log policy/reference, 0 where the policy has no mass, [rows, vocab]; and the forward KL, [rows]."""
    u = policy.logp - reference.logp
    if policy.positive and reference.positive:
        return u, -_dot(reference.p, u).clamp(max=0)
    lost = (policy.p > 0) & reference.logp.isneginf()
    if any_wrong(lost):
        token = int(lost.nonzero()[0, 1])
        raise ValueError(
            f"the reference gives token {token} probability 0 and the policy does not: the KL is infinite, "
            "expected the same masked tokens in both"
        )
    forward = (reference.p * -u).where(reference.p > 0, 0.0).sum(-1)
    return u.where(policy.p > 0, 0.0), forward


def _drawn(x: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over the tokens of a value that each of them has, [rows] each."""
    mean = _dot(p, x)
    off = x - mean.unsqueeze(-1)
    return mean, _dot(p * off, off)


def _number(
    asked: Asked, policy: Rows, reference: Rows, like: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Mean and variance of the trainer's estimator, [rows] each."""
    entry = asked.estimator
    if entry is None:
        return None
    if entry.inputs != "sampled":
        draws = draws_of_rows(entry, policy, reference, policy, target=get_divergence(entry.target))
        return draws.value, draws.value_variance
    return _drawn(value(entry, like, like - u, asked.clamp), policy.p)


def value(entry: Estimator, logp: torch.Tensor, ref_logp: torch.Tensor, clamp: Clamp | None) -> torch.Tensor:
    """A sampled estimator that sees the log-ratio within a clamp; no gradient passes outside of it."""
    seen = logp if clamp is None else ref_logp + (logp - ref_logp).clamp(*clamp)
    out: torch.Tensor = entry.fn(seen, ref_logp)
    return out


def _gradient(
    asked: Asked, policy: Rows, reference: Rows, like: torch.Tensor, u: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The expected gradient of the KL term by the logits, as a function of the ids that are summed over."""
    term = asked.term
    in_reward = term is not None and term.placement in ("reward", "score")
    if term is not None and term.entry.inputs != "sampled":
        draws = draws_of_rows(
            term.entry,
            policy,
            reference,
            policy,
            target=get_divergence(term.entry.target),
            placement="reward" if in_reward else "loss",
        )
        return lambda ids: draws.gradient[:, 0, ids].sum(-1)
    weight = u if term is None else _weight(term, like, like - u, asked.clamp, in_reward)
    mean = _dot(policy.p, weight).unsqueeze(-1)
    return lambda ids: (policy.p[:, ids] * (weight[:, ids] - mean)).sum(-1)


def _weight(
    term: KLTerm, logp: torch.Tensor, ref_logp: torch.Tensor, clamp: Clamp | None, in_reward: bool
) -> torch.Tensor:
    """What multiplies the score of every token: the derivative of a value, or the value as a cost."""
    leaf = logp.detach().requires_grad_()
    with torch.enable_grad():
        x = value(term.entry, leaf, ref_logp, clamp)
        if in_reward:
            return x.detach()
        (slope,) = torch.autograd.grad(x.sum(), leaf)
    # a ratio in the graph, 1 in value, has the score as its gradient
    return slope + x.detach() if term.ratio == "attached" and term.scope is not None else slope
