"""Named objectives: scalars of an enumerated world whose exact gradients a loss is compared with.

``sequence_*`` objectives are functions of the whole policy. ``token_*`` ones sum a divergence over the
states that the *sampling* policy visits and hold those visits fixed: what a per-token loss minimizes,
and in general not the gradient of anything (the field has curl); ``policy_token_*`` ones do so over the
states that the *policy* would visit. ``behavior_*`` ones hold the samples themselves fixed; both are
distinct only off-policy. ``sampled_mean_*`` ones divide by the length of the sequence that was sampled,
the sample held fixed; they and the other objectives of lengths are distinct only where lengths vary.

``*_to_sampler`` and ``surrogate_*`` are anchored to the policy that sampled, which follows the policy from
one batch to the next. On fresh samples the former have no gradient, and the latter has that of the reward.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from importlib.resources import files
from typing import Any

from kl_companion.auditing.worlds.divergences import divergence_objectives
from kl_companion.auditing.worlds.objective import OBJECTIVES as OBJECTIVES
from kl_companion.auditing.worlds.objective import Objective as Objective
from kl_companion.auditing.worlds.objective import Product, make_objective
from kl_companion.auditing.worlds.objective import field as field
from kl_companion.auditing.worlds.objective import fields_and_values as fields_and_values
from kl_companion.auditing.worlds.objective import get_objective as get_objective
from kl_companion.auditing.worlds.objective import register_objective as register_objective
from kl_companion.auditing.worlds.objective import value as value
from kl_companion.auditing.worlds.truncations import MASSES, mass_objectives
from kl_companion.divergences import DIVERGENCES, Divergence


def _add(name: str, term: Product, *, source: str = "this book", **texts: Any) -> None:
    """Register a product with its texts. On fresh samples some products coincide with others."""
    on_next_tokens = term.over == "next" or (term.per_length and term.each != "log")
    coincides = term.visits == "policy" or (term.visits == "sampler" and not on_next_tokens)
    OBJECTIVES[name] = make_objective(
        name,
        term.scalar,
        source=source,
        regularizer=term.anchor == "reference",
        rewards=term.rewarded,
        sampler=term.anchor == "sampler",
        off_policy_only=coincides or term.anchor == "sampler",
        lengths_only=term.per_length,
        **texts,
    )


for _name, _row in tomllib.loads((files(__package__) / "objectives.toml").read_text("utf-8")).items():
    _add(_name, Product(**_row.pop("term")), **_row)

_HELD = (
    "The policy is held near the one that sampled: a step size and no regularizer, which comes to rest only "
    "where the rest of the loss does."
)
_AWAY = "The policy is pushed away from the one that sampled by {}."
_ANCHORED = {
    "reverse_kl": ("reverse_kl", "reverse KL, KL(policy || sampler),"),
    "forward_kl": ("forward_kl", "forward KL, KL(sampler || policy),"),
    "total_variation": ("total_variation", "total variation distance"),
    "pearson": ("pearson", "Pearson chi-squared divergence"),
    "neyman": ("neyman", "Neyman chi-squared divergence"),
    "squared log / 2": ("squared_log_ratio", "squared log-ratio / 2"),
    "ratio x squared log / 2": ("weighted_squared_log_ratio", "ratio-weighted squared log-ratio / 2"),
}
_OVER = {
    "token": ("sum", "next token", "of every next token, the visits held fixed"),
    "sequence": ("answer", "whole answer", "of whole answers"),
    "sampled_mean": ("sum", "mean over each answer", "of the tokens of each answer, divided by its length"),
}
FORWARD_TO_SAMPLER, LIKELIHOOD = "forward_kl_to_sampler", "behavior_log_likelihood"


for _level, (_over, _where, _of) in _OVER.items():
    for _each, (_kind, _what) in _ANCHORED.items():
        _mean = _level == "sampled_mean"
        if _each == "forward_kl" and not _mean:
            continue  # it is one at both levels
        _short = f"{_what.partition(',')[0]} to the sampler, {_where}"
        _add(
            f"{_level}_{_kind}_to_sampler",
            Product("sampler", _over, _each, "sampler", per_length=_mean),
            short=_short,
            words=f"the {_what} to the policy that sampled, {_of}",
            effect=_HELD,
            opposite=_AWAY.format(_short),
        )
for _k in range(1, MASSES + 1):
    OBJECTIVES.update(mass_objectives(_k))


def objectives(
    *,
    off_policy: bool,
    lengths: bool = True,
    heads: bool = True,
    sampler: bool = True,
    members: Collection[Divergence] = (),
) -> dict[str, Objective]:
    """The objectives to try; divergences that were registered later are included.

    Args:
        off_policy: Whether another policy samples.
        lengths: Whether the lengths of sequences vary.
        heads: Whether the loss reads more of a distribution than the sampled token; those that are cut are
            not among them, see `kl_companion.auditing.worlds.truncations`.
        sampler: Whether the loss reads the log-probs of the policy that sampled.
        members: Divergences that are tried too, such as members of a family.
    """
    tried = dict(OBJECTIVES)
    for d in (*DIVERGENCES.values(), *members):
        tried |= {n: o for n, o in divergence_objectives(d).items() if n not in tried}
    tried.pop(FORWARD_TO_SAMPLER)  # the log-likelihood's, with another sign
    return {
        n: o
        for n, o in tried.items()
        if (off_policy or not o.off_policy_only)
        and (lengths or not o.lengths_only)
        and (heads or not o.heads_only)
        and (sampler or not o.sampler)
        and not o.cut
    }


def by_the_sampler(match: dict[str, float], units: dict[str, str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return a sum with the forward KL to the sampler in place of minus the log-likelihood of its samples.

    They have one gradient. A log-likelihood that is minimized beside a distance to the reference is left as
    it is: on stale samples it is a part of such a distance (of K3, say).

    Args:
        match: Objective to coefficient, of a loss that reads the log-probs of the policy that sampled.
        units: Objective to unit.
    """
    coefficient = match.get(LIKELIHOOD, 0.0)
    apart = not any(OBJECTIVES[n].regularizer for n in match)
    if not (coefficient < 0 or (coefficient > 0 and apart)):
        return match, units
    names = {n: FORWARD_TO_SAMPLER if n == LIKELIHOOD else n for n in match}
    signed = {names[n]: -c if n == LIKELIHOOD else c for n, c in match.items()}
    return signed, {names[n]: unit for n, unit in units.items()}
