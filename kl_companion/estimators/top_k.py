"""Top-k divergences: exact on a head of the vocabulary, sampled on the rest.

For a set S of token ids (the head) and one sampled token y,

    sum over S of Q f(P/Q)   +   1(y not in S) * weight * (a sampled estimate of the same f at y).

Head and tail must be written with the *same* f. Adding c (t - 1) to f changes no divergence, because
P and Q both sum to one; on a part of the vocabulary they do not, and a head and a tail that differ by
such a term leave c times the gradient of P(S) behind. The published algorithms do: their head has
f = t log t, the gradient of their tail that of t log t - t + 1. `kl_companion.theory.top_k_split` derives
what any head and tail leave behind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from kl_companion.checks import (
    check_choice,
    check_log_probabilities,
    check_no_nan,
    check_shape,
    check_tensor,
)
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.record import ESTIMATOR_FAMILIES, Estimator
from kl_companion.estimators.sampled import FORMS, Form, kf_plus_plus, split_form
from kl_companion.estimators.token_ids import check_head, check_tokens, head_of_rows
from kl_companion.estimators.vocabulary import check_rows, finite_sum_of_entries, sum_of_entries

HeadFrom = Literal["policy", "reference", "sampler"]
HEADS: tuple[HeadFrom, ...] = ("policy", "reference", "sampler")


@dataclass(frozen=True, eq=False)
class TopK:
    """A top-k estimator: every choice but the tensors. Call it as `top_k_f_divergence`.

    Attributes:
        divergence: What is estimated.
        k: Size of the head, 0 to vocab; None with ``indices``.
        indices: The head itself, int64 [..., k] or [k]; None with ``k``.
        head_from: Whose k likeliest tokens make the head. None becomes ``"reference"`` for forward KL, an
            expectation under the reference, and ``"policy"`` for every other divergence.
        form: See `top_k_f_divergence`.
        tail: False leaves the tail out (the truncated divergence).

    Raises:
        ValueError: a name instead of a divergence, an unknown form or ``head_from``, not exactly one of
            ``k`` and ``indices``, or a negative k.
    """

    divergence: Divergence
    k: int | None = None
    indices: torch.Tensor | None = None
    head_from: HeadFrom | None = None
    form: Form = "bregman"
    tail: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.divergence, Divergence):
            raise ValueError(
                f"divergence is {self.divergence!r}, expected a Divergence: get_divergence(name) gives one"
            )
        check_choice("form", self.form, FORMS)
        if self.head_from is None:
            default = "reference" if self.divergence.name == "forward_kl" else "policy"
            object.__setattr__(self, "head_from", default)
        check_choice("head_from", self.head_from, HEADS)
        if (self.k is None) == (self.indices is None):
            given = "neither" if self.k is None else f"k={self.k} and indices"
            raise ValueError(f"got {given}, expected exactly one of k and indices")
        if self.k is not None:
            # the type, not the number: with dynamic=True a graph has a symbol in its place
            if isinstance(self.k, bool) or not hasattr(type(self.k), "__index__") or self.k < 0:
                raise ValueError(f"k is {self.k!r}, expected a whole number from 0 to vocab")
            object.__setattr__(self, "k", operator.index(self.k))  # NumPy's numbers too

    @property
    def sampled(self) -> Callable[..., torch.Tensor]:
        """The sampled estimator that the tail takes, a function of (logp, ref_logp)."""
        return kf_plus_plus(self.divergence, self.form)

    def head_indices(
        self,
        logp_all: torch.Tensor,
        ref_logp_all: torch.Tensor,
        behavior_logp_all: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The head's token ids, [..., k] int64, without gradient; arguments [..., vocab]."""
        lead, vocab = logp_all.shape[:-1], logp_all.shape[-1]
        if self.indices is not None:
            return head_of_rows(self.indices, lead)
        if self.k > vocab:  # type: ignore[operator]
            raise ValueError(f"k is {self.k}, expected at most {vocab}, the size of the vocabulary")
        models = {"policy": logp_all, "reference": ref_logp_all, "sampler": behavior_logp_all}
        scores = models[self.head_from]  # type: ignore[index]
        if scores is None:
            raise ValueError("head_from='sampler' needs behavior_logp_all [..., vocab], got None")
        return scores.topk(self.k, dim=-1).indices  # type: ignore[arg-type]

    def head_of(self, logp: torch.Tensor, ref_logp: torch.Tensor, *, validate: bool = False) -> torch.Tensor:
        """sum over the head of Q f(P/Q), exact, from the log-probs on it: [..., k] -> [...].

        ``validate`` refuses an infinite sum.
        """
        written = self.divergence if self.form == "bregman" else self.divergence.as_given
        return (finite_sum_of_entries if validate else sum_of_entries)(written, logp, ref_logp)

    def estimate(
        self,
        head: torch.Tensor,
        logp: torch.Tensor,
        ref_logp: torch.Tensor,
        outside: torch.Tensor,
        tail_weight: torch.Tensor | None = None,
        *,
        validate: bool = False,
        look: bool = False,
    ) -> torch.Tensor:
        """Head plus tail, [...], from the head and the log-probs of the sampled token, all [...].

        ``outside`` says where the sampled token is not in the head. With ``look`` the tail may read one value
        on the host; a head of tokens has read one already.

        Raises:
            ValueError: a tail_weight of another shape; with ``validate=True`` one that is negative or NaN,
                or a sampled token outside the head without probability.
        """
        if tail_weight is not None:
            check_shape("tail_weight", tail_weight, outside.shape, "tokens [...]")
            if validate and not (tail_weight >= 0).all():
                got = tail_weight[~(tail_weight >= 0)][0].item()
                raise ValueError(
                    f"tail_weight is negative or NaN somewhere ({got:g}), expected pi/mu, clipped or not"
                )
        if not self.tail:
            return head
        if validate:
            check_log_probabilities("logp_all of the sampled tokens", logp, outside)
            check_log_probabilities("ref_logp_all of the sampled tokens", ref_logp, outside)
        tail = self.sampled(logp.where(outside, 0.0), ref_logp.where(outside, 0.0), look=look)
        tail = tail if tail_weight is None else tail * tail_weight.detach()
        return head + tail.where(outside, 0.0)

    def __call__(
        self,
        logp_all: torch.Tensor,
        ref_logp_all: torch.Tensor,
        tokens: torch.Tensor,
        *,
        tail_weight: torch.Tensor | None = None,
        behavior_logp_all: torch.Tensor | None = None,
        validate: bool = False,
    ) -> torch.Tensor:
        """The estimate, [...]; arguments and errors as `top_k_f_divergence`."""
        check_tensor("logp_all", logp_all)
        check_shape("ref_logp_all", ref_logp_all, logp_all.shape, "logp_all [..., vocab]")
        check_rows(logp_all, ref_logp_all, validate=validate)
        check_tokens(tokens, logp_all, validate=validate)
        if behavior_logp_all is not None:
            check_shape("behavior_logp_all", behavior_logp_all, logp_all.shape, "logp_all [..., vocab]")
            if validate:
                check_no_nan("behavior_logp_all", behavior_logp_all)
        index = self.head_indices(logp_all, ref_logp_all, behavior_logp_all)
        if validate:
            check_head(index, logp_all.shape[-1])
        head = self.head_of(logp_all.gather(-1, index), ref_logp_all.gather(-1, index), validate=validate)
        logp, ref_logp = (x.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) for x in (logp_all, ref_logp_all))
        outside = (index != tokens.unsqueeze(-1)).all(-1)
        look = index.shape[-1] == 0  # an empty head reads nothing
        return self.estimate(head, logp, ref_logp, outside, tail_weight, validate=validate, look=look)


def top_k_f_divergence(
    divergence: str | Divergence,
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    tokens: torch.Tensor,
    *,
    k: int | None = None,
    indices: torch.Tensor | None = None,
    head_from: HeadFrom | None = None,
    form: Form = "bregman",
    tail_weight: torch.Tensor | None = None,
    behavior_logp_all: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """D_f(policy || reference) of every row: exact on a head, sampled outside it.

    Args:
        divergence: A registered name or a `Divergence`.
        logp_all: Normalized log-probs of the policy, [..., vocab].
        ref_logp_all: Normalized log-probs of the reference, [..., vocab].
        tokens: The sampled token of every row, [...] int64.
        k: Size of the head: 0 is the sampled estimator, vocab the exact divergence.
        indices: The head itself, [..., k] or [k] int64, any set. Exactly one of ``k`` and ``indices``.
        head_from: Whose k likeliest tokens: of the ``"policy"``, the ``"reference"`` or the
            ``"sampler"``. The set carries no gradient. None is the reference for forward KL and the policy
            for every other divergence.
        form: * ``"bregman"``: head and tail with f'(1) = 0. Value and gradient unbiased for every
                set; no sample is negative; no gradient at policy = reference, sample by sample. Tokens
                outside the head that the policy can never draw count Q f~(0), which no sample shows:
                put them into the head, or mask them in the reference too.
              * ``"generic"``: head and tail with f as it was registered (emapg2026, appendix H.3).
                Unbiased too; near the reference its noise stays where that of the others vanishes.
              * ``"published"``: the generic head with a tail whose gradient has a baseline, K4 or K5
                for the two KLs (emapg2026, algorithms 1 and 2). Value unbiased; the expected gradient
                has f'(1) times the gradient of the policy's mass on the head in it.
        tail_weight: pi/mu of the sampled token, [...], clipped or not, when mu sampled. It multiplies
            the tail only (the head is a sum, not a sample) and is detached here.
        behavior_logp_all: Log-probs of the sampler mu, [..., vocab]; for ``head_from="sampler"``.
        validate: Whether values are checked too, which reads them on the host.

    Returns:
        [...], differentiable in ``logp_all``; inf where the divergence is infinite on the head or at the
        sampled token.

    Raises:
        ValueError: shapes that do not agree, k beyond the vocabulary, or not exactly one of k and indices.
            With ``validate=True`` also rows that are not normalized, indices with a repeated or unknown
            token (a repeated one counts twice otherwise), unknown sampled tokens, a negative weight, or a
            divergence that is infinite on the head or at a sampled token.

    Source: emapg2026, eqs (120)-(122).
    """
    choices = TopK(get_divergence(divergence), k, indices, head_from, form)
    return choices(
        logp_all,
        ref_logp_all,
        tokens,
        tail_weight=tail_weight,
        behavior_logp_all=behavior_logp_all,
        validate=validate,
    )


def top_k_reverse_kl(
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    tokens: torch.Tensor,
    *,
    k: int | None = None,
    indices: torch.Tensor | None = None,
    head_from: HeadFrom | None = None,
    form: Form = "bregman",
    tail_weight: torch.Tensor | None = None,
    behavior_logp_all: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """KL(policy || reference) of every row: exact on a head, K3++ outside it. See `top_k_f_divergence`.

    Source: emapg2026, algorithm 1, which is ``form="published"``.
    """
    return top_k_f_divergence(
        "reverse_kl",
        logp_all,
        ref_logp_all,
        tokens,
        k=k,
        indices=indices,
        head_from=head_from,
        form=form,
        tail_weight=tail_weight,
        behavior_logp_all=behavior_logp_all,
        validate=validate,
    )


def top_k_forward_kl(
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    tokens: torch.Tensor,
    *,
    k: int | None = None,
    indices: torch.Tensor | None = None,
    head_from: HeadFrom | None = None,
    form: Form = "bregman",
    tail_weight: torch.Tensor | None = None,
    behavior_logp_all: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """KL(reference || policy) of every row: exact on a head, sampled outside it. See `top_k_f_divergence`.

    Source: emapg2026, algorithm 2, which is ``form="published"``.
    """
    return top_k_f_divergence(
        "forward_kl",
        logp_all,
        ref_logp_all,
        tokens,
        k=k,
        indices=indices,
        head_from=head_from,
        form=form,
        tail_weight=tail_weight,
        behavior_logp_all=behavior_logp_all,
        validate=validate,
    )


def truncated_f_divergence(
    divergence: str | Divergence,
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    *,
    k: int | None = None,
    indices: torch.Tensor | None = None,
    head_from: HeadFrom | None = None,
    form: Form = "bregman",
    behavior_logp_all: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """The head of `top_k_f_divergence` alone, [...]: nothing is sampled, the tail is missing.

    ``form="bregman"`` is non-negative and has no gradient at policy = reference; with ``"generic"``
    (or ``"published"``: the heads are the same) it may be negative and pulls on the head's mass.

    Source: emapg2026, section 5.3 and eq (120).
    """
    choices = TopK(get_divergence(divergence), k, indices, head_from, form, tail=False)
    check_tensor("logp_all", logp_all)
    nobody = torch.zeros(logp_all.shape[:-1], dtype=torch.int64, device=logp_all.device)
    return choices(logp_all, ref_logp_all, nobody, behavior_logp_all=behavior_logp_all, validate=validate)


def truncated_kl(
    logp_all: torch.Tensor,
    ref_logp_all: torch.Tensor,
    *,
    k: int | None = None,
    indices: torch.Tensor | None = None,
    head_from: HeadFrom | None = None,
    form: Form = "bregman",
    behavior_logp_all: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """The head of KL(policy || reference) alone, [...]. See `truncated_f_divergence`."""
    return truncated_f_divergence(
        "reverse_kl",
        logp_all,
        ref_logp_all,
        k=k,
        indices=indices,
        head_from=head_from,
        form=form,
        behavior_logp_all=behavior_logp_all,
        validate=validate,
    )


def _member(text: str, divergence: str, name: str, *, tail: bool = True) -> Estimator:
    """The estimator ``name(k)`` or ``name(k, form)``."""
    size, form = split_form(text)
    if not size.isdigit():
        raise ValueError(f"{name}({text}) has k = {size!r}, expected a whole number from 0 to vocab")
    fn = TopK(get_divergence(divergence), int(size), None, None, form, tail)
    said = size if form == "bregman" else f"{size}, {form}"
    return Estimator(f"{name}({said})", fn, fn.divergence.name, "top_k", "emapg2026, section 5.3")


def _any_member(text: str) -> Estimator:
    """The estimator ``top_k_f_divergence(divergence, k)`` or ``(divergence, k, form)``."""
    parts = [x.strip() for x in text.rsplit(",", 2)]
    named = 2 if len(parts) == 3 and not parts[2].isdigit() else 1
    divergence, rest = ",".join(parts[:-named]), ", ".join(parts[-named:])
    entry = _member(rest, divergence, "top_k_f_divergence")
    return entry._replace(name=entry.name.replace("(", f"({entry.target}, ", 1))


ESTIMATOR_FAMILIES["top_k_reverse_kl"] = lambda x: _member(x, "reverse_kl", "top_k_reverse_kl")
ESTIMATOR_FAMILIES["top_k_forward_kl"] = lambda x: _member(x, "forward_kl", "top_k_forward_kl")
ESTIMATOR_FAMILIES["top_k_f_divergence"] = _any_member
ESTIMATOR_FAMILIES["truncated_kl"] = lambda x: _member(x, "reverse_kl", "truncated_kl", tail=False)
