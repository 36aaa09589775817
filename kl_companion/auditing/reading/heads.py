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

    def read_as(self, name: str, note: str = "") -> Read:
        """Return how a name of it is read."""
        return Read(name, self.role, self.said, note)


_BOTH = ("policy", "reference")
_OWN = {(q, o): Head(q, o, o) for q in (*_WORDS, "ids") for o in OWNERS}
_CROSSED = [Head(q, of, at) for q in _WORDS for of in _BOTH for at in _BOTH if of != at]
HEADS: dict[str, Head] = {head.role: head for head in (*_OWN.values(), *_CROSSED, Head("mask"))}
# of roles of a whole distribution, or of one token: what they are at the likeliest tokens
_AT_LIKELIEST = {f"{PREFIX[o]}{q}{s}": _OWN[q, o] for q in _WORDS for o in OWNERS for s in ("", "_all")}


def with_size(said: str, k: int) -> str:
    """Return the words of a head with the number of its tokens in them."""
    if k == 1:
        one = re.sub(r"\bk likeliest (token|log-prob|logit)s\b", r"likeliest \1", said)
        return one.replace("k likeliest probabilities", "likeliest probability")
    return re.sub(r"\bk likeliest\b", f"{k} likeliest", said)


def read_head(name: str, words: str, read: Callable[[str], Read | Unread]) -> Read | Unread | None:
    """Return how the name of a tensor of a head is read; None of another name.

    Args:
        name: Theirs.
        words: Its words, in the singular: ``"_teacher_topk_logprob_"``.
        read: Reads words that are of no head.
    """
    if re.search(_TOP, words) is None:
        return None
    crossed = re.fullmatch(r"(_.+_)(?:at|on)(_.*)", words)
    of, at = crossed.groups() if crossed else (words, "")
    if crossed and re.search(_TOP, at) is None:
        return Unread(name, _NOBODYS)
    at = re.sub(_TOP, "", at)
    parts = at.strip("_").split("_") if crossed and isinstance(read(of), Unread) else []
    for i in range(1, len(parts)):  # _teacher_at_student_log_prob_ as _teacher_log_prob_at_student_
        moved = f"{of}{'_'.join(parts[i:])}_"
        if isinstance(read(moved), Read):
            of, at = moved, f"_{'_'.join(parts[:i])}_"
            break
    bare = re.sub(_TOP, "", of)
    if bare.endswith("_mask_"):
        return Head("mask").read_as(name)
    if bare == "_":
        return Unread(name, "it says how many tokens, or which, and not what of them")
    values = re.sub(_IDS, "_logp_", bare)
    found = read(values)
    roles = found.suggestions if isinstance(found, Unread) else (found.role,)
    heads = [_AT_LIKELIEST[role] for role in roles if role in _AT_LIKELIEST]
    heads = [_OWN["ids", h.of] if values != bare else h for h in heads]
    if isinstance(found, Unread):
        return Unread(name, found.why, tuple(dict.fromkeys(h.role for h in heads)))
    if not heads:
        return Unread(name, "only log-probs, logits, probabilities and ids are read of the likeliest tokens")
    (head,) = heads
    if at:
        whose = read(f"{at}logp_")
        named = isinstance(whose, Read) and not whose.by_default and whose.role in _AT_LIKELIEST
        other = "reference" if head.of == "policy" else "policy"
        head = head._replace(at=_AT_LIKELIEST[whose.role].of if named and isinstance(whose, Read) else other)
        offered = [head] if head.role in HEADS else []
    else:
        named, offered = True, [_OWN[head.quantity, o] for o in OWNERS]
    if found.by_default or not named or head.role not in HEADS:
        return Unread(name, _NOBODYS, tuple(h.role for h in offered))
    return head.read_as(name)


def together(found: list[Read | Unread], mapped: dict[str, str]) -> list[Read | Unread]:
    """Read names of heads beside each other: ids that do not say whose tokens, and numbers at them.

    With ids of the reference's tokens beside it, ``student_topk_logps`` are the student's log-probs at those.

    Args:
        found: How every name was read alone.
        mapped: Roles that the reader has given to other names.
    """
    heads = {i: HEADS[x.role] for i, x in enumerate(found) if isinstance(x, Read) and x.role in HEADS}
    heads |= {-1 - i: HEADS[role] for i, role in enumerate(mapped.values()) if role in HEADS}
    unsaid = [i for i, x in enumerate(found) if isinstance(x, Unread) and "policy_topk_ids" in x.suggestions]
    of = {h.of for h in heads.values() if h.quantity in _WORDS}
    at = {h.at for h in heads.values() if h.quantity == "ids" or h.of != h.at}
    owners = at or of
    if len(owners) == 1 and unsaid:
        at = owners
    out = list(found)
    for i in unsaid:
        ids = [_OWN["ids", o] for o in OWNERS if o in (owners or _BOTH)]
        same = [
            found[j].name
            for j, h in heads.items()
            if j >= 0 and h.quantity != "mask" and owners & {h.of, h.at}
        ]
        note = f"its tokens are read as the same as those of {' and '.join(same)}"
        refused = Unread(found[i].name, _NOBODYS, tuple(h.role for h in ids))
        out[i] = ids[0].read_as(found[i].name, note) if len(owners) == 1 else refused
    alone = [i for i, h in heads.items() if i >= 0 and h.quantity in _WORDS and h.of == h.at]
    for i in alone:
        crossings = {h.at: h for h in _CROSSED if (h.quantity, h.of) == (heads[i].quantity, heads[i].of)}
        if len(at) == 1 and (crossing := crossings.get(min(at))):
            out[i] = crossing.read_as(
                found[i].name, f"read at the tokens that the ids are of: {crossing.at}'s"
            )
        elif not at and len(of) > 1:
            names = " and ".join(found[j].name for j in alone if j != i)
            why = f"nothing says whose likeliest tokens it and {names} are both at"
            out[i] = Unread(found[i].name, why, tuple(h.role for h in crossings.values()))
    return out


def head_value(role: str, logits: Callable[[str], torch.Tensor], k: int) -> torch.Tensor:
    """Return the tensor of a head, [batch, seq, k]; ids are int64, a mask is bool.

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
    if head.quantity in ("mask", "ids"):
        return torch.ones_like(index, dtype=torch.bool) if head.quantity == "mask" else index
    scores = logits(PREFIX[head.of].removesuffix("_"))
    known = {"logp": scores.log_softmax, "probs": scores.softmax}
    return (known[head.quantity](-1) if head.quantity in known else scores).gather(-1, index)
