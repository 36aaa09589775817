"""Tensors of the k likeliest tokens of a model: whose tokens, whose numbers at them, and their values.

Log-probs, logits or probabilities at the likeliest tokens of one model are that model's own, or those of
another at the same tokens. A name says which, or the names beside it do; what none of them says is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.auditing.reading.roles import OWNERS, PREFIX, Read, Unread

LIKELIEST, MOST = 2, 3  # tokens of a head: unless they are set, and at most
SIZE = r"(?:.*_)?top_?k(?:_logits_k)?"  # a parameter that says how many
_WORDS = {"logp": "log-probs", "logits": "logits", "probs": "probabilities"}
_TOP = r"_top_?k?(?:_\d+)?(?=_)"
_IDS = r"_(?:(?:token|vocab|vocabulary)_)?(?:id|idx|indice|index|indexe|token)_$"
_SAME = "its tokens are read as the same as those of {}"
_NOBODYS = "it does not say whose likeliest tokens they are"


class Head(NamedTuple):
    """What a tensor of a head holds.

    Attributes:
        quantity: ``"logp"``, ``"logits"``, ``"probs"``, ``"ids"``, or ``"mask"``.
        of: Whose numbers.
        at: Whose likeliest tokens.
    """

    quantity: str
    of: str = "policy"
    at: str = "policy"

    @property
    def role(self) -> str:
        """Its name: ``"ref_topk_logp"``, ``"policy_logp_at_ref_topk"``."""
        if self.quantity == "mask":
            return "topk_mask"
        of, at = (PREFIX[x] or "policy_" for x in (self.of, self.at))
        return f"{of}topk_{self.quantity}" if of == at else f"{of}{self.quantity}_at_{at}topk"

    @property
    def said(self) -> str:
        """In words, with the letter k for the number of tokens."""
        if self.quantity == "mask":
            return "mask of the k likeliest tokens: 1 on each"
        if self.quantity == "ids":
            return f"ids of the k likeliest tokens of {OWNERS[self.at]}"
        if self.of == self.at:
            return f"the k likeliest {_WORDS[self.quantity]} of {OWNERS[self.of]}"
        return f"{_WORDS[self.quantity]} of {OWNERS[self.of]} at the k likeliest tokens of {OWNERS[self.at]}"


_BOTH = ("policy", "reference")
HEADS: dict[str, Head] = {
    head.role: head
    for head in (
        *(Head(q, of, of) for q in (*_WORDS, "ids") for of in OWNERS),
        *(Head(q, of, at) for q in _WORDS for of in _BOTH for at in _BOTH if of != at),
        Head("mask"),
    )
}


def with_size(said: str, k: int) -> str:
    """The words of a head with the number of its tokens in them."""
    if k == 1:
        one = re.sub(r"\bk likeliest (token|log-prob|logit)s\b", r"likeliest \1", said)
        return one.replace("k likeliest probabilities", "likeliest probability")
    return re.sub(r"\bk likeliest\b", f"{k} likeliest", said)


def says_a_head(words: str) -> bool:
    """Whether the words of a name, ``"_teacher_topk_logprob_"``, are of the likeliest tokens."""
    return re.search(_TOP, words) is not None


def read_head(name: str, words: str, read: Callable[[str], Read | Unread]) -> Read | Unread:
    """How the name of a tensor of a head is read.

    Args:
        name: Theirs.
        words: Its words, in the singular.
        read: Reads words that are of no head.
    """
    of, at = words, ""
    if crossed := re.fullmatch(r"(_.+_)(?:at|on)(_.*)", words):
        of, at = crossed[1], re.sub(_TOP, "", crossed[2])
        if not says_a_head(crossed[2]):
            return Unread(name, _NOBODYS)
        if isinstance(read(of), Unread):  # teacher_at_student_topk_log_probs
            of, at = _quantity_in_front(of, at, read)
    bare = re.sub(_TOP, "", of)
    if bare.endswith("_mask_"):
        return _made(name, Head("mask"))
    if bare == "_":
        return Unread(name, "it says how many tokens, or which, and not what of them")
    ids = re.search(_IDS, bare) is not None
    found = read(re.sub(_IDS, "_logp_", bare) if ids else bare)
    quantity = "ids" if ids else ""
    if isinstance(found, Unread):
        return Unread(name, found.why, _of_heads(found.suggestions, quantity))
    head = _plain(found.role)
    if head is None:
        return Unread(name, "only log-probs, logits, probabilities and ids are read of the likeliest tokens")
    head = head._replace(quantity=quantity or head.quantity)
    if at:
        whose = read(f"{at}logp_")
        there = None if isinstance(whose, Unread) or whose.by_default else _plain(whose.role)
        other = {"policy": "reference", "reference": "policy"}.get(head.of, "policy")
        crossing = head._replace(at=there.of if there else other)
        if there is None or found.by_default or crossing.role not in HEADS:
            return Unread(name, _NOBODYS, (crossing.role,) if crossing.role in HEADS else ())
        return _made(name, crossing)
    if found.by_default:
        return Unread(name, _NOBODYS, tuple(head._replace(of=x, at=x).role for x in OWNERS))
    return _made(name, head)


def _quantity_in_front(of: str, at: str, read: Callable[[str], Read | Unread]) -> tuple[str, str]:
    """``_teacher_`` and ``_student_log_prob_`` as ``_teacher_log_prob_`` and ``_student_``."""
    parts = at.strip("_").split("_")
    for i in range(1, len(parts)):
        moved = f"{of}{'_'.join(parts[i:])}_"
        if isinstance(read(moved), Read):
            return moved, f"_{'_'.join(parts[:i])}_"
    return of, at


def _plain(role: str) -> Head | None:
    """The head of a role of a whole distribution, or of one token."""
    for owner in ("reference", "behavior", "policy"):
        quantity = role.removeprefix(PREFIX[owner]).removesuffix("_all")
        if role.startswith(PREFIX[owner]) and quantity in _WORDS:
            return Head(quantity, owner, owner)
    return None


def _of_heads(roles: tuple[str, ...], quantity: str) -> tuple[str, ...]:
    heads = [h for role in roles if (h := _plain(role)) is not None]
    return tuple(dict.fromkeys(h._replace(quantity=quantity or h.quantity).role for h in heads))


def _made(name: str, head: Head, note: str = "") -> Read:
    return Read(name, head.role, head.said, note)


def together(found: list[Read | Unread], mapped: dict[str, str]) -> list[Read | Unread]:
    """What names of heads say together: whose tokens ids are of that do not say it, and numbers at them.

    With ids of the reference's tokens beside it, ``student_topk_logps`` are the student's log-probs at those.

    Args:
        found: How every name was read alone.
        mapped: Roles that the reader has given to other names.
    """
    heads = {i: HEADS[x.role] for i, x in enumerate(found) if isinstance(x, Read) and x.role in HEADS}
    given = [HEADS[r] for r in mapped.values() if r in HEADS]
    values = [h for h in (*heads.values(), *given) if h.quantity in _WORDS]
    said = {h.at for h in (*heads.values(), *given) if h.quantity == "ids" or h.of != h.at}
    out = list(found)
    unsaid = [i for i, x in enumerate(found) if isinstance(x, Unread) and "policy_topk_ids" in x.suggestions]
    owners = said or {h.of for h in values}
    if len(owners) == 1:
        (owner,) = owners
        said = {owner} if unsaid else said
        names = [found[i].name for i, h in heads.items() if h.quantity != "mask" and owner in (h.of, h.at)]
        for i in unsaid:
            out[i] = _made(found[i].name, Head("ids", owner, owner), _SAME.format(" and ".join(names)))
    else:
        roles = tuple(Head("ids", x, x).role for x in OWNERS if x in (owners or _BOTH))
        for i in unsaid:
            out[i] = Unread(found[i].name, _NOBODYS, roles)
    alone = {i: h for i, h in heads.items() if h.quantity in _WORDS and h.of == h.at}
    if len(said) == 1:
        (owner,) = said
        for i, h in alone.items():
            crossing = h._replace(at=owner)
            if h.of != owner and crossing.role in HEADS:
                out[i] = _made(found[i].name, crossing, f"read at the tokens that the ids are of: {owner}'s")
    elif not said and len({h.of for h in values}) > 1:
        for i, h in alone.items():
            names = [x.name for j, x in enumerate(found) if j in alone and j != i]
            others = [h._replace(at=o).role for o in _BOTH if o != h.of and h._replace(at=o).role in HEADS]
            why = f"nothing says whose likeliest tokens it and {' and '.join(names)} are both at"
            out[i] = Unread(found[i].name, why, tuple(others))
    return out


def head_value(role: str, logits: Callable[[str], torch.Tensor], k: int) -> torch.Tensor:
    """The tensor of a head, [batch, seq, k]; ids are int64, a mask is bool.

    Args:
        role: One of `HEADS`.
        logits: Of a model by its prefix, ``""`` or ``"ref"``, [batch, seq, vocab].
        k: Tokens of the head.

    Raises:
        ValueError: as many tokens as the vocabulary has, or more.
    """
    head = HEADS[role]
    likely = logits(PREFIX[head.at].removesuffix("_")).detach().log_softmax(-1)
    if k >= likely.shape[-1]:
        raise ValueError(
            f"k is {k}, expected less than the {likely.shape[-1]} tokens of the world's vocabulary"
        )
    index = likely.topk(k, dim=-1).indices
    if head.quantity == "mask":
        return torch.ones_like(index, dtype=torch.bool)
    if head.quantity == "ids":
        return index
    scores = logits(PREFIX[head.of].removesuffix("_"))
    known = {"logp": scores.log_softmax, "probs": scores.softmax}
    return (known[head.quantity](-1) if head.quantity in known else scores).gather(-1, index)
