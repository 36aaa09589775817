"""Objectives of next-token distributions that are cut, mixed or heated, and means over each answer.

Distillation often sums over the k likeliest tokens of the teacher or of the student. What is done with the
others decides what such a sum is: with all of them in one bucket, or with the head renormalized, it is a
divergence of coarser distributions; a plain sum over the head is none, and ``clamped`` it counts only where
it is positive; ``cropped`` renormalizes the head of the reference alone. Logits may be divided by a
temperature, and policy or reference mixed with a share of the other. ``sampled_mean`` divides by the length
of the sequence that was sampled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.worlds.divergences import EFFECTS, TEXTS, divergence_phrase
from kl_companion.auditing.worlds.objective import OBJECTIVES, Objective, Product, make_objective

MASSES = 2  # of heads of up to two tokens, the masses are tried for every loss that reads them
HEADS: dict[str, dict[str, Any]] = TEXTS["heads"]  # what may be done with the tokens outside a head
PLAIN = {"reverse_kl": "reverse KL", "forward_kl": "forward KL", "jensen_shannon": "Jensen-Shannon"}
# mixtures and the divergence that each is a kind of
MIXED = {
    "generalized_jensen_shannon": "jensen_shannon",
    "skewed_forward_kl": "forward_kl",
    "skewed_reverse_kl": "reverse_kl",
}
_NAME = re.compile(
    rf"(?:token|(sampled_mean))_(?:({'|'.join(HEADS)})_)?({'|'.join((*PLAIN, *MIXED))})(?:\(([\d./e+-]+)\))?"
    r"(?:_(policy|reference)_top_([1-9]\d*))?(?:_at_temperature_([\d./e+-]+))?"
)


class NextToken(NamedTuple):
    """A divergence of next tokens.

    Attributes:
        kind: Name of a divergence, or of a family of mixtures.
        share: Parameter of the family; 0 for a divergence.
        temperature: What the logits of both distributions are divided by.
        mean: Whether it is divided by the length of the sequence that was sampled.
        how: What is done with the tokens outside a head, or ``"whole"``.
        whose: Whose k likeliest tokens are the head, ``"policy"`` or ``"reference"``.
        k: How many.
    """

    kind: str
    share: float = 0.0
    temperature: float = 1.0
    mean: bool = False
    how: str = "whole"
    whose: str = "policy"
    k: int = 0

    @property
    def name(self) -> str:
        """Name of the objective."""
        share = f"({_text(self.share)})" if self.share else ""
        cut, head = (f"{self.how}_", f"_{self.whose}_top_{self.k}") if self.k else ("", "")
        hot = "" if self.temperature == 1 else f"_at_temperature_{_text(self.temperature)}"
        return f"{'sampled_mean' if self.mean else 'token'}_{cut}{self.kind}{share}{head}{hot}"

    @property
    def _texts(self) -> dict[str, str]:
        """A sentence about it, and a few words for it."""
        phrase = divergence_phrase(f"{self.kind}({_text(self.share)})" if self.share else self.kind)
        hot = "" if self.temperature == 1 else f" at temperature {_text(self.temperature)}"
        values = {
            **self._asdict(),
            "phrase": phrase,
            "name": PLAIN[self.kind] if self.k else phrase.partition(",")[0],
            "hot": hot,
            "both": f"both distributions{hot}, " if hot else "",
            "rest": HEADS.get(self.how),
            "these": _these(self.k),
        }
        texts = TEXTS["next_tokens"]["mean_" * self.mean + ("head" if self.k else "whole")]
        return {n: text.format(**values) for n, text in texts.items()}

    def each(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Return the divergence of log-probs of policy and reference, [..., vocab] -> [...]."""
        if self.temperature != 1:
            p, q = ((x / self.temperature).log_softmax(-1) for x in (p, q))
        if self.k:
            index = _likeliest(p if self.whose == "policy" else q, self.k)
            p = _head(p, index, "truncated" if self.how == "cropped" else self.how)
            q = _head(q, index, "conditional" if self.how == "cropped" else self.how)
        each = _divergence(self.kind, p, q, self.share)
        return each.clamp_min(0) if self.how == "clamped" else each

    @property
    def term(self) -> Product:
        """Its exact value from the rollout that lists every sequence once, as a function."""
        return Product("sampler", "next", self.each, per_length=self.mean)

    def objective(self) -> Objective:
        """Return it with its words."""
        row = HEADS.get(self.how, {"effect": EFFECTS["any"]})
        effect = _moving(row.get("moves", {}).get(self.kind))
        return make_objective(
            self.name,
            self.term.scalar,
            source="this book",
            heads_only=True,
            lengths_only=self.mean,
            cut=True,
            **self._texts,
            **({"effect": row["effect"]} if "effect" in row else effect),
        )


def _moving(effect: str | None) -> dict[str, str]:
    """Return the effect of a sum that is no divergence, and that of its opposite."""
    pairs = {"pulls": "pushes", "pushes": "pulls"}
    return {"effect": EFFECTS[effect], "opposite": EFFECTS[pairs[effect]]} if effect else {"opposite": ""}


def _text(x: float) -> str:
    short = repr(x).removesuffix(".0")
    return short if len(short) <= 8 else str(Fraction(x).limit_denominator(10**6))


def _these(k: int) -> str:
    return "likeliest token" if k == 1 else f"{k} likeliest tokens"


def _likeliest(logp_all: torch.Tensor, k: int) -> torch.Tensor:
    return logp_all.detach().topk(k, dim=-1).indices


def _head(logp_all: torch.Tensor, index: torch.Tensor, how: str) -> torch.Tensor:
    head = logp_all.gather(-1, index)
    if how in ("truncated", "clamped"):
        return head
    inside = head.logsumexp(-1, keepdim=True)
    if how == "conditional":
        return head - inside
    return torch.cat([head, (-inside.expm1()).log()], -1)


def _divergence(kind: str, p: torch.Tensor, q: torch.Tensor, share: float) -> torch.Tensor:
    """Return a KL from one distribution to the other or to a mixture; for Jensen-Shannon, two of them."""
    first, second = (p, q) if "reverse" in kind else (q, p)
    share = 0.5 if kind == "jensen_shannon" else share
    middle = second
    if share:
        middle = torch.logaddexp(first + math.log(share), second + math.log(1 - share))
    if "jensen_shannon" in kind:
        return share * _kl(first, middle) + (1 - share) * _kl(second, middle)
    return _kl(first, middle)


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum(-1)


def _cuts(head: int) -> Iterator[NextToken]:
    """All of a head of some tokens, and the means over each answer of whole distributions."""
    for whose in ("policy", "reference") if head else ():
        for mean in (False, True):
            for how, row in HEADS.items():
                if head >= row.get("least", 1) and (row.get("means") or not mean):
                    yield from (NextToken(x, mean=mean, how=how, whose=whose, k=head) for x in row["of"])
    for kind in PLAIN:
        yield NextToken(kind, mean=True)


def cut_objectives(head: int = 0, *, lengths: bool = True) -> dict[str, Objective]:
    """The objectives of a head.

    Args:
        head: Its number of tokens; 0 for those that frameworks have, in a vocabulary of three tokens.
        lengths: Whether the lengths of sequences vary.
    """
    found = {} if head else {n: OBJECTIVES[n] for n in TEXTS["frameworks"]["cuts"]}
    found |= {c.name: c.objective() for c in _cuts(head)}
    masses = mass_objectives(head) if head > MASSES else {}
    return {n: o for n, o in found.items() if lengths or not o.lengths_only} | masses


def mass_objectives(k: int) -> dict[str, Objective]:
    """The policy's probability of the policy's, and of the reference's, k likeliest tokens, by name."""

    def mass(p: torch.Tensor, q: torch.Tensor, whose: str) -> torch.Tensor:
        return p.gather(-1, _likeliest(p if whose == "policy" else q, k)).exp().sum(-1)

    found = [
        make_objective(
            f"token_{prefix}top_{k}_mass",
            Product("sampler", "next", partial(mass, whose=whose)).scalar,
            source="this book",
            heads_only=True,
            cut=k > MASSES,
            **{n: text.format(whose=whose, these=_these(k)) for n, text in TEXTS["mass"].items()},
            **_moving("pushes"),
        )
        for whose, prefix in (("policy", ""), ("reference", "reference_"))
    ]
    return {o.name: o for o in found}


def _named(name: str) -> Objective | None:
    """Return the objective that a name says."""
    if mass := re.fullmatch(r"token_(?:reference_)?top_([1-9]\d*)_mass", name):
        return mass_objectives(int(mass[1]))[name]
    if (parts := _NAME.fullmatch(name)) is None:
        return None
    mean, how, kind, share, whose, k, hot = parts.groups()
    if (how is None) != (k is None):
        return None
    numbers = float(Fraction(share or 0)), float(Fraction(hot or 1))
    found = NextToken(kind, *numbers, bool(mean), how or "whole", whose or "policy", int(k or 0))
    return found.objective() if found.name == name else None


OBJECTIVES.makers.insert(0, _named)
