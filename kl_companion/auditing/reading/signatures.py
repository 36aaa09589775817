"""Read the names of one signature or batch together, and refuse what they do not say."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kl_companion.auditing.reading.heads import HEADS, together
from kl_companion.auditing.reading.names import (
    NO_QUANTITY,
    OWNED,
    OWNER_OF,
    ROLES,
    WORD_KINDS,
    owner_of,
    read_name,
    roles_of,
    words_of,
)
from kl_companion.auditing.reading.roles import ASSUMED, OWNERS, PREFIX, Read, Unread
from kl_companion.checks import unknown_name

_PAIR = "P is read as the policy and Q as the reference; Schulman's note on KL has them the other way round"
_ALL_ROLES = (
    "All roles: each of {owned}, with ref_ or behavior_ in front for the other two models; {rest}; of the k "
    "likeliest tokens ref_topk_logp, _logits, _probs and _ids, likewise policy_topk_ and behavior_topk_, "
    "policy_logp_at_ref_topk, ref_logp_at_policy_topk, topk_mask."
)
_BESIDE = "read as {} because {} stands beside it"


def _in_company(names: Sequence[str]) -> list[Read | Unread]:
    """Read every name beside the others: some say only together whose they are, or which quantity."""
    spelled = {f"_{n.lower()}_" for n in names}
    found = []
    for name in names:
        words, model = f"_{name.lower()}_", ""
        for letter, other, owner in (("s", "t", "student"), ("t", "s", "teacher")):
            if f"_{letter}_" in words and words.replace(f"_{letter}_", f"_{other}_", 1) in spelled:
                model = owner
        read = read_name(re.sub("(?<=_)[st](?=_)", model, words, count=1) if model else name)
        found.append(read._replace(name=name))
    return _targets(_samplers(_siblings(_as_pairs(found))))


def _of_owner(name: str, quantity: str, owner: str, note: str) -> Read:
    """Return a name as a quantity of a model, with what was assumed."""
    return Read(name, f"{PREFIX[owner]}{quantity}", f"{OWNED[quantity][0]} of {OWNERS[owner]}", note)


def _as_pairs(found: list[Read | Unread]) -> list[Read | Unread]:
    """``logp`` and ``logq`` together are the policy and the reference."""
    at = {item.name.lower(): i for i, item in enumerate(found)}
    out = list(found)
    for i, item in enumerate(found):
        p = at.get(re.sub(r"^(log_?|l)q(?=_|$)", r"\1p", item.name.lower()), i)
        other = found[p]
        if p != i and isinstance(other, Read) and other.note.startswith(ASSUMED):
            out[p] = other._replace(note=_PAIR)
            out[i] = _of_owner(item.name, other.role, "reference", _PAIR)
    return out


def _siblings(found: list[Read | Unread]) -> list[Read | Unread]:
    """A name that says only whose it is has the quantity of the one beside it: ``seq_ref``, ``seq_logp``."""
    owned = {r.name: q for r in found if isinstance(r, Read) for q in OWNED if r.role in roles_of(q)}
    out = list(found)
    for i, item in enumerate(found):
        words = {w for w in words_of(item.name).split("_") if w}
        whose = {w for w in words if w in OWNER_OF}
        owner, _ = owner_of(whose)
        if isinstance(item, Read) or item.why != NO_QUANTITY or not owner or whose <= WORD_KINDS["neutral"]:
            continue
        same = words - whose
        like = {n: q for n, q in owned.items() if same <= {*words_of(n).split("_"), *WORD_KINDS["filler"]}}
        if len({*like.values()}) == 1 and not words & {"model", "policy"}:
            name, quantity = next(iter(like.items()))
            out[i] = _of_owner(item.name, quantity, owner, _BESIDE.format(OWNED[quantity][0], name))
    return out


def _samplers(found: list[Read | Unread]) -> list[Read | Unread]:
    """Beside ``current_logps``, plain ``logps`` or ``policy_logps`` are those of the policy that sampled."""
    out = list(found)
    roles = [x.role for x in found if isinstance(x, Read)]
    for quantity in OWNED:
        own = [r for r in found if isinstance(r, Read) and r.role == quantity]
        said = [r for r in own if WORD_KINDS["policy"] & {*words_of(r.name).split("_")}]
        if len(own) == 2 and len(said) == 1 and f"behavior_{quantity}" not in roles:
            other = own[own[0] == said[0]]
            note = _BESIDE.format("the sampler's", said[0].name)
            out[found.index(other)] = _of_owner(other.name, quantity, "behavior", note)
    return out


def _targets(found: list[Read | Unread]) -> list[Read | Unread]:
    """Beside advantages, returns are what a critic is trained to predict."""
    rewards = [r for r in found if isinstance(r, Read) and r.role == "rewards"]
    returns = [r for r in rewards if "_return" in words_of(r.name)]
    advantages = [r for r in rewards if "_adv" in words_of(r.name)]
    if not (advantages and returns):
        return found
    note = f"read as what a critic predicts because {advantages[0].name} stands beside it"
    return [r._replace(role="values", said=ROLES["values"], note=note) if r in returns else r for r in found]


def _check_mapped(names: Sequence[str], mapped: Mapping[str, str]) -> None:
    for name, role in mapped.items():
        if name not in names:
            raise unknown_name("parameter in roles:", name, names)
        if role not in ROLES:
            meant = read_name(str(role))
            near = (meant.role,) if isinstance(meant, Read) else meant.suggestions
            if near:
                raise ValueError(f"{name} is mapped to {role!r}, expected a role: {' or '.join(near[:3])}")
            raise unknown_name(f"role that {name} is mapped to:", str(role), ROLES)


def read_names(
    names: Sequence[str], mapped: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[Read], list[Unread]]:
    """How the names are read together: what two of them claim at once is not decided.

    Several names may be the policy that sampled (``old_log_probs`` and ``rollout_log_probs``), and several
    the mask.

    Args:
        names: Of the parameters of one function, or of the keys of one batch.
        mapped: {name: role} for those that the reader has decided.

    Raises:
        ValueError: `mapped` has a name that is not among `names`, or a role that there is not.
    """
    _check_mapped(names, mapped)
    found = together(_in_company([n for n in names if n not in mapped]), dict(mapped))
    reads = [r for r in found if isinstance(r, Read)]
    unread = [u for u in found if isinstance(u, Unread)]
    kept = [Read(n, r, ROLES[r], "as mapped") for n, r in mapped.items()]
    everything = [*reads, *kept]
    for r in reads:
        others = [x.name for x in everything if x.role == r.role and x.name != r.name]
        if not others or r.role in ("completion_mask", "topk_mask", "values", "states"):
            kept.append(r)
        elif r.role.startswith("behavior_"):
            kept.append(r._replace(note=f"as {' and '.join(others)}: here one policy has sampled and is old"))
        else:
            why = f"{' and '.join([r.name, *others])} are read as the same: {r.said}"
            assumed = r.note.startswith((ASSUMED, _PAIR))
            roles = roles_of(r.role.removeprefix("ref_")) if assumed else (r.role,)
            unread.append(Unread(r.name, why, roles))
    taken = {r.role for r in kept if not r.role.startswith(("behavior_", "completion_mask"))}
    unread = [u._replace(suggestions=tuple(r for r in u.suggestions if r not in taken)) for u in unread]
    order = {n: i for i, n in enumerate(names)}
    return sorted(kept, key=lambda r: order[r.name]), sorted(unread, key=lambda u: order[u.name])


class UnclearNames(ValueError):
    """Parameters that were not read; ``unread`` says of each why, and which roles fit."""

    def __init__(self, message: str, unread: Sequence[Unread]) -> None:
        super().__init__(message)
        self.unread = tuple(unread)


def refusal(function: str, unread: Sequence[Unread]) -> ValueError:
    """The error for parameters that were not read: which, why, and what to write instead.

    Args:
        function: Its name, for the message.
        unread: What `read_names` did not read.
    """
    lines = [f"{function} has parameters whose meaning is not clear:"]
    lines += [f"  {u.name}: {u.why}" for u in unread]
    first = {u.name: u.suggestions[0] if len(u.suggestions) == 1 else "ROLE" for u in unread}
    shell = " ".join(f"--map {n}={r}" for n, r in first.items())
    python = ", ".join(f'"{n}": "{r}"' for n, r in first.items())
    lines += [f"Say what they are: {shell} on the command line, roles={{{python}}} in Python."]
    fitting = [r for r in ROLES if any(r in u.suggestions for u in unread)]
    if fitting:
        lines += ["Roles that fit:", *(f"  {r}: {ROLES[r]}" for r in fitting[:6])]
    if len(fitting) > 6 or any(not u.suggestions for u in unread):
        rest = [r for r in ROLES if r not in HEADS and not any(r.endswith(q) for q in OWNED)]
        words = _ALL_ROLES.format(owned=", ".join(OWNED), rest=", ".join(rest))
        lines += textwrap.wrap(words, 100, subsequent_indent="  ")
    return UnclearNames("\n".join(lines), unread)
