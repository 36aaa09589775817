"""Read what trainers call the inputs of a loss: whose they are, and which quantity.

A name is split into words (``refLogProbs`` is ref, log, prob). Some words say the quantity, some the owner,
some nothing (``per_token``); a name with a word that is none of these is not guessed at.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from kl_companion.auditing.reading.heads import HEADS, read_head, says_a_head, together
from kl_companion.auditing.reading.roles import ASSUMED, OWNERS, PREFIX
from kl_companion.auditing.reading.roles import Read as Read
from kl_companion.auditing.reading.roles import Unread as Unread
from kl_companion.checks import unknown_name

# quantities of which each owner has one: what it is, and its shape
_OWNED = {
    "logp": ("log-probs", "one per sampled token"),
    "logp_all": ("whole-vocabulary log-probs", "normalized, one per token and entry of the vocabulary"),
    "sequence_logp": ("summed log-probs", "one per answer"),
    "logits": ("logits", "one per token and entry of the vocabulary"),
    "probs": ("whole-vocabulary probabilities", "one per token and entry of the vocabulary"),
    "outputs": ("outputs of a forward pass", "with .logits and log-probs"),
}
ROLES: dict[str, str] = {
    **{f"{PREFIX[o]}{q}": f"{w} of {OWNERS[o]}, {s}" for q, (w, s) in _OWNED.items() for o in OWNERS},
    "log_ratio": "log-ratio of the policy to the reference, logp - ref_logp",
    "log_importance_ratio": "log-ratio of the policy to the policy that sampled, logp - behavior_logp",
    "importance_ratio": "ratio of the policy to the policy that sampled",
    "completion_mask": "mask: 1 on the tokens of the answer, 0 on prompt and padding",
    "sample_mask": "mask of whole answers: 1 for each answer of the batch",
    "entropy": "entropy of the current policy at every token",
    "rewards": "rewards or advantages",
    "tokens": "sampled token ids",
    "input_ids": "token ids of prompt and answer",
    "prompt_ids": "token ids of the prompt",
    "labels": "token ids to predict",
    "prompt_index": "number of the prompt that each answer belongs to",
    "group_size": "how many answers there are to each prompt",
    "batch_size": "how many answers there are",
    "num_tokens": "how many tokens of answers there are, the divisor of the loss",
    "max_length": "largest length of an answer",
    "lengths": "number of tokens of every answer",
    **{role: head.said for role, head in HEADS.items()},
    "rollout": "one `Rollout` that holds everything",
    "batch": "one batch that holds everything",
}

# whose; a neutral word of the policy gives way to another owner's ("reference policy", "old actor")
_WORDS = {
    "neutral": "policy pi model actor agent student learner trainer train training theta",
    "policy": "current cur curr new online active",
    "reference": "ref reference base teacher initial init sft anchor frozen prior",
    "behavior": "old behavior behaviour behave sampler sampling rollout inference infer generation gen prev"
    " generator previous mu vllm sglang engine proximal prox recomputed recompute",
    # neither whose nor what
    "filler": "per token level wise my the local final raw flat packed padded shift shifted aligned gathered"
    " detached response completion action list tensor batch chunk t",
    # what makes another quantity of it
    "vocabulary": "all full vocab vocabulary dist distribution",
    "whole": "seq sequence sum summed total answer trajectory episode",
    "measure": "num n length len size max min count type std use return compute keep scale",
    # in the singular, though they end in s
    "singular": "eos bos has was pos bias previous returns axis",
}
_IN = {kind: frozenset(words.split()) for kind, words in _WORDS.items()}
_OWNER = {word: owner for owner in OWNERS for word in _IN[owner]} | dict.fromkeys(_IN["neutral"], "policy")
_ANSWER = "completion|response|action|sampled|generated|selected|output|answer|next|gen"
# quantity, pattern of the words that name it (in the singular), further words that do not change it;
# the first whose pattern occurs is the quantity
_KINDS = (
    ("log_ratio", r"log\w*_(?:ratio|diff|difference|delta|rho|weight)|log_?(?:ratio|r|rho|w)", ""),
    ("importance_ratio", "(?:importance|is)(?:_sampling)?_(?:ratio|weight)|ratio|rho|iw", "prob"),
    (
        "logp",
        "log_?(?:p|prob|probability|probabilitie|likelihood|lik)|lp|log_?q|lq",
        f"{_WORDS['vocabulary']} {_WORDS['whole']} selected sampled generated target actual",
    ),
    ("logits", "logit", "next vocab target"),
    ("probs", "prob|probability|probabilitie", "vocab vocabulary all full"),
    ("group_size", "group_size|num_generation|num_return_sequence|n_sample_per_prompt", ""),
    ("batch_size", "batch_size|bsz|bs|(?:num|n|global_valid)_(?:sequence|seq|sample)", "global micro mini"),
    ("num_tokens", "(?:num|n|total|global_valid)(?:_valid|_action)?_(?:token|tok|item)", "in global"),
    ("num_tokens", "token_count|normalizer|denominator", "loss global total"),
    ("max_length", f"max_(?:(?:new|seq|sequence|{_ANSWER})_)*(?:token|length|len)", "generate"),
    ("sample_mask", "sample_mask", ""),
    ("lengths", "(?:(?:completion|response|answer|seq|sequence|gen|token)_)?(?:length|len)", ""),
    ("entropy", "entropy|entropie", ""),
    ("outputs", "(?:model_)?output(?!_(?:token|input|id|mask))", ""),
    (
        "completion_mask",
        "mask|loss_multiplier|valid(?!_tok|_mask)",
        "valid attention loss eos assistant generated output answer non not no pad padding",
    ),
    (
        "rewards",
        "reward|score|returns|advantage|adv|a_?hat",
        "outcome sequence seq episode total rm env environment task verifier normalized norm whitened group",
    ),
    ("prompt_index", "(?:prompt|problem|question|query|group)_(?:index|idx|indice|uid)|uid|index", ""),
    ("prompt_index", "(?:problem|question|group|one_prompt)_id|group", ""),
    ("labels", "label|target(?:_token)?(?:_id)?", ""),
    ("input_ids", "(?:query|prompt)_(?:response|completion|answer)(?:_token)?(?:_id)?", ""),
    ("prompt_ids", "(?:prompt|query|question)(?:_token|_input|_id)+", ""),
    ("tokens", f"(?:{_ANSWER})(?:_token)?(?:_input)?(?:_id|_indice)?", ""),
    ("input_ids", "(?:full|all|input|sequence)(?:_token)?_id|input_token|sequence", "concat concatenated"),
    ("tokens", "token(?:_id)?", "sampled selected"),
    (
        "batch",
        "batch|data|input|experience|example|mb|minibatch|microbatch",
        "micro mini proto input data loss fn",
    ),
    ("batch", "rollout|sample|episode|trajectory|trajectorie", ""),
)
_GREEK = str.maketrans({"π": "_pi_", "μ": "_mu_", "µ": "_mu_", "ρ": "_rho_", "θ": "_theta_", "Â": "a_hat"})
_PAIRED = "chosen|rejected|reject|preferred|dispreferred|winner|loser"
_OF_A_PAIR = "it is of a preference pair"
# words that no role survives: pattern, the quantity that it concerns or "" for all, why
_REFUSED = (
    (_PAIRED, "", _OF_A_PAIR),
    ("mean|avg|average", "logp", "it is a mean over tokens, neither one number per token nor their sum"),
    (
        "(?<!non_)(?<!not_)(?<!no_)(?:pad|padding)|ignore|ignored|prompt|query",
        "completion_mask",
        "trainers mark with it what is left out or what is kept, and the name does not say which",
    ),
    ("selected|token|action", "probs", "it may be of the sampled token only, or of the whole vocabulary"),
    ("", "log_ratio", "it does not say of which two policies, nor which of them is divided by"),
)
_MISSPELLED = {"logp": "logp", "logprob": "logp", "logit": "logits", "prob": "probs", "token": "tokens"} | {
    "mask": "completion_mask",
    "reward": "rewards",
    "advantage": "rewards",
}
_NO_QUANTITY = "no word of it is a quantity: log-probs, logits, mask, rewards, ..."
_PAIR = "P is read as the policy and Q as the reference; Schulman's note on KL has them the other way round"


def _words(name: str) -> str:
    """``"_ref_log_prob_"`` of ``refLogProbs``: words in the singular and in lower case."""
    parts = re.findall(r"[A-Z]+(?![a-z])s?|[A-Z]?[^\W\d_A-Z]+|\d+", name.translate(_GREEK))
    lower = [p.lower() for p in parts]
    one = [w if w in _IN["singular"] else re.sub("(?<=[a-z]{2})(?<!s)s$", "", w) for w in lower]
    joined = re.sub(r"_log_?softmax(?=_)", "_logp_vocab", f"_{'_'.join(one)}_")
    joined = re.sub(r"_log(?=(?:pi|mu)_)", "_logp_", joined)
    if lower[-1:] == ["id"]:  # of a prompt; prompt_ids are the ids of its tokens
        joined = joined.replace("_prompt_id_", "_one_prompt_id_")
    return re.sub(rf"_log(?=_(?:{'|'.join(_OWNER)})_)(?!\w*_ratio_)", "_logp", joined)


def _find(pattern: str, words: str) -> re.Match[str] | None:
    return re.search(rf"(?<=_)(?:{pattern})(?=_)" if pattern else "", words)


def _owner(words: Iterable[str]) -> tuple[str, str]:
    """Whose the words say it is, "" if they do not, and why that cannot be told."""
    found = [w for w in words if w in _OWNER]
    strong = {_OWNER[w] for w in found if w not in _IN["neutral"]}
    if len(strong) > 1 or {"student", "teacher"} <= set(found):
        return "", f"the words {' and '.join(found)} say two owners"
    return (strong.pop() if strong else "policy" if found else ""), ""


def _misspelled(words: Iterable[str], known: Mapping[str, str]) -> str:
    """What the first word that resembles a known one is: ``refernce`` the reference, ``lgp`` log-probs."""
    near = (difflib.get_close_matches(w, known, n=1, cutoff=0.8) for w in words if w not in _OWNER)
    return next((known[n[0]] for n in near if n), "")


def _roles(quantity: str, owner: str = "", head: str = "") -> tuple[str, ...]:
    """The roles of the quantity, of that owner or of all of them."""
    if quantity == "log_ratio":
        return ("log_ratio", "log_importance_ratio")[1 if _find("importance|is", f"_{head}_") else 0 :]
    if quantity not in _OWNED:
        return (quantity,) if quantity else ()
    return tuple(f"{PREFIX[o]}{quantity}" for o in OWNERS if owner in ("", o))


def _without_quantity(name: str, words: list[str], owner: str) -> Unread:
    if len(name) == 1:
        offered = _roles("probs") if name in "pq" else ()
        return Unread(name, "one letter says neither whose it is nor what", offered)
    guess = _misspelled(words, _MISSPELLED)
    offered = _roles(guess, owner or _misspelled(words, _OWNER))
    if owner and not guess and not _IN["neutral"].issuperset(words):  # a model alone is no tensor
        offered = tuple(r for q in _OWNED for r in _roles(q, owner))
    return Unread(name, _NO_QUANTITY, offered)


def read_name(name: str) -> Read | Unread:
    """How one name alone is read; see `read_names` for what only several together tell.

    Args:
        name: Of a parameter or of a key of a batch.
    """
    if name.lower() == "rollout":
        return Read(name, "rollout", ROLES["rollout"])
    words = _words(name)
    return read_head(name, words, _read_words) if says_a_head(words) else _read_words(words, name)


def _read_words(words: str, name: str = "") -> Read | Unread:
    """How the words of a name are read that is of no head."""
    hits = ((q, found, more) for q, head, more in _KINDS if (found := _find(head, words)))
    kind, found, more = next(hits, ("", None, ""))
    head = found.group() if found else ""
    left = words[: found.start()] + words[found.end() :] if found else words
    rest = [w for w in left.split("_") if w]
    owner, two = _owner(rest)
    if not kind:
        return _without_quantity(name, rest, owner)
    quantity, wide = kind, sorted(_IN["vocabulary"].intersection(rest))
    if kind == "logp" and (wide or _IN["whole"].intersection(rest)):
        quantity = "logp_all" if wide else "sequence_logp"
    owned = quantity in _OWNED
    # an index of tokens, of a batch or of ranks is not one of prompts
    beside = {*more.split(), *([] if kind == "prompt_index" else [*_IN["filler"], *_OWNER])}
    unknown = [w for w in rest if w not in beside]
    offered = _roles(quantity, "" if two else owner or _misspelled(unknown, _OWNER), head)
    if unknown and (_IN["measure"].intersection(unknown) or kind in ("prompt_index", "batch")):
        offered = ()  # a length of it, a flag about it, another index
    not_said = owned and not owner
    whys = [why for pattern, of, why in _REFUSED if of in ("", kind) and _find(pattern, words)]
    if owned and two:
        whys.append(two)
    elif not_said and "target" in rest:
        whys.append("a target is the reference to some and the current policy to others")
    elif head in ("logq", "log_q", "lq"):
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
    role = _roles(quantity, owner or "policy")[0]
    said = {"returns": "returns", "score": "rewards", "reward": "rewards"}.get(head, "advantages")
    if kind != "rewards":
        said = f"{_OWNED[quantity][0]} of {OWNERS[owner or 'policy']}" if owned else ROLES[role]
    return Read(name, role, said, "; ".join(notes))


def _as_pairs(found: list[Read | Unread]) -> list[Read | Unread]:
    """``logp`` and ``logq`` together are the policy and the reference."""
    at = {item.name.lower(): i for i, item in enumerate(found)}
    out = list(found)
    for i, item in enumerate(found):
        p = at.get(re.sub(r"^(log_?|l)q(?=_|$)", r"\1p", item.name.lower()), i)
        other = found[p]
        if p != i and isinstance(other, Read) and other.note.startswith(ASSUMED):
            out[p] = other._replace(note=_PAIR)
            said = f"{_OWNED[other.role][0]} of {OWNERS['reference']}"
            out[i] = Read(item.name, f"ref_{other.role}", said, _PAIR)
    return out


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
    found = together(_as_pairs([read_name(n) for n in names if n not in mapped]), dict(mapped))
    reads = [r for r in found if isinstance(r, Read)]
    unread = [u for u in found if isinstance(u, Unread)]
    given = [Read(n, r, ROLES[r], "as mapped") for n, r in mapped.items()]
    sharing: dict[str, list[str]] = {}
    for r in [*reads, *given]:
        sharing.setdefault(r.role, []).append(r.name)
    kept = list(given)
    for r in reads:
        others = [n for n in sharing[r.role] if n != r.name]
        if not others or r.role in ("completion_mask", "topk_mask"):
            kept.append(r)
        elif r.role.startswith("behavior_"):
            kept.append(r._replace(note=f"as {' and '.join(others)}: here one policy has sampled and is old"))
        else:
            why = f"{' and '.join([r.name, *others])} are read as the same: {r.said}"
            assumed = r.note.startswith((ASSUMED, _PAIR))
            quantity = r.role.removeprefix("ref_")
            unread.append(Unread(r.name, why, _roles(quantity) if assumed else (r.role,)))
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
    if any(u.why == _OF_A_PAIR for u in unread):
        return ValueError(_of_pairs(function, [u.name for u in unread if u.why == _OF_A_PAIR]))
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
        owned = f"each of {', '.join(_OWNED)}, with ref_ or behavior_ in front for the other two models"
        rest = [r for r in ROLES if r not in HEADS and not any(r.endswith(q) for q in _OWNED)]
        heads = (
            "of the k likeliest tokens ref_topk_logp, _logits, _probs and _ids, likewise policy_topk_ and "
        )
        heads += "behavior_topk_, policy_logp_at_ref_topk, ref_logp_at_policy_topk, topk_mask"
        lines += textwrap.wrap(
            f"All roles: {owned}; {', '.join(rest)}; {heads}.", 100, subsequent_indent="  "
        )
    return UnclearNames("\n".join(lines), unread)


def _of_pairs(function: str, names: Sequence[str]) -> str:
    """What is said of a loss of preference pairs, and what to do instead."""
    lines = [
        *textwrap.wrap(f"{function} is a loss of preference pairs: {', '.join(names)}.", 100),
        "The audit does not judge it. An audit draws answers from a policy and compares gradients with",
        "those of divergences between two policies. A preference loss is fitted to ranked pairs of a data",
        "set: what it minimizes depends on that data, and no divergence can be named for it.",
        "What you can do instead:",
        "  If a KL or SFT term stands beside it, move that term to a function of logp, ref_logp and mask,",
        "    and audit that function.",
        "  DPO is derived from the maximum of E[reward] - beta * reverse KL of whole answers. To see that",
        "    policy: kl_companion.optimal_policy(rewards, ref_logp, 'reverse_kl', beta).",
    ]
    if not any(re.search("reject|dispreferred|loser", n.lower()) for n in names):
        role = read_name(re.sub(_PAIRED, "", names[0]))
        meant = role.role if isinstance(role, Read) else "logp"
        lines.append(
            f"If it is the token that was chosen by sampling, and no pair: --map {names[0]}={meant}."
        )
    return "\n".join(lines)
