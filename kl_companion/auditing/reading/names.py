"""Read what trainers call the inputs of a loss: whose they are, and which quantity.

A name is split into words (``refLogProbs`` is ref, log, prob). Some words say the quantity, some the owner,
some nothing (``per_token``); a name with a word that is none of these is not guessed at.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from kl_companion.auditing.reading.heads import HEADS, read_head
from kl_companion.auditing.reading.roles import ASSUMED, OWNERS, PREFIX
from kl_companion.auditing.reading.roles import Read as Read
from kl_companion.auditing.reading.roles import Unread as Unread

_DATA = tomllib.loads((files(__package__) / "names.toml").read_text("utf-8"))
# quantities of which each owner has one: what it is, and its shape
OWNED: dict[str, tuple[str, str]] = _DATA["owned"]
ROLES: dict[str, str] = {
    **{f"{PREFIX[o]}{q}": f"{w} of {OWNERS[o]}, {s}" for q, (w, s) in OWNED.items() for o in OWNERS},
    **_DATA["roles"],
    **{role: head.said for role, head in HEADS.items()},
    **_DATA["everything"],
}
WORD_KINDS = {kind: frozenset(words.split()) for kind, words in _DATA["words"].items()}
OWNER_OF = {word: owner for owner in OWNERS for word in WORD_KINDS[owner]}
OWNER_OF |= dict.fromkeys(WORD_KINDS["neutral"], "policy")
_GREEK = str.maketrans(_DATA["greek"])
_PARTS = _DATA["words"] | {"answer": _DATA["read"]["answer"]}
_QUANTITIES = [[part.format(**_PARTS) for part in row] for row in _DATA["read"]["quantities"]]
RESULTS: dict[str, Any] = _DATA["results"]
NO_QUANTITY = "no word of it is a quantity: log-probs, logits, mask, rewards, ..."


def words_of(name: str) -> str:
    """Return ``"_ref_log_prob_"`` of ``refLogProbs``: words in the singular and in lower case."""
    parts = re.findall(r"[A-Z]+(?![a-z])s?|[A-Z]?[^\W\d_A-Z]+|\d+", name.translate(_GREEK))
    lower = [p.lower() for p in parts]
    one = [w if w in WORD_KINDS["singular"] else re.sub("(?<=[a-z]{2})(?<!s)s$", "", w) for w in lower]
    joined = re.sub(r"_log_?softmax(?=_)", "_logp_vocab", f"_{'_'.join(one)}_")
    joined = re.sub(r"_log(?=(?:pi|mu)_)", "_logp_", joined)
    if lower[-1:] == ["id"]:  # of a prompt; prompt_ids are the ids of its tokens
        joined = joined.replace("_prompt_id_", "_one_prompt_id_")
    return re.sub(rf"_log(?=_(?:{'|'.join(OWNER_OF)})_)(?!\w*_ratio_)", "_logp", joined)


def _find(pattern: str, words: str) -> re.Match[str] | None:
    return re.search(rf"(?<=_)(?:{pattern})(?=_)" if pattern else "", words)


def owner_of(words: Iterable[str]) -> tuple[str, str]:
    """Return whose the words say it is, "" if they do not, and why that cannot be told."""
    found = [w for w in words if w in OWNER_OF]
    strong = {OWNER_OF[w] for w in found if w not in WORD_KINDS["neutral"]}
    if len(strong) > 1 or {"student", "teacher"} <= set(found):
        return "", f"the words {' and '.join(found)} say two owners"
    return (strong.pop() if strong else "policy" if found else ""), ""


def _misspelled(words: Iterable[str], known: Mapping[str, str]) -> str:
    """Return what the first word that resembles a known one is: ``lgp`` is log-probs."""
    near = (difflib.get_close_matches(w, known, n=1, cutoff=0.8) for w in words if w not in OWNER_OF)
    return next((known[n[0]] for n in near if n), "")


def roles_of(quantity: str, owner: str = "", head: str = "") -> tuple[str, ...]:
    """Return the roles of a quantity, of that owner or of all of them."""
    if quantity == "log_ratio":
        return ("log_ratio", "log_importance_ratio")[1 if _find("importance|is", f"_{head}_") else 0 :]
    if quantity not in OWNED:
        return (quantity,) if quantity else ()
    return tuple(f"{PREFIX[o]}{quantity}" for o in OWNERS if owner in ("", o))


def _without_quantity(name: str, words: list[str], owner: str) -> Unread:
    if len(name) == 1:
        offered = roles_of(_DATA["letters"].get(name, ""))
        return Unread(name, "one letter says neither whose it is nor what", offered)
    guess = _misspelled(words, _DATA["misspelled"])
    offered = roles_of(guess, owner or _misspelled(words, OWNER_OF))
    if owner and not guess and not WORD_KINDS["neutral"].issuperset(words):  # a model alone is no tensor
        offered = tuple(r for q in OWNED for r in roles_of(q, owner))
    return Unread(name, NO_QUANTITY, offered)


def read_name(name: str) -> Read | Unread:
    """Return how one name alone is read; see `read_names` for what only several together tell.

    Args:
        name: Of a parameter or of a key of a batch.
    """
    if name.lower() == "rollout":
        return Read(name, "rollout", ROLES["rollout"])
    words = words_of(name)
    return read_head(name, words, _read_words) or _read_words(words, name)


def _read_words(words: str, name: str = "") -> Read | Unread:
    """Return how the words of a name are read that is of no head."""
    hits = ((q, found, more) for q, head, more in _QUANTITIES if (found := _find(head, words)))
    kind, found, more = next(hits, ("", None, ""))
    head = found.group() if found else ""
    left = words[: found.start()] + words[found.end() :] if found else words
    rest = [w for w in left.split("_") if w]
    owner, two = owner_of(rest)
    if not kind:
        return _without_quantity(name, rest, owner)
    quantity, wide = kind, sorted(WORD_KINDS["vocabulary"].intersection(rest))
    if kind == "logp" and (wide or WORD_KINDS["whole"].intersection(rest)):
        quantity = "logp_all" if wide else "sequence_logp"
    owned = quantity in OWNED
    # an index of tokens, of a batch or of ranks is not one of prompts
    beside = {*more.split(), *([] if kind == "prompt_index" else [*WORD_KINDS["filler"], *OWNER_OF])}
    unknown = [w for w in rest if w not in beside]
    offered = roles_of(quantity, "" if two else owner or _misspelled(unknown, OWNER_OF), head)
    if kind == "completion_mask" and WORD_KINDS["outside"].intersection(rest):
        offered = (*offered, "outside_mask")
    if unknown and (WORD_KINDS["measure"].intersection(unknown) or kind in ("prompt_index", "batch")):
        offered = ()  # a length of it, a flag about it, another index
    not_said = owned and not owner
    refused = _DATA["read"]["refused"]
    whys = [why for pattern, of, why in refused if of in ("", kind) and _find(pattern, words)]
    if owned and two:
        whys.append(two)
    elif not_said and "target" in rest:
        whys.append("a target is the reference to some and the current policy to others")
    elif head in ("logq", "log_q", "lq") and owner != "reference":
        whys.append("q is read as the reference only beside a p of the same spelling")
    elif unknown:
        verb = "is not a word" if len(unknown) == 1 else "are not words"
        whys.append(f"{' and '.join(unknown)} {verb} that is read here beside {quantity}")
    elif not owned and owner == "reference":
        whys.append(f"it belongs to the reference, and {quantity} to no model")
        offered = ()
    elif not_said and {"sampled", "generated"} & {*rest} and "token" not in rest:
        whys.append("it may say by whom they were sampled, or of which tokens they are")
    if whys:
        return Unread(name, whys[0], offered)
    notes = [ASSUMED] * not_said + ["scores are read as rewards, not as logits"] * (head == "score")
    if name not in ROLES and (doubtful := [w for w in wide if w in ("all", "full")]) and owned:
        notes.append(f"{doubtful[0]} is read as the whole vocabulary, not as the whole answer")
    role = roles_of(quantity, owner or "policy")[0]
    said = {"returns": "returns", "score": "rewards", "reward": "rewards"}.get(head, "advantages")
    if kind != "rewards":
        said = f"{OWNED[quantity][0]} of {OWNERS[owner or 'policy']}" if owned else ROLES[role]
    return Read(name, role, said, "; ".join(notes))


def result_of(name: str) -> str:
    """Return what a result of a model is by its name, or by that of the method; "" of another name."""
    words = words_of(name)
    several = "_and_" in words  # a method that returns more than one
    found = (q for q, pattern in RESULTS["words"].items() if re.search(pattern, words) and not several)
    return next(found, "")


def owner_of_model(name: str, *, called: bool = False) -> str:
    """Return whose model a parameter is by its name, ``"reference"`` of ``ref_model``; "" of no model.

    Args:
        name: Of the parameter.
        called: Whether it is called, so that ``reference`` alone is a model.
    """
    words = [w for w in words_of(name).split("_") if w]
    if called and words[-1:] == ["engine"]:  # what trains a model in DeepSpeed
        words[-1] = "model"
    owner, _ = owner_of(words)
    nouns = WORD_KINDS["neutral"] | {"net", "network", "module", "lm", "llm", "teacher", "critic"}
    return owner if (called or nouns.intersection(words)) and {*words} <= nouns | OWNER_OF.keys() else ""
