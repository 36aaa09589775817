"""Read what trainers call the inputs of a loss: whose they are, and which quantity.

A name is split into words (``refLogProbs`` is ref, log, prob). Some words say the quantity, some the owner,
some nothing (``per_token``); a name with a word that is none of these is not guessed at.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from kl_companion.auditing.reading.heads import HEADS, read_head, says_a_head
from kl_companion.auditing.reading.roles import ASSUMED, OWNERS, PREFIX
from kl_companion.auditing.reading.roles import Read as Read
from kl_companion.auditing.reading.roles import Unread as Unread

# quantities of which each owner has one: what it is, and its shape
OWNED = {
    "logp": ("log-probs", "one per sampled token"),
    "logp_all": ("whole-vocabulary log-probs", "normalized, one per token and entry of the vocabulary"),
    "sequence_logp": ("summed log-probs", "one per answer"),
    "logits": ("logits", "one per token and entry of the vocabulary"),
    "probs": ("whole-vocabulary probabilities", "one per token and entry of the vocabulary"),
    "outputs": ("outputs of a forward pass", "with .logits and log-probs"),
}
ROLES: dict[str, str] = {
    **{f"{PREFIX[o]}{q}": f"{w} of {OWNERS[o]}, {s}" for q, (w, s) in OWNED.items() for o in OWNERS},
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
    "prompt_length": "number of tokens of the prompt",
    **{role: head.said for role, head in HEADS.items()},
    "rollout": "one `Rollout` that holds everything",
    "batch": "one batch that holds everything",
}

# whose; a neutral word of the policy gives way to another owner's ("reference policy", "old actor")
_WORDS = {
    "neutral": "policy pol pi model actor agent student learner trainer train training theta",
    "policy": "current cur curr new online active",
    "reference": "ref reference base teacher initial init sft anchor frozen prior ema",
    "behavior": "old behavior behaviour behave sampler sampling rollout inference infer generation gen prev"
    " generator previous mu vllm sglang engine proximal prox recomputed recompute",
    # neither whose nor what
    "filler": "per token level wise my the local final raw flat packed padded shift shifted aligned gathered"
    " detached response completion action list tensor batch chunk t array arr b bt np of from under by"
    " masked",
    # what makes another quantity of it
    "vocabulary": "all full vocab vocabulary dist distribution",
    "whole": "seq sequence sum summed total answer trajectory traj episode",
    "measure": "num n length len size max min count type std use return compute keep scale neg",
    # in the singular, though they end in s
    "singular": "eos bos has was pos bias previous returns axis is tis mis",
}
WORD_KINDS = {kind: frozenset(words.split()) for kind, words in _WORDS.items()}
OWNER_OF = {word: owner for owner in OWNERS for word in WORD_KINDS[owner]}
OWNER_OF |= dict.fromkeys(WORD_KINDS["neutral"], "policy")
_ANSWER = "completion|response|action|sampled|generated|selected|output|answer|next|gen"
# quantity, pattern of the words that name it (in the singular), further words that do not change it;
# the first whose pattern occurs is the quantity
_KINDS = (
    ("log_ratio", r"log\w*_(?:ratio|diff|difference|delta|rho|weight)|log_?(?:ratio|r|rho|w)", ""),
    (
        "importance_ratio",
        "(?:importance|imp|is|iw|tis|mis)(?:_sampling)?_(?:ratio|weight)|ratio|rho|iw",
        "prob",
    ),
    (
        "logp",
        "log_?(?:p|prob|probability|probabilitie|likelihood|lik)|lp|log_?q|lq",
        f"{_WORDS['vocabulary']} {_WORDS['whole']} selected sampled generated target actual",
    ),
    ("max_length", "(?:num_)?logit_to_keep", ""),
    ("logits", "logit", "next vocab target"),
    ("probs", "prob|probability|probabilitie", "vocab vocabulary all full"),
    (
        "group_size",
        "group_(?:size|sz)|(?:num|n)_gen(?:eration)?|num_return_sequence|n_rollout|k_sample"
        "|(?:(?:num|n|k)_)?(?:sample|rollout)_per_prompt",
        "",
    ),
    ("batch_size", "batch_size|bsz|bs|(?:num|n|global_valid)_(?:sequence|seq|sample)", "global micro mini"),
    ("num_tokens", "(?:num|n|total|global_valid)(?:_valid|_action)?_(?:token|tok|item)", "in global"),
    ("num_tokens", "n(?:token|tok)|(?:global|batch)_(?:token|tok)|token_in_batch", "global valid"),
    ("num_tokens", "token_count|normalizer|denominator|denom|divisor", "loss global total"),
    ("max_length", f"max_(?:(?:new|seq|sequence|{_ANSWER})_)*(?:token|length|len)", "generate"),
    ("sample_mask", "sample_mask", ""),
    ("prompt_length", "(?:prompt|context|query)_(?:token_)?(?:length|len)", ""),
    ("lengths", "(?:(?:completion|response|answer|seq|sequence|gen|token)_)?(?:length|len)(?!_mask)", ""),
    ("entropy", "entropy|entropie", ""),
    ("outputs", "(?:model_)?output(?!_(?:token|input|id|mask))", ""),
    (
        "completion_mask",
        "mask|loss_multiplier|valid(?!_tok|_mask)",
        "valid attention attn loss eos assistant generated output answer non not no nonpad pad padding length"
        " seq sequence target label",
    ),
    (
        "rewards",
        "reward|score|returns|advantage|adv|a_?hat",
        "outcome sequence seq episode total rm env environment task verifier normalized norm whitened group"
        " g gae accuracy correctness format scalar",
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
PAIRED = "chosen|rejected|reject|preferred|dispreferred|winner|loser"
OF_A_PAIR = "it is of a preference pair"
# words that no role survives: pattern, the quantity that it concerns or "" for all, why
_REFUSED = (
    (PAIRED, "", OF_A_PAIR),
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
_LETTERS = {
    "p": "probs",
    "q": "probs",
    "A": "rewards",
    "R": "rewards",
    "r": "rewards",
    "m": "completion_mask",
}
NO_QUANTITY = "no word of it is a quantity: log-probs, logits, mask, rewards, ..."
_PAIR = "P is read as the policy and Q as the reference; Schulman's note on KL has them the other way round"


def words_of(name: str) -> str:
    """``"_ref_log_prob_"`` of ``refLogProbs``: words in the singular and in lower case."""
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
    """Whose the words say it is, "" if they do not, and why that cannot be told."""
    found = [w for w in words if w in OWNER_OF]
    strong = {OWNER_OF[w] for w in found if w not in WORD_KINDS["neutral"]}
    if len(strong) > 1 or {"student", "teacher"} <= set(found):
        return "", f"the words {' and '.join(found)} say two owners"
    return (strong.pop() if strong else "policy" if found else ""), ""


def _misspelled(words: Iterable[str], known: Mapping[str, str]) -> str:
    """What the first word that resembles a known one is: ``refernce`` the reference, ``lgp`` log-probs."""
    near = (difflib.get_close_matches(w, known, n=1, cutoff=0.8) for w in words if w not in OWNER_OF)
    return next((known[n[0]] for n in near if n), "")


def roles_of(quantity: str, owner: str = "", head: str = "") -> tuple[str, ...]:
    """The roles of the quantity, of that owner or of all of them."""
    if quantity == "log_ratio":
        return ("log_ratio", "log_importance_ratio")[1 if _find("importance|is", f"_{head}_") else 0 :]
    if quantity not in OWNED:
        return (quantity,) if quantity else ()
    return tuple(f"{PREFIX[o]}{quantity}" for o in OWNERS if owner in ("", o))


def _without_quantity(name: str, words: list[str], owner: str) -> Unread:
    if len(name) == 1:
        return Unread(name, "one letter says neither whose it is nor what", roles_of(_LETTERS.get(name, "")))
    guess = _misspelled(words, _MISSPELLED)
    offered = roles_of(guess, owner or _misspelled(words, OWNER_OF))
    if owner and not guess and not WORD_KINDS["neutral"].issuperset(words):  # a model alone is no tensor
        offered = tuple(r for q in OWNED for r in roles_of(q, owner))
    return Unread(name, NO_QUANTITY, offered)


def read_name(name: str) -> Read | Unread:
    """How one name alone is read; see `read_names` for what only several together tell.

    Args:
        name: Of a parameter or of a key of a batch.
    """
    if name.lower() == "rollout":
        return Read(name, "rollout", ROLES["rollout"])
    words = words_of(name)
    return read_head(name, words, _read_words) if says_a_head(words) else _read_words(words, name)


def _read_words(words: str, name: str = "") -> Read | Unread:
    """How the words of a name are read that is of no head."""
    hits = ((q, found, more) for q, head, more in _KINDS if (found := _find(head, words)))
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
    if unknown and (WORD_KINDS["measure"].intersection(unknown) or kind in ("prompt_index", "batch")):
        offered = ()  # a length of it, a flag about it, another index
    not_said = owned and not owner
    whys = [why for pattern, of, why in _REFUSED if of in ("", kind) and _find(pattern, words)]
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


def owner_of_model(name: str) -> str:
    """Whose model a parameter is by its name, ``"reference"`` of ``ref_model``; "" where it says none."""
    words = [w for w in words_of(name).split("_") if w]
    owner, _ = owner_of(words)
    nouns = WORD_KINDS["neutral"] | {"net", "network", "module", "lm", "llm", "teacher"}
    return owner if nouns.intersection(words) and {*words} <= nouns | OWNER_OF.keys() else ""
